"""How XLA compiles the loops over time of a CPU's training: measured once for a network, then kept.

As it comes, XLA runs every operation of a step of a loop as a task of its own. Told to, it makes one kernel
of the whole loop, small products included, which it then writes itself, in tiles. Tiles that fit a processor
make training 1.2 to 1.5 times as fast, others make it slower than tasks. So each set of flags is timed, in
a process of its own, because XLA reads them once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated, Final

from pydantic import Field, TypeAdapter

from v8.artifacts.run_folder import Loops
from v8.machine.children import Answer, Order, ask
from v8.machine.measurements import kept
from v8.machine.placement import SINGLE_THREADED
from v8.networks.cost import training_flop_per_window
from v8.profile import Profile

STEPWISE: Final = SINGLE_THREADED["XLA_FLAGS"]
"""Each operation a task: what XLA does by itself."""


def _whole(vector_bits: int, tile: str) -> str:
    """Return flags that make a loop one kernel, and products in it code of that kernel.

    Args:
        vector_bits: Width of a vector.
        tile: Rows and terms of a product, and vectors of its columns, that are worked out at a time.
    """
    return (
        f"{STEPWISE} --xla_cpu_prefer_vector_width={vector_bits} --xla_backend_extra_options="
        # XLA would otherwise unroll no products.
        "xla_cpu_small_while_loop_byte_threshold=1000000000,xla_force_enable_experimental_llvm_ir_gemm=true,"
        f"xla_llvm_ir_gemm_tile_size={tile}*vectwidth"
    )


FLAGS: Final[Mapping[Loops, str]] = {
    "stepwise": STEPWISE,
    # 32 registers hold the sums of 8 rows and 2 vectors, with factors; most batches are multiples of 8. XLA's
    # own 11 rows leave 5 of 16, which take as long.
    "whole": _whole(512, "8:2:2"),
    # 16 registers, as of AVX2, hold the sums of 6 rows and 2 vectors. Widths of layers are seldom multiples
    # of 3 vectors, which would fit a batch of 16 better.
    "whole_of_16": _whole(256, "6:4:2"),
}

GAIN_TO_CHANGE: Final = 1.05
"""Loops as one kernel must be so many times as fast: near one, a measurement might choose any."""

WORTHWHILE_FLOP: Final = 2e13
"""Work of about two minutes of a core on one series; less is done before it is known how."""

MEASURED_S: Final = 1.5
LIMIT_S: Final = 300.0

_SPEEDS: Final = TypeAdapter(Annotated[list[float], Field(min_length=len(FLAGS), max_length=len(FLAGS))])


def choose_loops(profile: Profile, *, tell: Callable[[str], None]) -> Loops:
    """Choose how loops are compiled in a run.

    Nothing but profile and machine decides, so that a series trains to the same weights alone and among many.
    Flags that the user has set stand, and so do those of a process that may compute on a GPU.

    Args:
        profile: Whose network is measured.
        tell: Told what is measured, and what was chosen.
    """
    num_windows = profile.training.epochs * profile.newest_bars
    is_worthwhile = num_windows * training_flop_per_window(profile) >= WORTHWHILE_FLOP
    if os.environ.get("XLA_FLAGS") != STEPWISE or not is_worthwhile:
        return "stepwise"
    shape = [profile.training.batch_size, profile.lookback_bars, profile.num_features]
    network = {**profile.network.model_dump(mode="json"), "shape": shape, "flags": list(FLAGS.values())}

    def measure() -> list[float]:
        tell("Measuring how this machine runs loops fastest, once: up to a minute.")
        return _measured(profile)

    measured = kept(_SPEEDS, "loops", network, measure)
    speeds = dict(zip(FLAGS, measured, strict=True))
    best = max(speeds, key=lambda loops: speeds[loops])
    if speeds[best] < GAIN_TO_CHANGE * speeds["stepwise"] or not speeds["stepwise"]:
        return "stepwise"
    tell(f"Loops are compiled as one kernel: {speeds[best] / speeds['stepwise']:.2f} times as fast here.")
    return best


def compile_loops(loops: Loops) -> None:
    """Let this process and those it starts compile loops so, before anything is compiled."""
    if os.environ.get("XLA_FLAGS") == STEPWISE:
        os.environ["XLA_FLAGS"] = FLAGS[loops]


def _measured(profile: Profile) -> list[float]:
    """Time training steps with each set of `FLAGS`, windows per processor second; 0 where that fails."""
    options = {"formats": ["float32"], "seconds": MEASURED_S, "num_models": 1, "is_short": False}
    wanted = [{"measure": "formats", **options, "is_of_processor": True}]
    orders = [
        Order(profile=profile, measurements=wanted, environment={"XLA_FLAGS": flags})
        for flags in FLAGS.values()
    ]
    return [_speed(answer) for answer in ask(orders, limit_s=LIMIT_S)]


def _speed(answer: Answer) -> float:
    return float(answer.measured[0]["float32"]) if answer.measured else 0.0
