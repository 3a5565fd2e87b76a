"""The options of a run and of a back-test: checked, and turned into what is to be done."""

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from v8.base.errors import DataError, ProfileError, UnknownSeriesError, listed
from v8.base.records import AtLeastOne, Flag, Options
from v8.base.registry import Named, Registry, added_entries, load_plugins, make_entries, read_list
from v8.base.storage import home
from v8.data.market.series import Series, load_universe, series_advice
from v8.data.market.sources import (
    SOURCES,
    CandleSource,
    ChecksSeries,
    NamesUnread,
    OpenedSource,
    ReadsFolder,
    SeriesLister,
    dataset_of,
    open_source,
    with_nearest,
)
from v8.profile.profile import TABLES_PLACE, Profile, load_profile
from v8.runs.events import TRACKERS, followers

if TYPE_CHECKING:
    from v8.runs.backtest import Backtest
    from v8.runs.events import RunObserver
    from v8.runs.plan import Engine, Plan


SMOKE_EPOCHS: Final = 1  # epochs of a smoke run: it shows that every stage works, not how good models are
SMOKE_SPARE_BARS: Final = 130  # candles beyond the fewest that work, so that a few holes do no harm
SMOKE_PRECISION: Final = "float32"  # measuring which is fastest takes longer than it trains


MAX_BARS: Final = 10_000_000
"""Candles per series that can be asked for, more than any has; as many as a profile may use."""

_SERIES: Final = "BTCUSDT-15m"  # stands for the name of a series in `--help`

# Groups of flags in `--help`.
_MODELS: Final = "What to train"
_CANDLES: Final = "Candles"
_MACHINE: Final = "Machine"
_FOLDER: Final = "Run folder"
_RESULTS: Final = "Results"


