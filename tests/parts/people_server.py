"""Services that people read, on loopback: Telegram's and Discord's interfaces, and a mail server.

`with PeopleServer() as server:` takes what is posted in the form of these services; `with MailServer() as
server:` takes mail by SMTP. Both keep the texts in `taken`.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable
from email import message_from_bytes, policy
from types import TracebackType
from typing import Any, Self

from local_server import LocalServer, QuietHandler


class PeopleServer(LocalServer):
    """Takes messages as Telegram and Discord do.

    Attributes:
        taken: The texts that were accepted, in order.
        paths: Where they were posted to.
        status: What it answers.
        before: Called before a message is taken: a test may end the sender there.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.taken: list[str] = []
        self.paths: list[str] = []
        self.status = 200
        self.before: Callable[[], object] = lambda: None


class _Handler(QuietHandler):
    server: PeopleServer

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.before()
        answer: dict[str, Any] = {"ok": self.server.status == 200, "description": "the bot is not there"}
        body = json.dumps(answer | {"result": {"message_id": 1}}).encode()
        if self.server.status == 200:
            self.server.taken.append(content.get("text") or content.get("content"))
            self.server.paths.append(self.path)
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class MailServer(socketserver.ThreadingTCPServer):
    """Takes mail by SMTP, without encryption or a password."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _MailHandler)
        self.taken: list[str] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _MailHandler(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self._say("220 loopback")
        while words := self.rfile.readline().decode().split():
            command = words[0].upper()
            if command == "DATA":
                self._say("354 go on")
                self._take()
            if command == "QUIT":
                self._say("221 bye")
                return
            self._say("250 ok")

    def _take(self) -> None:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line.removeprefix(b"."))
        message = message_from_bytes(b"".join(lines), policy=policy.default)
        body = message.get_body(("plain", "html"))
        self.server.taken.append(f"{message['subject']}\n{body.get_content() if body else ''}")

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())
