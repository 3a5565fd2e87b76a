"""Contract of every twin: shapes, dtypes, values and gradients of the stock layer, and a round trip."""

from __future__ import annotations

from functools import cache

import keras
import numpy as np
import pytest
from fleets import fleet_of
from float32_steps import assert_within_steps
from keras import ops

from v8.model.networks.networks import counterparts, in_trips
from v8.model.networks.products import Products
from v8.model.networks.recurrence import LSTM
from v8.model.networks.stacked_layers import uniform_by_model
from v8.model.training.step import _compiled

pytestmark = pytest.mark.tf

L = keras.layers
NUM_MODELS = 3
BATCH = 5
STEPS = 7
CHANNELS = 6
KINDS = {
    "lstm": lambda: L.LSTM(4),
    "lstm sequences": lambda: L.LSTM(4, return_sequences=True),
    "lstm backwards": lambda: L.LSTM(4, return_sequences=True, go_backwards=True),
    "gru": lambda: L.GRU(4),
    "gru sequences": lambda: L.GRU(4, return_sequences=True),
    "gru backwards": lambda: L.GRU(4, return_sequences=True, go_backwards=True),
    "bilstm": lambda: L.Bidirectional(L.LSTM(4)),
    "bilstm sequences": lambda: L.Bidirectional(L.LSTM(4, return_sequences=True)),
    "bigru sequences": lambda: L.Bidirectional(L.GRU(4, return_sequences=True)),
    "dense": lambda: L.Dense(4, "gelu"),
    "dense without bias": lambda: L.Dense(4, use_bias=False),
    "einsum dense": lambda: L.EinsumDense("bhd,dc->bhc", output_shape=(STEPS, 4), bias_axes="hc"),
    "einsum dense to steps": lambda: L.EinsumDense(
        "btd,dhc->bthc", output_shape=(STEPS, 2, 4), bias_axes="hc"
    ),
    "layer normalization": L.LayerNormalization,
    "dropout": lambda: L.Dropout(0.5),
    "reshape": lambda: L.Reshape((STEPS * CHANNELS,)),
    "cropping": lambda: L.Cropping1D((3, 1)),
    "cropping to the newest": lambda: L.Cropping1D((STEPS - 1, 0)),
    "average": L.GlobalAveragePooling1D,
    "time distributed": lambda: L.TimeDistributed(L.Dense(4, "relu")),
    "time distributed normalization": lambda: L.TimeDistributed(L.LayerNormalization(axis=1)),
    "activation": lambda: L.Activation("relu"),
}


def network(kind):
    x = keras.Input((STEPS, CHANNELS), name="window")
    if kind == "repeat vector":
        return keras.Model(x, L.RepeatVector(4)(L.LSTM(3)(x)))
    if kind == "additive attention":
        return keras.Model(x, L.AdditiveAttention()([L.Dense(6)(x), x]))
    if kind == "multi-head attention":
        return keras.Model(x, L.MultiHeadAttention(2, 3)(x, L.Dense(5)(x)))
    if kind in ("lstm states", "gru states backwards"):
        make = L.LSTM if kind == "lstm states" else L.GRU
        layer = make(4, return_sequences=True, return_state=True, go_backwards="backwards" in kind)
        sequence, *states = layer(x)
        return keras.Model(x, L.Concatenate()([L.GlobalAveragePooling1D()(sequence), *states]))
    if kind in ("lstm from states", "gru from states backwards"):
        make, num_states = (L.LSTM, 2) if kind == "lstm from states" else (L.GRU, 1)
        layer = make(6, return_sequences=True, return_state=num_states == 2, go_backwards=num_states == 1)
        y = layer(x, initial_state=[ops.take(x, number, axis=-2) for number in range(num_states)])
        if num_states == 1:
            return keras.Model(x, y)
        return keras.Model(x, L.Concatenate()([L.GlobalAveragePooling1D()(y[0]), *y[1:]]))
    if kind in ("lstm cell", "gru cell"):
        cell, num_states = (L.LSTMCell(6), 2) if kind == "lstm cell" else (L.GRUCell(6), 1)
        y = ops.take(x, 0, axis=-2)
        states = [ops.take(x, number + 1, axis=-2) for number in range(num_states)]
        for _ in range(2):  # the second step shares the weights of the first
            y, states = cell(y, states)
        return keras.Model(x, ops.concatenate([y, *states], axis=-1))
    if kind == "operations":
        newest = ops.squeeze(ops.take(x, [STEPS - 1], axis=-2), axis=-2)
        mean = ops.expand_dims(ops.mean(x, axis=-2), axis=-2)  # Keras lists this axis
        y = ops.where(ops.softmax(x, axis=-1) > 0.2, x, mean + ops.expand_dims(newest, axis=-2))
        return keras.Model(x, ops.concatenate([y, 0.5 * x], axis=-2) + np.ones((2 * STEPS, 1), np.float32))
    if kind == "residual":
        return keras.Model(x, L.LayerNormalization()(L.Add()([x, L.Dense(6)(x)])))
    return keras.Model(x, KINDS[kind]()(x))