@dataclass(frozen=True)
class Placement:
    """Where a run trains."""

    num_workers: int  # processes, at least 1
    fleet_size: int | None  # most series of one program, at least 1; None measures what suits the GPU
    is_measured: bool = False  # whether `num_workers` only bounds what a measurement before training decides
    gpus: tuple[str, ...] = ()  # one a process, as CUDA_VISIBLE_DEVICES names it; none: they share all
    device: str = "auto"  # one of `v8.runs.engines.DEVICES`; engines of other machines look for it there
    address: str | None = None  # where an engine of other machines finds them; None uses this one
    is_alone: bool = field(default=False, repr=False)
    """Whether no process may evaluate beside the one that trains on a GPU."""
    variables: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Environment variables of every process of the run, see `v8.base.hardware.process_variables`."""


@dataclass(frozen=True)
class EngineKind(Named):
    """A kind of engine that can be chosen."""

    open: Callable[[Placement], "Engine"]
    package: str | None = None  # what it needs, by the name that pip knows; None needs nothing
    is_elsewhere: bool = False  # whether it may train on other machines, at an address


_DESCRIPTIONS: Final = [*read_list("v8.runs", "engines.yaml"), *added_entries("engines")]

ENGINES: Final = Registry("engine", make_entries(EngineKind, _DESCRIPTIONS, "open"))
"""Every kind of engine by its name."""

SeriesNames = Annotated[tuple[str, ...], Flag("Repeatable. Default: all.", _SERIES, group=_MODELS)]
UniverseFile = Annotated[Path | None, Flag("A file that lists series.", "FILE.yaml", group=_MODELS)]
SourceName = Annotated[str, Flag("Where candles come from.", "|".join(SOURCES), group=_CANDLES)]
DataFolder = Annotated[Path | None, Flag("Folder of CSV, Parquet, Feather or JSON.", "DIR", group=_CANDLES)]
TablesFolder = Annotated[Path | None, Flag("Tables of profiles. Default: V8_TABLES.", "DIR", group=_CANDLES)]
MostEpochs = Annotated[AtLeastOne | None, Flag("Most epochs. Default: the profile's.", "N", group=_MODELS)]
Device = Annotated[str, Flag("What computes; gpu refuses all else.", "auto|cpu|gpu", group=_MACHINE)]
Workers = Annotated[int | str, Flag("Processes that train at the same time.", "auto|N", group=_MACHINE)]
FleetSize = Annotated[int | str, Flag("Series that train as one program.", "auto|N", group=_MACHINE)]
EngineName = Annotated[str, Flag("What trains: this machine, or others.", "|".join(ENGINES), group=_MACHINE)]
Repository = Annotated[str | None, Flag("Publish it to the Hub in the end.", "USER/NAME", group=_RESULTS)]
ClusterAddress = Annotated[
    str | None, Flag("Where an engine finds other machines.", "HOST:PORT|auto", group=_MACHINE)
]


class RunOptions(Options):
    """Every option of a run. None stands for the default of the profile or of the machine."""

    profile: Annotated[
        str,
        Flag(
            "PROFILE: a shipped name or a file; --list says for whom each is. Default: frontier.",
            "NAME|FILE",
            word="PROFILE",
            group=_MODELS,
        ),
    ] = "frontier"
    series: SeriesNames = ()
    universe: UniverseFile = None
    source: SourceName = "vision"
    data_dir: DataFolder = None
    tables: TablesFolder = None
    bars: Annotated[
        int | None, Flag("Newest candles per series. Default: the profile's.", "N", group=_MODELS)
    ] = None
    epochs: MostEpochs = None
    precision: Annotated[
        str | None,
        Flag("Default: the profile's.", "auto|float32|mixed_float16|mixed_bfloat16", group=_MACHINE),
    ] = None
    no_mixed_precision: Annotated[bool, Flag("The same as --precision float32.", group=_MACHINE)] = False
    device: Device = "auto"
    workers: Workers = "auto"
    fleet_size: FleetSize = "auto"
    engine: EngineName = "local"
    address: ClusterAddress = None
    runs: Annotated[Path, Flag("Folder of all run folders.", "DIR", group=_FOLDER)] = Path("runs")
    fresh: Annotated[
        bool, Flag("Start a new run; the old ones stay as they are.", is_once=True, group=_FOLDER)
    ] = False
    resume: Annotated[bool, Flag("Continue the run that is there; this is done anyway.", group=_FOLDER)] = (
        False
    )
    smoke: Annotated[bool, Flag("A tiny budget for every series, to see that all works.", group=_MODELS)] = (
        False
    )
    redo: Annotated[
        tuple[str, ...],
        Flag(
            "Train a series again and keep its old files; repeat for more.",
            _SERIES,
            is_once=True,
            group=_FOLDER,
        ),
    ] = ()
    drop: Annotated[
        tuple[str, ...],
        Flag(
            "Take a series out of the run and keep its files; repeat.", _SERIES, is_once=True, group=_FOLDER
        ),
    ] = ()
    track: Annotated[
        tuple[str, ...], Flag("Keep curves for it; repeat.", "|".join(TRACKERS), group=_RESULTS)
    ] = ()
    publish: Repository = None
    importance: Annotated[bool, Flag("Measure how much each kind of input adds.", group=_RESULTS)] = False
    onnx: Annotated[bool, Flag("Write model.onnx, too, to forecast without TensorFlow.", group=_RESULTS)] = (
        False
    )
    evaluate: Annotated[
        bool,
        Flag(
            "Evaluate models on the test span, or only make them forecast.",
            names=("--evaluate/--no-evaluate",),
            group=_RESULTS,
        ),
    ] = True
    plugin: tuple[Path, ...] = ()  # without a `Flag`: `with_plugins` of `v8/cli/app.py` adds one

    def resolved_profile(self) -> Profile:
        """Return the profile with the bars, epochs and precision of these options; few for a smoke run.

        Raises:
            ProfileError: If there is no such profile, or parameters contradict each other.
        """
        self._refuse_contradictions()
        profile = load_profile(self.profile)
        bars = self.bars
        epochs = self.epochs
        precision = "float32" if self.no_mixed_precision else self.precision
        if self.smoke:
            from v8.data.windows import fewest_bars  # noqa: PLC0415 - usage errors come before it

            bars = fewest_bars(profile) + SMOKE_SPARE_BARS if bars is None else bars
            epochs = SMOKE_EPOCHS if epochs is None else epochs
            precision = SMOKE_PRECISION if precision is None else precision
        return profile.with_budget(newest_bars=bars, epochs=epochs, precision=precision)

    def _refuse_contradictions(self) -> None:
        if self.fresh and self.resume:
            raise contradiction("param:fresh", "param:resume", "starts a new run")
        if self.fresh and self.drop:
            raise contradiction("param:drop", "param:fresh", "takes a series out of a run that is there")
        if self.series and {*self.series} <= {*self.drop}:  # of several, those that are left are trained
            names = listed(self.series)
            raise contradiction(f"param:drop {names}", f"param:series {names}", "takes series out of the run")
        for name in self.redo:
            if name in self.drop:
                raise contradiction(f"param:drop {name}", f"param:redo {name}", "takes it out of the run")
        if self.publish and not self.evaluate:
            raise contradiction("param:publish", "param:evaluate turned off", "publishes what was evaluated")
        if self.no_mixed_precision and self.precision not in (None, "float32"):
            other = f"param:precision {self.precision}"
            raise contradiction("param:no_mixed_precision", other, "trains in float32")


class ModelsOptions(Options):
    """Which models a command is about, and where their candles come from."""

    run: Annotated[
        Path,
        Flag(
            "RUN, named by an option.",
            "RUN",
            word="RUN",
            word_help="A folder of a run, a back-test, or of pulled models; also --run RUN.",
        ),
    ]
    series: Annotated[tuple[str, ...], Flag("Only this one; repeat for more. Default: all.", _SERIES)] = ()
    source: Annotated[str | None, Flag("Default: the run's.", "|".join(SOURCES))] = None
    data_dir: DataFolder = None
    tables: TablesFolder = None

    def series_names(self) -> list[str]:
        """Return the checked names of the series; none stands for all."""
        return [str(series) for series in chosen_series(self.series) or ()]

    def source_opener(self, place: Path) -> Callable[[str], OpenedSource]:
        """Return a function that opens candles for the models of a place, by the source that a model names.

        Folders that are left out are those that the run of the models recorded.
        """

        def open_named(name: str) -> OpenedSource:
            from v8.runs.backtest import recorded_folders  # noqa: PLC0415 - usage errors first

            chosen = self.source or name
            recorded = recorded_folders(place)
            data_dir = self.data_dir
            tables = self.tables
            if data_dir is None and chosen == name and chosen in SOURCES and SOURCES[chosen].reads_folder:
                data_dir = recorded.data_dir
            if tables is None and TABLES_PLACE not in os.environ:
                tables = recorded.tables
            require_tables_folder(tables)
            return OpenedSource(open_source(chosen, data_dir=data_dir), tables)

        return open_named


@dataclass(frozen=True)
class PreparedRun:
    """A run that only has to be begun."""

    plan: "Plan"  # what is to be done
    source: CandleSource  # where candles come from
    engine: "Engine"  # what trains
    trackers: "Sequence[RunObserver]"  # what keeps its losses by epoch
    requested: Sequence[Series]  # those that the user named; none: all that there are
    is_smoke: bool  # whether its budget is too tiny for its errors to say anything
    repo: str | None  # repository of the Hub that it is published to in the end; None: it is not
    candle_words: Sequence[str]  # flags by which later commands find the folders of its candles and tables

    @classmethod
    def from_options(cls, options: RunOptions, command: str) -> "PreparedRun":
        """Check the options, and turn them into a plan, a source and an engine, before candles are read.

        `command` is the command line that continues the run, for the run's record and for messages.

        Whether the repository of the Hub can be written is checked by callers that carry the run out. A
        series that the source lacks fails when its candles are read; only `missing_series`, which a dry run
        calls, finds it earlier.

        Raises:
            V8Error: If one of the options cannot mean anything, or what it names is not there.
        """
        home()  # a user without a folder for caches is refused here, not at the first series
        _check_places(options)
        load_plugins(options.plugin)  # the profile may use what they register
        profile = options.resolved_profile()
        requested = chosen_series(options.series, options.universe)

        from v8.forecaster.shared_models import require_onnx_packages  # noqa: PLC0415
        from v8.runs.engines import choose_engine  # noqa: PLC0415
        from v8.runs.plan import Plan, Recipe  # noqa: PLC0415
        from v8.runs.run_folder import locate_run  # noqa: PLC0415 - these take a second; usage errors first

        require_tables_folder(options.tables)
        source = open_source(options.source, data_dir=options.data_dir)
        # The newest run of this profile is continued; `--fresh` begins a folder with the next number.
        path = locate_run(options.runs, profile.name, _folder_suffix(options), is_fresh=options.fresh)
        dropped = tuple(Series.parse(name) for name in options.drop)
        series = _series_of_run(path, source, requested, dropped)
        redone = _redone_series(options.redo, series)
        if options.onnx:
            require_onnx_packages("param:onnx")
        engine = choose_engine(
            options.engine,
            device=options.device,
            workers=options.workers,
            fleet_size=options.fleet_size,
            address=options.address,
        )
        recipe = Recipe(
            profile,
            is_publishable=source.is_publishable,
            dataset=dataset_of(source),
            is_evaluated=options.evaluate,
            has_importance=options.importance,
            has_onnx=options.onnx,
        )
        plan = Plan(
            recipe=recipe,
            path=path,
            series=dict.fromkeys(series, "pending"),  # `as_recorded` finds out how far each is
            command=command,
            redone=redone,
            dropped=dropped,
            tables=options.tables,
        ).as_recorded()
        if plan.todo:
            require_covariate_files([profile], options.tables)
        return cls(
            plan=plan,
            source=source,
            engine=engine,
            trackers=followers(options.track),
            requested=requested or (),
            is_smoke=options.smoke,
            repo=options.publish,
            candle_words=options.words("data_dir", "tables"),
        )

    def missing_series(self) -> list[tuple[str, str]]:
        """Return which of the named series the source lacks, and why, as far as it can say beforehand."""
        if not isinstance(self.source, ChecksSeries):
            return []
        missing: list[tuple[str, str]] = []
        for series in self.plan.todo:
            if series not in self.requested:  # a source need not have all of the default universe
                continue
            try:
                self.source.require(series)
            except UnknownSeriesError as error:
                candidates = [*load_universe(), *self.plan.series]
                error_with_advice = with_nearest(error, series, self.source.name, candidates)
                missing.append((str(series), str(error_with_advice)))
            except DataError as error:
                missing.append((str(series), str(error)))
        return missing


def _check_places(options: RunOptions) -> None:
    """Refuse a folder of runs that is a file, and a repository that is no USER/NAME, before any work.

    Raises `ProfileError` for them.
    """
    if options.runs.is_file():
        rule = "is the folder of all run folders"
        got = f"the file {options.runs}"
        fix = "Name a folder; it is made if it is missing"
        raise ProfileError(where="param:runs", rule=rule, got=got, fix=fix)
    repo = options.publish
    if repo and not re.fullmatch(r"[^/\s]+/[^/\s]+", repo):
        rule = "is USER/NAME, a repository on the Hub"
        fix = f"Write for example param:publish you/{repo.strip('/').rpartition('/')[2] or 'models'}"
        raise ProfileError(where="param:publish", rule=rule, got=repr(repo), fix=fix)


def _folder_suffix(options: RunOptions) -> str:
    """Return what the name of the run folder has after the profile's name."""
    suffix = "-smoke" if options.smoke else ""
    return suffix if options.evaluate else f"{suffix}-unevaluated"


