"""Paired losses of forecasters, and how two of them compare: error ratio, significance test, best baseline.

A loss is the error of one window: the mean absolute error in returns over all steps and columns of a task, or
twice the mean pinball loss. Evaluations, the leaderboard, comparisons of two models, the check for decay,
back-tests and the live record all use the functions here.

One rule says how two errors compare (`outcome_of`): the smaller one *beats* the other, and the larger one
*loses to* it, where the difference is statistically significant. Where it is not, they are *not
significantly different*, whatever the two numbers are. Where there is no test, the result is *too few
windows*.

The test is that of Diebold and Mariano. Its null hypothesis: the mean difference of the two forecasters'
losses is zero.

* Windows overlap: two that are fewer than a horizon apart forecast common bars, so their losses move
  together, and volatility stays high or low for longer still. The variance of the mean is therefore a
  long-run variance: the mean square of the first B cosine coefficients of the differences, each of which
  estimates it. The statistic is compared with Student's t of B degrees of freedom (Lazarus, Lewis, Stock &
  Watson 2018, doi:10.1080/07350015.2018.1506926).
* B is small (`degrees_of_freedom`), because persistence shows in the slowest waves only: with more of them
  the variance is too small, and chance alone is called significant. The price is power, most of it where B is
  below 4.
* There is no test of fewer than `min_windows` windows. With fewer, chance alone is called significant in more
  than 10 % of all cases where losses are as persistent as those of real candles, or B is below 4.
* The waves count windows, not bars. Across a gap of the candles windows depend on each other less, never
  more, so gaps only make the slow waves a better guide.

tests/model/evaluation/test_size_of_tests.py simulates how often chance alone is called significant, and
docs/en/explanation/evaluation.md shows it.

Testing many series together finds some differences by chance alone. `corrected_p_values` corrects for that
(Benjamini & Hochberg 1995, doi:10.1111/j.2517-6161.1995.tb02031.x). The correction bounds the share of false
discoveries also when the tests are positively dependent, as those of coins that rise and fall together are
(Benjamini & Yekutieli 2001, doi:10.1214/aos/1013699998).

Legend: N windows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from v8.base.records import Count, Number
from v8.base.wording import number
from v8.model.baselines.baselines import NAIVE

ALPHA: Final = 0.05
"""P-values below this, corrected where several series are evaluated together, are called significant."""

DEGREES_PER_ROOT: Final = 0.3
"""Degrees of freedom of a test over the root of the number of windows."""

MIN_WINDOWS: Final = 200
"""The least number of windows of a test of a few steps; see `min_windows`."""

LAG_FACTOR: Final = 1.3
"""Lag over the root of the number of values, after Lazarus et al. (2018), for the effective sample size."""

MIN_VALUES_PER_LAG: Final = 3
"""The effective sample size needs values for at least this many blocks of lag + 1 bars."""

COSINES_AT_ONCE: Final = 1 << 20  # of a test's waves and windows: 8 MB

ROUNDING_SHARE: Final = 1e-5
"""Errors that differ by a smaller share than this count as equal.

Published models compute in single precision. Its rounding is 6e-8 of a price, which is about 1e-5 of an error
of half a percent."""

ComparisonResult = Literal[
    "beats", "equals", "not significantly different from", "too few windows", "loses to"
]
"""How a forecaster's error compares with a baseline's, by the rule of `outcome_of`."""

BEATS: Final = "beats"
UNKNOWN: Final = "too few windows"
LOSES: Final = "loses to"

LossesByTask = Mapping[str, Mapping[str, NDArray[np.float64]]]
"""Per task and forecaster, the loss of each window, shape (N,)."""


@dataclass(frozen=True)
class Significance:
    """A Diebold-Mariano test of one forecaster against another.

    The standard error is the root of the long-run variance over N; None when there are too few windows or the
    two never differ in any other way than by a constant.
    """

    mean_difference: Number  # mean loss of the first minus that of the second, in returns
    standard_error: Annotated[Number, Field(gt=0)] | None  # of that mean, in returns
    num_windows: Count  # N
    degrees_of_freedom: Count  # of Student's t, B

    @property
    def statistic(self) -> float | None:
        """Mean over standard error, unitless; None without an error."""
        return None if self.standard_error is None else self.mean_difference / self.standard_error

    @property
    def p_value(self) -> float | None:
        """Chance of a difference at least this large, either way, if there were none; 0 to 1 or None."""
        from scipy.special import stdtr  # noqa: PLC0415 - a third of the start of every command that trains

        statistic = self.statistic
        return None if statistic is None else float(2.0 * stdtr(self.degrees_of_freedom, -abs(statistic)))

    @property
    def margin_95(self) -> float | None:
        """Half the width of the 95 % interval of the mean, in returns; None without an error."""
        from scipy.special import stdtrit  # noqa: PLC0415 - as above

        if self.standard_error is None:
            return None
        return float(stdtrit(self.degrees_of_freedom, 1.0 - ALPHA / 2.0)) * self.standard_error


@dataclass(frozen=True, eq=False)
class Losses:
    """The losses of every forecaster (`MODEL` and keys of `BASELINES`) in the N windows of one series."""

    by_task: LossesByTask
    bar_numbers: NDArray[np.int64]
    """The bar of each window's newest candle, counted in bars from the epoch, ascending, shape (N,)."""
    horizon_bars: int  # steps ahead
    origin: str = ""  # which windows they are of, as a phrase for messages

    def __len__(self) -> int:
        return len(self.bar_numbers)

    def mean(self, task: str, forecaster: str) -> float:
        """Return the mean loss of a forecaster."""
        return self.by_task[task][forecaster].mean()

    def test(self, task: str, first: str, second: str, times: float = 1.0) -> Significance:
        """Test whether two forecasters differ; the losses of the second are multiplied by `times` before."""
        by_name = self.by_task[task]
        differences = by_name[first] - times * by_name[second]
        return diebold_mariano(differences, horizon_bars=self.horizon_bars)

    def tests(self, task: str, forecaster: str) -> dict[str, Significance]:
        """Test a forecaster against every other one; the result is by the name of the other one."""
        others = [name for name in self.by_task[task] if name != forecaster]
        return {other: self.test(task, forecaster, other) for other in others}


