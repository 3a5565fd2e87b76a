"""What a measurement of this machine decides, taken once and kept: number format, loops and workers.

**Formats.** What a processor claims to multiply fast and what the compiled program reaches differ: with AMX,
bfloat16 ran at 0.35 to 0.5 of float32's speed. So the trainer's own steps are timed: on a network of one
layer as wide as the profile's first, which compiles in seconds, and where another format than float32 wins
there, those two on the whole network.

**Loops.** As it comes, XLA runs every operation of a step of a loop as a task of its own. Told to, it makes
one kernel of the whole loop, small products included, which it then writes itself, in tiles. Tiles that fit a
processor make training 1.2 to 1.5 times as fast, others make it slower than tasks. So each set of flags is
timed, in a process of its own, because XLA reads them once.

On a GPU a step of a loop waits for its launches. How many steps a trip takes, and whether XLA puts loops into
command buffers, is measured likewise, one process after another. What ends such a process is not chosen: the
second execution of a loop in a command buffer crashed before XLA of December 2025.

**Workers.** Counting cores misleads: two of them may be one core's hyper-threads, and each process needs
memory. So threads do arithmetic side by side, and the smallest number that nearly reaches the best total is
taken. A thread's speed is its work per second of processor time, not of the clock: a program that happens to
run beside the measurement must not cost a worker for hours. (What a container may use of the cores is known
beforehand, see `v8.hardware.num_usable_cores`.)

What is kept belongs to a processor, its GPUs, the versions installed and whatever else its key tells: with
any other key it is taken anew. The files only save time: one that is lost or damaged is measured again.
"""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import numpy as np
from pydantic import Field

from v8.errors import with_parameters
from v8.hardware import available_bytes as free_bytes
from v8.hardware import identity
from v8.machine.processes import Order, Tell, ask
from v8.networks.cost import training_flop_per_window
from v8.networks.loops import Loops
from v8.networks.steps_per_trip import STEPS_VARIABLE
from v8.profile import Profile
from v8.records import Count, adapter
from v8.storage import digest_json, home, read_given, write_cache

AUTO: Final = "auto"
SINGLE_THREADED: Final = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
"""Variables that give a process one thread on a CPU, which makes results repeatable."""
KEPT_FORMAT: Final = 1
_MAX_BYTES: Final = 1 << 20  # a larger file is no kept measurement
LIMIT_S: Final = 300.0  # a process that measures for longer is given up
FORMATS: Final = ("float32", "mixed_bfloat16", "mixed_float16")
GAIN_TO_CHANGE: Final = 1.1
"""A 16-bit format must be so many times as fast as float32 to be worth its rounding."""
FORMAT_S: Final = 0.3
FLEET_ON_GPU: Final = 16
"""Models of one program where a GPU may compute: alone, a small network shows nothing but launches."""
STEPWISE: Final = SINGLE_THREADED["XLA_FLAGS"]  # each operation a task: what XLA does by itself


