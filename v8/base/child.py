"""A function in a process of its own: `run_in_child(function, options)`, and several at the same time.

A process of its own starts TensorFlow with the settings of v8, whatever a notebook has done to it, needs no
`if __name__ == "__main__"` in the notebook, and gives the same numbers as the command line. It also measures
imports, compilation, threads and peak memory of a process that did nothing else, and a crash in it is an
error message here.

The parent writes one line to the child's standard input: function, options, and the flags that commands
repeat, pickled. A function is pickled by the name of its module, which the child then imports. The child
writes marked lines to its standard output, each a pickled pair of a kind and its content:

* `ready`, the system's clock, when the function calls `report_ready`;
* `message`, a sentence for the user (`send_message`);
* `value`, what the function returns, or each value that it yields;
* `error`, one of our errors, with which it ends.

Anything else that the child prints is passed on as a message. A child whose standard input closes ends
itself, because then its parent is gone.

Processes that live longer than a call, and compiled programs, are resources, which one run opens and the next
can use again:

    with resource_scope() as resources:
        pool = resources.get(key, open_pool)  # opened at the first call, returned again at the next

Scopes nest: a back-test opens one around all of its folds, each fold's engine opens one inside it, and both
are the same. What is open is closed when the outermost block ends, also after an error.
"""

import base64
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from v8.base.errors import StorageError, V8Error
from v8.base.process import (
    EXIT_TIMEOUT_S,
    children_with_safe_path,
    import_errors_translated,
    program_of,
    repeated,
)
from v8.base.registry import load_plugins

STOP_TIMEOUT_S: Final = EXIT_TIMEOUT_S + 1.0
"""How long a child may take to stop after its batch before it is killed, in seconds."""

_MARK: Final = "\x1e"  # begins each line of ours, to distinguish it from what the child prints otherwise

_INTERRUPT: Final = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM)
"""Handled as Ctrl-C is, also where Ctrl-C is ignored; Windows has a signal of its own for it."""

# A process group of its own: Ctrl-C reaches the parent only, which then interrupts the child.
_OWN_GROUP: dict[str, Any] = {"start_new_session": True}
if sys.platform == "win32":
    _OWN_GROUP = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}

MessageHandler = Callable[[str], None]
"""Gets each message, a sentence for the user."""

Options = TypeVar("Options")
Value = TypeVar("Value")