ALL = [*KINDS, "repeat vector", "additive attention", "multi-head attention", "residual"]
ALL += ["lstm states", "gru states backwards", "lstm from states", "gru from states backwards"]
ALL += ["lstm cell", "gru cell", "operations"]


def random_networks(kind, num_models=NUM_MODELS):
    rng = np.random.default_rng(0)
    networks = [network(kind) for _ in range(num_models)]
    for one in networks:
        one.set_weights([rng.standard_normal(w.shape).astype("float32") * 0.4 for w in one.get_weights()])
    return networks


def compiled_gradients(model, *, is_fused=True):
    """Compile the gradients of sum(output * upstream) with respect to weights and x; by XLA if fused."""
    constants = [ops.convert_to_numpy(v) for v in model.non_trainable_variables]

    def loss(weights, x, upstream):
        return ops.sum(model.stateless_call(weights, constants, x)[0] * upstream)

    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(jax.grad(loss, argnums=(0, 1)))

    import tensorflow as tf

    @tf.function(jit_compile=is_fused)
    def both(weights, x, upstream):
        with tf.GradientTape() as tape:
            tape.watch((weights, x))
            value = loss(weights, x, upstream)
        return tape.gradient(value, (weights, x), unconnected_gradients="zero")

    return both


@cache
def stock_gradients(kind):
    """Compile the gradients of a kind's stock network once for all weights; without XLA it takes a third."""
    return compiled_gradients(network(kind), is_fused=False)


def gradients(compiled, model, x, upstream):
    """Gradients at a model's weights, as arrays."""
    weights = [ops.convert_to_tensor(ops.convert_to_numpy(v)) for v in model.trainable_variables]
    dw, dx = compiled(weights, *map(ops.convert_to_tensor, (x, upstream)))
    return [np.asarray(one) for one in dw], np.asarray(dx)


@pytest.mark.parametrize("num_models", [1, NUM_MODELS])
@pytest.mark.parametrize("kind", ALL)
def test_a_twin_computes_what_the_stock_layers_compute(kind, num_models):
    networks = random_networks(kind, num_models)
    fleet = fleet_of(networks)
    x = np.random.default_rng(1).standard_normal((BATCH, num_models, STEPS, CHANNELS)).astype("float32")
    stocks = [np.asarray(one(x[:, number])) for number, one in enumerate(networks)]
    forecast = fleet(x)
    assert tuple(fleet.output.shape[2:]) == networks[0].output.shape[1:]
    assert keras.backend.standardize_dtype(forecast.dtype) == "float32"
    assert_within_steps(forecast, np.stack(stocks, 1), steps=32)


