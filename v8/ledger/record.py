"""The live record: what the forecasts that were issued before their actual values turned out to be worth.

It is computed whenever it is asked for and stands in no file, so nothing can tune it. Late forecasts, written
when the first of their bars had closed, are counted and in no error.

Every task stands beside the naive forecast and the best baseline, chosen once for all series that are shown
together, as on the leaderboard. Whether a difference is more than chance is tested as the evaluation does it:

* Forecasts of one series overlap; the lag counts bars, so closes that were missed part what they should.
* Over several series, losses in units of naive's mean loss of each series are added up close by close: coins
  that rise and fall on the same day are one observation of it. The horizon is the longest of them.
* The p-values of several series are corrected together (Benjamini and Hochberg).
* Hours of the day and weekends differ, so fewer than `MIN_DAYS` days are not tested: nothing is known yet.

Coverage tells how often the actual values lay in the central intervals, which a loss does not. Forecasts lie packed
in the ledger and each has to be unpacked, so only the newest of a series are looked at (`MOST_FORECASTS`).

Legend: N forecasts, K forecasters, T tasks, V values of one forecaster.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.baselines.baselines import NAIVE
from v8.evaluation.evaluation import MODEL
from v8.evaluation.leaderboard import TaskScore, with_corrected
from v8.evaluation.significance import BaselineComparison, Losses, best_of, is_equal, reading_marks
from v8.features.formulas import DAY_S
from v8.ledger.database import Ledger
from v8.ledger.entries import Issuer, Scored, Tally, level_of
from v8.market.series import iso
from v8.quantile_levels import MEDIAN, interval_names, intervals
from v8.tasks import TASKS
from v8.wording import Table, number, p_value, percent, plural

MOST_FORECASTS: Final = 1_000  # newest scored forecasts of a series: ten days of 15m bars, six weeks of hours
MIN_DAYS: Final = 7  # days (UTC) with scored forecasts from which a difference is tested


@dataclass(frozen=True)
class Coverage:
    """How many actual values of one task lay in each interval."""

    num_held: Mapping[str, int]  # by name of the interval, "90 %", the widest first
    num_actual_values: int  # steps and columns of all forecasts

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the actual values by interval, 0 to 1."""
        return {name: held / self.num_actual_values for name, held in self.num_held.items()}


Covered = Sequence[tuple[Issuer, Mapping[str, Coverage]]]
"""Per issuer with intervals what they held, per task."""


def together(coverages: Iterable[Coverage | None]) -> Coverage | None:
    """Add up coverages, by the intervals that all of them have; None where there is none."""
    found = [one for one in coverages if one]
    if not found:
        return None
    shared = [name for name in found[0].num_held if all(name in one.num_held for one in found)]
    num_held = {name: sum(one.num_held[name] for one in found) for name in shared}
    return Coverage(num_held, sum(one.num_actual_values for one in found))


def _by_task(
    issuer: Issuer, values_NKV: NDArray[np.float32], actual_NV: NDArray[np.float32]
) -> dict[str, Coverage]:
    """Count what each interval of an issuer held, per task."""
    places = issuer.levels
    num_held = dict[str, dict[str, int]]()
    levels = sorted([*places, MEDIAN])
    for name, pair in zip(interval_names(levels), intervals(levels), strict=True):
        low_NV, high_NV = (values_NKV[:, places[level]] for level in pair)
        held_NV = (low_NV <= actual_NV) & (actual_NV <= high_NV)
        for task, held in issuer.split(held_NV.astype(np.float32)).items():
            num_held.setdefault(task, {})[name] = int(held.sum())
    sizes = {task: len(actual_NV) * issuer.horizon_bars * len(one) for task, one in issuer.tasks.items()}
    return {task: Coverage(held, sizes[task]) for task, held in num_held.items()}


