"""`python -m v8 app`: the page of the present and its JSON API, on this machine only by default."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from v8.cli.options import (
    DataDirOption,
    LedgerOption,
    OfflineOption,
    RepoOption,
    RevisionOption,
    RunArgument,
    SourceOption,
    TablesOption,
    one_place,
)
from v8.errors import ProfileError
from v8.invocation import command
from v8.live import DEFAULT_LEDGER
from v8.runs.options import take_tables

if TYPE_CHECKING:
    from v8.app.desk import Desk
    from v8.app.places import LedgerReader, Place
    from v8.market.sources.source import CandleSource

LOOPBACK: Final = "127.0.0.1"
PORT: Final = 8008

EXTRA: Final = ("starlette", "uvicorn")
"""Packages of the extra `app`."""

HUB_PAGE: Final = "https://huggingface.co"
"""Its pages show a Space in a frame."""


def serve(
    run: RunArgument = None,
    repo: RepoOption = None,
    revision: RevisionOption = None,
    offline: OfflineOption = False,
    source: SourceOption = "live",
    data_dir: DataDirOption = None,
    tables: TablesOption = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="ADDRESS", help=f"Where to listen. Default: {LOOPBACK}."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65_535, help="0 takes any that is free.")
    ] = PORT,
) -> None:
    """Show forecasts of the present, leaderboard and live record on a page with a JSON API."""
    where = one_place("app", run, repo)
    _require_extra()

    from v8.app.guard import LOOPBACK_NAMES, Policy
    from v8.app.places import LedgerReader
    from v8.app.server import Site, application, listening, server_of
    from v8.machine.interruption import set_last_words
    from v8.market.sources.source import open_source

    take_tables(tables)
    candles = open_source(source, data_dir=data_dir)
    place = _place(where, revision, is_offline=offline)
    listener = listening(host or LOOPBACK, port, _tell)
    set_last_words("stopped: the page is not served any more.")
    desk = _begun(place, candles, LedgerReader(ledger, where))
    policy = Policy(None if host else LOOPBACK_NAMES, (HUB_PAGE,) if "SPACE_ID" in os.environ else ())
    _tell(f"{desk.fleet.label}: http://{_address(listener)}/ (Ctrl-C stops it)")
    try:
        server_of(application(Site(desk, candles.name), policy), listener.crowd).run(sockets=[listener])
    finally:
        desk.close()
    # Only a signal ends it; it ends as every other command that is interrupted, whoever started it.
    raise KeyboardInterrupt


def _begun(place: Place, candles: CandleSource, tracks: LedgerReader) -> Desk:
    """Return the work behind the page, with TensorFlow started and the first forecast made."""
    from v8.app.desk import Desk, SourceClock, Tools
    from v8.app.page import shown
    from v8.app.places import FleetForecasts
    from v8.app.server import WAIT_S
    from v8.machine.starting import quiet_start
    from v8.market.sources.source import present_of
    from v8.runs.engines import place as place_models

    place_models("auto", "1", "1")  # the same sums in the same order as when the models were judged
    with quiet_start():
        clock = SourceClock(partial(present_of, candles))
        desk = Desk(place, Tools(FleetForecasts(candles), tracks, clock, _tell), shown)
        desk.begin(WAIT_S)
    return desk


def _require_extra() -> None:
    """Refuse to begin without the server, which is an extra of the distribution."""
    if lacking := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        raise ProfileError(
            where=command("app"),
            rule="needs the extra `app` of v8, a small server",
            got=f"no package {' and '.join(lacking)}",
            fix="Install it from a checkout of v8: python -m pip install '/path/to/checkout[app]'",
        )


def _place(where: Path | str, revision: str | None, *, is_offline: bool) -> Place:
    from v8.app.places import HubPlace, RunPlace
    from v8.artifacts.nested_runs import served_folder

    if isinstance(where, str):
        return HubPlace(where, revision, is_offline=is_offline)
    if not where.is_dir():
        fix = "Check the path, or name a repository with --repo"
        raise ProfileError(where=str(where), rule="is a run folder", got="no such folder", fix=fix)
    return RunPlace(where, served_folder)


def _address(listener: Any) -> str:
    name, port = listener.getsockname()[:2]
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