def _series_of_run(
    path: Path, source: CandleSource, requested: tuple[Series, ...] | None, dropped: tuple[Series, ...]
) -> tuple[Series, ...]:
    """Return the series of a call, without the dropped ones.

    Where none is requested, these are all of the source, or, with dropped ones, all that the run at `path`
    has recorded.
    """
    if not dropped:
        return served_series(source) if requested is None else requested
    remaining = series_without(path, dropped)
    if requested is None:
        return remaining
    return tuple(series for series in requested if series not in dropped)


def _redone_series(names: Sequence[str], selected: Sequence[Series]) -> tuple[Series, ...]:
    """Return the series to train again, which must be among the selected ones."""
    redone = tuple(Series.parse(name) for name in names)
    others = [series for series in redone if series not in selected]
    if others:
        rule = "names series that this call trains"
        fix = "Name it with param:series too, or leave it out"
        raise ProfileError(where="param:redo", rule=rule, got=listed(others), fix=fix)
    return redone


def require_tables_folder(folder: Path | None) -> None:
    """Refuse a folder of users' tables that is none; None stands for that of `V8_TABLES`.

    Raises:
        ProfileError: If there is no such folder.
    """
    if folder is not None and not folder.is_dir():
        rule = "is the folder of the tables that a profile names under covariates"
        got = f"{folder}, which is no folder"
        raise ProfileError(where="param:tables", rule=rule, got=got, fix="Name the folder, not the file")


