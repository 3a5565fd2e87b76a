"""Every command of the line: its flags, what is refused at once, and who does the work.

What does the work is imported inside the commands, so that `--help` and usage errors answer at once.
"""

import importlib.util
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from typer import Argument, Exit, Option

from v8.cli import options as cli
from v8.errors import DataError, ProfileError, SeriesError
from v8.invocation import command
from v8.live import DEFAULT_LEDGER
from v8.market.series import load_universe
from v8.market.sources.source import SOURCES
from v8.profile import load_profile, network_outputs
from v8.runs.options import RunOptions, asked_series, contradiction, require_tables, served_series
from v8.runs.tracking import TRACKERS

LOOPBACK: Final = "127.0.0.1"

EXTRA: Final = ("starlette", "uvicorn")
"""Packages of the extra `app`."""


def run(
    profile: str = Option(
        "aligned", metavar="NAME|FILE", help="What to train: a shipped name or a YAML file."
    ),
    series: cli.SeriesOption = None,
    universe: cli.UniverseOption = None,
    source: cli.SourceOption = "vision",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    bars: int | None = Option(None, metavar="N", help="Newest candles per series. Default: the profile's."),
    epochs: cli.EpochsOption = None,
    precision: str | None = Option(
        None,
        metavar="auto|float32|mixed_float16|mixed_bfloat16",
        help="Number format of training. Default: the profile's.",
    ),
    no_mixed_precision: bool = Option(False, "--no-mixed-precision", help="The same as --precision float32."),
    device: cli.DeviceOption = "auto",
    workers: cli.WorkersOption = "auto",
    fleet_size: cli.FleetSizeOption = "auto",
    engine: cli.EngineOption = cli.DEFAULT_ENGINE,
    address: cli.AddressOption = None,
    runs: Path = Option(Path("runs"), metavar="DIR", help="Folder of all run folders."),
    fresh: bool = Option(False, "--fresh", help="Start a new run beside the old ones; nothing is deleted."),
    resume: bool = Option(False, "--resume", help="Continue the run that is there; this is done anyway."),
    dry_run: bool = Option(False, "--dry-run", help="Print the plan and its estimated time; do nothing."),
    smoke: bool = Option(
        False, "--smoke", help="A tiny budget for every series, to see that everything works."
    ),
    redo: list[str] | None = cli.some_series("Train a series anew and keep its old files; repeat for more."),
    track: list[str] | None = Option(
        None, metavar="|".join(TRACKERS), help="Keep curves for a tracker; repeat for more."
    ),
    publish: str | None = Option(
        None, metavar="USER/NAME", help="Publish to the Hub when every series is done."
    ),
) -> None:
    """Train, judge and save a model for every series; the same call again continues or skips."""
    given = {name: value for name, value in locals().items() if value is not None and name != "dry_run"}
    prepared = RunOptions(**given, command=_words_to_continue()).prepared()

    from v8.cli.runs import carry_out, preview

    raise Exit(preview(prepared) if dry_run else carry_out(prepared).exit_code)


def _words_to_continue() -> str:
    """Return the command line of this process without what is done once, ready to be pasted."""
    words = [
        word
        for before, word in pairwise(["", *sys.argv[1:]])
        if word not in ("--fresh", "--redo") and before != "--redo" and not word.startswith("--redo=")
    ]
    return command("run", *words) if Path(sys.argv[0]).name == "run.py" else command(*words)


def data(
    action: str | None = Argument(
        None, metavar="[update]", help="Bring the store of --source live up to date."
    ),
    series: cli.SeriesOption = None,
    universe: cli.UniverseOption = None,
    source: cli.SourceOption = "vision",
    data_dir: cli.DataDirOption = None,
    # As in every shipped profile:
    bars: int = Option(8_000, metavar="N", min=1, max=cli.MAX_BARS, help="Newest candles per series."),
    accept_revision: bool = Option(
        False,
        "--accept-revision",
        help="Update, and take what the API says now of candles instead of what it said first.",
    ),
) -> None:
    """Download and check candles; print what was found, repaired and dropped."""
    action = "update" if accept_revision and action is None else action
    asked = asked_series(series, universe)
    if action not in (None, "update"):
        rule, fix = "takes the word update, or none", "Name series with --series"
        raise ProfileError(where=command("data"), rule=rule, got=repr(action), fix=fix)
    if action and (source not in {"vision", "live"} or data_dir):
        rule = "brings the store of --source live up to date"
        got = f"--source {source}" if source != "vision" else "--data-dir"
        raise ProfileError(where=command("data", "update"), rule=rule, got=got, fix="Leave it out")
    candles = cli.open_candles("live" if action else source, data_dir)
    chosen = asked or served_series(candles)

    from v8.cli.data import check_candles, update_store
    from v8.cli.printing import print_reasons
    from v8.market.sources.live import LiveSource

    if action and isinstance(candles, LiveSource):
        failures = update_store(candles, chosen, bars, accepts=accept_revision)
    else:
        failures = check_candles(candles, chosen, bars)
    if failures:
        print_reasons(f"{len(failures)} of {len(chosen)} series have no usable candles", failures)
        raise Exit(DataError.exit_code)


