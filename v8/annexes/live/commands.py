"""The commands `forecast`, `track`, `app` and `update`: their flags, and what they refuse before any work."""

import math
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from typer import Exit, Option, echo

from v8.annexes.live import DEFAULT_LEDGER, Limit
from v8.base.errors import ProfileError, SeriesError
from v8.base.process import command, report_waiting
from v8.base.registry import require_package
from v8.cli import shared as cli
from v8.data.market.sources import SOURCES, present_source
from v8.runs.options import chosen_series, contradiction, require_covariate_files

LedgerOption = Annotated[Path, Option(metavar="FILE", help="The database of forecasts.")]


def forecast(
    run_argument: cli.RunArgument = None,
    run: cli.RunOption = None,
    repo: cli.RepoOption = None,
    series: list[str] | None = cli.some_series("Only this one; repeat for more. Default: all."),
    every: bool = Option(False, "--every", help="Go on at every candle's close until Ctrl-C."),
    post: str | None = Option(
        None, metavar="URL", envvar="V8_POST_URL", help="Send all there: https://... or tgram://..."
    ),
    alert: list[str] | None = Option(
        None, metavar="volatility>2", help="Send when it rises above that many %; repeat for more."
    ),
    alerts_only: bool = Option(False, "--alerts-only", help="Send no forecasts, only alerts."),
    ledger: Path = Option(DEFAULT_LEDGER, metavar="FILE", help="The database of forecasts; made if missing."),
    source: cli.SourceOption = "live",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    revision: cli.RevisionOption = None,
    offline: cli.OfflineOption = False,
    runtime: cli.RuntimeOption = "auto",
) -> None:
    """Write forecasts of the future into the ledger, and score those whose bars have closed since.

    Examples:
        v8 forecast runs/frontier --every
        v8 forecast runs/frontier --every --post https://you.example/v8
        v8 forecast runs/frontier --post tgram://BOT/ID --alert 'range>5'
        v8 forecast --repo you/models --series BTCUSDT-15m
    """
    place = cli.one_place("forecast", cli.maybe_run(run_argument, run), repo)
    names = cli.names_of(series)
    if ledger != DEFAULT_LEDGER:
        cli.require_folder_of("--ledger", ledger)

    for flag, is_used in (("--alert", alert), ("--alerts-only", alerts_only)):
        if is_used and not post:
            raise ProfileError(
                where=flag, rule="says what is sent", got="no --post", fix="Name the receiver with --post URL"
            )

    receiver = None
    wishes = None
    if post:  # before anything is opened
        from v8.annexes.live.posting import Wishes, open_receiver

        receiver = open_receiver(post)
        wishes = Wishes(tuple(map(Limit.parse, alert or ())), has_forecasts=not alerts_only)

    if not cli.open_candles(source, data_dir, tables, cli.opening(place, runtime)).is_publishable:
        raise ProfileError(
            where=f"--source {source}",
            rule="a ledger is about the future",
            got="a simulated market, which has none",
            fix="Use --source live",
        )

    from v8.annexes.live.watching import ServingModels, forecast_into_ledger

    find_models = partial(ServingModels, place, names, revision=revision, is_offline=offline, runtime=runtime)
    open_source = partial(cli.open_candles, source, data_dir)
    exit_code = forecast_into_ledger(
        place,
        find_models,
        ledger,
        open_source,
        receiver=receiver,
        wishes=wishes,
        is_for_ever=every,
        continue_command=cli.this_command(secret_address=post),
    )
    raise Exit(exit_code)


def track(
    run_argument: cli.RunArgument = None,
    run: cli.RunOption = None,
    repo: cli.RepoOption = None,
    series: list[str] | None = cli.some_series("Only this one; repeat for more. Default: all."),
    ledger: LedgerOption = DEFAULT_LEDGER,
    output_format: cli.FormatOption = "table",
    publish: str | None = Option(None, metavar="USER/NAME", help="Publish it as a dataset, once a day."),
    repair: bool = Option(False, "--repair", help="Send days again of which rows were published twice."),
    backup: Path | None = Option(None, metavar="FILE", help="Copy the ledger there instead, whole."),
) -> None:
    """Print the errors of issued forecasts, of the naive forecast and of the best baseline.

    Examples:
        v8 track runs/frontier
        v8 track --repo you/models --format csv
        v8 track runs/frontier --publish you/record
        v8 track --backup copy.sqlite
    """
    if backup is not None:
        named = {
            "RUN": run_argument or run,
            "--repo": repo,
            "--series": series,
            "--format": output_format != "table",
            "--publish": publish,
            "--repair": repair,
        }
        _back_up(ledger, backup, [name for name, value in named.items() if value])
        return
    place = cli.one_place("track", cli.maybe_run(run_argument, run), repo)
    names = cli.names_of(series)
    if publish and names:
        raise contradiction("--publish", "--series", "publishes the forecasts of all series")
    if repair and not publish:
        raise ProfileError(
            where="--repair",
            rule="repairs what was published",
            got="no --publish",
            fix="Name the dataset with --publish",
        )
    cli.require_one_of("--format", output_format, ("table", "json", "csv"))

    if ledger.exists():
        report_waiting(f"Reading {ledger}.")

    from v8.annexes.live.reporting import print_record, publish_record

    print_record(ledger, place, names, output_format)
    if publish:
        publish_record(ledger, place, publish, is_repairing=repair)