def _whole(vector_bits: int, tile: str) -> str:
    """Return flags that make a loop one kernel, and products in it code of that kernel.

    A tile has rows and terms of a product, and vectors of its columns, that are worked out at a time.
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
GPU_LOOPS: Final[Mapping[Loops, Mapping[str, str]]] = {
    "gpu": {},
    "gpu_trips_of_4": {STEPS_VARIABLE: "4"},
    "gpu_trips_of_10": {STEPS_VARIABLE: "10"},
    "gpu_trips_of_60": {STEPS_VARIABLE: "60"},
    "gpu_command_buffers": {"XLA_FLAGS": "--xla_gpu_enable_command_buffer=+WHILE"},
    "gpu_unrolled_command_buffers": {
        "XLA_FLAGS": "--xla_gpu_enable_command_buffer=+WHILE --xla_gpu_command_buffer_unroll_loops=true"
    },
    "gpu_small_command_buffers": {"XLA_FLAGS": "--xla_gpu_graph_min_graph_size=1"},
    "gpu_double_buffering": {"XLA_FLAGS": "--xla_gpu_enable_while_loop_double_buffering=true"},
}
"""Variables of a process that computes on a GPU, by how its loops are launched; the first sets none."""
GPU_LOOPS_S: Final = 1.0
LOOPS_GAIN: Final = 1.05
"""Loops as one kernel must be so many times as fast: near one, a measurement might choose any."""
LOOPS_S: Final = 1.5
WORTHWHILE_FLOP: Final = 2e13
"""Work of about two minutes of a core on one series; less is done before it is known how."""
STRETCH_S: Final = 0.2  # time of one measurement of workers
WORTHWHILE_GAIN: Final = 1.1
"""Twice the processes must do at least this much more, or their memory is better saved."""
WORKER_BYTES: Final = 1_600 << 20
"""Memory to have free for each process; one that trains `aligned` was seen to take 1.5 GB at most."""
NUM_TRIES: Final = 3
"""Measurements before more processes are given up: another program may disturb one of them."""
_NUM_NUMBERS: Final = 1 << 16
"""Numbers a thread works on at a time: they stay in a core's own cache, so that cores do not share."""
_BY_FLAGS: Final = Annotated[list[float], Field(min_length=len(FLAGS), max_length=len(FLAGS))]
Found = TypeVar("Found")


def choose_precision(profile: Profile, *, may_have_gpu: bool, tell: Tell) -> str:
    """Turn a profile's precision into a Keras dtype policy; tell what is measured, chosen and why.

    A network that is trained in less time than measuring takes is trained in float32.
    """
    setting = profile.training.precision
    if setting != AUTO or not _is_long(profile):
        return FORMATS[0] if setting == AUTO else setting
    key = {"may_have_gpu": may_have_gpu, "devices": os.environ.get("CUDA_VISIBLE_DEVICES")}

    def measure() -> dict[str, float]:
        tell("Measuring which number format this machine trains fastest in, once: 20 s, a busy one a minute.")
        options: dict[str, Any] = {"seconds": FORMAT_S, "num_models": FLEET_ON_GPU if may_have_gpu else 1}
        (speeds,) = _timed(profile, FORMATS, **options, is_short=True)
        best = fastest(speeds)
        if best != FORMATS[0]:
            (speeds,) = _timed(profile, (FORMATS[0], best), **options, is_short=False)
        return speeds

    speeds = kept(dict[str, float], "precision", {**_network(profile), **key}, measure)
    chosen = fastest(speeds)
    why = "formats could not be measured"
    base = speeds.get(FORMATS[0])
    if base:
        others = [f"{name} {speed / base:.2f}" for name, speed in speeds.items() if name != FORMATS[0]]
        shown = ", ".join(others) or "no other format works"
        why = f"measured here, as multiples of float32's speed: {shown}"
    tell(with_parameters(f"Precision: {chosen}; {why} (param:precision sets another)."))
    return chosen


def fastest(speeds: Mapping[str, float]) -> str:
    """Return the format to train in: float32 unless another one is clearly faster.

    >>> fastest({"float32": 100.0, "mixed_bfloat16": 40.0, "mixed_float16": 109.0})
    'float32'
    >>> fastest({"float32": 100.0, "mixed_bfloat16": 130.0, "mixed_float16": 150.0})
    'mixed_float16'
    >>> fastest({})
    'float32'
    """
    best = max(speeds, key=lambda name: speeds[name], default=FORMATS[0])
    return best if speeds.get(best, 0.0) >= GAIN_TO_CHANGE * speeds.get(FORMATS[0], 0.0) else FORMATS[0]


