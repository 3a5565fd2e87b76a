"""Speed of this machine: of matrix products, of training steps of plain Keras, and of ours.

The number of threads is fixed once the backend has started, so thread settings are compared in processes of
their own (`v8.base.child`), whose environment is set before. Speeds are medians over short
stretches of work, because other programs disturb a median less than a mean.

Shape legend: B batch, M model, T lookback, F features, H horizon, C columns of a task.
"""

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.base.hardware import backend, backend_name, cuda_versions, device_of, gpu_models, has_gpu
from v8.data.windows import Indices, Tables, padded_rows, table_columns
from v8.model.networks.networks import build_network
from v8.model.networks.stacked_layers import StackedLSTM
from v8.model.training.state import FleetState, initial_state
from v8.model.training.trainer import Trainer
from v8.profile.indicators import warmup_bars
from v8.profile.profile import Profile
from v8.profile.settings import TrainingSettings

CPU_MATMUL_SIZE = 1_024
GPU_MATMUL_SIZE = 8_192
"""Rows of square matrices: large enough to reach a device's highest speed, small enough to be quick."""
NUM_STRETCHES = 8  # a measurement is the median of about so many stretches
NUM_WARMING_STEPS = 2
"""Steps before the measurement: the first compiles, the second has inputs that are on the device."""
NUM_ROUNDS = 3  # rounds in which number formats are compared
WORTHWHILE_SHARE = 0.95
"""A fleet with this share of the best speed is large enough: smaller fleets end and repack sooner."""
DRAWN_ROWS = 8_192  # rows drawn for a longer series; they are repeated
FLEET_PROBE_S = 0.1  # time to measure one fleet size; a GPU computes thousands of small products in it


Line: TypeAlias = dict[str, Any]
"""One measurement as JSON values."""
Work: TypeAlias = Callable[[int], Any]
"""Does a number of repetitions, waits for the last one and returns one of its tensors."""


@dataclass(frozen=True, eq=False)
class CompiledSteps:
    """Training steps that can be repeated; see the results of `step_speed`."""

    work: Work
    how: str
    device: str
    seconds: float  # until the first steps were finished


_newest_steps: Final[dict[tuple[str, str, str, int], CompiledSteps]] = {}
"""The steps that were compiled last in this process, by what they depend on; one entry at most."""


def _repeated(
    step: Callable[[Any], Any], state: Any, tensor_of: Callable[[Any], Any] = lambda state: state
) -> Work:
    """Repeat a step whose input is its own last result, so that repetitions cannot run in parallel."""

    def work(num_repetitions: int) -> Any:
        nonlocal state
        for _ in range(num_repetitions):
            state = step(state)
        tensor = tensor_of(state)
        # Copying one number waits until the device has finished.
        ops.convert_to_numpy(tensor[(0,) * len(tensor.shape)])
        return tensor

    return work


def describe_backend() -> Line:
    """Return `backend`, `versions`, models of `gpus`, and the versions of `cuda` and `cudnn` it uses."""
    name = backend_name()
    cuda, cudnn = cuda_versions()
    versions = {"keras": keras.__version__, name: backend().__version__}
    return {"backend": name, "versions": versions, "cuda": cuda, "cudnn": cudnn, "gpus": gpu_models()}


def matmul_speed(seconds: float, *, size: int | None = None) -> Line:
    """Measure single-precision products of square matrices for about `seconds`, with this process' threads.

    The backend's defaults hold: an NVIDIA GPU may round the factors to TF32. Returns `gflop_per_s`, `size`
    (rows of a matrix), `milliseconds` of a product and `device`.
    """
    size = size or (GPU_MATMUL_SIZE if has_gpu() else CPU_MATMUL_SIZE)
    draws = np.random.default_rng(0)
    # A reflection is orthogonal, so that repeated products neither grow nor shrink.
    axis = draws.standard_normal((size, 1), np.float32)
    axis /= np.linalg.norm(axis)
    reflection = ops.convert_to_tensor(np.eye(size, dtype=np.float32) - 2 * axis * axis.T)
    product = ops.convert_to_tensor(draws.standard_normal((size, size), np.float32))
    work = _repeated(lambda product: ops.matmul(product, reflection), product)
    rate = median_rate(work, seconds)
    return {
        "gflop_per_s": rate * 2 * size**3 / 1e9,
        "size": size,
        "milliseconds": 1e3 / rate,
        "device": device_of(work(0)),
    }


