"""The kinds of engines: what the core and annexes list; `v8.runs.engines` opens one.

The command line reads the names from here, so this module imports little.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from v8.base import annexes
from v8.base.registry import Named, Registry, make_entries, read_list

if TYPE_CHECKING:
    from v8.runs.jobs import Engine


@dataclass(frozen=True)
class Placement:
    """Where a run trains."""

    num_workers: int  # processes, at least 1
    fleet_size: int | None  # most series of one program, at least 1; None measures what suits the GPU
    is_measured: bool = False  # whether `num_workers` only bounds what a measurement before training decides
    gpus: tuple[str, ...] = ()  # one a process, as CUDA_VISIBLE_DEVICES names it; none: they share all
    device: str = "auto"  # one of `v8.runs.engines.DEVICES`; engines of other machines look for it there
    address: str | None = None  # where an engine of other machines finds them; None uses this one
    variables: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Environment variables of every process of the run, see `v8.base.hardware.process_variables`."""


@dataclass(frozen=True)
class EngineKind(Named):
    """A kind of engine that can be chosen."""

    open: Callable[[Placement], "Engine"]
    package: str | None = None  # what it needs, by the name that pip knows; None needs nothing
    is_elsewhere: bool = False  # whether it may train on other machines, at an address


_DESCRIPTIONS: Final = [*read_list("v8.runs", "engines.yaml"), *annexes.entries("engines")]

ENGINES: Final = Registry("engine", make_entries(EngineKind, _DESCRIPTIONS, "open"))
"""Every kind of engine by its name."""
