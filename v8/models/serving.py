"""The model users load: raw feature window in, price units out, nothing but stock Keras inside.

Scaling and its inverse are written as `keras.ops` between the input and the network and between the
network and the outputs. The fitted constants are weights, the one row of a table that every window looks
up, so that models of one structure differ in weights alone: `load_scaling` makes one model that of the
next series, without another graph to build and trace. Plain Keras loads the file in safe mode.

Under `calibration: shrink` a linear layer between network and outputs holds how much of the network's
forecast is kept; it starts as the identity, and `fold_shrinkage` sets it. Under `blend` others add
the share of a regression on past ranges (`v8.data.range_regression`); they start as nothing.

Outputs are coherent by construction: low <= open, close <= high; bb_lower <= bb_upper;
volatility > 0.

Shape legend: B batch, T lookback, F features, G features of a group, H horizon, C columns of a task,
K constants, P the 20 band bars, R terms of the regression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.columns import BAND_PERIOD_BARS, CLOSE, RECENT_RANGE, REGRESSED_RANGES, deviation_columns
from v8.data.range_regression import (
    MAX_LOG_RANGE,
    RangeRegression,
    variance_weights,
    wave_features,
)
from v8.data.scaling import Scaling, ScalingStructure, TargetForm, Transform, restore
from v8.data.shrinkage import Shrinkage
from v8.features.ranges import FLOOR_SHARE
from v8.models.forecasting import forecast_windows
from v8.profile import Profile
from v8.tasks import TASKS
from v8.tasks.task import roll_forward

SHRINKING_PREFIX = "shrink_"
REGRESSION_PREFIX = "regression_"
RANGE_PATH = "range_path"
"""Name of the layer that forecasts the log range of each coming bar."""
CONSTANTS = "constants"
"""Name of the layer that holds the constants of the scaling."""

LEAST_VOLATILITY_SHARE = 1e-3
"""No volatility below this share of the scaling's floor is forecast."""


class ServingGraph:
    """A published model that many series share: to build and trace one takes over a second.

    Args:
        profile: What it was built for.
        scaling: Any of its structure.
        network: An untrained float32 network of the profile; it becomes part of the model.
    """

    def __init__(self, profile: Profile, scaling: Scaling, network: keras.Model) -> None:
        self.network = network
        self.model = build_serving(profile, scaling, network)
        self.holder: ServingModel | None = None
        """The series it holds at present; all earlier ones refuse to be used."""


