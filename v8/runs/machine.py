"""Settings that depend on this machine, measured once and cached: number format, loops and workers.

**Number format** (`choose_precision`). What a processor claims to multiply fast and what the compiled program
reaches differ: with AMX, bfloat16 ran at 0.35 to 0.5 of float32's speed. So the trainer's own steps are
timed: first on a network of one layer as wide as the profile's first, which compiles in seconds. If another
format than float32 wins there, those two are timed on the whole network.

**Loops** (`choose_loops`). By itself XLA runs every operation of a step of a loop as a task of its own. With
other flags it fuses a whole loop into one kernel, small matrix products included, whose code it then writes
itself, in tiles. Tiles that fit the processor make training 1.2 to 1.5 times as fast, others make it slower
than tasks. XLA reads its flags once per process, so each set of flags is timed in a process of its own.

On a GPU a step of a loop waits until its kernels are launched. How many steps one trip of the loop takes, and
whether XLA puts loops into command buffers, is measured in the same manner, one process after another. A
setting that crashes its process is never chosen: the second execution of a loop in a command buffer crashed
before XLA of December 2025.

**Workers** (`measured_workers`). Counting cores misleads: two of them may be one core's hyper-threads, and
each process needs memory. So threads do arithmetic at the same time, and the smallest number that nearly
reaches the best total is taken. A thread's speed is its work per second of processor time, not of the clock:
another program that happens to run during the measurement must not cost a worker for hours. (What a container
may use of the cores is known beforehand, see `v8.base.hardware.num_usable_cores`.)

**Cache** (`cached_measurement`). A measurement is stored under `V8_HOME/machine`, under the digest of
everything that it depends on: processor, GPUs, installed versions, and what its key adds, for example the
network. If any of it changes, it is measured again. The files only save time: a lost or damaged one is
measured again, too.

Processes that do nothing else measure (`take_measurements`): the speeds of `v8.model.training.probe`.
"""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import numpy as np
from pydantic import Field

from v8.base.child import ChildCall, MessageHandler, report_ready, run_in_children
from v8.base.errors import with_parameters
from v8.base.hardware import SINGLE_THREADED, STEPS_VARIABLE, has_gpu, identity
from v8.base.hardware import available_bytes as free_bytes
from v8.base.process import collected_later, light_start, with_variables
from v8.base.records import Count, Number, adapter, parse_json, read_given
from v8.base.storage import digest_json, home, write_cache
from v8.profile.profile import Profile

AUTO: Final = "auto"
CACHE_FORMAT: Final = 1
_MAX_BYTES: Final = 1 << 20  # a larger file is no cached measurement
LIMIT_S: Final = 300.0
"""A process that measures for longer is killed, in seconds."""
FORMATS: Final = ("float32", "mixed_bfloat16", "mixed_float16")
GAIN_TO_CHANGE: Final = 1.1
"""A 16-bit format must be so many times as fast as float32 to be worth its rounding."""
FORMAT_S: Final = 0.3
"""Time of each measurement of a number format, in seconds."""
FLEET_ON_GPU: Final = 16
"""Models trained together where a GPU may compute: one small network would measure nothing but launches."""
TASK_PER_OPERATION: Final = SINGLE_THREADED["XLA_FLAGS"]
"""Flags with which XLA runs each operation of a loop as a task, as it does by itself."""


Loops = Literal[
    "stepwise",
    "whole",
    "whole_of_16",
    "gpu",
    "gpu_trips_of_4",
    "gpu_trips_of_10",
    "gpu_trips_of_60",
    "gpu_command_buffers",
    "gpu_unrolled_command_buffers",
    "gpu_small_command_buffers",
    "gpu_double_buffering",
]
"""A form of loops, as `run.json` stores it.

On a CPU `stepwise` runs each operation of a time step as one task; the others are fused loops, one kernel for
the whole loop, and differ in the tiles of its matrix products (`FLAGS`). On a GPU:
how kernels are launched (`GPU_LOOPS`)."""


def _fused_loop_flags(vector_bits: int, tile: str) -> str:
    """Return flags that make a loop one kernel, and matrix products in it code of that kernel.

    Args:
        vector_bits: Width of the processor's vectors.
        tile: What is computed at a time: rows of a product, its terms, and vectors of its columns.
    """
    return (
        f"{TASK_PER_OPERATION} --xla_cpu_prefer_vector_width={vector_bits} --xla_backend_extra_options="
        # XLA would otherwise unroll no products.
        "xla_cpu_small_while_loop_byte_threshold=1000000000,xla_force_enable_experimental_llvm_ir_gemm=true,"
        f"xla_llvm_ir_gemm_tile_size={tile}*vectwidth"
    )