def choose_loops(profile: Profile, *, may_have_gpu: bool = False, tell: Tell) -> Loops:
    """Choose how loops are compiled in a run; tell what is measured, and what was chosen.

    Nothing but profile and machine decides, so that a series trains to the same weights alone and among many.
    Flags that the user has set stand.
    """
    if may_have_gpu:
        return _choose_gpu_loops(profile, tell)
    if os.environ.get("XLA_FLAGS") != STEPWISE or not _is_long(profile):
        return "stepwise"

    def measure() -> list[float]:
        tell("Measuring how this machine runs loops fastest, once: up to a minute.")
        flags = [{"XLA_FLAGS": each} for each in FLAGS.values()]
        options = {"seconds": LOOPS_S, "num_models": 1, "is_short": False, "is_of_processor": True}
        return [each.get(FORMATS[0], 0.0) for each in _timed(profile, FORMATS[:1], flags, **options)]

    measured = kept(_BY_FLAGS, "loops", {**_network(profile), "flags": list(FLAGS.values())}, measure)
    speeds = dict(zip(FLAGS, measured, strict=True))
    best = max(speeds, key=lambda loops: speeds[loops])
    if speeds[best] < LOOPS_GAIN * speeds["stepwise"] or not speeds["stepwise"]:
        return "stepwise"
    tell(f"Loops are compiled as one kernel: {speeds[best] / speeds['stepwise']:.2f} times as fast here.")
    return best