def require_covariate_files(profiles: Sequence[Profile], folder: Path | None) -> None:
    """Read the tables that profiles name, before candles are fetched and anything is trained.

    Args:
        profiles: The profiles.
        folder: Folder of the tables; that of `V8_TABLES` when None.

    Raises:
        ProfileError: If there is no such folder.
        DataError: If a table cannot be read, or is not what the profile says.
    """
    require_tables_folder(folder)
    tables = [table for profile in profiles for table in profile.covariates if not table.is_of_source]
    if tables:
        from v8.data.market.companions import read_user_table  # noqa: PLC0415 - pandas, which few profiles need

        for table in tables:
            read_user_table(table, folder)


def chosen_series(names: Sequence[str] | None, universe: Path | None = None) -> tuple[Series, ...] | None:
    """Return the series that are named, or those of a universe file; None where the user chose none.

    Raises:
        ProfileError: If a name is malformed or given twice, or there are names and a file.
    """
    if not names:
        return load_universe(universe) if universe else None
    if universe:
        raise contradiction("param:universe", "param:series", "chooses the series")
    chosen = tuple(Series.parse(name) for name in names)
    for series, count in Counter(chosen).items():
        if count > 1:
            rule = "each series is given once"
            got = f"{series} {count} times"
            raise ProfileError(where="param:series", rule=rule, got=got, fix="Remove the repetition")
    return chosen


