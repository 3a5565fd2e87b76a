"""The programs that `bench_training.py` compares, how each uses the cores of a machine, and their ratios.

Speeds are compared with those of stock Keras, of the best PyTorch set-up, and of the ceilings. The best round
of each counts, because other programs only make it slower. If they do, processor time is the fairer measure:
it leaves out the time that a contender waited for a core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from v8.profile.profile import Profile
from v8.runs.machine import ceiling_pct

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}
KINDS = ("stock", "torch", "product", "fleet")
WAYS = ("processes", "threads")
FORMATS = ("float32", "mixed_bfloat16", "mixed_float16")
"""Keras' dtype policies."""
PEER_FAMILY = "bilstm_seq2seq"
"""The family of networks that `torch_peer` has."""


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


def ceilings(matmuls: Sequence[Contender]) -> dict[str, Any]:
    """Return the best rate of each number format, GFLOP/s, and all."""
    rates = {matmul.name: max(matmul.rates) for matmul in matmuls}
    forms = dict.fromkeys(matmul.spec["format"] for matmul in matmuls)
    best = {
        form: max(rates[matmul.name] for matmul in matmuls if matmul.spec["format"] == form) for form in forms
    }
    return {"matmul_gflop_per_s": rates, "ceiling_gflop_per_s": best}


def table(
    contenders: Sequence[Contender], profile: Profile, ceiling_gflop_per_s: dict[str, float], num_cores: int
) -> dict[str, Any]:
    """Compare the contenders of one batch size with each other.

    Args:
        contenders: After their turns.
        profile: With that batch size.
        ceiling_gflop_per_s: By number format.
        num_cores: Cores that a process without a bound may use.
    """
    flop = profile.training_flop_per_window
    rows = [
        _row(contender, flop, ceiling_gflop_per_s, num_cores)
        for contender in contenders
        if not contender.refusal
    ]
    stock = _best(rows, "stock")
    peer = _best(rows, "torch")
    least_cpu_s = min((row["cpu_s_per_1000"] for row in rows if row["spec"]["kind"] == "torch"), default=None)
    for row in rows:
        row["times_stock"] = stock and row["windows_per_s"] / stock
        row["times_torch"] = peer and row["windows_per_s"] / peer
        row["times_torch_by_cpu"] = least_cpu_s and least_cpu_s / row["cpu_s_per_1000"]
    return {
        "batch_size": profile.training.batch_size,
        "ceiling_windows_per_s": {form: 1e9 * rate / flop for form, rate in ceiling_gflop_per_s.items()},
        "rows": rows,
        "fleets": list(_fleets(rows)),
        "refusals": {contender.name: contender.refusal for contender in contenders if contender.refusal},
    }


def _row(
    contender: Contender, flop: float, ceiling_gflop_per_s: dict[str, float], cores: int
) -> dict[str, Any]:
    rate = max(contender.rates)
    num_cores = contender.num_processes if contender.is_single_threaded else cores
    return {
        **asdict(contender),
        "windows_per_s": rate,
        "windows_per_s_and_core": rate / num_cores,
        "cpu_s_per_1000": min(contender.cpu_s),
        "ceiling_pct": {
            form: ceiling_pct(rate, flop, limit * num_cores / cores)
            for form, limit in ceiling_gflop_per_s.items()
        },
    }


def _best(rows: Iterable[dict[str, Any]], kind: str) -> float | None:
    return max((row["windows_per_s"] for row in rows if row["spec"]["kind"] == kind), default=None)


def _fleets(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Compare the largest fleet of each format with as many single trainings."""
    for form in FORMATS:
        fleets = [row for row in rows if row["spec"]["kind"] == "fleet" and row["spec"]["format"] == form]
        sizes = {row["spec"]["num_models"]: row["windows_per_s"] for row in fleets}
        if 1 in sizes and len(sizes) > 1:
            largest = max(sizes)
            times = sizes[largest] / sizes[1]
            yield {"format": form, "num_models": largest, "times_one_after_another": times}