def step_speed(
    path: str,
    profile: Profile,
    precision: str,
    seconds: float,
    *,
    num_models: int = 1,
    is_short: bool = False,
) -> Line:
    """Measure training steps on one batch, which stays on the device, after compiling.

    Args:
        path: "stock" for `train_on_batch` of the profile's network in plain Keras, which trains one model, or
            "ours" for the trainer's compiled step of a fleet.
        profile: The profile.
        precision: Number format, see `Trainer`.
        seconds: About how long to measure.
        num_models: Models of the fleet.
        is_short: Whether to measure the network of `shortened`.

    Returns:
        The arguments `path`, `precision`, `num_models` and `is_short`; `windows_per_s` of all models
        together, `gflop_per_s` by `Profile.training_flop_per_window`, `compile_s` until the first steps were
        finished, the `device` of the trained state, and `how`: which layers were used, and how they were
        compiled.
    """
    profile = shortened(profile) if is_short else profile
    compiled = _compiled(path, profile, precision, num_models)
    windows_per_s = median_rate(compiled.work, seconds) * num_models * profile.training.windows_per_step
    gflop_per_s = windows_per_s * profile.training_flop_per_window / 1e9
    return {
        "path": path,
        "precision": precision,
        "num_models": num_models,
        "is_short": is_short,
        "windows_per_s": windows_per_s,
        "gflop_per_s": gflop_per_s,
        "compile_s": compiled.seconds,
        "device": compiled.device,
        "how": compiled.how,
    }


def _compiled(path: str, profile: Profile, precision: str, num_models: int) -> CompiledSteps:
    """Compile training steps; the ones that were compiled last are taken again.

    The short network of a profile whose own is cheap to compute is that own one, see `shortened`.
    """
    key = (path, profile.model_dump_json(), precision, num_models)
    if key not in _newest_steps:
        _newest_steps.clear()  # before compiling: two programs may not fit into the memory of a device
        make_work = {"stock": _keras_steps, "ours": _our_steps}[path]
        work, how = make_work(profile, precision, num_models)
        started = time.perf_counter()
        device = device_of(work(NUM_WARMING_STEPS))  # asked now: a later step may reuse the tensor's memory
        seconds = time.perf_counter() - started
        _newest_steps[key] = CompiledSteps(work=work, how=how, device=device, seconds=seconds)
    return _newest_steps[key]


def format_speeds(
    profile: Profile,
    formats: Sequence[str],
    seconds: float,
    *,
    num_models: int,
    is_short: bool,
    is_of_processor: bool = False,
) -> dict[str, float]:
    """Compare the number formats of our training step, in turns of about `seconds` each.

    With `is_of_processor` the seconds are processor time, which other programs hardly affect. Returns
    windows/s by format: the best of some rounds, because other programs can only make a round slower.
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


def _keras_steps(profile: Profile, precision: str, num_models: int) -> tuple[Work, str]:
    network = keras_network(profile, precision)
    x_BMTF, y_BMHC = random_batch(profile, num_models)
    x_BTF = x_BMTF[:, 0]
    y_BHC = {task: y_BMHC[task][:, 0] for task in profile.tasks}
    weights = network.trainable_variables[0]
    work = _repeated(lambda _: network.train_on_batch(x_BTF, y_BHC), None, lambda _: weights.value)
    return work, f"stock keras.layers, jit_compile={network.jit_compile}"


def _our_steps(profile: Profile, precision: str, num_models: int) -> tuple[Work, str]:
    program = Trainer(profile, precision=precision).program(num_models)
    rates = np.full(num_models, profile.training.learning_rate, np.float32)
    is_active = np.ones(num_models, bool)
    tables, indices_BM = random_tables(profile, num_models)
    tables = keras.tree.map_structure(ops.convert_to_tensor, tables)
    state = initial_state(program.fleet, precision)

    def step(state: FleetState) -> FleetState:
        return program.step(state, rates, is_active, tables, indices_BM)

    work = _repeated(step, state, lambda state: state.weight_sum)
    kinds = Counter(type(layer).__name__ for layer in program.fleet.layers if isinstance(layer, StackedLSTM))
    layers = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    return work, f"our recurrence ({layers}), one XLA program"


def measured_fleet_size(
    profile: Profile, num_series: int, *, speed_of: Callable[[int], float] | None = None
) -> int:
    """Choose how many series share one program: the smallest size within 5 % of the best speed.

    A step of the recurrent loop multiplies, for every model, (batch, units) by (units, 4 units). `speed_of`
    maps a size to such products per second, from which follows where larger fleets are no faster; None
    measures it.
    """

    def products_per_s(size: int) -> float:
        units = profile.network.first_units
        draws = np.random.default_rng(0)
        state_shape = (size, profile.training.batch_size, units)
        kernel_shape = (size, units, 4 * units)
        state = ops.convert_to_tensor(draws.standard_normal(state_shape, np.float32))
        kernel = ops.convert_to_tensor(draws.standard_normal(kernel_shape, np.float32))
        work = _repeated(lambda state: ops.tanh(ops.matmul(state, kernel)[:, :, :units]), state)
        work(1)
        return size * median_rate(work, FLEET_PROBE_S)

    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64, 128) if size < num_series] + [num_series]
    speeds = {size: (speed_of or products_per_s)(size) for size in sizes}
    return next(size for size in sizes if speeds[size] >= WORTHWHILE_SHARE * max(speeds.values()))


def keras_network(profile: Profile, precision: str) -> keras.Model:
    """Build and compile the profile's network as a user of plain Keras does."""
    network = build_network(profile, seed=0, precision=precision)
    network.compile(
        keras_optimizer(profile.training),
        loss={task: settings.loss for task, settings in profile.tasks.items()},
        loss_weights={task: settings.weight for task, settings in profile.tasks.items()},
    )
    return network


