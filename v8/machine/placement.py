"""Where the work goes: how many processes train, and how many series share one program.

On a GPU one process trains one fleet: every step of a small recurrent network
is a queue of tiny launches, and a fleet of 40 queues as many as one model. Several GPUs get a process each,
and fleets from one queue (`v8.runs.workers` says why). On a CPU each core gets a
process that trains one series at a time: four stacked models reach 266 windows/s in one process where
one model reaches 350 (profile `aligned`, two cores), because many small matrices multiply slower than
few large ones. How many cores there really are, and from which size on a larger fleet gains nothing, is
measured before training (`v8.machine.choices`, `v8.training.probe.measured_fleet_size`); when memory
runs out, the fleet is halved.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from v8.errors import ProfileError

AUTO = "auto"
_MOST: Final = 10_000
"""Processes and series of one program are fewer on any machine."""
_SIGNS_OF_FULL_MEMORY = (
    "resource_exhausted",
    "resourceexhausted",
    "out of memory",
    "oom when",
    "memoryerror",
)
"""What TensorFlow, XLA, JAX and Python say, in small letters."""
SINGLE_THREADED: Final = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
"""Variables that give a process one thread on a CPU, which makes results repeatable."""


@dataclass(frozen=True)
class Placement:
    """Where a run trains.

    Args:
        num_workers: Processes, at least 1.
        fleet_size: Most series of one program, at least 1; None measures what suits the GPU.
        is_measured: Whether `num_workers` is only a bound, and a measurement before training decides.
        gpus: One for each process, as CUDA_VISIBLE_DEVICES names it; none where they share what there is.
        device: What computes, as `--device` names it; engines of other machines look for it there.
        address: Where an engine of other machines finds them; None makes do with this one.
    """

    num_workers: int
    fleet_size: int | None
    is_measured: bool = False
    gpus: tuple[str, ...] = ()
    device: str = "auto"
    address: str | None = None


def choose_shares(workers: str, fleet_size: str, device: str, address: str | None) -> Placement:
    """Turn the same flags into a placement on machines that are only known later, or raise ProfileError.

    >>> choose_shares("2", "auto", "cpu", None)
    Placement(num_workers=2, fleet_size=None, is_measured=False, gpus=(), device='cpu', address=None)
    """
    num_workers = _number("param:workers", workers, "processes")
    size = _number("param:fleet_size", fleet_size, "series")
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
    wanted_workers = _number("param:workers", workers, "processes")
    wanted_size = _number("param:fleet_size", fleet_size, "series")
    if 1 < (num_processes := wanted_workers or len(gpus)) <= len(gpus):
        return Placement(num_processes, wanted_size, gpus=tuple(gpus[:num_processes]))
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
    is_one_fleet = wanted_size is None and may_have_gpu and num_workers == 1
    is_measured = wanted_workers is None and num_workers > 1
    return Placement(num_workers, None if is_one_fleet else 1, is_measured)


def halved(num_series: int) -> int:
    """Return the size of the larger half of a fleet of two or more.

    >>> halved(40), halved(3), halved(2)
    (20, 2, 1)
    """
    return -(-num_series // 2)


def is_out_of_memory(reason: str) -> bool:
    """Say whether an error's kind and message tell that memory ran out.

    >>> is_out_of_memory("unexpected XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes")
    True
    >>> is_out_of_memory("unexpected ValueError: shapes differ")
    False
    """
    told = reason.lower()
    return any(sign in told for sign in _SIGNS_OF_FULL_MEMORY)


def _number(flag: str, text: str, what: str) -> int | None:
    if text == AUTO:
        return None
    is_whole = text.isascii() and text.isdigit()
    is_too_large = is_whole and len(text) >= len(str(_MOST))
    if is_too_large or not is_whole or int(text) < 1:
        raise ProfileError(
            where=flag,
            rule=f"is auto or a number of {what}, {f'below {_MOST:,}' if is_too_large else 'at least 1'}",
            got=repr(text),
            fix="Leave it out to let the machine decide",
        )
    return int(text)
