"""The command `app`: its flags, and what it refuses before TensorFlow starts."""

from typing import Final

from typer import Option

from v8.annexes.live.ledger import DEFAULT_LEDGER
from v8.annexes.live.ledger.commands import LedgerOption
from v8.base.process import command
from v8.base.registry import require_package
from v8.cli import shared as cli

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

    from v8.annexes.live.app.places import LedgerReader, ModelSource
    from v8.annexes.live.app.serving import serve_page

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
