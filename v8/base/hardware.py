"""The machine: cores, memory and devices, and the library that computes on them.

Functions about cores and memory return immediately. Functions about devices import the backend, the library
that Keras computes with; they should be called only in processes that compute.

TensorFlow's releases hold no code for GPUs of compute capability 12 (RTX 50), and the process is aborted
when the first program is compiled for one (tensorflow issues 89272, 101746, 111958). So the driver is asked
before TensorFlow starts (`gpus_without_code`). JAX computes on such a GPU if it is installed with CUDA;
otherwise the CPU does. A release that lists code for them is used.
"""

import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import psutil

from v8.base.version import VERSION

SMI: Final = "nvidia-smi"
SMI_LIMIT_S: Final = 20  # of nvidia-smi, which hangs when the driver does, in seconds
FIRST_MISSING: Final = 12
"""Compute capability, its whole number, from which on TensorFlow needs code of its own."""
_FIELDS: Final = ("name", "compute_cap", "uuid")

SINGLE_THREADED: Final = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
"""Environment variables that give a process one thread on a CPU, which makes results repeatable."""

_DEVICES: Final = Path("/dev")
_FULL_FLOAT32_LOCK: Final = threading.Lock()
_num_full_float32 = 0  # threads in `full_float32`
_allowed_tf32 = True  # whether TensorFlow might use TF32 before the first of them


