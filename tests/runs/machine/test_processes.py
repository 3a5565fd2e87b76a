"""Processes that measure: one order each, answered line by line, ended in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import v8
from v8.base.errors import V8Error
from v8.profile.profile import Profile
from v8.runs.machine.processes import Measurement, MeasurementRequest, run_processes
from v8.runs.measuring import measure

BACKEND: Measurement = {"measure": "backend"}
MATMUL: Measurement = {"measure": "matmul", "seconds": 0.01, "size": 8}


@pytest.fixture(scope="module")
def order(make_profile: Callable[..., Profile]) -> MeasurementRequest:
    return MeasurementRequest(profile=make_profile(), measurements=[BACKEND, MATMUL])


@pytest.mark.tf
def test_measurements_are_taken_one_after_another(order: MeasurementRequest) -> None:
    backend, matmul = measure(MeasurementRequest.model_validate_json(order.model_dump_json()))
    assert backend["backend"] in backend["versions"]
    assert matmul["size"] == 8


@pytest.mark.process
def test_processes_answer_at_once_and_line_by_line(order: MeasurementRequest) -> None:
    answers = run_processes([order, order])
    for answer in answers:
        backend, matmul = answer.measured
        assert backend["backend"] in backend["versions"]
        assert matmul["size"] == 8
        assert (answer.refusal, answer.exit_code) == (None, 0)
        assert answer.start_s > 0.5  # nobody starts TensorFlow faster


@pytest.mark.process
def test_a_process_that_hangs_is_given_up(order: MeasurementRequest) -> None:
    (answer,) = run_processes([order], limit_s=0.5)
    assert answer.refusal == "a measuring process took more than 0.5 s"
    assert (answer.measured, answer.start_s) == ((), 0.0)


@pytest.mark.process
def test_an_error_of_ours_comes_back_as_its_sentence(order: MeasurementRequest) -> None:
    nowhere = {"source": "nonsense", "data_dir": None, "run": "nowhere", "fleet_size": 1}
    wanted = [MATMUL, {"measure": "training", "device": "cpu", **nowhere}]
    request = MeasurementRequest(profile=order.profile, measurements=wanted)
    (answer,) = run_processes([request], program="v8.annexes.comparison.measuring")
    assert len(answer.measured) == 1
    assert answer.refusal is not None
    assert "nonsense" in answer.refusal
    assert answer.exit_code == 0


LIGHT = """
import sys

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
    with pytest.raises(V8Error, match="needs the package keras; got none"):
        v8.train("demo", series="BTCUSDT-1h", smoke=True, progress=False)
