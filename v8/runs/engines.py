"""Engines: who makes the artefacts of a run, and where.

An engine is a function and an entry of `engines.yaml`. It gets the jobs, where they may run and a listener,
and yields each series' outcome as it comes; `v8.runs.execution` does all that comes before and after.

On a GPU one process trains one fleet: every step of a small recurrent network is a queue of tiny launches,
and a fleet of 40 queues as many as one model. Several GPUs get a process each, and fleets from one queue
(`v8.runs.workers` says why). On a CPU each core gets a process that trains one series at a time: four stacked
models reach 266 windows/s in one process where one model reaches 350 (profile `aligned`, two cores), because
many small matrices multiply slower than few large ones. How many cores there really are, and from which size
on a larger fleet gains nothing, is measured before training (`v8.machine.choices`, `v8.training.probe`).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Final

from v8 import hardware
from v8.errors import ProfileError, with_parameters
from v8.invocation import children_with_safe_path
from v8.machine.choices import AUTO, SINGLE_THREADED, measured_workers
from v8.machine.starting import quiet_start
from v8.registry import Named, Registry, read_entries, require_package
from v8.runs import workers
from v8.runs.events import Listener, Note, Outcome
from v8.runs.plan import Job
from v8.training.programs import kept_programs

if TYPE_CHECKING:
    from v8.runs.execution import TrainAll

DEVICES: Final = ("auto", "cpu", "gpu")
_MOST: Final = 10_000  # processes and series of one program are fewer on any machine


@dataclass(frozen=True)
class Placement:
    """Where a run trains."""

    num_workers: int  # processes, at least 1
    fleet_size: int | None  # most series of one program, at least 1; None measures what suits the GPU
    is_measured: bool = False  # whether `num_workers` only bounds what a measurement before training decides
    gpus: tuple[str, ...] = ()  # one a process, as CUDA_VISIBLE_DEVICES names it; none: they share all
    device: str = AUTO  # what computes, one of `DEVICES`; engines of other machines look for it there
    address: str | None = None  # where an engine of other machines finds them; None makes do with this one


@dataclass(frozen=True)
class Engine(Named):
    """A way to make the artefacts of a run."""

    train_all: Callable[[Placement, Sequence[Job], Listener], Iterator[Outcome]]  # in any order
    package: str | None = None  # what it needs, by the name that pip knows; None needs nothing
    is_elsewhere: bool = False  # whether it may train on other machines, at an address


def _train_on_this_machine(placement: Placement, jobs: Sequence[Job], listen: Listener) -> Iterator[Outcome]:
    """Start TensorFlow only where it trains: in the workers, or here when there are none."""
    num_workers = min(placement.num_workers, len(jobs))
    if placement.is_measured and num_workers > 1:
        bound = num_workers
        num_workers = measured_workers(placement.num_workers, num_workers)
        told = f"Workers: {num_workers} of at most {bound}, measured (param:workers sets another number)."
        listen(Note(with_parameters(told)))
    if num_workers > 1:
        size = placement.fleet_size
        yield from workers.train_all(jobs, listen, num_workers, gpus=placement.gpus, fleet_size=size)
        return
    with kept_programs():
        with quiet_start():
            from v8.runs import local  # noqa: PLC0415 - workers' parent must not start TensorFlow

            size = placement.fleet_size or local.suited_fleet_size(jobs[0].profile, len(jobs))
        yield from local.train_all(jobs, listen, size)


ENGINES: Final = Registry("engine", read_entries(Engine, "v8.runs", "engines.yaml", "train_all"))
"""Every engine by its name."""


def choose_device(device: str, *, is_elsewhere: bool = False) -> None:
    """Make the wanted device, one of `DEVICES`, the one that computes, before TensorFlow is imported.

    Where other machines compute (`is_elsewhere`), no GPU is looked for on this one. Raises `ProfileError` if
    the device is unknown, or a GPU is wanted and TensorFlow sees none.
    """
    if device not in DEVICES:
        rule = f"is one of {', '.join(DEVICES)}"
        raise ProfileError(where="param:device", rule=rule, got=repr(device), fix="Choose one of these")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if device == "gpu" and not is_elsewhere:
        _require_gpu()


def choose_engine(
    name: str, device: str, workers: str, fleet_size: str, address: str | None = None
) -> "TrainAll":
    """Choose who trains, and where, by the flags of these names; must run before TensorFlow is imported.

    Raises `ProfileError` if there is no such engine, its package is not installed, or the flags contradict
    it.
    """
    engine = ENGINES.find(name, where="param:engine")
    if engine.package:
        rule = f"needs the package {engine.package}, v8's extra of that name"
        require_package(engine.package, where=f"param:engine {engine.name}", rule=rule)
    if address is not None and not (engine.is_elsewhere and address and "://" not in address):
        told = repr(address) if engine.is_elsewhere else "an address"
        where = "param:address"
        rule = "is auto or HOST:PORT of a Ray cluster, with param:engine ray"
        fix = "Write for example param:engine ray param:address 10.0.0.1:6379, or leave it out"
        raise ProfileError(where=where, rule=rule, got=f"{told} with param:engine {engine.name}", fix=fix)
    choose_device(device, is_elsewhere=engine.is_elsewhere)
    if not engine.is_elsewhere:
        return partial(engine.train_all, place(device, workers, fleet_size))
    _settle_threads(device)  # this process evaluates updates
    return partial(engine.train_all, choose_shares(workers, fleet_size, device, address))


def place(device: str, workers: str, fleet_size: str) -> Placement:
    """Decide where the work goes, and make each process single-threaded on a CPU.

    One thread a process is also what makes results repeatable: the same sums in the same order,
    whether a series is trained alone or beside others. The device is one of `DEVICES`, already chosen.
    """
    may_have_gpu = _settle_threads(device)
    num_cores = hardware.num_usable_cores()
    gpus = hardware.visible_gpus() if may_have_gpu else ()
    return choose_placement(workers, fleet_size, may_have_gpu=may_have_gpu, num_cores=num_cores, gpus=gpus)


def choose_shares(workers: str, fleet_size: str, device: str, address: str | None) -> Placement:
    """Turn flags into a placement on machines that are only known later, or raise ProfileError.

    >>> choose_shares("2", "auto", "cpu", None)
    Placement(num_workers=2, fleet_size=None, is_measured=False, gpus=(), device='cpu', address=None)
    """
    num_workers, size = _numbers(workers, fleet_size)
    return Placement(num_workers or _MOST, size, num_workers is None, device=device, address=address)


def choose_placement(
    workers: str, fleet_size: str, *, may_have_gpu: bool, num_cores: int, gpus: Sequence[str] = ()
) -> Placement:
    """Turn `--workers` and `--fleet-size`, numbers or "auto", into a placement, or raise ProfileError.

    That is a fleet in this process, a process with fleets for each of several GPUs, or worker processes that
    train one series at a time. Where no GPU may be what computes, auto means fleets of one.

    >>> choose_placement("auto", "auto", may_have_gpu=False, num_cores=8)
    Placement(num_workers=8, fleet_size=1, is_measured=True, gpus=(), device='auto', address=None)
    >>> choose_placement("auto", "auto", may_have_gpu=True, num_cores=8)
    Placement(num_workers=1, fleet_size=None, is_measured=False, gpus=(), device='auto', address=None)
    >>> choose_placement("auto", "4", may_have_gpu=False, num_cores=8)
    Placement(num_workers=1, fleet_size=4, is_measured=False, gpus=(), device='auto', address=None)
    >>> choose_placement("auto", "auto", may_have_gpu=True, num_cores=8, gpus=["0", "1"])
    Placement(num_workers=2, fleet_size=None, is_measured=False, gpus=('0', '1'), device='auto', address=None)
    """
    wanted_workers, wanted_size = _numbers(workers, fleet_size)
    if 1 < (num_processes := wanted_workers or len(gpus)) <= len(gpus):
        return Placement(num_processes, wanted_size, gpus=tuple(gpus[:num_processes]))
    if (wanted_size or 1) > 1:
        if (wanted_workers or 1) > 1:
            rule = "above 1 trains in one process"
            got = f"{wanted_size} with param:workers {wanted_workers}"
            raise ProfileError(where="param:fleet_size", rule=rule, got=got, fix="Leave one of them out")
        return Placement(1, wanted_size)
    num_workers = wanted_workers or (1 if may_have_gpu else num_cores)
    is_one_fleet = wanted_size is None and may_have_gpu and num_workers == 1
    is_measured = wanted_workers is None and num_workers > 1
    return Placement(num_workers, None if is_one_fleet else 1, is_measured)


def _numbers(workers: str, fleet_size: str) -> list[int | None]:
    """Read both flags; None of one that is left to the machine."""
    found: list[int | None] = []
    flags = ("param:workers", workers, "processes"), ("param:fleet_size", fleet_size, "series")
    for flag, text, what in flags:
        is_whole = text.isascii() and text.isdigit()
        is_too_large = is_whole and len(text) >= len(str(_MOST))
        if text != AUTO and (is_too_large or not is_whole or int(text) < 1):
            rule = f"is auto or a number of {what}, {f'below {_MOST:,}' if is_too_large else 'at least 1'}"
            got = repr(text)
            raise ProfileError(where=flag, rule=rule, got=got, fix="Leave it out to let the machine decide")
        found.append(None if text == AUTO else int(text))
    return found


def _settle_threads(device: str) -> bool:
    """Say whether a GPU may be what computes; where none may, processes get a thread each."""
    may_have_gpu = device != "cpu" and hardware.may_have_gpu()
    if not may_have_gpu:
        os.environ.update(SINGLE_THREADED | os.environ)
    return may_have_gpu


def _require_gpu() -> None:
    if len(hardware.visible_gpus()) < 2:
        is_visible, device = where_work_is()
    else:  # each gets a process, and what is worked out in this one would keep memory of the first
        with children_with_safe_path(), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            is_visible, device = pool.submit(where_work_is).result()
    if not device.startswith("GPU"):
        where = "param:device gpu"
        rule = "needs a GPU that the Keras backend can compute on"
        fix = "Install the GPU's driver and tensorflow[and-cuda], or use param:device auto"
        raise ProfileError(where=where, rule=rule, got=f"work on {device}" if is_visible else device, fix=fix)


def where_work_is() -> tuple[bool, str]:
    """Say whether this process sees a GPU, and where something that it works out lies."""
    is_visible = hardware.has_gpu()
    return is_visible, hardware.proved_device() if is_visible else "none visible"
