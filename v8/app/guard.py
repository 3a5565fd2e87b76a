"""What stands before every route: who is let in, and calm answers to what is not understood.

A page on this machine is a target of other pages in the same browser: a name that a stranger's page resolves
to this machine must not open it, so the Host is one of this machine's unless a host was chosen. Nothing but
our own files is loaded by the page, and nothing of it is framed, guessed or referred.

Where others may ask, a token can be asked for. A program shows it as `Authorization: Bearer`. In a browser
`?token=` of any address, which the page that asks for it makes, is traded for a cookie, and the browser is
sent on to the same address without it. The cookie is made from the token, and nobody can make the token from
it. Comparing takes the same time however much is right. Whether it works, `/api/health`, is told to all.

An address is whoever connects. Behind a proxy that is the proxy, so there all callers share what one may ask:
headers that tell of another address are not read, because anybody can write them.
"""

import hmac
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any, Final

from starlette.datastructures import URL
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from v8.app.answers import fault, written
from v8.errors import ProfileError, shown
from v8.storage import packaged

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
MOST_AT_ONCE: Final = 128  # requests that are answered or wait at the same time
MOST_ADDRESSES: Final = 10_000
"""Addresses whose requests are counted; the one that is counted longest is forgotten first."""
OTHER: Final = "other"  # what is counted of requests that no route answers
_MOST_ADDRESS: Final = 2_048  # letters of a path or a query
_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors "
)
TOKEN_VARIABLE: Final = "V8_APP_TOKEN"  # noqa: S105 - its name
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~-]{16,256}")  # nothing that a header, cookie or address would quote
_ORIGIN: Final = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?|\*")
_HEALTH: Final = "/api/health"
_LOGIN: Final = packaged("v8.app", "login.html")
_MINUTE_S: Final = 60.0
_MONTH_S: Final = 30 * 86_400


def json_answer(content: bytes | dict[str, Any], status: int = 200, **headers: str) -> Response:
    """Answer with JSON; underscores of header names are dashes."""
    body = content if isinstance(content, bytes) else written(content)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(body, status, {"cache-control": "no-store", **named}, "application/json")


def refused(status: int, where: str, rule: str, got: str, fix: str, **headers: str) -> Response:
    """Answer with an error of four parts."""
    return json_answer(fault(where, rule, got, fix), status, **headers)


@dataclass(frozen=True)
class Policy:
    """Who may ask what; `ProfileError` if an origin or the token is none. Nowhere does the token appear."""

    hosts: frozenset[str] | None = LOOPBACK_NAMES  # that the header Host may name, without a port; None: any
    frames: tuple[str, ...] = ()  # origins that may frame the page
    origins: tuple[str, ...] = ()  # whose pages may read the answers, "*" for any
    token: str | None = field(default=None, repr=False)  # whoever asks must show it; None asks for nothing
    most_a_minute: int | None = None  # requests of one address; None for any number

    def __post_init__(self) -> None:
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                rule = "is scheme, host and port of a page as browsers send them, in small letters, or *"
                fix = "Write for example https://example.org or http://localhost:3000"
                raise ProfileError(where="param:cors", rule=rule, got=repr(origin), fix=fix)
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            rule = "is 16 to 256 letters, digits, dots, dashes, underscores and tildes, or is not set"
            got = f"another text of {len(self.token)} letters"
            fix = "Make one: python -c 'import secrets; print(secrets.token_urlsafe())'"
            raise ProfileError(where=TOKEN_VARIABLE, rule=rule, got=got, fix=fix)


