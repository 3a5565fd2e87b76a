"""Functions in processes of their own: values one by one, messages, errors, an end in time; and resources."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_profiles import tiny_profile

import v8
from v8.annexes.comparison import ComparisonOptions
from v8.annexes.comparison.comparing import TrainingRequest, measure_training
from v8.base.child import ChildCall, resource_scope, run_in_child, run_in_children, send_message
from v8.base.errors import ProfileError, StorageError, V8Error
from v8.data.market.series import Series
from v8.runs.machine import Measurement, MeasurementRequest, take_measurements

BACKEND: Measurement = {"measure": "backend"}
MATMUL: Measurement = {"measure": "matmul", "seconds": 0.01, "size": 8}


@pytest.fixture(scope="module")
def request_of_two() -> MeasurementRequest:
    return MeasurementRequest(tiny_profile(), [BACKEND, MATMUL])


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a child find this module, of which it gets functions, and what the module imports."""
    folder = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(folder.parent / "parts")]))


def add(numbers: tuple[int, int]) -> int:
    print("a line of its own")
    send_message("adding\ntwo")
    return sum(numbers)


def count(last: int) -> Iterator[int]:
    yield from range(1, last + 1)
    sys.exit("no more numbers")


def fail(name: str) -> None:
    Series.parse(name)


def open_file(path: Path) -> None:
    path.read_bytes()


def hang(seconds: float) -> None:
    time.sleep(seconds)


def end_without_value(code: int) -> None:
    os._exit(code)


@pytest.mark.process
def test_a_function_returns_from_its_child_what_it_would_here() -> None:
    messages = list[str]()
    assert run_in_child(add, (2, 3), where="v8.add", on_message=messages.append) == 5
    assert messages == ["a line of its own", "adding\ntwo"]


@pytest.mark.process
def test_values_before_a_crash_are_kept_with_its_last_words() -> None:
    (result,) = run_in_children([ChildCall(count, 2)])
    assert (result.values, result.exit_code, result.refusal) == ((1, 2), 1, None)
    assert result.errors.strip() == "no more numbers"


@pytest.mark.process
def test_an_error_of_ours_is_raised_here_as_it_was_there() -> None:
    with pytest.raises(ProfileError) as here:
        fail("BTCUSDT")
    with pytest.raises(ProfileError) as there:
        run_in_child(fail, "BTCUSDT", where="v8.fail")
    assert (type(here.value), str(here.value)) == (type(there.value), str(there.value))
    with pytest.raises(StorageError, match="nowhere: "):
        run_in_child(open_file, Path("nowhere"), where="v8.open")


@pytest.mark.process
def test_a_child_that_ends_without_a_value_is_an_error_of_what_was_called() -> None:
    with pytest.raises(V8Error) as caught:
        run_in_child(end_without_value, 7, where="v8.end")
    assert (caught.value.where, caught.value.got) == ("v8.end", "exit code 7")


@pytest.mark.process
def test_a_process_that_hangs_is_ended() -> None:
    (result,) = run_in_children([ChildCall(hang, 60.0)], limit_s=0.5)
    assert str(result.refusal).endswith(" more than 0.5 s")
    assert (result.values, result.start_s) == ((), 0.0)


@pytest.mark.tf
def test_measurements_are_taken_one_after_another(request_of_two: MeasurementRequest) -> None:
    backend, matmul = take_measurements(request_of_two)
    assert backend["backend"] in backend["versions"]
    assert matmul["size"] == 8


@pytest.mark.process
def test_a_training_that_cannot_be_measured_says_why(request_of_two: MeasurementRequest) -> None:
    options = ComparisonOptions(source="nonsense", device="cpu")
    request = TrainingRequest(request_of_two.profile, Path("nowhere"), options, fleet_size=1)
    (result,) = run_in_children([ChildCall(measure_training, request)])
    assert isinstance(result.error, V8Error) and "nonsense" in result.error.got
    assert (result.values, result.exit_code) == ((), 0)


LIGHT = """
import sys
import pytest

from v8.base.child import resource_scope


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("keras", "tensorflow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.mark.process
def test_training_from_python_without_keras_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(LIGHT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(V8Error, match="package keras; got none"):
        v8.train("demo", series="BTCUSDT-1h", smoke=True, progress=False)


class Resource:
    """Something that can be closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_a_resource_stays_open_until_the_outermost_block_ends() -> None:
    with resource_scope():
        with resource_scope() as scope:
            resource = scope.get("it", Resource)
        with resource_scope() as scope:
            assert scope.get("it", Resource) is resource
        assert not resource.is_closed
    assert resource.is_closed
    with resource_scope() as scope:
        assert len(scope) == 0


def test_a_resource_of_another_key_is_closed_before_the_next_is_opened() -> None:
    with resource_scope() as scope:
        first = scope.get("first", Resource)
        second = scope.get("second", Resource)
        assert first.is_closed
        assert not second.is_closed
        assert len(scope) == 1


def test_a_resource_is_closed_after_an_error() -> None:
    resource = Resource()
    with pytest.raises(ValueError, match="of a run"), resource_scope(), resource_scope() as scope:
        scope.get("it", lambda: resource)
        raise ValueError("of a run")
    assert resource.is_closed
