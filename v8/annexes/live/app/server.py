"""The server: its routes over a `ForecastService`, its listening socket and its settings.

Nothing that a request starts runs without a limit: work is shared (`v8.annexes.live.app.desk`), a request
waits for it `WAIT_S` at most, a stream of events ends after `STREAM_S`, and only GET and HEAD are answered.
Pages and answers about all series are written in threads, because the event loop answers all others
meanwhile.
"""

import asyncio
import math
import os
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from v8.annexes.live.app import answers, page
from v8.annexes.live.app.connections import (
    IDLE_TIMEOUT_S,
    Connection,
    ConnectionLimiter,
    ListeningSocket,
    Notify,
)
from v8.annexes.live.app.desk import RECORD_S, RETRY_S, CachedResult, ForecastService
from v8.annexes.live.app.forecast_view import ForecastView
from v8.annexes.live.app.guard import (
    MAX_CONCURRENT_REQUESTS,
    AccessMiddleware,
    AccessPolicy,
    ErrorResponse,
    address_of,
    error_response,
    json_response,
    language_of,
)
from v8.annexes.live.app.places import is_demo
from v8.annexes.live.app.record_part import record_part, whole_record_part
from v8.annexes.live.app.tiles import Selection, error_paragraph, tile_list
from v8.base.errors import DataError, ProfileError, V8Error
from v8.base.process import stop_signals_handled_by
from v8.base.storage import digest_bytes, packaged
from v8.base.wording import language
from v8.data.market.series import Series
from v8.publish.report.markup import STYLE, TOUCH, Html, join

WAIT_S: Final = 20.0  # a request waits for work at most so long, in seconds; the work goes on
OVERVIEW_MAX_AGE_S: Final = 5.0  # browsers request the overview again after so many seconds
STREAM_S: Final = 45
"""A stream of events ends after so many seconds, before `RESPONSE_TIMEOUT_S`; clients connect again."""
HEARTBEAT_S: Final = 15  # seconds between two signs of life in a stream without events
MAX_STREAMS: Final = MAX_CONCURRENT_REQUESTS // 2  # streams of events at the same time
MAX_STREAMS_PER_ADDRESS: Final = 8  # of these, so that one address does not keep all others out
NUM_WRITERS: Final = 4  # threads that write answers; of more, each would keep the event loop waiting longer
SHUTDOWN_S: Final = 1.0  # how long open responses may take when the server stops, in seconds
_FILES: Final = {
    "/page.css": (f"{STYLE}\n{packaged('v8.annexes.live.app', 'page.css')}", "text/css"),
    "/page.js": (packaged("v8.annexes.live.app", "page.js"), "text/javascript"),
    "/overview.js": (packaged("v8.annexes.live.app", "overview.js"), "text/javascript"),
    "/alerts.js": (packaged("v8.annexes.live.app", "alerts.js"), "text/javascript"),
    "/chart.js": (packaged("v8.annexes.live.app", "chart.js"), "text/javascript"),
    "/lightweight-charts.js": (packaged("v8.base.vendor", "lightweight-charts.js"), "text/javascript"),
    "/touch.js": (TOUCH, "text/javascript"),
    "/icon.svg": (packaged("v8.annexes.live.app", "icon.svg"), "image/svg+xml"),
    "/api.css": (packaged("v8.annexes.live.app", "api.css"), "text/css"),
    "/api.js": (packaged("v8.annexes.live.app", "api.js"), "text/javascript"),
}


Answer = TypeVar("Answer")


class PageContent(NamedTuple):
    """The content of a response with a page, or a part of one."""

    markup: Html
    status: int
    headers: dict[str, str]


class Event(NamedTuple):
    """A server-sent event."""

    number: int
    kind: str  # "forecast" or "fault"
    content: bytes  # JSON


class BusyError(DataError):
    """Work that takes longer than a request waits."""