class Guard:
    """Wraps an application by a policy; every answer carries its `headers`, and is counted.

    `requests` counts by route, `OTHER` where there is none, and status; `now` counts those that are not over
    by path, `now_of_address` by path and address; `open_paths` need no token.
    """

    def __init__(self, app: ASGIApp, policy: Policy, open_paths: Collection[str] = ()) -> None:
        self._within = app
        self._hosts = policy.hosts
        self.now = Counter[str]()
        self.now_of_address = Counter[tuple[str, str]]()
        self._gate = Gate(policy, open_paths)
        self._app: ASGIApp = self._let_in
        if policy.origins:
            methods = ("GET", "HEAD")
            told = ("ETag", "Retry-After")
            asking = "Authorization", "Last-Event-ID"
            self._origins = CORSMiddleware(self._let_in, policy.origins, methods, asking, expose_headers=told)
            self._app = self._let_origins_in
        frames = " ".join(policy.frames) or "'none'"
        self.requests: Final = Counter[tuple[str, int]]()
        self.headers: Final = (
            (b"content-security-policy", f"{_POLICY}{frames}".encode("ascii")),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self.headers]
                self.requests[_route(scope), message["status"]] += 1
            await send(message)

        path = scope["path"]
        of_address = path, address_of(scope)
        self.now[path] += 1
        self.now_of_address[of_address] += 1
        try:
            await self._app(scope, receive, send_guarded)
        finally:  # in place, and none is left of a path at zero
            self.now -= Counter([path])
            self.now_of_address -= Counter([of_address])

    async def _let_origins_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what a browser asks on behalf of a page, which is answered without `_let_in`."""
        refusal = self._gate.rate_refusal(Request(scope)) if scope["method"] == "OPTIONS" else None
        await (refusal or self._origins)(scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) or self._gate.refusal(Request(scope))
        await (refusal or self._within)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        if self.now.total() > MOST_AT_ONCE:
            rule = f"answers {MOST_AT_ONCE} requests at once"
            return refused(503, "the server", rule, "more", "Ask again", retry_after="2")
        if {name for name, _ in scope["headers"]} >= _LENGTHS:
            # Somebody before us may have seen another end of it, and another request after that.
            where = "header Content-Length"
            rule = "stands beside no Transfer-Encoding"
            return refused(400, where, rule, "both", "Send one", connection="close")
        method = scope["method"]
        if method not in ("GET", "HEAD"):
            got = shown(method, 20)
            allowed = "GET, HEAD"
            return refused(405, "method", "is GET or HEAD", got, "Ask with GET", allow=allowed)
        if max(len(scope["raw_path"] or b""), len(scope["query_string"])) > _MOST_ADDRESS:
            return refused(400, "address", f"has at most {_MOST_ADDRESS:,} letters", "more", "Ask for less")
        if self._hosts is not None and _host(scope["headers"]) not in self._hosts:
            rule = f"is one of {', '.join(sorted(self._hosts))}"
            return refused(400, "header Host", rule, "another", "Open it by such a name")
        return None


def _route(scope: Scope) -> str:
    """Return the route of a request as it is described: there are few, whatever is asked."""
    path: str = scope["path"] if "endpoint" in scope else OTHER
    for name, value in scope.get("path_params", {}).items():  # one at most, at the end
        path = f"{path.removesuffix(value)}{{{name}}}"
    return path


def _host(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the one Host of a request in small letters, without its port.

    >>> _host([(b"host", b"LocalHost:8008")]), _host([(b"host", b"[::1]:80")]), _host([])
    ('localhost', '[::1]', None)
    """
    found = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
    if len(found) != 1:
        return None
    name, colon, port = found[0].rpartition(":")
    return name if colon and port.isdigit() else found[0]


