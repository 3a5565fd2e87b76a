"""`python -m v8 app`: the page of the present and its JSON API, on this machine only by default."""

import os
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NoReturn

from v8.app.desk import Desk
from v8.app.guard import LOOPBACK_NAMES, TOKEN_VARIABLE, Policy
from v8.app.page import Shown
from v8.app.places import FleetForecasts, LedgerReader, Place
from v8.app.server import WAIT_S, Site, application, listening, server_of
from v8.cli.options import LOOPBACK
from v8.cli.printing import tell
from v8.errors import ProfileError
from v8.machine.interruption import set_exit_message
from v8.machine.starting import quiet_start
from v8.market.sources.source import CandleSource, present_of
from v8.runs.engines import place as place_models

HUB_PAGE: Final = "https://huggingface.co"
"""Its pages show a Space in a frame."""


def serve_page(
    place: Place,
    candles: CandleSource,
    tracks: LedgerReader,
    address: tuple[str | None, int],
    *,
    is_open: bool,
    **limits: Any,
) -> NoReturn:
    """Start TensorFlow, make the first forecast, and serve the page until a signal ends it.

    `is_open` lets other machines ask without a token. The limits are `origins` and `most_a_minute` of
    `Policy`. Raises `ProfileError` if there is no such folder of models, the address cannot be listened at or
    needs a token, or an origin or the environment's token is none.
    """
    if isinstance(place.where, Path) and not place.where.is_dir():
        fix = "Check the path, or name a repository with --repo"
        raise ProfileError(where=str(place.where), rule="is a run folder", got="no such folder", fix=fix)
    host, port = address
    policy = Policy(
        hosts=None if host else LOOPBACK_NAMES,
        frames=(HUB_PAGE,) if "SPACE_ID" in os.environ else (),
        token=os.environ.get(TOKEN_VARIABLE),
        **limits,
    )
    listener = listening(host or LOOPBACK, port, tell)
    name, port = listener.getsockname()[:2]
    if policy.token is None and not ip_address(name.partition("%")[0]).is_loopback:
        if not is_open:
            listener.close()
            rule = "is an address that other machines reach, so whoever asks must show a token"
            fix = f"Set {TOKEN_VARIABLE} to 16 letters or more, or let everybody read with param:no_token"
            got = f"no {TOKEN_VARIABLE}"
            raise ProfileError(where=f"param:host {name}", rule=rule, got=got, fix=fix)
        tell(f"No {TOKEN_VARIABLE} is set: whoever can reach {name} port {port} reads all of it.")
    set_exit_message("stopped: the page is not served any more.")
    place_models("auto", "1", "1")  # the same sums in the same order as when the models were evaluated
    with quiet_start():
        issue = FleetForecasts(candles)
        present = partial(present_of, candles)
        desk = Desk(place, Shown, issue=issue, record=tracks, present=present, tell=tell)
        desk.begin(WAIT_S)
    tell(f"{desk.fleet.label}: http://{f'[{name}]' if ':' in name else name}:{port}/ (Ctrl-C stops it)")
    try:
        server_of(application(Site(desk, candles.name), policy), listener.crowd).run(sockets=[listener])
    finally:
        desk.close()
    # Only a signal ends it; it ends as every other command that is interrupted, whoever started it.
    raise KeyboardInterrupt
