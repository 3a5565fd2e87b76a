"""`python -m v8 compare-profiles`: what each profile costs and what it is worth, measured on equal data."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Exit, Option, echo

from v8.cli import options as cli
from v8.errors import ProfileError, SeriesError
from v8.invocation import command
from v8.market.sources.source import SeriesLister
from v8.own_files import require_own
from v8.profile import load_profile, profile_names
from v8.runs.options import asked_series, contradiction, require_tables, served_series
from v8.wording import Table

if TYPE_CHECKING:
    from v8.comparison.page import Comparison

COMPARED_SERIES = ("BTCUSDT-15m", "BTCUSDT-1h")
RECOMMENDED = "aligned"


def all_profiles() -> list[str]:
    """List every shipped profile, the recommended one last: ratios refer to it."""
    return [*sorted({*profile_names()} - {RECOMMENDED}), RECOMMENDED]


def compare_profiles(
    profiles: list[str] | None = Option(
        None, metavar="NAME|FILE|RUN ...", help="Or run folders. Default: all."
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
    folds: int | None = Option(None, metavar="K", min=1, max=1_000, help="Judge each over so many folds."),
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
    runs = [Path(name) for name in names if (Path(name) / "run.json").is_file()]
    if 0 < len(runs) < len(names):
        rule = "names profiles, which are trained, or run folders, which are compared as they are"
        got = f"{len(runs)} run folders among {len(names)} names"
        raise ProfileError(where="--profiles", rule=rule, got=got, fix="Leave out one kind")

    from v8.cli.printing import print_lines
    from v8.comparison.measurement import compare, compare_runs
    from v8.comparison.page import Comparison, require_same_comparison
    from v8.machine.choices import measured_workers
    from v8.runs.engines import choose_device, choose_engine, place

    words = command(*sys.argv[1:])
    if runs:
        comparison = compare_runs(runs, baseline=baseline_profile, command=words)
        if not overwrite:
            require_same_comparison(out, comparison)
        _show(comparison, out)
        return
    candles = cli.open_candles(source, data_dir, tables)
    chosen = [load_profile(name) for name in names]
    for one in chosen:
        require_tables(one)
    asked = asked_series(series, universe)
    if asked is None and not isinstance(candles, SeriesLister):
        asked = asked_series(COMPARED_SERIES)
    echo(f"Preparing to compare {', '.join(one.name for one in chosen)}.")
    if folds:
        from v8.cli.runs import compare_folds
        from v8.runs.execution import AskedBacktest

        train_all = choose_engine(cli.DEFAULT_ENGINE, device, "auto", fleet_size)
        budgets = (one.with_budget(newest_bars=bars, epochs=epochs) for one in chosen)
        those = asked or served_series(candles)
        wanted = [AskedBacktest(one, those, folds, None, words) for one in budgets]
        compare_folds(wanted, candles, train_all, out)
        return
    if device != "gpu":  # the processes that measure look for that; this one would take it from them
        choose_device(device)
    placement = place(device, "auto", fleet_size)
    num_workers = placement.num_workers
    planned = Comparison(
        command=words,
        source=candles.name,
        is_demo=not candles.is_publishable,
        series=tuple(map(str, asked or served_series(candles))),
        num_bars={one.name: one.newest_bars if bars is None else bars for one in chosen},
        epochs=None if full else 1 if epochs is None else epochs,
        num_repeats=repeat,
        baseline=baseline_profile or chosen[-1].name,
        num_workers=measured_workers(num_workers) if placement.is_measured else num_workers,
    )
    if not overwrite:
        require_same_comparison(out, planned)
    size = placement.fleet_size if fleet_size != "auto" else None
    training = {"source": source, "data_dir": data_dir, "device": device, "fleet_size": size}
    _show(compare(planned, chosen, source=candles, out=out, training=training, tell=print_lines), out)


def _check_out(out: Path, *, is_overwriting: bool) -> None:
    """Refuse a folder that is none, or whose files v8 did not write, before hours of measuring."""
    from v8.comparison.page import comparison_files

    if out.exists() and not out.is_dir():
        fix = "Choose another place for --out"
        raise ProfileError(where="--out", rule="is a folder", got=f"the file {out}", fix=fix)
    for file in comparison_files(out):
        require_own("--out", file, is_overwriting=is_overwriting)


def _show(comparison: "Comparison", out: Path) -> None:
    """Write the files of a comparison and print its tables."""
    from v8.cli.printing import print_lines, print_reasons, print_table
    from v8.comparison.page import advice, budget_sentence, cautions, contents, write_comparison
    from v8.reports.markup import DEMO_WARNING, Html

    files = write_comparison(out, comparison)
    print_lines(*([DEMO_WARNING] if comparison.is_demo else []))
    print_lines(*advice(comparison), budget_sentence(comparison), *cautions(comparison))
    for part in (part for _, parts in contents(comparison) for part in parts if not isinstance(part, Html)):
        if isinstance(part, Table):
            print_table(part)
        else:
            print_lines(part)
    if comparison.failures:
        print_reasons("Failed profiles", sorted(comparison.failures.items()))
    print_lines(f"Written: {', '.join(map(str, files))}")
    if comparison.failures:
        raise Exit(SeriesError.exit_code)
