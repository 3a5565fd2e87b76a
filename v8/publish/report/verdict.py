"""The verdict: the sentences a reader needs first, which ask for no knowledge of statistics.

It opens reports, back-tests and model cards, and it is what a terminal prints after a run. Its numbers are
those of the tables below it: errors as medians over the evaluated series, and their significance by the rule
of `v8.model.evaluation.significance`. A *baseline* is any forecast without a network; the naive one says that
the close stays where it is.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from v8.base.wording import percent, say, spaced, term
from v8.model.baselines.baselines import BASELINES, NAIVE
from v8.model.evaluation.bootstrap import ErrorInterval, error_interval
from v8.model.evaluation.fold_losses import TaskResult, WindowLosses
from v8.model.evaluation.leaderboard import (
    BEST,
    LeaderboardRow,
    best_baselines,
    compared,
    median,
)
from v8.model.evaluation.significance import (
    BEATS,
    LOSES,
    UNKNOWN,
    BaselineComparison,
    ComparisonResult,
    is_equal,
    is_lower,
    outcome_of,
)
from v8.profile.tasks import TASKS
from v8.publish.report.figures import change_pct, is_of_most
from v8.publish.report.markup import Html, element


@dataclass(frozen=True)
class RelativeError:
    """The model's error relative to another forecast's, and whether the difference is significant."""

    multiple: float | None  # median of the ratio of the errors, unitless; None where the other has no error
    outcomes: Sequence[ComparisonResult]  # of each series, or of all series in one test
    interval: ErrorInterval | None = None  # of `multiple`; None where it is not known
    num_lower: int = 0  # series in which the error is lower, significantly or not
    num_series: int = 1

    @classmethod
    def of(cls, *comparisons: BaselineComparison) -> "RelativeError":
        """Sum up the comparisons of several series."""
        multiples = [comparison.relative_mae for comparison in comparisons]
        return cls(
            median(multiples),
            [comparison.outcome for comparison in comparisons],
            num_lower=sum(map(is_lower, multiples)),
            num_series=len(multiples),
        )

    @property
    def is_of_most(self) -> bool:
        """Whether the difference is significant for most series, in the direction of the median."""
        multiple = self.multiple or 1.0
        if is_equal(multiple, 1.0):
            return False
        return is_of_most([outcome == (BEATS if multiple < 1.0 else LOSES) for outcome in self.outcomes])

    @property
    def is_of_some(self) -> bool:
        """Whether the difference is significant for a series at least, in either direction."""
        return BEATS in self.outcomes or LOSES in self.outcomes

    def is_below(self, naive: "RelativeError") -> bool:
        """Whether the other forecaster has a higher error here than the naive forecast, given the model's."""
        if self.multiple is None or naive.multiple is None or is_equal(self.multiple, naive.multiple):
            return False
        return self.multiple < naive.multiple

    @property
    def significance(self) -> str:
        """Whether the difference is significant, in words; empty where the errors are equal."""
        num_lower = self.outcomes.count(BEATS)
        num_higher = self.outcomes.count(LOSES)
        if num_lower or num_higher:
            return self._significance_of(num_lower, num_higher)
        if self.multiple and is_equal(self.multiple, 1.0):
            return ""
        if set(self.outcomes) == {UNKNOWN}:
            return say("not tested: too few windows")
        return say("not significant")

    def _significance_of(self, num_lower: int, num_higher: int) -> str:
        """Say of how many series, at least one, the error is significantly lower or higher."""
        num_series = len(self.outcomes)
        is_median_lower = (self.multiple or 1.0) < 1.0
        is_as_the_median_says = num_higher == 0 if is_median_lower else num_lower == 0
        if is_as_the_median_says and num_series == 1:
            return say("significant")
        if is_as_the_median_says:
            num_significant = num_lower + num_higher
            return say("significant for {n} of {num} series", n=num_significant, num=num_series)
        if num_series > 1:
            return say(
                "significantly lower for {lower} of {num} series, significantly higher for {higher}",
                lower=num_lower,
                higher=num_higher,
                num=num_series,
            )
        # One test compares means, which may differ in the other direction than the medians.
        if num_lower:
            return say("its mean is significantly lower")
        return say("its mean is significantly higher")

    @property
    def certainty(self) -> str:
        """The 95 % interval of the difference, and how many series have the lower error; empty if unknown."""
        if self.interval is None or self.interval.low == self.interval.high == 1.0:  # the same forecast
            return ""
        low = signed_pct(self.interval.low)
        high = signed_pct(self.interval.high)
        if self.num_series == 1:
            return say("95 % interval: {low} to {high}", low=low, high=high)
        return say(
            "95 % interval: {low} to {high}; lower in {n} of {num} series",
            low=low,
            high=high,
            n=self.num_lower,
            num=self.num_series,
        )

    def with_significance(self, comparison: str) -> str:
        """Append the significance, and the interval where it is known, to a comparison in words."""
        notes = [note for note in (self.significance, self.certainty) if note]
        if not notes:
            return comparison
        return say("{comparison} ({significance})", comparison=comparison, significance=say("; ").join(notes))