class Site:
    """The routes of the server.

    Args:
        service: Provides forecasts, models and live record.
        source: Name of the source of candles.
    """

    def __init__(self, service: ForecastService, source: str) -> None:
        self._service = service
        self._source = source
        self._errors = Counter[str]()
        """Numbers of answers with an error, by its kind."""
        self._writers = ThreadPoolExecutor(NUM_WRITERS, thread_name_prefix="v8-page")
        self._server_id = f"{time.time():.0f}"
        self._num_events = 0
        self._events = dict[Series, tuple[Any, Event]]()
        """The newest event of each series, and the key that distinguishes it from the one before."""
        overview = partial(_answer_page, self._overview)
        series_page = partial(_answer_page, self._series_page)
        record_page = partial(_answer_page, self._record_page)
        self.routes: Final[dict[str, Callable[[Request], Awaitable[Response]]]] = {
            "/": overview,
            "/part": overview,
            "/series/{series}": series_page,
            "/part/{series}": series_page,
            "/record": record_page,
            "/part-record": record_page,
            "/api": partial(_answer_page, self._api_page),
            "/api/series": self._series_list,
            "/api/leaderboard": self._leaderboard,
            "/api/health": self._health,
            "/openapi.json": self._description,
            "/api/forecast/{series}": self._forecast,
            "/api/candles/{series}": self._candles,
            "/api/chart/{series}": self._chart,
            "/api/track/{series}": self._track,
            "/api/stream": self._stream,
            "/metrics": self._metrics,
            **dict.fromkeys(_FILES, self._file),
        }

    async def _overview(self, request: Request) -> PageContent:
        """Return the tiles of all series, or their page; `?series=` redirects to the page of a series."""
        name = request.query_params.get("series")
        if name:
            return PageContent(Html(""), 308, {"location": f"/series/{self._find_series(name)}"})
        snapshot = self._service.snapshot
        selection = Selection.from_query(request.query_params)
        self._service.prepare()

        def write() -> Html:
            part = tile_list(snapshot, self._service.newest, selection)
            return part if _is_part(request) else page.overview_page(snapshot, part, selection, self._source)

        content = await self._written(write)
        return PageContent(content, 200, {"cache-control": f"private, max-age={OVERVIEW_MAX_AGE_S:.0f}"})

    async def _written(self, write: Callable[[], Answer]) -> Answer:
        """Write an answer in a thread, in the language of this request.

        Raises:
            BusyError: If it takes longer than `WAIT_S`.
        """
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(self._writers, copy_context().run, write)
        return await _in_time(writing)  # what has not begun by then is never written

    @property
    def _is_demo(self) -> bool:
        return is_demo(self._service.snapshot, self._source)

    async def _series_page(self, request: Request) -> PageContent:
        """Return the part of a page about one series, or its page."""
        series = self._find_series(request.path_params["series"])
        result = self._service.forecast(series)
        try:
            view: ForecastView = await _wait_for(result)
            record = await _wait_for(self._service.record())

            def write() -> Html:
                return join([view.part, record_part(record, series, is_demo=self._is_demo)])

            part = await self._written(write)
            status = 200
            headers = {"cache-control": self._cache_control(result)}
        except V8Error as error:
            self._errors[type(error).__name__] += 1
            part = error_paragraph(answers.public_error_json(error, str(series)), "alert")
            status = 503
            headers = {"retry-after": f"{RETRY_S:.0f}"}
        content = part if _is_part(request) else page.series_page(self._service.snapshot, series, part)
        return PageContent(content, status, headers)

    async def _record_page(self, request: Request) -> PageContent:
        """Return the part about the live record of all series, or its page."""
        record = await _wait_for(self._service.record())
        snapshot = self._service.snapshot

        def write() -> Html:
            part = whole_record_part(record, snapshot.label, self._source, is_demo=self._is_demo)
            return part if _is_part(request) else page.record_page(snapshot, part, self._source)

        content = await self._written(write)
        return PageContent(content, 200, {"cache-control": f"private, max-age={RECORD_S:.0f}"})

    async def _api_page(self, request: Request) -> PageContent:
        """Return the page of the JSON API."""
        content = await self._written(partial(page.api_page, self._service.snapshot, self._source))
        return PageContent(content, 200, {"cache-control": "private, no-cache"})

    async def _file(self, request: Request) -> Response:
        content, media_type = _FILES[request.scope["path"]]
        return Response(content, 200, {"cache-control": "max-age=3600"}, f"{media_type}; charset=utf-8")

    async def _series_list(self, request: Request) -> Response:
        return await self._written_json(answers.series_list, self._service.snapshot)

    async def _leaderboard(self, request: Request) -> Response:
        return await self._written_json(answers.leaderboard, self._service.snapshot)

    async def _written_json(
        self, make: Callable[..., dict[str, Any]], *values: Any, cache_control: str = "no-store"
    ) -> Response:
        """Answer with the JSON values that a function returns; all is done in a thread."""
        content = await self._written(lambda: answers.encode_json(make(*values)))
        return json_response(content, cache_control=cache_control)

    async def _health(self, request: Request) -> Response:
        snapshot = self._service.snapshot
        return json_response(answers.health(snapshot, self._source, self._service.now_s()))

    async def _description(self, request: Request) -> Response:
        return await self._written_json(answers.description)

    async def _forecast(self, request: Request) -> Response:
        result = self._service.forecast(self._find_series(request.path_params["series"]))
        view: ForecastView = await _wait_for(result)
        return json_response(view.content, cache_control=self._cache_control(result))

    async def _candles(self, request: Request) -> Response:
        series = self._find_series(request.path_params["series"])
        max_rows = answers.limit_of(request.query_params.get("limit"))
        result = self._service.forecast(series)
        view: ForecastView = await _wait_for(result)
        return await self._written_json(
            answers.candles, view.issued, max_rows, cache_control=self._cache_control(result)
        )

    async def _chart(self, request: Request) -> Response:
        result = self._service.forecast(self._find_series(request.path_params["series"]))
        view: ForecastView = await _wait_for(result)
        content = await _wait_for(self._service.chart(view.issued))
        return json_response(content, cache_control=self._cache_control(result))

    async def _metrics(self, request: Request) -> Response:
        snapshot = self._service.snapshot
        # Copies, because others change them while a thread writes.
        newest = dict(self._service.newest)
        requests = Counter[tuple[str, int]](request.app.state.requests)
        errors = Counter(self._errors)

        def write() -> str:
            issued = {}
            for series in snapshot.metadata:
                if series in newest:
                    view = newest[series]
                    issued[series] = getattr(view, "issued", view)  # an error has none and stays itself
            return answers.metrics(snapshot, issued, self._service.now_s(), requests, errors)

        text = await self._written(write)
        return Response(text, 200, {"cache-control": "no-store"}, "text/plain; version=0.0.4; charset=utf-8")

    async def _track(self, request: Request) -> Response:
        series = self._find_series(request.path_params["series"])
        record = await _wait_for(self._service.record())
        return await self._written_json(answers.track, record, series)

    async def _stream(self, request: Request) -> Response:
        """Send the newest event of each series, or those after an event, and then the coming ones."""
        path = request.scope["path"]
        retry_after = f"{RETRY_S:.0f}"
        active_by_address = request.app.state.active_by_address
        # The request itself is among those that are counted.
        if active_by_address[path, address_of(request.scope)] > MAX_STREAMS_PER_ADDRESS:
            rule = f"has at most {MAX_STREAMS_PER_ADDRESS} streams at once"
            fix = "End one, or ask again"
            return error_response(429, "your address", rule, "more", fix, retry_after=retry_after)
        if request.app.state.active[path] > MAX_STREAMS:
            rule = f"sends {MAX_STREAMS} streams at once"
            return error_response(503, "the server", rule, "more", "Ask again", retry_after=retry_after)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        media_type = "text/event-stream"
        if request.method == "HEAD":
            return Response(b"", 200, headers, media_type)
        last_number = self._last_event_number(request)
        return StreamingResponse(self._events_after(last_number), 200, headers, media_type)

    def _last_event_number(self, request: Request) -> int:
        """Return the number of the last event that a client has read; 0 if it has none of this server."""
        server_id, _, number = request.headers.get("last-event-id", "").partition("-")
        if server_id == self._server_id and re.fullmatch("[0-9]{1,9}", number):
            return int(number)
        return 0

    async def _events_after(self, last_number: int) -> AsyncIterator[str]:
        """Yield events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
        yield "retry: 1000\n\n"
        for second in range(STREAM_S):
            self._service.prepare()
            events = sorted(event for event in self._newest_events() if event.number > last_number)
            for event in events:
                event_id = f"{self._server_id}-{event.number}"
                yield f"id: {event_id}\nevent: {event.kind}\ndata: {event.content.decode()}\n\n"
                last_number = event.number
            if not events and second % HEARTBEAT_S == 0:
                yield ": nothing new\n\n"
            await asyncio.sleep(1)

    def _newest_events(self) -> list[Event]:
        """Return the newest event of each series; events that are new since the last call get a number."""
        shown_series = self._service.snapshot.metadata
        for series in shown_series:
            view = self._service.newest.get(series)
            if not view:
                continue
            key: Any
            if isinstance(view, Exception):
                kind = "fault"
                error = {"series": str(series), **answers.public_error_json(view, str(series))}
                content = answers.encode_json(error)
                key = content
            else:
                kind = "forecast"
                content = view.content
                key = (view.issued.closed_s, view.issued.forecaster.about.model_sha256)
            if series not in self._events or self._events[series][0] != key:
                self._num_events += 1
                self._events[series] = (key, Event(self._num_events, kind, content))
        return [event for series, (_, event) in self._events.items() if series in shown_series]

    def _find_series(self, name: str) -> Series:
        shown_series = self._service.snapshot.metadata
        for series in shown_series:
            if str(series) == name:
                return series
        raise answers.unknown_series(name, shown_series)

    async def on_error(self, request: Request, error: Any) -> Response:
        """Answer with what anybody may read of an error; the output of the server has the traceback."""
        if isinstance(error, HTTPException):
            rule = "is one that /openapi.json lists"
            return error_response(error.status_code, "address", rule, "another", "Look there")
        content = answers.public_error_json(error, request.path_params.get("series", "the server"))
        if isinstance(error, answers.RequestError):
            return ErrorResponse(content, error.status)
        self._errors[type(error).__name__] += 1
        if isinstance(error, V8Error):
            return ErrorResponse(content, 503, retry_after=f"{RETRY_S:.0f}")
        return ErrorResponse(content, 500)

    def _cache_control(self, result: CachedResult) -> str:
        remaining_s = result.until_s - self._service.now_s()
        # Private, so that no proxy hands an answer to others.
        return f"private, max-age={max(1, math.ceil(remaining_s))}"


def make_application(site: Site, policy: AccessPolicy) -> AccessMiddleware:
    """Return the application with all routes of a site behind the access control."""
    routes = [Route(path, answer, methods=["GET"]) for path, answer in site.routes.items()]
    kinds: tuple[Any, ...] = (HTTPException, V8Error, Exception)
    application = Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, site.on_error))
    application.router.redirect_slashes = False
    middleware = AccessMiddleware(application, policy, _FILES.keys())
    application.state.requests = middleware.requests
    application.state.active = middleware.active
    application.state.active_by_address = middleware.active_by_address
    return middleware


def open_listener(host: str, port: int, notify: Notify = lambda text: None) -> ListeningSocket:
    """Return a listening socket.

    Args:
        host: Name or address of this machine.
        port: The port; 0 takes any free one.
        notify: Is called if there are too many idle connections.

    Raises:
        ProfileError: If the address is none of this machine, or the port is not free.
    """
    try:
        address_info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = address_info[0]
        # The protocol is named: asyncio sends at once only on sockets that say they are TCP; on others every
        # answer of two parts waits 40 ms for the reader's acknowledgement of the first.
        listener = ListeningSocket(family, kind, protocol, ConnectionLimiter(notify))
        with ExitStack() as on_failure:
            on_failure.callback(listener.close)
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
            on_failure.pop_all()
        return listener
    except (OSError, OverflowError) as error:
        got = getattr(error, "strerror", None) or type(error).__name__
        location = f"param:host {host} param:port {port}"
        rule = "is an address of this machine and a port that is free"
        fix = "Stop what listens there, or choose another param:port; 0 takes any that is free"
        raise ProfileError(where=location, rule=rule, got=got, fix=fix) from error


class _Server(uvicorn.Server):
    """Ends at the signals that end every command, and at no others."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with stop_signals_handled_by(self.handle_exit):
            yield


