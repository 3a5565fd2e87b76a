"""`python -m v8 compare-profiles`: time, memory and errors of each profile, measured on equal data."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Exit, Option, echo

from v8.annexes.comparison.naming import formulas_of, marked
from v8.base.errors import ProfileError, SeriesError
from v8.base.invocation import command
from v8.base.own_files import require_own
from v8.base.wording import Table, plural
from v8.cli import shared as cli
from v8.data.market.series import Series
from v8.data.market.sources.source import CandleSource, SeriesLister
from v8.profile.profile import Profile, load_profile, profile_names
from v8.runs.options import chosen_series, contradiction, require_covariate_files, served_series

if TYPE_CHECKING:
    from v8.annexes.comparison.results import Comparison
    from v8.runs.engine_kinds import Placement

COMPARED_SERIES = ("BTCUSDT-15m", "BTCUSDT-1h")
REFERENCE = "aligned"


def all_profiles() -> list[str]:
    """List every shipped profile, the one that ratios refer to last."""
    return [*sorted({*profile_names()} - {REFERENCE}), REFERENCE]


def compare_profiles(
    profiles: list[str] | None = Option(
        None,
        "--profiles",
        "--profile",
        "--run",
        metavar="NAME|FILE|RUN ...",
        help="Or run folders. Default: all.",
    ),
    more_profiles: list[str] | None = Argument(None, metavar="[NAME|FILE|RUN ...]", help="Further ones."),
    series: list[str] | None = cli.some_series("One; repeat for more. Default: BTCUSDT-15m and BTCUSDT-1h."),
    universe: cli.UniverseOption = None,
    epochs: int | None = Option(None, metavar="N", help="Most epochs of each. Default: 1, for speed."),
    full: bool = Option(False, "--full", help="Each profile's own epochs, for skill: hours on a CPU."),
    repeat: int = Option(1, metavar="K", min=1, help="Measurements a profile."),
    baseline_profile: str | None = Option(None, metavar="NAME", help="What ratios refer to. Default: last."),
    source: cli.SourceOption = "vision",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    bars: int | None = cli.some_bars("Newest candles of each. Default: the profile's."),
    folds: int | None = Option(None, metavar="K", min=1, max=1_000, help="Evaluate each over so many folds."),
    device: cli.DeviceOption = "auto",
    fleet_size: cli.FleetSizeOption = "auto",
    out: Path = Option(Path("comparison"), metavar="DIR", help="Folder for compare.json, .csv, .html, runs."),
    overwrite: bool = Option(False, "--overwrite", help="Replace another comparison, or files of others."),
    lang: cli.LangOption = None,
) -> None:
    """Measure profiles side by side on the same candles: time per stage, speed, memory, skill.

    Examples:
        v8 compare-profiles frontier aligned --series BTCUSDT-15m
        v8 compare-profiles runs/frontier runs/aligned
        v8 compare-profiles frontier range_paths --folds 6
    """
    names = [*(profiles or ()), *(more_profiles or ())] or all_profiles()
    if full and epochs is not None:
        raise contradiction("param:full", f"param:epochs {epochs}", "runs each profile's own epochs")
    _check_out(out, is_overwriting=overwrite)
    runs = _run_folders(names)
    if runs:
        _compare_runs(runs, out, baseline=baseline_profile, is_overwriting=overwrite)
        return
    candles = cli.open_candles(source, data_dir, tables)
    loaded = [load_profile(name) for name in names]
    for profile in loaded:
        require_covariate_files(profile)
    requested = chosen_series(series, universe)
    if requested is None and not isinstance(candles, SeriesLister):
        requested = chosen_series(COMPARED_SERIES)
    formulas = formulas_of(loaded)
    echo(f"Preparing to compare {', '.join(marked(profile.name, formulas) for profile in loaded)}.")
    if folds:
        budgeted = [profile.with_budget(newest_bars=bars, epochs=epochs) for profile in loaded]
        _compare_back_tests(
            budgeted,
            requested or served_series(candles),
            candles,
            out,
            num_folds=folds,
            device=device,
            fleet_size=fleet_size,
        )
        return
    from v8.annexes.comparison.measurement import compare
    from v8.annexes.comparison.measuring import TrainingOptions
    from v8.annexes.comparison.page import require_same_comparison
    from v8.annexes.comparison.results import Comparison
    from v8.base.terminal import print_lines

    placement = _place(device, fleet_size)
    planned = Comparison(
        command=command(*sys.argv[1:]),
        source=candles.name,
        is_demo=not candles.is_publishable,
        series=tuple(str(one_series) for one_series in requested or served_series(candles)),
        num_bars={profile.name: profile.newest_bars if bars is None else bars for profile in loaded},
        epochs=_epoch_budget(epochs, is_full=full),
        num_repeats=repeat,
        baseline=baseline_profile or loaded[-1].name,
        formulas=formulas,
        num_workers=_num_workers(placement),
    )
    if not overwrite:
        require_same_comparison(out, planned)
    training = TrainingOptions(
        source=source,
        data_dir=data_dir,
        device=device,
        fleet_size=placement.fleet_size if fleet_size != "auto" else None,
    )
    measured = compare(planned, loaded, source=candles, out=out, training=training, notify=print_lines)
    _write_and_print(measured, out)


def _place(device: str, fleet_size: str) -> "Placement":
    """Decide where the profiles are trained."""
    from v8.runs.engines import choose_device, place

    if device != "gpu":  # only the measuring processes look for a GPU; this one would keep it from them
        choose_device(device)
    cli.settle_process(device)
    return place(device, "auto", fleet_size)


def _num_workers(placement: "Placement") -> int:
    """Return how many processes a run on this machine uses in parallel."""
    from v8.runs.machine.choices import measured_workers

    if placement.is_measured:
        return measured_workers(placement.num_workers)
    return placement.num_workers


def _epoch_budget(epochs: int | None, *, is_full: bool) -> int | None:
    """Return the most epochs of each profile; None for each profile's own."""
    if is_full:
        return None
    return 1 if epochs is None else epochs


