"""Which number format a machine gains from."""

from __future__ import annotations

from pathlib import Path

import keras

_LOWEST_TENSOR_CORE_CAPABILITY = (7, 0)
"""Compute capability from which NVIDIA GPUs multiply float16 on tensor cores (Volta)."""


def choose_precision(setting: str) -> str:
    """Turn a profile's precision into a Keras dtype policy name.

    Args:
        setting: "auto" or a policy name.

    Returns:
        For "auto": `mixed_float16` on a GPU that has tensor cores; `mixed_bfloat16` on a CPU with
        bfloat16 tiles (AMX); `float32` elsewhere, where 16 bits are emulated and lose time.
    """
    if setting != "auto":
        return setting
    if gpu_names():
        return "mixed_float16" if _has_tensor_cores() else "float32"
    return "mixed_bfloat16" if "amx_bf16" in _cpu_flags() else "float32"


def gpu_names() -> list[str]:
    """List the GPUs that the active Keras backend can compute on."""
    if keras.backend.backend() == "jax":
        import jax  # noqa: PLC0415 - an optional extra

        return [str(device) for device in jax.devices() if device.platform == "gpu"]
    import tensorflow as tf  # noqa: PLC0415 - only the active backend is imported

    return [device.name for device in tf.config.list_physical_devices("GPU")]


def _has_tensor_cores() -> bool:
    if keras.backend.backend() == "jax":
        import jax  # noqa: PLC0415

        version = str(jax.devices()[0].compute_capability)
        return tuple(int(part) for part in version.split(".")) >= _LOWEST_TENSOR_CORE_CAPABILITY
    import tensorflow as tf  # noqa: PLC0415

    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    return all(found.get("compute_capability", (0, 0)) >= _LOWEST_TENSOR_CORE_CAPABILITY for found in details)


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:  # not Linux: nothing is known, so nothing is claimed
        return set()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return set(flags.partition(":")[2].split())
