"""TensorFlow's chatter, kept off the terminal; every process that starts it uses this, and starts lightly."""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from v8.engine.light_start import light_start

_CHATTER = re.compile(
    rb"^(WARNING: All log messages before absl::InitializeLog"
    rb"|([IW]\d{4} .* |\d{4}-\d\d-\d\d [\d:.]+: [IW] )\S+\.(cc|h):\d+\] "
    rb"|(E\d{4} .* |\d{4}-\d\d-\d\d [\d:.]+: E )"
    rb"(\S*\b(cudart_stub|cpu_feature_guard|cuda_\w+)\.cc:|\S+\.cc:\d+\] oneDNN ))"
)
"""What TensorFlow and XLA, of any supported version, say for information or as a warning, and their errors
about missing CUDA and the processor: they ignore TensorFlow's own log level, and some come late."""

_FALSE_ALARM = re.compile(
    rb"^\S+ .*?(\S*\bcpu_aot_loader\.cc:"
    rb"|\S+\.cc:\d+\] Error parsing text-format tensorflow\.XlaSerializedCacheEntry)"
)
"""Of a kept program (`v8.training.programs`) XLA says that the processor lacks units that are only XLA's own
settings, and TensorFlow that it is no text. Both are untrue, and nobody shall read them."""


@contextmanager
def quiet_start() -> Iterator[None]:
    """Keep TensorFlow's chatter off standard error while the block imports it, and from then on.

    A `TF_CPP_MIN_LOG_LEVEL` in the environment stands, and then all is shown but for `_FALSE_ALARM`.
    """
    with light_start(), _log_level_of_a_start():
        yield


@contextmanager
def _log_level_of_a_start() -> Iterator[None]:
    is_chosen = "TF_CPP_MIN_LOG_LEVEL" in os.environ
    with suppress(OSError):  # without a standard error there is nothing to keep quiet
        _filter_native_lines(keeps_chatter=is_chosen)
    if is_chosen:
        yield
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    try:
        yield
    finally:
        del os.environ["TF_CPP_MIN_LOG_LEVEL"]  # TensorFlow has read it; a child must be quiet by itself


@cache
def _filter_native_lines(*, keeps_chatter: bool) -> None:
    """Let a thread pass on what native code writes to the descriptor, but for false alarms and chatter.

    Python's own standard error goes past it, so that no last words are lost with the thread.
    """
    original = os.dup(2)
    source, sink = os.pipe()
    os.dup2(sink, 2)
    os.close(sink)
    if sys.stderr is sys.__stderr__:
        sys.stderr = open(  # noqa: SIM115 - it lives as long as the process
            original,
            "w",
            buffering=1,
            encoding=sys.__stderr__.encoding if sys.__stderr__ else "utf-8",
            errors="backslashreplace",
            closefd=False,
        )

    def pass_on() -> None:
        with os.fdopen(source, "rb") as lines:
            for line in lines:
                if not _FALSE_ALARM.match(line) and (keeps_chatter or not _CHATTER.match(line)):
                    os.write(original, line)

    def finish() -> None:
        os.dup2(original, 2)
        passing.join(timeout=1.0)  # children that outlive this process hold the pipe open

    passing = threading.Thread(target=pass_on, daemon=True)
    passing.start()
    atexit.register(finish)
