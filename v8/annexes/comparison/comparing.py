"""A comparison from its options to its files: what `compare-profiles` and `v8.compare` do.

Profiles are trained and compared (`PreparedComparison`), runs are compared (`compare_run_folders`); runs,
baselines and files of forecasts go on a board, as they are (`make_board`). The caller shows the result.
Modules that take a second to import are imported after what is refused in a moment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from v8.base.errors import ProfileError, listed
from v8.base.process import command
from v8.base.records import AtLeastOne, Flag, Options
from v8.base.storage import FORECASTS_COLUMNS, require_own
from v8.data.market.series import Series
from v8.data.market.sources.source import CandleSource, SeriesLister, open_source
from v8.profile.profile import Profile, load_profile, profile_names, recorded_profile
from v8.runs import options as run_options
from v8.runs.options import (
    NumBars,
    NumFolds,
    chosen_series,
    contradiction,
    require_covariate_files,
    served_series,
)

if TYPE_CHECKING:
    from v8.annexes.comparison.results import Comparison
    from v8.api.board import Board
    from v8.runs.options import Placement


class ComparisonOptions(Options):
    """Every option of a comparison. None stands for the default of the profiles or of the machine."""

    profiles: Annotated[
        tuple[str, ...],
        Flag(
            "Or runs, baselines, files of forecasts.",
            "NAME|FILE|RUN ...",
            names=("--profiles", "--profile", "--run"),
        ),
    ] = ()
    series: Annotated[
        tuple[str, ...],
        Flag("One; repeat for more. Default: BTCUSDT-15m and BTCUSDT-1h.", "BTCUSDT-15m"),
    ] = ()
    universe: run_options.UniverseFile = None
    epochs: Annotated[AtLeastOne | None, Flag("Most epochs of each. Default: 1, for speed.", "N")] = None
    full: Annotated[bool, Flag("Each profile's own epochs, for skill: hours on a CPU.")] = False
    repeat: Annotated[AtLeastOne, Flag("Measurements a profile.", "K")] = 1
    baseline_profile: Annotated[str | None, Flag("What ratios refer to. Default: last.", "NAME")] = None
    source: run_options.SourceName = "vision"
    data_dir: run_options.DataFolder = None
    tables: run_options.TablesFolder = None
    bars: Annotated[NumBars | None, Flag("Newest candles of each. Default: the profile's.", "N")] = None
    folds: Annotated[NumFolds | None, Flag("Evaluate each over so many folds.", "K")] = None
    device: run_options.Device = "auto"
    fleet_size: run_options.FleetSize = "auto"
    out: Annotated[Path, Flag("Folder for compare.json, .csv, .html, runs.", "DIR")] = Path("comparison")
    overwrite: Annotated[bool, Flag("Replace another comparison, or files of others.")] = False


COMPARED_SERIES: Final = ("BTCUSDT-15m", "BTCUSDT-1h")


@dataclass(frozen=True)
class FinishedComparison:
    """A comparison, and its files."""

    comparison: "Comparison"
    files: Sequence[Path]


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

    def finish(self, command: str, notify: Callable[[str], None]) -> FinishedComparison:
        """Train every profile in every repeat, compare the runs, and write the files.

        Args:
            command: The command line, for the record.
            notify: Gets a line about each step.
        """
        from v8.annexes.comparison.measurement import TrainingOptions, compare  # noqa: PLC0415 - see the top
        from v8.annexes.comparison.page import require_same_comparison, write_comparison  # noqa: PLC0415
        from v8.annexes.comparison.results import Comparison, formulas_of  # noqa: PLC0415

        options = self.options
        placement = _place(options.device, options.fleet_size)
        planned = Comparison(
            command=command,
            source=self.source.name,
            is_demo=not self.source.is_publishable,
            series=tuple(str(one_series) for one_series in self.series),
            num_bars={profile.name: options.bars or profile.newest_bars for profile in self.profiles},
            epochs=_epoch_budget(options),
            num_repeats=options.repeat,
            baseline=options.baseline_profile or self.profiles[-1].name,
            formulas=formulas_of(self.profiles),
            num_workers=_num_workers(placement),
        )
        if not options.overwrite:
            require_same_comparison(options.out, planned)
        training = TrainingOptions(
            source=options.source,
            data_dir=options.data_dir,
            tables=options.tables,
            device=options.device,
            fleet_size=placement.fleet_size if options.fleet_size != "auto" else None,
        )
        measured = compare(
            planned, self.profiles, source=self.source, out=options.out, training=training, notify=notify
        )
        return FinishedComparison(measured, write_comparison(options.out, measured))


def check_places(options: ComparisonOptions) -> list[Path]:
    """Refuse, before hours of measuring, what cannot be written; return the run folders that are compared.

    There are none where profiles are compared.

    Raises:
        ProfileError: If nothing is named, options contradict each other, or `out` is no folder, or holds
            files of others.
    """
    from v8.annexes.comparison.page import comparison_files  # noqa: PLC0415 - see the top

    if options.full and options.epochs is not None:
        other = f"param:epochs {options.epochs}"
        raise contradiction("param:full", other, "runs each profile's own epochs")
    out = options.out
    if out.exists() and not out.is_dir():
        fix = "Choose another place for param:out"
        raise ProfileError(where="param:out", rule="is a folder", got=f"the file {out}", fix=fix)
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
    return [Path(name) for name in options.profiles if is_run(name)]


def is_run(name: str | Path) -> bool:
    """Return whether a name is that of a run folder."""
    return (Path(name) / "run.json").is_file()


def compare_run_folders(runs: Sequence[Path], options: ComparisonOptions, command: str) -> FinishedComparison:
    """Compare existing run folders, and write the files; `command` is the command line, for the record."""
    from v8.annexes.comparison.measurement import compare_runs  # noqa: PLC0415 - see the top
    from v8.annexes.comparison.page import require_same_comparison, write_comparison  # noqa: PLC0415

    comparison = compare_runs(runs, baseline=options.baseline_profile, command=command)
    if not options.overwrite:
        require_same_comparison(options.out, comparison)
    return FinishedComparison(comparison, write_comparison(options.out, comparison))


def _place(device: str, fleet_size: int | str) -> "Placement":
    """Decide where the profiles are trained."""
    from v8.runs.engines import choose_device, local_placement  # noqa: PLC0415 - see the top

    if device != "gpu":  # only the measuring processes look for a GPU; this one would keep it from them
        choose_device(device)
    return local_placement("auto", fleet_size, device)


def _num_workers(placement: "Placement") -> int:
    """Return how many processes a run on this machine uses in parallel."""
    from v8.runs.machine import measured_workers  # noqa: PLC0415 - see the top

    if placement.is_measured:
        return measured_workers(placement.num_workers)
    return placement.num_workers


def _epoch_budget(options: ComparisonOptions) -> int | None:
    """Return the most epochs of each profile; None for each profile's own."""
    if options.full:
        return None
    return 1 if options.epochs is None else options.epochs


