"""The server: routes over a desk, and what listens.

Nothing that a request starts outlives its bound: work is shared (`v8.app.desk`), a request waits `WAIT_S` for
it at most, a stream of events ends after `STREAM_S`, and only GET and HEAD are answered.
"""

import asyncio
import math
import os
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from v8.app import answers, page
from v8.app.connections import PATIENCE_S, Connection, Crowd, Listener, Tell
from v8.app.desk import RETRY_S, Desk, Promise
from v8.app.guard import MOST_AT_ONCE, Guard, Policy, address_of, json_answer, refused
from v8.errors import DataError, ProfileError, V8Error
from v8.language import LANGUAGES, language, preferred
from v8.machine.interruption import stop_signals_handled_by
from v8.market.series import Series
from v8.reports.markup import STYLE, Html, join
from v8.storage import digest_bytes, packaged

WAIT_S: Final = 20.0  # a request waits at most so long for work, in seconds; the work goes on
RENEWED_S: Final = 5.0  # an overview is asked for again after so many seconds
STREAM_S: Final = 45
"""A stream of events ends after so many seconds, before `TAKING_S`; who listens comes back, and goes on."""
BEAT_S: Final = 15  # nothing new is said in a stream every so many seconds
MOST_STREAMS: Final = MOST_AT_ONCE // 2  # streams of events at the same time
MOST_STREAMS_OF_ADDRESS: Final = 8  # of these, so that one address does not keep all others out
LEAVE_S: Final = 1.0  # how long open answers may take when the server stops, in seconds
_FILES: Final = {
    "/page.css": (f"{STYLE}\n{packaged('v8.app', 'page.css')}", "text/css"),
    "/page.js": (packaged("v8.app", "page.js"), "text/javascript"),
    "/icon.svg": (packaged("v8.app", "icon.svg"), "image/svg+xml"),
    "/api": (packaged("v8.app", "api.html"), "text/html"),
    "/api.css": (packaged("v8.app", "api.css"), "text/css"),
    "/api.js": (packaged("v8.app", "api.js"), "text/javascript"),
}


Page = tuple[Html, int, dict[str, str]]  # markup, the status that goes with it, and headers
Event = tuple[int, str, bytes]  # its number, its kind and its content


class BusyError(DataError):
    """Work that takes longer than anybody should wait."""


