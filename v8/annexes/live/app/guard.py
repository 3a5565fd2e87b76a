"""Access control before every route, and errors for requests that are not valid.

A page on this machine can be attacked by other pages in the same browser (DNS rebinding): a foreign host name
that resolves to this machine must not open it. So the header Host must be a name of this machine as long as
only this machine can connect. The page loads only its own files; it cannot be framed, its types are not
guessed, and it sends no referrer.

If other machines may connect, a token can be required. A program sends it as `Authorization: Bearer`. In a
browser the login page adds `?token=` to the address; the server answers with a cookie and redirects the
browser to the same address without the token. The cookie is computed from the token, and the token cannot be
computed from it. Tokens are compared in constant time. `/api/health` is answered to everybody.

Requests are counted by client address. Behind a proxy all clients share that of the proxy: headers with the
client's address are not read, because anybody can write them.
"""

import hmac
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Final

from starlette.datastructures import URL
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from v8.annexes.live.app.answers import encode_json, error_json
from v8.annexes.live.app.page import error_page
from v8.base.errors import ProfileError, shown
from v8.base.storage import packaged
from v8.base.wording import LANGUAGES, language, preferred

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
MAX_CONCURRENT_REQUESTS: Final = 128  # requests that are answered or wait at the same time
MAX_ADDRESSES: Final = 10_000
"""Addresses whose requests are counted; the one that was added first is removed first."""
OTHER: Final = "other"  # route under which requests without a route are counted
_MAX_URL_LENGTH: Final = 2_048  # letters of a path or a query
_LENGTH_HEADERS: Final = frozenset({b"content-length", b"transfer-encoding"})
_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors "
)
TOKEN_VARIABLE: Final = "V8_APP_TOKEN"  # noqa: S105 - its name
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~-]{16,256}")  # nothing that a header, cookie or address would quote
_ORIGIN: Final = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?|\*")
_HEALTH: Final = "/api/health"
_LOGIN: Final = packaged("v8.annexes.live.app", "login.html")
_MINUTE_S: Final = 60.0
_MONTH_S: Final = 30 * 86_400


def json_response(content: bytes | dict[str, Any], status: int = 200, **headers: str) -> Response:
    """Answer with JSON; underscores in names of headers become dashes."""
    body = content if isinstance(content, bytes) else encode_json(content)
    return Response(body, status, _uncached(headers), "application/json")


