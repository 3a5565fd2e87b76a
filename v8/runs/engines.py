"""Engines: who makes the artefacts of a run, and where.

An engine is a function and a line in `ENGINES`. It gets the jobs, where they may run and a listener, and
yields each series' outcome as it comes; `v8.runs.execution` does all that comes before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from v8.hardware import has_gpu
from v8.machine.choices import measured_workers
from v8.machine.placement import Placement
from v8.machine.starting import quiet_start
from v8.registry import Registry, later
from v8.runs import workers
from v8.runs.events import Listener, Note, Outcome
from v8.runs.plan import Job
from v8.training.programs import kept_programs


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
    listen(Note(f"Workers: {chosen} of at most {bound}, measured (--workers sets another number)."))
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
