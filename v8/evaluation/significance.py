"""The table of paired losses, and every question about two forecasters in it: multiple, test, verdict, best.

A loss is what a window adds to a mean: the absolute error in returns over all steps and columns of a task, or
twice the pinball loss. Judgements, leaderboard, contests, decay, back-tests and the live record ask here.

One rule decides what is said of two errors (`outcome_of`): the smaller one *beats* the other, the larger one
*loses to* it, where a test finds that they differ by more than chance. Where it does not, there is *no real
difference*, however the numbers lie; while the windows are too few for a test, nothing is known.

The test is that of Diebold and Mariano: could the mean difference of two forecasters' losses be zero?

* Windows overlap: two that are fewer than a horizon apart forecast common bars, so their losses move
  together, and volatility stays high or low for longer still. The variance of the mean is therefore a
  long-run variance (Newey & West 1987, doi:10.2307/1913610). Its Bartlett weights never make it
  negative; the equal weights of the original test can.
* Bartlett weights take away from every covariance they use, so a lag of horizon - 1 alone would make the
  variance too small: by a third for ten steps of independent bars. The lag is the larger of horizon - 1
  and 1.3 times the root of the number of windows (Lazarus, Lewis, Stock & Watson 2018,
  doi:10.1080/07350015.2018.1506926).
* The statistic is shrunk as Harvey, Leybourne & Newbold (1997, doi:10.1016/S0169-2070(96)00719-4) do and
  compared with Student's t of N - 1 degrees. Their correction is for horizon - 1 covariances; here it
  counts those really used, lag + 1 with the variance, which is the same where the lag is horizon - 1.
* Holes in the candles part windows: the lag counts bars, not places in the array.

Judging many series at once finds differences by chance alone; `corrected_p_values` says by how much the
p-values have to grow for that (Benjamini & Hochberg 1995, doi:10.1111/j.2517-6161.1995.tb02031.x). It
bounds the share of false discoveries also when tests depend on each other positively, as coins that
rise and fall together do (Benjamini & Yekutieli 2001, doi:10.1214/aos/1013699998).

Legend: N windows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from v8.baselines.baselines import NAIVE, called
from v8.records import Count, Number
from v8.wording import number

ALPHA: Final = 0.05
"""P-values below this, corrected where several series are evaluated at once, are called significant."""

LAG_FACTOR: Final = 1.3
"""Lag over the root of the number of windows, after Lazarus et al. (2018)."""

MIN_WINDOWS_PER_LAG: Final = 3
"""A span of fewer stretches of lag + 1 bars than this says nothing about their variance."""

ROUNDING_SHARE: Final = 1e-5
"""Errors that differ by a smaller share are equal: published models compute in single precision.

Its rounding is 6e-8 of a price, and so 1e-5 of an error of half a percent."""

Outcome = Literal["beats", "equals", "no real difference from", "not yet known", "loses to"]
"""How a forecaster's error compares with a baseline's, by the rule of `outcome_of`."""

BEATS: Final = "beats"
UNKNOWN: Final = "not yet known"
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
    lag_bars: Count  # largest distance at which windows may depend on each other, in bars

    @property
    def statistic(self) -> float | None:
        """Mean over standard error with the small-sample correction, unitless; None without an error."""
        if self.standard_error is None:
            return None
        ratio = self.mean_difference / self.standard_error
        return ratio * small_sample_factor(self.num_windows, self.lag_bars + 1)

    @property
    def p_value(self) -> float | None:
        """Chance of a difference at least this large, either way, if there were none; 0 to 1 or None."""
        from scipy.special import stdtr  # noqa: PLC0415 - a third of the start of every command that trains

        statistic = self.statistic
        return None if statistic is None else float(2.0 * stdtr(self.num_windows - 1, -abs(statistic)))


@dataclass(frozen=True, eq=False)
class Losses:
    """How everybody (`MODEL`, keys of `BASELINES`) erred in each of N windows of one series.

    The bar is that of each window's newest candle, counted from the epoch, ascending, shape (N,).
    """

    by_task: LossesByTask
    bar_numbers: NDArray[np.int64]
    horizon_bars: int  # steps ahead
    origin: str = ""  # where they come from, in words

    def __len__(self) -> int:
        return len(self.bar_numbers)

    def mean(self, task: str, forecaster: str) -> float:
        """Return the mean loss of a forecaster."""
        return self.by_task[task][forecaster].mean()

    def test(self, task: str, ours: str, theirs: str, times: float = 1.0) -> Significance:
        """Test whether a forecaster differs from another, whose losses are multiplied first."""
        by_name = self.by_task[task]
        differences = by_name[ours] - times * by_name[theirs]
        return diebold_mariano(differences, horizon_bars=self.horizon_bars, bar_numbers=self.bar_numbers)

    def tests(self, task: str, ours: str) -> dict[str, Significance]:
        """Test a forecaster against every other one."""
        return {name: self.test(task, ours, name) for name in self.by_task[task] if name != ours}


@dataclass(frozen=True)
class Against:
    """The model's error on a task beside a baseline's, in the same unit; p-values are two-sided.

    They are None when the span is too short to say, or the forecasts are the same.
    """

    baseline: str  # a key of `BASELINES`
    ours: float  # mean absolute error of the model
    theirs: float  # that of the baseline
    p_value: float | None = None  # chance of a difference this large if there were none, 0 to 1
    corrected_p_value: float | None = None  # the same, corrected over all that are evaluated at once

    @property
    def name(self) -> str:
        """What readers know the baseline by."""
        return called(self.baseline)

    @property
    def multiple(self) -> float | None:
        """Model error over the baseline's, see `multiple_of`."""
        return multiple_of(self.ours, self.theirs)

    @property
    def skill(self) -> float | None:
        """1 - multiple: 1 is perfect, 0 the baseline, negative worse; None without a multiple."""
        return None if self.multiple is None else 1.0 - self.multiple

    @property
    def outcome(self) -> Outcome:
        """What the errors and the corrected p-value come to, by the one rule of `outcome_of`."""
        return outcome_of(self.ours, self.theirs, self.corrected_p_value)

    @property
    def verdict(self) -> str:
        """The outcome in words: "beats naive", "no real difference from har", "not yet known"."""
        return UNKNOWN if self.outcome == UNKNOWN else f"{self.outcome} {self.name}"

    @property
    def is_significant(self) -> bool:
        """Whether it differs from the baseline by more than chance."""
        return self.outcome in (BEATS, LOSES)

    @property
    def marked(self) -> str:
        """The multiple with its mark, or a blank, so that points of numbers stand below each other."""
        return f"{number(self.multiple)}{'*' if self.is_significant else ' '}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        told = ("multiple", "verdict", "p_value", "corrected_p_value", "is_significant")
        return {"baseline": self.name, **{key: getattr(self, key) for key in told}}


