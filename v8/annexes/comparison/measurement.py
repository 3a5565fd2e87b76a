"""Compares profiles by their run folders: runs that are trained in turns for this, or existing runs.

Candles are read first, and each run folder pins its series to them, so every run trains on exactly the same
ones or fails. Then each profile is run once per repeat in a process of its own (`measure_training`), one
process at a time; each repeat starts with another profile. A profile that fails is reported, and the others
continue.
"""

import statistics
import tempfile
import time
import timeit
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from v8.annexes.comparison import COMPARED_SERIES, ComparisonOptions
from v8.annexes.comparison.page import require_same_comparison, write_comparison
from v8.annexes.comparison.results import WARM, Comparison, formulas_of, with_errors
from v8.base.child import ChildCall, ChildResult, report_ready, run_in_children, send_message
from v8.base.errors import ArtifactError, ProfileError, listed
from v8.base.hardware import has_gpu
from v8.base.process import light_start
from v8.base.wording import duration
from v8.data.feature_store import FeatureStore
from v8.data.market.candles import CandlePin, Candles, pin_of
from v8.data.market.companions import Companions
from v8.data.market.series import Series
from v8.data.market.sources import CandleSource, SeriesLister, dataset_of, open_source
from v8.data.windows import table_columns
from v8.forecaster.metadata import HISTORY_FILE, Metadata, read_metadata
from v8.model.networks.programs import training_flop_per_window
from v8.profile.profile import Profile, load_profile, recorded_profile
from v8.publish.report.outputs import ReportWriter
from v8.runs.engines import choose_device, local_placement
from v8.runs.events import EpochEnded, Event, EventCallback, ObserverGroup, SeriesOutcome
from v8.runs.execution import run_plan
from v8.runs.machine import measured_workers
from v8.runs.options import chosen_series, require_covariate_files, served_series
from v8.runs.plan import Plan, Recipe
from v8.runs.run_folder import RunFolder, RunRecord, locate_run, read_run
from v8.runs.serving import served_folder


@dataclass(frozen=True)
class TrainingRequest:
    """One run of a comparison."""

    profile: Profile
    run: Path  # the run folder, which pins every series to its candles
    options: ComparisonOptions
    fleet_size: int | None  # models of one program; None: all on a GPU, one on a CPU