@dataclass(frozen=True)
class BaselineComparison:
    """The model's error on a task compared with a baseline's, in the same unit.

    The p-values are two-sided. They are None when there are too few windows for a test, or the two forecasts
    are the same.
    """

    baseline: str  # a key of `BASELINES`
    model_error: float  # mean absolute error of the model
    baseline_error: float  # mean absolute error of the baseline
    p_value: float | None = None  # chance of a difference this large if there were none, 0 to 1
    corrected_p_value: float | None = None  # the same, corrected for all series that are evaluated together

    @property
    def name(self) -> str:
        """The name of the baseline that users see."""
        return self.baseline

    @property
    def relative_mae(self) -> float | None:
        """The model's error divided by the baseline's, see `error_ratio`."""
        return error_ratio(self.model_error, self.baseline_error)

    @property
    def skill(self) -> float | None:
        """The skill score, 1 - relative MAE: 1 is perfect, 0 as good as the baseline, negative worse.

        None if there is no relative MAE.
        """
        return None if self.relative_mae is None else 1.0 - self.relative_mae

    @property
    def outcome(self) -> ComparisonResult:
        """The result of the comparison by the rule of `outcome_of`, with the corrected p-value."""
        return outcome_of(self.model_error, self.baseline_error, self.corrected_p_value)

    @property
    def verdict(self) -> str:
        """The outcome as a phrase: "beats naive", "not significantly different from har"."""
        return UNKNOWN if self.outcome == UNKNOWN else f"{self.outcome} {self.name}"

    @property
    def is_significant(self) -> bool:
        """Whether the difference from the baseline is statistically significant."""
        return self.outcome in (BEATS, LOSES)

    @property
    def marked(self) -> str:
        """The relative MAE, with a star where the difference is significant.

        Otherwise a blank follows, so that the decimal points of a column are aligned.
        """
        mark = "*" if self.is_significant else " "
        return f"{number(self.relative_mae)}{mark}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "baseline": self.name,
            "relative_mae": self.relative_mae,
            "verdict": self.verdict,
            "p_value": self.p_value,
            "corrected_p_value": self.corrected_p_value,
            "is_significant": self.is_significant,
        }


def corrected(comparisons: Sequence[BaselineComparison]) -> list[BaselineComparison]:
    """Fill in the corrected p-values of the comparisons of one table, for how many tests there are."""
    p_values = corrected_p_values([comparison.p_value for comparison in comparisons])
    return [
        replace(comparison, corrected_p_value=p_value)
        for comparison, p_value in zip(comparisons, p_values, strict=True)
    ]


def reading_marks(num_series: int) -> str:
    """Explain the relative MAE and its star, as sentences without the final stop."""
    return (
        "Below 1 the model has the lower error. * statistically significant: Diebold-Mariano test, p < "
        f"{ALPHA:g}, corrected for {num_series} series together"
    )


def error_ratio(model_error: float, baseline_error: float) -> float | None:
    """Return the model's error divided by a baseline's, unitless; below 1 the model is better.

    None if the baseline made no error.

    >>> error_ratio(0.5, 2.0), error_ratio(0.5, 0.0)
    (0.25, None)
    """
    if baseline_error <= 0:
        return None
    ratio = model_error / baseline_error
    return ratio if math.isfinite(ratio) else None