def corrected(those: Sequence[Against]) -> list[Against]:
    """Correct the p-values of what stands in one table for how many there are."""
    found = corrected_p_values([one.p_value for one in those])
    return [replace(one, corrected_p_value=value) for one, value in zip(those, found, strict=True)]


def reading_marks(num_series: int) -> str:
    """Say how multiples and their marks are read, as a sentence without its stop."""
    return (
        "Below 1 the model errs less. * differs by more than chance: Diebold-Mariano test, p < "
        f"{ALPHA:g}, corrected for {num_series} series at once"
    )


def multiple_of(ours: float, theirs: float) -> float | None:
    """Return an error as a multiple of a baseline's, below 1 is less; None where that made none.

    >>> multiple_of(0.5, 2.0), multiple_of(0.5, 0.0)
    (0.25, None)
    """
    multiple = ours / theirs if theirs > 0 else math.inf
    return multiple if math.isfinite(multiple) else None


def is_equal(ours: float, theirs: float) -> bool:
    """Tell whether two errors of the same unit are one and the same, up to rounding."""
    return math.isclose(ours, theirs, rel_tol=ROUNDING_SHARE)


def outcome_of(ours: float, theirs: float, p_value: float | None) -> Outcome:
    """Say how an error compares with another: the one rule that every verdict follows.

    The p-value is corrected where several series are evaluated at once; None where windows are too few to test.

    >>> outcome_of(1.0, 1.0000001, None), outcome_of(1.0, 1.1, 0.01), outcome_of(1.2, 1.1, 0.01)
    ('equals', 'beats', 'loses to')
    >>> outcome_of(1.2, 1.1, 0.85), outcome_of(1.2, 1.1, None)
    ('no real difference from', 'not yet known')
    """
    if is_equal(ours, theirs):
        return "equals"
    if p_value is None:
        return UNKNOWN
    if p_value >= ALPHA:
        return "no real difference from"
    return BEATS if ours < theirs else LOSES


def best_of(errors: Sequence[Mapping[str, float]]) -> str:
    """Return the baseline whose error, as a multiple of naive's, has the smallest median: the one rule.

    Of each series the errors of baselines are given, naive's among them; one that not all have is left out.
    """

    def typical(name: str) -> float:
        multiples = [each[name] / each[NAIVE] for each in errors if each[NAIVE] > 0]
        return round(median(multiples or [math.inf]), 9)

    shared = [name for name in errors[0] if all(name in each for each in errors)]
    return min(shared, key=lambda name: (typical(name), name != NAIVE))


