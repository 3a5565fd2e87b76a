"""This process: how it is called, starts, waits and is interrupted, and the environment of those it starts.

It uses the standard library only, because it says what to install where something else is missing.

Commands: `scripts/v8` sets `V8_COMMAND` to the way it was called, so that users can paste every command
that v8 prints.

Environment variables: TensorFlow, XLA, Ray and MLflow read settings from the environment of their process
when they start, and the processes that multiprocessing starts get no other environment than that of their
parent. Whoever starts one of these gives it variables for as long as that takes (`with_variables`); nothing
stays for the next call. But for the command line, no other module writes `os.environ`.

Start of TensorFlow: it starts without its log messages on the terminal, and without packages that v8 does
not use. TensorFlow imports JAX for its converter to TFLite, and Keras for its Orbax checkpoints; Keras
imports Matplotlib for image galleries and IPython for its file editor. Each works without them, and a process
saves a fifth of the time and 130 MB. They are hidden only while TensorFlow or Keras is being imported:
whoever imports them later gets them.

Waiting: the user interface opens `reporting_waiting_to` and receives a sentence whenever something makes the
user wait; code that waits calls `report_waiting` from the thread that made the request. Every other step that
takes seconds reports its progress in the same way (`with_progress`).

Interruption: Ctrl-C ends a process at its next safe moment, within `EXIT_TIMEOUT_S`; a second Ctrl-C
immediately. A KeyboardInterrupt that is raised inside TensorFlow can corrupt its memory (2.21 on Linux, in a
generator that `tf.data` called: every second Ctrl-C ended in an abort; `v8.model.training.state` calls
Python in a thread that no signal reaches). So during training a signal handler only records the signal, and
the trainer checks the record between two batches.

A main thread inside a compiler or a library runs no signal handler of Python, and at its end a process waits
for its threads, which may wait for the network. `watch_interrupts` therefore starts a thread that receives
the signals too, and ends the process when all that takes too long. Nothing is lost: every file is complete or
absent, checkpoints included, and worker processes end with their parent.

SIGTERM, with which schedulers and `kill` stop a process, has the same effect as Ctrl-C. A process that is
started with SIGINT ignored shall live on when Ctrl-C is pressed for something else (a script's
`nohup ... &`, cron): there Ctrl-C never does anything, and SIGTERM ends the command.
"""

import atexit
import gc
import os
import re
import select
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn, TypeVar

from v8.base.errors import V8Error

OLDEST_PYTHON = (3, 11)
EXIT_INTERRUPTED = 130
_SAFE_PATH: Final = "PYTHONSAFEPATH"  # https://docs.python.org/3/using/cmdline.html#envvar-PYTHONSAFEPATH
_SHORT_OF_MEMORY: Final = ("failed to map segment", "allocate memory", "paging file")
"""Parts of the messages of operating systems if there is not enough memory to load a library."""
_DISTRIBUTIONS: Final = {"yaml": "pyyaml"}
"""Names of packages at pip by those of their modules, where they differ."""
repeated: Final[dict[tuple[str, str], None]] = {}
"""Flags and their values that every printed command needs, such as plug-ins, in their order."""
for_children: Final[dict[str, str]] = {}
"""Variables of the processes that this one starts: they load the plug-ins that are loaded here."""


def command(*words: str) -> str:
    """Return a command line of v8 that the user can paste.

    >>> command("pull", "--repo", "you/my models")
    "python -m v8 pull --repo 'you/my models'"
    """
    program = os.environ.get("V8_COMMAND") or "python -m v8"
    if not words:
        return program
    arguments = list(words)
    for flag, value in repeated:
        if value not in arguments and f"{flag}={value}" not in arguments:
            arguments += [flag, value]
    return f"{program} {shlex.join(arguments)}".rstrip()


@contextmanager
def explained_start() -> Iterator[None]:
    """Exit with a message if this Python cannot run v8, and at a Ctrl-C.

    The commands handle Ctrl-C themselves; this is for the second in which they are imported.
    """
    try:
        with explained_imports():
            if sys.version_info < OLDEST_PYTHON:
                oldest = ".".join(map(str, OLDEST_PYTHON))
                current = ".".join(map(str, sys.version_info[:2]))
                raise _wrong_python(f"needs Python {oldest} or newer", f"Python {current}")
            yield
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was started. Repeat the same command.\n")
        sys.exit(EXIT_INTERRUPTED)


@contextmanager
def explained_imports() -> Iterator[None]:
    """Exit with a message at a `V8Error`, and if a package is missing or cannot be loaded."""
    try:
        with import_errors_translated():
            yield
    except V8Error as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


