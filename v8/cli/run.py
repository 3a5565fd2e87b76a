"""`python -m v8.run`: the main job, from candles to trained, judged and saved models; and `report`."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from v8.cli.options import (
    AddressOption,
    DataDirOption,
    DeviceOption,
    EngineOption,
    EpochsOption,
    FleetSizeOption,
    SeriesOption,
    SourceOption,
    TablesOption,
    UniverseOption,
    WorkersOption,
)
from v8.cli.publish import check_publishing, publish_run
from v8.errors import DataError, SeriesError, StorageError, V8Error
from v8.invocation import command
from v8.machine.interruption import set_last_words
from v8.runs.options import PreparedRun, RunOptions
from v8.runs.tracking import TRACKERS

if TYPE_CHECKING:
    from v8.runs.execution import Summary


def run(
    profile: Annotated[
        str,
        typer.Option("--profile", metavar="NAME|FILE", help="What to train: a shipped name or a YAML file."),
    ] = "aligned",
    series: SeriesOption = None,
    universe: UniverseOption = None,
    source: SourceOption = "vision",
    data_dir: DataDirOption = None,
    tables: TablesOption = None,
    bars: Annotated[
        int | None,
        typer.Option("--bars", metavar="N", help="Newest candles per series. Default: the profile's."),
    ] = None,
    epochs: EpochsOption = None,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            metavar="auto|float32|mixed_float16|mixed_bfloat16",
            help="Number format of training. Default: the profile's.",
        ),
    ] = None,
    no_mixed_precision: Annotated[
        bool, typer.Option("--no-mixed-precision", help="The same as --precision float32.")
    ] = False,
    device: DeviceOption = "auto",
    workers: WorkersOption = "auto",
    fleet_size: FleetSizeOption = "auto",
    engine: EngineOption = "local",
    address: AddressOption = None,
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder of all run folders.")] = Path(
        "runs"
    ),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new run beside the old ones; nothing is deleted.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run that is there; this is done anyway.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and its estimated time; do nothing.")
    ] = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="A tiny budget for every series, to see that everything works.")
    ] = False,
    redo: Annotated[
        list[str] | None,
        typer.Option(
            "--redo",
            metavar="BTCUSDT-15m",
            help="Train a series anew and keep its old files; repeat for more.",
        ),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            "--track", metavar="|".join(TRACKERS), help="Keep curves for a tracker; repeat for more."
        ),
    ] = None,
    publish: Annotated[
        str | None,
        typer.Option("--publish", metavar="USER/NAME", help="Publish to the Hub when every series is done."),
    ] = None,
) -> None:
    """Train, judge and save a model for every series; the same call again continues or skips."""
    given = {name: value for name, value in locals().items() if value is not None and name != "dry_run"}
    prepared = RunOptions(**given, command=_words_to_continue()).prepared()
    if dry_run:
        _preview(prepared)
        return
    summary = carry_out(prepared)
    if summary.exit_code:
        raise typer.Exit(summary.exit_code)


def carry_out(prepared: PreparedRun) -> Summary:
    """Do what a run is asked for, and print what came of it."""
    from v8.cli.printing import open_display, print_summary

    options, source, path = prepared.options, prepared.source, prepared.plan.path
    if options.publish:
        check_publishing(options.publish, source.name, is_publishable=source.is_publishable)
    set_last_words(f"interrupted: {path} is saved. Continue with: {options.command}")
    summary = prepared.carry_out(open_display)
    print_summary(summary, path, summary.rows)
    _print_next(prepared, summary)
    if options.publish and summary.failures:
        partly = command("publish", str(path), "--repo", options.publish, "--partial")
        sys.stderr.write(f"not published, because some series failed. Publish the others with: {partly}\n")
    elif options.publish:
        publish_run(path, options.publish)
    return summary


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, for example runs/aligned.")],
) -> None:
    """Redraw leaderboard.csv, report.html, its pictures and timing.json from the saved artefacts."""
    from v8.cli.printing import print_leaderboard
    from v8.runs.outputs import PICTURES_FOLDER, REPORT_FILE, draw_pictures, write_outputs

    errors: dict[str, V8Error] = {}

    def tell(error: V8Error) -> None:
        if str(error) not in errors:
            sys.stderr.write(f"error: {error}\n")
        errors[str(error)] = error

    # Nobody is asked for the folder: every file is whole, and a run at work draws its own again.
    print_leaderboard(write_outputs(run, tell, is_anew=True))
    try:
        if not any(isinstance(error, StorageError) for error in errors.values()):
            pictures = draw_pictures(run, tell)
            typer.echo(f"Report: {run / REPORT_FILE}")
            if pictures:
                names = ", ".join(path.name for path in pictures)
                typer.echo(f"Pictures: {names} in {run / PICTURES_FOLDER}")
    except StorageError as error:
        tell(error)
    if errors:
        raise typer.Exit(max(error.exit_code for error in errors.values()))


def _preview(prepared: PreparedRun) -> None:
    """Print the plan, and exit as the run would where the source lacks series that were named."""
    from v8.cli.printing import print_plan, print_reasons

    print_plan(prepared.plan, prepared.source)
    if lacking := prepared.lacking():
        print_reasons(f"{len(lacking)} series would fail", lacking)
        is_all = len(lacking) == len(prepared.plan.series)
        raise typer.Exit((DataError if is_all else SeriesError).exit_code)


def _print_next(prepared: PreparedRun, summary: Summary) -> None:
    """Print what can be done then, as commands to paste: newer candles, forecasts, publishing."""
    from v8.cli.printing import print_lines, print_newer

    options, plan = prepared.options, prepared.plan
    path, given = str(plan.path), {"--data-dir": options.data_dir, "--tables": options.tables}
    folders = [word for flag, place in given.items() if place for word in (flag, str(place))]
    print_newer(summary.newer, command("update", path, *folders), f"{options.command} --fresh")
    failed = {failure.series for failure in summary.failures}
    if done := [str(one.series) for one in plan.series if one.series not in failed]:
        is_default = options.source == RunOptions.model_fields["source"].default
        candles = [*([] if is_default else ["--source", options.source]), *folders]
        print_lines(f"Forecast: {command('predict', path, '--series', done[0], *candles)}")
    if prepared.source.is_publishable and not options.smoke and not options.publish and not failed:
        print_lines(f"Publish: {command('publish', path, '--repo', 'USER/NAME')}")


def _words_to_continue() -> str:
    """Return the command line of this process without what is done once, ready to be pasted."""
    words = [
        word
        for before, word in pairwise(["", *sys.argv[1:]])
        if word not in ("--fresh", "--redo") and before != "--redo" and not word.startswith("--redo=")
    ]
    return command("run", *words) if Path(sys.argv[0]).name == "run.py" else command(*words)