class ServingModel:
    """The published model of one series, uncalibrated at first.

    It takes the shared graph over. A model that lost it to another series refuses, so that none can
    speak in another's name.

    Args:
        graph: What it puts its numbers into.
        scaling: Constants of the series.
        weights: Trainable arrays in the network's order.
    """

    def __init__(self, graph: ServingGraph, scaling: Scaling, weights: Sequence[NDArray[np.float32]]) -> None:
        self._graph, self._scaling = graph, scaling
        for variable, weight in zip(graph.network.trainable_variables, weights, strict=True):
            variable.assign(weight)
        load_scaling(graph.model, scaling)
        graph.holder = self

    def forecast(self, windows_NTF: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Forecast raw windows, per task, shape (N, H, C), in the task's unit."""
        return forecast_windows(self._model, windows_NTF)

    def fold(self, shrinkage: Shrinkage, regression: RangeRegression | None = None) -> None:
        """Calibrate it; see `fold_shrinkage`."""
        fold_shrinkage(self._model, self._scaling, shrinkage, regression)

    def save(self, file: Path) -> None:
        """Write the Keras file."""
        self._model.save(file)

    @property
    def _model(self) -> keras.Model:
        if self._graph.holder is not self:
            raise RuntimeError("serving model: its graph holds another series now; save it before the next")
        return self._graph.model


def build_serving(profile: Profile, scaling: Scaling, network: keras.Model) -> keras.Model:
    """Wrap a trained float32 network into the published model.

    Args:
        profile: The network's profile.
        scaling: Constants fitted with it; `load_scaling` puts those of another series in their place.
        network: Scaled window (B, T, F) to dict of scaled targets (B, H, C).

    Returns:
        Model from `window` (B, T, F), raw features in the profile's order, float32, to a dict, task
        to (B, H, C), float32, quote currency (volatility unitless).
    """
    window_BTF = keras.Input((profile.lookback_bars, profile.num_features), name="window")
    close_BT1 = ops.take(window_BTF, [profile.features.index(CLOSE)], axis=-1)
    last_B11 = ops.take(close_BT1, [profile.lookback_bars - 1], axis=1)
    structure, constants = scaling.structure, _looked_up(scaling, last_B11)
    scaled = network(_scaled(window_BTF, close_BT1, last_B11, structure.transforms, constants))
    if profile.calibration != "none":
        scaled = {task: _shrinking(profile, task)(scaled[task]) for task in profile.tasks}
    if profile.calibration == "blend":
        for task, terms_BHR in _range_terms(window_BTF, profile).items():
            scaled[task] = scaled[task] + _regression(profile, task)(terms_BHR)
    reference = _references(profile, close_BT1, constants)
    range_B11 = _range_unit(window_BTF, profile, structure, constants)
    outputs = {}
    for name, form in structure.forms:
        kind = TASKS[name]
        restored_BHC = restore(
            ops,
            form,
            scaled[name] * constants.get(f"{name} scale"),
            reference=reference[name],
            unit=kind.size(last_B11, range_B11),
            center=constants.get(f"{name} center") if form is TargetForm.LEVEL else None,
        )
        outputs[name] = kind.coherent(ops, restored_BHC, last_B11, constants.get("least volatility"))
    model = keras.Model(window_BTF, outputs, name=f"{profile.name}_forecaster")
    load_scaling(model, scaling)
    return model


def load_scaling(model: keras.Model, scaling: Scaling) -> None:
    """Make a published model that of another series, but for its network's weights; nothing is shrunk.

    Args:
        model: Made by `build_serving` from a scaling of the same structure.
        scaling: Constants of the other series.
    """
    row_K = np.concatenate(list(_numbers(scaling).values()))
    model.get_layer(CONSTANTS).set_weights([row_K[None]])
    for layer in model.layers:
        if layer.name.startswith(SHRINKING_PREFIX):
            layer.set_weights([np.ones(layer.kernel.shape), np.zeros(layer.bias.shape)])
        if layer.name.startswith(REGRESSION_PREFIX) or layer.name == RANGE_PATH:
            layer.set_weights([np.zeros(weight.shape) for weight in layer.weights])


def fold_shrinkage(
    model: keras.Model,
    scaling: Scaling,
    shrinkage: Shrinkage,
    regression: RangeRegression | None = None,
) -> None:
    """Make a published model shrink its network's forecasts, or blend them with the regression's.

    factor x scaled + (1 - factor) x anchor, which is anchor + factor x (scaled - anchor).

    Args:
        model: Made by `build_serving` for a profile with a calibration.
        scaling: Holds the constant start of each task.
        shrinkage: Factors per task and step.
        regression: What forecasts are blended with; None where the anchor is the constant.
    """
    if regression:
        model.get_layer(RANGE_PATH).set_weights([regression.path_LH[1:], regression.path_LH[0]])
    for one in shrinkage.tasks:
        factor_H = np.array(one.factors)
        rest_H1 = (1.0 - factor_H)[:, None]
        anchor_HC = np.array(scaling.task(one.task).start)
        if regression:
            anchor_HC = np.zeros_like(anchor_HC)
            kernel_HRC = rest_H1[:, :, None] * regression.tasks[one.task]
            model.get_layer(REGRESSION_PREFIX + one.task).set_weights([kernel_HRC])
        model.get_layer(SHRINKING_PREFIX + one.task).set_weights([factor_H, rest_H1 * anchor_HC])


def _shrinking(profile: Profile, task: str) -> keras.layers.Layer:
    return keras.layers.EinsumDense(
        "bhc,h->bhc",
        output_shape=(profile.horizon_bars, len(TASKS[task].columns)),
        bias_axes="hc",
        kernel_initializer="ones",
        trainable=False,
        dtype="float32",
        name=SHRINKING_PREFIX + task,
    )


def _regression(profile: Profile, task: str) -> keras.layers.Layer:
    return keras.layers.EinsumDense(
        "bhr,hrc->bhc",
        output_shape=(profile.horizon_bars, len(TASKS[task].columns)),
        kernel_initializer="zeros",
        trainable=False,
        dtype="float32",
        name=REGRESSION_PREFIX + task,
    )


def _range_terms(window_BTF: Any, profile: Profile) -> dict[str, Any]:
    """The terms of `v8.data.range_regression.regression_terms` from the newest row, in stock operations."""
    newest_B1F = ops.take(window_BTF, [profile.lookback_bars - 1], axis=1)

    def columns(names: Sequence[str]) -> Any:
        return ops.take(newest_B1F, [profile.features.index(name) for name in names], axis=-1)

    logs_B1L = ops.log(ops.maximum(columns(REGRESSED_RANGES), FLOOR_SHARE))
    waves = wave_features(profile)
    terms_B1L = ops.concatenate([logs_B1L, columns(waves)], axis=-1) if waves else logs_B1L
    path = keras.layers.Dense(
        profile.horizon_bars, kernel_initializer="zeros", trainable=False, dtype="float32", name=RANGE_PATH
    )
    squares_B1H = ops.square(ops.exp(ops.clip(path(terms_B1L), -MAX_LOG_RANGE, MAX_LOG_RANGE)))
    squares_BH1 = ops.transpose(squares_B1H, (0, 2, 1))
    rolled_BH1 = ops.transpose(columns(deviation_columns(profile.horizon_bars)), (0, 2, 1))
    weights_HH = variance_weights(profile.horizon_bars).astype(np.float32)
    added_BH1 = ops.sum(squares_B1H * weights_HH, axis=-1, keepdims=True)
    walk = [ops.sqrt(ops.cumsum(squares_BH1, axis=1)), ops.sqrt(squares_BH1)]
    widened = [ops.sqrt(ops.square(rolled_BH1) + added_BH1), rolled_BH1]
    return {
        task: ops.concatenate(widened if TASKS[task].has_window else walk, axis=-1) for task in profile.tasks
    }


@dataclass(frozen=True)
class _Constants:
    """The constants of a scaling inside the graph, read by name.

    Args:
        row_B1K: All of them, looked up by every window.
        places: Where each kind lies in the row.
    """

    row_B1K: Any
    places: dict[str, range]

    def get(self, name: str, numbers: Sequence[int] | None = None) -> Any:
        """Return all constants of a kind, or those of some columns, shape (B, 1, how many)."""
        places = list(self.places[name])
        wanted = places if numbers is None else [places[number] for number in numbers]
        return ops.take(self.row_B1K, wanted, axis=-1)


def _numbers(scaling: Scaling) -> dict[str, NDArray[np.float32]]:
    """List the constants that the graph reads, in the order of its row."""
    numbers: dict[str, Sequence[float]] = {
        constant: [getattr(column, constant) for column in scaling.columns]
        for constant in ("center", "scale", "floor")
    }
    for task in scaling.tasks:
        numbers |= {f"{task.task} scale": task.scale, f"{task.task} center": task.center}
    floor = scaling.volatility_floor
    numbers |= {"volatility floor": [floor], "least volatility": [LEAST_VOLATILITY_SHARE * floor]}
    numbers |= {"range floor": [scaling.range_floor]}
    return {name: np.array(values, np.float32) for name, values in numbers.items()}


def _looked_up(scaling: Scaling, last_B11: Any) -> _Constants:
    """Let every window look up row 0, whatever prices it holds; `load_scaling` writes the row."""
    places, end = {}, 0
    for name, values in _numbers(scaling).items():
        places[name] = range(end, end + len(values))
        end += len(values)
    table = keras.layers.Embedding(
        1, end, embeddings_initializer="zeros", trainable=False, dtype="float32", name=CONSTANTS
    )
    return _Constants(table(ops.zeros_like(ops.squeeze(last_B11, axis=-1), dtype="int32")), places)


def _scaled(
    window_BTF: Any,
    close_BT1: Any,
    last_B11: Any,
    transforms: Sequence[Transform],
    constants: _Constants,
) -> Any:
    """Scale the raw window column group by column group, then restore the column order."""
    pieces, order = [], []
    for transform in Transform:
        numbers = [number for number, one in enumerate(transforms) if one is transform]
        if not numbers:
            continue
        x_BTG = ops.take(window_BTF, numbers, axis=-1)
        if transform is Transform.RELATIVE:
            x_BTG = x_BTG / close_BT1
        elif transform is Transform.LOGGED:
            x_BTG = ops.log(ops.maximum(x_BTG, constants.get("floor", numbers)))
        elif transform is Transform.ANCHORED:
            x_BTG = ops.log(x_BTG / last_B11)
        if transform is not Transform.ANCHORED:
            x_BTG = x_BTG - constants.get("center", numbers)
        pieces.append(x_BTG / constants.get("scale", numbers))
        order.extend(numbers)
    joined = ops.concatenate(pieces, axis=-1) if len(pieces) > 1 else pieces[0]
    return ops.take(joined, [int(place) for place in np.argsort(order)], axis=-1)


def _references(profile: Profile, close_BT1: Any, constants: _Constants) -> dict[str, Any]:
    """The roll-forward forecast of each task, floored, from the closes of the window."""
    tasks = [TASKS[name] for name in profile.tasks]
    num_known = min(BAND_PERIOD_BARS, profile.lookback_bars)
    known = [*range(profile.lookback_bars - num_known, profile.lookback_bars)]
    closes_BP = ops.squeeze(ops.take(close_BT1, known, axis=1), axis=-1)
    rolled = roll_forward(ops, tasks, closes_BP, profile.horizon_bars)
    floor = constants.get("volatility floor")
    return {task.name: task.floored(ops, rolled[task.name], rolled[task.name], floor) for task in tasks}


def _range_unit(window_BTF: Any, profile: Profile, structure: ScalingStructure, constants: _Constants) -> Any:
    """The recent range at the last known bar, floored; 1 where targets are not measured by it."""
    if RECENT_RANGE not in profile.features or not structure.has_range_floor:
        return 1.0
    range_BT1 = ops.take(window_BTF, [profile.features.index(RECENT_RANGE)], axis=-1)
    range_B11 = ops.take(range_BT1, [profile.lookback_bars - 1], axis=1)
    return ops.maximum(range_B11, constants.get("range floor"))