FLAGS: Final[Mapping[Loops, str]] = {
    "stepwise": TASK_PER_OPERATION,
    # 32 registers hold the sums of 8 rows and 2 vectors, with factors; most batches are multiples of 8. XLA's
    # own 11 rows leave 5 of 16, which take as long.
    "whole": _fused_loop_flags(512, "8:2:2"),
    # 16 registers, as of AVX2, hold the sums of 6 rows and 2 vectors. Widths of layers are seldom multiples
    # of 3 vectors, which would fit a batch of 16 better.
    "whole_of_16": _fused_loop_flags(256, "6:4:2"),
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
"""Environment variables of a process that computes on a GPU, by how its loops are launched; the first sets
none."""
MEASURED_GPU_LOOPS: Final[tuple[Loops, ...]] = ("gpu", "gpu_trips_of_60")
"""Those of `GPU_LOOPS` that "auto" compares. On an H200 the others were at most 1.02 times as fast as the
first, and measuring them took five minutes (docs/en/explanation/figures.md)."""
GPU_LOOPS_S: Final = 1.0
"""Time of each measurement of loops on a GPU, in seconds."""
LOOPS_GAIN: Final = 1.05
"""A setting of loops must be so many times as fast as the usual one: nearer to 1, noise would decide."""
LOOPS_S: Final = 1.5
"""Time of each measurement of loops on a CPU, in seconds."""
MIN_FLOP_TO_MEASURE: Final = 2e13
"""Work of training one series from which measuring pays, about two minutes of a core."""
MIN_FLOP_TO_MEASURE_ON_GPU: Final = 4e14
"""The same on a GPU that trains 40 series together: 18 minutes of an H200 for all of them, of which the best
loops save as much as measuring them takes, two to three minutes."""
THREADS_S: Final = 0.2
"""Time of each measurement of threads, in seconds."""
MIN_WORKERS_GAIN: Final = 1.1
"""Twice the processes must be at least so many times as fast, or their memory is better saved."""
WORKER_BYTES: Final = 1_600 << 20
"""Memory to have free for each process; one that trains `aligned` took 1.5 GB at most."""
NUM_TRIES: Final = 3
"""Measurements before twice the processes count as too slow: another program may disturb one of them."""
_NUM_VALUES: Final = 1 << 16
"""Values that a thread works on at a time: they stay in a core's own cache, so that cores do not share."""
_Format = Literal["float32", "mixed_bfloat16", "mixed_float16"]  # those of `FORMATS`
_Speed = Annotated[Number, Field(ge=0)]  # of anything, finite
MEASUREMENT_OF_FORMATS: Final = dict[_Format, _Speed]  # windows/s by number format
_SPEED_PER_FLAGS: Final = Annotated[list[_Speed], Field(min_length=len(FLAGS), max_length=len(FLAGS))]
Result = TypeVar("Result")

Measurement: TypeAlias = dict[str, Any]
"""One measurement to take: its name as "measure", one of those in `take_measurements`, and its options."""


@dataclass(frozen=True)
class MeasurementRequest:
    """Measurements of one profile."""

    profile: Profile  # whose network is measured
    measurements: Sequence[Measurement]  # what to measure, in this order


def choose_precision(profile: Profile, *, may_have_gpu: bool, on_message: MessageHandler) -> str:
    """Return the Keras dtype policy of a profile, measured if its precision is "auto".

    A network that is trained in less time than measuring takes is trained in float32.

    Args:
        profile: Its training settings name the precision.
        may_have_gpu: Whether the training process may compute on a GPU.
        on_message: Gets what is measured, and what was chosen and why.
    """
    setting = profile.training.precision
    if setting != AUTO:
        return setting
    if not _is_worth_measuring(profile, may_have_gpu=may_have_gpu):
        return FORMATS[0]
    key = {"may_have_gpu": may_have_gpu, "devices": os.environ.get("CUDA_VISIBLE_DEVICES")}

    def measure() -> dict[str, float]:
        on_message(
            "Measuring which number format this machine trains fastest in, once: 20 s, a busy one a minute."
        )
        options: dict[str, Any] = {"seconds": FORMAT_S, "num_models": FLEET_ON_GPU if may_have_gpu else 1}
        (speeds,) = _time_steps(profile, FORMATS, **options, is_short=True)
        best = fastest_format(speeds)
        if best != FORMATS[0]:
            (speeds,) = _time_steps(profile, (FORMATS[0], best), **options, is_short=False)
        return speeds

    speeds = cached_measurement(
        MEASUREMENT_OF_FORMATS, "precision", {**_network_key(profile), **key}, measure
    )
    chosen = fastest_format(speeds)
    why = "formats could not be measured"
    base = speeds.get(FORMATS[0])
    if base:
        others = [f"{name} {speed / base:.2f}" for name, speed in speeds.items() if name != FORMATS[0]]
        ratios = ", ".join(others) or "no other format works"
        why = f"measured here, as multiples of float32's speed: {ratios}"
    on_message(with_parameters(f"Precision: {chosen}; {why} (param:precision sets another)."))
    return chosen


def fastest_format(speeds: Mapping[str, float]) -> str:
    """Return the format to train in: float32 unless another one is clearly faster.

    >>> fastest_format({"float32": 100.0, "mixed_bfloat16": 40.0, "mixed_float16": 109.0})
    'float32'
    >>> fastest_format({"float32": 100.0, "mixed_bfloat16": 130.0, "mixed_float16": 150.0})
    'mixed_float16'
    >>> fastest_format({})
    'float32'
    """
    best = max(speeds, key=lambda name: speeds[name], default=FORMATS[0])
    return best if speeds.get(best, 0.0) >= GAIN_TO_CHANGE * speeds.get(FORMATS[0], 0.0) else FORMATS[0]


def choose_loops(profile: Profile, *, may_have_gpu: bool = False, on_message: MessageHandler) -> Loops:
    """Choose how loops are compiled in a run.

    Only profile and machine decide, so that a series trains to the same weights alone and among many. XLA
    flags that the user has set are left as they are.

    Args:
        profile: Whose network is trained.
        may_have_gpu: Whether the training process may compute on a GPU.
        on_message: Gets what is measured, and what was chosen.
    """
    if may_have_gpu:
        return _choose_gpu_loops(profile, on_message)
    is_set_by_user = os.environ.get("XLA_FLAGS") != TASK_PER_OPERATION
    if is_set_by_user or not _is_worth_measuring(profile, may_have_gpu=False):
        return "stepwise"

    def measure() -> list[float]:
        on_message("Measuring how this machine runs loops fastest, once: up to a minute.")
        environments = [{"XLA_FLAGS": flags} for flags in FLAGS.values()]
        options = {"seconds": LOOPS_S, "num_models": 1, "is_short": False, "is_of_processor": True}
        results = _time_steps(profile, FORMATS[:1], environments, **options)
        return [speed_by_format.get(FORMATS[0], 0.0) for speed_by_format in results]

    key = {**_network_key(profile), "flags": list(FLAGS.values())}
    measured = cached_measurement(_SPEED_PER_FLAGS, "loops", key, measure)
    speeds = dict(zip(FLAGS, measured, strict=True))
    best = max(speeds, key=lambda loops: speeds[loops])
    if speeds[best] < LOOPS_GAIN * speeds["stepwise"] or not speeds["stepwise"]:
        return "stepwise"
    on_message(
        f"Loops are compiled as one kernel: {speeds[best] / speeds['stepwise']:.2f} times as fast here."
    )
    return best


def _choose_gpu_loops(profile: Profile, on_message: MessageHandler) -> Loops:
    """Choose how loops are launched on a GPU, as `choose_loops` does on a CPU."""
    is_set_by_user = "XLA_FLAGS" in os.environ or STEPS_VARIABLE in os.environ
    if is_set_by_user or not _is_worth_measuring(profile, may_have_gpu=True):
        return "gpu"

    def measure() -> dict[Loops, float]:
        on_message("Measuring how this machine's GPU runs loops fastest, once: two to three minutes.")
        options = {"seconds": GPU_LOOPS_S, "num_models": FLEET_ON_GPU, "is_short": True}
        speeds: dict[Loops, float] = {}
        for loops in MEASURED_GPU_LOOPS:  # one after another: they share the GPU
            (speed_by_format,) = _time_steps(profile, FORMATS[:1], [dict(GPU_LOOPS[loops])], **options)
            speeds[loops] = speed_by_format.get(FORMATS[0], 0.0)
        return speeds

    key = {
        **_network_key(profile),
        "loops": [[name, dict(GPU_LOOPS[name])] for name in MEASURED_GPU_LOOPS],
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    speeds = cached_measurement(dict[Loops, _Speed], "gpu_loops", key, measure)
    best = max(MEASURED_GPU_LOOPS, key=lambda loops: speeds.get(loops, 0.0))
    usual_speed = speeds.get("gpu", 0.0)
    if not usual_speed or speeds[best] < LOOPS_GAIN * usual_speed:
        return "gpu"
    on_message(f"Loops run as {best}: {speeds[best] / usual_speed:.2f} times as fast on this GPU.")
    return best


def loops_in_environment(loops: Loops) -> AbstractContextManager[None]:
    """Let the block, and the processes that it starts, compile loops in the chosen manner.

    XLA reads it where a process compiles for the first time. What was chosen for a GPU changes nothing where
    none computes, nor the other way round.
    """
    variables: Mapping[str, str] = {}
    if loops in GPU_LOOPS:
        if "XLA_FLAGS" not in os.environ:
            variables = GPU_LOOPS[loops]
    elif os.environ.get("XLA_FLAGS") == TASK_PER_OPERATION:
        variables = {"XLA_FLAGS": FLAGS[loops]}
    return with_variables(variables)


def measured_workers(num_cores: int, most: int | None = None) -> int:
    """Choose the number of worker processes: as many as this machine runs in parallel and has memory for.

    Args:
        num_cores: Cores that this process may use.
        most: Workers that have something to do; None for one a core.
    """

    def measure() -> int:
        return useful_workers(num_cores)

    useful = cached_measurement(Count, "workers", {"num_cores": num_cores}, measure)
    return affordable_workers(min(useful, most or num_cores))


def affordable_workers(num_workers: int, available_bytes: int | None = None) -> int:
    """Bound a number of worker processes by memory, at least 1; None asks the system for what is free.

    >>> affordable_workers(8, 5 << 30), affordable_workers(8, 64 << 30), affordable_workers(2, 1 << 30)
    (3, 8, 1)
    """
    free = free_bytes() if available_bytes is None else available_bytes
    return max(1, min(num_workers, free // WORKER_BYTES))


def useful_workers(num_cores: int, speed_of: Callable[[int], float] | None = None) -> int:
    """Measure how many processes really run in parallel, between 1 and `num_cores`.

    Args:
        num_cores: Cores that this process may use.
        speed_of: Returns the work per second of processor time of a number of threads; None measures it.

    >>> useful_workers(8, lambda threads: min(threads, 2.0)), useful_workers(6, float)
    (2, 6)
    """
    speed_of = speed_of or threads_speed
    chosen = 1
    speed = speed_of(1) if num_cores > 1 else 1.0
    while chosen < num_cores:
        candidate = min(2 * chosen, num_cores)
        candidate_speed = _speed_if_faster(candidate, MIN_WORKERS_GAIN * speed, speed_of)
        if candidate_speed is None:
            break
        chosen = candidate
        speed = candidate_speed
    return chosen


def _speed_if_faster(num_threads: int, least_speed: float, speed_of: Callable[[int], float]) -> float | None:
    """Measure up to `NUM_TRIES` times, and return the first speed that is high enough; None if none is."""
    for _ in range(NUM_TRIES):
        speed = speed_of(num_threads)
        if speed >= least_speed:
            return speed
    return None


def threads_speed(num_threads: int) -> float:
    """Return the passes of arithmetic per second of processor time, summed over threads that run together."""
    barrier = threading.Barrier(num_threads)

    def work(_: int) -> float:
        values = np.linspace(0.0, 1.0, _NUM_VALUES, dtype=np.float32)
        result = np.empty_like(values)
        barrier.wait()
        num_passes = 0
        start_s = time.thread_time()
        end_s = time.perf_counter() + THREADS_S
        while time.perf_counter() < end_s:
            np.exp(values, out=result)  # NumPy lets other threads run meanwhile
            num_passes += 1
        return num_passes / max(time.thread_time() - start_s, 1e-9)

    with ThreadPoolExecutor(num_threads) as threads:
        return math.fsum(threads.map(work, range(num_threads)))


def _is_worth_measuring(profile: Profile, *, may_have_gpu: bool) -> bool:
    """Return whether training one series is so much work that measuring first saves time."""
    num_windows = profile.training.epochs * profile.newest_bars
    least_flop = MIN_FLOP_TO_MEASURE_ON_GPU if may_have_gpu else MIN_FLOP_TO_MEASURE
    return num_windows * profile.training_flop_per_window >= least_flop


def _network_key(profile: Profile) -> dict[str, Any]:
    """Return what the speed of a profile's network depends on, apart from the machine."""
    shape = [profile.training.batch_size, profile.lookback_bars, len(profile.features)]
    return {**profile.network.model_dump(mode="json"), "shape": shape}


def _time_steps(
    profile: Profile,
    formats: Sequence[str],
    environments: Sequence[dict[str, str]] = ({},),
    **options: Any,
) -> list[dict[str, float]]:
    """Time training steps in several number formats, in one process for each environment.

    Args:
        profile: Whose network is trained.
        formats: Keras dtype policies.
        environments: Environment variables of each process.
        options: Further options of the measurement "formats".

    Returns:
        For each environment, windows/s by format; empty where the process failed.
    """
    measurement: Measurement = {"measure": "formats", "formats": formats, **options}
    request = MeasurementRequest(profile, [measurement])
    calls = [ChildCall(take_measurements, request, environment) for environment in environments]
    results = run_in_children(calls, limit_s=LIMIT_S)
    return [result.values[0] if result.values else {} for result in results]


def cached_measurement(kind: Any, name: str, key: Mapping[str, Any], measure: Callable[[], Result]) -> Result:
    """Return a measurement of this machine from the cache, or take it now and cache it.

    Args:
        kind: The type of the measurement, checked when it is read.
        name: Names the measurement; fit for a file name.
        key: What the measurement depends on apart from the machine, plain JSON values.
        measure: Takes the measurement.
    """
    result: Result | None = read_measurement(kind, name, key)
    if result is None:
        result = measure()
        write_measurement(kind, name, key, result)
    return result


def read_measurement(kind: Any, name: str, key: Mapping[str, Any]) -> Any:
    """Return a measurement from the cache, None if it is not there; see `cached_measurement`."""
    file, _ = _cache_file(name, key)
    with suppress(OSError, ValueError, KeyError, TypeError):  # no JSON, or something else
        return adapter(kind).validate_python(parse_json(read_given(file, _MAX_BYTES))["found"])
    return None


def write_measurement(kind: Any, name: str, key: Mapping[str, Any], result: Any) -> None:
    """Write a measurement to the cache in place of an earlier one; see `cached_measurement`."""
    file, full_key = _cache_file(name, key)
    content = {"key": full_key, "found": adapter(kind).dump_python(result, mode="json")}
    write_cache(file, json.dumps(content, indent=2).encode("utf-8"))


def _cache_file(name: str, key: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the file of a measurement, and everything that it depends on."""
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    full_key = {"format": CACHE_FORMAT, **identity(), "backend": backend, **key}
    return home() / "machine" / f"{name}-{digest_json(full_key)[:16]}.json", full_key


def take_measurements(request: MeasurementRequest) -> Iterator[Any]:
    """Take the measurements of a request one after another; yields plain values."""
    with collected_later():  # compiling leaves little garbage
        with light_start():
            # Not at the top: who asks for measurements does not start TensorFlow.
            from v8.model.training import probe  # noqa: PLC0415
        has_gpu()  # looking for GPUs counts as part of the start of the process
        report_ready()
        for measurement in request.measurements:
            options = {name: value for name, value in measurement.items() if name != "measure"}
            kind = measurement["measure"]
            if kind == "backend":
                yield probe.describe_backend()
            elif kind == "matmul":
                yield probe.matmul_speed(**options)
            elif kind == "formats":
                yield probe.format_speeds(profile=request.profile, **options)
            else:  # a training step, by layers: "ours" or "stock"
                yield probe.step_speed(kind, profile=request.profile, **options)


def ceiling_pct(windows_per_s: float, flop_per_window: float, gflop_per_s: float) -> float:
    """Return how many per cent of a matmul rate of the same cores or device a training speed reaches.

    Args:
        windows_per_s: Training speed.
        flop_per_window: Floating-point operations of training on one window.
        gflop_per_s: The matmul rate, single precision; 16-bit arithmetic may exceed 100 % of it.
    """
    return 100 * windows_per_s * flop_per_window / (1e9 * gflop_per_s)