# Each kind of recurrent layer compiles two programs; the night tries those that another kind nearly covers.
COVERED_BY_ANOTHER = {"bilstm", "gru backwards", "gru from states backwards", "gru", "lstm backwards", "lstm"}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.nightly if kind in COVERED_BY_ANOTHER else ()) for kind in ALL],
)
def test_a_twin_has_the_gradients_of_the_stock_layers(kind):
    networks = random_networks(kind)
    fleet = fleet_of(networks)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((BATCH, NUM_MODELS, STEPS, CHANNELS)).astype("float32")
    upstream = rng.standard_normal((BATCH, *fleet.output.shape[1:])).astype("float32")
    dw, dx = gradients(compiled_gradients(fleet), fleet, x, upstream)
    for number, one in enumerate(networks):
        stock_dw, stock_dx = gradients(stock_gradients(kind), one, x[:, number], upstream[:, number])
        assert_within_steps(dx[:, number], stock_dx, steps=32)
        # Some have no gradient but rounding; layers without weights have none.
        magnitude = max((np.abs(theirs).max() for theirs in stock_dw), default=1.0)
        for mine, theirs in zip(dw, stock_dw, strict=True):
            assert_within_steps(mine[number], theirs, magnitude=magnitude, steps=32)


RECURRENT = [kind for kind in ALL if "lstm" in kind or "gru" in kind]
LOOPS_TRIED_ALWAYS = {"lstm cell", "gru states backwards", "bilstm sequences"}


@pytest.mark.parametrize(
    ("kind", "steps_per_trip", "num_models"),
    [
        # Two trips and a step before them.
        *(
            pytest.param(
                kind, 3, 1 + len(kind) % 2, marks=() if kind in LOOPS_TRIED_ALWAYS else pytest.mark.nightly
            )
            for kind in RECURRENT
        ),
        ("lstm sequences", 2, 1),
        ("bigru sequences", 2, NUM_MODELS),
        *((kind, STEPS, 2) for kind in ("lstm backwards", "gru sequences")),  # no loop at all
    ],
)
def test_loops_for_a_gpu_have_results_and_gradients_of_the_stock_layers(kind, steps_per_trip, num_models):
    networks = random_networks(kind, num_models)
    fleet = fleet_of(networks, are_directions_merged=True, steps_per_trip=steps_per_trip)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((BATCH, num_models, STEPS, CHANNELS)).astype("float32")
    stocks = [np.asarray(stock(x[:, number])) for number, stock in enumerate(networks)]
    assert_within_steps(fleet(x), np.stack(stocks, 1), steps=32)
    upstream = rng.standard_normal((BATCH, *fleet.output.shape[1:])).astype("float32")
    weight_gradients, x_gradients = gradients(compiled_gradients(fleet), fleet, x, upstream)
    for number, stock in enumerate(networks):
        stock_weight_gradients, stock_x_gradients = gradients(
            stock_gradients(kind), stock, x[:, number], upstream[:, number]
        )
        assert_within_steps(x_gradients[:, number], stock_x_gradients, steps=32)
        magnitude = max(np.abs(stock_gradient).max() for stock_gradient in stock_weight_gradients)
        for gradient, stock_gradient in zip(weight_gradients, stock_weight_gradients, strict=True):
            assert_within_steps(gradient[number], stock_gradient, magnitude=magnitude, steps=32)


def compiled_forecast(fleet, values):
    """Forecast as training does: not compiled, TensorFlow has no products from 16 bits into float32."""
    weights = [np.asarray(weight) for weight in fleet.trainable_variables]
    forecast = _compiled(lambda x, *weights: fleet.stateless_call(list(weights), [], x)[0])
    return forecast(values, *weights)


