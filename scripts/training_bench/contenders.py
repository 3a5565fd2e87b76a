"""The programs that `bench_training.py` compares, and how each uses the cores of a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}
KINDS = ("stock", "torch", "product", "fleet")
WAYS = ("processes", "threads")
FORMATS = ("float32", "mixed_bfloat16", "mixed_float16")
"""Keras' dtype policies."""
PEER_FAMILIES = ("bilstm_seq2seq", "lstm_dense")
"""Families of networks that `torch_peer` has."""


@dataclass
class Contender:
    """Something to time.

    Args:
        name: As the table shows it.
        spec: What its processes measure: a kind of `measuring.TURNS` and what that needs.
        backend: Keras backend.
        num_processes: Processes at work at the same time; their speeds are added.
        is_single_threaded: Keep each process on one thread, as the product's workers are.
        rates: Windows/s (GFLOP/s of a matmul) per round.
        cpu_s: Processor seconds a 1,000 windows per round; none of a matmul.
        notes: Further results of its first process.
        refusal: What this machine lacks for it; then it has no rates.
    """

    name: str
    spec: dict[str, Any]
    backend: str
    num_processes: int = 1
    is_single_threaded: bool = False
    rates: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    refusal: str = ""

    @property
    def kind(self) -> str:
        """What is measured."""
        return str(self.spec["kind"])


@dataclass(frozen=True)
class Ground:
    """What a machine has, and what of it is wanted.

    Args:
        backends: Keras backends, the first of which does what is done once.
        has_gpu: Work is done on a GPU.
        has_torch: PyTorch is installed, and has a peer of the network.
        num_workers: Processes that train side by side.
        kinds: Of `KINDS`.
        formats: Of `FORMATS`, in which the product trains.
        fleet_sizes: Models that train in one program.
        is_compiled: Whether PyTorch's network competes compiled, too.
        sharing_names: Of `WAYS`, to share out the cores of a CPU.
    """

    backends: Sequence[str]
    has_gpu: bool
    has_torch: bool
    num_workers: int
    kinds: Sequence[str]
    formats: Sequence[str]
    fleet_sizes: Sequence[int]
    is_compiled: bool = False
    sharing_names: Sequence[str] = WAYS

    @property
    def sharing(self) -> list[tuple[str, int, bool]]:
        """How a contender may share out the machine: words, processes, and whether each has one thread."""
        if self.has_gpu or self.num_workers == 1:
            return [("1 process", 1, not self.has_gpu)]
        sharings = {
            "processes": (f"{self.num_workers} processes", self.num_workers, True),
            "threads": ("all threads", 1, False),
        }
        return [sharings[name] for name in self.sharing_names]

    def line_up(self) -> Iterator[Contender]:
        """Name all who train."""
        makers = {"stock": self._stock, "torch": self._torch, "product": self._product, "fleet": self._fleets}
        for kind in self.kinds:
            yield from makers[kind]()

    def matmuls(self) -> Iterator[Contender]:
        """Name what measures the ceilings."""
        for how, num_processes, is_single in self.sharing:
            for form in ("float32", "bfloat16"):
                for kind, library in self._multiplying:
                    name = f"matmul {form}, {library}, {how}"
                    spec = {"kind": kind, "format": form}
                    yield Contender(name, spec, self.backends[0], num_processes, is_single)

    @property
    def _multiplying(self) -> list[tuple[str, str]]:
        ours = ("matmul", BACKENDS[self.backends[0]])
        return [ours, ("torch_matmul", "PyTorch")] if self.has_torch and "torch" in self.kinds else [ours]

    def _stock(self) -> Iterator[Contender]:
        for how, num_processes, is_single in self.sharing:
            first = self.backends[0]
            name = f"stock fit, {BACKENDS[first]}, {how}"
            yield Contender(name, {"kind": "stock"}, first, num_processes, is_single)

    def _torch(self) -> Iterator[Contender]:
        if not self.has_torch:
            return
        for how, num_processes, is_single in self.sharing:
            for form in ("float32", "bfloat16"):
                for major in ("batch", "time"):
                    spec = {"kind": "torch", "format": form, "is_time_major": major == "time"}
                    for is_compiled in (False, True) if self.is_compiled else (False,):
                        words = f"PyTorch {form}, {major}-major, {'compiled, ' * is_compiled}{how}"
                        settings = spec | {
                            "is_compiled": is_compiled,
                            "num_threads": 1 if is_single else None,
                        }
                        yield Contender(words, settings, self.backends[0], num_processes, is_single)

    def _product(self) -> Iterator[Contender]:
        how, num_processes, is_single = self.sharing[0]
        for backend in self.backends:
            for form in self.formats:
                name = f"product {form}, {BACKENDS[backend]}, {how}"
                yield Contender(name, {"kind": "product", "format": form}, backend, num_processes, is_single)

    def _fleets(self) -> Iterator[Contender]:
        for form in self.formats:
            for size in self.fleet_sizes:
                spec = {"kind": "fleet", "num_models": size, "format": form}
                name = f"fleet of {size} {form}, {BACKENDS[self.backends[0]]}"
                yield Contender(name, spec, self.backends[0], is_single_threaded=not self.has_gpu)