@dataclass(frozen=True)
class TaskVerdict:
    """The error of a model on one task, relative to the naive forecast and to the best baseline."""

    task: str
    naive: RelativeError
    best: RelativeError | None = None  # None where the naive forecast is the best baseline
    best_name: str = BEST  # name of that baseline; `BEST` where timeframes have different ones

    @classmethod
    def pooled(cls, task: str, result: TaskResult) -> "TaskVerdict":
        """Put the result of one test over many series and folds into words."""
        best = RelativeError(
            result.against_best,
            [result.outcome],
            interval=result.interval,
            num_lower=result.num_series_better,
            num_series=result.num_series,
        )
        if result.best == NAIVE:
            return cls(task, best)
        outcome = outcome_of(result.model_relative_mae or 0.0, 1.0, result.p_naive)
        return cls(task, RelativeError(result.model_relative_mae, [outcome]), best, result.best)

    def __str__(self) -> str:
        # Each comparison has its own significance: one at the end would read as that of both.
        naive = self.naive.with_significance(relative_to_naive(self.naive.multiple))
        if self.best is None:
            sentence = say("{comparison}, and no baseline is better", comparison=naive)
        else:
            name = best_in_words(self.best_name, is_below_naive=self.best.is_below(self.naive))
            best = self.best.with_significance(_relative_to_best(self.best.multiple, name))
            sentence = say("{naive}, {best}", naive=naive, best=best)
        return say("{task}: {verdict}.", task=titled(self.task), verdict=sentence)


def verdict(
    rows: Sequence[LeaderboardRow], intervals: Mapping[str, ErrorInterval] | None = None
) -> list[str]:
    """Name the series of a leaderboard, then give the verdict of each task; arguments of `task_verdicts`."""
    return [scope_of(rows), *best_first(task_verdicts(rows, intervals))]


def task_verdicts(
    rows: Sequence[LeaderboardRow], intervals: Mapping[str, ErrorInterval] | None = None
) -> list[TaskVerdict]:
    """Return the verdict on each task of a leaderboard of at least one row, in the order of `TASKS`.

    Args:
        rows: The leaderboard.
        intervals: By task that of the error relative to the best baseline's, see `headline_intervals`.
    """
    verdicts: dict[str, TaskVerdict] = {}
    for (task, name), comparisons in compared(rows).items():
        error = RelativeError.of(*comparisons.values())
        if name == NAIVE:  # it comes first
            verdicts[task] = TaskVerdict(task, error)
        else:
            best = replace(error, interval=(intervals or {}).get(task))
            verdicts[task] = replace(verdicts[task], best=best, best_name=name)
    return list(verdicts.values())


def is_tested(rows: Iterable[LeaderboardRow]) -> bool:
    """Return whether any difference of any series was tested."""
    verdicts = [of_task for row in rows for of_task in row.tasks.values()]
    return any(comparison.outcome != UNKNOWN for of_task in verdicts for comparison in of_task.comparisons)


def verdict_in_brief(row: LeaderboardRow | None) -> tuple[str, str]:
    """Return the stored verdict on a series in a few words that name the baseline, and the CSS class for it.

    Counts the tasks with a significantly lower error than both baselines, and those with a significantly
    higher error than one of them.
    """
    verdicts = list(row.tasks.values()) if row else []
    outcomes = [verdict.best.outcome for verdict in verdicts]
    num_lower = len([verdict for verdict in verdicts if verdict.beats_both])
    num_higher = len([verdict for verdict in verdicts if verdict.lost_to])
    num = len(verdicts)
    if num_lower and num_higher:
        text = say(
            "tasks better than baselines: {lower}, worse: {higher}", lower=num_lower, higher=num_higher
        )
        return text, "mixed"
    if num_lower:
        return say("beats both baselines: {n} of {num} tasks", n=num_lower, num=num), "better"
    if num_higher:
        return say("worse than a baseline: {n} of {num} tasks", n=num_higher, num=num), "worse"
    if set(outcomes) <= {UNKNOWN}:
        return say("not tested: too few windows"), "unknown"
    return say("not clearly better than baseline"), "untested"


def headline_intervals(
    rows: Sequence[LeaderboardRow], losses: Mapping[str, WindowLosses]
) -> dict[str, ErrorInterval]:
    """Return by task the interval of the median error of a leaderboard relative to the best baselines'.

    Args:
        rows: The leaderboard.
        losses: Those of the test windows by series; a task without those of all its series has no interval.
    """
    intervals = {}
    for task in TASKS:
        with_task = [row for row in rows if task in row.tasks]
        if not with_task or any(row.series not in losses for row in with_task):
            continue
        pairs = [
            losses[row.series].paired(row.series, task, row.tasks[task].best.baseline) for row in with_task
        ]
        interval = error_interval(pairs, with_task[0].evaluation.horizon_bars)
        if interval is not None:
            intervals[task] = interval
    return intervals