def test_loops_for_a_gpu_round_the_factors_of_products_alone():
    x = keras.Input((STEPS, CHANNELS))
    lstm = L.LSTM(4, return_sequences=True, dtype="mixed_bfloat16")
    network = keras.Model(x, L.GRU(4, dtype="mixed_bfloat16")(lstm(x)))
    values = np.random.default_rng(4).standard_normal((BATCH, 1, STEPS, CHANNELS)).astype("float32")
    products = Products("bfloat16", frozenset({"forward"}))
    exact = np.asarray(fleet_of([network])(values))
    forecasts = []
    for steps_per_trip in (1, 3):
        fleet = fleet_of([network], steps_per_trip=steps_per_trip, products=products)
        forecast = compiled_forecast(fleet, values)
        assert keras.backend.standardize_dtype(forecast.dtype) == "float32"
        forecasts.append(np.asarray(forecast))
    by_step, by_trip = forecasts
    assert_within_steps(by_trip, by_step, steps=32)
    assert 0 < np.abs(by_trip - exact).max() < 0.02  # 8 bits of mantissa, 7 steps


def test_a_trip_of_one_step_and_other_cells_are_refused():
    with pytest.raises(ValueError, match="at least 2 steps; got 1"):
        in_trips(LSTM, 1)
    with pytest.raises(ValueError, match="needs LSTM or GRU"):
        in_trips(in_trips(LSTM, 2), 2)


@pytest.mark.parametrize("kind", ALL)
def test_each_weight_that_was_stacked_has_its_place_in_the_fleet(kind):
    networks = random_networks(kind)
    fleet = fleet_of(networks)
    places = counterparts(networks[0], fleet)
    for number, one in enumerate(networks):
        for place, theirs in zip(places, one.trainable_variables, strict=True):
            np.testing.assert_array_equal(np.asarray(fleet.trainable_variables[place])[number], theirs)


def test_a_mask_depends_on_nothing_but_seed_draw_and_position():
    alone = np.asarray(uniform_by_model(np.int32([7]), np.int32([3]), (4, 1, 6)))
    fleet = np.asarray(uniform_by_model(np.int32([1, 2, 7]), np.int32([0, 9, 3]), (4, 1, 6)))
    assert fleet.shape == (4, 3, 1, 6)
    np.testing.assert_array_equal(fleet[:, 2], alone[:, 0])
    assert not np.array_equal(fleet[:, 0], fleet[:, 1])


def test_masks_are_uniform_and_uncorrelated():
    share = np.asarray(uniform_by_model(np.arange(64, dtype=np.int32), np.zeros(64, np.int32), (64, 64)))
    # 262,144 draws: the mean has a standard deviation of 0.2887 / 512 = 0.00056; 5 of them are 0.0028.
    assert abs(share.mean() - 0.5) < 0.0028
    counts, _ = np.histogram(share, bins=16, range=(0, 1))
    # 16,384 a bin with deviation sqrt(16,384 * 15 / 16) = 124; 5 of them are 620.
    assert np.abs(counts - 16_384).max() < 620
    flat = share.swapaxes(0, 1).reshape(64, -1)
    # 2,016 pairs over 4,096 positions: a correlation has deviation 1 / 64; 5 of them are 0.078.
    assert np.abs(np.corrcoef(flat) - np.eye(64)).max() < 0.078


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (L.Conv1D(4, 3, name="odd"), r"odd: .*; got Conv1D"),
        (L.LSTM(4, recurrent_dropout=0.1, name="odd"), r"odd: .* recurrent_dropout = 0; got 0\.1"),
        (L.LayerNormalization(axis=1, name="odd"), r"odd: .* LayerNormalization .*; got \[1\]"),
        (lambda x: ops.take(x, [0], axis=1), r"operation without axes, .*; got Take with axis = 1"),
        (lambda x: ops.mean(x, axis=(1, -1)), r"operation without axes, .*; got Mean with axis = "),
    ],
)
def test_what_has_no_twin_is_refused_by_name(make, words):
    x = keras.Input((STEPS, CHANNELS))
    model = keras.Model(x, make(x))
    with pytest.raises(ValueError, match=words):
        fleet_of([model, model])
