"""Which device computes: chosen before TensorFlow starts, proved after."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

from v8 import hardware as machine
from v8.errors import ProfileError
from v8.machine.placement import SINGLE_THREADED, Placement, choose_placement, choose_shares
from v8.registry import require_package

if TYPE_CHECKING:
    from v8.runs.engines import Engine
    from v8.runs.execution import TrainAll

DEVICES = ("auto", "cpu", "gpu")


def choose_device(device: str, *, is_elsewhere: bool = False) -> None:
    """Make the wanted device the one that computes; must run before TensorFlow is imported.

    Args:
        device: One of `DEVICES`; `auto` takes what there is.
        is_elsewhere: Whether other machines compute, so that no GPU is looked for on this one.

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
    if device == "gpu" and not is_elsewhere:
        _require_gpu()


def choose_engine(
    name: str, device: str, workers: str, fleet_size: str, address: str | None = None
) -> TrainAll:
    """Choose who trains, and where; must run before TensorFlow is imported.

    Args:
        name: The engine's.
        device: One of `DEVICES`.
        workers: "auto" or a number of processes.
        fleet_size: "auto" or a number of series.
        address: Where other machines are found.

    Raises:
        ProfileError: If there is no such engine, its package is not installed, or the flags contradict it.
    """
    from v8.runs.engines import ENGINES

    engine = ENGINES.find(name, where="--engine")
    if engine.package:
        rule = f"needs the package {engine.package}, v8's extra of that name"
        require_package(engine.package, where=f"--engine {engine.name}", rule=rule)
    if not engine.is_elsewhere:
        if address is not None:
            raise _no_address(engine, "an address")
        choose_device(device)
        return partial(engine.train_all, place(device, workers, fleet_size))
    if address is not None and (not address or "://" in address):
        raise _no_address(engine, repr(address))
    choose_device(device, is_elsewhere=True)
    _settle_threads(may_have_gpu=device != "cpu" and machine.may_have_gpu())  # this process judges updates
    return partial(engine.train_all, choose_shares(workers, fleet_size, device, address))


def _no_address(engine: Engine, got: str) -> ProfileError:
    return ProfileError(
        where="--address",
        rule="is auto or HOST:PORT of a Ray cluster, with --engine ray",
        got=f"{got} with --engine {engine.name}",
        fix="Write for example --engine ray --address 10.0.0.1:6379, or leave it out",
    )


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
    _settle_threads(may_have_gpu=may_have_gpu)
    return placement


def _settle_threads(*, may_have_gpu: bool) -> None:
    if not may_have_gpu:
        for variable, value in SINGLE_THREADED.items():
            os.environ.setdefault(variable, value)


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
