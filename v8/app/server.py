"""The server: routes over a desk, and what listens.

Nothing that a request starts outlives its bound: work is shared (`v8.app.desk`), a request waits `WAIT_S` for
it at most, and only GET and HEAD are answered.
"""

import asyncio
import hashlib
import math
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from v8.app import answers
from v8.app.connections import PATIENCE_S, Connection, Crowd, Listener, Tell
from v8.app.desk import RETRY_S, Desk, Promise
from v8.app.guard import Guard, Policy, json_answer, refused
from v8.app.page import ICON, SCRIPT, STYLE_SHEET, Shown, page, record_part, said
from v8.errors import DataError, ProfileError, V8Error
from v8.machine.interruption import stop_signals_answered_by
from v8.market.series import Series
from v8.storage import packaged
from v8.views.markup import Html, join

WAIT_S: Final = 20.0
"""A request waits at most so long for work, in seconds; the work goes on."""
LEAVE_S: Final = 1.0
"""How long open answers may take when the server stops, in seconds."""
_FILES: Final = {
    "/page.css": (STYLE_SHEET, "text/css"),
    "/page.js": (SCRIPT, "text/javascript"),
    "/icon.svg": (ICON, "image/svg+xml"),
    "/api": (packaged("v8.app", "api.html"), "text/html"),
    "/api.css": (packaged("v8.app", "api.css"), "text/css"),
    "/api.js": (packaged("v8.app", "api.js"), "text/javascript"),
}


class BusyError(DataError):
    """Work that takes longer than anybody should wait."""


class Site:
    """The routes: a desk is shown, whose candles come from a source of that name."""

    def __init__(self, desk: Desk, source: str) -> None:
        self._desk, self._errors = desk, Counter[str]()
        self._told: dict[str, Callable[[], dict[str, Any]]] = {
            "/api/series": lambda: answers.series_list(desk.fleet),
            "/api/leaderboard": lambda: answers.leaderboard(desk.fleet),
            "/api/health": lambda: answers.health(desk.fleet, source, desk.now_s()),
            "/openapi.json": answers.description,
        }
        self.routes: Final[dict[str, Callable[[Request], Awaitable[Response]]]] = {
            "/": self._page,
            "/part/{series}": self._part,
            "/api/forecast/{series}": self._forecast,
            "/api/candles/{series}": self._candles,
            "/api/track/{series}": self._track,
            "/metrics": self._metrics,
            **dict.fromkeys(self._told, self._telling),
            **dict.fromkeys(_FILES, self._file),
        }

    async def _page(self, request: Request) -> Response:
        """Answer with the page; a series in the query is shown at once, for those without a script."""
        fleet, name = self._desk.fleet, request.query_params.get("series")
        if name is None:
            return _html(page(fleet, Series.parse(fleet.rows[0].series), None))
        series = self._series(name)
        part, status, _ = await self._part_of(series)
        return _html(page(fleet, series, part), status)

    async def _part(self, request: Request) -> Response:
        """Answer with the part of the page about one series."""
        return _html(*await self._part_of(self._series(request.path_params["series"])))

    async def _telling(self, request: Request) -> Response:
        """Answer at once, whatever is asked."""
        return json_answer(self._told[request.scope["path"]]())

    async def _file(self, request: Request) -> Response:
        content, kind = _FILES[request.scope["path"]]
        return Response(content, 200, {"cache-control": "max-age=3600"}, f"{kind}; charset=utf-8")

    async def _forecast(self, request: Request) -> Response:
        kept = self._desk.forecast(self._series(request.path_params["series"]))
        found: Shown = await _finished(kept)
        return json_answer(found.content, cache_control=self._freshness(kept))

    async def _candles(self, request: Request) -> Response:
        series = self._series(request.path_params["series"])
        most, kept = answers.limit_of(request.query_params.get("limit")), self._desk.forecast(series)
        found: Shown = await _finished(kept)
        return json_answer(answers.candles(found.issued, most), cache_control=self._freshness(kept))

    async def _metrics(self, request: Request) -> Response:
        fleet, newest = self._desk.fleet, self._desk.newest
        done = {series: newest[series] for series in fleet.metadata if series in newest}
        issued = {series: one.exception() or one.result().issued for series, one in done.items()}
        requests: Counter[tuple[str, int]] = request.app.state.requests
        text = answers.metrics(fleet, issued, self._desk.now_s(), requests, self._errors)
        return Response(text, 200, {"cache-control": "no-store"}, "text/plain; version=0.0.4; charset=utf-8")

    async def _track(self, request: Request) -> Response:
        series = self._series(request.path_params["series"])
        return json_answer(answers.track(await _finished(self._desk.record()), series))

    def _series(self, name: str) -> Series:
        known = self._desk.fleet.metadata
        found = next((series for series in known if str(series) == name), None)
        if found is None:
            raise answers.unknown_series(name, known)
        return found

    async def _part_of(self, series: Series) -> tuple[Html, int, dict[str, str]]:
        """Return the part about a series, the status that goes with it, and when to ask again."""
        kept = self._desk.forecast(series)
        try:
            found: Shown = await _finished(kept)
            track = answers.track(await _finished(self._desk.record()), series)
        except V8Error as error:
            self._errors[type(error).__name__] += 1
            parts = answers.fault_of(error, str(series))["error"]
            text = "{where}: {rule}; got {got}. {fix}.".format(**parts)
            return said(text, is_alert=True), 503, {"retry-after": f"{RETRY_S:.0f}"}
        headers = {"cache-control": self._freshness(kept)}
        return join([found.html, record_part(track)]), 200, headers

    async def on_error(self, request: Request, error: Any) -> Response:
        """Tell what strangers may read; of a mistake of ours the server's own output has the traceback."""
        if isinstance(error, HTTPException):
            rule, status = "is one that /openapi.json lists", error.status_code
            return refused(status, "address", rule, "another", "Look there")
        content = answers.fault_of(error, request.path_params.get("series", "the server"))
        if isinstance(error, answers.RequestError):
            return json_answer(content, error.status)
        self._errors[type(error).__name__] += 1
        if isinstance(error, V8Error):
            return json_answer(content, 503, retry_after=f"{RETRY_S:.0f}")
        return json_answer(content, 500)

    def _freshness(self, kept: Promise) -> str:
        left_s = kept.until_s - self._desk.now_s()
        return f"private, max-age={max(1, math.ceil(left_s))}"  # none that a proxy would hand to others


