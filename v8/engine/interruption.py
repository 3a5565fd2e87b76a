"""Ctrl-C while TensorFlow works: noted at once, obeyed at the next moment that is safe.

A KeyboardInterrupt that rises while `tf.data` is inside a Python generator corrupts TensorFlow's memory
(2.21 on Linux: every second Ctrl-C ended in an abort). So the signal only leaves a note, and the
trainer looks for it between two batches.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_INTERRUPTED = 130


@contextmanager
def deferred_interrupts(
    said: str = "stopping after this batch; once more stops at once\n",
) -> Iterator[Callable[[], None]]:
    """Hold back Ctrl-C and SIGTERM; a second one ends the process where it stands.

    That is safe too, because every file is whole or absent, only less tidy. Signals belong to the main
    thread; in any other the block does nothing.

    Args:
        said: Written to standard error when a signal is held back.

    Yields:
        A function to call at safe moments: it raises KeyboardInterrupt when one was held back.
    """
    held: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if held:
            os._exit(EXIT_INTERRUPTED)
        held.append(number)
        sys.stderr.write(said)

    def check() -> None:
        if held:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = {number: signal.signal(number, note) for number in STOP_SIGNALS}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