def is_equal(first: float, second: float) -> bool:
    """Return whether two errors of the same unit are equal up to rounding."""
    return math.isclose(first, second, rel_tol=ROUNDING_SHARE)


def is_lower(ratio: float | None) -> bool:
    """Return whether an error is lower than another one by more than rounding, given their ratio.

    >>> is_lower(0.9), is_lower(0.9999999), is_lower(None)
    (True, False, False)
    """
    return ratio is not None and ratio < 1.0 and not is_equal(ratio, 1.0)


def outcome_of(model_error: float, baseline_error: float, p_value: float | None) -> ComparisonResult:
    """Return how an error compares with another one: the rule that every verdict follows.

    Args:
        model_error: The first error.
        baseline_error: The second error, in the same unit.
        p_value: Two-sided p-value of the difference, 0 to 1, corrected where several series are evaluated
            together; None where there are too few windows for a test.

    >>> outcome_of(1.0, 1.0000001, None), outcome_of(1.0, 1.1, 0.01), outcome_of(1.2, 1.1, 0.01)
    ('equals', 'beats', 'loses to')
    >>> outcome_of(1.2, 1.1, 0.85), outcome_of(1.2, 1.1, None)
    ('not significantly different from', 'too few windows')
    """
    if is_equal(model_error, baseline_error):
        return "equals"
    if p_value is None:
        return UNKNOWN
    if p_value >= ALPHA:
        return "not significantly different from"
    return BEATS if model_error < baseline_error else LOSES


def best_of(errors: Sequence[Mapping[str, float]]) -> str:
    """Return the best baseline: the one with the smallest median of its error relative to the naive one.

    Args:
        errors: Of each series the error by the name of the baseline, the naive forecast included. Baselines
            that not all series have are left out.
    """

    def median_relative_error(name: str) -> float:
        ratios = [by_name[name] / by_name[NAIVE] for by_name in errors if by_name[NAIVE] > 0]
        return round(median(ratios or [math.inf]), 9)

    shared = [name for name in errors[0] if all(name in by_name for by_name in errors)]
    return min(shared, key=lambda name: (median_relative_error(name), name != NAIVE))


def diebold_mariano(differences: NDArray[np.float64], *, horizon_bars: int) -> Significance:
    """Test whether two forecasters are equally good.

    Args:
        differences: Losses of the first forecaster minus those of the second, in the order of time, in
            returns, shape (N,), N at least 1.
        horizon_bars: Steps that are forecast.
    """
    num_windows = len(differences)
    mean = math.fsum(differences) / num_windows
    num_degrees = degrees_of_freedom(num_windows, horizon_bars)
    standard_error = None
    if num_windows >= min_windows(horizon_bars):
        variance = slow_variance(differences - mean, num_degrees)
        standard_error = math.sqrt(variance / num_windows)
        # Where the differences are all equal, rounding still leaves a standard error of about this size.
        if standard_error <= 1e-12 * float(np.abs(differences).max()):
            standard_error = None
    return Significance(mean, standard_error, num_windows, num_degrees)


