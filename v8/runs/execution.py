"""Carries out a plan: reads and checks all candles, then has the artefacts made.

    run_plan         holds the run folder and lets the observer follow
      execute        what is finished is checked and skipped; the engine trains the others

Before anything is trained the files of every finished series are checked, then the candles of every series
but the damaged ones are read and pinned (`v8.runs.reading`). What is wrong with a series does not stop the
others:

    files of a finished series are not as they were saved     it fails; its files are left as they are
    candles are no longer those it is pinned to               it fails
    candles cannot be read                                    it fails; a finished one stays as it is

What happens goes to observers (`v8.runs.events`) as events: `RunRecorder` writes run.json and passes them on
to the observer of `run_plan`, which is a group: display, trackers, the writer of the report.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from v8.base.errors import ArtifactError, StorageError, UnknownSeriesError
from v8.base.hardware import may_have_gpu
from v8.base.process import with_variables
from v8.base.storage import write_text
from v8.base.wording import for_file
from v8.data.market.series import Series
from v8.data.market.sources import CandleSource, folder_of
from v8.forecaster.metadata import ERROR_FILE, redo_offered
from v8.runs.estimate import ProgressEstimate, save_cost
from v8.runs.events import (
    Event,
    GettingReady,
    Note,
    ObserverGroup,
    RunObserver,
    RunSummary,
    SeriesOutcome,
    SeriesStarted,
    observed,
    warnings_as_notes,
)
from v8.runs.machine import choose_loops, choose_precision, loops_in_environment
from v8.runs.plan import DeviceSettings, Engine, Job, Plan, Recipe, series_seed
from v8.runs.reading import CandleReader, CheckedSeries
from v8.runs.run_folder import RunFolder, RunRecord
from v8.runs.serving import read_finished, stop_serving


def run_plan(plan: Plan, source: CandleSource, engine: Engine, observer: RunObserver) -> RunSummary:
    """Hold the folder of a plan, and read candles, train, evaluate and save whatever is not finished.

    Args:
        plan: What to do; series that another process has finished since it was made are skipped.
        source: Where candles come from.
        engine: Trains the series.
        observer: Follows the run; a note reaches it once, however often it is made.

    Raises:
        V8Error: If the folder is another run's, held by another process, or cannot be written.
        KeyboardInterrupt: When interrupted; the folder then shows how far each series is.
    """
    record = new_record(plan, source)  # one that is there is kept
    with RunFolder(plan.path, record, plan.starts_another) as folder:
        drop_notes = [_drop(series, folder) for series in plan.dropped]
        for series in plan.redone:
            folder.set_aside(series)
        if plan.lists_all_series:  # a later generation of models does, see `Plan`
            folder.add_series(plan.series)
        # The folder is held from here on: what another process has finished since planning is not done again.
        current = plan.with_statuses(folder.record.series)
        with (
            observed(observer, current, source.name, folder.save_record) as filtered_observer,
            warnings_as_notes(filtered_observer),
            with_variables(engine.variables),
        ):
            for note in drop_notes:
                filtered_observer.on_event(note)
            summary = execute(current, folder, source, engine, filtered_observer)
            filtered_observer.on_finished(summary)
    return summary


def new_record(plan: Plan, source: CandleSource) -> RunRecord:
    """Return the record of a run that starts now with a plan; arguments as for `run_plan`."""
    return RunRecord.begin(
        plan.profile,
        source.name,
        source.is_publishable,
        plan.command,
        data_dir=folder_of(source),
        tables=plan.tables,
        is_evaluated=plan.recipe.is_evaluated,
    )


def execute(
    plan: Plan, folder: RunFolder, source: CandleSource, engine: Engine, observer: RunObserver
) -> RunSummary:
    """Finish every series of a plan that can be finished, in its open folder.

    Raises:
        StorageError: If `run.json` cannot be written.
    """
    recorder = RunRecorder(folder, observer)  # passes on to the observer whatever it records
    if folder.note:  # what opening it has changed
        recorder.on_event(Note(folder.note))
    if plan.todo:
        folder.require_writable()
    damaged = check_finished(plan, folder, recorder)
    undamaged = {series: status for series, status in plan.series.items() if series not in damaged}
    plan = replace(plan, series=undamaged)
    reading = CandleReader(plan, folder, source, recorder).read_all()
    # A series is damaged, refused while reading, finished, or to be trained; and then trained or failed.
    failures_before_training = [*damaged.values(), *reading.failures]
    outcomes: list[SeriesOutcome] = []
    try:
        if reading.to_train:
            recorder.on_event(GettingReady(f"Getting ready to train {len(reading.to_train)} series."))
            # How this machine computes (precision, loops, micro-batches): chosen once, and kept in run.json.
            recipe = with_device_settings(plan.recipe, folder, recorder)
            jobs = make_jobs(replace(plan, recipe=recipe), reading.to_train)
            # Variables of the environment tell XLA, in all processes, how to compile loops over bars.
            with loops_in_environment(recipe.device_settings.loops):
                outcomes = train_jobs(jobs, engine, recorder)
    finally:
        # What was interrupted is pending again, and keeps its checkpoint. Opening a folder does the same.
        folder.reset_running()
    trained = [outcome for outcome in outcomes if outcome.reason is None]
    train_failures = [outcome for outcome in outcomes if outcome.reason is not None]
    refused = {failure.series for failure in reading.failures}  # finished series may be among them
    finished_before = [
        series for series, status in plan.series.items() if status == "done" and series not in refused
    ]
    return RunSummary(
        num_trained=len(trained),
        num_finished_before=len(finished_before),
        failures=(*failures_before_training, *train_failures),
        newer_candles=tuple(reading.newer_candles),
        without_onnx=tuple(outcome for outcome in trained if outcome.onnx_fault),
    )


def check_finished(plan: Plan, folder: RunFolder, observer: RunObserver) -> dict[Series, SeriesOutcome]:
    """Return the finished series whose files are not as they were saved, each with its failure.

    Notes say which series are damaged, of which ones the files are gone, so that they are trained again, and
    how many are skipped.
    """
    damaged: dict[Series, SeriesOutcome] = {}
    for series, status in plan.series.items():
        if status == "done":
            error = _fault_of(plan.path / str(series))
            if error is not None:
                damaged[series] = SeriesOutcome(series, reason=str(error), error=error)
                observer.on_event(Note(str(error)))
        elif folder.state(series).status == "done":
            text = f"{series}: was finished, but its files are gone; it is trained again."
            observer.on_event(Note(text))
    num_done = len(plan.series) - len(plan.todo) - len(damaged)
    if num_done:
        text = f"{num_done} of {len(plan.series)} series are already finished and are skipped."
        if not plan.todo:
            text += " There is nothing to do."
        observer.on_event(Note(text))
    return damaged


def _fault_of(artifact: Path) -> ArtifactError | None:
    """Return what is wrong with the files of a finished series, in its folder; None where nothing is."""
    try:
        finished = read_finished(artifact)
        with redo_offered(artifact):
            finished.metadata.verified_model(artifact)
    except ArtifactError as error:
        return error
    return None


def with_device_settings(recipe: Recipe, folder: RunFolder, observer: RunObserver) -> Recipe:
    """Choose what training depends on apart from the profile, once for the whole run, and record it."""
    profile = recipe.profile
    is_gpu = may_have_gpu()

    def add_note(text: str) -> None:
        observer.on_event(Note(text))

    precision = folder.choose_once(
        "precision", lambda: choose_precision(profile, may_have_gpu=is_gpu, on_message=add_note)
    )
    loops = folder.choose_once(
        "loops", lambda: choose_loops(profile, may_have_gpu=is_gpu, on_message=add_note)
    )

    def count_micro_batches() -> int:
        return profile.training.num_micro_batches(is_on_gpu=is_gpu)

    if profile.training.cpu_batch_size is None:
        num_micro_batches = count_micro_batches()
    else:  # a batch size for CPUs makes the number depend on the device, so it is recorded, too
        num_micro_batches = folder.choose_once("num_micro_batches", count_micro_batches)
    return replace(recipe, device_settings=DeviceSettings(precision, loops, num_micro_batches))


def make_jobs(plan: Plan, ready: Sequence[CheckedSeries]) -> list[Job]:
    """Return a complete job for every series whose candles are checked."""
    return [
        Job(
            recipe=plan.recipe,
            candles=checked.candles,
            seed=series_seed(plan.profile, checked.candles.series),
            folder=plan.path / str(checked.candles.series),
            candle_seconds=checked.read_s,
            initial_model=plan.initial_models.get(checked.candles.series),
        )
        for checked in ready
    ]


def train_jobs(jobs: Sequence[Job], engine: Engine, observer: RunObserver) -> list[SeriesOutcome]:
    """Let an engine make the artefact of every job, at least one; return how each ended.

    The engine passes what happens on the way to the observer, and yields how each series ended. How long they
    took is saved for the estimates of later runs, also when it is interrupted.
    """
    outcomes: list[SeriesOutcome] = []
    num_trained = 0
    estimate = ProgressEstimate(len(jobs))
    observers = ObserverGroup([estimate, observer])
    try:
        for outcome in engine.train(jobs, observers):
            observers.on_event(outcome)
            outcomes.append(outcome)
            if outcome.reason is None:
                num_trained += 1
    finally:
        if num_trained:
            save_cost(jobs[0].recipe.profile, estimate.cost(num_trained))
    return outcomes


class RunRecorder(RunObserver):
    """Records in the run folder how far each series is, and passes every event on.

    A mistyped name must not stay in the record as a failure: a series that the source does not have is
    recorded only if the run has it already.
    """

    def __init__(self, folder: RunFolder, observer: RunObserver) -> None:
        self._folder = folder
        self._observer = observer

    def on_event(self, event: Event) -> None:
        """Record it where a series starts or ends; then pass it on."""
        if isinstance(event, SeriesStarted):
            self._folder.set_state(event.series, status="running", reason=None)
        elif isinstance(event, SeriesOutcome) and event.reason is None:
            self._folder.set_state(event.series, status="done", reason=None, seconds=round(event.seconds, 3))
        elif isinstance(event, SeriesOutcome) and not self._is_mistyped(event):
            self._write_trace(event)
            self._folder.set_state(event.series, status="failed", reason=event.reason)
        self._observer.on_event(event)

    def _is_mistyped(self, outcome: SeriesOutcome) -> bool:
        is_recorded = str(outcome.series) in self._folder.record.series
        return isinstance(outcome.error, UnknownSeriesError) and not is_recorded

    def _write_trace(self, outcome: SeriesOutcome) -> None:
        """Write the traceback of a failure into the folder of its series."""
        try:
            write_text(self._folder.series_folder(outcome.series) / ERROR_FILE, for_file(outcome.trace))
        except StorageError as error:  # the reason is recorded all the same
            self._observer.on_event(Note(str(error)))


def _drop(series: Series, folder: RunFolder) -> Note:
    """Take a series out of an open run, and say where its files are."""
    stop_serving(folder.path, series)
    place = folder.drop(series)
    files = f"its files are kept in {place}" if place else "no files"
    return Note(f"{series}: taken out of the run; {files}.")
