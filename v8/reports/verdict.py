"""The verdict: what a reader has to know first, in sentences that ask for no statistics.

It opens reports, back-tests and model cards, and what a terminal prints after a run. Its numbers are those of
the tables below it: errors as medians over what is evaluated, and how sure they are by the rule of
`v8.evaluation.significance`. A *formula* is any forecast without a network; the naive one is that nothing changes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from v8.artifacts.nested_runs import Decision
from v8.baselines.baselines import NAIVE
from v8.evaluation.fold_losses import TaskResult
from v8.evaluation.leaderboard import LeaderboardRow, compared, median
from v8.evaluation.significance import (
    BEATS,
    LOSES,
    UNKNOWN,
    BaselineComparison,
    ComparisonResult,
    is_equal,
    outcome_of,
)
from v8.language import say, term
from v8.reports.markup import Html, element
from v8.tasks import TASKS
from v8.wording import ABSENT, Table, count, moment, number, percent


@dataclass(frozen=True)
class Beside:
    """The model's error beside another forecast's."""

    multiple: float | None  # median; None where the other made no error
    outcomes: Sequence[ComparisonResult]  # of each series, or of all in one test

    @classmethod
    def of(cls, *those: BaselineComparison) -> "Beside":
        """Sum up series."""
        return cls(median(one.relative_mae for one in those), [one.outcome for one in those])

    @property
    def is_sure(self) -> bool:
        """Whether all say the same, and that it is more than chance."""
        return set(self.outcomes) in ({BEATS}, {LOSES})

    @property
    def sureness(self) -> str:
        """In words; nothing where both err alike."""
        num = len(self.outcomes)
        smaller = self.outcomes.count(BEATS)
        larger = self.outcomes.count(LOSES)
        sure = smaller + larger
        if sure and sure == (smaller if (self.multiple or 1.0) < 1.0 else larger):
            return say("sure") if num == 1 else say("sure for {n} of {num} series", n=sure, num=num)
        if sure and num == 1:  # a median is no mean
            return say("its mean is surely smaller") if smaller else say("its mean is surely larger")
        if sure:
            told = {"smaller": smaller, "larger": larger, "num": num}
            return say("surely smaller for {smaller} of {num} series, surely larger for {larger}", **told)
        if self.multiple and is_equal(self.multiple, 1.0):
            return ""
        if set(self.outcomes) == {UNKNOWN}:
            return say("not known yet: too few candles to tell")
        return say("no real difference")

    def rated(self, told: str) -> str:
        """Put how sure it is behind what is told."""
        rating = self.sureness
        if not rating:
            return told
        if {BEATS, LOSES} & set(self.outcomes):
            return say("{told} ({rating})", told=told, rating=rating)
        return say("{told}: {rating}", told=told, rating=rating)


@dataclass(frozen=True)
class TaskVerdict:
    """How a model does on one task."""

    task: str
    naive: Beside
    best: Beside | None = None  # the best formula; None where that is the naive one

    @classmethod
    def pooled(cls, task: str, told: TaskResult) -> "TaskVerdict":
        """Judge what one test says of many series and folds."""
        best = Beside(told.against_best, [told.outcome])
        naive = Beside(told.relative_mae, [outcome_of(told.relative_mae or 0.0, 1.0, told.p_naive)])
        return cls(task, best) if told.best == NAIVE else cls(task, naive, best)

    def __str__(self) -> str:
        told = beside_naive(self.naive.multiple)
        if self.best is None:
            told = self.naive.rated(say("{told}, and no formula does better", told=told))
        else:
            best = self.best.rated(_beside_best(self.best.multiple))
            if self.naive.is_sure or self.naive.sureness == self.best.sureness:  # once is enough
                told = say("{told}, {best}", told=told, best=best)
            else:
                told = say("{told}; {best}", told=self.naive.rated(told), best=best)
        return say("{task}: {told}.", task=titled(self.task), told=told)


def verdict(rows: Sequence[LeaderboardRow]) -> list[str]:
    """Say what rows, at least one, are about, and how their model does on each task."""
    about = say("Median of {num} series, on candles that training had not seen:", num=len(rows))
    if len(rows) == 1:
        about = say("{series}, on candles that training had not seen:", series=rows[0].series)
    if any(row.is_demo for row in rows):
        about = say("A simulated market, no real coin. {about}", about=about)
    found: dict[str, list[Beside]] = {}
    for (task, _), those in compared(rows).items():
        found.setdefault(task, []).append(Beside.of(*those.values()))
    return [about, *furthest_first(TaskVerdict(task, *beside) for task, beside in found.items())]


def furthest_first(those: Iterable[TaskVerdict]) -> list[str]:
    """Say first where a model is furthest ahead of naive, and last what cannot be compared."""
    return [*map(str, sorted(those, key=lambda one: one.naive.multiple or math.inf))]


def change_table(decisions: Iterable[Decision], title: str = "") -> Table:
    """Put renewed models beside those that served, and the best baseline, by their errors over naive's."""
    rows = []
    for one in sorted(decisions, key=lambda one: one.series):
        new = one.challenger
        old = one.champion
        best = ", ".join(f"{number(each.multiple)} {each.name}" for each in one.baselines.values())
        told = [", ".join(map(number, each.multiples.values())) for each in (new, old)]
        times = [moment(each.trained_until) for each in (new, old)]
        span = (
            f"{moment(one.evaluated_from)} to {moment(one.evaluated_until)}"
            if one.evaluated_until
            else ABSENT
        )
        errors = (each or ABSENT for each in (*told, best))
        rows.append([one.series, *times, one.stale, *errors, count(one.num_windows), span])
    header = (
        "series",
        "newest candle",
        "before",
        "why",
        "new",
        "old",
        "best baseline",
        "windows",
        "evaluated",
    )
    return Table(header, rows, title)


def opening(about: str, *sentences: str) -> Html:
    """Open a page with what it comes to."""
    told = (element("p", sentence) for sentence in sentences)
    return element("div", element("p", about, class_="soft"), *told, class_="verdict")


def titled(task: str) -> str:
    """Return what readers call a task."""
    return term(TASKS[task].title)


def in_words(outcome: ComparisonResult, name: str) -> str:
    """Say how a model compares with a baseline of that name: "beats naive"."""
    return term(outcome) if outcome == UNKNOWN else f"{term(outcome)} {name}"


def beside_naive(multiple: float | None) -> str:
    """Say how a model errs, by its error as a multiple of naive's."""
    if multiple is None:
        return say("an error, though if nothing changed there was none")
    if is_equal(multiple, 1.0):
        return say("the same error as if nothing changed")
    if multiple < 1.0:
        return say("{share} smaller error than if nothing changed", share=_share(multiple))
    return say("{share} larger error than if nothing changed", share=_share(multiple))


def _beside_best(multiple: float | None) -> str:
    if multiple is None:
        return say("and the best formula made none")
    if is_equal(multiple, 1.0):
        return say("the same as the best formula")
    if multiple < 1.0:
        return say("{share} smaller than the best formula", share=_share(multiple))
    return say("{share} larger than the best formula", share=_share(multiple))


def _share(multiple: float) -> str:
    share = abs(1.0 - multiple)
    return percent(share) if share >= 0.0005 else say("less than 0.1 %")