@contextmanager
def import_errors_translated() -> Iterator[None]:
    """Raise a `V8Error` if a package is missing or cannot be loaded.

    TensorFlow and other packages are imported late, by the first function that needs them, so an import may
    fail anywhere.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = _package_of(error)
        if package in ("", "v8", *sys.stdlib_module_names):
            raise
        raise _missing_package(package) from error
    except ImportError as error:
        cause = error  # TensorFlow wraps the message of the operating system in long ones of its own
        while isinstance(cause.__context__, ImportError):
            cause = cause.__context__
        if _package_of(cause) == "v8":
            raise
        raise _not_loaded(cause) from error


def _package_of(error: ImportError) -> str:
    """Return the name of the package that cannot be imported, from the path or the name of the module."""
    path = (error.path or "").replace("\\", "/")
    before, _, relative_path = path.rpartition("-packages/")  # of site-packages or dist-packages
    if before:
        return relative_path.partition("/")[0]
    return (error.name or "").partition(".")[0]


def _not_loaded(error: ImportError) -> V8Error:
    """Return the error for a package that cannot be loaded, with the message of the operating system."""
    package = _package_of(error) or "that failed"
    if any(words in str(error) for words in _SHORT_OF_MEMORY):
        fix = "Let the process have more memory: look at ulimit -v, and at what other programs use"
    else:
        fix = f"Install the library that is named, or the package again, for {sys.executable}"
    return V8Error(
        where="v8",
        rule=f"needs the package {package}, with every library of it",
        got=str(error).strip() or type(error).__name__,
        fix=fix,
    )


def _wrong_python(rule: str, got: str) -> V8Error:
    fix = "Start it as scripts/v8, which installs what is missing into .venv, or with .venv/bin/python"
    if not _is_checkout():
        fix = "Install v8 for a newer Python"
    return V8Error(where="v8", rule=rule, got=f"{got} in {sys.executable}", fix=fix)


def _missing_package(package: str) -> V8Error:
    """Return the error for a package that is not installed, by the name of its module."""
    rule = f"needs the package {package}"
    if _is_checkout():
        return _wrong_python(rule, "none")
    distribution = _DISTRIBUTIONS.get(package, package)
    fix = f"Run: {sys.executable} -m pip install {distribution}"
    return V8Error(where="v8", rule=rule, got=f"none in {sys.executable}", fix=fix)


def _is_checkout() -> bool:
    """Return whether this v8 lies in a copy of its repository, and was not installed by pip."""
    return (Path(__file__).parents[2] / "scripts" / "v8").is_file()


@contextmanager
def with_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Let the block, and the processes that it starts, have these variables; then all is as it was before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def children_with_safe_path() -> Iterator[None]:
    """Give Python processes that the block starts `for_children`, and keep them from the working folder.

    `python -m` and `python -c`, by which multiprocessing starts its workers, look there first. A file html.py
    in a folder that the user unpacked would be run instead of Python's own module.
    """
    with with_variables({_SAFE_PATH: "1", **for_children}):
        yield


def program_of(module: str) -> list[str]:
    """Return the command line that runs a module of v8, of the same v8 that this process runs.

    If v8 itself is in the working folder, Python with a safe path would not find it, so its folder is added.
    """
    root = str(Path(__file__).parents[2])
    code = (
        f"import sys; sys.path[:0] = [root for root in [{root!r}] if root not in sys.path]; "
        f"from runpy import run_module; run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code]


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_TIMEOUT_S = 2.5
"""How long a process may take to end in good order after the first signal, in seconds."""

_WRITE_TIMEOUT_S = 0.3  # how long writing the last message may take, in seconds: nobody may be reading
_SHOW_CURSOR: Final = b"\x1b[?25h"
_exit_message: Final = ["interrupted: every file is whole or absent. Repeat the same command to go on.\n"]
"""The message to write when interrupted; empty once it is written."""
_message_lock = threading.Lock()


def watch_interrupts() -> None:
    """End this process within `EXIT_TIMEOUT_S` of a stop signal, and immediately at a second one."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    # The thread holds both sockets for as long as the process lives.
    threading.Thread(target=_exit_after_signal, args=(receiver, sender), daemon=True).start()
    # While the interpreter shuts down it hands signals back to the system, which would end a process that has
    # done all its work as one that was killed. Registered first, this is called last.
    for number in STOP_SIGNALS:
        atexit.register(signal.signal, number, signal.SIG_IGN)


def set_exit_message(sentence: str) -> None:
    """Write this when interrupted, instead of the sentence that fits every command."""
    _exit_message[:] = [f"{sentence}\n"]