def features(
    series: cli.SeriesOption = None,
    profile: str | None = Option(
        None, metavar="NAME|FILE", help="Explain the features of a profile instead, one by one."
    ),
) -> None:
    """Show the feature columns kept on disk, per series, and where they lie; or explain a profile's."""
    if profile is not None and series:
        rule = "explains features, which are the same for every series"
        raise contradiction("--profile", "--series", rule)
    if profile is not None:
        explained = load_profile(profile)

        from v8.cli.data import print_features

        print_features(explained)
        return
    chosen = asked_series(series) or load_universe()

    from v8.cli.data import print_store

    print_store(chosen)


def report(run: cli.ThisRunArgument) -> None:
    """Redraw leaderboard.csv, report.html, its pictures and timing.json from the saved artefacts."""
    from v8.cli.runs import redraw

    raise Exit(redraw(run))


def publish(
    repo: str = Option(metavar="USER/NAME", help="Where to; made when it does not exist."),
    run: Path | None = Argument(None, metavar="[RUN]", help="A run folder, for example runs/aligned."),
    space: str | None = Option(
        None, metavar="USER/NAME", help="Publish the page of the models in --repo instead."
    ),
    private: bool = Option(False, "--private", help="Make a new repository one that only you can see."),
    dry_run: bool = Option(
        False, "--dry-run", help="Ask the Hub what would change and print it; send nothing."
    ),
    only_skilled: bool = Option(
        False,
        "--only-skilled",
        help="Hold back models that lose to the naive forecast, by more than chance. Those that only a "
        "better baseline beats are published and say so.",
    ),
    is_partial: bool = Option(
        False, "--partial", help="Publish a run although some of its series are not done."
    ),
    prune: bool = Option(False, "--prune", help="Remove published models that the run does not have."),
) -> None:
    """Publish a run's models with card, leaderboard and manifest; or the page that shows them."""
    if (run is None) == (space is None):
        where = command("publish")
        rule = "publishes a run folder to --repo, or the page of the models in --repo to --space"
        fix = "Write for example runs/aligned --repo you/fleet, and then --repo you/fleet --space you/page"
        raise ProfileError(where=where, rule=rule, got="neither" if run is None else "both", fix=fix)

    from v8.cli import hub

    if run is None:
        hub.publish_page(str(space), repo, is_private=private, is_dry=dry_run)
        return
    choice = {"is_partial": is_partial, "is_only_skilled": only_skilled}
    hub.publish_run(run, repo, is_dry=dry_run, is_private=private, is_pruning=prune, **choice)


def pull(
    repo: str = Option(metavar="USER/NAME", help="Where from."),
    series: list[str] | None = cli.some_series("One series; repeat for more. Default: all."),
    revision: cli.RevisionOption = None,
    offline: cli.OfflineOption = False,
) -> None:
    """Download published models, compare every file with the manifest, and say where they are."""
    from v8.cli.hub import pull_models

    pull_models(repo, series or (), revision, is_offline=offline)