class Gate:
    """Lets in who shows the token, and of one address no more than the policy says, a minute of the clock."""

    def __init__(
        self, policy: Policy, open_paths: Collection[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._token = policy.token
        self._most = policy.most_a_minute
        self._open = open_paths
        self._clock = clock
        self._minute = 0.0
        self._asked = Counter[str]()
        digest = hmac.digest((policy.token or "").encode(), b"cookie of v8", "sha256").hex()
        # Cookies are of a host, whatever the port: another server of it has another name for its own.
        self._cookie = f"v8_{digest[:8]}", digest[8:]

    def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is not let in, None to one that is."""
        path = request.scope["path"]
        if path in self._open:
            return None
        is_known = self._token is None or self._is_shown_by(request)
        if path == _HEALTH:
            return None if is_known else json_answer({"status": "ok"})
        refusal = self.rate_refusal(request)
        if refusal:
            return refusal
        if self._token and _is_same(request.query_params.get("token", ""), self._token):
            return self._traded(request)
        return None if is_known else _asked_for_token(request)

    def rate_refusal(self, request: Request) -> Response | None:
        """Count a request; return the answer to one too many of its address, None to others."""
        if self._most is None:
            return None
        wait_s = self._wait_s(address_of(request.scope), self._most)
        if not wait_s:
            return None
        rule = f"asks at most {self._most:,} times a minute"
        fix = f"Ask again in {wait_s} s"
        return refused(429, "your address", rule, "more", fix, retry_after=str(wait_s))

    def _is_shown_by(self, request: Request) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        name, cookie = self._cookie
        is_borne = kind.lower() == "bearer" and _is_same(given.strip(), self._token or "")
        return is_borne or _is_same(request.cookies.get(name, ""), cookie)

    def _traded(self, request: Request) -> Response:
        """Give the cookie for a token, and send the browser on without it."""
        is_secure = request.headers.get("x-forwarded-proto") == "https"
        response = _sent_on(request.url.remove_query_params("token"))
        response.set_cookie(*self._cookie, _MONTH_S, secure=is_secure, httponly=True, samesite="lax")
        return response

    def _wait_s(self, address: str, most: int) -> int:
        """Count a request of an address; return 0, or after how many seconds it may ask again."""
        minute, past_s = divmod(self._clock(), _MINUTE_S)
        if minute != self._minute:
            self._minute = minute
            self._asked = Counter()
        self._asked[address] += 1
        if len(self._asked) > MOST_ADDRESSES:
            del self._asked[next(iter(self._asked))]
        return 0 if self._asked[address] <= most else int(_MINUTE_S - past_s) + 1


def address_of(scope: Scope) -> str:
    """Return what counts as the address of whoever asks."""
    host, _ = scope["client"] or ("::", 0)
    return network_of(host)


def network_of(host: str) -> str:
    """Return what counts as one address: of IPv6 the first 64 bits, for whoever has one has all of these.

    >>> network_of("192.0.2.7"), network_of("::ffff:192.0.2.7"), network_of("2001:db8::1:2:3:4%eth0")
    ('192.0.2.7', '192.0.2.7', '2001:db8::/64')
    """
    address = ip_address(host.partition("%")[0])
    mapped = address if address.version == 4 else address.ipv4_mapped
    return str(mapped or ip_network((address, 64), strict=False))


def _asked_for_token(request: Request) -> Response:
    """Ask a browser by a page, anything else by an error."""
    is_given = "token" in request.query_params or "authorization" in request.headers
    challenge = {"www-authenticate": "Bearer", "cache-control": "no-store"}
    if "text/html" in request.headers.get("accept", ""):
        if request.query_params.get("token"):  # which may be almost the right one, and stays in no history
            return _sent_on(request.url.include_query_params(token=""))
        page = _LOGIN.replace(" hidden", "") if is_given else _LOGIN
        return Response(page, 401, challenge, "text/html; charset=utf-8")
    rule = "is shown by whoever asks this server"
    got = "another one" if is_given else "none"
    fix = "Send it in the header Authorization: Bearer; whoever runs the server has it"
    return refused(401, "the token", rule, got, fix, **challenge)


def _sent_on(url: URL) -> Response:
    """Send a browser to an address of this server, and of no other."""
    return RedirectResponse(f"/{url.path.lstrip('/')}?{url.query}".rstrip("?"), 303)


def _is_same(one: str, other: str) -> bool:
    return secrets.compare_digest(one.encode(), other.encode())
