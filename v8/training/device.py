"""Where results lie and how much memory they took, asked of the backend after the work is done."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
from keras import ops


@dataclass(frozen=True)
class Memory:
    """Memory of the device that computes.

    Args:
        allocated_bytes: In use now: the device's on a GPU, this process's resident memory on a CPU.
        peak_bytes: The most it has been in this process.
    """

    allocated_bytes: int
    peak_bytes: int


def device_of(tensor: Any) -> str:
    """Return the device a result lies on, such as `GPU:0` or `CPU:0`.

    Args:
        tensor: What the active backend computed.
    """
    if keras.backend.backend() == "jax":
        (device,) = tensor.devices()
        return f"{device.platform.upper()}:{device.id}"
    return str(tensor.device).rpartition("device:")[2]


def proved_device() -> str:
    """Multiply two small matrices without saying where, and return the device of the product."""
    return device_of(ops.matmul(ops.ones((8, 8)), ops.ones((8, 8))))


def memory_of(device: str) -> Memory:
    """Ask for the memory of a device.

    Args:
        device: As `device_of` names it.
    """
    if not device.startswith("GPU"):
        return _process_memory()
    if keras.backend.backend() == "jax":
        import jax  # noqa: PLC0415 - an optional extra

        stats = jax.devices("gpu")[int(device.rpartition(":")[2])].memory_stats() or {}
        return Memory(stats.get("bytes_in_use", 0), stats.get("peak_bytes_in_use", 0))
    import tensorflow as tf  # noqa: PLC0415 - only the active backend is imported

    info = tf.config.experimental.get_memory_info(device)
    return Memory(info["current"], info["peak"])


def _process_memory() -> Memory:
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, others KiB
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:  # not Linux: what is in use now is not told
        return Memory(peak_bytes, peak_bytes)
    return Memory(pages * resource.getpagesize(), peak_bytes)