_OF_TRAINING: Final = ("epochs", "full", "tables", "folds", "baseline_profile", "universe")
"""Options that belong to profiles, which are trained."""

_DEFAULT_PROFILE: Final = "frontier"  # divides the candles where no run does


def is_board(names: Sequence[str]) -> bool:
    """Return whether names go on a board: there is a file of forecasts, a baseline, or a run with others.

    Profiles alone, and runs alone, are compared by what they cost, too.

    Raises:
        ProfileError: If a profile, which would be trained, is among the others.
    """
    runs = [name for name in names if is_run(name)]
    others = [name for name in names if name not in runs]
    shipped = profile_names()
    if not (runs and others) and all(name in shipped or not _forecasts(name) for name in others):
        return False
    trained = [name for name in others if not _forecasts(name)]
    if trained:
        rule = "names profiles, which are trained, or what is compared as it is: runs, baselines, files"
        got = f"{listed(trained)} among {len(names)} names"
        raise ProfileError(where="param:profiles", rule=rule, got=got, fix="Leave out one kind")
    return True


def _forecasts(name: str) -> bool:
    """Return whether a name is that of a baseline or of a file of forecasts."""
    from v8.model.baselines.baselines import BASELINES  # noqa: PLC0415 - see the top

    return _is_file(name) or (name in BASELINES and BASELINES[name].is_installed())


def _is_file(name: str) -> bool:
    return Path(name).suffix in (".csv", ".parquet") and Path(name).is_file()


def make_board(options: ComparisonOptions) -> "Board":
    """Put runs, baselines and files of forecasts on one board, and save it.

    Profile, series and source are those of the first run, unless options name others.

    Raises:
        ProfileError: If options belong to profiles that are trained.
        ArgumentError: If the folder holds anything but a board, or what is compared shares no window.
    """
    from v8.api.board import require_board_folder  # noqa: PLC0415 - see the top
    from v8.api.scores import evaluate  # noqa: PLC0415
    from v8.runs.run_folder import read_run  # noqa: PLC0415

    for name in _OF_TRAINING:
        if getattr(options, name):
            rule = "is for profiles, which are trained; a board compares what is there"
            raise contradiction(f"param:{name}", listed(options.profiles), rule)
    require_board_folder(options.out, "param:out")
    runs = [name for name in options.profiles if is_run(name)]
    profile: Profile | str = _DEFAULT_PROFILE
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
    if not _is_file(name):
        return name
    import pandas as pd  # noqa: PLC0415 - see the top

    frame = pd.read_parquet(name) if name.endswith(".parquet") else pd.read_csv(name)
    if {*FORECASTS_COLUMNS} <= {*frame}:  # as the command `export` writes it
        from v8.api.results import long_forecasts  # noqa: PLC0415 - see the top

        return long_forecasts(frame, None)
    return frame
