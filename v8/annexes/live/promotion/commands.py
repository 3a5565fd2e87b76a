"""The command `update`: its flags, and what it refuses before any work."""

from pathlib import Path

from typer import Exit, Option, echo

from v8.annexes.live.ledger import DEFAULT_LEDGER
from v8.base.errors import SeriesError
from v8.cli import shared as cli
from v8.data.market.sources.source import SOURCES
from v8.runs.options import chosen_series, require_covariate_files


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

    from v8.annexes.live.ledger.database import Ledger
    from v8.annexes.live.promotion import printing as work
    from v8.annexes.live.promotion.renewal import STARTS, Renewal
    from v8.runs.engines import choose_engine

    cli.require_one_of("--from", start, STARTS)
    stale_rule = work.stale_rule(when, max_age)
    candles = cli.open_candles(source or work.newest_source(run), data_dir, tables)
    if ledger is None and DEFAULT_LEDGER.exists():
        ledger = DEFAULT_LEDGER
    opened_ledger = Ledger.open(ledger) if ledger is not None else None
    renewal = Renewal(run, candles, stale_rule, cli.this_command(), opened_ledger, start)
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
