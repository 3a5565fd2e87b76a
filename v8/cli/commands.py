"""Every command: its flags, what it refuses before any work, and the module that does the work.

These modules are imported inside the commands, so that `--help` and usage errors answer quickly.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from typer import Argument, Exit, Option, echo

from v8.cli import options as cli
from v8.errors import DataError, ProfileError, SeriesError
from v8.invocation import command
from v8.ledger import DEFAULT_LEDGER
from v8.market.series import load_universe
from v8.net import report_waiting
from v8.profile import config_path, load_profile, network_outputs, profile_names
from v8.registry import require_package
from v8.runs.options import (
    PreparedRun,
    RunOptions,
    asked_series,
    contradiction,
    require_tables,
    served_series,
)
from v8.tracking import TRACKERS

APP_PACKAGES: Final = ("starlette", "uvicorn")
"""Packages of the extra `app`."""

_ONCE_FLAGS: Final = ("--redo", "--drop")
"""Flags of `run` with a value that hold for one call only."""


def run(
    profile: str = Option(
        RunOptions.model_fields["profile"].default,
        metavar="NAME|FILE",
        help="What to train: a shipped name or a file; --list says for whom each is.",
    ),
    series: cli.SeriesOption = None,
    universe: cli.UniverseOption = None,
    source: cli.SourceOption = "vision",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    bars: int | None = Option(None, metavar="N", help="Newest candles per series. Default: the profile's."),
    epochs: cli.EpochsOption = None,
    precision: str | None = Option(
        None, metavar="auto|float32|mixed_float16|mixed_bfloat16", help="Default: the profile's."
    ),
    no_mixed_precision: bool = Option(False, "--no-mixed-precision", help="The same as --precision float32."),
    device: cli.DeviceOption = "auto",
    workers: cli.WorkersOption = "auto",
    fleet_size: cli.FleetSizeOption = "auto",
    engine: cli.EngineOption = cli.DEFAULT_ENGINE,
    address: cli.AddressOption = None,
    runs: Path = Option(Path("runs"), metavar="DIR", help="Folder of all run folders."),
    fresh: bool = Option(False, "--fresh", help="Start a new run; the old ones stay as they are."),
    resume: bool = Option(False, "--resume", help="Continue the run that is there; this is done anyway."),
    dry_run: bool = Option(False, "--dry-run", help="Print the plan and its estimated time; do nothing."),
    is_list: bool = Option(False, "--list", help="Print for whom each profile is, and its cost."),
    opens: bool = Option(False, "--open", help="Open the report in the browser once there is one."),
    smoke: bool = Option(False, "--smoke", help="A tiny budget for every series, to see that all works."),
    redo: list[str] | None = cli.some_series("Train a series again and keep its old files; repeat for more."),
    drop: list[str] | None = cli.some_series("Take a series out of the run and keep its files; repeat."),
    track: list[str] | None = Option(None, metavar="|".join(TRACKERS), help="Keep curves for it; repeat."),
    publish: cli.PublishOption = None,
    lang: cli.LangOption = None,
    importance: bool = Option(False, "--importance", help="Measure how much each kind of input adds."),
    evaluate: bool = Option(
        True,
        "--evaluate/--no-evaluate",
        "--judge/--no-judge",  # its name in version 1.0
        help="Evaluate models on the test span, or only make them forecast.",
    ),
) -> None:
    """Train, evaluate and save a model for every series; the same call again continues or skips.

    Examples:
        v8 run --profile frontier --dry-run
        v8 run --profile frontier --series BTCUSDT-15m
        v8 run --source files --data-dir candles
        v8 run --profile frontier --publish you/models
    """
    if is_list:
        from v8.cli.printing import print_profiles

        print_profiles()
        return
    _start_run(
        PreparedRun.from_options(
            RunOptions(
                profile=profile,
                series=tuple(series or ()),
                universe=universe,
                source=source,
                data_dir=data_dir,
                tables=tables,
                bars=bars,
                epochs=epochs,
                precision=precision,
                no_mixed_precision=no_mixed_precision,
                device=device,
                workers=workers,
                fleet_size=fleet_size,
                engine=engine,
                address=address,
                runs=runs,
                fresh=fresh,
                resume=resume,
                smoke=smoke,
                redo=tuple(redo or ()),
                drop=tuple(drop or ()),
                track=tuple(track or ()),
                publish=publish,
                evaluate=evaluate,
                importance=importance,
                command=_words_to_continue(),
            )
        ),
        dry_run=dry_run,
        opens=opens,
    )


def _start_run(prepared: PreparedRun, *, dry_run: bool, opens: bool) -> NoReturn:
    """Carry out a run whose options are checked, or print its plan, and leave with its exit code."""
    echo(f"{'Planning' if dry_run else 'Preparing'} a run of {prepared.plan.profile.name}.")

    from v8.cli.runs import carry_out, preview  # after the line above: importing these takes seconds

    if dry_run:
        raise Exit(preview(prepared))
    raise Exit(carry_out(prepared, opens=opens).exit_code)


def _words_to_continue() -> str:
    """Return the command line that continues this run, ready to be pasted.

    It is the one of this process without --fresh, --redo and --drop, which must not happen twice.
    """
    words = ["run"] if Path(sys.argv[0]).name == "run.py" else []
    is_value_of_once_flag = False
    for word in sys.argv[1:]:
        is_once_flag = word in _ONCE_FLAGS
        has_value_inside = word.startswith(tuple(f"{flag}=" for flag in _ONCE_FLAGS))  # as in --redo=SERIES
        if not (is_once_flag or is_value_of_once_flag or has_value_inside or word == "--fresh"):
            words.append(word)
        is_value_of_once_flag = is_once_flag
    return command(*words)


def data(
    action: str | None = Argument(None, metavar="[update]", help="Bring the store of --source live to now."),
    series: cli.SeriesOption = None,
    universe: cli.UniverseOption = None,
    source: cli.SourceOption = "vision",
    data_dir: cli.DataDirOption = None,
    # As in every shipped profile:
    bars: int = Option(8_000, metavar="N", min=1, max=cli.MAX_BARS, help="Newest candles per series."),
    accept_revision: bool = Option(False, "--accept-revision", help="Update, taking what the API says now."),
) -> None:
    """Download and check candles; print what was found, repaired and dropped.

    Examples:
        v8 data --series BTCUSDT-15m
        v8 data --source files --data-dir candles
        v8 data update --universe mine.yaml
    """
    if accept_revision and action is None:
        action = "update"
    named_series = asked_series(series, universe)
    if action not in (None, "update"):
        rule = "takes the word update, or none"
        fix = "Name series with --series"
        raise ProfileError(where=command("data"), rule=rule, got=repr(action), fix=fix)
    if action and (source not in {"vision", "live"} or data_dir):
        rule = "brings the store of --source live up to date"
        got = f"--source {source}" if source != "vision" else "--data-dir"
        raise ProfileError(where=command("data", "update"), rule=rule, got=got, fix="Leave it out")
    if action:
        source = "live"
    candles = cli.open_candles(source, data_dir, message=f"Reading candles from {source}.")
    chosen = named_series or served_series(candles)

    from v8.cli.data import check_candles, update_store
    from v8.cli.printing import print_reasons
    from v8.market.sources.live import LiveSource

    if action and isinstance(candles, LiveSource):
        failures = update_store(candles, chosen, bars, accept_revisions=accept_revision)
    else:
        failures = check_candles(candles, chosen, bars)
    if failures:
        print_reasons(f"{len(failures)} of {len(chosen)} series have no usable candles", failures)
        raise Exit(DataError.exit_code)


def features(
    series: cli.SeriesOption = None,
    profile: str | None = Option(None, metavar="NAME|FILE", help="Explain features of a profile instead."),
) -> None:
    """Show the feature columns stored on disk, per series, and their folder; or explain a profile's.

    Examples:
        v8 features --profile frontier
        v8 features --series BTCUSDT-15m
    """
    if profile is not None and series:
        rule = "explains features, which are the same for every series"
        raise contradiction("--profile", "--series", rule)
    if profile is not None:
        explained = load_profile(profile)
        report_waiting(f"Reading the features of profile {explained.name}.")

        from v8.cli.data import print_features

        print_features(explained)
        return
    chosen = asked_series(series) or load_universe()
    report_waiting(f"Looking for the features of {len(chosen)} series.")

    from v8.cli.data import print_store

    print_store(chosen)


def report(run: cli.ThisRunArgument, lang: cli.LangOption = None) -> None:
    """Redraw leaderboard.csv, report.html, its pictures and timing.json from the saved artefacts.

    Examples:
        v8 report runs/frontier
    """
    if run.is_dir():
        report_waiting(f"Reading the models of {run}.")

    from v8.cli.runs import redraw

    raise Exit(redraw(run))


def export(
    run: Path = Argument(metavar="RUN", help="A folder of a run, of a back-test, or of pulled models."),
    out: Path = Option(metavar="FILE", help="Where to, such as forecasts.parquet."),
    series: list[str] | None = cli.some_series("Only this one; repeat for more. Default: all."),
    form: str | None = Option(None, "--format", metavar="parquet|csv", help="Default: as FILE ends."),
    overwrite: cli.OverwriteOption = False,
    source: cli.OtherSourceOption = None,
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
) -> None:
    """Write every forecast of the test spans into a table: of a run, or of all folds of a back-test.

    A row is one bar ahead: series, fold (0 for a run), issued_at, step, open_time, the forecast columns
    with their quantiles, the value that came (close_actual) and the naive forecast (close_naive). A row can
    be used from its issued_at on, the close of the newest candle that the forecast is based on. Join the
    rows of one fold and step to your own table by that time, so that no row sees the future:
    pandas.merge_asof(yours, forecasts, left_on="time", right_on="issued_at", by="series").

    Examples:
        v8 export runs/frontier --out forecasts.parquet
        v8 export backtests/frontier --out forecasts.csv
    """
    form = cli.table_form("--out", out, form, is_overwriting=overwrite)
    names = _names(series) or []
    open_source = cli.candles_of_models(run, source, data_dir, tables)

    from v8.cli.forecasts import export_forecasts

    exit_code = export_forecasts(
        "--out", run, out, is_overwriting=overwrite, form=form, names=names, open_source=open_source
    )
    raise Exit(exit_code)


def worth(
    run: Path = Argument(metavar="RUN", help="A folder of a run, of a back-test, or of pulled models."),
    series: list[str] | None = cli.some_series("Only this one; repeat for more. Default: all."),
    fee_bps: float = Option(10.0, metavar="BPS", min=0, max=1_000, help="Fee of a trade, in 1/100 of 1 %."),
    spread_bps: float = Option(2.0, metavar="BPS", min=0, max=1_000, help="Between bid and ask."),
    target_pct: float = Option(40.0, metavar="PCT", min=1, max=1_000, help="Volatility of a year aimed at."),
    max_leverage: float = Option(2.0, metavar="X", min=0.01, max=100, help="Largest position, in wealth."),
    source: cli.OtherSourceOption = None,
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    lang: cli.LangOption = None,
) -> None:
    """Show what forecasts of the test spans would have earned, after costs, compared with formulas.

    Each trading rule is applied with the model's forecasts, with those of formulas, without a forecast, and
    with perfect foresight: position size by volatility, limit orders, direction. Ranges and variance are
    evaluated by scores. Funding is left out. Forecasts that use the future are refused. Writes worth.html,
    worth.json and worth.csv into RUN.

    Examples:
        v8 worth runs/frontier
        v8 worth backtests/frontier --fee-bps 5 --spread-bps 1
    """
    names = _names(series) or []
    open_source = cli.candles_of_models(run, source, data_dir, tables)

    from v8.cli.forecasts import print_trading
    from v8.trading.rules import BPS, TradingTerms

    terms = TradingTerms(fee_bps / BPS, spread_bps / BPS, target_pct / 100, max_leverage)
    print_trading(run, terms=terms, names=names, open_source=open_source)


def publish(
    repo: str = Option(metavar="USER/NAME", help="Where to; made when it does not exist."),
    run: Path | None = Argument(None, metavar="[RUN]", help="A run folder, for example runs/frontier."),
    space: str | None = Option(None, metavar="USER/NAME", help="Publish the page of the models in --repo."),
    private: bool = Option(False, "--private", help="Make a new repository one that only you can see."),
    dry_run: bool = Option(False, "--dry-run", help="Print what would change on the Hub; send nothing."),
    only_skilled: bool = Option(False, "--only-skilled", help="Hold back what loses to the naive forecast."),
    is_partial: bool = Option(False, "--partial", help="Publish a run although some series are not done."),
    prune: bool = Option(False, "--prune", help="Remove published models that the run does not have."),
    collection: str | None = Option(None, metavar="TITLE", help="Put it into this collection of yours, too."),
) -> None:
    """Publish a run's models with card, leaderboard and manifest; or the page that shows them.

    Examples:
        v8 publish runs/frontier --repo you/models --dry-run
        v8 publish runs/frontier --repo you/models --only-skilled
        v8 publish runs/aligned --repo you/aligned --collection Mine
        v8 publish --repo you/models --space you/page
    """
    if (run is None) == (space is None):
        rule = "publishes a run folder to --repo, or the page of the models in --repo to --space"
        fix = "Write for example runs/frontier --repo you/fleet, and then --repo you/fleet --space you/page"
        got = "neither" if run is None else "both"
        raise ProfileError(where=command("publish"), rule=rule, got=got, fix=fix)
    if run is None or run.is_dir():
        report_waiting(f"Reading {run or 'what the page needs'} for {space or repo}.")

    from v8.cli import hub

    choice = {"is_partial": is_partial, "is_only_skilled": only_skilled, "is_pruning": prune}
    if run is None:
        hub.publish_page(str(space), repo, is_private=private, is_dry=dry_run, collection=collection)
    elif dry_run:
        hub.preview_run(run, repo, is_private=private, **choice)
    else:
        hub.publish_run(run, repo, is_private=private, collection=collection, **choice)
    if dry_run and collection:
        echo(f"It would stand in the collection {collection}.")


def pull(
    repo: str = Option(metavar="USER/NAME", help="Where from."),
    series: list[str] | None = cli.some_series("One series; repeat for more. Default: all."),
    revision: cli.RevisionOption = None,
    offline: cli.OfflineOption = False,
) -> None:
    """Download published models, compare every file with the manifest, and say where they are.

    Examples:
        v8 pull --repo you/models
        v8 pull --repo you/models --series BTCUSDT-15m --revision main
    """
    report_waiting(f"Reading {repo} {'from the cache' if offline else 'on the Hub'}.")

    from v8.cli.hub import pull_models

    pull_models(repo, series or (), revision, is_offline=offline)


def predict(
    folder: Path | None = Argument(None, metavar="FOLDER", help="A run folder, or one series' folder."),
    repo: cli.RepoOption = None,
    series: list[str] | None = cli.some_series("What to forecast; where it has no model, by others."),
    is_all: bool = Option(False, "--all", help="Use the models of all series that are there."),
    universe: cli.UniverseOption = None,
    revision: cli.RevisionOption = None,
    offline: cli.OfflineOption = False,
    source: cli.SourceOption = "live",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    bars: int | None = cli.some_bars("Candles to read. Default: as many as the model needs."),
    allow_old: bool = Option(False, "--allow-old", help="Forecast even bars that have all closed already."),
    output_format: cli.FormatOption = "table",
    plot: Path | None = Option(None, metavar="FILE.png|DIR", help="Draw it; several series into a folder."),
    overwrite: cli.OverwriteOption = False,
    paths: int | None = Option(None, metavar="N", min=1, help="Simulated candles, and chances by them; 512."),
) -> None:
    """Forecast the bars after the newest candle with saved or published models.

    Examples:
        v8 predict runs/frontier
        v8 predict runs/frontier --series BTCUSDT-15m --plot forecast.png
        v8 predict --repo you/models --format json
        v8 predict runs/frontier --source files --data-dir candles
        v8 predict runs/frontier --series BTCUSDT-15m --paths 512
    """
    place = cli.one_place("predict", folder, repo)
    cli.require_one_of("--format", output_format, ("table", "csv", "json"))
    if is_all and (series or universe):
        raise contradiction("--all", "--series or --universe", "takes every series that is there")
    named_series = [str(name) for name in asked_series(series, universe) or ()]
    is_many = is_all or universe is not None or len(named_series) > 1
    cli.require_plot(plot, named_series, is_many=is_many, is_overwriting=overwrite)
    candles = cli.open_candles(source, data_dir, tables, cli.opening(place))

    from v8.cli.forecasts import draw_forecasts, print_forecasts
    from v8.forecasts.issuing import issue_forecasts
    from v8.hub.opening import open_place

    models = open_place(place, revision=revision, is_offline=offline)
    names = named_series or models.series
    is_many = is_many or len(names) > 1
    cli.require_plot(plot, names, is_many=is_many, is_overwriting=overwrite)
    issue = partial(issue_forecasts, models, names, candles, bars=bars, is_any_age=allow_old, num_paths=paths)
    draw = partial(draw_forecasts, place=plot, is_overwriting=overwrite) if plot else None
    raise Exit(print_forecasts(issue, output_format, draw, is_many=is_many))


def update(
    run: cli.ThisRunArgument,
    when: str = Option("age", metavar="age|decay|always", help="Which models are stale."),
    max_age: float | None = Option(None, metavar="DAYS", min=0, help="Default: the length of its test span."),
    start: str = Option("anew", "--from", metavar="anew|champion", help="Weights that training begins from."),
    series: list[str] | None = cli.some_series("One series; repeat for more. Default: all of the run."),
    source: cli.OtherSourceOption = None,
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    device: cli.DeviceOption = "auto",
    workers: cli.WorkersOption = "auto",
    fleet_size: cli.FleetSizeOption = "auto",
    engine: cli.EngineOption = cli.DEFAULT_ENGINE,
    address: cli.AddressOption = None,
    dry_run: bool = Option(False, "--dry-run", help="Print what is stale and would be trained; do nothing."),
    ledger: Path | None = Option(None, metavar="FILE", help="The database of forecasts. Default: its own."),
    publish: cli.PublishOption = None,
) -> None:
    """Train stale models again on the newest candles; of old and new the better one serves.

    Examples:
        v8 update runs/frontier --dry-run
        v8 update runs/frontier --max-age 7 --publish you/models
        v8 update runs/aligned --from champion
    """
    named_series = asked_series(series)

    from v8.cli import runs as work
    from v8.ledger.database import Ledger
    from v8.promotion.renewal import STARTS, Renewal
    from v8.runs.engines import choose_engine

    cli.require_one_of("--from", start, STARTS)
    stale_rule = work.stale_rule(when, max_age)
    candles = cli.open_candles(source or work.newest_source(run), data_dir, tables)
    if ledger is None and DEFAULT_LEDGER.exists():
        ledger = DEFAULT_LEDGER
    opened_ledger = Ledger.open(ledger) if ledger is not None else None
    renewal = Renewal(run, candles, stale_rule, cli.this_command(), opened_ledger, start)
    chosen = renewal.select_series(named_series)
    require_tables(renewal.profile)
    chosen_engine = choose_engine(engine, device, workers, fleet_size, address)
    echo(f"Looking for what is stale in {run}.")
    if dry_run:
        work.preview_renewal(renewal, chosen)
        return
    if publish:
        from v8.cli import hub

        hub.check_publishing(publish, candles)
    is_complete = work.renew(renewal, chosen, chosen_engine)
    if publish:
        hub.publish_run(run, publish, is_partial=True)
    if not is_complete:
        raise Exit(SeriesError.exit_code)


def forecast(
    run: cli.RunArgument = None,
    repo: cli.RepoOption = None,
    series: list[str] | None = cli.some_series("Only this one; repeat for more. Default: all."),
    every: bool = Option(False, "--every", help="Go on at every candle's close until Ctrl-C."),
    post: str | None = Option(None, metavar="URL", envvar="V8_POST_URL", help="Send all there, signed."),
    ledger: cli.LedgerOption = DEFAULT_LEDGER,
    source: cli.SourceOption = "live",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    revision: cli.RevisionOption = None,
    offline: cli.OfflineOption = False,
) -> None:
    """Write forecasts of the future into the ledger, and score those whose bars have closed since.

    Examples:
        v8 forecast runs/frontier --every
        v8 forecast runs/frontier --every --post https://you.example/v8
        v8 forecast --repo you/models --series BTCUSDT-15m
    """
    place = cli.one_place("forecast", run, repo)
    names = _names(series)
    if ledger != DEFAULT_LEDGER:
        cli.require_folder_of("--ledger", ledger)

    from v8.ledger.receiver import Receiver

    receiver = Receiver(post) if post else None
    if not cli.open_candles(source, data_dir, tables, cli.opening(place)).is_publishable:
        got = "a simulated market, which has none"
        raise ProfileError(
            where=f"--source {source}", rule="a ledger is about the future", got=got, fix="Use --source live"
        )

    from v8.cli.forecasts import forecast_into_ledger
    from v8.ledger.watching import ServingModels

    find_models = partial(ServingModels, place, names, revision=revision, is_offline=offline)
    open_source = partial(cli.open_candles, source, data_dir)
    exit_code = forecast_into_ledger(place, find_models, ledger, open_source, receiver, is_for_ever=every)
    raise Exit(exit_code)


def track(
    run: cli.RunArgument = None,
    repo: cli.RepoOption = None,
    series: list[str] | None = cli.some_series("Only this one; repeat for more. Default: all."),
    ledger: cli.LedgerOption = DEFAULT_LEDGER,
    output_format: cli.FormatOption = "table",
    publish: str | None = Option(None, metavar="USER/NAME", help="Publish it as a dataset, once a day."),
    repair: bool = Option(False, "--repair", help="Send days again of which rows were published twice."),
) -> None:
    """Print the errors of issued forecasts, of the naive forecast and of the best baseline.

    Examples:
        v8 track runs/frontier
        v8 track --repo you/models --format csv
        v8 track runs/frontier --publish you/record
    """
    place = cli.one_place("track", run, repo)
    names = _names(series)
    if publish and names:
        raise contradiction("--publish", "--series", "publishes the forecasts of all series")
    if repair and not publish:
        rule = "repairs what was published"
        fix = "Name the dataset with --publish"
        raise ProfileError(where="--repair", rule=rule, got="no --publish", fix=fix)
    cli.require_one_of("--format", output_format, ("table", "json", "csv"))

    if ledger.exists():
        report_waiting(f"Reading {ledger}.")

    from v8.ledger.printing import print_record

    print_record(ledger, place, names, output_format)
    if publish:
        from v8.cli.hub import publish_record

        publish_record(ledger, place, publish, is_repairing=repair)


def _names(series: Sequence[str] | None) -> list[str] | None:
    """Return the checked names of the series that `--series` gives; None if it is not used."""
    return [str(name) for name in asked_series(series) or ()] or None


def backtest(
    profile: str = Option(
        "frontier", metavar="NAME|FILE", help="What to evaluate: a shipped name or a file."
    ),
    folds: int = Option(6, metavar="K", min=1, max=1_000, help="Seasons, spread over all history."),
    series: cli.SeriesOption = None,
    universe: cli.UniverseOption = None,
    source: cli.SourceOption = "vision",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    history: int | None = cli.some_bars("Newest candles that the folds lie in. Default: all there are."),
    bars: int | None = Option(None, metavar="N", help="Candles of each fold. Default: the profile's."),
    epochs: cli.EpochsOption = None,
    device: cli.DeviceOption = "auto",
    workers: cli.WorkersOption = "auto",
    fleet_size: cli.FleetSizeOption = "auto",
    engine: cli.EngineOption = cli.DEFAULT_ENGINE,
    address: cli.AddressOption = None,
    out: Path | None = Option(None, metavar="DIR", help="Its folder. Default: backtests/PROFILE."),
    forecasts: Path | None = Option(None, metavar="FILE", help="Write every forecast, too, as export does."),
    overwrite: cli.OverwriteOption = False,
    is_worth: bool = Option(False, "--worth", help="Show what they would have earned, too, as worth does."),
    lang: cli.LangOption = None,
) -> None:
    """Judge a profile over many folds, fitted again for each; the same call again continues.

    Examples:
        v8 backtest --profile frontier --series BTCUSDT-1h --folds 8
        v8 backtest --profile mine.yaml --forecasts forecasts.parquet
    """
    loaded = load_profile(profile).with_budget(newest_bars=bars, epochs=epochs)
    named_series = asked_series(series, universe)
    form = cli.table_form("--forecasts", forecasts, is_overwriting=overwrite) if forecasts else ""
    candles = cli.open_candles(source, data_dir, tables)
    require_tables(loaded)
    chosen = named_series or served_series(candles)

    from v8.cli.runs import evaluate_folds
    from v8.runs.backtest import BacktestOptions
    from v8.runs.engines import choose_engine

    chosen_engine = choose_engine(engine, device, workers, fleet_size, address)
    echo(f"Preparing to evaluate {loaded.name}.")
    backtest_options = BacktestOptions(loaded, chosen, folds, history, cli.this_command())
    out = out or Path("backtests") / loaded.name
    results = evaluate_folds(out, backtest_options, candles, chosen_engine)
    exit_code = SeriesError.exit_code if results.failures else 0
    if results.cells and (forecasts or is_worth):
        from v8.cli.forecasts import export_forecasts, print_trading
        from v8.language import language
        from v8.reports.backtest import write_backtest
        from v8.reports.markup import join
        from v8.trading.page import trading_section
        from v8.trading.rules import TradingTerms

        if forecasts:
            export_code = export_forecasts(
                "--forecasts",
                out,
                forecasts,
                is_overwriting=overwrite,
                form=form,
                open_source=lambda _: candles,
            )
            exit_code = max(exit_code, export_code)
        if is_worth:
            trading_results = print_trading(out, terms=TradingTerms(), open_source=lambda _: candles)
            with language():
                section = join(trading_section(trading_results))
            write_backtest(out, results, section)
    raise Exit(exit_code)


def search(
    profile: str = Argument("frontier", metavar="NAME|FILE", help="What to start from."),
    trials: int = Option(
        20, metavar="N", min=1, max=100_000, help="Trials in all, those of earlier calls included."
    ),
    hours: float | None = Option(None, metavar="H", min=0, help="Hours after which no trial is started."),
    ranges: Path | None = Option(None, metavar="FILE", help="Default: search/NAME.yaml beside the profile."),
    folds: int = Option(3, metavar="K", min=1, max=1_000, help="Seasons that trials are evaluated on."),
    later: int = Option(2, metavar="K", min=1, max=1_000, help="Later folds that evaluate only the winner."),
    series: cli.SeriesOption = None,
    source: cli.SourceOption = "vision",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    history: int | None = cli.some_bars("Newest candles that the folds lie in. Default: all there are."),
    bars: int | None = Option(None, metavar="N", help="Candles of each fold. Default: the profile's."),
    device: cli.DeviceOption = "auto",
    workers: cli.WorkersOption = "auto",
    engine: cli.EngineOption = cli.DEFAULT_ENGINE,
    address: cli.AddressOption = None,
    out: Path | None = Option(None, metavar="DIR", help="Its folder. Default: searches/PROFILE."),
    is_redone: bool = Option(False, "--redo", help="Set study.sqlite aside, and start the trials again."),
) -> None:
    """Search better settings of a profile by back-tests; the same call again continues.

    Examples:
        v8 search frontier --trials 50 --hours 8
        v8 search mine.yaml --ranges ranges.yaml --series BTCUSDT-15m
    """
    loaded = load_profile(profile).with_budget(newest_bars=bars)
    require_package("optuna", where=command("search"), rule="needs the extra `search` of v8")
    named_series = asked_series(series)
    candles = cli.open_candles(source, data_dir, tables)
    require_tables(loaded)
    chosen = named_series or served_series(candles)

    from v8.cli.runs import fold_observer, search_settings
    from v8.runs.backtest import BacktestOptions
    from v8.runs.engines import choose_engine
    from v8.search.ranges import read_ranges
    from v8.search.search import Search

    file = config_path(profile) if profile in profile_names() else Path(profile)
    search_ranges = read_ranges(ranges or file.parent / "search" / file.name, loaded)
    chosen_engine = choose_engine(engine, device, workers, "auto", address)
    echo(f"Preparing to search from {loaded.name}.")
    words_to_continue = command(*(word for word in sys.argv[1:] if word != "--redo"))
    prepared_search = Search(
        path=out or Path("searches") / loaded.name,
        start=BacktestOptions(loaded, chosen, folds + 1 + later, history, words_to_continue),
        ranges=search_ranges,
        num_later=later,
        source=candles,
        engine=chosen_engine,
        observer=fold_observer(),
        is_redone=is_redone,
    )
    search_settings(prepared_search, trials, hours)


def serve(
    run: cli.RunArgument = None,
    repo: cli.RepoOption = None,
    revision: cli.RevisionOption = None,
    offline: cli.OfflineOption = False,
    source: cli.SourceOption = "live",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    ledger: cli.LedgerOption = DEFAULT_LEDGER,
    host: str | None = Option(None, metavar="ADDRESS", help=f"Where to listen. Default: {cli.LOOPBACK}."),
    port: int = Option(8008, metavar="N", min=0, max=65_535, help="0 takes any free port."),
    cors: list[str] | None = Option(None, metavar="ORIGIN", help="Whose pages may read the API; repeat."),
    rate: int | None = Option(None, metavar="N", min=1, max=1_000_000, help="Requests a minute an address."),
    is_open: bool = Option(False, "--no-token", help="Other machines may read where no V8_APP_TOKEN is set."),
) -> None:
    """Show forecasts of the present and their live record on pages with a JSON API.

    If V8_APP_TOKEN is set, clients must send it: as Authorization: Bearer, in a browser once. An address
    that other machines can reach needs a token, or --no-token.

    Examples:
        v8 app runs/frontier
        v8 app --repo you/models --port 0
    """
    place = cli.one_place("app", run, repo)
    for name in APP_PACKAGES:
        require_package(name, where=command("app"), rule="needs the extra `app` of v8, a small server")
    candles = cli.open_candles(source, data_dir, tables, cli.opening(place))

    from v8.app.command import serve_page
    from v8.app.places import LedgerReader, ModelSource

    serve_page(
        ModelSource(place, revision, is_offline=offline),
        candles,
        LedgerReader(ledger, place),
        (host, port),
        is_open=is_open,
        origins=tuple(cors or ()),
        max_per_minute=rate,
    )


def doctor(
    profile: str = Option("frontier", metavar="NAME|FILE", help="Whose network is measured."),
    is_json: bool = Option(False, "--json", help="Print one JSON document and nothing else."),
    seconds: float = Option(2.0, metavar="S", min=0.05, help="Time of each measurement."),
) -> None:
    """Examine this machine: driver, devices, speed of training, and the flags to choose for it.

    Examples:
        v8 doctor
        v8 doctor --profile aligned --json
    """
    chosen = load_profile(profile)
    network_outputs(chosen)  # raises an error if the profile has no network to measure
    report_waiting("Asking for the driver, and starting what computes.")

    from v8.cli.doctor import run_doctor

    raise Exit(run_doctor(chosen, seconds, is_json=is_json))
