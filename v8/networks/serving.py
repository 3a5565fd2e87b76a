"""The model users load: raw feature window in, price units out, nothing but stock Keras inside.

Scaling and its inverse are written as `keras.ops` between the input and the network and between the
network and the outputs. The fitted constants are weights, the one row of a table that every window looks
up, so that models of one structure differ in weights alone: `load_scaling` makes one model that of the
next series, without another graph to build and trace. Plain Keras loads the file in safe mode.

Under `calibration: ensemble` two formulas that read the window themselves come in last
(`v8.networks.serving_parts`).

Outputs are coherent by construction: low <= open, close <= high; bb_lower <= bb_upper;
volatility > 0.

Shape legend: B batch, T lookback, F features, G features of a group, H horizon, C columns of a task,
K constants, P the 20 band bars.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.columns import (
    BAND_PERIOD_BARS,
    CLOSE,
    RECENT_RANGE,
    beside,
    parted,
)
from v8.formulas.ranges import RangeEnsemble
from v8.networks import serving_parts as parts
from v8.networks.published import PublishedModel
from v8.networks.serving_parts import columns_of
from v8.profile import Profile
from v8.tasks import TASKS, roll_forward
from v8.windows.scaling import Scaling, TargetForm, Transform, restore, shape_inputs
from v8.windows.span import Floats

CONSTANTS = "constants"
"""Name of the layer that holds the constants of the scaling."""
LEAST_VOLATILITY_SHARE = 1e-3
"""No volatility below this share of the scaling's floor is forecast."""


class ServingGraph:
    """A published model that many series share: to build and trace one takes over a second.

    The scaling is any of its structure; the network, untrained and float32, becomes part of the model.
    """

    def __init__(self, profile: Profile, scaling: Scaling, network: keras.Model) -> None:
        self.network = network
        self.model = build_serving(profile, scaling, network)
        self.holder: ServingModel | None = None
        """The series it holds at present; all earlier ones refuse to be used."""


class ServingModel(PublishedModel):
    """The published model of one series, uncalibrated at first; weights are in the network's order.

    It takes the shared graph over. A model that lost it to another series refuses, so that none can speak in
    another's name.
    """

    def __init__(self, graph: ServingGraph, scaling: Scaling, weights: Sequence[NDArray[np.float32]]) -> None:
        self._graph, self._scaling = graph, scaling
        for variable, weight in zip(graph.network.trainable_variables, weights, strict=True):
            variable.assign(weight)
        load_scaling(graph.model, scaling)
        graph.holder = self

    def fold_ensemble(self, ensemble: RangeEnsemble, shares: Mapping[str, Floats]) -> None:
        """Make it mix its network's forecasts with those of formulas: shares per task, shape (M, H)."""
        model, floor = self._model, ensemble.floor
        model.get_layer(parts.LIMITS).set_weights([np.array([[floor, np.log(floor), ensemble.most]])])
        model.get_layer(parts.RANGES).set_weights([ensemble.path_LH[1:], ensemble.path_LH[0]])
        model.get_layer(parts.PATHS).set_weights([ensemble.lent_PHC])
        for task, moves_HRC in ensemble.moves.items():
            model.get_layer(parts.MOVES_PREFIX + task).set_weights([moves_HRC])
            model.get_layer(parts.SHARES_PREFIX + task).set_weights([shares[task]])

    def fold_widths(self, factors: Mapping[str, Floats]) -> None:
        """Make its quantiles lie so many times as far off as those of its paths: shape (H, L, C)."""
        for task, factor_HLC in factors.items():
            self._model.get_layer(parts.WIDTHS_PREFIX + task).set_weights([factor_HLC])

    @property
    def _model(self) -> keras.Model:
        if self._graph.holder is not self:
            raise RuntimeError("serving model: its graph holds another series now; save it before the next")
        return self._graph.model


def build_serving(profile: Profile, scaling: Scaling, network: keras.Model) -> keras.Model:
    """Wrap a float32 network of the profile into the published model.

    Returns:
        Model from `window` (B, T, F), raw features in the profile's order, float32, to a dict, task
        to (B, H, C), float32, quote currency (volatility unitless); with quantiles, also `quantile_output` of
        the task to (B, H, Q, C).
    """
    window_BTF = keras.Input((profile.lookback_bars, profile.num_features), name="window")
    close_BT1 = columns_of(window_BTF, profile, [CLOSE])
    last_B11 = ops.take(close_BT1, [profile.lookback_bars - 1], axis=1)
    constants = _looked_up(scaling, last_B11)
    scaled = network(_scaled(window_BTF, close_BT1, last_B11, scaling, constants))
    newest_B1F = ops.take(window_BTF, [profile.lookback_bars - 1], axis=1)
    reference = _references(profile, close_BT1, constants)
    range_B11 = 1.0
    if RECENT_RANGE in profile.features and scaling.range_floor > 0:
        range_B11 = ops.maximum(columns_of(newest_B1F, profile, [RECENT_RANGE]), constants("range floor"))
    points = {}
    for one in scaling.tasks:
        task = TASKS[one.task]
        points[task.name] = restore(
            ops,
            one.form,
            scaled[task.name] * constants(f"{task.name} scale"),
            reference=reference[task.name],
            unit=task.size(last_B11, range_B11),
            center=constants(f"{task.name} center") if one.form is TargetForm.LEVEL else None,
        )
    distances: dict[str, Any] = {}
    if profile.calibration == "ensemble":
        closes_BP = _newest_closes(profile, close_BT1)
        points, distances = parts.add_formulas(profile, window_BTF, closes_BP, points)
    outputs = {
        name: TASKS[name].coherent(ops, values, last_B11, constants("least volatility"))
        for name, values in points.items()
    }
    if profile.shape.outer_levels:
        market = parts.Market(
            closes_BP=_newest_closes(profile, close_BT1),
            last_B11=last_B11,
            range_B11=range_B11,
            scales={name: constants(f"{name} scale") for name in profile.tasks},
        )
        distances = parts.network_distances(profile, market, scaled)
    outputs |= parts.about_points(profile, outputs, distances, last_B11, constants("least volatility"))
    model = keras.Model(window_BTF, outputs, name=f"{profile.name}_forecaster")
    load_scaling(model, scaling)
    return model


