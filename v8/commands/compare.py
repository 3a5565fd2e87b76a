"""`python -m v8 compare-profiles`: what each profile costs and what it is worth, measured on equal data."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from v8.commands.device import choose_device, place
from v8.commands.options import (
    DataDirOption,
    DeviceOption,
    FleetSizeOption,
    SourceOption,
    chosen_series,
)
from v8.errors import ProfileError, SeriesError
from v8.profile import load_profile

if TYPE_CHECKING:
    from v8.engine.comparison import Setting
    from v8.engine.placement import Placement

DEFAULT_PROFILES = ("v7", "stable", "aligned")
DEFAULT_SERIES = ("BTCUSDT-15m", "BTCUSDT-1h")
DEFAULT_EPOCHS = 1


def compare_profiles(
    profiles: Annotated[
        list[str] | None,
        typer.Option(
            "--profiles",
            metavar="NAME|FILE ...",
            help="Profiles to compare, one or several. Default: v7 stable aligned.",
        ),
    ] = None,
    more_profiles: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME|FILE ...]", help="Further profiles.")
    ] = None,
    series: Annotated[
        list[str] | None,
        typer.Option(
            "--series",
            metavar="BTCUSDT-15m",
            help="One series; repeat for more. Default: BTCUSDT-15m and BTCUSDT-1h.",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", metavar="N", help="Most epochs of every profile. Default: 1, for speed."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Each profile's own epochs, for skill; this takes hours on a CPU.")
    ] = False,
    repeat: Annotated[int, typer.Option("--repeat", metavar="K", min=1, help="Measurements a profile.")] = 1,
    baseline_profile: Annotated[
        str | None,
        typer.Option(
            "--baseline-profile", metavar="NAME", help="What ratios refer to. Default: the last profile."
        ),
    ] = None,
    source: SourceOption = "vision",
    data_dir: DataDirOption = None,
    bars: Annotated[
        int | None,
        typer.Option("--bars", metavar="N", help="Newest candles per series. Default: each profile's."),
    ] = None,
    device: DeviceOption = "auto",
    fleet_size: FleetSizeOption = "auto",
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for compare.json, .csv, .html and runs.")
    ] = Path("comparison"),
) -> None:
    """Measure profiles side by side on the same candles: time per stage, speed, memory, skill."""
    names = [*(profiles or ()), *(more_profiles or ())] or list(DEFAULT_PROFILES)
    budget = _budget(epochs, is_full=full)
    plain = [load_profile(name) for name in names]
    chosen = chosen_series(series or DEFAULT_SERIES)

    from v8.engine.comparison import Setting
    from v8.market.sources.source import open_source

    placement = _place(device, fleet_size)
    setting = Setting(
        profiles=tuple(profile.with_budget(newest_bars=bars, epochs=budget) for profile in plain),
        own_epochs={profile.name: profile.training.epochs for profile in plain},
        series=chosen,
        source=open_source(source, data_dir=data_dir),
        data_dir=data_dir,
        epochs=budget,
        num_repeats=repeat,
        baseline=baseline_profile or plain[-1].name,
        out=out,
        command=shlex.join(["python", "-m", "v8", *sys.argv[1:]]),
        fleet_size=placement.fleet_size if fleet_size != "auto" else None,
        needs_gpu=device == "gpu",
        num_workers=_num_workers(placement),
    )
    _carry_out(setting)


def _budget(epochs: int | None, *, is_full: bool) -> int | None:
    if is_full and epochs is not None:
        raise ProfileError(
            where="--full",
            rule="runs each profile's own epochs",
            got=f"--epochs {epochs} beside it",
            fix="Leave one of them out",
        )
    if is_full:
        return None
    return DEFAULT_EPOCHS if epochs is None else epochs


def _place(device: str, fleet_size: str) -> Placement:
    """Decide where the measuring processes compute; this one must not take the GPU from them."""
    if device != "gpu":
        choose_device(device)
    return place(device, "auto", fleet_size)


def _num_workers(placement: Placement) -> int:
    """Return the processes that a run would have at work here; the projection counts with them."""
    from v8.engine.core_probe import measured_workers

    return measured_workers(placement.num_workers) if placement.is_measured else placement.num_workers


def _carry_out(setting: Setting) -> None:
    from v8.commands.printing import print_lines, print_reasons, print_table
    from v8.engine.comparison import compare
    from v8.reports.comparison_page import write_comparison
    from v8.reports.comparison_results import assumption
    from v8.reports.comparison_tables import (
        budget_sentence,
        cautions,
        claim_table,
        cost_table,
        download_sentence,
        ratio_table,
    )
    from v8.reports.page import DEMO_WARNING

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's stop is a Ctrl-C
    comparison = compare(setting, print_lines)
    files = write_comparison(setting.out, comparison)
    tables = [cost_table(comparison), ratio_table(comparison), claim_table(comparison)]
    for shown in tables if comparison.measurements else ():
        if shown:
            print_table(shown.title, shown.head, shown.rows)
    if comparison.is_demo:
        print_lines(DEMO_WARNING)
    print_lines(budget_sentence(comparison), *cautions(comparison))
    print_lines(assumption(comparison), download_sentence(comparison))
    if comparison.failures:
        print_reasons("Failed profiles", sorted(comparison.failures.items()))
    print_lines(f"Written: {', '.join(str(path) for path in files)}")
    if comparison.failures:
        raise typer.Exit(SeriesError.exit_code)
