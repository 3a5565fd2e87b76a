"""One step of a fleet: Keras' Adam for each model, and no model touches another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fleets import fleet_of
from float32_steps import assert_within_steps
from numpy_batches import training_batches
from tiny_profiles import demo_data, tiny_profile

from v8.data.windows import Batch, FleetWindows, SeriesData, num_batches
from v8.model.networks.networks import build_network
from v8.model.training.probe import keras_optimizer
from v8.model.training.state import FleetState, initial_state, unflattened
from v8.model.training.step import compiled_step
from v8.profile.profile import Profile

pytestmark = pytest.mark.tf

RATES = np.float32([0.01, 0.02, 0.005])
EVERYONE = np.ones(3, bool)


def batches_of(fleet: list[SeriesData], num: int) -> list[Batch]:
    size = fleet[0].profile.training.windows_per_step
    steps = max(num_batches(data.num_windows("train"), size) for data in fleet)
    first = [1] * len(fleet)
    batches = training_batches(
        FleetWindows(fleet), range(len(fleet)), first_epochs=first, num_epochs=-(-num // steps)
    )
    return [next(batches) for _ in range(num)]


@pytest.mark.parametrize(
    ("family", "training"),
    [
        pytest.param("bilstm_seq2seq", {"clip_norm": None}, marks=pytest.mark.nightly),
        pytest.param("bilstm_seq2seq", {"clip_norm": 0.05}, marks=pytest.mark.nightly),
        pytest.param("lstm_dense", {"clip_norm": 0.002, "gradient_clip": "value"}, marks=pytest.mark.nightly),
        pytest.param("lstm_dense", {"clip_norm": 0.05}, marks=pytest.mark.nightly),
        ("dense_newest", {"optimizer": "adamw", "weight_decay": 0.9}),
    ],
)
def test_ten_steps_equal_stock_keras(family: str, training: dict[str, Any]) -> None:
    data = demo_data(tiny_profile(family, training=training))
    rate = data.profile.training.learning_rate
    stock = build_network(data.profile, seed=9)
    fleet = fleet_of([stock])
    state = initial_state(fleet, "float32")
    stock.compile(
        keras_optimizer(data.profile.training),
        loss=dict.fromkeys(data.profile.tasks, "mean_absolute_error"),
        loss_weights={task: settings.weight for task, settings in data.profile.tasks.items()},
        run_eagerly=True,  # to trace and compile it takes longer than ten steps
    )
    step = compiled_step(fleet, data.profile, "float32")
    for batch in batches_of([data], 10):
        stock.train_on_batch(batch.x_BMTF[:, 0], {task: y[:, 0] for task, y in batch.y_BMHC.items()})
        state = step(state, np.float32([rate]), np.array([True]), batch.x_BMTF, batch.y_BMHC, batch.weight_BM)
    trained = {variable.path: np.asarray(variable) for variable in stock.trainable_variables}
    ours = [array[0] for array in unflattened(fleet, np.asarray(state.weights))]
    for array in ours:
        assert any(
            array.shape == other.shape and np.allclose(array, other, atol=2e-5) for other in trained.values()
        )


@pytest.mark.nightly
def test_batches_gathered_in_parts_step_as_one_batch_does() -> None:
    """The last part of the second series is half empty, and a third has no window in any part."""
    whole = tiny_profile(training={"batch_size": 16, "clip_norm": 0.05})
    parts = {"batch_size": 8, "gradient_accumulation": 2, "cpu_batch_size": 4}
    parted = tiny_profile(training={**parts, "clip_norm": 0.05})
    fleet = [demo_data(parted, series=name) for name in ("BTCUSDT-15m", "ETHUSDT-15m", "XRPUSDT-1h")]
    (batch,) = batches_of(fleet, 1)
    weight_BM = np.array(batch.weight_BM)
    weight_BM[14:, 1] = 0
    weight_BM[:, 2] = 0
    assert len(weight_BM) == 16
    found = []
    for profile in (whole, parted):
        state, step = stepping(profile, num_micro_batches=profile.training.num_micro_batches(is_on_gpu=False))
        state = step(state, RATES, EVERYONE, batch.x_BMTF, batch.y_BMHC, weight_BM)
        found.append(step(state, RATES, EVERYONE, batch.x_BMTF, batch.y_BMHC, weight_BM).on_host())
    for one, other in zip(found[0].weights, found[1].weights, strict=True):
        assert_within_steps(one, other, magnitude=1.0, steps=64)
    assert_within_steps(found[0].loss_sum, found[1].loss_sum, steps=16)
    np.testing.assert_array_equal(found[0].weight_sum, found[1].weight_sum)


@pytest.fixture(scope="module")
def three() -> tuple[list[SeriesData], Batch]:
    # The gradient of an absolute error is never large; that of a squared one grows with it.
    profile = tiny_profile(dropout=0.3, tasks={"ohlc": {"weight": 1.0, "loss": "mse"}})
    fleet = [demo_data(profile, series=name) for name in ("BTCUSDT-15m", "ETHUSDT-15m", "XRPUSDT-1h")]
    return fleet, batches_of(fleet, 1)[0]


def stepping(
    profile: Profile, precision: str = "float32", num_micro_batches: int | None = None
) -> tuple[FleetState, Callable[..., FleetState]]:
    fleet = fleet_of([build_network(profile, seed=seed, precision=precision) for seed in (1, 2, 3)])
    return initial_state(fleet, precision), compiled_step(fleet, profile, precision, num_micro_batches)


@pytest.fixture(scope="module")
def program(three: tuple[list[SeriesData], Batch]) -> tuple[FleetState, Callable[..., FleetState]]:
    return stepping(three[0][0].profile)


def arrays(state: FleetState) -> list[Any]:
    return [array for value in state for array in (value if isinstance(value, list) else [value])]


@pytest.mark.nightly
def test_a_model_that_is_not_active_keeps_every_bit_of_its_state(
    three: tuple[list[SeriesData], Batch], program: tuple[FleetState, Callable[..., FleetState]]
) -> None:
    before, step = program
    batch = three[1]
    active = np.array([True, False, True])
    after = step(before, RATES, active, batch.x_BMTF, batch.y_BMHC, batch.weight_BM)
    for old, new in zip(arrays(before), arrays(after), strict=True):
        np.testing.assert_array_equal(np.asarray(old)[1], np.asarray(new)[1])
    assert np.asarray(after.num_steps).tolist() == [1, 0, 1]


def test_filling_changes_nothing(
    three: tuple[list[SeriesData], Batch], program: tuple[FleetState, Callable[..., FleetState]]
) -> None:
    before, step = program
    batch = three[1]
    half = np.array(batch.weight_BM)
    half[8:] = 0
    results = []
    for filling in (0.0, 3.0):
        x = np.array(batch.x_BMTF)
        x[8:] = filling
        results.append(step(before, RATES, EVERYONE, x, batch.y_BMHC, half))
        assert np.asarray(results[-1].weight_sum).tolist() == [8, 8, 8]
    for one, two in zip(results[0].weights, results[1].weights, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


@pytest.mark.nightly
def test_float16_overflow_skips_the_step_and_halves_the_scale_of_that_model_only(
    three: tuple[list[SeriesData], Batch],
) -> None:
    fleet, batch = three
    before, step = stepping(fleet[0].profile, "mixed_float16")
    y = {task: np.array(values) for task, values in batch.y_BMHC.items()}
    y["ohlc"][:, 1] = np.inf
    after = step(before, RATES, EVERYONE, batch.x_BMTF, y, batch.weight_BM)
    assert np.asarray(after.loss_scale).tolist() == [2.0**15, 2.0**14, 2.0**15]
    assert np.asarray(after.num_steps).tolist() == [1, 0, 1]
    for old, new in zip(before.weights, after.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(old)[1], np.asarray(new)[1])
