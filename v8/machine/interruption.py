"""Ctrl-C: obeyed at the next moment that is safe, but within `LEAVE_S`, and a second one at once.

A KeyboardInterrupt that rises inside TensorFlow can corrupt its memory (2.21 on Linux, in a generator that
`tf.data` called: every second Ctrl-C ended in an abort; `v8.training.pipeline` calls Python in a thread that
no signal reaches). So there the signal only leaves a note, and the trainer looks for it between two batches.

A main thread inside a compiler or a library runs no signal handler of Python, and a process waits at its
end for its threads, which may wait for the network. `watch_interrupts` lets a thread of its own see the
signals too and end the process when all that takes too long. That loses nothing: every file is whole or
absent, checkpoints included, and worker processes end with their parent.

SIGTERM, with which schedulers and `kill` stop a process, does all that Ctrl-C does. Who starts a process with
SIGINT ignored wants it to live on when Ctrl-C is pressed for something else (a script's `nohup ... &`, cron):
there Ctrl-C does nothing at any time, and SIGTERM ends the command.
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

from v8.invocation import EXIT_INTERRUPTED

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
LEAVE_S = 2.5  # how long a process may take to end in good order after the first signal, in seconds
_SAY_S = 0.3  # how long the last words may take, in seconds: nobody may be reading
_SHOW_CURSOR: Final = b"\x1b[?25h"
_last_words: Final = ["interrupted: every file is whole or absent. Repeat the same command to go on.\n"]
_speaking = threading.Lock()


def watch_interrupts() -> None:
    """End this process within `LEAVE_S` of a stop signal, and at once at a second, whatever it is doing."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seen, noted = socket.socketpair()
    noted.setblocking(False)
    signal.set_wakeup_fd(noted.fileno(), warn_on_full_buffer=False)
    # The thread holds the sockets for as long as the process lives.
    threading.Thread(target=_leave_in_time, args=(seen, noted), daemon=True).start()
    # While Python takes itself down it hands signals back to the system, which would end a process that has
    # done all its work as one that was killed. Registered first, this is called last.
    for number in STOP_SIGNALS:
        atexit.register(signal.signal, number, signal.SIG_IGN)


def set_last_words(sentence: str) -> None:
    """Say this when interrupted, in place of the words that fit every command."""
    _last_words[:] = [f"{sentence}\n"]


def leave() -> NoReturn:
    """Say the last words, once, and end the process without waiting for its threads."""
    # Two threads may leave at the same time: the one that ends the process waits for the one that speaks.
    _speaking.acquire(timeout=_SAY_S)
    with suppress(IndexError, OSError, ValueError):  # they were said, or standard error is closed
        # Not descriptor 2, which may lead to a thread that ends with this process (`v8.machine.starting`).
        errors = sys.stderr.fileno()
        # Somebody reads, or the pipe has room; Windows can only wait for sockets.
        if os.name == "nt" or select.select([], [errors], [], _SAY_S)[1]:
            os.write(errors, _last_words.pop().encode())
            if os.isatty(1):
                os.write(1, _SHOW_CURSOR)
    os._exit(EXIT_INTERRUPTED)


def leave_at_once(code: int) -> None:
    """End a process as Python does, but for the second in which TensorFlow takes itself down.

    Returns where the last output cannot be written: Python says so.
    """
    with suppress(OSError):
        threading._shutdown()  # type: ignore[attr-defined]  # what os._exit leaves out, in Python's order
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:  # absl closes a standard error that Typer has wrapped, for a broken pipe
                stream.flush()
        os._exit(code)


def _leave_in_time(seen: socket.socket, noted: socket.socket) -> None:
    _await_signal(seen)
    seen.settimeout(LEAVE_S)
    with suppress(TimeoutError):
        _await_signal(seen)
    leave()


def _await_signal(seen: socket.socket) -> None:
    while seen.recv(1)[0] not in STOP_SIGNALS:
        pass


@contextmanager
def deferred_interrupts(
    said: str = "stopping after this batch; once more stops at once\n",
) -> Iterator[Callable[[], None]]:
    """Hold back Ctrl-C and SIGTERM, and say so; a second one ends the process where it stands.

    That is safe too, because every file is whole or absent, only less tidy. Yields a function to call at safe
    moments: it raises KeyboardInterrupt when one was held back.
    """
    held: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if held:
            leave()
        held.append(number)
        sys.stderr.write(said)

    def check() -> None:
        if held:
            raise KeyboardInterrupt

    with stop_signals_answered_by(note):
        yield check


@contextmanager
def stop_signals_answered_by(answer: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let a function answer the stop signals within the block; one that is ignored on purpose stays so."""
    with kept_stop_signals() as before:
        for number in [number for number, handler in before.items() if handler != signal.SIG_IGN]:
            signal.signal(number, answer)
        yield


@contextmanager
def kept_stop_signals() -> Iterator[dict[signal.Signals, Any]]:
    """Let who answers the stop signals now, by signal, answer them again after the block.

    Signals belong to the main thread; in any other the block does nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS if is_main}
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