def _uncached(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a response, which is not stored unless they say so."""
    return {"cache-control": "no-store"} | {name.replace("_", "-"): text for name, text in headers.items()}


class ErrorResponse(Response):
    """An error: a page for browsers, JSON for programs, as the header Accept of the request says.

    Args:
        content: The error as JSON values.
        status: The status of HTTP.
        headers: Of the response; underscores in their names become dashes.
    """

    def __init__(self, content: dict[str, Any], status: int, **headers: str) -> None:
        self._content = content
        self._all_headers = _uncached({"vary": "Accept, Accept-Language", **headers})
        super().__init__(encode_json(content), status, self._all_headers, "application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the page or the JSON."""
        request = Request(scope)
        if not accepts_pages(request):
            await super().__call__(scope, receive, send)
            return
        with language(language_of(request)):
            page = error_page(self.status_code, self._content)
        response = Response(page, self.status_code, self._all_headers, "text/html; charset=utf-8")
        await response(scope, receive, send)


def error_response(status: int, *, where: str, rule: str, got: str, fix: str, **headers: str) -> Response:
    """Answer with an error of four parts."""
    return ErrorResponse(error_json(where, rule, got, fix), status, **headers)


def language_of(request: Request) -> str:
    """Return the language that the address of a page requests, or else the browser."""
    requested = request.query_params.get("lang")
    if requested in LANGUAGES:
        return requested
    return preferred(request.headers.get("accept-language", ""))


def accepts_pages(request: Request) -> bool:
    """Return whether a request is one of a browser for a page."""
    return "text/html" in request.headers.get("accept", "")


@dataclass(frozen=True)
class AccessPolicy:
    """Who may send which requests. The token is shown nowhere.

    Raises:
        ProfileError: If an origin or the token is not valid.
    """

    hosts: frozenset[str] | None = LOOPBACK_NAMES  # allowed in the header Host, without a port; None: any
    frames: tuple[str, ...] = ()  # origins that may frame the page
    origins: tuple[str, ...] = ()  # origins whose pages may read the answers (CORS), "*" for any
    token: str | None = field(default=None, repr=False)  # that requests must send; None requires nothing
    max_per_minute: int | None = None  # requests of one address; None for any number

    def __post_init__(self) -> None:
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise ProfileError(
                    where="param:cors",
                    rule="is scheme, host and port of a page as browsers send them, in small letters, or *",
                    got=repr(origin),
                    fix="Write for example https://example.org or http://localhost:3000",
                )
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise ProfileError(
                where=TOKEN_VARIABLE,
                rule="is 16 to 256 letters, digits, dots, dashes, underscores and tildes, or is not set",
                got=f"another text of {len(self.token)} letters",
                fix="Make one: python -c 'import secrets; print(secrets.token_urlsafe())'",
            )


class AccessMiddleware:
    """Applies an access policy before an application, adds `headers` to every response, and counts them.

    Args:
        app: The application.
        policy: The access policy.
        open_paths: Paths that need no token.

    Attributes:
        requests: Numbers of responses by route, `OTHER` without one, and status.
        active: Numbers of requests that are not over, by path.
        active_by_address: Likewise by path and client address.
        headers: Headers of every response.
    """

    def __init__(self, app: ASGIApp, policy: AccessPolicy, open_paths: Collection[str] = ()) -> None:
        self._application = app
        self._hosts = policy.hosts
        self.active = Counter[str]()
        self.active_by_address = Counter[tuple[str, str]]()
        self._access = AccessControl(policy, open_paths)
        self._app: ASGIApp = self._check_and_forward
        if policy.origins:
            self._cors = CORSMiddleware(
                self._check_and_forward,
                allow_origins=policy.origins,
                allow_methods=("GET", "HEAD"),
                allow_headers=("Authorization", "Last-Event-ID"),
                expose_headers=("ETag", "Retry-After"),
            )
            self._app = self._count_preflights_and_forward
        frames = " ".join(policy.frames) or "'none'"
        self.requests: Final = Counter[tuple[str, int]]()
        self.headers: Final = (
            (b"content-security-policy", f"{_CONTENT_SECURITY_POLICY}{frames}".encode("ascii")),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or forward it."""
        if scope["type"] != "http":
            return

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self.headers]
                self.requests[_route(scope), message["status"]] += 1
            await send(message)

        path = scope["path"]
        path_and_address = (path, address_of(scope))
        self.active[path] += 1
        self.active_by_address[path_and_address] += 1
        try:
            await self._app(scope, receive, send_counted)
        finally:  # subtracting a counter changes it in place, and drops keys at zero
            self.active -= Counter([path])
            self.active_by_address -= Counter([path_and_address])

    async def _count_preflights_and_forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count preflight requests of CORS, which are answered without `_check_and_forward`."""
        refusal = self._access.rate_refusal(Request(scope)) if scope["method"] == "OPTIONS" else None
        await (refusal or self._cors)(scope, receive, send)

    async def _check_and_forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) or self._access.refusal(Request(scope))
        await (refusal or self._application)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not valid; None for one that is."""
        if self.active.total() > MAX_CONCURRENT_REQUESTS:
            return error_response(
                503,
                where="the server",
                rule=f"answers {MAX_CONCURRENT_REQUESTS} requests at once",
                got="more",
                fix="Ask again",
                retry_after="2",
            )
        if {name for name, _ in scope["headers"]} >= _LENGTH_HEADERS:
            # A proxy may have seen another end of the request, and another request behind it (smuggling).
            return error_response(
                400,
                where="header Content-Length",
                rule="is not used together with Transfer-Encoding",
                got="both",
                fix="Send one",
                connection="close",
            )
        method = scope["method"]
        if method not in ("GET", "HEAD"):
            return error_response(
                405,
                where="method",
                rule="is GET or HEAD",
                got=shown(method, 20),
                fix="Ask with GET",
                allow="GET, HEAD",
            )
        if max(len(scope["raw_path"] or b""), len(scope["query_string"])) > _MAX_URL_LENGTH:
            return error_response(
                400,
                where="address",
                rule=f"has at most {_MAX_URL_LENGTH:,} letters",
                got="more",
                fix="Ask for less",
            )
        if self._hosts is not None and _host(scope["headers"]) not in self._hosts:
            return error_response(
                400,
                where="header Host",
                rule=f"is one of {', '.join(sorted(self._hosts))}",
                got="another",
                fix="Open it by such a name",
            )
        return None


def _route(scope: Scope) -> str:
    """Return the route of a request as it is described: there are few, whatever is requested."""
    path: str = scope["path"] if "endpoint" in scope else OTHER
    for name, value in scope.get("path_params", {}).items():  # one at most, at the end
        path = f"{path.removesuffix(value)}{{{name}}}"
    return path


def _host(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the Host of a request in small letters, without its port; None unless there is exactly one.

    >>> _host([(b"host", b"LocalHost:8008")]), _host([(b"host", b"[::1]:80")]), _host([])
    ('localhost', '[::1]', None)
    """
    hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
    if len(hosts) != 1:
        return None
    name, colon, port = hosts[0].rpartition(":")
    return name if colon and port.isdigit() else hosts[0]


class AccessControl:
    """Admits requests that send the token, and limits the requests of an address in each minute.

    Args:
        policy: The access policy.
        open_paths: Paths that need no token and are not counted.
        clock: Returns seconds since any moment.
    """

    def __init__(
        self, policy: AccessPolicy, open_paths: Collection[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._token = policy.token
        self._max_per_minute = policy.max_per_minute
        self._open_paths = open_paths
        self._clock = clock
        self._minute = 0.0
        self._num_requests = Counter[str]()
        """Requests of the current minute by address."""
        digest = hmac.digest((policy.token or "").encode(), b"cookie of v8", "sha256").hex()
        # A browser sends a cookie to all ports of a host, so each server's cookie has a name of its own.
        self._cookie_name = f"v8_{digest[:8]}"
        self._cookie_value = digest[8:]

    def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is not admitted; None for one that is."""
        path = request.scope["path"]
        if path in self._open_paths:
            return None
        is_authorized = self._token is None or self._has_credentials(request)
        if path == _HEALTH:
            return None if is_authorized else json_response({"status": "ok"})
        refusal = self.rate_refusal(request)
        if refusal:
            return refusal
        if self._token and _is_equal(request.query_params.get("token", ""), self._token):
            return self._log_in(request)
        return None if is_authorized else _token_required(request)

    def rate_refusal(self, request: Request) -> Response | None:
        """Count a request; return the answer if its address has sent too many, else None."""
        if self._max_per_minute is None:
            return None
        wait_s = self._count_request(address_of(request.scope), self._max_per_minute)
        if not wait_s:
            return None
        return error_response(
            429,
            where="your address",
            rule=f"asks at most {self._max_per_minute:,} times a minute",
            got="more",
            fix=f"Ask again in {wait_s} s",
            retry_after=str(wait_s),
        )

    def _has_credentials(self, request: Request) -> bool:
        """Return whether a request sends the token, or the cookie that stands for it."""
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        has_token = scheme.lower() == "bearer" and _is_equal(credentials.strip(), self._token or "")
        return has_token or _is_equal(request.cookies.get(self._cookie_name, ""), self._cookie_value)

    def _log_in(self, request: Request) -> Response:
        """Set the cookie, and redirect the browser to the address without the token."""
        is_secure = request.headers.get("x-forwarded-proto") == "https"
        response = _redirect(request.url.remove_query_params("token"))
        response.set_cookie(
            self._cookie_name,
            self._cookie_value,
            max_age=_MONTH_S,
            secure=is_secure,
            httponly=True,
            samesite="lax",
        )
        return response

    def _count_request(self, address: str, max_per_minute: int) -> int:
        """Count a request of an address; return 0, or after how many seconds it may send another one."""
        minute, past_s = divmod(self._clock(), _MINUTE_S)
        if minute != self._minute:
            self._minute = minute
            self._num_requests = Counter()
        self._num_requests[address] += 1
        if len(self._num_requests) > MAX_ADDRESSES:
            del self._num_requests[next(iter(self._num_requests))]
        if self._num_requests[address] <= max_per_minute:
            return 0
        return int(_MINUTE_S - past_s) + 1


def address_of(scope: Scope) -> str:
    """Return the client address under which a request is counted."""
    host, _ = scope["client"] or ("::", 0)
    return network_of(host)


def network_of(host: str) -> str:
    """Return what counts as one address: of IPv6 the first 64 bits, which usually belong to one client.

    >>> network_of("192.0.2.7"), network_of("::ffff:192.0.2.7"), network_of("2001:db8::1:2:3:4%eth0")
    ('192.0.2.7', '192.0.2.7', '2001:db8::/64')
    """
    address = _ip_address(host)
    return str(address if address.version == 4 else ip_network((address, 64), strict=False))


def is_loopback(address: str) -> bool:
    """Return whether only this machine can connect to an address.

    >>> is_loopback("127.0.0.2"), is_loopback("::ffff:127.0.0.1"), is_loopback("::1"), is_loopback("::")
    (True, True, True, False)
    """
    return _ip_address(address).is_loopback


def allowed_hosts(address: str, name: str | None = None) -> frozenset[str] | None:
    """Return what the header Host may be at an address: names of this machine, or anything (None).

    Args:
        address: The address that the server listens on.
        name: The name or address by which the operator chose it; None if the default was taken.
    """
    if not is_loopback(address):
        return None
    own_names = (in_url(each).lower() for each in (address, name) if each)
    return LOOPBACK_NAMES.union(own_names)


def in_url(host: str) -> str:
    """Write a host as addresses of the web and the header Host have it."""
    return f"[{host}]" if ":" in host else host


def _ip_address(host: str) -> IPv4Address | IPv6Address:
    """Read an address, without the name of an interface; IPv4 within IPv6 as IPv4."""
    address = ip_address(host.partition("%")[0])
    if address.version == 6 and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def _token_required(request: Request) -> Response:
    """Ask for the token: a browser by the login page, other clients by an error."""
    has_wrong_token = "token" in request.query_params or "authorization" in request.headers
    challenge = {"www-authenticate": "Bearer", "cache-control": "no-store"}
    if accepts_pages(request):
        if request.query_params.get("token"):  # it may be almost the right one: keep it out of the history
            return _redirect(request.url.include_query_params(token=""))
        page = _LOGIN.replace(" hidden", "") if has_wrong_token else _LOGIN
        return Response(page, 401, challenge, "text/html; charset=utf-8")
    return error_response(
        401,
        where="the token",
        rule="is shown by whoever asks this server",
        got="another one" if has_wrong_token else "none",
        fix="Send it in the header Authorization: Bearer; whoever runs the server has it",
        **challenge,
    )


def _redirect(url: URL) -> Response:
    """Redirect a browser to an address of this server, never of another one."""
    return RedirectResponse(f"/{url.path.lstrip('/')}?{url.query}".rstrip("?"), 303)


def _is_equal(text: str, secret: str) -> bool:
    """Compare in constant time."""
    return secrets.compare_digest(text.encode(), secret.encode())
