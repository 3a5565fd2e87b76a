"""How often the test of significance finds a difference where there is none, and how often one that is there.

`pytest tests/model/evaluation/test_size_of_tests.py -s` prints the table that is in
docs/en/explanation/evaluation.md. Two processes of loss differences of mean zero, for one step and for ten:

* independent bars: the sum of as many independent bars as are forecast, window after window.
* persistent: the autocorrelation of real candles, the mean over the 40 series of the exchange's archive (15m
  from January 2024, 1h from April 2023, to September 2024) of the differences between the losses of `har` and
  `ewma` on candles, two forecasts of which neither is much better. At 1, 5, 10, 20 and 30 bars it is 0.32,
  0.22, 0.18, 0.10 and 0.06 for one step, and 0.71, 0.26, 0.08, 0.05 and 0.04 for ten. Sums of first-order
  autoregressions and noise have about the same.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.fft
import scipy.stats

from v8.model.evaluation.significance import degrees_of_freedom, diebold_mariano, min_windows

DRAWS = 4_000
"""The standard error of a share of 5 % is 0.34 points, that of a share of 30 % 0.72."""

PERSISTENT = {1: ((0.30, 0.95),), 10: ((0.82, 0.76), (0.10, 0.96))}
"""By steps: share of the variance and coefficient of each autoregression; the rest is noise."""

KINDS = ("independent", "persistent")

SIZES = {
    ("independent", 1, 31): (5.5, 5.2),
    ("independent", 1, 60): (5.7, 4.8),
    ("independent", 1, 120): (5.4, 4.7),
    ("independent", 1, 200): (5.6, 5.2),
    ("independent", 1, 300): (5.5, 5.0),
    ("independent", 1, 1_200): (4.8, 5.3),
    ("independent", 10, 31): (16.6, 5.1),
    ("independent", 10, 60): (12.8, 5.8),
    ("independent", 10, 120): (10.1, 6.0),
    ("independent", 10, 200): (8.8, 5.2),
    ("independent", 10, 300): (7.6, 4.9),
    ("independent", 10, 1_200): (6.6, 5.3),
    ("persistent", 1, 31): (32.9, 8.4),
    ("persistent", 1, 60): (32.8, 11.1),
    ("persistent", 1, 120): (27.6, 10.3),
    ("persistent", 1, 200): (23.8, 8.6),
    ("persistent", 1, 300): (20.0, 8.4),
    ("persistent", 1, 1_200): (12.2, 6.0),
    ("persistent", 10, 31): (19.1, 6.7),
    ("persistent", 10, 60): (17.9, 7.1),
    ("persistent", 10, 120): (15.2, 7.4),
    ("persistent", 10, 200): (14.0, 6.6),
    ("persistent", 10, 300): (13.0, 6.8),
    ("persistent", 10, 1_200): (9.4, 6.0),
}
"""By kind, steps and windows: how often p < 0.05 before and after, in per cent."""


def _autoregression(rng: np.random.Generator, num_windows: int, coefficient: float) -> np.ndarray:
    """Draw a stationary first-order autoregression of variance 1, shape (N, `DRAWS`)."""
    values = rng.standard_normal((num_windows, DRAWS))
    values[1:] *= math.sqrt(1 - coefficient**2)
    for window in range(1, num_windows):
        values[window] += coefficient * values[window - 1]
    return values


def _drawn(kind: str, horizon_bars: int, num_windows: int) -> np.ndarray:
    """Draw differences of mean zero and variance 1, shape (N, `DRAWS`)."""
    rng = np.random.default_rng([KINDS.index(kind), horizon_bars, num_windows])
    if kind == "independent":
        sums = np.cumsum(rng.standard_normal((num_windows + horizon_bars, DRAWS)), axis=0)
        return (sums[horizon_bars:] - sums[:-horizon_bars]) / math.sqrt(horizon_bars)
    parts = PERSISTENT[horizon_bars]
    noise = math.sqrt(1 - sum(share for share, _ in parts))
    values = noise * rng.standard_normal((num_windows, DRAWS))
    for share, coefficient in parts:
        values += math.sqrt(share) * _autoregression(rng, num_windows, coefficient)
    return values


def _p_values_before(values: np.ndarray, horizon_bars: int) -> np.ndarray:
    """The test until 56f927dc: Bartlett weights, lag 1.3 roots of N, Student's t of N - 1 degrees."""
    num = len(values)
    lag = max(horizon_bars - 1, math.ceil(1.3 * math.sqrt(num)))
    deviations = values - values.mean(axis=0)
    variance = np.einsum("nd,nd->d", deviations, deviations) / num
    for distance in range(1, lag + 1):
        covariance = np.einsum("nd,nd->d", deviations[distance:], deviations[:-distance]) / num
        variance += 2 * (1 - distance / (lag + 1)) * covariance
    correction = math.sqrt((num - lag - 1) * (num - lag)) / num
    statistics = values.mean(axis=0) / np.sqrt(variance / num) * correction
    return 2 * scipy.stats.t.sf(np.abs(statistics), num - 1)


def _p_values(values: np.ndarray, horizon_bars: int) -> np.ndarray:
    """The test of today for all draws together, below the least number of windows, too."""
    num = len(values)
    num_degrees = max(1, degrees_of_freedom(num, horizon_bars))
    waves = scipy.fft.dct(values, type=2, norm="ortho", axis=0)[1 : num_degrees + 1]
    statistics = values.mean(axis=0) / np.sqrt(np.mean(waves**2, axis=0) / num)
    return 2 * scipy.stats.t.sf(np.abs(statistics), num_degrees)