def exit_interrupted() -> NoReturn:
    """Write the exit message, once, and end the process without waiting for its threads."""
    # Two threads may call this at the same time: the second waits until the first has written.
    _message_lock.acquire(timeout=_WRITE_TIMEOUT_S)
    with suppress(IndexError, OSError, ValueError):  # it is written already, or standard error is closed
        # Not descriptor 2, which may lead to a thread that ends with this process (`quiet_start`).
        errors = sys.stderr.fileno()
        # Somebody reads, or the pipe has space; Windows can only wait for sockets.
        if os.name == "nt" or select.select([], [errors], [], _WRITE_TIMEOUT_S)[1]:
            os.write(errors, _exit_message.pop().encode())
            if os.isatty(1):
                os.write(1, _SHOW_CURSOR)
    os._exit(EXIT_INTERRUPTED)


def exit_without_teardown(code: int) -> None:
    """End the process as Python does, but without the second in which TensorFlow shuts itself down.

    Returns only where the last output cannot be written; Python then reports that.
    """
    with suppress(OSError):
        threading._shutdown()  # type: ignore[attr-defined]  # what os._exit leaves out, in Python's order
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:  # absl closes a standard error that Typer has wrapped, for a broken pipe
                stream.flush()
        os._exit(code)


def _exit_after_signal(receiver: socket.socket, sender: socket.socket) -> None:
    """Wait for a stop signal; end the process at the second one, or when the time is over."""
    _await_signal(receiver)
    receiver.settimeout(EXIT_TIMEOUT_S)
    with suppress(TimeoutError):
        _await_signal(receiver)
    exit_interrupted()


def _await_signal(receiver: socket.socket) -> None:
    while receiver.recv(1)[0] not in STOP_SIGNALS:
        pass


@contextmanager
def deferred_interrupts(
    message: str = "stopping after this batch; once more stops immediately\n",
) -> Iterator[Callable[[], None]]:
    """Hold back the first Ctrl-C or SIGTERM within the block; a second one ends the process where it stands.

    Ending it is safe too, because every file is complete or absent, only less tidy.

    Args:
        message: What is written to standard error when a signal is held back.

    Yields:
        A function to call at safe moments: it raises KeyboardInterrupt if a signal was held back.
    """
    held: list[int] = []

    def hold_back(number: int, frame: FrameType | None) -> None:
        if held:
            exit_interrupted()
        held.append(number)
        sys.stderr.write(message)

    def check() -> None:
        if held:
            raise KeyboardInterrupt

    with stop_signals_handled_by(hold_back):
        yield check


@contextmanager
def stop_signals_handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let a function handle the stop signals within the block; a signal that is ignored stays ignored."""
    with restored_stop_signals() as previous_handlers:
        for number, previous_handler in previous_handlers.items():
            if previous_handler != signal.SIG_IGN:
                signal.signal(number, handler)
        yield


@contextmanager
def restored_stop_signals() -> Iterator[dict[signal.Signals, Any]]:
    """Yield the handlers of the stop signals, and set them again after the block.

    Signals belong to the main thread; in any other the block does nothing, and what is yielded is empty.
    """
    is_main = threading.current_thread() is threading.main_thread()
    previous_handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS if is_main}
    try:
        yield previous_handlers
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


HIDDEN: Final = {
    "jax": ("tensorflow", "keras.src.callbacks"),  # Keras' JAX backend is no part of either
    "matplotlib": ("keras",),
    "IPython": ("keras",),
}
"""Each hidden package, and the modules during whose import it is not found."""
_LOG_MESSAGE: Final = (
    rb"^(WARNING: All log messages before absl::InitializeLog"
    rb"|([IW]\d{4} .* |\d{4}-\d\d-\d\d [\d:.]+: [IW] )\S+\.(cc|h):\d+\] "
    rb"|(E\d{4} .* |\d{4}-\d\d-\d\d [\d:.]+: E )"
    rb"(\S*\b(cudart_stub|cpu_feature_guard|cuda_\w+)\.cc:|\S+\.cc:\d+\] oneDNN ))"
)
"""Information and warnings of TensorFlow and XLA, of any supported version, and their errors about missing
CUDA and the processor. They ignore TensorFlow's own log level, and some come late."""
_FALSE_ALARM: Final = (
    rb"^\S+ .*?(\S*\bcpu_aot_loader\.cc:"
    rb"|\S+\.cc:\d+\] Error parsing text-format tensorflow\.XlaSerializedCacheEntry)"
)
"""Errors about a cached program (`v8.base.programs`) that are not true: XLA reports that the
processor lacks features that are only XLA's own settings, and TensorFlow that the program is no text."""
_LEVEL: Final = "TF_CPP_MIN_LOG_LEVEL"
_VERBOSE_LEVELS: Final = ("0", "1")
"""Log levels that show information or warnings; TensorFlow obeys higher ones by itself."""