def load_scaling(model: keras.Model, scaling: Scaling) -> None:
    """Make a published model that of another series of its structure, but for weights; unfold all."""
    row_K = np.concatenate(list(_numbers(scaling).values()))
    model.get_layer(CONSTANTS).set_weights([row_K[None]])
    parts.reset(model)


def _numbers(scaling: Scaling) -> dict[str, NDArray[np.float32]]:
    """List the constants that the graph reads, in the order of its row."""
    numbers: dict[str, Sequence[float]] = {}
    for constant in ("center", "scale", "floor"):
        numbers[constant] = [getattr(column, constant) for column in scaling.columns]
    for task in scaling.tasks:
        numbers |= {f"{task.task} scale": task.scale, f"{task.task} center": task.center}
    floor = scaling.volatility_floor
    numbers |= {"volatility floor": [floor], "least volatility": [LEAST_VOLATILITY_SHARE * floor]}
    numbers["range floor"] = [scaling.range_floor]
    return {name: np.array(values, np.float32) for name, values in numbers.items()}


def _looked_up(scaling: Scaling, last_B11: Any) -> Callable[..., Any]:
    """Let every window look up row 0, whatever prices it holds; `load_scaling` writes the row.

    Returns what maps the name of constants, and which of them if not all, to their tensor, (B, 1, how many).
    """
    places, end = {}, 0
    for name, values in _numbers(scaling).items():
        places[name] = range(end, end + len(values))
        end += len(values)
    row_B1K = parts.looked_up(ops.squeeze(last_B11, axis=-1), end, CONSTANTS)

    def constants(name: str, numbers: Sequence[int] | None = None) -> Any:
        wanted = places[name] if numbers is None else [places[name][number] for number in numbers]
        return ops.take(row_B1K, list(wanted), axis=-1)

    return constants


def _scaled(
    window_BTF: Any, close_BT1: Any, last_B11: Any, scaling: Scaling, constants: Callable[..., Any]
) -> Any:
    """Scale the raw window column group by column group, then restore the column order."""
    pieces, order = [], []
    for (transform, close), numbers in _groups(scaling).items():
        close_BTG, anchor_B1G = close_BT1, last_B11
        if close != CLOSE:
            close_BTG = ops.take(window_BTF, [scaling.names.index(close)], axis=-1)
            anchor_B1G = ops.take(close_BTG, [window_BTF.shape[1] - 1], axis=1)
        x_BTG = ops.take(window_BTF, numbers, axis=-1)
        floor = constants("floor", numbers) if transform is Transform.LOGGED else None
        x_BTG = shape_inputs(ops, transform, x_BTG, close=close_BTG, anchor=anchor_B1G, floor=floor)
        if transform is not Transform.ANCHORED:
            x_BTG = x_BTG - constants("center", numbers)
        pieces.append(x_BTG / constants("scale", numbers))
        order.extend(numbers)
    joined = ops.concatenate(pieces, axis=-1) if len(pieces) > 1 else pieces[0]
    return ops.take(joined, [int(place) for place in np.argsort(order)], axis=-1)


def _groups(scaling: Scaling) -> dict[tuple[Transform, str], list[int]]:
    """Number the columns by transform and by the close, if any, that they are measured from or in."""
    groups: dict[tuple[Transform, str], list[int]] = {}
    for transform in Transform:
        for number, one in enumerate(scaling.columns):
            if one.transform is transform:
                has_close = transform in (Transform.ANCHORED, Transform.RELATIVE)
                close = beside(parted(one.name)[0], CLOSE) if has_close else CLOSE
                groups.setdefault((transform, close), []).append(number)
    return groups


def _references(profile: Profile, close_BT1: Any, constants: Callable[..., Any]) -> dict[str, Any]:
    """The roll-forward forecast of each task, floored, from the closes of the window."""
    tasks = [TASKS[name] for name in profile.tasks]
    rolled = roll_forward(ops, tasks, _newest_closes(profile, close_BT1), profile.horizon_bars)
    floor = constants("volatility floor")
    return {task.name: task.floored(ops, rolled[task.name], rolled[task.name], floor) for task in tasks}


def _newest_closes(profile: Profile, close_BT1: Any) -> Any:
    num_known = min(BAND_PERIOD_BARS, profile.lookback_bars)
    known = [*range(profile.lookback_bars - num_known, profile.lookback_bars)]
    return ops.squeeze(ops.take(close_BT1, known, axis=1), axis=-1)
