"""`python -m v8 app`: its routes over a `ForecastService`, on this machine only by default.

Nothing that a request starts runs without a limit: work is shared (`v8.annexes.live.app.service`), a request
waits for it `WAIT_S` at most, a stream of events ends after `STREAM_S`, and only GET and HEAD are answered.
Pages and answers about all series are written in threads, because the event loop answers all others
meanwhile.
"""

import asyncio
import math
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from v8.annexes.live.app import answers, page
from v8.annexes.live.app.connections import make_server, open_listener
from v8.annexes.live.app.forecast_view import ForecastView
from v8.annexes.live.app.guard import (
    MAX_CONCURRENT_REQUESTS,
    TOKEN_VARIABLE,
    AccessMiddleware,
    AccessPolicy,
    ErrorResponse,
    address_of,
    allowed_hosts,
    error_response,
    in_url,
    is_loopback,
    json_response,
    language_of,
)
from v8.annexes.live.app.page import record_part, whole_record_part
from v8.annexes.live.app.service import (
    RECORD_S,
    RETRY_S,
    CachedResult,
    ForecastIssuer,
    ForecastService,
    LedgerReader,
    ModelSource,
    RecordError,
    is_demo,
)
from v8.annexes.live.app.tiles import Selection, error_paragraph, tile_list
from v8.base.errors import DataError, ProfileError, V8Error
from v8.base.process import quiet_start, set_exit_message
from v8.base.storage import digest_bytes, packaged
from v8.base.terminal import print_message
from v8.base.wording import language
from v8.cli.shared import LOOPBACK, settle_process
from v8.data.market.series import Series
from v8.data.market.sources import CandleSource, present_of
from v8.forecaster.shared_models import AUTO
from v8.publish.report.markup import STYLE, TOUCH, Html, join
from v8.runs.run_folder import folder_advice

WAIT_S: Final = 20.0  # a request waits for work at most so long, in seconds; the work goes on
OVERVIEW_MAX_AGE_S: Final = 5.0  # browsers request the overview again after so many seconds
STREAM_S: Final = 45
"""A stream of events ends after so many seconds, before `RESPONSE_TIMEOUT_S`; clients connect again."""
HEARTBEAT_S: Final = 15  # seconds between two signs of life in a stream without events
MAX_STREAMS: Final = MAX_CONCURRENT_REQUESTS // 2  # streams of events at the same time
MAX_STREAMS_PER_ADDRESS: Final = 8  # of these, so that one address does not keep all others out
NUM_WRITERS: Final = 4  # threads that write answers; of more, each would keep the event loop waiting longer
HUB_PAGE: Final = "https://huggingface.co"
"""Its pages show a Space in a frame."""
_FILES: Final = {
    "/page.css": (f"{STYLE}\n{packaged('v8.annexes.live.app', 'page.css')}", "text/css"),
    "/page.js": (packaged("v8.annexes.live.app", "page.js"), "text/javascript"),
    "/overview.js": (packaged("v8.annexes.live.app", "overview.js"), "text/javascript"),
    "/alerts.js": (packaged("v8.annexes.live.app", "alerts.js"), "text/javascript"),
    "/chart.js": (packaged("v8.annexes.live.app", "chart.js"), "text/javascript"),
    "/lightweight-charts.js": (packaged("v8.base", "vendor/lightweight-charts.js"), "text/javascript"),
    "/touch.js": (TOUCH, "text/javascript"),
    "/icon.svg": (packaged("v8.annexes.live.app", "icon.svg"), "image/svg+xml"),
    "/api.css": (packaged("v8.annexes.live.app", "api.css"), "text/css"),
    "/api.js": (packaged("v8.annexes.live.app", "api.js"), "text/javascript"),
}


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
        raise ProfileError(
            where=str(models.location),
            rule="is a run folder",
            got="no such folder",
            fix=folder_advice(models.location, "Check the path, or name a repository with param:repo"),
        )
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
            raise ProfileError(
                where=f"param:host {name}",
                rule="is an address that other machines reach, so whoever asks must show a token",
                got=f"no {TOKEN_VARIABLE}",
                fix=f"Set {TOKEN_VARIABLE} to 16 letters or more, or let everybody read with param:no_token",
            )
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
            chart=partial(answers.chart, source=candles, ledger=record_reader),
            notify=print_message,
        )
        service.start(WAIT_S)
    print_message(f"{service.snapshot.label}: http://{in_url(name)}:{port}/ (Ctrl-C stops it)")
    site = Site(service, candles.name, has_own_ledger=not record_reader.is_default)
    application = make_application(site, policy)
    try:
        make_server(application, listener.limiter).run(sockets=[listener])
    finally:
        service.close()
    # Only a signal ends the server; the command then ends as every other one that is interrupted.
    raise KeyboardInterrupt


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
        has_own_ledger: Whether another ledger than the default is shown.
    """

    def __init__(self, service: ForecastService, source: str, *, has_own_ledger: bool = False) -> None:
        self._service = service
        self._source = source
        self._has_own_ledger = has_own_ledger
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
            "/api/series": _with_query(self._series_list),
            "/api/leaderboard": _with_query(self._leaderboard),
            "/api/health": self._health,
            "/openapi.json": self._description,
            "/api/forecast/{series}": _with_query(self._forecast),
            "/api/candles/{series}": _with_query(self._candles, "limit"),
            "/api/chart/{series}": _with_query(self._chart),
            "/api/track/{series}": _with_query(self._track),
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
            record = None
            is_readable = True
            try:
                record = await _wait_for(self._service.record())
            except RecordError as error:
                self._errors[type(error).__name__] += 1
                is_readable = False

            def write() -> Html:
                own = record_part(record, series, is_demo=self._is_demo, is_readable=is_readable)
                return join([view.part, own])

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
            part = whole_record_part(
                record,
                snapshot.label,
                self._source,
                is_demo=self._is_demo,
                has_own_ledger=self._has_own_ledger,
            )
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
            return error_response(
                429,
                where="your address",
                rule=f"has at most {MAX_STREAMS_PER_ADDRESS} streams at once",
                got="more",
                fix="End one, or ask again",
                retry_after=retry_after,
            )
        if request.app.state.active[path] > MAX_STREAMS:
            return error_response(
                503,
                where="the server",
                rule=f"sends {MAX_STREAMS} streams at once",
                got="more",
                fix="Ask again",
                retry_after=retry_after,
            )
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
            return error_response(
                error.status_code,
                where="address",
                rule="is one that /openapi.json lists",
                got="another",
                fix="Look there",
            )
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
        raise BusyError(
            where="the server",
            rule=f"answers within {WAIT_S:.0f} s",
            got="work that is not done yet",
            fix="Ask again in a moment",
        ) from None


def _with_query(
    answer: Callable[[Request], Awaitable[Response]], *names: str
) -> Callable[[Request], Awaitable[Response]]:
    """Return a route that reads some parameters of the query, and refuses others."""

    async def checked(request: Request) -> Response:
        answers.require_query(request.query_params.multi_items(), names)
        return await answer(request)

    return checked


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