def series_without(path: Path, dropped: Sequence[Series]) -> tuple[Series, ...]:
    """Return the series of a run without some of them, which it must have.

    Raises:
        ArtifactError: If there is no run, or it is damaged.
        ProfileError: If the run does not have one of them.
    """
    from v8.runs.run_folder import FRESH, read_run  # noqa: PLC0415 - usage errors come before it

    names = list(read_run(path, FRESH).series)
    unknown = [str(series) for series in dropped if str(series) not in names]
    if unknown:
        fix = series_advice(unknown[0], names, "Name series of this run")
        rule = f"takes series out of {path}, which has {listed(names) or 'none'}"
        raise ProfileError(where="param:drop", rule=rule, got=listed(unknown), fix=fix)
    recorded = [Series.parse(name) for name in names]
    return tuple(series for series in recorded if series not in dropped)


def served_series(source: CandleSource) -> tuple[Series, ...]:
    """Return all series of a source that lists them, and say so; else the default universe.

    Files that might hold candles of others, and are not read, are named, too.

    Raises:
        DataError: If the source has none.
    """
    if not isinstance(source, SeriesLister):
        return load_universe()
    series = source.series()
    place = "in the folder" if isinstance(source, ReadsFolder) else f"of the source {source.name}"
    sys.stderr.write(f"Found {len(series)} series {place}: {listed(series)}\n")
    unread = source.unread() if isinstance(source, NamesUnread) else None
    if unread:
        sys.stderr.write(f"{unread}\n")
    return series


