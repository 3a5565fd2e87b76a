"""Engines: who makes the artefacts of a run, and where.

An engine is a function and a line in `ENGINES`. It gets the jobs, where they may run and a listener, and
yields each series' outcome as it comes; `v8.runs.execution` does all that comes before and after.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

from v8 import hardware as machine
from v8.errors import ProfileError, with_parameters
from v8.hardware import has_gpu
from v8.machine.choices import measured_workers
from v8.machine.placement import SINGLE_THREADED, Placement, choose_placement, choose_shares
from v8.machine.starting import quiet_start
from v8.registry import Registry, later, require_package
from v8.runs import workers
from v8.runs.events import Listener, Note, Outcome
from v8.runs.plan import Job
from v8.training.programs import kept_programs

if TYPE_CHECKING:
    from v8.runs.execution import TrainAll


@dataclass(frozen=True)
class Engine:
    """A way to make the artefacts of a run.

    Args:
        name: What it is called.
        sentence: Where it trains.
        source: The modules that do it.
        train_all: Yields the outcome of every job, in any order.
        package: The package it needs, by the name that pip knows; None needs nothing.
        is_elsewhere: Whether it may train on other machines, at an address, so that what this one has says
            little about where work goes.
    """

    name: str
    sentence: str
    source: str
    train_all: Callable[[Placement, Sequence[Job], Listener], Iterator[Outcome]]
    package: str | None = None
    is_elsewhere: bool = False


def _train_on_this_machine(placement: Placement, jobs: Sequence[Job], listen: Listener) -> Iterator[Outcome]:
    """Start TensorFlow only where it trains: in the workers, or here when there are none."""
    num_workers = _num_workers(placement, len(jobs), listen)
    if num_workers > 1:
        size = placement.fleet_size
        return workers.train_all(jobs, listen, num_workers, gpus=placement.gpus, fleet_size=size)
    return _train_here(placement, jobs, listen)


def _train_here(placement: Placement, jobs: Sequence[Job], listen: Listener) -> Iterator[Outcome]:
    with kept_programs():
        yield from _started(placement, jobs, listen)


def _started(placement: Placement, jobs: Sequence[Job], listen: Listener) -> Iterator[Outcome]:
    with quiet_start():
        from v8.runs import local  # noqa: PLC0415 - workers' parent must not start TensorFlow
        from v8.training.probe import measured_fleet_size  # noqa: PLC0415

        # Looking for GPUs is the other moment TensorFlow talks.
        is_on_gpu = has_gpu() and not jobs[0].profile.family.is_formula
        # A machine with a GPU's driver may still have a backend that cannot use it.
        fleet_size = placement.fleet_size or (
            measured_fleet_size(jobs[0].profile, len(jobs)) if is_on_gpu else 1
        )
    return local.train_all(jobs, listen, fleet_size)


def _num_workers(placement: Placement, num_jobs: int, listen: Listener) -> int:
    bound = min(placement.num_workers, num_jobs)
    if not placement.is_measured or bound == 1:
        return bound
    chosen = measured_workers(placement.num_workers, bound)
    told = f"Workers: {chosen} of at most {bound}, measured (param:workers sets another number)."
    listen(Note(with_parameters(told)))
    return chosen


ENGINES = Registry(
    "engine",
    [
        Engine(
            "local",
            "Trains on this machine: one program on a GPU, a process for each of several GPUs or cores.",
            "v8.runs.local, v8.runs.workers",
            _train_on_this_machine,
        ),
        Engine(
            "ray",
            "Trains in tasks of Ray: on a cluster that is there, or on one of this machine's cores.",
            "v8.runs.cluster",
            later("v8.runs.cluster:train_all"),
            package="ray",
            is_elsewhere=True,
        ),
    ],
)
"""Every engine by its name."""


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
            where="param:device",
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
    engine = ENGINES.find(name, where="param:engine")
    if engine.package:
        rule = f"needs the package {engine.package}, v8's extra of that name"
        require_package(engine.package, where=f"param:engine {engine.name}", rule=rule)
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
        where="param:address",
        rule="is auto or HOST:PORT of a Ray cluster, with param:engine ray",
        got=f"{got} with param:engine {engine.name}",
        fix="Write for example param:engine ray param:address 10.0.0.1:6379, or leave it out",
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
            where="param:device gpu",
            rule="needs a GPU that the Keras backend can compute on",
            got=f"work on {device}" if is_visible else device,
            fix="Install the GPU's driver and tensorflow[and-cuda], or use param:device auto",
        )


def where_work_is() -> tuple[bool, str]:
    """Say whether this process sees a GPU, and where something that it works out lies."""
    is_visible = machine.has_gpu()
    return is_visible, machine.proved_device() if is_visible else "none visible"