def application(site: Site, policy: Policy) -> Guard:
    """Return all routes of a site behind the guard."""
    routes = [Route(path, answer, methods=["GET"]) for path, answer in site.routes.items()]
    kinds: tuple[Any, ...] = (HTTPException, V8Error, Exception)
    inner = Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, site.on_error))
    inner.router.redirect_slashes = False
    guard = Guard(inner, policy, _FILES.keys() - {"/api"})
    inner.state.requests = guard.requests
    return guard


def listening(host: str, port: int, tell: Tell = lambda text: None) -> Listener:
    """Return a socket that listens, or ProfileError; port 0 takes any free one. It tells of a crowd."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # The protocol is named: asyncio sends at once only on sockets that say they are TCP; on others every
        # answer of two parts waits 40 ms for the reader's acknowledgement of the first.
        listener = Listener(family, kind, protocol, Crowd(tell))
        with ExitStack() as failed:
            failed.callback(listener.close)
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
            failed.pop_all()
        return listener
    except (OSError, OverflowError) as error:
        got = getattr(error, "strerror", None) or type(error).__name__
        where = f"param:host {host} param:port {port}"
        rule = "is an address of this machine and a port that is free"
        fix = "Stop what listens there, or choose another param:port; 0 takes any that is free"
        raise ProfileError(where=where, rule=rule, got=got, fix=fix) from error


class _Server(uvicorn.Server):
    """Ends at the signals that end every command, and at no others."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with stop_signals_answered_by(self.handle_exit):
            yield


def server_of(app: Guard, crowd: Crowd) -> uvicorn.Server:
    """Return what serves an application on sockets: `run(sockets=[...])`, until `should_exit`.

    Of what strangers send nothing is told but what the crowd of the sockets tells.
    """
    connection: Any = partial(Connection, crowd=crowd, headers=app.headers)
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=connection,
        proxy_headers=False,  # anybody can write them, and where one is, its own limits are the better ones
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=16_384,
        backlog=crowd.at_once,
        timeout_keep_alive=math.ceil(PATIENCE_S),
        timeout_graceful_shutdown=math.ceil(LEAVE_S),
    )
    return _Server(config)


async def _finished(kept: Promise) -> Any:
    """Wait for some work, `WAIT_S` at most, or BusyError; whoever leaves does not stop it."""
    if kept.answer.done():
        return kept.answer.result()
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(kept.answer)), WAIT_S)
    except TimeoutError:
        rule, got = f"answers within {WAIT_S:.0f} s", "work that is not done yet"
        raise BusyError(where="the server", rule=rule, got=got, fix="Ask again in a moment") from None


def _html(content: Html, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = content.encode("utf-8")
    named = {"cache-control": "no-store", "etag": f'"{hashlib.sha256(body).hexdigest()[:16]}"'}
    return Response(body, status, {**named, **(headers or {})}, "text/html; charset=utf-8")