@dataclass(frozen=True)
class PreparedComparison:
    """A comparison of profiles that only has to be begun."""

    options: ComparisonOptions
    profiles: Sequence[Profile]  # without the budget of the comparison, in the order of the tables
    series: Sequence[Series]
    source: CandleSource

    @classmethod
    def from_options(cls, options: ComparisonOptions) -> "PreparedComparison":
        """Check the options, and read what they name but the candles.

        Raises:
            V8Error: If one of the options cannot mean anything, or what it names is not there.
        """
        source = open_source(options.source, data_dir=options.data_dir)
        profiles = [load_profile(name) for name in options.profiles]
        require_covariate_files(profiles, options.tables)
        requested = chosen_series(options.series, options.universe)
        if requested is None and not isinstance(source, SeriesLister):
            requested = chosen_series(COMPARED_SERIES)
        return cls(options, profiles, requested or served_series(source), source)

    def finish(self, command: str, notify: Callable[[str], None]) -> Comparison:
        """Train every profile in every repeat, compare the runs, and write the files.

        Args:
            command: The command line, for the record.
            notify: Gets a line about each step.

        Raises:
            ProfileError: If profiles share a name, the baseline is none of them, or the budget is out of
                range.
            DataError: If the candles of a series cannot be read.
            KeyboardInterrupt: When interrupted; the measuring process is stopped first.
        """
        options = self.options
        if (
            options.device != "gpu"
        ):  # only measuring processes look for a GPU; this one would keep it from them
            choose_device(options.device)
        placement = local_placement("auto", options.fleet_size, options.device)
        num_workers = placement.num_workers
        planned = Comparison(
            command=command,
            source=self.source.name,
            is_demo=not self.source.is_publishable,
            series=tuple(str(one_series) for one_series in self.series),
            num_bars={profile.name: options.bars or profile.newest_bars for profile in self.profiles},
            epochs=None if options.full else options.epochs or 1,
            num_repeats=options.repeat,
            baseline=options.baseline_profile or self.profiles[-1].name,
            formulas=formulas_of(self.profiles),
            num_workers=measured_workers(num_workers) if placement.is_measured else num_workers,
        )
        if not options.overwrite:
            require_same_comparison(options.out, planned)
        _check_names([profile.name for profile in self.profiles], planned.baseline)
        fleet_size = placement.fleet_size if options.fleet_size != "auto" else None
        comparison = self._measure(planned, fleet_size, notify)
        write_comparison(options.out, comparison)
        return comparison

    def _measure(
        self, planned: Comparison, fleet_size: int | None, notify: Callable[[str], None]
    ) -> Comparison:
        """Run every profile in every repeat; `out/runs` keeps every run folder."""
        options = self.options
        budgeted = {}
        for profile in self.profiles:
            num_bars = planned.num_bars[profile.name]
            budgeted[profile.name] = profile.with_budget(newest_bars=num_bars, epochs=planned.epochs)
        pins, download_s = _read_candles(
            list(budgeted.values()), planned.series, self.source, notify, tables=options.tables
        )
        measurements: list[dict[str, Any]] = []
        failures: dict[str, str] = {}
        for repeat in range(1, planned.num_repeats + 1):
            for profile in profile_order(self.profiles, repeat):
                name = profile.name
                was_measured = any(measurement["profile"] == name for measurement in measurements)
                if name in failures and not was_measured:
                    continue  # all of it failed; another try would take as long and fail as well
                notify(f"repeat {repeat} of {planned.num_repeats}: {name}")
                run = locate_run(options.out / "runs", name, is_fresh=True)
                record = RunRecord.begin(
                    budgeted[name],
                    self.source.name,
                    self.source.is_publishable,
                    planned.command,
                    tables=options.tables,
                )
                with RunFolder(run, record) as folder:
                    for series, pin in pins[name].items():
                        folder.pin(series, pin)
                request = TrainingRequest(budgeted[name], run, options, fleet_size)
                (answer,) = run_in_children(
                    [ChildCall(measure_training, request)], on_message=lambda text: notify(f"  {text}")
                )
                for measured in answer.values:
                    if measured:
                        of_process = {
                            "repeat": repeat,
                            "import_s": round(answer.start_s, 4),
                            "own_epochs": profile.training.epochs,
                        }
                        measurements.append({**measured, **of_process})
                reason = _failure_reason(answer, run)
                if reason:
                    failures[name] = reason
                    notify(f"{name}: failed: {reason}")
        finished = with_errors(measurements) if measurements else ()
        return replace(planned, download_s=download_s, measurements=finished, failures=failures)


def profile_order(profiles: Sequence[Profile], repeat: int) -> list[Profile]:
    """Return the order of a repeat, from 1: each starts one profile later than the one before."""
    first = (repeat - 1) % len(profiles)
    return [*profiles[first:], *profiles[:first]]


def compare_runs(runs: Sequence[Path], *, baseline: str | None, command: str) -> Comparison:
    """Compare existing run folders, on the series that all of them have finished.

    A run goes by the name of its profile, or by its folder where another run has the same profile.

    Args:
        runs: The run folders.
        baseline: Name of the run that ratios refer to; the last one when None.
        command: The command line.

    Raises:
        ProfileError: If a folder is named twice, or the baseline is none of them.
        ArtifactError: If one is damaged, or they share no window of a series.
    """
    records = [read_run(run) for run in runs]
    first = records[0]
    names = _names_of(runs, records)
    baseline = baseline or names[-1]
    _check_names(names, baseline)
    common = [name for name in first.done if all(name in record.done for record in records)]
    measurements: tuple[dict[str, Any], ...] = ()
    if common and len({record.source for record in records}) == 1:
        measured = zip(names, (measurement_of(run, common) for run in runs), strict=True)
        measurements = with_errors([{**measurement, "profile": name} for name, measurement in measured])
    if not any(model["num_shared_windows"] for each in measurements for model in each["models"]):
        descriptions = []
        for run, record in zip(runs, records, strict=True):
            descriptions.append(f"{run} of {record.source}, {listed(list(record.series))}")
        raise ArtifactError(
            where="param:profiles",
            rule="compares runs of one source that have finished the same series and share windows "
            "of its candles",
            got=listed(descriptions),
            fix="Name runs of the same series and months, or profiles, which are trained on the same candles",
        )
    num_bars = {}
    formulas = {}
    failures = {}
    for name, run, record in zip(names, runs, records, strict=True):
        num_bars[name] = int(record.profile["newest_bars"])
        profile = recorded_profile(record.profile, where=f"profile of {run}")
        if profile.family.is_formula:
            formulas[name] = profile.network.family
        if record.reasons:
            failures[name] = "; ".join(record.reasons.values())
    return Comparison(
        command=command,
        source=first.source,
        is_demo=not first.is_publishable,
        series=tuple(common),
        num_bars=num_bars,
        epochs=None,
        baseline=baseline,
        formulas=formulas,
        num_workers=int(first.machine["num_cores"]),
        machine=first.machine,
        versions=first.versions,
        measurements=measurements,
        failures=failures,
    )


