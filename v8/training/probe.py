"""What this machine computes, where and how fast: a matmul, a stock Keras step, our step.

Threads belong to a process and are fixed once the backend has started, so whoever compares thread
settings measures in one process each (`v8.machine.processes`) and sets its environment before. Speeds are
medians over short stretches of work, which other programs disturb less than a mean.

Shape legend: B batch, M model, T lookback, F features, H horizon, C columns of a task.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.features.indicators import warmup_bars
from v8.hardware import backend, backend_name, cuda_versions, device_of, gpu_models, has_gpu
from v8.networks.cost import training_flop_per_window
from v8.networks.networks import build_network
from v8.networks.stacked_layers import StackedLSTM
from v8.profile import Profile, TrainingSettings
from v8.training.step import FleetState, initial_state
from v8.training.trainer import Trainer
from v8.windows.batches import Indices, Tables, padded_rows
from v8.windows.dataset import table_columns

CPU_MATMUL_SIZE = 1_024
GPU_MATMUL_SIZE = 8_192
"""Rows and columns of square matrices large enough to show a device's best, small enough to be quick."""
NUM_STRETCHES = 8  # a measurement is cut into about so many stretches, whose median counts
NUM_WARMING_STEPS = 2
"""Steps before the clock: the first compiles, the second meets arrays that the device has made."""
NUM_ROUNDS = 3  # turns in which number formats are compared
WORTHWHILE_SHARE = 0.95
"""A fleet this close to the best speed is large enough: smaller ones end and repack sooner."""
DRAWN_ROWS = 8_192  # of a longer series the rows are drawn once and repeated
FLEET_PROBE_S = 0.1  # time to measure one fleet size; a GPU does thousands of small products in it


Line: TypeAlias = dict[str, Any]
"""One measurement as JSON values."""
Work: TypeAlias = Callable[[int], Any]
"""Does a number of repetitions, waits for the last of them and returns a tensor that it left."""


def _chain(step: Callable[[Any], Any], state: Any, left: Callable[[Any], Any] = lambda state: state) -> Work:
    """Repeat a step that takes its own result, so that no repetition runs beside another."""

    def work(num_repetitions: int) -> Any:
        nonlocal state
        for _ in range(num_repetitions):
            state = step(state)
        tensor = left(state)
        ops.convert_to_numpy(tensor[(0,) * len(tensor.shape)])
        return tensor

    return work


def describe_backend() -> Line:
    """Tell `backend`, `versions`, models of `gpus`, and the `cuda` and `cudnn` it was built for or brings."""
    name, (cuda, cudnn) = backend_name(), cuda_versions()
    versions = {"keras": keras.__version__, name: backend().__version__}
    return {"backend": name, "versions": versions, "cuda": cuda, "cudnn": cudnn, "gpus": gpu_models()}


def matmul_speed(seconds: float, *, size: int | None = None) -> Line:
    """Measure single-precision products of square matrices for about so long, with this process' threads.

    They are as the backend does them by default: an NVIDIA GPU may round the factors to TF32 on the way.
    Returns `gflop_per_s`, `size`, `milliseconds` and `device`, where a result lay.
    """
    size = size or (GPU_MATMUL_SIZE if has_gpu() else CPU_MATMUL_SIZE)
    draws = np.random.default_rng(0)
    # A reflection is orthogonal: it neither grows nor shrinks what it is applied to, however often.
    axis = draws.standard_normal((size, 1), np.float32)
    axis /= np.linalg.norm(axis)
    reflection = ops.convert_to_tensor(np.eye(size, dtype=np.float32) - 2 * axis * axis.T)
    product = ops.convert_to_tensor(draws.standard_normal((size, size), np.float32))
    work = _chain(lambda product: ops.matmul(product, reflection), product)
    rate = median_rate(work, seconds)
    done = {"gflop_per_s": rate * 2 * size**3 / 1e9, "size": size, "milliseconds": 1e3 / rate}
    return done | {"device": device_of(work(0))}


