"""Carries out a plan: candles first and checked, then one artefact after another, results after each.

Nothing is trained before the candles of every selected series were read, and every finished artefact has
shown that it is the one that was saved. A series whose candles cannot be read, or are no longer those the
run was started with, fails by itself, and so does one whose finished files are not as they were saved; they
are left as they are. What shows results is drawn anew after each series; a page that cannot be written costs
a note.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from v8.artifacts.metadata import redo_offered, verify_model_file
from v8.artifacts.run_folder import ERROR_FILE, RunFolder, RunRecord, pin_of
from v8.errors import ArtifactError, DataError, SeriesError, StorageError, without_credentials
from v8.hardware import may_have_gpu
from v8.losses.leaderboard import LeaderboardRow
from v8.machine.choices import choose_loops, choose_precision, compile_loops
from v8.market.companions import Companions
from v8.market.series import Series
from v8.market.sources.source import CandleSource
from v8.runs import events
from v8.runs.events import Event, Listener, Note, Outcome
from v8.runs.outputs import RunOutputs, read_finished, write_outputs
from v8.runs.plan import Job, Plan, RunCost, keep_cost
from v8.runs.tracking import TrackedRun, open_trackers
from v8.storage import write_text

TrainAll = Callable[[Sequence[Job], Listener], Iterator[Outcome]]
"""Turns jobs into artefacts, in any order and place, and yields each outcome as it comes."""


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
        is_without_data = is_empty and all(failure.is_data_error for failure in self.failures)
        return (DataError if is_without_data else SeriesError).exit_code


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
    """Hold the folder of a plan, and read candles, train, judge, save and show whatever is not finished.

    Args:
        plan: What to do; series that another process has finished since it was made are skipped.
        source: Where candles come from.
        train_all: Who trains.
        show: Opens a display; everything that happens is told to it, every note once.
        command: The command line that continues, for the run's record.
        trackers: Keys of `TRACKERS` that follow.
        is_fold: Whether this is one of many runs of a back-test: seasons are kept.
        is_listed: Whether the record names every series before the first is trained, as a generation's does.
        then: Called before the folder is let go.

    Raises:
        V8Error: If the folder is another run's, held by another process, or cannot be written.
        KeyboardInterrupt: When interrupted; the folder then tells how far each series is.
    """
    begun = RunRecord.begin(plan.profile, source.name, source.is_publishable, command)
    tracked = TrackedRun(plan.path, plan.profile.model_dump(mode="json"), source.name)
    with RunFolder(plan.path, begun) as folder:
        for series in plan.redone:
            folder.set_aside(series)
        if is_listed:
            folder.expect(one.series for one in plan.series)
        with (
            show(plan.as_of(folder.record.series)) as shown,
            open_trackers(trackers, tracked, events.told_once(shown)) as listen,
            events.log_told_as_notes(listen),
        ):
            summary = execute(plan, folder, source, train_all, listen, is_fold=is_fold)
            then(summary, listen)
            rows = write_outputs(plan.path, lambda error: listen(Note(str(error))))
    return replace(summary, rows=tuple(rows))


def execute(
    plan: Plan,
    folder: RunFolder,
    source: CandleSource,
    train_all: TrainAll,
    listen: Listener,
    *,
    is_fold: bool = False,
) -> Summary:
    """Finish every series of a plan that can be finished, in its open folder; arguments as for `run`.

    Of a fold, what shows results is left to the caller. Raises `StorageError` if `run.json` cannot be
    written.
    """
    plan = plan.as_of(folder.record.series)  # the folder is ours now
    if folder.note:
        listen(Note(folder.note))
    if plan.todo:
        folder.require_writable()
    damaged = _check_finished(plan, folder, listen)
    plan = replace(plan, series=tuple(one for one in plan.series if one.series not in damaged))
    jobs, unread, newer = _read_all(plan, folder, source, listen)
    failures = [*damaged.values(), *unread]
    jobs = [replace(job, keeps_season=is_fold) for job in _settled(jobs, folder, listen)]
    num_trained, outputs = 0, RunOutputs(folder.path, lambda error: listen(Note(str(error))))
    started = time.perf_counter()

    def record(event: Event) -> None:
        if isinstance(event, events.SeriesStarted):
            folder.set_state(event.series, status="running", reason=None)
        listen(event)

    try:
        for outcome in train_all(jobs, record) if jobs else ():
            _record(outcome, folder, listen)
            num_trained += outcome.reason is None
            failures += [outcome] if outcome.reason else []
            if not is_fold and outputs.is_due(len(folder.record.series)):
                folder.keep()  # it is read for them
                outputs.write()
    finally:
        folder.release_running()
    if num_trained:
        keep_cost(plan.profile, RunCost(num_trained, round(time.perf_counter() - started, 3)))
    refused = {failure.series for failure in failures}
    finished = [one for one in plan.series if one.status == "done" and one.series not in refused]
    return Summary(num_trained, len(finished), tuple(failures), tuple(newer))


def _settled(jobs: Sequence[Job], folder: RunFolder, listen: Listener) -> list[Job]:
    """Settle, once for the whole run, what the training of jobs depends on."""
    if not jobs:
        return []
    profile, is_gpu = jobs[0].profile, may_have_gpu()

    def tell(text: str) -> None:
        listen(Note(text))

    choose = partial(choose_precision, profile, may_have_gpu=is_gpu, tell=tell)
    precision = folder.settle("precision", choose)
    if precision == "float32":
        compile_loops(folder.settle("loops", partial(choose_loops, profile, tell=tell)))
    count_parts = partial(profile.training.num_parts, is_on_gpu=is_gpu)
    # A batch size of the CPU's own makes the number of parts depend on the device.
    is_of_device = profile.training.cpu_batch_size is not None
    num_parts = folder.settle("num_parts", count_parts) if is_of_device else count_parts()
    return [replace(job, precision=precision, num_parts=num_parts) for job in jobs]


def _check_finished(plan: Plan, folder: RunFolder, listen: Listener) -> dict[Series, Outcome]:
    """Return the finished series whose files are not as they were saved, each with its refusal."""
    damaged = {}
    for planned in plan.series:
        path = folder.series_folder(planned.series)
        if planned.status == "done":
            try:
                finished = read_finished(path)
                with redo_offered(path):
                    verify_model_file(path, finished.metadata)
            except ArtifactError as error:
                damaged[planned.series] = Outcome(planned.series, reason=str(error), is_data_error=True)
                listen(Note(str(error)))
        elif folder.state(planned.series).status == "done":
            listen(Note(f"{planned.series}: was finished, but its files are gone; it is trained again."))
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
    for planned in plan.series:
        series, is_done = planned.series, planned.status == "done"
        pinned = folder.state(series).candles
        end_s = pinned.last_open_s if pinned else None
        read = partial(companions.candles, source, series, plan.profile.newest_bars, end_s)
        found, outcome = events.read_isolated(series, listen, read)
        if not found and is_done:
            listen(Note(f"{series}: finished; its candles could not be read again: {outcome.reason}"))
            continue
        if found:
            if num_newer := found.report.num_newer:
                newer.append(NewerCandles(series, num_newer, int(found.open_time_s[-1]) + series.bar_s))
            seconds = outcome.seconds
            _, outcome = events.isolated(series, partial(folder.pin, series, pin_of(found)))
            if not outcome.reason and not is_done:
                path, is_real = plan.path / str(series), source.is_publishable
                jobs.append(Job(found, plan.profile, planned.seed, path, is_real, seconds))
        if outcome.reason:
            failures.append(outcome)
            if is_done:
                listen(Note(f"failed: {outcome.reason} The finished model stays as it is."))
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
        try:
            write_text(folder.series_folder(outcome.series) / ERROR_FILE, trace)
        except StorageError as error:  # the reason is kept all the same
            listen(Note(str(error)))
        folder.set_state(outcome.series, status="failed", reason=outcome.reason)
    listen(outcome)
