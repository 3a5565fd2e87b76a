"""TensorFlow's start-up chatter, kept off the terminal; every process that starts it uses this."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_CHATTER = re.compile(
    r"^(WARNING: All log messages before absl::InitializeLog"
    r"|[IWE]\d{4} .* (cudart_stub|cuda_platform|cpu_feature_guard)\.cc:)"
)
"""Lines with which TensorFlow says that it found no CUDA; they ignore its own log level."""


@contextmanager
def quiet_start() -> Iterator[None]:
    """Keep TensorFlow's start-up chatter off the terminal while the block imports it.

    Everything else that is written to standard error meanwhile appears when the block ends. A
    `TF_CPP_MIN_LOG_LEVEL` in the environment stands, and then all is shown as it comes.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        original = os.dup(2)  # native code writes to the descriptor, past sys.stderr
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            del os.environ["TF_CPP_MIN_LOG_LEVEL"]  # TensorFlow has read it; a child must be quiet by itself
            os.dup2(original, 2)
            os.close(original)
            held.seek(0)
            lines = held.read().decode("utf-8", "replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not _CHATTER.match(line)))