def step_speed(
    path: str,
    profile: Profile,
    precision: str,
    seconds: float,
    *,
    num_models: int = 1,
    is_short: bool = False,
) -> Line:
    """Measure training steps on one batch, which stays on the device, for about so long, after compiling.

    The path is "stock" for `train_on_batch` of the profile's network in stock Keras, which trains one, or
    "ours" for the trainer's compiled step of a fleet.

    Returns:
        The path, number format and number of models, whether it was the network of `shortened`;
        `windows_per_s` of all models together, useful `gflop_per_s` by `training_flop_per_window`,
        `compile_s` until the first step was through, the `device` of the trained state, and `how`: which
        layers did it, and how they were compiled.
    """
    profile = shortened(profile) if is_short else profile
    work, how = {"stock": _stock_steps, "ours": _our_steps}[path](profile, precision, num_models)
    started = time.perf_counter()
    device = device_of(work(NUM_WARMING_STEPS))  # now: a later step may take over the tensor's memory
    compile_s = time.perf_counter() - started
    windows_per_s = median_rate(work, seconds) * num_models * profile.training.windows_per_step
    gflop_per_s = windows_per_s * training_flop_per_window(profile) / 1e9
    asked = {"path": path, "precision": precision, "num_models": num_models, "is_short": is_short}
    speeds = {"windows_per_s": windows_per_s, "gflop_per_s": gflop_per_s, "compile_s": compile_s}
    return {**asked, **speeds, "device": device, "how": how}


def format_speeds(
    profile: Profile,
    formats: Sequence[str],
    seconds: float,
    *,
    num_models: int,
    is_short: bool,
    is_of_processor: bool = False,
) -> dict[str, float]:
    """Compare the number formats of our training step, in turns of about so many seconds each.

    `is_of_processor` counts seconds of the processor, which other programs hardly lengthen. Returns windows/s
    by format: the best of some rounds, because other programs only slow.
    """
    clock = time.process_time if is_of_processor else time.perf_counter
    profile = shortened(profile) if is_short else profile
    works = {name: _our_steps(profile, name, num_models)[0] for name in formats}
    for work in works.values():
        work(NUM_WARMING_STEPS)
    rounds = [
        {name: median_rate(work, seconds, clock=clock) for name, work in works.items()}
        for _ in range(NUM_ROUNDS)
    ]
    windows = num_models * profile.training.windows_per_step
    return {name: windows * max(each[name] for each in rounds) for name in works}


def _stock_steps(profile: Profile, precision: str, num_models: int) -> tuple[Work, str]:
    network = stock_network(profile, precision)
    x_BMTF, y_BMHC = random_batch(profile, num_models)
    x_BTF = x_BMTF[:, 0]
    y_BHC = {task: y_BMHC[task][:, 0] for task in profile.tasks}
    weights = network.trainable_variables[0]
    work = _chain(lambda _: network.train_on_batch(x_BTF, y_BHC), None, lambda _: weights.value)
    return work, f"stock keras.layers, jit_compile={network.jit_compile}"


def _our_steps(profile: Profile, precision: str, num_models: int) -> tuple[Work, str]:
    program = Trainer(profile, precision=precision).program(num_models)
    rates = np.full(num_models, profile.training.learning_rate, np.float32)
    everyone = np.ones(num_models, bool)
    tables, indices_BM = random_tables(profile, num_models)
    tables = keras.tree.map_structure(ops.convert_to_tensor, tables)
    state = initial_state(program.fleet, precision)

    def step(state: FleetState) -> FleetState:
        return program.step(state, rates, everyone, tables, indices_BM)

    work = _chain(step, state, lambda state: state.window_sum)
    kinds = Counter(type(layer).__name__ for layer in program.fleet.layers if isinstance(layer, StackedLSTM))
    shown = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    return work, f"our recurrence ({shown}), one XLA program"


def measured_fleet_size(
    profile: Profile, num_series: int, *, speed_of: Callable[[int], float] | None = None
) -> int:
    """Choose how many series share one program: the smallest size tried within 5 % of the best.

    A step of the recurrent loop multiplies, for every model, (batch, units) by (units, 4 units). How many
    models' products a device does per second tells where larger fleets stop to gain; None measures it.
    """

    def products_per_s(size: int) -> float:
        units = profile.network.first_units
        draws = np.random.default_rng(0)
        shapes = ((size, profile.training.batch_size, units), (size, units, 4 * units))
        state, kernel = (ops.convert_to_tensor(draws.standard_normal(shape, np.float32)) for shape in shapes)
        work = _chain(lambda state: ops.tanh(ops.matmul(state, kernel)[:, :, :units]), state)
        work(1)
        return size * median_rate(work, FLEET_PROBE_S)

    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64, 128) if size < num_series] + [num_series]
    speeds = {size: (speed_of or products_per_s)(size) for size in sizes}
    return next(size for size in sizes if speeds[size] >= WORTHWHILE_SHARE * max(speeds.values()))


