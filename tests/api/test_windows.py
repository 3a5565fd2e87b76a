"""Windows for a network of one's own: what training reads, by span, as a data set that `fit` takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy_batches import span_batches
from tiny_profiles import tiny_profile

import v8
from v8.base.errors import ArgumentError, DataError
from v8.data.features import compute_table
from v8.data.windows import FleetWindows, prepare_series, table_columns
from v8.profile.profile import Profile

pytestmark = pytest.mark.tf


@pytest.fixture
def profile() -> Profile:
    return tiny_profile()


def read(dataset: Any) -> tuple[np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
    """Join all batches of one pass."""
    batches = list(dataset.as_numpy_iterator())
    x = np.concatenate([x for x, _ in batches])
    return x, {task: np.concatenate([y[task] for _, y in batches]) for task in batches[0][1]}


@pytest.mark.parametrize("span", ["train", "validation", "test"])
def test_a_span_holds_the_windows_and_targets_of_training(
    span: str, trained_run: Any, profile: Profile
) -> None:
    data = prepare_series(compute_table(trained_run.candles, table_columns(profile)), profile)
    (expected,) = span_batches(FleetWindows([data]), span, data.num_windows(span))
    x, y = read(v8.windows(trained_run.candles.to_frame(), profile, span=span, series="BTCUSDT-15m"))
    if span == "train":  # shuffled: compare in time order, which targets tell
        ours, theirs = (np.lexsort(each.reshape(len(each), -1).T) for each in (x, expected.x_BMTF[:, 0]))
    else:
        ours = theirs = np.arange(len(x))
    np.testing.assert_array_equal(x[ours], expected.x_BMTF[theirs, 0])
    for task, targets in y.items():
        np.testing.assert_array_equal(targets[ours], expected.y_BMHC[task][theirs, 0])


def test_every_pass_over_train_is_shuffled_anew_and_a_seed_repeats_them(
    trained_run: Any, profile: Profile
) -> None:
    first, again = (v8.windows(trained_run.candles, profile, seed=3) for _ in range(2))
    one = read(first)[0]
    two = read(first)[0]
    assert not np.array_equal(one, two)
    np.testing.assert_array_equal(one, read(again)[0])
    np.testing.assert_array_equal(two, read(again)[0])


def test_the_example_of_the_how_to_runs_as_it_stands(trained_run: Any) -> None:
    page = Path(__file__).parents[2] / "docs/en/how-to/python.md"
    example = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)[1]
    names: dict[str, Any] = {"frame": trained_run.candles.to_frame()}
    exec(example.replace("epochs=5", "epochs=1, verbose=0"), names)
    assert np.isfinite(names["model"].history.history["val_loss"]).all()


def test_another_span_and_too_few_candles_are_refused(trained_run: Any, profile: Profile) -> None:
    with pytest.raises(ArgumentError, match=r"span=: .*validation, test; got 'tests'"):
        v8.windows(trained_run.candles, profile, span="tests")
    with pytest.raises(DataError, match="needs at least"):
        v8.windows(trained_run.candles.to_frame().tail(60), profile)


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "heavy"),
    [("import v8", ("tensorflow", "keras", "pandas")), ("import v8; v8.windows", ("tensorflow", "keras"))],
)
def test_importing_v8_starts_no_library_for_it(program: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys; {program}; print([name for name in {heavy!r} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"