@dataclass(frozen=True, kw_only=True)
class LiveTask(TaskScore):
    """One task of one series, of one generation of it, or of all series together.

    Errors are in returns; those of several series as multiples of naive's of each series.
    """

    num_scored: int  # forecasts issued in time whose actual values have come
    num_days: int  # days, UTC, on which they were issued
    errors: Mapping[str, float]  # mean absolute error of `MODEL` and keys of `BASELINES`
    crps: float | None = None  # of the model's quantiles, in the unit of the errors; None where one has none
    coverage: Coverage | None = None  # what its intervals held of the newest forecasts; None likewise

    @property
    def crps_multiple(self) -> float | None:
        """The CRPS as a multiple of naive's mean absolute error, which is its CRPS as a single number."""
        return self.crps / self.errors[NAIVE] if self.crps is not None and self.errors[NAIVE] > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "num_scored": self.num_scored,
            "num_days": self.num_days,
            "errors": dict(self.errors),
            **({} if self.crps is None else {"crps": self.crps, "crps_multiple": self.crps_multiple}),
            **({} if self.coverage is None else {"coverage": self.coverage.shares}),
            "naive": self.naive.to_json(),
            "best": self.best.to_json(),
        }


@dataclass(frozen=True)
class LiveGeneration:
    """What one model of a series was worth."""

    issuer: Issuer  # the model
    first_s: int | None  # close of its first forecast in the errors, seconds; None without any
    last_s: int | None  # likewise of its last
    tasks: Mapping[str, LiveTask]  # per task; empty before any actual value has come

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            **self.issuer.to_json(),
            "first": None if self.first_s is None else iso(self.first_s),
            "last": None if self.last_s is None else iso(self.last_s),
            "tasks": {task: live.to_json() for task, live in self.tasks.items()},
        }


@dataclass(frozen=True)
class LiveSeries:
    """What the forecasts of one series were worth."""

    series: str  # its name
    tally: Tally  # how many were issued, late, scored, void and pending
    newest_s: int | None  # close that the newest forecast was issued for, seconds; None without any
    tasks: Mapping[str, LiveTask]  # per task, over all generations; empty before any actual value has come
    generations: tuple[LiveGeneration, ...]  # each model, oldest first

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "series": self.series,
            **self.tally.to_json(),
            "newest": None if self.newest_s is None else iso(self.newest_s),
            "tasks": {task: live.to_json() for task, live in self.tasks.items()},
            "generations": [one.to_json() for one in self.generations],
        }


@dataclass(frozen=True)
class Record:
    """The live record of a place."""

    place: str  # as the ledger names it
    series: tuple[LiveSeries, ...]  # each series, in order
    tasks: Mapping[str, LiveTask]  # per task over all of them; empty before any actual value has come

    @property
    def tally(self) -> Tally:
        """How many forecasts of all series were issued, late, scored and void."""
        return sum((one.tally for one in self.series), Tally())

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "place": self.place,
            **self.tally.to_json(),
            "tasks": {task: live.to_json() for task, live in self.tasks.items()},
            "series": [one.to_json() for one in self.series],
        }


