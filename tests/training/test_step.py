"""One step equals Keras' Adam; 16-bit overflow skips a step and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest

from v8.data.dataset import SeriesData
from v8.data.windows import Batch, num_batches, training_batches
from v8.models.networks import build_network
from v8.profile import Profile
from v8.training.step import compiled_step, initial_state


def batches_of(data: SeriesData, num: int) -> list[Batch]:
    last_epoch = -(-num // num_batches(data.num_windows("train"), data.profile.training.batch_size))
    return list(training_batches(data, seed=1, first_epoch=1, last_epoch=last_epoch))[:num]


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("family", ["bilstm_seq2seq", "lstm_dense"])
def test_ten_steps_equal_stock_keras(
    family: str,
    clip_norm: float | None,
    make_profile: Callable[..., Profile],
    make_data: Callable[..., SeriesData],
) -> None:
    data = make_data(make_profile(family, training={"clip_norm": clip_norm}))
    rate = data.profile.training.learning_rate
    stock = build_network(data.profile, seed=9)
    state = initial_state(stock, "float32")
    stock.compile(
        keras.optimizers.Adam(rate, global_clipnorm=clip_norm),
        loss=dict.fromkeys(data.profile.tasks, "mean_absolute_error"),
        loss_weights={task: settings.weight for task, settings in data.profile.tasks.items()},
    )
    step = compiled_step(build_network(data.profile, seed=0), data.profile, "float32")
    for batch in batches_of(data, 10):
        stock.train_on_batch(batch.x_BTF, batch.y_BHC, sample_weight=None)
        state = step(state, np.float32(rate), batch.x_BTF, batch.y_BHC, batch.weight_B)
    for ours, theirs in zip(state["weights"], stock.trainable_variables, strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), atol=2e-5)


def test_filling_changes_nothing(
    make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    data = make_data(make_profile())
    network = build_network(data.profile, seed=1)
    step = compiled_step(network, data.profile, "float32")
    batch = batches_of(data, 1)[0]
    half = np.float32([1] * 8 + [0] * 8)
    x = np.asarray(batch.x_BTF).copy()
    results = []
    for filling in (0.0, 3.0):
        x[8:] = filling
        state = step(initial_state(network, "float32"), np.float32(0.01), x, batch.y_BHC, half)
        results.append(state["weights"])
        assert float(state["window_sum"]) == 8
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


def test_float16_overflow_halves_the_scale_and_skips_the_step(
    make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    # The gradient of an absolute error is never large; that of a squared one grows with it.
    data = make_data(make_profile(tasks={"ohlc": {"weight": 1.0, "loss": "mse"}}))
    network = build_network(data.profile, seed=1, precision="mixed_float16")
    step = compiled_step(network, data.profile, "mixed_float16")
    batch = batches_of(data, 1)[0]
    first = initial_state(network, "mixed_float16")
    good = step(first, np.float32(0.01), batch.x_BTF, batch.y_BHC, batch.weight_B)
    assert (float(good["loss_scale"]), float(good["num_steps"])) == (2.0**15, 1.0)
    assert any(not np.array_equal(a, b) for a, b in zip(first["weights"], good["weights"], strict=True))
    truth = {task: np.full_like(values, np.inf) for task, values in batch.y_BHC.items()}
    bad = step(good, np.float32(0.01), batch.x_BTF, truth, batch.weight_B)
    assert (float(bad["loss_scale"]), float(bad["num_steps"])) == (2.0**14, 1.0)
    for before, after in zip(good["weights"], bad["weights"], strict=True):
        np.testing.assert_array_equal(np.asarray(before), np.asarray(after))