def _back_up(ledger: Path, backup: Path, contradicting: list[str]) -> None:
    """Copy a ledger; `contradicting` names what was given with --backup and makes no sense there."""
    if contradicting:
        raise contradiction("--backup", contradicting[0], "copies the forecasts of all places")
    cli.require_folder_of("--backup", backup)

    from v8.annexes.live.reporting import print_backup

    print_backup(ledger, backup)


APP_PACKAGES: Final = ("starlette", "uvicorn")
"""Packages of the extra `app`."""


def serve(
    run_argument: cli.RunArgument = None,
    run: cli.RunOption = None,
    repo: cli.RepoOption = None,
    revision: cli.RevisionOption = None,
    offline: cli.OfflineOption = False,
    source: cli.SourceOption = "live",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    host: str | None = Option(None, metavar="ADDRESS", help=f"Where to listen. Default: {cli.LOOPBACK}."),
    port: int = Option(8008, metavar="N", min=0, max=65_535, help="0 takes any free port."),
    cors: list[str] | None = Option(None, metavar="ORIGIN", help="Whose pages may read the API; repeat."),
    rate: int | None = Option(None, metavar="N", min=1, max=1_000_000, help="Requests a minute an address."),
    is_open: bool = Option(False, "--no-token", help="Other machines may read where no V8_APP_TOKEN is set."),
    runtime: cli.RuntimeOption = "auto",
) -> None:
    """Show forecasts of the present and their live record on pages with a JSON API.

    If V8_APP_TOKEN is set, clients must send it: as Authorization: Bearer, in a browser once. An address
    that other machines can reach needs a token, or --no-token.

    Examples:
        v8 app runs/frontier
        v8 app --repo you/models --port 0
    """
    place = cli.one_place("app", cli.maybe_run(run_argument, run), repo)
    for name in APP_PACKAGES:
        require_package(name, where=command("app"), rule="needs the extra `app` of v8, a small server")
    candles = cli.open_candles(source, data_dir, tables, cli.opening(place, runtime))

    from v8.annexes.live.app.server import serve_page
    from v8.annexes.live.app.service import LedgerReader, ModelSource

    serve_page(
        ModelSource(place, revision, is_offline=offline),
        candles,
        LedgerReader(ledger, place),
        (host, port),
        is_open=is_open,
        origins=tuple(cors or ()),
        max_per_minute=rate,
        runtime=runtime,
    )


def update(
    run_argument: cli.RunArgument = None,
    run: cli.RunOption = None,
    when: str = Option("age", metavar="age|decay|always", help="Which models are stale."),
    max_age: float | None = Option(None, metavar="DAYS", min=0, help="Default: the length of its test span."),
    start: str = Option("anew", "--from", metavar="anew|champion", help="Weights that training begins from."),
    series: list[str] | None = cli.some_series("One series; repeat for more. Default: all of the run."),
    source: str | None = Option(
        None, metavar="|".join(SOURCES), help="Default: the run's, or live in place of vision."
    ),
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
    run = cli.one_run("update", run_argument, run)
    named_series = chosen_series(series)

    from v8.annexes.live import renewal as work
    from v8.annexes.live.ledger import Ledger
    from v8.runs.engines import choose_engine
    from v8.runs.run_folder import read_run

    cli.require_one_of("--from", start, work.STARTS)
    cli.require_one_of("--when", when, work.STALENESS_RULES)
    if max_age is not None and (when != "age" or not math.isfinite(max_age)):
        raise ProfileError(
            where="param:max_age",
            rule="is a number of days, for --when age",
            got=f"{max_age} with param:when {when}",
            fix="Write for example param:max_age 7, or leave it out",
        )
    # The source of the run, or the one that has newer candles of the same market.
    candles = cli.open_candles(source or present_source(read_run(run).source), data_dir, tables)
    if ledger is None and DEFAULT_LEDGER.exists():
        ledger = DEFAULT_LEDGER
    opened_ledger = Ledger.open(ledger) if ledger is not None else None
    renewal = work.Renewal(
        run, candles, work.StalenessRule(when, max_age), cli.this_command(), opened_ledger, start
    )
    chosen = renewal.select_series(named_series)
    require_covariate_files([renewal.profile], tables)
    cli.settle_process(device)
    chosen_engine = choose_engine(
        engine, device=device, workers=workers, fleet_size=fleet_size, address=address
    )
    echo(f"Looking for what is stale in {run}.")
    if dry_run:
        work.preview_renewal(renewal, chosen)
        return
    if publish:
        cli.check_publishing(publish, candles)
    is_complete = work.renew(renewal, chosen, chosen_engine)
    if publish:
        cli.publish_run(run, publish, is_partial=True)
    if not is_complete:
        raise Exit(SeriesError.exit_code)