def _names_of(runs: Sequence[Path], records: Sequence[RunRecord]) -> list[str]:
    """Name each run after its profile, or after its folder where several have that profile.

    Raises `ProfileError` if a folder is named twice.
    """
    for run in runs:
        if runs.count(run) > 1:
            raise ProfileError(
                where="param:profiles",
                rule="compares different runs",
                got=f"{run} {runs.count(run)} times",
                fix="Name each run once",
            )
    profiles = [record.profile_name for record in records]
    return [
        profile if profiles.count(profile) == 1 else str(run)
        for run, profile in zip(runs, profiles, strict=True)
    ]


def _check_names(names: Sequence[str], baseline: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ProfileError(
                where="param:profiles",
                rule="compares profiles of different names",
                got=f"{name} {names.count(name)} times",
                fix="Give each file its own name: key",
            )
    if baseline not in names:
        raise ProfileError(
            where="param:baseline_profile",
            rule=f"is one of the compared profiles ({', '.join(names)})",
            got=repr(baseline),
            fix="Add it to param:profiles or choose another",
        )


def _read_candles(
    profiles: Sequence[Profile],
    names: Sequence[str],
    source: CandleSource,
    notify: Callable[[str], None],
    *,
    tables: Path | None,
) -> tuple[dict[str, dict[Series, CandlePin]], dict[str, float]]:
    """Read the candles of every series once, as many as the longest profile needs, and pin them.

    Returns:
        The pins by profile and series, and the seconds that reading took by series.
    """
    pins: dict[str, dict[Series, CandlePin]] = {profile.name: {} for profile in profiles}
    download_s: dict[str, float] = {}
    for name in names:
        series = Series.parse(name)
        notify(f"{series}: reading candles")
        started = time.perf_counter()
        candles = source.candles(series, max(profile.newest_bars for profile in profiles))
        seconds = round(time.perf_counter() - started, 4)
        download_s[str(series)] = seconds
        notify(f"{series}: {len(candles):,} candles, read in {duration(seconds)}")
        for profile in profiles:
            profile_candles = candles.newest(profile.newest_bars)
            companions = Companions.of(profile, folder=tables)
            if companions:
                last_open_s = int(profile_candles.open_time_s[-1])
                profile_candles = companions.candles(source, series, profile.newest_bars, last_open_s)
            pins[profile.name][series] = pin_of(profile_candles)
    return pins, download_s


def _failure_reason(answer: ChildResult, run: Path) -> str | None:
    """Return why a process measured nothing, or why series of its run failed; None if nothing failed."""
    if answer.refusal:
        return answer.refusal
    if answer.values:
        return "; ".join(read_run(run).reasons.values()) or None
    last_output = " ".join(answer.errors.split())[-600:]
    return f"its process ended with exit code {answer.exit_code}; last words: {last_output or 'none'}"


def measure_training(request: TrainingRequest) -> dict[str, Any] | None:
    """Carry out a run with an empty feature store, and measure what its folder does not hold.

    Features of finished series are read three times again, for the median, and matrices are multiplied right
    after training.

    Returns:
        The result of `measurement_of`; None if no series is finished.

    Raises:
        ProfileError: If a GPU is wanted and there is none.
    """
    with light_start():
        # Not at the top: the process that compares does not start TensorFlow.
        from v8.model.training.probe import matmul_speed  # noqa: PLC0415
        from v8.runs.local import InProcessEngine  # noqa: PLC0415
    has_gpu()  # looking for GPUs counts as part of the start of the process
    report_ready()
    profile = request.profile
    options = request.options
    choose_device(options.device)
    candle_source = open_source(options.source, data_dir=options.data_dir)
    record = read_run(request.run)
    series = [Series.parse(name) for name in record.series]
    recipe = Recipe(profile, is_publishable=candle_source.is_publishable, dataset=dataset_of(candle_source))
    plan = Plan(
        recipe=recipe,
        path=request.run,
        series=dict.fromkeys(series, "pending"),
        command=record.command,
        tables=options.tables,
    )
    fleet_size = request.fleet_size or (len(plan.series) if has_gpu() else 1)
    with tempfile.TemporaryDirectory() as folder:
        store = FeatureStore(Path(folder))
        engine = InProcessEngine(min(fleet_size, len(plan.series)), store=store)
        observer = ObserverGroup([EventCallback(_report), ReportWriter()])
        run_plan(plan, candle_source, engine, observer)
        finished = read_run(plan.path).done
        if not finished:
            return None
        measurement = measurement_of(plan.path, finished)
        for model in measurement["models"]:
            companions = Companions.of(profile, folder=options.tables)
            pin = record.series[model["series"]].candles
            candles = companions.candles(
                candle_source,
                Series.parse(model["series"]),
                profile.newest_bars,
                pin.last_open_s if pin else None,
            )
            seconds = _warm_feature_seconds(profile, candles, store)
            model["seconds"][WARM] = seconds
    return {**measurement, "matmul_gflop_per_s": matmul_speed(seconds=1.0)["gflop_per_s"]}


def _warm_feature_seconds(profile: Profile, candles: Candles, store: FeatureStore) -> float:
    """Measure how long it takes to read features of a series that the store holds, as a second run would."""
    read_features = partial(store.table, candles, table_columns(profile))
    return round(statistics.median(timeit.repeat(read_features, number=1, repeat=3)), 6)


def _report(event: Event) -> None:
    if isinstance(event, EpochEnded):
        send_message(f"{event.series}: epoch {event.record.epoch} of {event.num_epochs}")
    elif isinstance(event, SeriesOutcome):
        send_message(f"{event.series}: {event.reason or 'done'}")


def measurement_of(run: Path, series: Iterable[str]) -> dict[str, Any]:
    """Read the costs of finished series, at least one, from a run folder, as JSON values.

    The folder holds neither `import_s`, the seconds from the start of the process until it could train, nor
    the matmul rate of that process right after training.
    """
    profile = recorded_profile(read_run(run).profile, where=f"profile of {run}")
    folders = [served_folder(run, name) for name in series]
    all_metadata = [read_metadata(folder) for folder in folders]
    models = [_model(folder, metadata) for folder, metadata in zip(folders, all_metadata, strict=True)]
    first = all_metadata[0]
    trainings = [metadata.training for metadata in all_metadata]
    return {
        "profile": profile.name,
        "run": str(run),
        "repeat": 1,
        "import_s": None,
        "models": models,
        "horizon_bars": first.horizon_bars,
        "num_parameters": first.num_parameters,
        "flop_per_window": training_flop_per_window(profile),
        "own_epochs": profile.training.epochs,  # most epochs of the profile, without the comparison's budget
        "precision": first.training.precision,
        "device": first.training.device,
        "fleet_size": max(training.fleet_size or 1 for training in trainings),  # models of one program
        "peak_process_bytes": max(training.peak_process_bytes or 0 for training in trainings) or None,
        "peak_device_bytes": max(training.peak_memory_bytes or 0 for training in trainings),
        "matmul_gflop_per_s": None,
    }


def _model(folder: Path, metadata: Metadata) -> dict[str, Any]:
    """Return the measurements of one model; times and speeds of a model in a fleet are its share."""
    training = metadata.training
    epochs_s = pd.read_csv(folder / HISTORY_FILE)["seconds"]
    fleet_epoch_s = float(epochs_s.median()) if len(epochs_s) else 0.0  # a formula has no epochs
    return {
        "series": metadata.series,
        "seconds": {**metadata.seconds},
        "epoch_s": round(fleet_epoch_s / (training.fleet_size or 1), 6),
        "windows_per_s": training.windows_per_s,
        "epochs_run": training.epochs_run,
        "best_epoch": training.best_epoch,
        "num_windows": metadata.evaluation.num_windows,  # of its own test span
    }