class Site:
    """The routes: a desk is shown, whose candles come from a source of that name."""

    def __init__(self, desk: Desk, source: str) -> None:
        self._desk = desk
        self._errors = Counter[str]()
        self._begun = f"{time.time():.0f}"
        self._num_events = 0
        self._events = dict[Series, tuple[Any, Event]]()
        self.routes: Final[dict[str, Callable[[Request], Awaitable[Response]]]] = {
            **dict.fromkeys(("/", "/part"), partial(_speaking, self._overview)),
            **dict.fromkeys(("/series/{series}", "/part/{series}"), partial(_speaking, self._about)),
            "/api/series": partial(_telling, lambda: answers.series_list(desk.fleet)),
            "/api/leaderboard": partial(_telling, lambda: answers.leaderboard(desk.fleet)),
            "/api/health": partial(_telling, lambda: answers.health(desk.fleet, source, desk.now_s())),
            "/openapi.json": partial(_telling, answers.description),
            "/api/forecast/{series}": self._forecast,
            "/api/candles/{series}": self._candles,
            "/api/track/{series}": self._track,
            "/api/stream": self._stream,
            "/metrics": self._metrics,
            **dict.fromkeys(_FILES, self._file),
        }

    async def _overview(self, request: Request) -> Page:
        """Return a tile a series, or their page; a series in the query is led to its own address."""
        name = request.query_params.get("series")
        if name:
            return Html(""), 308, {"location": f"/series/{self._series(name)}"}
        fleet = self._desk.fleet
        sought = request.query_params.get("q", "")
        part = page.tiles(fleet, self._desk.newest, self._desk.overview(), sought)
        content = part if _is_part(request) else page.overview_page(fleet, part, sought)
        return content, 200, {"cache-control": f"private, max-age={RENEWED_S:.0f}"}

    async def _about(self, request: Request) -> Page:
        """Return the part of a page about one series, or its page."""
        series = self._series(request.path_params["series"])
        kept = self._desk.forecast(series)
        try:
            found: page.Shown = await _finished(kept)
            record = page.record_part(await _finished(self._desk.record()), series)
            part = join([found.part, record])
            status = 200
            headers = {"cache-control": self._freshness(kept)}
        except V8Error as error:
            self._errors[type(error).__name__] += 1
            part = page.trouble(answers.fault_of(error, str(series)), "alert")
            status = 503
            headers = {"retry-after": f"{RETRY_S:.0f}"}
        content = part if _is_part(request) else page.series_page(self._desk.fleet, series, part)
        return content, status, headers

    async def _file(self, request: Request) -> Response:
        content, kind = _FILES[request.scope["path"]]
        return Response(content, 200, {"cache-control": "max-age=3600"}, f"{kind}; charset=utf-8")

    async def _forecast(self, request: Request) -> Response:
        kept = self._desk.forecast(self._series(request.path_params["series"]))
        found: page.Shown = await _finished(kept)
        return json_answer(found.content, cache_control=self._freshness(kept))

    async def _candles(self, request: Request) -> Response:
        series = self._series(request.path_params["series"])
        most = answers.limit_of(request.query_params.get("limit"))
        kept = self._desk.forecast(series)
        found: page.Shown = await _finished(kept)
        return json_answer(answers.candles(found.issued, most), cache_control=self._freshness(kept))

    async def _metrics(self, request: Request) -> Response:
        fleet = self._desk.fleet
        newest = self._desk.newest
        done = {series: newest[series] for series in fleet.metadata if series in newest}
        issued = {series: getattr(one, "issued", one) for series, one in done.items()}
        requests: Counter[tuple[str, int]] = request.app.state.requests
        text = answers.metrics(fleet, issued, self._desk.now_s(), requests, self._errors)
        return Response(text, 200, {"cache-control": "no-store"}, "text/plain; version=0.0.4; charset=utf-8")

    async def _track(self, request: Request) -> Response:
        series = self._series(request.path_params["series"])
        return json_answer(answers.track(await _finished(self._desk.record()), series))

    async def _stream(self, request: Request) -> Response:
        """Send the newest of each series, or what came since an event, and then what comes."""
        path = request.scope["path"]
        again_s = f"{RETRY_S:.0f}"
        # The request itself is among those that are counted.
        if request.app.state.now_of_address[path, address_of(request.scope)] > MOST_STREAMS_OF_ADDRESS:
            rule = f"has at most {MOST_STREAMS_OF_ADDRESS} streams at once"
            return refused(429, "your address", rule, "more", "End one, or ask again", retry_after=again_s)
        if request.app.state.now[path] > MOST_STREAMS:
            rule = f"sends {MOST_STREAMS} streams at once"
            return refused(503, "the server", rule, "more", "Ask again", retry_after=again_s)
        begun, _, number = request.headers.get("last-event-id", "").partition("-")
        is_ours = begun == self._begun and re.fullmatch("[0-9]{1,9}", number)
        named = {"cache-control": "no-store", "x-accel-buffering": "no"}
        kind = "text/event-stream"
        if request.method == "HEAD":
            return Response(b"", 200, named, kind)
        return StreamingResponse(self._told_since(int(number) if is_ours else 0), 200, named, kind)

    async def _told_since(self, seen: int) -> AsyncIterator[str]:
        """Yield events behind a number (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
        yield "retry: 1000\n\n"
        for second in range(STREAM_S):
            self._desk.overview()
            told = sorted(event for event in self._newest_events() if event[0] > seen)
            for number, kind, content in told:
                yield f"id: {self._begun}-{number}\nevent: {kind}\ndata: {content.decode()}\n\n"
                seen = number
            if not told and second % BEAT_S == 0:
                yield ": nothing new\n\n"
            await asyncio.sleep(1)

    def _newest_events(self) -> list[Event]:
        """Return the newest of each series; what was not there when it was asked for last is numbered."""
        served = self._desk.fleet.metadata
        for series in served:
            if isinstance(found := self._desk.newest.get(series), Exception):
                fault = {"series": str(series), **answers.fault_of(found, str(series))}
                kind = "fault"
                content = answers.written(fault)
                key: Any = content
            elif found:
                kind = "forecast"
                content = found.content
                key = found.issued.closed_s, found.issued.forecaster.about.model_sha256
            if found and (series not in self._events or self._events[series][0] != key):
                self._num_events += 1
                self._events[series] = key, (self._num_events, kind, content)
        return [event for series, (_, event) in self._events.items() if series in served]

    def _series(self, name: str) -> Series:
        known = self._desk.fleet.metadata
        found = next((series for series in known if str(series) == name), None)
        if found is None:
            raise answers.unknown_series(name, known)
        return found

    async def on_error(self, request: Request, error: Any) -> Response:
        """Tell what strangers may read; of a mistake of ours the server's own output has the traceback."""
        if isinstance(error, HTTPException):
            rule = "is one that /openapi.json lists"
            status = error.status_code
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
    inner.state.now = guard.now
    inner.state.now_of_address = guard.now_of_address
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
        with stop_signals_handled_by(self.handle_exit):
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
        rule = f"answers within {WAIT_S:.0f} s"
        got = "work that is not done yet"
        raise BusyError(where="the server", rule=rule, got=got, fix="Ask again in a moment") from None


async def _telling(told: Callable[[], dict[str, Any]], request: Request) -> Response:
    """Answer at once, whatever is asked."""
    return json_answer(told())


def _is_part(request: Request) -> bool:
    return request.scope["path"].startswith("/part")


async def _speaking(told: Callable[[Request], Awaitable[Page]], request: Request) -> Response:
    """Answer in the language that the address asks for, or else the browser; not what the asker has."""
    asked = request.query_params.get("lang")
    wished = preferred(request.headers.get("accept-language", ""))
    with language(asked if asked in LANGUAGES else wished):
        content, status, headers = await told(request)
    tag = f'"{digest_bytes(content.encode())}"'
    if status == 200 and request.headers.get("if-none-match") == tag:
        status = 304
        content = Html("")
    named = {"cache-control": "no-store", "etag": tag, "vary": "Accept-Language", **headers}
    return Response(content, status, named, "text/html; charset=utf-8")
