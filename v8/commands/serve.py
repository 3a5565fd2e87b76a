"""`python -m v8 app`: the page of the present and its JSON API, on this machine only by default."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from v8.commands.options import DataDirOption, OfflineOption, RevisionOption, SourceOption
from v8.errors import ProfileError
from v8.invocation import command

if TYPE_CHECKING:
    from v8.app.places import Place

LOOPBACK: Final = "127.0.0.1"
PORT: Final = 8008
LEDGER: Final = Path("runs/ledger.sqlite")

EXTRA: Final = ("starlette", "uvicorn")
"""Packages of the extra `app`."""

HUB_PAGE: Final = "https://huggingface.co"
"""Its pages show a Space in a frame."""


def serve(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run folder such as runs/aligned.")
    ] = None,
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="USER/NAME", help="A repository on the Hub instead.")
    ] = None,
    revision: RevisionOption = None,
    offline: OfflineOption = False,
    source: SourceOption = "live",
    data_dir: DataDirOption = None,
    ledger: Annotated[
        Path, typer.Option("--ledger", metavar="FILE", help="The database of forecasts, for the live record.")
    ] = LEDGER,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="ADDRESS", help=f"Where to listen. Default: {LOOPBACK}."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65_535, help="0 takes any that is free.")
    ] = PORT,
) -> None:
    """Show forecasts of the present, leaderboard and live record on a page with a JSON API."""
    _check_words(run, repo)
    _require_extra()

    from v8.app.desk import Desk, Tools
    from v8.app.guard import LOOPBACK_NAMES, Policy
    from v8.app.part import shown
    from v8.app.present import Present
    from v8.app.server import WAIT_S, Site, application, listening, server_of
    from v8.app.tracks import Tracks
    from v8.commands.device import place as place_models
    from v8.engine.interruption import set_last_words
    from v8.engine.quiet import quiet_start
    from v8.market.sources.source import open_source, present_of

    candles = open_source(source, data_dir=data_dir)
    place = _place(run, repo, revision, is_offline=offline)
    listener = listening(host or LOOPBACK, port)
    set_last_words("stopped: the page is not served any more.")
    place_models("auto", "1", "1")  # the same sums in the same order as when the models were judged
    with quiet_start():
        from v8.app.issuer import Issuer

        present = Present(partial(present_of, candles))
        tools = Tools(Issuer(candles), Tracks(ledger, repo or run or ""), present, _tell)
        desk = Desk(place, tools, shown)
        desk.begin(WAIT_S)
    policy = Policy(None if host else LOOPBACK_NAMES, (HUB_PAGE,) if "SPACE_ID" in os.environ else ())
    _tell(f"{desk.fleet.label}: http://{_address(listener)}/ (Ctrl-C stops it)")
    try:
        server_of(application(Site(desk, candles.name), policy)).run(sockets=[listener])
    finally:
        desk.close()
    # Only a signal ends it; it ends as every other command that is interrupted, whoever started it.
    raise KeyboardInterrupt


def _check_words(run: Path | None, repo: str | None) -> None:
    if (run is None) == (repo is None):
        raise ProfileError(
            where=command("app"),
            rule="needs one place of the models: a run folder, or --repo",
            got="neither" if repo is None else "both",
            fix="Write for example runs/aligned, or --repo user/name",
        )


def _require_extra() -> None:
    """Refuse to begin without the server, which is an extra of the distribution."""
    if lacking := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        raise ProfileError(
            where=command("app"),
            rule="needs the extra `app` of v8, a small server",
            got=f"no package {' and '.join(lacking)}",
            fix="Install it from a checkout of v8: python -m pip install '/path/to/checkout[app]'",
        )


def _place(run: Path | None, repo: str | None, revision: str | None, *, is_offline: bool) -> Place:
    from v8.app.places import HubPlace, RunPlace
    from v8.artifacts.generations import served_folder

    if repo is not None:
        return HubPlace(repo, revision, is_offline=is_offline)
    if run is None or not run.is_dir():
        raise ProfileError(
            where=str(run), rule="is a run folder", got="no such folder", fix="Check the path, or name --repo"
        )
    return RunPlace(run, served_folder)


def _address(listener: Any) -> str:
    name, port = listener.getsockname()[:2]
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