@dataclass(frozen=True)
class ChildCall:
    """A call of a function that a child carries out."""

    function: Callable[[Any], Any]  # of a module of ours; the values of a generator are sent one by one
    options: Any  # its one argument, which pickle can send
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the child gets in addition to those of this process."""


@dataclass(frozen=True)
class ChildResult:
    """What a child did."""

    values: tuple[Any, ...]  # what its function returned or yielded; fewer than requested if it failed
    refusal: str | None = None  # the sentence with which it failed or was stopped; None after a crash, too
    start_s: float = 0.0  # time from its start until its function was ready, in seconds; 0 if it never was
    exit_code: int = 0  # as the system reports it; 0 is success
    errors: str = ""  # what it wrote to standard error
    error: V8Error | None = None  # the error of ours that ended it, if there was one


def run_in_child(
    function: Callable[[Options], Value],
    options: Options,
    *,
    where: str,
    environment: Mapping[str, str] | None = None,
    on_message: MessageHandler | None = None,
) -> Value:
    """Call a function in a process of its own, and return its value.

    When this process is interrupted, the child is stopped first. A function that trains heeds that where it
    calls `v8.base.process.watch_interrupts`.

    Args:
        function: Of a module of ours; it runs as it would here, so it names errors as it would here.
        options: Its argument, which pickle can send.
        where: What is called, such as "v8.train", for errors.
        environment: Variables that the child gets in addition to those of this process.
        on_message: Gets the messages; None drops them.

    Raises:
        V8Error: The one that the function raises; or another, if it ends without a value.
    """
    (result,) = run_in_children([ChildCall(function, options, environment or {})], on_message=on_message)
    if result.error:
        raise result.error
    if not result.values:
        last_line = result.errors.strip().rpartition("\n")[2]  # of a traceback: the error itself
        raise V8Error(
            where=where,
            rule="must come to its end",
            got=last_line or f"exit code {result.exit_code}",
            fix="Mend that and repeat",
        )
    value: Value = result.values[-1]
    return value


def run_in_children(
    calls: Sequence[ChildCall],
    *,
    limit_s: float = threading.TIMEOUT_MAX,
    on_message: MessageHandler | None = None,
) -> list[ChildResult]:
    """Make each call in a process of its own, all at the same time, and wait for the results.

    Args:
        calls: One for each process.
        limit_s: A process that takes longer is killed, in seconds.
        on_message: Gets the messages; None drops them.

    Returns:
        A result for each call, in their order. When this process is interrupted, the others are stopped
        first.
    """
    with ExitStack() as stack:
        children = [stack.enter_context(closing(_Child(call, limit_s))) for call in calls]
        return [child.wait(on_message) for child in children]


def report_ready() -> None:
    """Send from the child that it is ready: from here on it does what it was started for."""
    _send("ready", time.perf_counter())


def send_message(message: str) -> None:
    """Send a message from the child to its parent."""
    _send("message", message)


class Closeable(Protocol):
    """Something that holds memory or processes until it is closed."""

    def close(self) -> None:
        """Release everything."""


Resource = TypeVar("Resource", bound=Closeable)


class ResourceScope:
    """Holds the resource that is open, and closes it."""

    def __init__(self) -> None:
        self._resources: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        """Count the resources that are open."""
        return len(self._resources)

    def get(self, key: Hashable, open_resource: Callable[[], Resource]) -> Resource:
        """Return the resource of a key; it is opened where there is none.

        The resources of other keys are closed first, so that memory holds one of them at a time.
        """
        if key not in self._resources:
            self.close()
            self._resources[key] = open_resource()
        resource: Resource = self._resources[key]
        return resource

    def close(self) -> None:
        """Close every resource."""
        while self._resources:
            _, resource = self._resources.popitem()
            resource.close()


_open_scopes: list[ResourceScope] = []


@contextmanager
def resource_scope() -> Iterator[ResourceScope]:
    """Yield the scope of the outermost block, which is closed when that block ends."""
    scope = _open_scopes[-1] if _open_scopes else ResourceScope()
    _open_scopes.append(scope)
    try:
        yield scope
    finally:
        _open_scopes.pop()
        if not _open_scopes:
            scope.close()


class _Child:
    """A child process, from its start until it is closed."""

    def __init__(self, call: ChildCall, limit_s: float) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed with the process
        self._started = time.perf_counter()
        self._limit_s = limit_s
        with children_with_safe_path():
            # Inside the block, which sets a variable that the child must get.
            environment = {
                "TF_CPP_MIN_LOG_LEVEL": "2",
                **os.environ,
                "PYTHONIOENCODING": "utf-8",
                **call.environment,
            }
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                program_of("v8.base.child"),
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
            print(_packed((call.function, call.options, repeated)), file=self._process.stdin, flush=True)

    def wait(self, on_message: MessageHandler | None) -> ChildResult:
        """Read what the child sends until it ends."""
        values = []
        refusal = None
        error = None
        start_s = 0.0
        for line in self._process.stdout or ():
            is_ours = line.startswith(_MARK)
            kind, content = _unpacked(line.removeprefix(_MARK)) if is_ours else ("message", line[:-1])
            if kind == "ready":
                start_s = content - self._started
            elif kind == "message" and on_message:
                on_message(content)
            elif kind == "value":
                values.append(content)
            elif kind == "error":
                error = content
                refusal = str(error)
        exit_code = self._process.wait()
        if exit_code and time.perf_counter() - self._started >= self._limit_s:
            refusal = f"a measuring process took more than {self._limit_s:g} s"
        self._errors.seek(0)
        return ChildResult(tuple(values), refusal, start_s, exit_code, self._errors.read(), error)

    def close(self) -> None:
        """End the child if it still runs: after its batch, or else by force."""
        self._timer.cancel()
        with suppress(BrokenPipeError), self._errors, self._process:
            self._process.send_signal(_INTERRUPT)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()


def _packed(content: Any) -> str:
    return base64.b64encode(pickle.dumps(content)).decode()


def _unpacked(line: str) -> Any:
    return pickle.loads(base64.b64decode(line))  # noqa: S301 - between our own processes


def _send(kind: str, content: Any) -> None:
    print(_MARK + _packed((kind, content)), flush=True)  # noqa: T201 - to the parent process


def _be_the_child() -> None:
    """Read the call, make it, and send its values."""
    line = sys.stdin.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with import_errors_translated():
            load_plugins()  # the options may name what they register
            function, options, flags = _unpacked(line)
            repeated.update(flags)  # the commands that it prints need them, too
            result = function(options)
            for value in result if isinstance(result, Iterator) else (result,):
                _send("value", value)
    except V8Error as error:
        _send("error", error)
    except OSError as error:  # of a file that no other code of ours handles
        _send("error", StorageError.out_of_reach(error))


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):  # not through sys.stdin, whose lock the end of the process needs
        pass
    os._exit(1)


if __name__ == "__main__":
    _be_the_child()