def signed_pct(multiple: float) -> str:
    """Write by how many per cent an error is larger than another, given their ratio; lower ones have a minus.

    >>> signed_pct(0.985), signed_pct(1.002), signed_pct(0.9999)
    ('-1.5 %', '+0.2 %', '0.0 %')
    """
    pct = round(change_pct(multiple), 1)
    return f"{pct:+.1f} %" if pct else "0.0 %"


def scope_of(rows: Sequence[LeaderboardRow]) -> str:
    """Say which series a verdict is about."""
    if len(rows) == 1:
        scope = say("{series}, on candles that training had not seen:", series=rows[0].series)
    else:
        scope = say("Median of {num} series, on candles that training had not seen:", num=len(rows))
    if any(row.is_demo for row in rows):
        scope = say("A simulated market, no real coin. {scope}", scope=scope)
    return scope


def best_first(verdicts: Iterable[TaskVerdict]) -> list[str]:
    """Order verdicts by the error relative to naive's, the lowest first; what has none comes last."""
    ordered = sorted(verdicts, key=lambda task_verdict: task_verdict.naive.multiple or math.inf)
    return [str(task_verdict) for task_verdict in ordered]


def verdict_box(scope: str, *sentences: str) -> Html:
    """Return the box at the top of a page: what the sentences are about, and the sentences."""
    paragraphs = [element("p", sentence) for sentence in sentences]
    return element("div", element("p", scope, class_="soft"), *paragraphs, class_="verdict")


def titled(task: str) -> str:
    """Return the title of a task, in the language of the page."""
    return term(TASKS[task].title)


def source_in_words(source: str) -> str:
    """Name the source of candles; that of the archive needs words."""
    return say("Binance's public archive (vision)") if source == "vision" else source


def baseline_in_words(name: str, *, has_key: bool = False) -> str:
    """Name a baseline for readers; any other method by its name without underscores.

    Args:
        name: Its key in `BASELINES`.
        has_key: Whether the key, which files, flags and profiles have, stands behind it in parentheses.

    >>> baseline_in_words("har"), baseline_in_words("har", has_key=True), baseline_in_words("buy_and_hold")
    ('past ranges', 'past ranges (har)', 'buy and hold')
    """
    baseline = BASELINES.get(name)
    words = term(baseline.title if baseline and baseline.title else spaced(name))
    return f"{words} ({name})" if has_key and words != name else words


def best_baselines_in_words(rows: Sequence[LeaderboardRow]) -> str:
    """Name the best baseline; where tasks or timeframes have different ones, each task's."""
    by_task = best_baselines(rows)
    all_names = {name for names in by_task.values() for name in names.values()}
    if len(all_names) == 1:
        return baseline_in_words(*all_names, has_key=True)
    tasks = []
    for task, names in by_task.items():
        in_full = {timeframe: baseline_in_words(name, has_key=True) for timeframe, name in names.items()}
        parts = list(in_full.values())[:1]
        if len(set(names.values())) > 1:
            # Translators: a baseline, and the timeframe of which it is the best: "past ranges (har) at 15m".
            parts = [say("{name} at {timeframe}", name=name, timeframe=at) for at, name in in_full.items()]
        tasks.append(say("{task}: {outcomes}", task=titled(task), outcomes=say(", ").join(parts)))
    return say("; ").join(tasks)


def in_words(outcome: ComparisonResult, name: str) -> str:
    """Say how a model compares with a baseline: "beats naive"."""
    return term(outcome) if outcome == UNKNOWN else f"{term(outcome)} {baseline_in_words(name)}"


def relative_to_naive(multiple: float | None) -> str:
    """Put into words a model's error relative to naive's, a ratio, or None where naive has no error."""
    if multiple is None:
        return say("an error, where the naive forecast has none")
    if is_equal(multiple, 1.0):
        return say("the same error as the naive forecast")
    if multiple < 1.0:
        return say("{share} lower error than the naive forecast", share=_share(multiple))
    return say("{share} higher error than the naive forecast", share=_share(multiple))


def _relative_to_best(multiple: float | None, best: str) -> str:
    if multiple is None:
        return say("and {baseline} has none", baseline=best)
    if is_equal(multiple, 1.0):
        return say("the same as {baseline}", baseline=best)
    if multiple < 1.0:
        return say("{share} lower than {baseline}", share=_share(multiple), baseline=best)
    return say("{share} higher than {baseline}", share=_share(multiple), baseline=best)


def best_in_words(name: str, *, is_below_naive: bool = False, has_key: bool = True) -> str:
    """Name a best baseline; without its name where that is `BEST`, because timeframes have different ones.

    It was chosen on other candles; where the naive forecast is better on these, that is said.
    """
    words = baseline_in_words(name, has_key=has_key)
    if is_below_naive and name == BEST:
        return say("the reference, here worse than the naive forecast")
    if is_below_naive:
        return say("the reference, {name}, here worse than the naive forecast", name=words)
    if name == BEST:
        return say("the best baseline")
    return say("the best baseline, {name}", name=words)


def _share(multiple: float) -> str:
    """Write how far a ratio is from 1, in per cent."""
    share = abs(1.0 - multiple)
    return percent(share) if share >= 0.0005 else say("less than 0.1 %")
