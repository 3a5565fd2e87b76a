"""The command line in processes that need not start Python anew: a server has it imported, and forks.

A true start imports for most of a second before it does anything, and with TensorFlow for three. What reads
the environment when it is imported, as `huggingface_hub` does, is not there before the call is. How processes
start, what they import, and what Python reads of its environment (`PYTHON...`) is tested by true starts.

    done = called("predict", run, "--all", cwd=folder, env=env, tf=True)
    process = Forked(["run", "--smoke"], cwd=folder, env=env, stdout=PIPE, text=True, tf=True)

The first returns what `subprocess.run` does, the second is a `subprocess.Popen` with its pipes and signals.
With `tf` TensorFlow has been imported, which does not show until the call imports it. It has not begun to
compute: threads, XLA's flags and the folder of compiled programs are those of the call. Limits of the caller
(`full_disk.file_limit`) are not inherited.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

LIMIT_S = 300.0
"""A call that takes longer has hung."""
LIGHT = ("v8.cli.app",)
WITH_TF = (*LIGHT, "tensorflow", "keras", "v8.runs.local", "v8.forecaster.forecaster")
READS_ENVIRONMENT = "huggingface_hub"
"""Keras imports it where it can be had; each call imports it anew."""
_STARTING = Lock()


def called(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, tf: bool = False
) -> subprocess.CompletedProcess[str]:
    """Do what `python -m v8` does with some words, in a process of its own."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = Forked(words, tf=tf, cwd=cwd, env=env, stdout=output, stderr=errors)
        try:
            process.wait(LIMIT_S)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(process.args, process.returncode, output.read(), errors.read())


class Forked(subprocess.Popen[Any]):
    """Does what `subprocess.Popen([sys.executable, "-u", "-m", "v8", *words], ...)` does.

    Args:
        words: Of the command line.
        tf: Whether TensorFlow is to be imported already.
        options: Of `Popen`, as far as they are about cwd, env, the streams, and start_new_session.
    """

    def __init__(self, words: Sequence[str | Path], *, tf: bool = False, **options: Any) -> None:
        self._imported = WITH_TF if tf else LIGHT
        self._order = {
            "words": list(map(str, words)),
            "cwd": str(options.pop("cwd", None) or Path.cwd()),
            "env": dict(options.pop("env", None) or os.environ),
            "session": options.pop("start_new_session", False),
        }
        super().__init__(["v8", *self._order["words"]], **options)

    def _execute_child(self, *arguments: Any) -> None:
        sys.audit("subprocess.Popen", "v8", self._order["words"], self._order["cwd"], None)
        ends = arguments[10:16]  # of the pipes: read and write, for stdin, stdout and stderr
        given = [end if end != -1 else number for number, end in enumerate((ends[0], ends[3], ends[5]))]
        self._keeper, there = socket.socketpair()
        with there, _STARTING:
            socket.send_fds(_server(self._imported), [b"?"], [there.fileno(), *given])
        content = json.dumps(self._order).encode()
        self._keeper.sendall(len(content).to_bytes(8) + content)
        self.pid = int.from_bytes(_received(self._keeper, 8))
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]  # typeshed lists no private methods

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        self._keeper.setblocking(not wait_flags & os.WNOHANG)
        try:
            status = int.from_bytes(_received(self._keeper, 4))
        except BlockingIOError:
            return 0, 0
        self._keeper.close()
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._child_created and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


@cache
def _server(imported: Sequence[str]) -> socket.socket:
    """Start the process that forks; it ends when this one closes the socket."""
    here, there = socket.socketpair()
    with there:
        words = [sys.executable, __file__, str(there.fileno()), *imported]
        process = subprocess.Popen(words, pass_fds=[there.fileno()])
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


def _serve(control: socket.socket) -> None:
    """Take calls one after another; returns in the process of each call, and at the end of them."""
    while True:
        head, ends, _, _ = socket.recv_fds(control, 1, 4)
        with suppress(ChildProcessError):  # those that are over
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not head:
            sys.exit()
        if os.fork() == 0:
            control.close()
            _keep(*ends)
            return
        for end in ends:
            os.close(end)


def _keep(asking: int, *streams: int) -> None:
    """Become the parent of a call: tell its number and, in the end, its status; returns in the call."""
    with socket.socket(fileno=asking) as connection:
        order = json.loads(_received(connection, int.from_bytes(_received(connection, 8))))
        if (call := os.fork()) != 0:
            for stream in streams:
                os.close(stream)
            connection.sendall(call.to_bytes(8))
            _, status = os.waitpid(call, 0)
            with suppress(OSError):  # nobody may wait for it
                connection.sendall(status.to_bytes(4))
            os._exit(0)
    _become(order, *streams)


def _become(order: dict[str, Any], *streams: int) -> None:
    """Make this process what a start with that order would be, up to the first import of v8."""
    for number, (stream, name) in enumerate(zip(streams, ("stdin", "stdout", "stderr"), strict=True)):
        os.dup2(stream, number)
        os.close(stream)
        before = getattr(sys, f"__{name}__")
        how: dict[str, Any] = {"encoding": before.encoding, "errors": before.errors, "closefd": False}
        opened = open(number, "w" if number else "r", buffering=1, **how)  # noqa: PTH123, SIM115 - a number, for good
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)
    if order["session"]:
        os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = ["v8", *order["words"]]
    sys.path[0] = order["cwd"]
    tempfile.tempdir = None


class _Hidden(MetaPathFinder, Loader):
    """A module that was imported before its time, for whoever imports it; until then it is not there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module = sys.modules.pop(name)
        self._spec = self._module.__spec__
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name == self._name else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _import(names: Sequence[str]) -> None:
    with import_module("v8.base.process").quiet_start(is_temporary=True):
        for name in names:
            import_module(name)
    for name in [each for each in sys.modules if each.partition(".")[0] == READS_ENVIRONMENT]:
        del sys.modules[name]
    if "tensorflow" in names:
        _Hidden("tensorflow")
    gc.freeze()  # or every call copies what it only looks at


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _import(sys.argv[2:])
    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("v8", run_name="__main__", alter_sys=True)