def diebold_mariano(
    differences: NDArray[np.float64], *, horizon_bars: int, bar_numbers: NDArray[np.int64] | None = None
) -> Significance:
    """Test whether two forecasters are equally good.

    Differences are the first one's losses minus the second one's, in the order of time, shape (N,), in
    returns, N at least 1; bars as in `Losses`, None when the windows follow one another bar by bar.
    """
    num_windows = len(differences)
    lag_bars = choose_lag(num_windows, horizon_bars)
    mean = math.fsum(differences) / num_windows
    deviations = differences - mean
    standard_error = None
    # Rounding alone leaves a trace of about this size where the true differences are all the same.
    is_constant = float(np.abs(deviations).max()) <= 1e-12 * float(np.abs(differences).max())
    if not is_constant and num_windows >= MIN_WINDOWS_PER_LAG * (lag_bars + 1):
        variance = long_run_variance(deviations, lag_bars, bar_numbers) / num_windows
        standard_error = math.sqrt(variance) or None
    return Significance(mean, standard_error, num_windows, lag_bars)


def choose_lag(num_windows: int, horizon_bars: int) -> int:
    """Return the lag in bars, at least horizon - 1; see the top of this module.

    >>> choose_lag(1_200, 10), choose_lag(25, 10)
    (46, 9)
    """
    # One window is no sample: its loss has no variance to be wrong about.
    return max(horizon_bars - 1, math.ceil(LAG_FACTOR * math.sqrt(num_windows))) if num_windows > 1 else 0


def long_run_variance(
    deviations: NDArray[np.float64], lag_bars: int, bar_numbers: NDArray[np.int64] | None = None
) -> float:
    """Return the Bartlett-weighted sum of autocovariances, which N times the variance of a mean tends to.

    Between bars k apart the weight is 1 - k / (lag + 1). The weighted sum equals the mean square of all
    sums over lag + 1 consecutive bars, with nothing where there is no window: cheap, and never negative.
    Deviations are values less their mean, in the order of time, shape (N,); bars as in `diebold_mariano`.
    """
    bars = np.arange(len(deviations)) if bar_numbers is None else bar_numbers
    # Places on a line of bars: holes longer than the lag shrink to it, as they part all the same.
    places = np.concatenate([[0], np.cumsum(np.minimum(np.diff(bars), lag_bars + 1))]).astype(np.int64)
    # Cumulative sums with lag + 1 empty bars on either side.
    running = np.zeros(int(places[-1]) + 2 * (lag_bars + 1) + 1)
    running[places + lag_bars + 2] = deviations
    running = np.cumsum(running)
    sums = running[lag_bars + 1 :] - running[: -lag_bars - 1]
    return float(np.sum(sums**2)) / (lag_bars + 1) / len(deviations)


def small_sample_factor(num_windows: int, num_covariances: int) -> float:
    """Return the correction of Harvey, Leybourne & Newbold (1997): root of (N + 1 - 2h + h (h - 1) / N) / N.

    >>> round(small_sample_factor(16, 4), 4)  # (16 + 1 - 8 + 12 / 16) / 16 = 0.609375
    0.7806
    """
    spare = num_windows - num_covariances
    return math.sqrt(spare * (spare + 1)) / num_windows


def num_effective(values: NDArray[np.float64], step: int, bar_numbers: NDArray[np.int64] | None) -> float:
    """Say of how many independent values the mean would be as uncertain as that of these.

    They are in the order of time, shape (N,), N at least 1, each looking `step` bars ahead. At most N:
    N times variance over long-run variance. Where they never differ, or are too few for a long-run variance,
    N / step: the windows that do not overlap. At least 1.
    """
    num_values = len(values)
    deviations = values - values.mean()
    variance = float(np.mean(deviations**2))
    lag_bars = choose_lag(num_values, step)
    if variance == 0.0 or num_values < MIN_WINDOWS_PER_LAG * (lag_bars + 1):
        return max(1.0, num_values / step)
    share = variance / max(variance, long_run_variance(deviations, lag_bars, bar_numbers))
    return max(1.0, num_values * share)


def corrected_p_values(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for the number of tests, after Benjamini & Hochberg (1995).

    Calling those below a share significant makes at most that share of the calls wrong, on average. Returned
    is the smallest such share at which each is still called significant; None, no test, counts for nothing.

    >>> corrected_p_values([0.04, None, 0.01])
    [0.04, None, 0.02]
    """
    known = [value for value in p_values if value is not None]
    if len(known) < 2:
        return list(p_values)
    # Not scipy's own: importing its statistics takes longer than a whole report.
    order = np.argsort(known)
    ranks = np.arange(1, len(known) + 1, dtype=np.float64)
    shares = np.array(known, np.float64)[order] * (len(known) / ranks)
    shares = np.minimum.accumulate(shares[::-1])[::-1]
    corrected_values = np.empty_like(shares)
    corrected_values[order] = np.clip(shares, 0.0, 1.0)
    found = iter(corrected_values.tolist())
    return [None if value is None else next(found) for value in p_values]