def predict(
    folder: Path | None = Argument(
        None, metavar="FOLDER", help="A run folder such as runs/aligned, or one series' folder."
    ),
    repo: cli.RepoOption = None,
    series: list[str] | None = cli.some_series("Whose model to use; repeat for more."),
    is_all: bool = Option(False, "--all", help="Use the models of all series that are there."),
    universe: cli.UniverseOption = None,
    revision: cli.RevisionOption = None,
    offline: cli.OfflineOption = False,
    source: cli.SourceOption = "live",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    bars: int | None = Option(
        None,
        metavar="N",
        min=1,
        max=cli.MAX_BARS,
        help="Candles to read. Default: as many as the model needs.",
    ),
    allow_old: bool = Option(
        False, "--allow-old", help="Forecast even where every forecast bar has already closed."
    ),
    output_format: str = Option(
        "table", "--format", metavar="table|csv|json", help="How to print the forecast."
    ),
    plot: Path | None = Option(
        None,
        metavar="FILE.png|DIR",
        help="Draw candles and forecast; of several series a picture each, in a folder.",
    ),
) -> None:
    """Forecast the bars after the newest candle with saved or published models."""
    if (folder is None) == (repo is None):
        where, rule = command("predict"), "needs one place of the model: a folder, or --repo"
        fix = "Write for example runs/aligned --series BTCUSDT-15m, or --repo user/name"
        raise ProfileError(where=where, rule=rule, got="neither" if repo is None else "both", fix=fix)
    cli.require_one_of("--format", output_format, ("table", "csv", "json"))
    if is_all and (series or universe):
        raise contradiction("--all", "--series or --universe", "takes every series that is there")
    asked = tuple(map(str, asked_series(series, universe) or ()))
    is_many = is_all or universe is not None or len(asked) > 1
    if plot and is_many and not plot.is_dir():
        raise cli.no_folder("--plot", "is a folder that exists where several series are forecast", plot)
    if plot and not is_many:
        cli.require_picture(plot)
    candles = cli.open_candles(source, data_dir, tables)

    from v8.cli import forecasts as work

    told = work.forecast_each(
        repo or folder or "",
        asked,
        candles,
        revision=revision,
        is_offline=offline,
        is_many=is_many,
        bars=bars,
        is_any_age=allow_old,
    )
    work.PRINTERS[output_format](told.issued, is_many=is_many)
    if plot:
        work.draw(told.issued, plot, is_many=is_many)
    raise Exit(work.tell_refusals(told))


def update(
    run: cli.ThisRunArgument,
    when: str = Option("age", metavar="age|decay|always", help="Which models are stale."),
    max_age: float | None = Option(
        None,
        metavar="DAYS",
        min=0,
        help="Age from which on a model is stale. Default: the length of its test span.",
    ),
    series: list[str] | None = cli.some_series("One series; repeat for more. Default: all of the run."),
    source: str | None = Option(
        None,
        metavar="|".join(SOURCES),
        help="Where new candles come from. Default: the run's, live for the archive's.",
    ),
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    device: cli.DeviceOption = "auto",
    workers: cli.WorkersOption = "auto",
    fleet_size: cli.FleetSizeOption = "auto",
    engine: cli.EngineOption = cli.DEFAULT_ENGINE,
    address: cli.AddressOption = None,
    dry_run: bool = Option(False, "--dry-run", help="Print what is stale and would be trained; do nothing."),
    ledger: Path | None = Option(
        None,
        metavar="FILE",
        help="Where forecasts are recorded. Default: runs/ledger.sqlite, where there is one.",
    ),
    publish: str | None = Option(None, metavar="USER/NAME", help="Publish what serves then, in one commit."),
) -> None:
    """Train stale models anew on the newest candles; of old and new the better one serves."""
    asked = asked_series(series)

    from v8.cli import runs as work
    from v8.live.renewal import Renewal
    from v8.runs.engines import choose_engine

    rule = work.stale_rule(when, max_age)
    candles = cli.open_candles(source or work.newest_source(run), data_dir, tables)
    renewal = Renewal(run, candles, rule, command(*sys.argv[1:]), work.known_ledger(ledger))
    chosen = renewal.chosen(asked)
    require_tables(renewal.profile)
    train_all = choose_engine(engine, device, workers, fleet_size, address)
    if dry_run:
        work.preview_renewal(renewal, chosen)
        return
    if publish:
        from v8.cli import hub

        hub.check_publishing(publish, candles)
    is_whole = work.renew(renewal, chosen, train_all)
    if publish:
        hub.publish_run(run, publish, is_partial=True)
    if not is_whole:
        raise Exit(SeriesError.exit_code)


def forecast(
    run: cli.RunArgument = None,
    repo: cli.RepoOption = None,
    series: list[str] | None = cli.some_series("Only this one; repeat for more. Default: all."),
    every: bool = Option(False, "--every", help="Go on at every candle's close until Ctrl-C."),
    ledger: cli.LedgerOption = DEFAULT_LEDGER,
    source: cli.SourceOption = "live",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    revision: cli.RevisionOption = None,
    offline: cli.OfflineOption = False,
) -> None:
    """Issue forecasts into the ledger before their truth exists, and score those whose truth has come."""
    where, names = cli.one_place("forecast", run, repo), _names(series)
    if ledger != DEFAULT_LEDGER:
        cli.require_folder_of("--ledger", ledger)
    if not cli.open_candles(source, data_dir, tables).is_publishable:
        where, got = f"--source {source}", "a simulated market, which has none"
        raise ProfileError(where=where, rule="a ledger is about the future", got=got, fix="Use --source live")

    from v8.cli.forecasts import issue_forecasts
    from v8.live.watching import ServingModels

    find = partial(ServingModels, where, names, revision=revision, is_offline=offline)
    again = partial(cli.open_candles, source, data_dir)
    raise Exit(issue_forecasts(where, find, ledger, again, is_for_ever=every))


