"""Steps of single precision, by which two programs of one formula may differ."""

from __future__ import annotations

import numpy as np
import pytest

from v8.base.arrays import MAX_STEPS, float32_step, steps_apart
from v8.model.networks.published import forecasts_apart
from v8.profile.columns import TASK_BANDS, TASK_OHLC, TASK_VOLATILITY
from v8.profile.tasks import TASKS


@pytest.mark.parametrize(
    ("magnitude", "step"), [(1.0, 2**-23), (-1.9, 2**-23), (0.99, 2**-24), (3e-8, 2**-48)]
)
def test_a_step_is_the_distance_to_the_next_number_of_float32(magnitude: float, step: float) -> None:
    assert float32_step(magnitude) == step
    assert np.nextafter(np.float32(magnitude), np.float32(np.sign(magnitude) * 4)) - np.float32(
        magnitude
    ) == (np.sign(magnitude) * step)


def test_the_largest_difference_counts_each_in_its_own_size() -> None:
    values = np.array([1.0, 60_000.0])
    expected = np.array([1.0 + 3 * 2.0**-23, 60_000.0 + 2**-8])
    assert steps_apart(values, expected, magnitude=np.array([1.0, 60_000.0])) == 3.0
    assert steps_apart(values, expected, magnitude=60_000.0) == 1.0


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_never_within_any_steps(odd: float) -> None:
    for other in (odd, 1.0):
        assert steps_apart(np.array([1.0, odd]), np.array([1.0, other]), magnitude=1.0) == np.inf


def test_a_volatility_is_counted_in_steps_of_the_ratios_that_it_is_computed_from() -> None:
    """Row 9: a stable coin's is 1e-4, and two programs were 1.5e-8 apart: an eighth of a step."""
    expected = {TASK_VOLATILITY: np.full((1, 1, 1), 9.5e-5)}
    values = {TASK_VOLATILITY: expected[TASK_VOLATILITY] + 1.5e-8}
    assert forecasts_apart(values, expected, np.array([1.0]))[TASK_VOLATILITY] == pytest.approx(
        0.126, abs=0.001
    )


@pytest.mark.parametrize("task", [TASK_OHLC, TASK_BANDS])
def test_a_price_is_counted_in_steps_of_the_last_close_and_of_its_move(task: str) -> None:
    """A move is known to a share of 16 steps: here half of the price, so steps of eight more prices."""
    of_windows = TASKS[task].magnitude(2.0, np.array([[2.0, 2.0], [2.0, 3.0], [1.0, 2.0]]))
    assert of_windows.tolist() == [[2.0], [18.0], [18.0]]


def test_another_forecast_is_not_one_of_rounding() -> None:
    """A thousandth of the price of a calm coin, and a tenth of a stable coin's volatility."""
    for task, size, change in ((TASK_OHLC, 60_000.0, 60.0), (TASK_VOLATILITY, 1e-4, 1e-5)):
        expected = {task: np.full((1, 1, 1), size)}
        changed = {task: expected[task] + change}
        assert forecasts_apart(changed, expected, np.array([60_000.0]))[task] > MAX_STEPS


def test_quantiles_are_compared_as_their_task_is() -> None:
    expected = {"ohlc_quantiles": np.full((2, 1, 3, 4), 1.0), "ohlc": np.full((2, 1, 4), 1.0)}
    changed = {name: values.copy() for name, values in expected.items()}
    changed["ohlc_quantiles"][1, 0, 2, 3] = np.nan
    assert forecasts_apart(changed, expected, np.array([1.0, 1.0])) == {"ohlc": 0.0, "ohlc_quantiles": np.inf}
