"""Engines: what makes the artefacts of a run, and where.

An engine gets jobs and an observer, and yields the outcome of each series as it comes:

    for outcome in engine.train(jobs, observer): ...

`v8.runs.execution` does all that comes before and after. `v8.runs.options` lists the kinds of engines;
`choose_engine` opens one by the flags of the command line.

On a GPU one process trains one fleet: every step of a small recurrent network is a queue of tiny launches,
and a fleet of 40 queues as many as one model. Several GPUs get a process each, and fleets from one queue
(`v8.runs.workers` says why). On a CPU each core gets a process that trains one series at a time: four stacked
models reach 266 windows/s in one process where one model reaches 350 (profile `aligned`, two cores), because
many small matrices multiply slower than few large ones. How many cores there really are, and from which size
on a larger fleet gains nothing, is measured before training (`v8.runs.machine`,
`v8.model.training.probe`).
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Final

from v8.base import hardware
from v8.base.errors import ProfileError, listed, with_parameters
from v8.base.hardware import gpus_without_code, replacing_variables
from v8.base.process import children_with_safe_path, quiet_start, with_variables
from v8.base.programs import kept_programs
from v8.base.registry import require_package, require_packages
from v8.runs.events import Note, RunObserver, SeriesOutcome
from v8.runs.machine import AUTO, measured_workers
from v8.runs.options import ENGINES, EngineKind, Placement
from v8.runs.plan import Engine, Job
from v8.runs.workers import WorkerEngine

DEVICES: Final = ("auto", "cpu", "gpu")
TRAINING_PACKAGES: Final = ("keras", "tensorflow")  # forecasting with ONNX files needs neither
_MOST: Final = 10_000  # processes and series of one program are fewer on any machine


def choose_engine(
    name: str,
    *,
    device: str = "auto",
    workers: int | str = AUTO,
    fleet_size: int | str = AUTO,
    address: str | None = None,
) -> Engine:
    """Open the engine that flags of these names choose; see `Placement`.

    Raises:
        ProfileError: If there is no such engine, its package is not installed, or flags contradict it.
    """
    kind = ENGINES.find(name, where="param:engine")
    if kind.package:
        rule = f"needs the package {kind.package}, v8's extra of that name"
        require_package(kind.package, where=f"param:engine {kind.name}", rule=rule)
    if address is not None:
        _check_address(address, kind)
    choose_device(device, is_elsewhere=kind.is_elsewhere)
    if kind.is_elsewhere:
        placement = remote_placement(workers, fleet_size, device, address)
    else:
        placement = local_placement(workers, fleet_size, device)
    return kind.open(placement)


def _check_address(address: str, kind: EngineKind) -> None:
    """Refuse an address that is none, or that an engine of this machine has no use for."""
    if kind.is_elsewhere and address and "://" not in address:
        return
    text = repr(address) if kind.is_elsewhere else "an address"
    others = [other.name for other in ENGINES.values() if other.is_elsewhere]
    raise ProfileError(
        where="param:address",
        rule="is auto or HOST:PORT of other machines, for an engine that trains on them",
        got=f"{text} with param:engine {kind.name}",
        fix=f"Write param:engine {others[0]} with it, or leave it out" if others else "Leave it out",
    )


def choose_device(device: str, *, is_elsewhere: bool = False) -> None:
    """Check that one of `DEVICES` can compute.

    Where other machines compute (`is_elsewhere`), nothing is looked for on this one. Raises `ProfileError` if
    the device is unknown, what trains is not installed, or a GPU is wanted and TensorFlow sees none.
    """
    if device not in DEVICES:
        raise ProfileError(
            where="param:device",
            rule=f"is one of {', '.join(DEVICES)}",
            got=repr(device),
            fix="Choose one of these",
        )
    if is_elsewhere:
        return
    rule = f"needs the packages {' and '.join(TRAINING_PACKAGES)}"
    require_packages(TRAINING_PACKAGES, where="training on this machine", rule=rule)
    if device == "gpu":
        _require_gpu()


def _require_gpu() -> None:
    replacing = replacing_variables("gpu")
    if "CUDA_VISIBLE_DEVICES" in replacing:
        raise _no_gpu(f"{listed(gpus_without_code())}, which the installed TensorFlow has no code for")
    if sys.platform == "linux" and not hardware.may_have_gpu():  # known in a moment, without TensorFlow
        raise _no_gpu("no driver of NVIDIA's, or CUDA_VISIBLE_DEVICES=-1")
    if len(hardware.visible_gpus()) < 2 and not replacing:
        is_visible, device = where_work_is()
    else:  # each gets a process, and what this process computes would keep memory of the first GPU
        with (
            with_variables(replacing),
            children_with_safe_path(),
            ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        ):
            is_visible, device = pool.submit(where_work_is).result()
    if not device.startswith("GPU"):
        raise _no_gpu(f"work on {device}" if is_visible else device)


def _no_gpu(got: str) -> ProfileError:
    return ProfileError(
        where="param:device gpu",
        rule="needs a GPU that the Keras backend can compute on",
        got=got,
        fix="Install the GPU's driver and tensorflow[and-cuda] or jax[cuda12], or use param:device auto",
    )


def where_work_is() -> tuple[bool, str]:
    """Say whether this process sees a GPU, and where something that it computes lies."""
    is_visible = hardware.has_gpu()
    return is_visible, hardware.proved_device() if is_visible else "none visible"


def local_placement(workers: int | str, fleet_size: int | str, device: str) -> Placement:
    """Turn flags into a placement on this machine, or raise ProfileError; the device is checked already."""
    may_have_gpu = hardware.may_be_gpu(device)
    num_cores = hardware.num_usable_cores()
    gpus = hardware.visible_gpus() if may_have_gpu else ()
    placement = choose_placement(
        workers, fleet_size, may_have_gpu=may_have_gpu, num_cores=num_cores, gpus=gpus
    )
    is_alone = _number_or_auto("param:workers", workers, unit="processes") == 1
    return replace(placement, is_alone=is_alone, variables=hardware.process_variables(device))


def choose_placement(
    workers: int | str, fleet_size: int | str, *, may_have_gpu: bool, num_cores: int, gpus: Sequence[str] = ()
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
    wanted_workers = _number_or_auto("param:workers", workers, unit="processes")
    wanted_size = _number_or_auto("param:fleet_size", fleet_size, unit="series")
    num_gpu_processes = wanted_workers or len(gpus)
    if 1 < num_gpu_processes <= len(gpus):
        return Placement(num_gpu_processes, wanted_size, gpus=tuple(gpus[:num_gpu_processes]))
    if wanted_size is not None and wanted_size > 1:
        if wanted_workers is not None and wanted_workers > 1:
            raise ProfileError(
                where="param:fleet_size",
                rule="above 1 trains in one process",
                got=f"{wanted_size} with param:workers {wanted_workers}",
                fix="Leave one of them out",
            )
        return Placement(1, wanted_size)
    num_workers = wanted_workers or (1 if may_have_gpu else num_cores)
    if wanted_size is None and may_have_gpu and num_workers == 1:
        return Placement(1, None)
    return Placement(num_workers, 1, is_measured=wanted_workers is None and num_workers > 1)


def remote_placement(
    workers: int | str, fleet_size: int | str, device: str, address: str | None
) -> Placement:
    """Turn flags into a placement on machines that are only known later, or raise ProfileError.

    >>> remote_placement("2", "auto", "cpu", None)
    Placement(num_workers=2, fleet_size=None, is_measured=False, gpus=(), device='cpu', address=None)
    """
    num_workers = _number_or_auto("param:workers", workers, unit="processes")
    return Placement(
        num_workers=num_workers or _MOST,
        fleet_size=_number_or_auto("param:fleet_size", fleet_size, unit="series"),
        is_measured=num_workers is None,
        device=device,
        address=address,
        variables=hardware.process_variables(device),  # this process evaluates updates
    )


def _number_or_auto(flag: str, value: int | str, *, unit: str) -> int | None:
    """Read the number of a flag, or raise ProfileError; None where it is left to the machine."""
    text = str(value)
    if text == AUTO:
        return None
    is_number = text.isascii() and text.isdigit()
    is_too_large = is_number and len(text) >= len(str(_MOST))
    if not is_number or is_too_large or int(text) < 1:
        bound = f"below {_MOST:,}" if is_too_large else "at least 1"
        raise ProfileError(
            where=flag,
            rule=f"is auto or a number of {unit}, {bound}",
            got=repr(text),
            fix="Leave it out to let the machine decide",
        )
    return int(text)


class LocalEngine(Engine):
    """Trains on this machine: in this process, or in several that it starts."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    @property
    def variables(self) -> Mapping[str, str]:
        """Those of its placement."""
        return self._placement.variables

    def train(self, jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        """Make the artefact of every job; TensorFlow starts only in the process that trains."""
        num_workers = self._num_workers(len(jobs), observer)
        fleet_size = self._placement.fleet_size
        if num_workers > 1:
            workers = WorkerEngine(num_workers, gpus=self._placement.gpus, fleet_size=fleet_size)
            yield from workers.train(jobs, observer)
            return
        with kept_programs():
            with quiet_start():
                # Not at the top: parents of workers must not start TensorFlow.
                from v8.runs.local import InProcessEngine, suited_fleet_size  # noqa: PLC0415
                from v8.runs.workers import num_finishers  # noqa: PLC0415

                fleet_size = fleet_size or suited_fleet_size(jobs[0].recipe.profile, len(jobs))
            num_beside = 0 if self._placement.is_alone else num_finishers(jobs)
            yield from InProcessEngine(fleet_size, num_finishers=num_beside).train(jobs, observer)

    def _num_workers(self, num_series: int, observer: RunObserver) -> int:
        """Return how many processes train so many series; measured where the placement leaves it open."""
        most = min(self._placement.num_workers, num_series)
        if not self._placement.is_measured or most <= 1:
            return most
        num_workers = measured_workers(self._placement.num_workers, most)
        number = f"{num_workers} of at most {most}, measured (param:workers sets another number)"
        text = f"Workers: {number}. Each starts TensorFlow first, which takes some seconds."
        observer.on_event(Note(with_parameters(text)))
        return num_workers
