"""The server: routes over a desk, and what listens.

Nothing that a request starts outlives its bound: work is shared (`v8.app.desk`), a request waits `WAIT_S` for
it at most, and only GET and HEAD are answered.
"""

import asyncio
import hashlib
import math
import os
import socket
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
from v8.app.desk import RETRY_S, Desk, Promise
from v8.app.guard import PATIENCE_S, Connection, Crowd, Guard, Listener, Policy, Tell, json_answer
from v8.app.page import ICON, SCRIPT, STYLE_SHEET, Shown, page, record_part, said
from v8.errors import ProfileError, V8Error
from v8.machine.interruption import stop_signals_answered_by
from v8.market.series import Series
from v8.views.markup import Html, join

WAIT_S: Final = 20.0
"""A request waits at most so long for work, in seconds; the work goes on."""
LEAVE_S: Final = 1.0
"""How long open answers may take when the server stops, in seconds."""
_FILES: Final = {
    "/page.css": (STYLE_SHEET, "text/css"),
    "/page.js": (SCRIPT, "text/javascript"),
    "/icon.svg": (ICON, "image/svg+xml"),
}


class UnknownSeriesError(Exception):
    """A series that is asked for and not shown; its argument is what is answered."""


class Site:
    """The routes: a desk is shown, whose candles come from a source of that name."""

    def __init__(self, desk: Desk, source: str) -> None:
        self._desk = desk
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
            "/api/track/{series}": self._track,
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

    async def _track(self, request: Request) -> Response:
        series = self._series(request.path_params["series"])
        return json_answer(answers.track(await _finished(self._desk.record()), series))

    def _series(self, name: str) -> Series:
        known = self._desk.fleet.metadata
        found = next((series for series in known if str(series) == name), None)
        if found is None:
            raise UnknownSeriesError(answers.unknown_series(name, known))
        return found

    async def _part_of(self, series: Series) -> tuple[Html, int, dict[str, str]]:
        """Return the part about a series, the status that goes with it, and when to ask again."""
        kept = self._desk.forecast(series)
        try:
            found: Shown = await _finished(kept)
            track = answers.track(await _finished(self._desk.record()), series)
        except (V8Error, TimeoutError) as error:
            parts = _content_of(error, str(series))["error"]
            text = "{where}: {rule}; got {got}. {fix}.".format(**parts)
            return said(text, is_alert=True), 503, {"retry-after": f"{RETRY_S:.0f}"}
        headers = {"cache-control": self._freshness(kept)}
        return join([found.html, record_part(track)]), 200, headers

    def _freshness(self, kept: Promise) -> str:
        left_s = kept.until_s - self._desk.now_s()
        return f"max-age={max(1, math.ceil(left_s))}"


def application(site: Site, policy: Policy) -> Guard:
    """Return all routes of a site behind the guard."""
    routes = [Route(path, answer, methods=["GET"]) for path, answer in site.routes.items()]
    kinds: tuple[Any, ...] = (HTTPException, UnknownSeriesError, V8Error, TimeoutError, Exception)
    inner = Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, _on_error))
    inner.router.redirect_slashes = False
    return Guard(inner, policy)


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
    """Wait for some work, `WAIT_S` at most, or TimeoutError; whoever leaves does not stop it."""
    if kept.answer.done():
        return kept.answer.result()
    return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(kept.answer)), WAIT_S)


def _html(content: Html, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = content.encode("utf-8")
    named = {"cache-control": "no-store", "etag": f'"{hashlib.sha256(body).hexdigest()[:16]}"'}
    return Response(body, status, {**named, **(headers or {})}, "text/html; charset=utf-8")


def _content_of(error: V8Error | TimeoutError, series: str) -> dict[str, Any]:
    if isinstance(error, V8Error):
        return answers.fault_of(error, series)
    rule = f"answers within {WAIT_S:.0f} s"
    return answers.fault(series, rule, "work that is not done yet", "Ask again in a moment")


async def _on_error(request: Request, error: Any) -> Response:
    """Tell what strangers may read; of a mistake of ours the server's own output has the traceback."""
    if isinstance(error, UnknownSeriesError):
        return json_answer(error.args[0], 404)
    if isinstance(error, HTTPException):
        content = answers.fault("address", "is one that /openapi.json lists", "another", "Look there")
        return json_answer(content, error.status_code)
    if isinstance(error, V8Error | TimeoutError):
        content = _content_of(error, request.path_params.get("series", "the server"))
        return json_answer(content, 503, retry_after=f"{RETRY_S:.0f}")
    content = answers.fault("the server", "must not fail", "a mistake in v8", "Tell whoever runs it")
    return json_answer(content, 500)
