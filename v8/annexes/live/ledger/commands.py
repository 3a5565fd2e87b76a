"""The commands `forecast` and `track`: their flags, and what they refuse before any work."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from v8.annexes.live.ledger import DEFAULT_LEDGER
from v8.base.errors import ProfileError
from v8.base.process import report_waiting
from v8.cli import shared as cli
from v8.runs.options import contradiction

if TYPE_CHECKING:
    from v8.annexes.live.limits import Limit

LedgerOption = Annotated[Path, Option(metavar="FILE", help="The database of forecasts; made if missing.")]


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
    ledger: LedgerOption = DEFAULT_LEDGER,
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
            rule = "says what is sent"
            fix = "Name the receiver with --post URL"
            raise ProfileError(where=flag, rule=rule, got="no --post", fix=fix)

    receiver = None
    if post:  # before anything is opened
        from v8.annexes.live.ledger.receiver import open_receiver

        receiver = open_receiver(post)

    limits = _limits(alert or ())

    if not cli.open_candles(source, data_dir, tables, cli.opening(place, runtime)).is_publishable:
        got = "a simulated market, which has none"
        raise ProfileError(
            where=f"--source {source}", rule="a ledger is about the future", got=got, fix="Use --source live"
        )

    from v8.annexes.live.ledger.forecasting import forecast_into_ledger
    from v8.annexes.live.ledger.posting import Wishes
    from v8.annexes.live.ledger.watching import ServingModels

    wishes = Wishes(limits, has_forecasts=not alerts_only)
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


def _limits(texts: Sequence[str]) -> "tuple[Limit, ...]":
    """Read the values of `--alert`; without any nothing heavy is imported."""
    if not texts:
        return ()
    from v8.annexes.live.limits import Limit

    return tuple(Limit.parse(text) for text in texts)


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
        rule = "repairs what was published"
        fix = "Name the dataset with --publish"
        raise ProfileError(where="--repair", rule=rule, got="no --publish", fix=fix)
    cli.require_one_of("--format", output_format, ("table", "json", "csv"))

    if ledger.exists():
        report_waiting(f"Reading {ledger}.")

    from v8.annexes.live.ledger.printing import print_record

    print_record(ledger, place, names, output_format)
    if publish:
        from v8.annexes.live.ledger.publishing import publish_record

        publish_record(ledger, place, publish, is_repairing=repair)


def _back_up(ledger: Path, backup: Path, contradicting: list[str]) -> None:
    """Copy a ledger; `contradicting` names what was given with --backup and makes no sense there."""
    if contradicting:
        raise contradiction("--backup", contradicting[0], "copies the forecasts of all places")
    cli.require_folder_of("--backup", backup)

    from v8.annexes.live.ledger.printing import print_backup

    print_backup(ledger, backup)
