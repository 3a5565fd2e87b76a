"""Which device computes: chosen before TensorFlow starts, proved after."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from v8.errors import ProfileError

DEVICES = ("auto", "cpu", "gpu")


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
            os.dup2(original, 2)
            os.close(original)
            held.seek(0)
            lines = held.read().decode("utf-8", "replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not _CHATTER.match(line)))


def choose_device(device: str) -> None:
    """Make the wanted device the one that computes; must run before TensorFlow is imported.

    Args:
        device: One of `DEVICES`; `auto` takes what there is.

    Raises:
        ProfileError: If it is unknown, or a GPU is wanted and TensorFlow sees none.
    """
    if device not in DEVICES:
        raise ProfileError(
            where="--device",
            rule=f"is one of {', '.join(DEVICES)}",
            got=repr(device),
            fix="Choose one of these",
        )
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if device == "gpu":
        _require_gpu()


def _require_gpu() -> None:
    from v8.training.precision import gpu_names

    if not gpu_names():
        raise ProfileError(
            where="--device gpu",
            rule="needs a GPU that TensorFlow can compute on",
            got="none visible",
            fix="Install the GPU's driver and tensorflow[and-cuda], or use --device auto",
        )
