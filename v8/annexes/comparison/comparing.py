"""`v8.compare`, and what the command `compare-profiles` does as well, from its options to its files.

Profiles are trained in turns for this (`PreparedComparison`), or run folders are compared as they are
(`compare_run_folders`); runs, baselines and files of forecasts go on a board, as they are (`make_board`). The
caller shows the result.

Candles are read first, and each run folder pins its series to them, so every run trains on exactly the same
ones or fails. Then each profile is run once per repeat in a process of its own (`measure_training`), one
process at a time; each repeat starts with another profile. A profile that fails is reported, and the others
continue.
"""

import statistics
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pandas as pd

from v8.annexes.comparison import COMPARED_SERIES, ComparisonOptions
from v8.annexes.comparison.page import comparison_files, require_same_comparison, write_comparison, written
from v8.annexes.comparison.places import is_forecasts_file, is_run, require_no_profile, require_places
from v8.annexes.comparison.results import WARM, Comparison, formulas_of, measurement_of, with_errors
from v8.api.arguments import RawCandles, call_in_child, in_python, profile_file, series_list, source_of
from v8.api.board import Board, require_board_folder
from v8.api.results import long_forecasts
from v8.api.scores import evaluate
from v8.base.child import ChildCall, ChildResult, report_ready, run_in_children, send_message
from v8.base.errors import ArtifactError, ProfileError, listed
from v8.base.hardware import has_gpu
from v8.base.process import command, light_start, watch_interrupts
from v8.base.records import AtLeastOne
from v8.base.storage import FORECASTS_COLUMNS, require_own
from v8.base.wording import duration
from v8.data.feature_store import FeatureStore
from v8.data.market.candles import CandlePin, pin_of
from v8.data.market.companions import Companions
from v8.data.market.series import Series
from v8.data.market.sources import CandleSource, SeriesLister, dataset_of, open_source
from v8.data.windows import table_columns
from v8.profile.profile import Profile, load_profile, recorded_profile
from v8.publish.report.outputs import ReportWriter
from v8.runs.engines import choose_device, local_placement
from v8.runs.events import EpochEnded, Event, EventCallback, ObserverGroup, SeriesOutcome
from v8.runs.execution import run_plan
from v8.runs.machine import measured_workers
from v8.runs.options import NumBars, chosen_series, contradiction, require_covariate_files, served_series
from v8.runs.plan import Plan, Recipe
from v8.runs.run_folder import RunFolder, RunRecord, locate_run, read_run

_OF_TRAINING: Final = ("epochs", "full", "tables", "folds", "baseline_profile", "universe")
"""Options that belong to profiles, which are trained."""


@in_python
def compare(
    profiles: Sequence[str | Path | Profile],
    candles: RawCandles = "vision",
    *,
    series: str | Sequence[str] | None = None,
    bars: NumBars | None = None,
    epochs: AtLeastOne | None = None,
    full: bool = False,
    repeat: AtLeastOne = 1,
    baseline: str | None = None,
    out: str | Path = "comparison",
    overwrite: bool = False,
    progress: bool = True,
) -> pd.DataFrame:
    """Measure profiles side by side on the same candles, or compare runs that are there.

    It is the command `compare-profiles`. It trains every profile, for one epoch unless `epochs` or `full`
    says otherwise; run folders are compared as they are.

    Args:
        profiles: Shipped names, YAML files or profiles; or folders of runs, and then only these.
        candles: As for `v8.train`; not used for folders of runs.
        series: Such as "BTCUSDT-15m", or several; None for BTCUSDT-15m and BTCUSDT-1h, or all of a folder.
        bars: Newest candles of each series; None for the profile's.
        epochs: Most epochs of each; None for one.
        full: Whether each profile trains its own epochs.
        repeat: Measurements of each profile.
        baseline: Name of the profile that ratios refer to; None for the last.
        out: Folder for compare.json, compare.csv, compare.html and runs; it holds one comparison.
        overwrite: Whether another comparison in that folder is replaced.
        progress: Whether to print lines about it.

    Returns:
        A row for each profile and figure that it has:

        * `profile`, `figure` (such as "train_s" or "ohlc_relative_mae"), `unit` (missing: unitless): text.
        * `median`, `low`, `high`: over the repeats, in that unit.
        * `ratio_median`, `ratio_low`, `ratio_high`: divided by the baseline profile's, unitless; NaN for
          figures that are not compared.

        `attrs["folder"]` is the folder.

    Raises:
        V8Error: If nothing could be measured, or the runs have no series with the same candles in common.

    >>> import v8
    >>> table = v8.compare(["frontier", "aligned"], series="BTCUSDT-15m")  # doctest: +SKIP
    >>> table.pivot(index="figure", columns="profile", values="median")  # doctest: +SKIP
    """
    names = series_list(series)
    runs = [profile for profile in profiles if not isinstance(profile, Profile) and is_run(profile)]
    places = [str(profile if profile in runs else profile_file(profile)) for profile in profiles]
    source = {} if runs else source_of(candles, names)
    options = ComparisonOptions(
        profiles=tuple(places),
        series=tuple(names),
        bars=bars,
        epochs=epochs,
        full=full,
        repeat=repeat,
        baseline_profile=baseline,
        out=Path(out),
        overwrite=overwrite,
        **source,
    )
    call_in_child(compare_in_child, options, where="v8.compare", progress=progress)
    return read_figures(Path(out))