class _HidingFinder(MetaPathFinder):
    """Finds no module, and raises `ModuleNotFoundError` for a hidden package."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse a package while it is hidden; leave everything else to the other finders."""
        for module in HIDDEN.get(name, ()):
            spec = getattr(sys.modules.get(module), "__spec__", None)
            if getattr(spec, "_initializing", False) is True:
                raise ModuleNotFoundError(f"{name} is left out of the start", name=name)
        return None


@contextmanager
def light_start() -> Iterator[None]:
    """Let the block import TensorFlow and Keras without the hidden packages, and collect garbage later.

    From then on these packages stay hidden from TensorFlow and Keras in this process.
    """
    if not any(isinstance(finder, _HidingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _HidingFinder())
    with collected_later():
        yield


@contextmanager
def collected_later() -> Iterator[None]:
    """Switch Python's garbage collector off until the block ends; one that is already off stays off.

    The collector visits all objects again and again as their number grows. That is a quarter of the time in
    which a process imports TensorFlow and traces a training step, and both leave little garbage.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def quiet_start(*, is_temporary: bool = False) -> Iterator[None]:
    """Filter TensorFlow's log messages out of standard error while the block imports it, and from then on.

    With a log level of `_VERBOSE_LEVELS` in the environment only `_FALSE_ALARM` is filtered out.

    Args:
        is_temporary: Stop filtering after the block, in a program that is not ours.
    """
    is_verbose = os.environ.get(_LEVEL) in _VERBOSE_LEVELS
    with light_start(), ExitStack() as until_block_ends:
        if _LEVEL not in os.environ:
            until_block_ends.enter_context(with_variables({_LEVEL: "2"}))
        with suppress(OSError):  # without a standard error there is nothing to keep quiet
            if is_temporary:
                until_block_ends.enter_context(_filtered(is_verbose=is_verbose))
            else:
                _filter_until_exit(is_verbose=is_verbose)
        yield


@cache
def _filter_until_exit(*, is_verbose: bool) -> None:
    """Filter until the process ends. Python's own standard error bypasses the filter and loses nothing."""
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    original = until_exit.enter_context(_filtered(is_verbose=is_verbose))
    if sys.stderr is sys.__stderr__:
        encoding = sys.__stderr__.encoding if sys.__stderr__ else "utf-8"
        sys.stderr = os.fdopen(os.dup(original), "w", 1, encoding, errors="backslashreplace", closefd=False)


@contextmanager
def _filtered(*, is_verbose: bool) -> Iterator[int]:
    """Let a thread pass on the lines written to descriptor 2, except false alarms and log messages.

    Yields:
        A descriptor of the file that descriptor 2 was before.
    """
    original = os.dup(2)
    target = os.dup(2)
    log_message = re.compile(_LOG_MESSAGE)
    false_alarm = re.compile(_FALSE_ALARM)
    source, sink = os.pipe()
    os.dup2(sink, 2)
    os.close(sink)

    def pass_on() -> None:
        with os.fdopen(source, "rb") as lines, os.fdopen(target, "wb", buffering=0) as output:
            for line in lines:
                if not false_alarm.match(line) and (is_verbose or not log_message.match(line)):
                    output.write(line)

    thread = threading.Thread(target=pass_on, daemon=True)
    thread.start()
    try:
        yield original
    finally:
        os.dup2(original, 2)
        os.close(original)
        thread.join(timeout=1.0)  # children that outlive this process hold the pipe open


ReportText = Callable[[str], None]
T = TypeVar("T")

_REPORT: Final[ContextVar[ReportText]] = ContextVar("report_waiting", default=lambda text: None)
PROGRESS_INTERVAL_S: Final = 2.0  # between two progress reports, in seconds


@contextmanager
def reporting_waiting_to(report: ReportText) -> Iterator[None]:
    """Send every sentence about waiting to `report` until the block ends."""
    token = _REPORT.set(report)
    try:
        yield
    finally:
        _REPORT.reset(token)


def report_waiting(text: str) -> None:
    """Report what the program waits for; for a network also how long so far and the longest time allowed."""
    report = _REPORT.get()
    report(text)


def with_progress(items: Collection[T], label: str) -> Iterator[T]:
    """Yield the items, and report every `PROGRESS_INTERVAL_S` seconds how many of them are finished."""
    last_report_s = time.monotonic()
    for num_finished, item in enumerate(items):
        if time.monotonic() - last_report_s > PROGRESS_INTERVAL_S:
            last_report_s = time.monotonic()
            report_waiting(f"{label}: {num_finished} of {len(items)}")
        yield item
