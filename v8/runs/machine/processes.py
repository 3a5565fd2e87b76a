"""Fresh processes that carry out one request: measurements (`v8.runs.measuring`) and runs (`v8.cli.runs`).

A process of its own measures imports, compilation, threads and peak memory of a process that did nothing
else, and a crash in it is an error message here. Parent and child exchange lines of JSON through pipes. The
parent writes one request to the child's standard input. The child writes to its standard output:

* `ready`, the system's clock, once it can begin;
* `said`, a progress message;
* `measured`, one result, as soon as there is one;
* `refused`, one of our errors, with which it ends.

Anything else that the child prints is passed on as a progress message. A child whose standard input closes
ends itself, because then its parent is gone.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel

from v8.base import errors
from v8.base.errors import PARTS, V8Error
from v8.base.interruption import EXIT_TIMEOUT_S
from v8.base.invocation import children_with_safe_path, import_errors_translated, program_of
from v8.base.plugins import load_plugins
from v8.profile.profile import Profile

STOP_TIMEOUT_S: Final = EXIT_TIMEOUT_S + 1.0
"""How long a child may take to stop after its batch before it is killed, in seconds."""

_MARK: Final = "\x1e"  # begins each line of JSON, to distinguish it from what the child prints otherwise

_INTERRUPT: Final = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM)
"""Handled as Ctrl-C is, also where Ctrl-C is ignored; Windows has a signal of its own for it."""

# A process group of its own: Ctrl-C reaches the parent only, which then interrupts the child.
_OWN_GROUP: dict[str, Any] = {"start_new_session": True}
if sys.platform == "win32":
    _OWN_GROUP = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}

MessageHandler = Callable[[str], None]
"""Gets each progress message, a sentence for the user."""

Measurement: TypeAlias = dict[str, Any]
"""One measurement to take: its name in `v8.runs.measuring.MEASURES` as "measure", and its options."""

Request = TypeVar("Request", bound=BaseModel)


class MeasurementRequest(BaseModel):
    """Measurements of one profile, which a child takes in this order.

    Attributes:
        profile: Whose network is measured.
        measurements: What to measure.
        environment: Variables that the child gets in addition to those of this process.
    """

    profile: Profile
    measurements: list[Measurement]
    environment: dict[str, str] = {}


class CommandRequest(BaseModel):
    """A command of v8 that a child carries out, see `v8.cli.calls`.

    Attributes:
        words: Of its command line, the name of the command first.
    """

    words: tuple[str, ...]


@dataclass(frozen=True)
class ProcessResult:
    """What a child process returned.

    Attributes:
        measured: Its results, in order; fewer than requested if it failed.
        refusal: The sentence with which it failed or was stopped; None if it succeeded or crashed.
        start_s: Time from its start until it was ready, in seconds.
        exit_code: As the system reports it; 0 is success.
        errors: What it wrote to standard error.
        error: The error of ours that ended it, if there was one.
    """

    measured: tuple[dict[str, Any], ...]
    refusal: str | None
    start_s: float
    exit_code: int
    errors: str
    error: V8Error | None = None


def _ignore_message(message: str) -> None:
    """Drop a progress message."""


def run_processes(
    requests: Sequence[BaseModel],
    *,
    program: str = "v8.runs.measuring",
    limit_s: float = threading.TIMEOUT_MAX,
    on_message: MessageHandler = _ignore_message,
) -> list[ProcessResult]:
    """Carry out each request in a process of its own, all at the same time, and wait for the results.

    Args:
        requests: One for each process.
        program: A module of ours that calls `handle_request`.
        limit_s: A process that takes longer is killed, in seconds.
        on_message: Gets the progress messages.

    Returns:
        A result for each request, in their order. When this process is interrupted, the others are stopped
        first.
    """
    with ExitStack() as stack:
        children = [stack.enter_context(closing(_Child(request, program, limit_s))) for request in requests]
        return [child.wait(on_message) for child in children]


def handle_request(kind: type[Request], carry_out: Callable[[Request], Iterator[Any]]) -> None:
    """Be the child: report that it is ready, read one request, send each result, and return.

    Args:
        kind: The class of the request.
        carry_out: Yields results, plain JSON values, one after another.
    """
    _send(ready=time.perf_counter())
    request = sys.stdin.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with import_errors_translated():
            load_plugins()  # a request may name what they register
            for result in carry_out(kind.model_validate_json(request)):
                _send(measured=result)
    except V8Error as error:
        _send(refused=[type(error).__name__, {name: getattr(error, name) for name in PARTS}])


def send_message(message: str) -> None:
    """Send a progress message from the child to its parent."""
    _send(said=message)


class _Child:
    """A child process, from its start until it is closed."""

    def __init__(self, request: BaseModel, program: str, limit_s: float) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed with the process
        self._started = time.perf_counter()
        self._limit_s = limit_s
        with children_with_safe_path():
            # Inside the block, which sets a variable that the child must get.
            environment = {
                "TF_CPP_MIN_LOG_LEVEL": "2",
                **os.environ,
                "PYTHONIOENCODING": "utf-8",
                **getattr(request, "environment", {}),
            }
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                program_of(program),
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                encoding="utf-8",
                **_OWN_GROUP,
            )
        self._timer = threading.Timer(limit_s, self._process.kill)
        self._timer.daemon = True
        self._timer.start()
        with suppress(BrokenPipeError):
            print(request.model_dump_json(), file=self._process.stdin, flush=True)

    def wait(self, on_message: MessageHandler) -> ProcessResult:
        """Read what the child sends until it ends."""
        measured = []
        refusal = None
        error = None
        start_s = 0.0
        for line in self._process.stdout or ():
            content = json.loads(line.removeprefix(_MARK)) if line.startswith(_MARK) else {"said": line[:-1]}
            if "ready" in content:
                start_s = content["ready"] - self._started
            elif "said" in content:
                on_message(content["said"])
            elif "measured" in content:
                measured.append(content["measured"])
            elif "refused" in content:
                kind, parts = content["refused"]
                error = getattr(errors, kind, V8Error)(**parts)
                refusal = str(error)
        exit_code = self._process.wait()
        if exit_code and time.perf_counter() - self._started >= self._limit_s:
            refusal = f"a measuring process took more than {self._limit_s:g} s"
        self._errors.seek(0)
        return ProcessResult(tuple(measured), refusal, start_s, exit_code, self._errors.read(), error)

    def close(self) -> None:
        """End the child if it still runs: after its batch, or else by force."""
        self._timer.cancel()
        with suppress(BrokenPipeError), self._errors, self._process:
            self._process.send_signal(_INTERRUPT)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()


def _send(**content: Any) -> None:
    print(_MARK + json.dumps(content), flush=True)  # noqa: T201 - to the parent process


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):  # not through sys.stdin, whose lock the end of the process needs
        pass
    os._exit(1)
