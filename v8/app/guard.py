"""What stands before every route: calm answers to what is not understood, and headers on all of them.

A page on this machine is a target of other pages in the same browser: a name that a stranger's page resolves
to this machine must not open it, so the Host is one of this machine's unless a host was chosen. Nothing but
our own files is loaded by the page, and nothing of it is framed, guessed or referred.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from v8.app.answers import fault, written
from v8.redaction import shown

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

MOST_AT_ONCE: Final = 128
"""Requests that are answered or wait at the same time."""

_MOST_ADDRESS: Final = 2_048
"""Letters of a path or a query."""

_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors "
)


def json_answer(content: bytes | dict[str, Any], status: int = 200, **headers: str) -> Response:
    """Answer with JSON; underscores of header names are dashes."""
    body = content if isinstance(content, bytes) else written(content)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(body, status, {"cache-control": "no-store", **named}, "application/json")


@dataclass(frozen=True)
class Policy:
    """Names that the header Host may have, without a port, None for any; origins that may frame the page."""

    hosts: frozenset[str] | None = LOOPBACK_NAMES
    frames: tuple[str, ...] = ()


class Guard:
    """Wraps an application by a policy; every answer carries its `headers`."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app, self._hosts, self._num_open = app, policy.hosts, 0
        frames = " ".join(policy.frames) or "'none'"
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
            await send(message)

        self._num_open += 1
        try:
            await (self._refusal(scope) or self._app)(scope, receive, send_guarded)
        finally:
            self._num_open -= 1

    def _refusal(self, scope: Scope) -> Response | None:
        if self._num_open > MOST_AT_ONCE:
            content = fault("the server", f"answers {MOST_AT_ONCE} requests at once", "more", "Ask again")
            return json_answer(content, 503, retry_after="2")
        if {name for name, _ in scope["headers"]} >= _LENGTHS:
            # Somebody before us may have seen another end of it, and another request after that.
            content = fault("header Content-Length", "stands beside no Transfer-Encoding", "both", "Send one")
            return json_answer(content, 400, connection="close")
        if scope["method"] not in ("GET", "HEAD"):
            content = fault("method", "is GET or HEAD", shown(scope["method"], 20), "Ask with GET")
            return json_answer(content, 405, allow="GET, HEAD")
        if max(len(scope["raw_path"] or b""), len(scope["query_string"])) > _MOST_ADDRESS:
            content = fault("address", f"has at most {_MOST_ADDRESS:,} letters", "more", "Ask for less")
            return json_answer(content, 400)
        if self._hosts is not None and _host(scope["headers"]) not in self._hosts:
            names = ", ".join(sorted(self._hosts))
            content = fault("header Host", f"is one of {names}", "another", "Open it by such a name")
            return json_answer(content, 400)
        return None


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