def track(
    run: cli.RunArgument = None,
    repo: cli.RepoOption = None,
    series: list[str] | None = cli.some_series("Only this one; repeat for more. Default: all."),
    ledger: cli.LedgerOption = DEFAULT_LEDGER,
    output_format: str = Option(
        "table", "--format", metavar="table|json|csv", help="How to print the record."
    ),
) -> None:
    """Print how issued forecasts turned out, beside the naive forecast and the best baseline."""
    where, names = cli.one_place("track", run, repo), _names(series)
    cli.require_one_of("--format", output_format, ("table", "json", "csv"))

    from v8.cli.record import print_record

    print_record(ledger, where, names, output_format)


def _names(series: Sequence[str] | None) -> list[str] | None:
    return [str(one) for one in asked_series(series) or ()] or None


def backtest(
    profile: str = Option(
        "frontier", metavar="NAME|FILE", help="What to judge: a shipped name or a YAML file."
    ),
    folds: int = Option(6, metavar="K", min=1, max=1_000, help="Seasons, spread over all history."),
    series: cli.SeriesOption = None,
    universe: cli.UniverseOption = None,
    source: cli.SourceOption = "vision",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    history: int | None = Option(
        None,
        metavar="N",
        min=1,
        max=cli.MAX_BARS,
        help="Newest candles per series that the folds lie in. Default: all there are.",
    ),
    bars: int | None = Option(
        None, metavar="N", help="Candles of each fold. Default: the profile's newest bars."
    ),
    epochs: cli.EpochsOption = None,
    device: cli.DeviceOption = "auto",
    workers: cli.WorkersOption = "auto",
    fleet_size: cli.FleetSizeOption = "auto",
    engine: cli.EngineOption = cli.DEFAULT_ENGINE,
    address: cli.AddressOption = None,
    out: Path | None = Option(
        None, metavar="DIR", help="Folder of the back-test. Default: backtests/PROFILE."
    ),
) -> None:
    """Judge a profile over many seasons, fitted anew for each; the same call again continues."""
    budget = load_profile(profile).with_budget(newest_bars=bars, epochs=epochs)
    asked = asked_series(series, universe)
    candles = cli.open_candles(source, data_dir, tables)
    require_tables(budget)
    chosen = asked or served_series(candles)

    from v8.cli.runs import judge_seasons
    from v8.runs.engines import choose_engine
    from v8.runs.execution import AskedBacktest

    train_all = choose_engine(engine, device, workers, fleet_size, address)
    wanted = AskedBacktest(budget, chosen, folds, history, command(*sys.argv[1:]))
    if judge_seasons(out or Path("backtests") / budget.name, wanted, candles, train_all).failures:
        raise Exit(SeriesError.exit_code)


def serve(
    run: cli.RunArgument = None,
    repo: cli.RepoOption = None,
    revision: cli.RevisionOption = None,
    offline: cli.OfflineOption = False,
    source: cli.SourceOption = "live",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    ledger: cli.LedgerOption = DEFAULT_LEDGER,
    host: str | None = Option(None, metavar="ADDRESS", help=f"Where to listen. Default: {LOOPBACK}."),
    port: int = Option(8008, metavar="N", min=0, max=65_535, help="0 takes any that is free."),
) -> None:
    """Show forecasts of the present, leaderboard and live record on a page with a JSON API."""
    where = cli.one_place("app", run, repo)
    if lacking := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        where, rule = command("app"), "needs the extra `app` of v8, a small server"
        fix = "Install it from a checkout of v8: python -m pip install '/path/to/checkout[app]'"
        raise ProfileError(where=where, rule=rule, got=f"no package {' and '.join(lacking)}", fix=fix)

    candles = cli.open_candles(source, data_dir, tables)

    from v8.cli.serve import serve_page

    serve_page(where, candles, ledger, (host, port), revision=revision, is_offline=offline)


def doctor(
    profile: str = Option("aligned", metavar="NAME|FILE", help="Whose network is measured."),
    is_json: bool = Option(False, "--json", help="Print one JSON document and nothing else."),
    seconds: float = Option(2.0, metavar="S", min=0.05, help="Time of each measurement."),
) -> None:
    """Examine this machine: driver, devices, speed of training, and the flags to choose."""
    chosen = load_profile(profile)
    network_outputs(chosen)  # or there is nothing to measure

    from v8.cli.doctor import examined

    raise Exit(examined(chosen, seconds, is_json=is_json))