def _choose_gpu_loops(profile: Profile, tell: Tell) -> Loops:
    if {"XLA_FLAGS", STEPS_VARIABLE} & set(os.environ) or not _is_long(profile):
        return "gpu"

    def measure() -> dict[Loops, float]:
        tell("Measuring how this machine's GPU runs loops fastest, once: a few minutes.")
        options = {"seconds": GPU_LOOPS_S, "num_models": FLEET_ON_GPU, "is_short": True}
        speeds: dict[Loops, float] = {}
        for loops, environment in GPU_LOOPS.items():  # one after another: they share the GPU
            (by_format,) = _timed(profile, FORMATS[:1], [dict(environment)], **options)
            speeds[loops] = by_format.get(FORMATS[0], 0.0)
        return speeds

    key = {
        **_network(profile),
        "loops": [[name, dict(variables)] for name, variables in GPU_LOOPS.items()],
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    speeds = kept(dict[Loops, float], "gpu_loops", key, measure)
    best = max(GPU_LOOPS, key=lambda loops: speeds.get(loops, 0.0))
    usual_speed = speeds.get("gpu", 0.0)
    if not usual_speed or speeds[best] < LOOPS_GAIN * usual_speed:
        return "gpu"
    tell(f"Loops run as {best}: {speeds[best] / usual_speed:.2f} times as fast on this GPU.")
    return best


def compile_loops(loops: Loops) -> None:
    """Let this process and those it starts compile loops so, before anything is compiled.

    What was chosen for a GPU changes nothing where none computes, nor the other way round.
    """
    if loops in GPU_LOOPS:
        if "XLA_FLAGS" not in os.environ:
            os.environ.update(GPU_LOOPS[loops])
    elif os.environ.get("XLA_FLAGS") == STEPWISE:
        os.environ["XLA_FLAGS"] = FLAGS[loops]


def measured_workers(num_cores: int, most: int | None = None) -> int:
    """Choose the number of worker processes: as many as run side by side here and have their memory.

    `most` have work; None for one a core.
    """
    useful = kept(Count, "workers", {"num_cores": num_cores}, partial(useful_workers, num_cores))
    return affordable_workers(min(useful, most or num_cores))


def affordable_workers(num_workers: int, available_bytes: int | None = None) -> int:
    """Bound a number of worker processes by memory, at least 1; None asks the system for what is free.

    >>> affordable_workers(8, 5 << 30), affordable_workers(8, 64 << 30), affordable_workers(2, 1 << 30)
    (3, 8, 1)
    """
    free = free_bytes() if available_bytes is None else available_bytes
    return max(1, min(num_workers, free // WORKER_BYTES))


def useful_workers(num_cores: int, speed_of: Callable[[int], float] | None = None) -> int:
    """Measure how many processes really run side by side, between 1 and `num_cores`.

    `speed_of` is the work per second of processor time of a number of threads; None measures.

    >>> useful_workers(8, lambda threads: min(threads, 2.0)), useful_workers(6, float)
    (2, 6)
    """
    speed_of = speed_of or threads_speed
    chosen = 1
    speed = speed_of(1) if num_cores > 1 else 1.0
    while chosen < num_cores:
        tried = min(2 * chosen, num_cores)
        speeds = map(speed_of, [tried] * NUM_TRIES)
        faster = next((each for each in speeds if each >= WORTHWHILE_GAIN * speed), None)
        if faster is None:
            break
        chosen = tried
        speed = faster
    return chosen


def threads_speed(num_threads: int) -> float:
    """Return passes of arithmetic per second of processor time, of a number of threads at once."""
    start = threading.Barrier(num_threads)

    def work(_: int) -> float:
        numbers = np.linspace(0.0, 1.0, _NUM_NUMBERS, dtype=np.float32)
        result = np.empty_like(numbers)
        start.wait()
        num_passes = 0
        begun = time.thread_time()
        end = time.perf_counter() + STRETCH_S
        while time.perf_counter() < end:
            np.exp(numbers, out=result)  # NumPy lets other threads run meanwhile
            num_passes += 1
        return num_passes / max(time.thread_time() - begun, 1e-9)

    with ThreadPoolExecutor(num_threads) as threads:
        return math.fsum(threads.map(work, range(num_threads)))


def _is_long(profile: Profile) -> bool:
    """Say whether training one series is work enough to measure first how it is done fastest."""
    num_windows = profile.training.epochs * profile.newest_bars
    return num_windows * training_flop_per_window(profile) >= WORTHWHILE_FLOP


def _network(profile: Profile) -> dict[str, Any]:
    """Return what the speed of a network depends on."""
    shape = [profile.training.batch_size, profile.lookback_bars, len(profile.features)]
    return {**profile.network.model_dump(mode="json"), "shape": shape}


def _timed(
    profile: Profile,
    formats: Sequence[str],
    environments: Sequence[dict[str, str]] = ({},),
    **options: Any,
) -> list[dict[str, float]]:
    """Time training steps by format, windows/s, in a process for each environment; {} where that fails."""
    wanted = {"measure": "formats", "formats": formats, **options}
    orders = [Order(profile=profile, measurements=[wanted], environment=each) for each in environments]
    answers = ask(orders, limit_s=LIMIT_S)
    read = adapter(dict[str, float]).validate_python
    return [read(each.measured[0]) if each.measured else {} for each in answers]


def kept(kind: Any, name: str, key: Mapping[str, Any], measure: Callable[[], Found]) -> Found:
    """Return a measurement of this machine, of a type, from an earlier call or taken now.

    Its name is fit for a file; the key, plain JSON values, is what it depends on beside the machine.
    """
    found: Found | None = recall(kind, name, key)
    if found is None:
        found = measure()
        keep(kind, name, key, found)
    return found


def recall(kind: Any, name: str, key: Mapping[str, Any]) -> Any:
    """Return a measurement of an earlier call, as for `kept`; None where there is none."""
    file, _ = _place(name, key)
    with suppress(OSError, ValueError, KeyError, TypeError):  # no JSON, or something else
        return adapter(kind).validate_python(json.loads(read_given(file, _MAX_BYTES))["found"])
    return None


def keep(kind: Any, name: str, key: Mapping[str, Any], found: Any) -> None:
    """Keep a measurement for later calls, in the place of an earlier one; arguments as for `kept`."""
    file, whole_key = _place(name, key)
    content = {"key": whole_key, "found": adapter(kind).dump_python(found, mode="json")}
    write_cache(file, json.dumps(content, indent=2).encode("utf-8"))


def _place(name: str, key: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the file of a measurement, and all that it depends on."""
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    whole_key = {"format": KEPT_FORMAT, **identity(), "backend": backend, **key}
    return home() / "machine" / f"{name}-{digest_json(whole_key)[:16]}.json", whole_key