def degrees_of_freedom(num_windows: int, horizon_bars: int) -> int:
    """Return B, the number of cosine coefficients that the variance of a test is estimated from.

    It grows with the root of N, so that the waves become slower in bars while there are more of them. The
    fastest takes at least four horizons: in faster ones overlapping windows cancel each other.

    >>> degrees_of_freedom(1_200, 10), degrees_of_freedom(1_200, 120), degrees_of_freedom(31, 10)
    (10, 5, 1)
    """
    return min(int(DEGREES_PER_ROOT * math.sqrt(num_windows)), num_windows // (2 * horizon_bars))


def min_windows(horizon_bars: int) -> int:
    """Return the least number of windows of a test: with fewer there is no p-value.

    From there on a test has at least 4 degrees of freedom.

    >>> min_windows(1), min_windows(10), min_windows(60)
    (200, 200, 480)
    """
    return max(MIN_WINDOWS, 8 * horizon_bars)


def slow_variance(deviations: NDArray[np.float64], num_waves: int) -> float:
    """Return the mean square of the first cosine coefficients: the limit of N times the variance of the mean.

    A coefficient is the root of 2 / N times the sum of cos(pi j (n - 1/2) / N) times the n-th value, j from 1
    to `num_waves` (Lazarus et al. 2018).

    Args:
        deviations: Values minus their mean, in the order of time, shape (N,).
        num_waves: Number of coefficients.
    """
    num_values = len(deviations)
    num_at_once = max(1, COSINES_AT_ONCE // num_values)
    sums = [
        _waves(num_values, first, min(first + num_at_once, num_waves)) @ deviations
        for first in range(0, num_waves, num_at_once)
    ]
    return float(np.mean(np.concatenate(sums) ** 2)) * 2.0 / num_values


@lru_cache(maxsize=1)
def _waves(num_values: int, first: int, stop: int) -> NDArray[np.float64]:
    """Return cosine waves `first` + 1 to `stop`, (stop - first, N), which all tests of a span share."""
    turns_N = np.pi * (np.arange(num_values) + 0.5) / num_values
    waves = np.cos(np.outer(np.arange(first + 1, stop + 1), turns_N))
    waves.setflags(write=False)
    return waves


def choose_lag(num_windows: int, horizon_bars: int) -> int:
    """Return the lag of `num_effective` in bars, at least horizon - 1.

    >>> choose_lag(1_200, 10), choose_lag(25, 10)
    (46, 9)
    """
    if num_windows <= 1:
        return 0  # the loss of a single window has no variance
    return max(horizon_bars - 1, math.ceil(LAG_FACTOR * math.sqrt(num_windows)))


def long_run_variance(
    deviations: NDArray[np.float64], lag_bars: int, bar_numbers: NDArray[np.int64] | None = None
) -> float:
    """Return the Bartlett-weighted sum of autocovariances: the limit of N times the variance of the mean.

    After Newey & West (1987), doi:10.2307/1913610. The weight of two bars that are k apart is
    1 - k / (lag + 1). The weighted sum equals the mean square of all sums over lag + 1 consecutive bars,
    where bars without a window count as zero. That is cheap to compute, and never negative.

    Args:
        deviations: Values minus their mean, in the order of time, shape (N,).
        lag_bars: Largest distance at which values may depend on each other, in bars.
        bar_numbers: As in `Losses`; None when the values follow one another bar by bar.
    """
    bars = np.arange(len(deviations)) if bar_numbers is None else bar_numbers
    # Positions on an axis of bars. A gap longer than the lag is shortened to lag + 1 bars: values on its two
    # sides are independent in either case, and the arrays stay short.
    steps = np.minimum(np.diff(bars), lag_bars + 1)
    positions = np.concatenate([[0], np.cumsum(steps)]).astype(np.int64)
    # Cumulative sums with lag + 1 empty bars on either side.
    running = np.zeros(int(positions[-1]) + 2 * (lag_bars + 1) + 1)
    running[positions + lag_bars + 2] = deviations
    running = np.cumsum(running)
    sums = running[lag_bars + 1 :] - running[: -lag_bars - 1]
    return float(np.sum(sums**2)) / (lag_bars + 1) / len(deviations)


def num_effective(values: NDArray[np.float64], step: int, bar_numbers: NDArray[np.int64] | None) -> float:
    """Return the effective sample size: how many independent values would give the mean the same variance.

    It is N times variance over long-run variance, from 1 to N. Where the values are all equal, or too few for
    a long-run variance, it is N / step: the number of windows that do not overlap.

    Args:
        values: In the order of time, shape (N,), N at least 1; each looks `step` bars ahead.
        step: Bars that a value looks ahead.
        bar_numbers: As in `long_run_variance`.
    """
    num_values = len(values)
    deviations = values - values.mean()
    variance = float(np.mean(deviations**2))
    lag_bars = choose_lag(num_values, step)
    if variance == 0.0 or num_values < MIN_VALUES_PER_LAG * (lag_bars + 1):
        return max(1.0, num_values / step)
    share = variance / max(variance, long_run_variance(deviations, lag_bars, bar_numbers))
    return max(1.0, num_values * share)


def corrected_p_values(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for the number of tests, after Benjamini & Hochberg (1995).

    A corrected p-value is the smallest false discovery rate at which the test is still called significant.
    None stands for no test; it stays None and is not counted.

    >>> corrected_p_values([0.04, None, 0.01])
    [0.04, None, 0.02]
    """
    tested = [value for value in p_values if value is not None]
    if len(tested) < 2:
        return list(p_values)
    # Not scipy.stats.false_discovery_control: importing scipy.stats takes longer than writing a report.
    order = np.argsort(tested)
    ranks = np.arange(1, len(tested) + 1, dtype=np.float64)
    shares = np.array(tested, np.float64)[order] * (len(tested) / ranks)
    shares = np.minimum.accumulate(shares[::-1])[::-1]
    corrected_values = np.empty_like(shares)
    corrected_values[order] = np.clip(shares, 0.0, 1.0)
    remaining = iter(corrected_values.tolist())
    return [None if value is None else next(remaining) for value in p_values]