def contradiction(parameter: str, other: str, rule: str) -> ProfileError:
    """Return the error for a parameter that makes no sense together with another one; the rule is its own."""
    got = f"{other} together with it"
    return ProfileError(where=parameter, rule=rule, got=got, fix="Leave one of them out")


NumFolds = Annotated[int, Field(ge=1, le=1_000)]
NumBars = Annotated[int, Field(ge=1, le=MAX_BARS)]
HistoryBars = Annotated[
    NumBars | None, Flag("Newest candles that the folds lie in. Default: all there are.", "N")
]
FoldBars = Annotated[AtLeastOne | None, Flag("Candles of each fold. Default: the profile's.", "N")]


class BacktestOptions(Options):
    """Every option of a back-test. None stands for the default of the profile or of the machine."""

    profile: Annotated[
        str,
        Flag("PROFILE: a shipped name or a file. Default: frontier.", "NAME|FILE", word="PROFILE"),
    ] = "frontier"
    folds: Annotated[NumFolds, Flag("Folds, spread over all history.", "K")] = 6
    series: SeriesNames = ()
    universe: UniverseFile = None
    source: SourceName = "vision"
    data_dir: DataFolder = None
    tables: TablesFolder = None
    history: HistoryBars = None
    bars: FoldBars = None
    epochs: MostEpochs = None
    seeds: Annotated[AtLeastOne, Flag("Repeat with other seeds; how far numbers spread.", "N")] = 1
    device: Device = "auto"
    workers: Workers = "auto"
    fleet_size: FleetSize = "auto"
    engine: EngineName = "local"
    address: ClusterAddress = None
    out: Annotated[Path | None, Flag("Its folder. Default: backtests/PROFILE.", "DIR")] = None


@dataclass(frozen=True)
class PreparedBacktest:
    """A back-test that only has to be begun."""

    path: Path  # its folder
    backtest: "Backtest"  # what is to be done
    source: CandleSource  # where candles come from
    engine: "Engine"  # what trains
    num_seeds: int = 1  # how many seeds, the profile's own included

    @classmethod
    def from_options(cls, options: BacktestOptions, command: str) -> "PreparedBacktest":
        """Check the options, and turn them into a back-test, a source and an engine.

        Args:
            options: The options.
            command: The command line that continues, for the record.

        Raises:
            V8Error: If one of the options cannot mean anything, or what it names is not there.
        """
        profile = load_profile(options.profile).with_budget(newest_bars=options.bars, epochs=options.epochs)
        requested = chosen_series(options.series, options.universe)
        source = open_source(options.source, data_dir=options.data_dir)
        require_covariate_files([profile], options.tables)
        series = requested or served_series(source)

        from v8.runs.backtest import Backtest  # noqa: PLC0415 - after what is refused in a moment
        from v8.runs.engines import choose_engine  # noqa: PLC0415

        engine = choose_engine(
            options.engine,
            device=options.device,
            workers=options.workers,
            fleet_size=options.fleet_size,
            address=options.address,
        )
        return cls(
            path=options.out or Path("backtests") / profile.name,
            backtest=Backtest(
                profile=profile,
                series=series,
                num_folds=options.folds,
                history_bars=options.history,
                command=command,
                tables=options.tables,
            ),
            source=source,
            engine=engine,
            num_seeds=options.seeds,
        )