def versions() -> dict[str, str]:
    """Return the versions of Python, v8 and the packages that can change a result.

    They are read from the metadata of the installed packages, without importing them.

    >>> sorted(versions())
    ['keras', 'numpy', 'pandas', 'python', 'tensorflow', 'v8']
    """
    by_name = {"python": platform.python_version(), "v8": VERSION}
    for name in ("keras", "tensorflow", "numpy", "pandas"):
        try:
            by_name[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            by_name[name] = "not installed"
    return by_name


def describe_machine() -> dict[str, Any]:
    """Return processor, usable cores, memory in bytes and platform."""
    return {
        "cpu": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "num_cores": num_usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
    }


def identity() -> dict[str, str]:
    """Return what a measurement on this machine depends on: processor, GPUs and installed versions."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    gpus = [re.findall(r"Model:\s*(.*)", file.read_text("utf-8", "replace")) for file in files]
    description = describe_machine()
    machine = {
        "cpu": description["cpu"],
        "num_cores": description["num_cores"],
        # Processors of one model name may have wide vector units or not; the flags differ.
        "flags": processor_flags(),
        "gpus": gpus,
    }
    return {**versions(), "machine": str(machine)}


def processor_flags() -> str:
    """Return the names of the processor's features; empty if the system does not list them."""
    return _cpuinfo("flags")


def num_usable_cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Count the cores this process may run on, at least 1.

    On Linux the quota file holds the share of a container: microseconds per period, or "max".
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
    """Return the bytes of memory that new processes may use before the system swaps."""
    return psutil.virtual_memory().available


def peak_process_bytes() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    try:
        import resource  # noqa: PLC0415 - does not exist on Windows, where psutil returns the peak
    except ImportError:
        info = psutil.Process().memory_info()
        return int(getattr(info, "peak_wset", info.rss))
    unit = 1 if psutil.MACOS else 1024  # macOS counts bytes, others KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def may_have_gpu(devices: Path = _DEVICES) -> bool:
    """Return whether NVIDIA's driver is there; this is quick, while asking the backend takes seconds.

    GPUs that nothing installed has code for do not count (`gpus_without_code`).
    """
    is_driven = (devices / "nvidiactl").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") != "-1"
    return is_driven and "CUDA_VISIBLE_DEVICES" not in replacing_variables("auto")


def may_be_gpu(device: str) -> bool:
    """Return whether a GPU may be what computes."""
    return device != "cpu" and may_have_gpu()


def process_variables(device: str) -> dict[str, str]:
    """Return the environment variables of processes that compute on "auto", "cpu" or "gpu".

    TensorFlow reads them when it starts. Where no GPU may be what computes, each process has one thread. That
    is also what makes results repeatable: the same sums in the same order, whether a series is trained alone
    or among others. Variables that the user has set stay, but for the GPUs of `cpu`, and for GPUs that
    TensorFlow has no code for (`gpus_without_code`).
    """
    replacing = replacing_variables(device)
    if may_be_gpu(device):
        return replacing
    variables = {name: value for name, value in SINGLE_THREADED.items() if name not in os.environ}
    hiding = {"CUDA_VISIBLE_DEVICES": "-1"} if device == "cpu" else {}
    return {**variables, **replacing, **hiding}


def visible_gpus(devices: Path = _DEVICES) -> tuple[str, ...]:
    """Return the GPUs that processes may use, as CUDA_VISIBLE_DEVICES names them, without the backend."""
    if not may_have_gpu(devices):
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(str(number) for number, _ in enumerate(devices.glob("nvidia[0-9]*")))
    names = (name.strip() for name in visible.split(","))
    # CUDA ignores all names after an invalid one.
    return tuple(takewhile(lambda name: name not in {"", "-1"}, names))


def replacing_variables(device: str) -> dict[str, str]:
    """Return environment variables with which TensorFlow does not compute on GPUs that it has no code for.

    They are empty where there is no such GPU, `device` is "cpu", or another backend is chosen already.
    """
    if device == "cpu" or not gpus_without_code():
        return {}
    return {"KERAS_BACKEND": "jax"} if _has_jax_for_gpus() else {"CUDA_VISIBLE_DEVICES": "-1"}


def replacement_notice(device: str) -> str | None:
    """Return the sentence that says what computes in TensorFlow's place, and why; None if nothing does."""
    variables = replacing_variables(device)
    if not variables:
        return None
    gpus = " and ".join(gpus_without_code())
    remedy = "JAX computes on it" if "KERAS_BACKEND" in variables else "the CPU computes; install jax[cuda12]"
    return f"The installed TensorFlow has no code for {gpus}, and would be aborted there: {remedy}."


def gpus_without_code() -> tuple[str, ...]:
    """Return name and compute capability of the GPUs that TensorFlow would use but has no code for."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    is_tensorflow = os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow"
    if not is_tensorflow or visible in {"", "-1"}:
        return ()
    rows = ask_smi(_FIELDS)
    if isinstance(rows, str):
        return ()
    capabilities = _capabilities_of_tensorflow()
    if not capabilities or max(capabilities) >= FIRST_MISSING:
        return ()
    names = [name.strip() for name in (visible or "").split(",")]
    # CUDA numbers GPUs in another order than the driver: a number says nothing about which one is meant.
    is_named = all(name.startswith("GPU-") for name in names)
    return tuple(
        f"{name} (compute capability {capability})"
        for name, capability, uuid in rows
        if _whole(capability) >= FIRST_MISSING and (not is_named or uuid.startswith(tuple(names)))
    )


def ask_smi(fields: Sequence[str]) -> list[list[str]] | str:
    """Ask nvidia-smi for fields of every GPU: returns a row for each, or why there is none.

    The driver is asked once in a process.
    """
    return _asked(shutil.which(SMI), tuple(fields))


@cache
def _asked(program: str | None, fields: tuple[str, ...]) -> list[list[str]] | str:
    if program is None:
        return f"{SMI} is not on the PATH"
    query = (f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    try:
        completed = subprocess.run(  # noqa: S603 - the driver's own program
            [program, *query], capture_output=True, text=True, timeout=SMI_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{SMI}: {error}"
    rows = [[part.strip() for part in line.split(",")] for line in completed.stdout.splitlines() if line]
    if rows and not completed.returncode and all(len(row) == len(fields) for row in rows):
        return rows
    output = (completed.stdout + completed.stderr).strip().splitlines() or ["nothing"]
    return f"{SMI} printed: {output[0]}"


def backend_name() -> str:
    """Return the name of the library that Keras computes with: "tensorflow" or "jax"."""
    import keras  # noqa: PLC0415 - the first functions answer without it

    return keras.backend.backend()


def backend() -> Any:
    """Import and return the library that Keras computes with: TensorFlow or JAX."""
    return importlib.import_module(backend_name())


def has_gpu() -> bool:
    """Return whether the backend can compute on a GPU."""
    return bool(_gpu_devices())


@contextmanager
def full_float32() -> Iterator[None]:
    """Let the backend multiply float32 matrices in full precision on a GPU, in this block.

    GPUs since NVIDIA's Ampere otherwise round the factors to the 11 bits of TF32. Training may do so; a
    forecast may not, because it should be the same on every machine. On a CPU nothing changes.
    """
    global _num_full_float32, _allowed_tf32  # noqa: PLW0603 - TensorFlow's setting is one of the process
    if not has_gpu():
        yield
    elif backend_name() == "jax":
        with backend().default_matmul_precision("highest"):
            yield
    else:
        settings = backend().config.experimental
        with _FULL_FLOAT32_LOCK:
            if _num_full_float32 == 0:
                _allowed_tf32 = settings.tensor_float_32_execution_enabled()
                settings.enable_tensor_float_32_execution(False)
            _num_full_float32 += 1
        try:
            yield
        finally:
            with _FULL_FLOAT32_LOCK:
                _num_full_float32 -= 1
                if _num_full_float32 == 0:
                    settings.enable_tensor_float_32_execution(_allowed_tf32)


def gpu_models() -> tuple[str, ...]:
    """Return the model names of the GPUs that the backend can compute on."""
    if backend_name() == "jax":
        return tuple(device.device_kind for device in _gpu_devices())
    details = (backend().config.experimental.get_device_details(device) for device in _gpu_devices())
    return tuple(str(fields.get("device_name", "unnamed GPU")) for fields in details)


def cuda_versions() -> tuple[str | None, str | None]:
    """Return the versions of CUDA and cuDNN that TensorFlow was built for, or that JAX uses."""
    if backend_name() == "jax":
        return _version_of_prefix("nvidia-cuda-runtime"), _version_of_prefix("nvidia-cudnn")
    built = backend().sysconfig.get_build_info()
    return built.get("cuda_version"), built.get("cudnn_version")


def device_of(tensor: Any) -> str:
    """Return the device that holds a tensor, such as `GPU:0` or `CPU:0`."""
    if backend_name() == "jax":
        (device,) = tensor.devices()
        return f"{device.platform.upper()}:{device.id}"
    return str(tensor.device).rpartition("device:")[2]


def proved_device() -> str:
    """Multiply two small matrices on the default device, and return the device of the product."""
    from keras import ops  # noqa: PLC0415 - the first functions answer without it

    return device_of(ops.matmul(ops.ones((8, 8)), ops.ones((8, 8))))


def peak_bytes_of(device: str) -> int:
    """Return the peak memory of a device, named as by `device_of`, in bytes; on a CPU of this process."""
    if not device.startswith("GPU"):
        return peak_process_bytes()
    if backend_name() == "jax":
        stats = backend().devices("gpu")[int(device.rpartition(":")[2])].memory_stats() or {}
        return int(stats.get("peak_bytes_in_use", 0))
    return int(backend().config.experimental.get_memory_info(device)["peak"])


def _whole(capability: str) -> int:
    """Return the whole number of a compute capability such as "12.0"; 0 for anything else."""
    whole = capability.partition(".")[0]
    return int(whole) if whole.isdecimal() else 0


def _capabilities_of_tensorflow() -> list[int]:
    """Return the whole numbers of the compute capabilities that TensorFlow's build lists, without a start.

    The list is empty where TensorFlow is not installed, or is built without CUDA.
    """
    spec = find_spec("tensorflow")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        return []
    file = Path(folders[0]) / "python" / "platform" / "build_info.py"
    try:
        content = file.read_text("utf-8")
    except OSError:
        return []
    return [int(number) // 10 for number in re.findall(r"'(?:sm|compute)_(\d+)", content)]


def _has_jax_for_gpus() -> bool:
    """Return whether JAX is installed with its plug-in for CUDA."""
    return find_spec("jax") is not None and _version_of_prefix("jax-cuda") is not None


def _version_of_prefix(prefix: str) -> str | None:
    """Return the version of the first package whose name has this prefix; a suffix names the CUDA version."""
    for distribution in importlib.metadata.distributions():
        if (distribution.name or "").startswith(prefix):
            return distribution.version
    return None


def _cpuinfo(key: str) -> str:
    """Return an entry of the first processor in Linux's list; empty if there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return ""
    match = re.search(rf"^{key}\s*: (.*)$", text, re.MULTILINE)
    return match[1].strip() if match else ""


def _gpu_devices() -> list[Any]:
    if backend_name() == "jax":
        return [device for device in backend().devices() if device.platform == "gpu"]
    return list(backend().config.list_physical_devices("GPU"))


STEPS_VARIABLE: Final = "V8_STEPS_PER_TRIP"
"""Environment variable for the number of time steps in one trip of a loop on a GPU, at least 2, by which
processes of a run are told another one than the default. Where it is set, loops have the form for a GPU
without one, too, so that the form can be tested."""
