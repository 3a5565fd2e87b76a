"""Carries out a plan: candles first and checked, then one artefact after another, results after each.

Nothing is trained before the candles of every selected series were read, and every finished artefact has
shown that it is the one that was saved. A series whose candles cannot be read, or are no longer those the
run was started with, fails by itself, and so does one whose finished files are not as they were saved; they
are left as they are. What shows results is drawn anew after each series; a page that cannot be written costs
a note.

A back-test lays its folds once, and then finishes each as a run like every other, on a source that shows
nothing later than its end. So it resumes, isolates failures and locks as a run does, and its folder is read
by whatever reads runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median_high, median_low
from typing import Final, TypeAlias

from v8.artifacts import nested_runs
from v8.artifacts.metadata import redo_offered
from v8.artifacts.nested_runs import BacktestPlan, Fold
from v8.artifacts.run_folder import ERROR_FILE, RunFolder, RunRecord, begun, pin_of
from v8.errors import (
    ArtifactError,
    DataError,
    SeriesError,
    StorageError,
    UnknownSeriesError,
    without_credentials,
)
from v8.evaluation.leaderboard import LeaderboardRow
from v8.features.indicators import warmup_bars
from v8.hardware import may_have_gpu
from v8.machine.choices import choose_loops, choose_precision, compile_loops
from v8.machine.lasting import lasting
from v8.market.companions import Companions
from v8.market.series import Series, iso, load_universe
from v8.market.sources.source import CandleSource, CutOffSource, folder_of, with_nearest
from v8.profile import Profile
from v8.runs import events
from v8.runs.events import Event, GettingReady, Listener, Note, Outcome, PageWritten
from v8.runs.outputs import REPORT_FILE, RunOutputs, read_finished
from v8.runs.pace import Pace
from v8.runs.plan import Job, Plan, keep_cost, make_plan, series_seed
from v8.storage import write_text
from v8.tracking import TrackedRun, open_trackers
from v8.windows.dataset import rows_needed, split_rows, table_columns

TrainAll = Callable[[Sequence[Job], Listener], Iterator[Outcome]]
"""Turns jobs into artefacts, in any order and place, and yields each outcome as it comes."""

ALL_BARS: Final = 10_000_000  # more candles than any series has


@dataclass(frozen=True)
class NewerCandles:
    """Candles that have come since a run took its own, and that it does not use."""

    series: Series
    num_bars: int  # at most: there may be holes among them
    first_s: int  # when the first may open, seconds since the epoch, UTC


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    num_trained: int  # series that this call finished
    num_finished_before: int  # that earlier calls had finished, on the candles that are still there
    failures: tuple[Outcome, ...]  # one per failed series
    newer: tuple[NewerCandles, ...] = ()  # per series whose source has candles after the pinned ones
    rows: tuple[LeaderboardRow, ...] = ()  # the leaderboard, best first

    @property
    def exit_code(self) -> int:
        """0, or 4 where some series failed, or 3 where none is finished, all for candles or features."""
        if not self.failures:
            return 0
        is_empty = self.num_trained + self.num_finished_before == 0
        codes = {one.error.exit_code if one.error else SeriesError.exit_code for one in self.failures}
        return DataError.exit_code if is_empty and codes == {DataError.exit_code} else SeriesError.exit_code


Show: TypeAlias = Callable[[Plan], AbstractContextManager[Listener]]
"""Opens a display of a plan until a block ends."""

Then: TypeAlias = Callable[[Summary, Listener], object]  # what else is done while the run folder is held


def run(
    plan: Plan,
    source: CandleSource,
    train_all: TrainAll,
    show: Show,
    *,
    command: str,
    trackers: Sequence[str] = (),
    is_fold: bool = False,
    is_listed: bool = False,
    then: Then = lambda summary, listen: None,
) -> Summary:
    """Hold the folder of a plan, and read candles, train, evaluate, save and show whatever is not finished.

    Args:
        plan: What to do; series that another process has finished since it was made are skipped.
        show: Opens a display; everything that happens is told to it, every note once.
        command: The command line that continues, for the run's record.
        trackers: Keys of `TRACKERS` that follow.
        is_fold: Whether this is one of many runs of a back-test: folds are kept.
        is_listed: Whether the record names every series before the first is trained, as a generation's does.
        then: Called before the folder is let go.

    Raises:
        V8Error: If the folder is another run's, held by another process, or cannot be written.
        KeyboardInterrupt: When interrupted; the folder then tells how far each series is.
    """
    about = plan.profile, source.name, source.is_publishable, command
    begun = replace(RunRecord.begin(*about, data_dir=folder_of(source)), is_evaluated=plan.is_evaluated)
    tracked = TrackedRun(plan.path, plan.profile.model_dump(mode="json"), source.name)
    with RunFolder(plan.path, begun) as folder:
        left = [_dropped(folder, series) for series in plan.dropped]
        for series in plan.redone:
            folder.set_aside(series)
        if is_listed:
            folder.expect(plan.series)
        with (
            show(plan.as_of(folder.record.series)) as shown,
            open_trackers(trackers, tracked, events.told_once(shown)) as listen,
            events.log_told_as_notes(listen),
        ):
            for note in left:
                listen(note)
            outputs = RunOutputs(plan.path, lambda error: listen(Note(str(error))))
            summary = execute(plan, folder, source, train_all, listen, is_fold=is_fold, outputs=outputs)
            then(summary, listen)
            rows = outputs.write()
            if not is_fold:
                _tell_page(plan.path, listen)
    return replace(summary, rows=tuple(rows))


def _dropped(folder: RunFolder, series: Series) -> Note:
    """Take a series out of an open run, and say where its files are."""
    nested_runs.stop_serving(folder.path, series)
    place = folder.drop(series)
    return Note(
        f"{series}: taken out of the run; {f'its files are kept in {place}' if place else 'no files'}."
    )


def execute(
    plan: Plan,
    folder: RunFolder,
    source: CandleSource,
    train_all: TrainAll,
    listen: Listener,
    *,
    is_fold: bool = False,
    outputs: RunOutputs | None = None,
) -> Summary:
    """Finish every series of a plan that can be finished, in its open folder; arguments as for `run`.

    What shows results is written by `outputs`, or by new ones; of a fold it is left to the caller. Raises
    `StorageError` if `run.json` cannot be written.
    """
    plan = plan.as_of(folder.record.series)  # the folder is ours now
    if folder.note:
        listen(Note(folder.note))
    if plan.todo:
        folder.require_writable()
    damaged = _check_finished(plan, folder, listen)
    plan = replace(plan, series={one: status for one, status in plan.series.items() if one not in damaged})
    jobs, unread, newer = _read_all(plan, folder, source, listen)
    failures = [*damaged.values(), *unread]
    settled = _settled(jobs, folder, listen)
    jobs = [replace(job, keeps_fold_losses=is_fold, has_importance=plan.has_importance) for job in settled]
    num_trained = 0
    pace = Pace(len(jobs))
    if outputs is None:
        outputs = RunOutputs(folder.path, lambda error: listen(Note(str(error))))

    def record(event: Event) -> None:
        pace(event)
        if isinstance(event, events.SeriesStarted):
            folder.set_state(event.series, status="running", reason=None)
        listen(event)

    try:
        for outcome in train_all(jobs, record) if jobs else ():
            pace(outcome)
            _record(outcome, folder, listen)
            num_trained += outcome.reason is None
            failures += [outcome] if outcome.reason else []
            if not is_fold and outputs.is_due(len(folder.record.series)):
                folder.keep()  # it is read for them
                outputs.write()
                _tell_page(plan.path, listen)
    finally:
        folder.release_running()
        if num_trained:
            keep_cost(plan.profile, pace.cost(num_trained))
    refused = {failure.series for failure in failures}
    finished = [one for one, status in plan.series.items() if status == "done" and one not in refused]
    return Summary(num_trained, len(finished), tuple(failures), tuple(newer))


def _tell_page(run: Path, listen: Listener) -> None:
    """Tell where the page of a run is as soon as it is there; of what is told again, nobody hears."""
    page = run.absolute() / REPORT_FILE
    if page.is_file():
        listen(PageWritten(f"Report, drawn again after each series: {page.as_uri()}", page))


def _settled(jobs: Sequence[Job], folder: RunFolder, listen: Listener) -> list[Job]:
    """Settle, once for the whole run, what the training of jobs depends on."""
    if not jobs:
        return []
    listen(GettingReady(f"Getting ready to train {len(jobs)} series."))
    profile = jobs[0].profile
    is_gpu = may_have_gpu()

    def tell(text: str) -> None:
        listen(Note(text))

    choose_format = partial(choose_precision, profile, may_have_gpu=is_gpu, tell=tell)
    precision = folder.settle("precision", choose_format)
    choose_form = partial(choose_loops, profile, may_have_gpu=is_gpu, tell=tell)
    compile_loops(folder.settle("loops", choose_form))
    count_parts = partial(profile.training.num_parts, is_on_gpu=is_gpu)
    # A batch size of the CPU's own makes the number of parts depend on the device.
    is_of_device = profile.training.cpu_batch_size is not None
    num_parts = folder.settle("num_parts", count_parts) if is_of_device else count_parts()
    return [replace(job, precision=precision, num_parts=num_parts) for job in jobs]


def _check_finished(plan: Plan, folder: RunFolder, listen: Listener) -> dict[Series, Outcome]:
    """Return the finished series whose files are not as they were saved, each with its refusal."""
    damaged = {}
    for series, status in plan.series.items():
        path = folder.series_folder(series)
        if status == "done":
            try:
                metadata, *_ = read_finished(path)
                with redo_offered(path):
                    metadata.verified_model(path)
            except ArtifactError as error:
                damaged[series] = Outcome(series, reason=str(error), error=error)
                listen(Note(str(error)))
        elif folder.state(series).status == "done":
            listen(Note(f"{series}: was finished, but its files are gone; it is trained again."))
    num_done = len(plan.series) - len(plan.todo) - len(damaged)
    if num_done:
        end = "" if plan.todo else " There is nothing to do."
        listen(Note(f"{num_done} of {len(plan.series)} series are already finished and are skipped.{end}"))
    return damaged


def _read_all(
    plan: Plan, folder: RunFolder, source: CandleSource, listen: Listener
) -> tuple[list[Job], list[Outcome], list[NewerCandles]]:
    """Read the candles of every series and check them against the pins.

    Returns the jobs of unfinished series, the failures, and which candles are newer than the run's.
    """
    jobs: list[Job] = []
    failures: list[Outcome] = []
    newer: list[NewerCandles] = []
    companions = Companions.of(plan.profile)
    for series, status in plan.series.items():
        is_done = status == "done"
        pinned = folder.state(series).candles
        end_s = pinned.last_open_s if pinned else None
        read = partial(companions.candles, source, series, plan.profile.newest_bars, end_s)
        found, outcome = events.read_isolated(series, listen, read)
        if not found and is_done:
            listen(Note(f"{series}: finished; its candles could not be read again: {outcome.reason}"))
            continue
        if found:
            num_newer = found.report.num_newer
            if num_newer:
                newer.append(NewerCandles(series, num_newer, int(found.open_time_s[-1]) + series.bar_s))
            seconds = outcome.seconds
            _, outcome = events.isolated(series, partial(folder.pin, series, pin_of(found)))
            if not outcome.reason and not is_done:
                seed = series_seed(plan.profile, series)
                path = plan.path / str(series)
                job = partial(Job, is_evaluated=plan.is_evaluated, champion=plan.champions.get(series))
                jobs.append(job(found, plan.profile, seed, path, source.is_publishable, seconds))
        if isinstance(outcome.error, UnknownSeriesError):
            known = [*load_universe(), *map(Series.parse, folder.record.series)]
            outcome = events.refused(with_nearest(outcome.error, series, source.name, known), outcome)
        if outcome.reason:
            failures.append(outcome)
            if is_done:
                listen(Note(f"failed: {outcome.reason} The finished model stays as it is."))
            elif isinstance(outcome.error, UnknownSeriesError) and str(series) not in folder.record.series:
                listen(outcome)  # a mistyped name must not stay in the run as one that failed
            else:
                _record(outcome, folder, listen)
    if jobs:
        folder.keep()  # what is made of these candles must be known to be of these
    return jobs, failures, newer


def _record(outcome: Outcome, folder: RunFolder, listen: Listener) -> None:
    """Keep in the folder how a series ended, and tell it."""
    if outcome.reason is None:
        folder.set_state(outcome.series, status="done", reason=None, seconds=round(outcome.seconds, 3))
    else:
        trace = without_credentials(outcome.trace)  # other people's errors quote addresses
        trace = trace.encode("utf-8", "backslashreplace").decode()  # and anything else
        try:
            write_text(folder.series_folder(outcome.series) / ERROR_FILE, trace)
        except StorageError as error:  # the reason is kept all the same
            listen(Note(str(error)))
        folder.set_state(outcome.series, status="failed", reason=outcome.reason)
    listen(outcome)


@dataclass(frozen=True)
class History:
    """The candles that a source has of a series: open times of the first and the newest, seconds, UTC."""

    first_s: int
    newest_s: int


def lay_folds(histories: Mapping[Series, History], profile: Profile, num_folds: int) -> tuple[Fold, ...]:
    """Choose where the folds, at least one, end and which series take part in each.

    A series takes part in a fold when it has candles enough for a window in every span, and still trades.

    Raises:
        DataError: If a timeframe's history is too short for folds of which each evaluates mostly new candles.
    """
    timeframes = dict.fromkeys(series.timeframe for series in histories)
    ends = {name: _ends(name, histories, profile, num_folds) for name in timeframes}
    folds = []
    for number in range(num_folds):
        newest_s = {one: ends[one.timeframe][number] for one in histories}
        taking = [one for one, end_s in newest_s.items() if _takes_part(one, histories[one], end_s, profile)]
        folds.append(Fold(number + 1, {str(one): newest_s[one] for one in taking}))
    return tuple(folds)


def fewest_step_bars(profile: Profile) -> int:
    """Return the bars between two folds at least: half a test span, so that most of it is new."""
    num_rows = profile.newest_bars - warmup_bars(table_columns(profile))
    first, end = split_rows(num_rows, profile, location=f"folds of {profile.newest_bars:,} candles")["test"]
    return -(-(end - first) // 2)


def _ends(timeframe: str, histories: Mapping[Series, History], profile: Profile, num_folds: int) -> list[int]:
    """Return the open time of the newest candle of each fold of one timeframe."""
    chosen = [one for one in histories if one.timeframe == timeframe]
    bar_s = chosen[0].bar_s
    bars = profile.newest_bars
    start_s = median_low(histories[one].first_s for one in chosen)
    newest_s = median_high(histories[one].newest_s for one in chosen)
    num_bars = (newest_s - start_s) // bar_s + 1
    needed = bars + (num_folds - 1) * fewest_step_bars(profile)
    if num_bars < needed and num_folds > 1:
        raise DataError(
            where=f"{num_folds} folds of {timeframe}",
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
class AskedBacktest:
    """What a back-test is asked to do."""

    profile: Profile  # what is trained in each fold
    series: Sequence[Series]  # which, without repetition
    num_folds: int  # at least 1
    history_bars: int | None  # newest candles of each series that the folds lie in; None for all there are
    command: str  # the command line
    like: BacktestPlan | None = None  # whose folds it has; None lays its own

    def plan(self, source: CandleSource) -> BacktestPlan:
        """Return the plan as far as it is known before candles are read."""
        about = source.name, source.is_publishable, self.command, nested_runs.BACKTEST_FORMAT
        return BacktestPlan(
            **begun(self.profile, *about),
            series=tuple(map(str, self.series)),
            num_folds=self.num_folds,
            history_bars=self.history_bars,
        )


def begin_or_continue(
    path: Path, asked: AskedBacktest, source: CandleSource, listen: Listener
) -> BacktestPlan:
    """Return the plan that a back-test, whose folder this process holds, was begun with, or begin it.

    Then all of the history is read, once, and who listens is told which series is; folds of another plan
    need none of it.

    Raises:
        ArtifactError: If it was begun otherwise, or other things lie in the folder.
        DataError: If no series has candles, or a history is too short.
    """
    wanted = asked.plan(source)
    if (path / nested_runs.PLAN_FILE).exists():
        begun = nested_runs.read_plan(path)
        nested_runs.require_same(path, begun, wanted)
        return begun
    like = asked.like
    if like:
        nested_runs.begin_plan(path, plan := replace(wanted, folds=like.folds, missing=like.missing))
        return plan
    histories, missing = _histories(asked, source, listen)
    if not histories:
        why = next(iter(missing.values()))
        where = str(path)
        rule = "a back-test needs the candles of one series at least"
        raise DataError(where=where, rule=rule, got=f"none of {len(missing)}; {why}", fix="Mend that first")
    plan = replace(wanted, folds=lay_folds(histories, asked.profile, asked.num_folds), missing=missing)
    nested_runs.begin_plan(path, plan)
    return plan


def run_folds(
    path: Path,
    asked: AskedBacktest,
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
        plan = begin_or_continue(path, asked, source, events.told_once(shown))
    refused = {}
    with lasting():
        for fold in plan.folds:
            tell(f"Fold {fold.number} of {len(plan.folds)}: {len(fold.newest_s)} series.")
            summary = run_fold(path, asked, fold, source, train_all, show=show)
            refused[fold.folder] = {str(one.series): str(one.reason) for one in summary.failures}
    return plan, refused


def run_fold(
    path: Path, asked: AskedBacktest, fold: Fold, source: CandleSource, train_all: TrainAll, *, show: Show
) -> Summary:
    """Finish every series of a fold that can be finished; arguments as for `run_folds`."""
    chosen = [Series.parse(name) for name in fold.newest_s]
    cut = CutOffSource(source, fold.newest_s)
    plan = make_plan(asked.profile, chosen, path / fold.folder)
    return run(plan, cut, train_all, show, command=asked.command, is_fold=True)


def _histories(
    asked: AskedBacktest, source: CandleSource, listen: Listener
) -> tuple[dict[Series, History], Mapping[str, str]]:
    """Read which candles there are of each series, and why there are none of others."""
    found = {}
    missing = {}
    num_bars = asked.history_bars or ALL_BARS
    companions = Companions.of(asked.profile)
    for series in asked.series:
        read = partial(companions.candles, source, series, num_bars)
        candles, outcome = events.read_isolated(series, listen, read)
        if candles is None:
            missing[str(series)] = str(outcome.reason)
            listen(Note(f"left out: {outcome.reason}"))
        else:
            found[series] = History(int(candles.open_time_s[0]), int(candles.open_time_s[-1]))
    return found, missing