def stock_network(profile: Profile, precision: str) -> keras.Model:
    """Build and compile the profile's network as a user of plain Keras would."""
    network = build_network(profile, seed=0, precision=precision)
    network.compile(
        stock_optimizer(profile.training),
        loss={task: each.loss for task, each in profile.tasks.items()},
        loss_weights={task: each.weight for task, each in profile.tasks.items()},
    )
    return network


def stock_optimizer(settings: TrainingSettings) -> keras.optimizers.Optimizer:
    """Return the optimiser of Keras that a profile's settings mean, without its schedule."""
    bound = "clipvalue" if settings.gradient_clip == "value" else "global_clipnorm"
    clip = {bound: settings.clip_norm}
    if settings.optimizer == "adamw":
        return keras.optimizers.AdamW(settings.learning_rate, settings.weight_decay, **clip)
    return keras.optimizers.Adam(settings.learning_rate, **clip)


def shortened(profile: Profile) -> Profile:
    """Return the profile with one LSTM and one dense layer only, as wide as the first: quick to compile.

    A network that does less work than that stays as it is.
    """
    width = (profile.network.first_units,)
    sizes = {"encoder_units": width, "dense_units": width}
    network = {"family": "lstm_dense", **sizes, "dropout": getattr(profile.network, "dropout", 0.0)}
    short = Profile.model_validate({**profile.model_dump(), "network": network})
    return min(short, profile, key=training_flop_per_window)


def random_batch(
    profile: Profile, num_models: int
) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
    """Draw one batch of windows (B, M, T, F) and targets, task to (B, M, H, C), standard normal."""
    draws = np.random.default_rng(0)
    first = (profile.training.windows_per_step, num_models)
    x_BMTF = draws.standard_normal((*first, profile.lookback_bars, len(profile.features)), np.float32)
    y_BMHC = {
        task.name: draws.standard_normal((*first, profile.horizon_bars, len(task.columns)), np.float32)
        for task in profile.shape.tasks
    }
    return x_BMTF, y_BMHC


def random_tables(profile: Profile, num_models: int) -> tuple[Tables, Indices]:
    """Draw tables of as many rows as a series of the profile has, standard normal, and indices of a batch.

    NumPy arrays, windows of weight 1. The program that a step on them compiles is that of a training.
    """
    draws = np.random.default_rng(0)
    num_rows = padded_rows(profile.newest_bars - warmup_bars(table_columns(profile)))
    num_drawn = min(num_rows, DRAWN_ROWS)

    def table(*shape: int) -> NDArray[np.float32]:
        drawn = draws.standard_normal((num_models, num_drawn, *shape), np.float32)
        return np.tile(drawn, (1, -(-num_rows // num_drawn), *(1 for _ in shape)))[:, :num_rows]

    tables = Tables(
        inputs_MNF=table(len(profile.features)),
        targets_MNHC={
            task.name: table(profile.horizon_bars, len(task.columns)) for task in profile.shape.tasks
        },
        weights_MN=np.ones((num_models, num_rows), np.float32),
        steps_T=np.arange(1 - profile.lookback_bars, 1, dtype=np.int32),
        close_F=np.zeros(len(profile.features), np.int32),
        is_anchored_F=np.zeros(len(profile.features), np.float32),
    )
    shape = (profile.training.windows_per_step, num_models)
    return tables, draws.integers(profile.lookback_bars - 1, num_rows, shape, np.int32)


def median_rate(work: Work, seconds: float, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return repetitions per second: the median over stretches of about `seconds` in all."""
    num_repetitions = 1
    rates = list[float]()
    end = clock() + seconds
    while not rates or clock() < end:
        started = clock()
        work(num_repetitions)
        taken = clock() - started
        if taken * NUM_STRETCHES < seconds:
            num_repetitions *= 2
        else:
            rates.append(num_repetitions / taken)
    return statistics.median(rates)
