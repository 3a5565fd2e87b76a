"""Calls of the command line by a process that has it imported already: it forks for each.

A true start imports for most of a second before it does anything. What reads the environment when it is
imported, as `huggingface_hub` does, is not among what is imported here: each call has its own. How processes
start is tested by true starts.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

LIMIT_S = 300.0
"""A call that takes longer has hung."""


def called(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Do what `python -m v8` does with some words, in a process of its own."""
    arguments = [str(word) for word in words]
    order = {
        "words": arguments,
        "cwd": str(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
    }
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        content = json.dumps(order).encode()
        server = _server()
        socket.send_fds(server, [len(content).to_bytes(8)], [output.fileno(), errors.fileno()])
        server.sendall(content)
        status = int.from_bytes(_received(server, 4), signed=True)
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, status, output.read(), errors.read())


@cache
def _server() -> socket.socket:
    """Start the process that forks; it ends when this one closes the socket."""
    here, there = socket.socketpair()
    here.settimeout(LIMIT_S)
    with there:
        process = subprocess.Popen([sys.executable, __file__, str(there.fileno())], pass_fds=[there.fileno()])
    atexit.register(process.wait)
    atexit.register(here.close)  # called before the other
    return here


def _received(connection: socket.socket, num_bytes: int) -> bytes:
    content = b""
    while len(content) < num_bytes:
        more = connection.recv(num_bytes - len(content))
        if not more:
            raise EOFError
        content += more
    return content


def _serve(connection: socket.socket) -> None:
    """Carry out calls one after another; returns in the process of each call, and at the end of them."""
    while True:
        head, streams, _, _ = socket.recv_fds(connection, 8, 2)
        if not head:
            return
        order = json.loads(_received(connection, int.from_bytes(head)))
        if (call := os.fork()) == 0:
            connection.close()
            _become(order, *streams)
            return
        for stream in streams:
            os.close(stream)
        _, status = os.waitpid(call, 0)
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, signed=True))


def _become(order: dict[str, object], output: int, errors: int) -> None:
    """Make this process what a start with that order would be, up to the first import of v8."""
    for stream, number in ((output, 1), (errors, 2)):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(str(order["cwd"]))
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = ["v8", *order["words"]]
    sys.path[0] = str(order["cwd"])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import_module("v8.cli.app")
    _serve(socket.socket(fileno=int(sys.argv[1])))
    if sys.argv[0] == "v8":
        runpy.run_module("v8", run_name="__main__", alter_sys=True)