@dataclass(frozen=True, eq=False)
class _Scores:
    """One task of a series, or of several as multiples of naive's mean loss of each."""

    task: str  # which one
    losses: pd.DataFrame  # mean at each close, seconds, ascending, shape (N, K), by forecaster
    num_scored: int  # forecasts behind the losses
    bar_s: int  # seconds of the shortest bar
    horizon_bars: int  # such bars in the longest horizon
    coverage: Coverage | None  # of the model's intervals, where it has some

    @cached_property
    def means(self) -> dict[str, float]:
        """Mean loss of each forecaster."""
        return {str(name): float(losses.to_numpy().mean()) for name, losses in self.losses.items()}

    @property
    def points(self) -> dict[str, float]:
        """The same of those that give one number, the model and baselines."""
        return {name: loss for name, loss in self.means.items() if level_of(name) is None}

    def beside(self, best: str) -> LiveTask:
        """Put the model beside naive and the best baseline, or naive again where that is not here."""
        times_s = self.losses.index.to_numpy()
        num_days = len(np.unique(times_s // DAY_S))
        ours = self.means[MODEL]
        points = self.points
        by_forecaster = {name: self.losses[name].to_numpy() for name in self.means}
        paired = Losses({self.task: by_forecaster}, times_s // self.bar_s, self.horizon_bars)

        def against(baseline: str) -> BaselineComparison:
            theirs = self.means[baseline]
            is_tested = not is_equal(ours, theirs) and num_days >= MIN_DAYS
            p_value = paired.test(self.task, MODEL, baseline).p_value if is_tested else None
            return BaselineComparison(baseline, ours, theirs, p_value, p_value)

        # The mean over the levels of twice the pinball loss, which at the median is the model's error.
        of_quantiles = [loss for name, loss in self.means.items() if name not in points]
        return LiveTask(
            num_scored=self.num_scored,
            num_days=num_days,
            errors=points,
            crps=mean([ours, *of_quantiles]) if of_quantiles else None,
            coverage=self.coverage if of_quantiles else None,
            naive=against(NAIVE),
            best=against(best if best in points else NAIVE),
        )


def live_record(ledger: Ledger, place: Path | str, series: Sequence[str] | None = None) -> Record:
    """Compute the live record of a place: a run's folder, `user/name` on the Hub, or the ledger's name of it.

    Only of some series; of all that have forecasts when None.
    """
    names = ledger.series(place) if series is None else series
    scored = {name: [one.in_time() for one in ledger.scored(place, name)] for name in names}
    covered: dict[str, Covered] = {}
    for name in names:
        actual_values = ledger.newest_actual_values(place, name, MOST_FORECASTS)
        covered[name] = [(issuer, _by_task(issuer, *known)) for issuer, *known in actual_values]
    by_task = {task: found for task in TASKS if (found := _by_series(scored, covered, task))}
    best = {task: _best(found.values()) for task, found in by_task.items()}
    of_series = {
        task: dict(
            zip(found, with_corrected([one.beside(best[task]) for one in found.values()]), strict=True)
        )
        for task, found in by_task.items()
    }
    lines = [
        LiveSeries(
            series=name,
            tally=ledger.tally(place, name),
            newest_s=ledger.newest(place, name),
            tasks={task: found[name] for task, found in of_series.items() if name in found},
            generations=tuple(_generation(one, best, covered[name]) for one in scored[name]),
        )
        for name in names
    ]
    together = {task: _together([*found.values()]).beside(best[task]) for task, found in by_task.items()}
    return Record(ledger.place(place), tuple(lines), together)


def _best(scores: Iterable[_Scores]) -> str:
    """Choose the baseline of all series."""
    return best_of([{name: each.points[name] for name in each.points if name != MODEL} for each in scores])


def _by_series(
    scored: Mapping[str, Sequence[Scored]], covered: Mapping[str, Covered], task: str
) -> dict[str, _Scores]:
    """Return the losses of a task for every series that has any."""
    having = {
        name: [one for one in those if task in one.issuer.tasks and len(one.issued_for_s)]
        for name, those in scored.items()
    }
    return {name: _scores(those, task, covered[name]) for name, those in having.items() if those}


def _scores(those: Sequence[Scored], task: str, covered: Covered) -> _Scores:
    """Join the losses of one series' issuers by the forecasters that all of them have."""
    issuers = [one.issuer for one in those]
    tables = [
        pd.DataFrame({name: one.of(task, name) for name in one.issuer.forecasters}, one.issued_for_s)
        for one in those
    ]
    losses = pd.concat(tables, join="inner").sort_index(kind="stable")
    return _Scores(
        task=task,
        losses=losses,
        num_scored=len(losses),
        bar_s=issuers[0].bar_s,
        horizon_bars=max(issuer.horizon_bars for issuer in issuers),
        coverage=together(found.get(task) for issuer, found in covered if issuer in issuers),
    )


def _together(scores: Sequence[_Scores]) -> _Scores:
    """Add up several series' losses close by close, each series in units of naive's mean loss of it.

    A market that stood still, where naive makes none, counts as 0.
    """
    if len(scores) == 1:
        return scores[0]
    bar_s = min(one.bar_s for one in scores)
    units = [one.losses * (1 / one.means[NAIVE] if one.means[NAIVE] > 0 else 0.0) for one in scores]
    every = pd.concat([one.set_axis(one.index // bar_s * bar_s) for one in units], join="inner")
    added = every.groupby(level=0).sum()
    return _Scores(
        task=scores[0].task,
        losses=added * (len(added) / len(every)),
        num_scored=len(every),
        bar_s=bar_s,
        horizon_bars=max(one.horizon_bars * one.bar_s for one in scores) // bar_s,
        coverage=together(one.coverage for one in scores),
    )


def _generation(scored: Scored, best: Mapping[str, str], covered: Covered) -> LiveGeneration:
    issuer = scored.issuer
    times_s = scored.issued_for_s
    if not len(times_s):
        return LiveGeneration(issuer, None, None, {})
    having = [task for task in TASKS if task in issuer.tasks]
    tasks = {task: _scores([scored], task, covered).beside(best[task]) for task in having}
    return LiveGeneration(issuer, int(times_s[0]), int(times_s[-1]), tasks)


def record_table(record: Record) -> Table:
    """Return a row a series: errors beside naive and the best baseline, and counts."""
    compared = [(task, beside.name) for task, live in record.tasks.items() for beside in live.comparisons]
    rows = []
    for one in record.series:
        lives = one.tasks.items()
        tally = one.tally
        marked = {(task, each.name): each.marked for task, live in lives for each in live.comparisons}
        counts = next(([live.num_scored, live.num_days] for _, live in lives), [0, 0])
        told = [marked.get(key, "") for key in compared]
        rows.append([one.series, *counts, *told, tally.num_late, tally.num_pending, tally.num_void])
    names = (f"{task} × {name}" for task, name in compared)
    header = ("series", "scored", "days", *names, "late", "pending", "void")
    return Table(header, rows, "Mean absolute error as a multiple of a forecast without a network")


def record_sentences(record: Record) -> list[str]:
    """Say what the table of a record comes to, and how it is read."""
    tally = record.tally
    return [
        *(line for task, live in record.tasks.items() for line in _sentences(task, live)),
        *_by_model(record),
        f"{reading_marks(len(record.series))}; from {MIN_DAYS} days on.",
        f"{plural(tally.num_issued, 'forecast')} issued, {tally.num_scored} scored, {tally.num_late} late "
        f"(in no error), {tally.num_pending} waiting for their actual values, {tally.num_void} without it for ever.",
    ]


def _sentences(task: str, live: LiveTask) -> Iterator[str]:
    """Say how a task did over all series beside its baselines, and how sure its quantiles were."""
    over = f"{plural(live.num_scored, 'forecast')} of {plural(live.num_days, 'day')}"
    for beside in live.comparisons:
        known = beside.verdict if beside.p_value is None else f"{beside.verdict}, p {p_value(beside.p_value)}"
        yield f"{task}: {number(beside.relative_mae)} of {beside.name} over {over}: {known}."
    if live.coverage:
        held = ", ".join(
            f"{percent(share)} in the {name} interval" for name, share in live.coverage.shares.items()
        )
        newest = f"of the newest {MOST_FORECASTS:,} forecasts of each series"
        yield f"{task}: CRPS {number(live.crps_multiple)} of naive's error; actual values {newest}: {held}."


def _by_model(record: Record) -> Iterator[str]:
    """Say how each model did by itself, where a series was forecast by more than one."""
    for one in record.series:
        for made in one.generations if len(one.generations) > 1 else ():
            told = (
                f"{task} {number(live.naive.relative_mae)} of naive "
                f"over {plural(live.num_scored, 'forecast')}"
                for task, live in made.tasks.items()
            )
            model = f"{one.series}, model that has seen until {made.issuer.generation}"
            yield f"{model}: {', '.join(told) or 'nothing scored yet'}."
