"""`python -m v8.run`: the main job, from candles to trained, judged and saved models."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from v8.cli.device import choose_engine
from v8.cli.options import (
    DEFAULT_ENGINE,
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
    asked_series,
    require_tables,
    served_series,
    take_tables,
)
from v8.cli.publish import check_publishing, publish_run
from v8.errors import DataError, ProfileError, SeriesError, listed
from v8.invocation import command
from v8.machine.interruption import set_last_words
from v8.market.series import Series
from v8.profile import Profile, load_profile
from v8.runs.tracking import TRACKERS, check_trackers

if TYPE_CHECKING:
    from v8.market.sources.source import CandleSource
    from v8.runs.execution import Summary, TrainAll
    from v8.runs.plan import Plan

SMOKE_EPOCHS = 1
"""Epochs of a smoke run: it proves the way, not the model."""

SMOKE_PRECISION = "float32"
"""Its number format: measuring which is fastest takes longer than it trains."""

EXIT_DATA = 3

DEFAULT_SOURCE = "vision"


def run(
    profile: Annotated[
        str,
        typer.Option("--profile", metavar="NAME|FILE", help="What to train: a shipped name or a YAML file."),
    ] = "aligned",
    series: SeriesOption = None,
    universe: UniverseOption = None,
    source: SourceOption = DEFAULT_SOURCE,
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
    engine: EngineOption = DEFAULT_ENGINE,
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
    if fresh and resume:
        raise _contradiction("--fresh", "--resume", "starts a new run")
    if no_mixed_precision and precision not in (None, "float32"):
        raise _contradiction("--no-mixed-precision", f"--precision {precision}", "trains in float32")
    precision = "float32" if no_mixed_precision else precision
    budget = _budgeted(load_profile(profile), bars, epochs, precision, is_smoke=smoke)
    asked = asked_series(series, universe)

    from v8.artifacts.run_folder import locate_run
    from v8.cli.printing import print_newer, print_plan
    from v8.market.sources.source import open_source
    from v8.runs.plan import make_plan

    take_tables(tables)
    candle_source = open_source(source, data_dir=data_dir)
    chosen = asked or served_series(candle_source)
    redone = _redone(redo or (), chosen)
    train_all = choose_engine(engine, device, workers, fleet_size, address)
    path = locate_run(runs, f"{budget.name}-smoke" if smoke else budget.name, is_fresh=fresh)
    plan = make_plan(budget, chosen, path)
    if plan.todo:
        require_tables(budget)
    if dry_run:
        print_plan(plan, candle_source)
        _exit_on_lacking(candle_source, plan, asked or ())
        return
    if track:
        check_trackers(track)
    if publish:
        check_publishing(publish, candle_source.name, is_publishable=candle_source.is_publishable)
    summary = _carry_out(plan, candle_source, train_all, track or (), redone)
    folder = ["--data-dir", str(data_dir)] if data_dir else []
    folder += ["--tables", str(tables)] if tables else []
    print_newer(summary.newer, command("update", str(path), *folder), f"{_words_to_continue()} --fresh")
    candles = folder if source == DEFAULT_SOURCE else ["--source", source, *folder]
    is_worth_it = candle_source.is_publishable and not smoke and not publish
    _print_next(plan, summary, candles, is_worth_publishing=is_worth_it)
    _exit_on_failures(summary, path, publish)
    if publish:
        publish_run(path, publish)


def _exit_on_lacking(source: CandleSource, plan: Plan, named: Sequence[Series]) -> None:
    """Say which of the series that were named the source lacks, and exit as the run would."""
    from v8.cli.printing import print_reasons
    from v8.market.sources.source import ChecksSeries

    lacking: list[tuple[str, str]] = []
    if not isinstance(source, ChecksSeries):
        return
    for series in (one.series for one in plan.todo if one.series in named):
        try:
            source.require(series)
        except DataError as error:
            lacking.append((str(series), str(error)))
    if lacking:
        print_reasons(f"{len(lacking)} series would fail", lacking)
        raise typer.Exit(EXIT_DATA if len(lacking) == len(plan.series) else SeriesError.exit_code)


def _contradiction(flag: str, other: str, rule: str) -> ProfileError:
    return ProfileError(where=flag, rule=rule, got=f"{other} beside it", fix="Leave one of them out")


def _budgeted(
    profile: Profile, bars: int | None, epochs: int | None, precision: str | None, *, is_smoke: bool
) -> Profile:
    """Apply the flags; `--smoke` fills in those that were not given."""
    if is_smoke:
        from v8.runs.plan import smoke_bars

        bars = smoke_bars(profile) if bars is None else bars
        epochs = SMOKE_EPOCHS if epochs is None else epochs
        precision = SMOKE_PRECISION if precision is None else precision
    return profile.with_budget(newest_bars=bars, epochs=epochs, precision=precision)


def _redone(names: Sequence[str], chosen: Sequence[Series]) -> list[Series]:
    found = [Series.parse(name) for name in names]
    if strange := [one for one in found if one not in chosen]:
        raise ProfileError(
            where="--redo",
            rule="names series that this call trains",
            got=listed(strange),
            fix="Name it with --series too, or leave it out",
        )
    return found


def _carry_out(
    plan: Plan,
    source: CandleSource,
    train_all: TrainAll,
    trackers: Sequence[str],
    redone: Sequence[Series],
) -> Summary:
    from v8.artifacts.run_folder import RunFolder, RunRecord
    from v8.cli.printing import open_display, print_summary
    from v8.runs.events import Note, log_told_as_notes, told_once
    from v8.runs.execution import execute
    from v8.runs.outputs import write_outputs
    from v8.runs.plan import make_plan
    from v8.runs.tracking import TrackedRun, open_trackers

    words = _words_to_continue()
    begun = RunRecord.begin(plan.profile, source.name, source.is_publishable, words)
    tracked = TrackedRun(plan.path, plan.profile.model_dump(mode="json"), source.name)
    with RunFolder(plan.path, begun) as folder:
        for series in redone:
            folder.set_aside(series)
        plan = make_plan(plan.profile, [one.series for one in plan.series], plan.path)
        set_last_words(f"interrupted: {plan.path} is saved. Continue with: {words}")
        with (
            open_display(plan) as show,
            open_trackers(trackers, tracked, told_once(show)) as listen,
            log_told_as_notes(listen),
        ):
            summary = execute(plan, folder, source, train_all, listen)
            rows = write_outputs(plan.path, lambda error: listen(Note(str(error))))
        print_summary(summary, plan.path, rows)
    return summary


def _print_next(plan: Plan, summary: Summary, candles: Sequence[str], *, is_worth_publishing: bool) -> None:
    """Print what the finished models are good for, as commands to paste; `candles` names their source."""
    from v8.cli.printing import print_lines

    failed = {failure.series for failure in summary.failures}
    done = [str(one.series) for one in plan.series if one.series not in failed]
    if done:
        print_lines(f"Forecast: {command('predict', str(plan.path), '--series', done[0], *candles)}")
    if is_worth_publishing and not failed:
        print_lines(f"Publish: {command('publish', str(plan.path), '--repo', 'USER/NAME')}")


def _exit_on_failures(summary: Summary, run: Path, repo: str | None) -> None:
    if summary.failures:
        if repo:
            words = command("publish", str(run), "--repo", repo, "--partial")
            sys.stderr.write(f"not published, because some series failed. Publish the others with: {words}\n")
        raise typer.Exit(EXIT_DATA if summary.is_without_data else SeriesError.exit_code)


def _words_to_continue() -> str:
    """Return the command line of this process without what is done once, ready to be pasted."""
    words = [
        word
        for before, word in pairwise(["", *sys.argv[1:]])
        if word not in ("--fresh", "--redo") and before != "--redo" and not word.startswith("--redo=")
    ]
    return command("run", *words) if Path(sys.argv[0]).name == "run.py" else command(*words)
