"""`python -m v8 app`: the page of the present and its JSON API, on this machine only by default."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from v8.annexes.live.app.charts import ChartReader
from v8.annexes.live.app.desk import ForecastService
from v8.annexes.live.app.forecast_view import ForecastView
from v8.annexes.live.app.guard import TOKEN_VARIABLE, AccessPolicy, allowed_hosts, in_url, is_loopback
from v8.annexes.live.app.places import ForecastIssuer, LedgerReader, ModelSource
from v8.annexes.live.app.server import WAIT_S, Site, make_application, make_server, open_listener
from v8.base.errors import ProfileError
from v8.base.process import quiet_start, set_exit_message
from v8.base.terminal import print_message
from v8.cli.shared import LOOPBACK, settle_process
from v8.data.market.sources.source import CandleSource, present_of
from v8.forecaster.shared_models import AUTO
from v8.runs.run_folder import folder_advice

HUB_PAGE: Final = "https://huggingface.co"
"""Its pages show a Space in a frame."""


def serve_page(
    models: ModelSource,
    candles: CandleSource,
    record_reader: LedgerReader,
    address: tuple[str | None, int],
    *,
    is_open: bool,
    origins: tuple[str, ...] = (),
    max_per_minute: int | None = None,
    runtime: str = AUTO,
) -> NoReturn:
    """Start TensorFlow, make the first forecast, and serve the page until a signal ends it.

    Args:
        models: Where the models are.
        candles: The source of candles.
        record_reader: Reads the live record.
        address: Host and port; this machine only if the host is None.
        is_open: Whether other machines may send requests without a token.
        origins: As in `AccessPolicy`.
        max_per_minute: Likewise.
        runtime: What computes the forecasts, as for `SharedModels`.

    Raises:
        ProfileError: If there is no such folder of models, the address is not available or needs a token, or
            an origin or the environment's token is not valid.
    """
    if isinstance(models.location, Path) and not models.location.is_dir():
        fix = folder_advice(models.location, "Check the path, or name a repository with --repo")
        raise ProfileError(where=str(models.location), rule="is a run folder", got="no such folder", fix=fix)
    issuer = ForecastIssuer(candles, runtime)
    host, port = address
    policy = AccessPolicy(
        frames=(HUB_PAGE,) if "SPACE_ID" in os.environ else (),
        origins=origins,
        token=os.environ.get(TOKEN_VARIABLE),
        max_per_minute=max_per_minute,
    )
    listener = open_listener(host or LOOPBACK, port, print_message)
    name, port = listener.getsockname()[:2]
    policy = replace(policy, hosts=allowed_hosts(name, host))
    if policy.token is None and not is_loopback(name):
        if not is_open:
            listener.close()
            rule = "is an address that other machines reach, so whoever asks must show a token"
            fix = f"Set {TOKEN_VARIABLE} to 16 letters or more, or let everybody read with param:no_token"
            got = f"no {TOKEN_VARIABLE}"
            raise ProfileError(where=f"param:host {name}", rule=rule, got=got, fix=fix)
        print_message(f"No {TOKEN_VARIABLE} is set: whoever can reach {name} port {port} reads all of it.")
    set_exit_message("stopped: the page is not served any more.")
    settle_process()
    with quiet_start():
        service = ForecastService(
            models,
            ForecastView,
            issue=issuer,
            record=record_reader,
            present=partial(present_of, candles),
            chart=ChartReader(candles, record_reader),
            notify=print_message,
        )
        service.start(WAIT_S)
    print_message(f"{service.snapshot.label}: http://{in_url(name)}:{port}/ (Ctrl-C stops it)")
    application = make_application(Site(service, candles.name), policy)
    try:
        make_server(application, listener.limiter).run(sockets=[listener])
    finally:
        service.close()
    # Only a signal ends the server; the command then ends as every other one that is interrupted.
    raise KeyboardInterrupt
