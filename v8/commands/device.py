"""Which device computes: chosen before TensorFlow starts, proved after."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from v8 import machine
from v8.engine.placement import Placement, choose_placement
from v8.errors import ProfileError

DEVICES = ("auto", "cpu", "gpu")

_THREAD_VARIABLES = (
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)


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


def choose_workers(device: str, workers: str) -> int:
    """Decide how many processes train one series at a time, see `place`."""
    return place(device, workers, "1").num_workers


def place(device: str, workers: str, fleet_size: str) -> Placement:
    """Decide where the work goes, and make each process single-threaded on a CPU.

    One thread a process is also what makes results repeatable: the same sums in the same order,
    whether a series is trained alone or beside others.

    Args:
        device: One of `DEVICES`, already chosen.
        workers: "auto" or a number of processes.
        fleet_size: "auto" or a number of series.

    Raises:
        ProfileError: If one is no number, or both are wanted at once.
    """
    may_have_gpu = device != "cpu" and machine.may_have_gpu()
    num_cores = machine.num_usable_cores()
    gpus = machine.visible_gpus() if may_have_gpu else ()
    placement = choose_placement(
        workers, fleet_size, may_have_gpu=may_have_gpu, num_cores=num_cores, gpus=gpus
    )
    if not may_have_gpu:
        for variable in _THREAD_VARIABLES:
            os.environ.setdefault(variable, "1")
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    return placement


def _require_gpu() -> None:
    if len(machine.visible_gpus()) < 2:
        is_visible, device = where_work_is()
    else:  # each gets a process, and what is worked out in this one would keep memory of the first
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            is_visible, device = pool.submit(where_work_is).result()
    if not device.startswith("GPU"):
        raise ProfileError(
            where="--device gpu",
            rule="needs a GPU that the Keras backend can compute on",
            got=f"work on {device}" if is_visible else device,
            fix="Install the GPU's driver and tensorflow[and-cuda], or use --device auto",
        )


def where_work_is() -> tuple[bool, str]:
    """Say whether this process sees a GPU, and where something that it works out lies."""
    is_visible = machine.has_gpu()
    return is_visible, machine.proved_device() if is_visible else "none visible"
