"""How XLA compiles the loops over time of a CPU's training: measured once for a network, then kept.

As it comes, XLA runs every operation of a step of a loop as a task of its own. Told to, it makes one kernel
of the whole loop, small products included, written for wide vectors: 1.4 times as fast on a processor with
AVX-512, and no faster with AVX2 alone. So both are timed, each in a process of its own, because XLA reads
its flags once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from pydantic import TypeAdapter

from v8.artifacts.run_folder import Loops
from v8.engine.children import Answer, Order, ask
from v8.engine.kept import kept
from v8.engine.placement import SINGLE_THREADED
from v8.models.cost import training_flop_per_window
from v8.profile import Profile

STEPWISE: Final = SINGLE_THREADED["XLA_FLAGS"]
"""Each operation a task: what XLA does by itself."""
WHOLE: Final = (
    f"{STEPWISE} --xla_cpu_prefer_vector_width=512 --xla_backend_extra_options="
    "xla_cpu_small_while_loop_byte_threshold=1000000000,xla_force_enable_experimental_llvm_ir_gemm=true,"
    "xla_llvm_ir_gemm_tile_size=8:2:2*vectwidth"
)
"""A loop is one kernel, and products in it are code of that kernel: XLA would otherwise not unroll them.

Products are worked out in tiles of 8 rows and 2 vectors, 2 terms at a time: most batches are multiples of
them, and sums and factors fit into 32 registers. XLA's own 11 rows leave 5 of 16, which take as long.
"""

GAIN_TO_CHANGE: Final = 1.05
"""Loops as one kernel must be so many times as fast: near one, a measurement might choose either."""

WORTHWHILE_FLOP: Final = 2e13
"""Work of about two minutes of a core on one series; less is done before it is known how."""

MEASURED_S: Final = 0.5
LIMIT_S: Final = 300.0

_SPEEDS: Final = TypeAdapter(list[float])


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
    network = {**profile.network.model_dump(mode="json"), "shape": shape, "flags": [STEPWISE, WHOLE]}

    def measure() -> list[float]:
        tell("Measuring how this machine runs loops fastest, once: about 20 s.")
        return _measured(profile)

    stepwise, whole = kept(_SPEEDS, "loops", network, measure)
    if whole < GAIN_TO_CHANGE * stepwise or not stepwise:
        return "stepwise"
    tell(f"Loops are compiled as one kernel: {whole / stepwise:.2f} times as fast here.")
    return "whole"


def compile_loops(loops: Loops) -> None:
    """Let this process and those it starts compile loops so, before anything is compiled."""
    if loops == "whole" and os.environ.get("XLA_FLAGS") == STEPWISE:
        os.environ["XLA_FLAGS"] = WHOLE


def _measured(profile: Profile) -> list[float]:
    """Time training steps with either set of flags, windows per processor second; 0 where that fails."""
    options = {"formats": ["float32"], "seconds": MEASURED_S, "num_models": 1, "is_short": False}
    wanted = [{"measure": "formats", **options, "is_of_processor": True}]
    orders = [
        Order(profile=profile, measurements=wanted, environment={"XLA_FLAGS": flags})
        for flags in (STEPWISE, WHOLE)
    ]
    return [_speed(answer) for answer in ask(orders, limit_s=LIMIT_S)]


def _speed(answer: Answer) -> float:
    return float(answer.measured[0]["float32"]) if answer.measured else 0.0