def keras_optimizer(settings: TrainingSettings) -> keras.optimizers.Optimizer:
    """Return Keras' optimiser for the settings of a profile, without the schedule."""
    bound = "clipvalue" if settings.gradient_clip == "value" else "global_clipnorm"
    clip = {bound: settings.clip_norm}
    if settings.optimizer == "adamw":
        return keras.optimizers.AdamW(settings.learning_rate, settings.weight_decay, **clip)
    return keras.optimizers.Adam(settings.learning_rate, **clip)


def shortened(profile: Profile) -> Profile:
    """Return the profile with one LSTM and one dense layer, as wide as its first layer: quick to compile.

    A profile whose network needs less computation than that is returned as it is.
    """
    width = (profile.network.first_units,)
    sizes = {"encoder_units": width, "dense_units": width}
    network = {"family": "lstm_dense", **sizes, "dropout": getattr(profile.network, "dropout", 0.0)}
    short = Profile.model_validate({**profile.model_dump(), "network": network})
    return min(short, profile, key=lambda candidate: candidate.training_flop_per_window)


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
    """Draw tables with the rows of a series of the profile, standard normal, and the indices of a batch.

    They are NumPy arrays; all windows have weight 1. A step on them compiles the same program as a training.
    """
    draws = np.random.default_rng(0)
    num_rows = padded_rows(profile.newest_bars - warmup_bars(table_columns(profile)))
    num_drawn = min(num_rows, DRAWN_ROWS)

    def table(*shape: int) -> NDArray[np.float32]:
        drawn = draws.standard_normal((num_models, num_drawn, *shape), np.float32)
        num_copies = math.ceil(num_rows / num_drawn)
        return np.tile(drawn, (1, num_copies, *(1 for _ in shape)))[:, :num_rows]

    num_features = len(profile.features)
    inputs_MNF = table(num_features)
    targets_MNHC = {task.name: table(profile.horizon_bars, len(task.columns)) for task in profile.shape.tasks}
    tables = Tables(
        inputs_MNF=inputs_MNF,
        targets_MNHC=targets_MNHC,
        weights_MN=np.ones((num_models, num_rows), np.float32),
        steps_T=np.arange(1 - profile.lookback_bars, 1, dtype=np.int32),
        close_F=np.zeros(num_features, np.int32),
        is_anchored_F=np.zeros(num_features, np.float32),
    )
    shape = (profile.training.windows_per_step, num_models)
    return tables, draws.integers(profile.lookback_bars - 1, num_rows, shape, np.int32)


def median_rate(work: Work, seconds: float, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return repetitions per second: the median over stretches of together about `seconds`."""
    num_repetitions = 1
    rates = list[float]()
    end = clock() + seconds
    while not rates or clock() < end:
        started = clock()
        work(num_repetitions)
        stretch_s = clock() - started
        if stretch_s * NUM_STRETCHES < seconds:
            num_repetitions *= 2
        else:
            rates.append(num_repetitions / stretch_s)
    return statistics.median(rates)