def _percent_found(p_values: np.ndarray) -> float:
    return 100 * float(np.mean(p_values < 0.05))


@pytest.fixture(scope="module")
def sizes() -> dict[tuple[str, int, int], tuple[float, float]]:
    """Simulate every cell of `SIZES`, and print them as a table."""
    found = {}
    print("\n| differences | steps | windows | degrees of freedom | before | after |")
    for kind, horizon_bars, num_windows in SIZES:
        values = _drawn(kind, horizon_bars, num_windows)
        before = _percent_found(_p_values_before(values, horizon_bars))
        after = _percent_found(_p_values(values, horizon_bars))
        found[kind, horizon_bars, num_windows] = (before, after)
        num_degrees = degrees_of_freedom(num_windows, horizon_bars)
        shown = f"{after:.1f}" if num_windows >= min_windows(horizon_bars) else f"no test ({after:.1f})"
        print(f"| {kind} | {horizon_bars} | {num_windows} | {num_degrees} | {before:.1f} | {shown} |")
    return found


def test_the_table_of_the_documentation_is_what_the_simulation_gives(
    sizes: dict[tuple[str, int, int], tuple[float, float]],
) -> None:
    for cell, (before, after) in SIZES.items():
        for found, written in zip(sizes[cell], (before, after), strict=True):
            standard_error = 100 * math.sqrt(written / 100 * (1 - written / 100) / DRAWS)
            assert found == pytest.approx(written, abs=standard_error), cell


@pytest.mark.parametrize("language", ["en", "zh-TW"])
def test_the_documentation_shows_these_numbers(language: str) -> None:
    page = Path(__file__).parents[3] / "docs" / language / "explanation/evaluation.md"
    cells = re.findall(r"(\d+\.\d) → (\d+\.\d)?", page.read_text(encoding="utf-8"))
    assert cells == [
        (f"{before:.1f}", f"{after:.1f}" if windows >= min_windows(horizon_bars) else "")
        for (_, horizon_bars, windows), (before, after) in SIZES.items()
    ]


def test_chance_alone_is_called_significant_about_as_rarely_as_promised(
    sizes: dict[tuple[str, int, int], tuple[float, float]],
) -> None:
    tested = {cell: after for cell, (_, after) in sizes.items() if cell[2] >= min_windows(cell[1])}
    independent = {cell: after for cell, after in tested.items() if cell[0] == "independent"}
    assert max(independent.values()) < 6.1  # 5, and three standard errors of the simulation
    assert max(tested.values()) < 10
    # The test before: more than twice that.
    assert max(before for cell, (before, _) in sizes.items() if cell in tested) > 20


def test_the_tests_of_all_draws_are_those_of_the_product() -> None:
    for kind, horizon_bars, num_windows in SIZES:
        values = _drawn(kind, horizon_bars, num_windows)[:, :20]
        found = [diebold_mariano(draw, horizon_bars=horizon_bars).p_value for draw in values.T]
        if num_windows < min_windows(horizon_bars):
            assert found == [None] * 20
        else:
            np.testing.assert_allclose(found, _p_values(values, horizon_bars), rtol=1e-9)


@pytest.mark.parametrize(
    ("num_windows", "power_before", "power"), [(200, 76.4, 57.3), (300, 76.6, 61.2), (1_200, 78.3, 71.4)]
)
def test_a_difference_that_is_there_is_found_less_often_than_before(
    num_windows: int, power_before: float, power: float
) -> None:
    # Of 2.8 standard errors, which a test that knew the variance would find in 80 % of all cases.
    values = _drawn("independent", 1, num_windows) + 2.8 / math.sqrt(num_windows)
    assert _percent_found(_p_values_before(values, 1)) == pytest.approx(power_before, abs=2)
    found = _percent_found(_p_values(values, 1))
    assert found == pytest.approx(power, abs=2)
    # Student's t of B degrees, not central.
    num_degrees = degrees_of_freedom(num_windows, 1)
    critical = scipy.stats.t.ppf(0.975, num_degrees)
    assert found == pytest.approx(100 * scipy.stats.nct.sf(critical, num_degrees, 2.8), abs=2)


def _runs(num_windows: int, length: int, gap: int) -> np.ndarray:
    """Bars of windows that come in runs with gaps between them."""
    windows = np.arange(num_windows)
    return windows + gap * (windows // length)


@pytest.mark.parametrize("horizon_bars", [1, 10])
@pytest.mark.parametrize(
    ("name", "bars"),
    [
        ("an outage in the middle", _runs(300, 150, 100)),
        ("nine windows, then a gap", _runs(300, 9, 20)),
        ("thirty windows, then a gap", _runs(300, 30, 66)),
        ("one bar of three, at random", np.sort(np.random.default_rng(4).choice(900, 300, replace=False))),
        ("every bar, then every twelfth", np.r_[np.arange(150), 150 + 12 * np.arange(150)]),
    ],
)
def test_gaps_make_chance_no_more_significant(name: str, bars: np.ndarray, horizon_bars: int) -> None:
    values = _drawn("independent", horizon_bars, int(bars[-1]) + 1)[bars]
    assert _percent_found(_p_values(values, horizon_bars)) < 6.3, name
