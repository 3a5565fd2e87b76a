"""`v8.compare`, and what the command `compare-profiles` does as well, from its options to its files.

Profiles are trained and compared (`PreparedComparison`), runs are compared (`compare_run_folders`); runs,
baselines and files of forecasts go on a board, as they are (`make_board`). The caller shows the result.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from v8.annexes.comparison import COMPARED_SERIES, ComparisonOptions
from v8.annexes.comparison.measurement import PreparedComparison, compare_runs
from v8.annexes.comparison.page import comparison_files, require_same_comparison, write_comparison, written
from v8.annexes.comparison.results import Comparison
from v8.api.arguments import RawCandles, call_in_child, in_python, profile_file, series_list, source_of
from v8.api.board import Board, require_board_folder
from v8.api.results import long_forecasts
from v8.api.scores import evaluate
from v8.base.child import send_message
from v8.base.errors import ProfileError, listed
from v8.base.process import command, watch_interrupts
from v8.base.records import AtLeastOne
from v8.base.storage import FORECASTS_COLUMNS, require_own
from v8.model.baselines.baselines import BASELINES
from v8.profile.profile import Profile, profile_names, recorded_profile
from v8.runs.options import NumBars, contradiction
from v8.runs.run_folder import read_run

_OF_TRAINING: Final = ("epochs", "full", "tables", "folds", "baseline_profile", "universe")
"""Options that belong to profiles, which are trained."""

_DEFAULT_PROFILE: Final = "frontier"  # divides the candles where no run does


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
        out: Folder for compare.json, compare.csv, compare.html and runs.
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
    places = [str(profile if _is_run(profile) else profile_file(profile)) for profile in profiles]
    are_runs = any(_is_run(profile) for profile in profiles)
    source = {} if are_runs else source_of(candles, names)
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


def _is_run(profile: str | Path | Profile) -> bool:
    return not isinstance(profile, Profile) and is_run(profile)


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
        ProfileError: If nothing is named, options contradict each other, or `out` is no folder, or holds
            files of others.
    """
    if options.full and options.epochs is not None:
        other = f"param:epochs {options.epochs}"
        raise contradiction("param:full", other, "runs each profile's own epochs")
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
    return [Path(name) for name in options.profiles if is_run(name)]


def is_run(name: str | Path) -> bool:
    """Return whether a name is that of a run folder."""
    return (Path(name) / "run.json").is_file()


def compare_run_folders(runs: Sequence[Path], options: ComparisonOptions, command: str) -> Comparison:
    """Compare existing run folders, and write the files; `command` is the command line, for the record."""
    comparison = compare_runs(runs, baseline=options.baseline_profile, command=command)
    if not options.overwrite:
        require_same_comparison(options.out, comparison)
    write_comparison(options.out, comparison)
    return comparison


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
        raise ProfileError(
            where="param:profiles",
            rule="names profiles, which are trained, or what is compared as it is: runs, baselines, files",
            got=f"{listed(trained)} among {len(names)} names",
            fix="Leave out one kind",
        )
    return True


def _forecasts(name: str) -> bool:
    """Return whether a name is that of a baseline or of a file of forecasts."""
    return _is_file(name) or (name in BASELINES and BASELINES[name].is_installed())


def _is_file(name: str) -> bool:
    return Path(name).suffix in (".csv", ".parquet") and Path(name).is_file()


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
    frame = pd.read_parquet(name) if name.endswith(".parquet") else pd.read_csv(name)
    if {*FORECASTS_COLUMNS} <= {*frame}:  # as the command `export` writes it
        return long_forecasts(frame, None)
    return frame
