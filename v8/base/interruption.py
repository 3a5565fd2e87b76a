"""Ctrl-C ends a process at its next safe moment, within `EXIT_TIMEOUT_S`; a second Ctrl-C immediately.

A KeyboardInterrupt that is raised inside TensorFlow can corrupt its memory (2.21 on Linux, in a generator
that `tf.data` called: every second Ctrl-C ended in an abort; `v8.model.training.state` calls Python in
a thread that no signal reaches). So during training a signal handler only records the signal, and the trainer
checks the record between two batches.

A main thread inside a compiler or a library runs no signal handler of Python, and at its end a process waits
for its threads, which may wait for the network. `watch_interrupts` therefore starts a thread that receives
the signals too, and ends the process when all that takes too long. Nothing is lost: every file is complete or
absent, checkpoints included, and worker processes end with their parent.

SIGTERM, with which schedulers and `kill` stop a process, has the same effect as Ctrl-C. A process that is
started with SIGINT ignored shall live on when Ctrl-C is pressed for something else (a script's
`nohup ... &`, cron): there Ctrl-C never does anything, and SIGTERM ends the command.
"""

import atexit
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, NoReturn

from v8.base.invocation import EXIT_INTERRUPTED

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
        # Not descriptor 2, which may lead to a thread that ends with this process (`v8.base.starting`).
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
