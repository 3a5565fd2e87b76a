"""Carries out a back-test: lays its folds once, then finishes each as a run of its own.

A fold goes through `v8.runs.execution` like every run, on a source that shows nothing later than its end.
So it resumes, isolates failures and locks as a run does, and its folder is read by whatever reads runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median_high, median_low
from typing import Final

from v8.artifacts import nested_runs
from v8.artifacts.nested_runs import BacktestPlan, Fold
from v8.artifacts.run_folder import now_iso
from v8.errors import DataError
from v8.features.indicators import warmup_bars
from v8.market.companions import Companions
from v8.market.series import Series, iso
from v8.market.sources.source import CandleSource, CutOffSource
from v8.profile import Profile
from v8.runs.events import Listener, Note, read_isolated, told_once
from v8.runs.execution import Show, Summary, TrainAll, run
from v8.runs.plan import make_plan
from v8.windows.dataset import rows_needed, split_rows, table_columns

ALL_BARS: Final = 10_000_000  # more candles than any series has


@dataclass(frozen=True)
class History:
    """The candles that a source has of a series: open times of the first and the newest, seconds, UTC."""

    first_s: int
    newest_s: int


def lay_folds(histories: Mapping[Series, History], profile: Profile, num_folds: int) -> tuple[Fold, ...]:
    """Choose where the folds, at least one, end and which series take part in each.

    A series takes part in a fold when it has candles enough for a window in every span, and still trades.

    Raises:
        DataError: If a timeframe's history is too short for folds of which each judges mostly new candles.
    """
    of_timeframe: dict[str, list[Series]] = {}
    for series in histories:
        of_timeframe.setdefault(series.timeframe, []).append(series)
    ends = {name: _ends(those, histories, profile, num_folds) for name, those in of_timeframe.items()}
    return tuple(
        Fold(
            number + 1,
            {
                str(series): ends[series.timeframe][number]
                for series, history in histories.items()
                if _takes_part(series, history, ends[series.timeframe][number], profile)
            },
        )
        for number in range(num_folds)
    )


def fewest_step_bars(profile: Profile) -> int:
    """Return the bars between two folds at least: half a test span, so that most of it is new."""
    num_rows = profile.newest_bars - warmup_bars(table_columns(profile))
    first, end = split_rows(num_rows, profile, where=f"folds of {profile.newest_bars:,} candles")["test"]
    return -(-(end - first) // 2)


def _ends(
    chosen: Sequence[Series], histories: Mapping[Series, History], profile: Profile, num_folds: int
) -> list[int]:
    """Return the open time of the newest candle of each fold of one timeframe."""
    bar_s, bars = chosen[0].bar_s, profile.newest_bars
    start_s = median_low(histories[one].first_s for one in chosen)
    newest_s = median_high(histories[one].newest_s for one in chosen)
    num_bars, needed = (newest_s - start_s) // bar_s + 1, bars + (num_folds - 1) * fewest_step_bars(profile)
    if num_bars < needed and num_folds > 1:
        raise DataError(
            where=f"{num_folds} folds of {chosen[0].timeframe}",
            rule=f"need {needed:,} candles of half of the series: {bars:,} of the first fold, and "
            f"{fewest_step_bars(profile):,} more for each other one",
            got=f"{num_bars:,}, {iso(start_s)} to {iso(newest_s)}",
            fix="Lower param:folds or param:bars, or take a source with a longer history",
        )
    step = (num_bars - bars) // max(1, num_folds - 1)
    return [newest_s - number * step * bar_s for number in reversed(range(num_folds))]


def _takes_part(series: Series, history: History, newest_s: int, profile: Profile) -> bool:
    fewest = warmup_bars(table_columns(profile)) + rows_needed(profile)
    has_enough = newest_s - history.first_s >= (fewest - 1) * series.bar_s
    return has_enough and history.newest_s >= newest_s - profile.horizon_bars * series.bar_s


@dataclass(frozen=True)
class Asked:
    """What a back-test is asked to do."""

    profile: Profile  # what is trained in each fold
    series: Sequence[Series]  # which, without repetition
    num_folds: int  # at least 1
    history_bars: int | None  # newest candles of each series that the folds lie in; None for all there are
    command: str  # the command line

    def plan(self, source: CandleSource) -> BacktestPlan:
        """Return the plan as far as it is known before candles are read."""
        return BacktestPlan(
            format=nested_runs.BACKTEST_FORMAT,
            profile=self.profile.model_dump(mode="json"),
            profile_digest=self.profile.digest,
            source=source.name,
            is_publishable=source.is_publishable,
            series=tuple(map(str, self.series)),
            num_folds=self.num_folds,
            history_bars=self.history_bars,
            command=self.command,
            created_at=now_iso(),
        )


def begin_or_continue(path: Path, asked: Asked, source: CandleSource, listen: Listener) -> BacktestPlan:
    """Return the plan that a back-test, whose folder this process holds, was begun with, or begin it.

    Then all of the history is read, once, and who listens is told which series is.

    Raises:
        ArtifactError: If it was begun otherwise, or other things lie in the folder.
        DataError: If no series has candles, or a history is too short.
    """
    wanted = asked.plan(source)
    if (path / nested_runs.PLAN_FILE).exists():
        begun = nested_runs.read_plan(path)
        nested_runs.require_same(path, begun, wanted)
        return begun
    histories, missing = _histories(asked, source, listen)
    if not histories:
        why = next(iter(missing.values()))
        raise DataError(
            where=str(path),
            rule="a back-test needs the candles of one series at least",
            got=f"none of {len(missing)}; {why}",
            fix="Mend that first",
        )
    plan = replace(wanted, folds=lay_folds(histories, asked.profile, asked.num_folds), missing=missing)
    nested_runs.begin_plan(path, plan)
    return plan


def carry_out(
    path: Path,
    asked: Asked,
    source: CandleSource,
    train_all: TrainAll,
    *,
    show: Show,
    tell: Callable[[str], object],
) -> tuple[BacktestPlan, dict[str, dict[str, str]]]:
    """Finish what can be finished of a back-test whose folder this process holds.

    Nothing later than a fold is read for it. `show` opens a display of the whole, and then of each fold;
    `tell` is told which fold is begun. Returns the plan, and per fold why series failed now.
    """
    with show(make_plan(asked.profile, asked.series, path)) as shown:
        plan = begin_or_continue(path, asked, source, told_once(shown))
    refused = {}
    for fold in plan.folds:
        tell(f"Fold {fold.number} of {len(plan.folds)}: {len(fold.newest_s)} series.")
        summary = run_fold(path, asked, fold, source, train_all, show=show)
        refused[fold.folder] = {str(one.series): str(one.reason) for one in summary.failures}
    return plan, refused


def run_fold(
    path: Path, asked: Asked, fold: Fold, source: CandleSource, train_all: TrainAll, *, show: Show
) -> Summary:
    """Finish every series of a fold that can be finished; arguments as for `carry_out`."""
    chosen, cut = [Series.parse(name) for name in fold.newest_s], CutOffSource(source, fold.newest_s)
    plan = make_plan(asked.profile, chosen, path / fold.folder)
    return run(plan, cut, train_all, show, command=asked.command, is_fold=True)


def _histories(
    asked: Asked, source: CandleSource, listen: Listener
) -> tuple[dict[Series, History], Mapping[str, str]]:
    """Read which candles there are of each series, and why there are none of others."""
    found, missing, num_bars = {}, {}, asked.history_bars or ALL_BARS
    companions = Companions.of(asked.profile)
    for series in asked.series:
        read = partial(companions.candles, source, series, num_bars)
        candles, outcome = read_isolated(series, listen, read)
        if candles is None:
            missing[str(series)] = str(outcome.reason)
            listen(Note(f"left out: {outcome.reason}"))
        else:
            found[series] = History(int(candles.open_time_s[0]), int(candles.open_time_s[-1]))
    return found, missing