def make_server(app: AccessMiddleware, limiter: ConnectionLimiter) -> uvicorn.Server:
    """Return the server of an application: `run(sockets=[...])`, until `should_exit`.

    Nothing that clients send is logged; only the limiter of the sockets notifies the operator.
    """
    connection: Any = partial(Connection, limiter=limiter, headers=app.headers)
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=connection,
        proxy_headers=False,  # anybody can write them; a proxy, if there is one, has better limits of its own
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=16_384,
        backlog=limiter.accept_batch,
        timeout_keep_alive=math.ceil(IDLE_TIMEOUT_S),
        timeout_graceful_shutdown=math.ceil(SHUTDOWN_S),
    )
    return _Server(config)


async def _wait_for(result: CachedResult) -> Any:
    """Wait for a result; a request that ends meanwhile does not stop the work.

    Raises:
        BusyError: If it takes longer than `WAIT_S`.
    """
    if result.future.done():
        return result.future.result()
    with result.awaited():
        return await _in_time(asyncio.shield(asyncio.wrap_future(result.future)))


async def _in_time(answer: Awaitable[Answer]) -> Answer:
    try:
        return await asyncio.wait_for(answer, WAIT_S)
    except TimeoutError:
        rule = f"answers within {WAIT_S:.0f} s"
        got = "work that is not done yet"
        raise BusyError(where="the server", rule=rule, got=got, fix="Ask again in a moment") from None


def _is_part(request: Request) -> bool:
    return request.scope["path"].startswith("/part")


async def _answer_page(make_page: Callable[[Request], Awaitable[PageContent]], request: Request) -> Response:
    """Answer with a page in the language of the address, or else of the browser; 304 if it has that page."""
    with language(language_of(request)):
        content, status, headers = await make_page(request)
    tag = f'"{digest_bytes(content.encode())}"'
    if status == 200 and request.headers.get("if-none-match") == tag:
        status = 304
        content = Html("")
    all_headers = {"cache-control": "no-store", "etag": tag, "vary": "Accept-Language", **headers}
    return Response(content, status, all_headers, "text/html; charset=utf-8")