def _run_folders(names: Sequence[str]) -> list[Path]:
    """Return the names as run folders; empty if they are names or files of profiles.

    Raises:
        ProfileError: If there are both.
    """
    runs = [Path(name) for name in names if (Path(name) / "run.json").is_file()]
    if 0 < len(runs) < len(names):
        rule = "names profiles, which are trained, or run folders, which are compared as they are"
        got = f"{len(runs)} run folders among {len(names)} names"
        raise ProfileError(where="--profiles", rule=rule, got=got, fix="Leave out one kind")
    return runs


def _compare_runs(runs: Sequence[Path], out: Path, *, baseline: str | None, is_overwriting: bool) -> None:
    """Compare existing run folders."""
    from v8.annexes.comparison.measurement import compare_runs
    from v8.annexes.comparison.page import require_same_comparison

    comparison = compare_runs(runs, baseline=baseline, command=command(*sys.argv[1:]))
    if not is_overwriting:
        require_same_comparison(out, comparison)
    _write_and_print(comparison, out)


def _compare_back_tests(
    profiles: Sequence[Profile],
    series: Sequence[Series],
    candles: CandleSource,
    out: Path,
    *,
    num_folds: int,
    device: str,
    fleet_size: str,
) -> None:
    """Compare profiles by a back-test of each over the same folds, and print their pools in one table."""
    from v8.base.terminal import print_lines, print_table
    from v8.publish.report.backtest import POOL_NOTE, pool_table
    from v8.runs.backtest import BacktestOptions
    from v8.runs.engines import choose_engine

    cli.settle_process(device)
    engine = choose_engine(cli.DEFAULT_ENGINE, device, "auto", fleet_size)
    results_by_profile = {}
    for profile in profiles:
        backtest = BacktestOptions(
            profile=profile,
            series=series,
            num_folds=num_folds,
            history_bars=None,
            command=command(*sys.argv[1:]),
        )
        shown_name = marked(profile.name, formulas_of([profile]))
        results_by_profile[shown_name] = cli.evaluate_folds(out / profile.name, backtest, candles, engine)
    title = f"{plural(len(results_by_profile), 'profile')} over {plural(num_folds, 'fold')}"
    print_table(pool_table(results_by_profile, title))
    print_lines(POOL_NOTE)
    if any(results.failures for results in results_by_profile.values()):
        raise Exit(SeriesError.exit_code)


def _check_out(out: Path, *, is_overwriting: bool) -> None:
    """Refuse, before hours of measuring, an `--out` that is no folder, or holds files of others."""
    from v8.annexes.comparison.page import comparison_files

    if out.exists() and not out.is_dir():
        fix = "Choose another place for --out"
        raise ProfileError(where="--out", rule="is a folder", got=f"the file {out}", fix=fix)
    for file in comparison_files(out):
        require_own("--out", file, is_overwriting=is_overwriting)


def _write_and_print(comparison: "Comparison", out: Path) -> None:
    """Write the files of a comparison and print its tables."""
    from v8.annexes.comparison.page import (
        budget_sentence,
        cautions,
        contents,
        failure_rows,
        formula_notes,
        write_comparison,
    )
    from v8.annexes.comparison.recommendation import advice, error_cautions
    from v8.base.terminal import print_lines, print_reasons, print_table
    from v8.publish.report.markup import DEMO_WARNING, Html

    files = write_comparison(out, comparison)
    lines = [DEMO_WARNING] if comparison.is_demo else []
    lines += [*error_cautions(comparison), *advice(comparison), *formula_notes(comparison)]
    lines += [budget_sentence(comparison), *cautions(comparison)]
    print_lines(*lines)
    for _, parts in contents(comparison):
        for part in parts:
            if isinstance(part, Table):
                print_table(part)
            elif not isinstance(part, Html):
                print_lines(part)
    if comparison.failures:
        print_reasons("Failed profiles", failure_rows(comparison))
    print_lines(f"Written: {', '.join(map(str, files))}")
    if comparison.failures:
        raise Exit(SeriesError.exit_code)