def compare_in_child(options: ComparisonOptions) -> None:
    """Compare in a process of its own, which sends lines about it, and write the files."""
    watch_interrupts()
    continuing = command("compare-profiles", *options.words())
    runs = check_places(options)
    if runs:
        comparison = compare_run_folders(runs, options, continuing)
    else:
        comparison = PreparedComparison.from_options(options).finish(continuing, send_message)
    for name, reason in comparison.failures.items():
        send_message(f"{name}: {reason}")
    send_message(written(options.out))


def read_figures(folder: Path) -> pd.DataFrame:
    """Read `compare.csv` of a folder."""
    table = pd.read_csv(folder / "compare.csv")
    table.attrs["folder"] = str(folder)
    return table


def check_places(options: ComparisonOptions) -> list[Path]:
    """Refuse, before hours of measuring, what cannot be written; return the run folders that are compared.

    There are none where profiles are compared.

    Raises:
        ProfileError: If nothing is named, or profiles beside runs, options contradict each other, or `out` is
            no folder, or holds files of others.
        ArtifactError: If a folder is named that is no run.
    """
    require_places(options.profiles)
    if options.full and options.epochs is not None:
        raise contradiction("param:full", f"param:epochs {options.epochs}", "runs each profile's own epochs")
    out = options.out
    if out.exists() and not out.is_dir():
        raise ProfileError(
            where="param:out",
            rule="is a folder",
            got=f"the file {out}",
            fix="Choose another place for param:out",
        )
    for file in comparison_files(out):
        require_own("param:out", file, is_overwriting=options.overwrite)
    if not options.profiles:
        words = ("frontier", "aligned", "--series", COMPARED_SERIES[0])
        raise ProfileError(
            where="param:profiles",
            rule="names the profiles, or the runs, that are compared",
            got="none",
            fix=f"Write for example {command('compare-profiles', *words)}",
        )
    runs = [name for name in options.profiles if is_run(name)]
    if runs:
        require_no_profile([name for name in options.profiles if name not in runs], options.profiles)
    return [Path(name) for name in runs]


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
        if options.device != "gpu":  # measuring processes look for it; this one would keep it from them
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
                of_process = {"repeat": repeat, "import_s": round(answer.start_s, 4)}
                of_process["own_epochs"] = profile.training.epochs
                measurements += [{**measured, **of_process} for measured in answer.values if measured]
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


def compare_run_folders(runs: Sequence[Path], options: ComparisonOptions, command: str) -> Comparison:
    """Compare existing run folders, on the series that all of them have finished, and write the files.

    A run goes by the name of its profile, or by its folder where another run has the same profile.

    Args:
        runs: The run folders.
        options: Of the comparison.
        command: The command line, for the record.

    Raises:
        ProfileError: If a folder is named twice, the baseline is none of them, or another comparison is in
            the folder.
        ArtifactError: If one is damaged, or they share no window of a series.
    """
    records = [read_run(run) for run in runs]
    first = records[0]
    names = _names_of(runs, records)
    baseline = options.baseline_profile or names[-1]
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
    comparison = Comparison(
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
    if not options.overwrite:
        require_same_comparison(options.out, comparison)
    write_comparison(options.out, comparison)
    return comparison


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
            read_features = partial(store.table, candles, table_columns(profile))  # as a second run would
            seconds = timeit.repeat(read_features, number=1, repeat=3)
            model["seconds"][WARM] = round(statistics.median(seconds), 6)
    return {**measurement, "matmul_gflop_per_s": matmul_speed(seconds=1.0)["gflop_per_s"]}


def _report(event: Event) -> None:
    if isinstance(event, EpochEnded):
        send_message(f"{event.series}: epoch {event.record.epoch} of {event.num_epochs}")
    elif isinstance(event, SeriesOutcome):
        send_message(f"{event.series}: {event.reason or 'done'}")


def make_board(options: ComparisonOptions) -> Board:
    """Put runs, baselines and files of forecasts on one board, and save it.

    Profile, series and source are those of the first run, unless options name others.

    Raises:
        ProfileError: If options belong to profiles that are trained.
        ArgumentError: If the folder holds anything but a board, or what is compared shares no window.
    """
    for name in _OF_TRAINING:
        if getattr(options, name):
            rule = "is for profiles, which are trained; a board compares what is there"
            raise contradiction(f"param:{name}", listed(options.profiles), rule)
    require_board_folder(options.out, "param:out")
    runs = [name for name in options.profiles if is_run(name)]
    profile: Profile | str = "frontier"  # divides the candles where no run does
    series = list(options.series)
    source = options.source
    if runs:
        record = read_run(Path(runs[0]))
        profile = recorded_profile(record.profile, where=f"profile of {runs[0]}")
        series = series or list(record.done)
        is_default = source == ComparisonOptions.model_fields["source"].default
        source = record.source if is_default and not options.data_dir else source
    board = evaluate(
        {name: _method(name) for name in options.profiles},
        options.data_dir or source,
        profile,
        series=series or list(COMPARED_SERIES),
    )
    board.save(options.out)
    return board


def _method(name: str) -> Any:
    """Return what `evaluate` takes: a file of forecasts as a frame, anything else as it is called."""
    if not is_forecasts_file(name):
        return name
    frame = pd.read_parquet(name) if name.endswith(".parquet") else pd.read_csv(name)
    if {*FORECASTS_COLUMNS} <= {*frame}:  # as the command `export` writes it
        return long_forecasts(frame, None)
    return frame
