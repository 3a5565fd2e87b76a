"""Fresh processes that carry out an order: measurements (`v8.runs.measuring`) and runs (`v8.cli.runs`).

In a process of its own, imports, compilation, threads and peak memory are those of a process that did nothing
else, and a crash in there is a sentence here. Lines of JSON go through the pipes. Down: one order. Up:
`ready` with the system's clock once the process could begin, `said` on the way, `measured` as soon as one
measurement is done, `refused` with an error of ours; what else it prints is told as it is. A
process whose standard input closes ends itself, because then nobody waits for it.
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

from v8 import errors
from v8.errors import PARTS, V8Error
from v8.invocation import children_with_safe_path, program_of
from v8.machine.interruption import LEAVE_S
from v8.plugins import load_plugins
from v8.profile import Profile

STOP_S: Final = LEAVE_S + 1.0  # how long a process may take to stop after its batch before it is killed

_MARK: Final = "\x1e"  # begins what a process sends, among the lines that it prints

_INTERRUPT: Final = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM)
"""Obeyed as Ctrl-C is, also where that is ignored; Windows has a signal of its own for it."""

# A group of its own: Ctrl-C reaches this process alone, which then tells the other to stop.
_APART: dict[str, Any] = {"start_new_session": True}
if sys.platform == "win32":
    _APART = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}

Tell = Callable[[str], None]
Wanted: TypeAlias = dict[str, Any]
"""One measurement to take: its name in `v8.runs.measuring.MEASURES` as "measure", and its options."""
Asked = TypeVar("Asked", bound=BaseModel)


class Order(BaseModel):
    """What a process is asked for: measurements of one profile, in this order."""

    profile: Profile
    measurements: list[Wanted]
    environment: dict[str, str] = {}  # that the process starts with, beside that of this one


@dataclass(frozen=True)
class Answer:
    """What a process brought back."""

    measured: tuple[dict[str, Any], ...]  # its measurements, in order; fewer than asked for when it failed
    refusal: str | None  # the sentence with which it gave up or was given up; None when it was not
    start_s: float  # from its start until it was ready, seconds
    exit_code: int  # as the system tells it; 0 is none of a failure
    errors: str  # what it wrote to standard error
    error: V8Error | None = None  # of ours, with which it gave up


def ask(
    orders: Sequence[BaseModel],
    *,
    program: str = "v8.runs.measuring",
    limit_s: float = threading.TIMEOUT_MAX,
    tell: Tell = lambda _: None,
) -> list[Answer]:
    """Let a fresh process carry out each order, all at once; one that takes longer than the limit is ended.

    It runs a module of ours that calls `serve`. What processes say and print on the way is told. When
    interrupted, they are stopped first.
    """
    with ExitStack() as stack:
        children = [stack.enter_context(closing(_Child(order, program, limit_s))) for order in orders]
        return [child.answer(tell) for child in children]


def serve(kind: type[Asked], carry_out: Callable[[Asked], Iterator[Any]]) -> None:
    """Be the process at the other end of the pipes: say that it is ready, carry out one order, end.

    What is measured one after another are plain JSON values.
    """
    _send(ready=time.perf_counter())
    order = sys.stdin.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        load_plugins()  # which an order may mean
        for found in carry_out(kind.model_validate_json(order)):
            _send(measured=found)
    except V8Error as error:
        _send(refused=[type(error).__name__, {name: getattr(error, name) for name in PARTS}])


def say(sentence: str) -> None:
    """Let the process that gave the order know what is going on."""
    _send(said=sentence)


class _Child:
    """A measuring process, from its start until it is closed."""

    def __init__(self, order: BaseModel, program: str, limit_s: float) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed with the process
        self._started = time.perf_counter()
        self._limit_s = limit_s
        given = getattr(order, "environment", {})
        with children_with_safe_path():
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                program_of(program),
                env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "PYTHONIOENCODING": "utf-8", **given},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                encoding="utf-8",
                **_APART,
            )
        self._limit = threading.Timer(limit_s, self._process.kill)
        self._limit.daemon = True
        self._limit.start()
        with suppress(BrokenPipeError):
            print(order.model_dump_json(), file=self._process.stdin, flush=True)

    def answer(self, tell: Tell) -> Answer:
        """Listen until the process ends."""
        measured = []
        refusal = None
        error = None
        start_s = 0.0
        for line in self._process.stdout or ():
            content = json.loads(line.removeprefix(_MARK)) if line.startswith(_MARK) else {"said": line[:-1]}
            if "ready" in content:
                start_s = content["ready"] - self._started
            elif "said" in content:
                tell(content["said"])
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
        return Answer(tuple(measured), refusal, start_s, exit_code, self._errors.read(), error)

    def close(self) -> None:
        """End the process, if it has not ended: after its batch, or else by force."""
        self._limit.cancel()
        with suppress(BrokenPipeError), self._errors, self._process:
            self._process.send_signal(_INTERRUPT)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()


def _send(**content: Any) -> None:
    print(_MARK + json.dumps(content), flush=True)  # noqa: T201 - to the process that asked


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):  # not through sys.stdin, whose lock the end of the process needs
        pass
    os._exit(1)
