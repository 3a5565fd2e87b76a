"""The machine: its cores, memory and devices, and the library that computes on them; asked here only.

What concerns cores and memory answers at once. What concerns devices imports the backend, the library
that Keras computes with, and belongs into processes that compute.
"""

import importlib
import importlib.metadata
import os
import platform
import re
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import psutil

from v8.version import VERSION

_DEVICES: Final = Path("/dev")


def versions() -> dict[str, str]:
    """Return the versions of Python, v8 and the packages that can change a result (G20).

    They come from the installed packages' own records, so that nothing heavy is imported for them.

    >>> sorted(versions())
    ['keras', 'numpy', 'pandas', 'python', 'tensorflow', 'v8']
    """
    found = {"python": platform.python_version(), "v8": VERSION}
    for name in ("keras", "tensorflow", "numpy", "pandas"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def describe_machine() -> dict[str, Any]:
    """Return processor, usable cores, memory in bytes and platform (G20)."""
    return {
        "cpu": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "num_cores": num_usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
    }


def identity() -> dict[str, str]:
    """Return what a measurement of this machine depends on: processor, GPUs and installed versions."""
    driver = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    gpus = [re.findall(r"Model:\s*(.*)", one.read_text("utf-8", "replace")) for one in driver]
    told = describe_machine()
    # One model name stands for processors with and without wide units: what they can do tells them apart.
    told = {"cpu": told["cpu"], "num_cores": told["num_cores"], "flags": processor_flags(), "gpus": gpus}
    return {**versions(), "machine": str(told)}


def processor_flags() -> str:
    """Return what the processor says that it can do; nothing where the system does not tell."""
    return _cpuinfo("flags")


def num_usable_cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Count the cores this process may run on, at least 1.

    Linux says in the quota file what share a container has: microseconds per period, or "max".
    """
    process = psutil.Process()
    has_affinity = hasattr(process, "cpu_affinity")  # macOS has none
    num_cores = len(process.cpu_affinity() or ()) if has_affinity else psutil.cpu_count() or 1
    try:
        quota, period = quota_file.read_text("ascii").split()
        return min(num_cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return num_cores


def load() -> tuple[float, int]:
    """Return how many cores were busy on average in the last minute, and how many there are."""
    return psutil.getloadavg()[0], psutil.cpu_count() or 1


def available_bytes() -> int:
    """Return the memory that new processes may take before the system swaps."""
    return psutil.virtual_memory().available


def peak_process_bytes() -> int:
    """Return the most resident memory that this process has had."""
    try:
        import resource  # noqa: PLC0415 - not on Windows, where psutil tells the peak
    except ImportError:
        info = psutil.Process().memory_info()
        return int(getattr(info, "peak_wset", info.rss))
    unit = 1 if psutil.MACOS else 1024  # macOS counts bytes, others KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def may_have_gpu(devices: Path = _DEVICES) -> bool:
    """Look for NVIDIA's driver, which costs nothing; asking the backend costs seconds."""
    return (devices / "nvidiactl").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") != "-1"


def visible_gpus(devices: Path = _DEVICES) -> tuple[str, ...]:
    """Name the GPUs that processes may be given, as CUDA_VISIBLE_DEVICES does; the backend is not asked."""
    if not may_have_gpu(devices):
        return ()
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told is None:
        return tuple(str(number) for number, _ in enumerate(devices.glob("nvidia[0-9]*")))
    # CUDA does not look behind a name that it does not know.
    return tuple(takewhile(lambda name: name not in {"", "-1"}, (name.strip() for name in told.split(","))))


def backend_name() -> str:
    """Return the name of the library that Keras computes with: "tensorflow" or "jax"."""
    import keras  # noqa: PLC0415 - the first functions answer without it

    return keras.backend.backend()


def backend() -> Any:
    """Return the library that Keras computes with; JAX is an optional extra, and so may TensorFlow be."""
    return importlib.import_module(backend_name())


def has_gpu() -> bool:
    """Say whether the backend can compute on a GPU."""
    return bool(_gpu_devices())


def gpu_models() -> tuple[str, ...]:
    """Name the models of the GPUs that the backend can compute on."""
    if backend_name() == "jax":
        return tuple(device.device_kind for device in _gpu_devices())
    details = (backend().config.experimental.get_device_details(device) for device in _gpu_devices())
    return tuple(str(found.get("device_name", "unnamed GPU")) for found in details)


def cuda_versions() -> tuple[str | None, str | None]:
    """Return CUDA and cuDNN: what TensorFlow was built for, or the packages JAX computes with."""
    if backend_name() == "jax":
        return _version_of_prefix("nvidia-cuda-runtime"), _version_of_prefix("nvidia-cudnn")
    built = backend().sysconfig.get_build_info()
    return built.get("cuda_version"), built.get("cudnn_version")


def device_of(tensor: Any) -> str:
    """Return the device a result lies on, such as `GPU:0` or `CPU:0`."""
    if backend_name() == "jax":
        (device,) = tensor.devices()
        return f"{device.platform.upper()}:{device.id}"
    return str(tensor.device).rpartition("device:")[2]


def proved_device() -> str:
    """Multiply two small matrices without saying where, and return the device of the product."""
    from keras import ops  # noqa: PLC0415 - the first functions answer without it

    return device_of(ops.matmul(ops.ones((8, 8)), ops.ones((8, 8))))


def peak_bytes_of(device: str) -> int:
    """Return the most memory in use of a device, as `device_of` names it; on a CPU that of this process."""
    if not device.startswith("GPU"):
        return peak_process_bytes()
    if backend_name() == "jax":
        stats = backend().devices("gpu")[int(device.rpartition(":")[2])].memory_stats() or {}
        return int(stats.get("peak_bytes_in_use", 0))
    return int(backend().config.experimental.get_memory_info(device)["peak"])


def _version_of_prefix(prefix: str) -> str | None:
    """Return the version of the first package of this name, whatever CUDA its name ends in."""
    found = [one for one in importlib.metadata.distributions() if (one.name or "").startswith(prefix)]
    return found[0].version if found else None


def _cpuinfo(key: str) -> str:
    """Return what Linux says of the first processor; empty where nothing is known."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return ""
    found = re.search(rf"^{key}\s*: (.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _gpu_devices() -> list[Any]:
    if backend_name() == "jax":
        return [device for device in backend().devices() if device.platform == "gpu"]
    return list(backend().config.list_physical_devices("GPU"))
