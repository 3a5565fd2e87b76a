"""The model users load: raw feature window in, price units out, nothing but stock Keras inside.

Scaling and its inverse are written as `keras.ops` between the input and the network and between the
network and the outputs. The fitted constants are weights, the one row of a table that every window looks
up, so that models of one structure differ in weights alone: `load_scaling` makes one model that of the
next series, without another graph to build and trace. Plain Keras loads the file in safe mode.

Outputs are coherent by construction: low <= open, close <= high; bb_lower <= bb_upper;
volatility > 0.

**Quantiles** lie as far off the point forecast as those of simulated paths do off their median. They never
cross and are coherent for any weights: each level is made coherent by itself, as the point forecast is; then
each quantile is moved out to its inner neighbour where it would lie within. Smaller and larger of two
coherent candles are coherent again, because low is a minimum and high a maximum.

**Formulas** of a profile that has paths come in last and read the window's raw candles, as
`v8.baselines.ranges` does in numpy. To begin with the network has every share, and the formulas, whose
numbers are zeros then, have none.

Shape legend: B batch, T lookback, F features, G features of a group, H horizon, C columns of a task,
K constants, L levels but the median, Q all levels, M members, R terms or ranges behind, P paths; in closes
the 20 bars of the bands.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.arrays import FloatArray
from v8.baselines import ranges
from v8.columns import (
    BAND_PERIOD_BARS,
    CLOSE,
    HIGH,
    LOW,
    OHLC,
    RECENT_RANGE,
    range_column,
    split_origin,
    with_origin,
)
from v8.networks.published import Forecasts, PublishedModel, forecast_windows, split_outputs
from v8.profile import Profile
from v8.quantile_levels import MEDIAN, apart, outer, quantile_output
from v8.tasks import RANGE_TO_VARIANCE, TASKS, Closes, naive_closes
from v8.windows.scaling import Scaling, TargetForm, Transform, restore, shape_inputs
from v8.windows.span import Span

CONSTANTS = "constants"  # name of the layer that holds the constants of the scaling
LIMITS: Final = "ensemble_limits"
"""Name of the layer that holds the smallest deviation, its logarithm and the largest log range."""
RANGES: Final = "ensemble_ranges"  # name of the layer that forecasts the log range of each coming bar
PATHS: Final = ranges.PATH_LAYERS[0]
"""Name of the layer that holds the bars which past windows lent."""
MOVES_PREFIX: Final = "ensemble_moves_"
SHARES_PREFIX: Final = "ensemble_shares_"
WIDTHS_PREFIX: Final = "ensemble_widths_"  # of the layers that widen or narrow the quantiles of the paths
UNFITTED_FLOOR: Final = 1e-9
PUBLISHED_TOLERANCE: Final = 1e-4
"""Share of a forecast by which numpy and the published graph may differ; single precision takes 1e-5."""
COMPARED_WINDOWS: Final = 64
"""Windows of a span for which the published graph must forecast what NumPy forecasts. They are spread over
all of it: neighbours share most of their bars."""
LEAST_VOLATILITY_SHARE = 1e-3  # no volatility below this share of the scaling's floor is forecast


class ServingGraph:
    """A published model that many series share: to build and trace one takes over a second.

    The scaling is any of its structure; the network, untrained and float32, becomes part of the model.
    """

    def __init__(self, profile: Profile, scaling: Scaling, network: keras.Model) -> None:
        self.network = network
        self.model, self.alone = build_serving(profile, scaling, network)
        self.holder: ServingModel | None = None
        """The series it holds at present; all earlier ones refuse to be used."""


class ServingModel(PublishedModel):
    """The published model of one series, uncalibrated at first; weights are in the network's order.

    It takes the shared graph over. A model that lost it to another series refuses, so that none can speak in
    another's name.
    """

    def __init__(self, graph: ServingGraph, scaling: Scaling, weights: Sequence[NDArray[np.float32]]) -> None:
        self._graph = graph
        self._scaling = scaling
        self._ensemble: ranges.RangeFormula | None = None
        self._shares: Mapping[str, FloatArray] = {}
        self._widths: Mapping[str, FloatArray] = {}
        for variable, weight in zip(graph.network.trainable_variables, weights, strict=True):
            variable.assign(weight)
        load_scaling(graph.model, scaling)
        graph.holder = self

    def fold(
        self,
        ensemble: ranges.RangeFormula,
        shares: Mapping[str, FloatArray],
        widths: Mapping[str, FloatArray],
    ) -> None:
        """Make it mix its network's forecasts with those of formulas: shares per task, shape (M, H).

        Its quantiles lie as many times as far off as those of the paths as widths say: per task, (H, L, C).
        """
        fitted = {
            LIMITS: [np.array([[ensemble.floor, *ensemble.bounds]])],
            RANGES: [ensemble.path_LH[1:], ensemble.path_LH[0]],
            PATHS: [ensemble.resampled_PHC],
        }
        for task, moves_HRC in ensemble.moves.items():
            fitted |= {MOVES_PREFIX + task: [moves_HRC], SHARES_PREFIX + task: [shares[task]]}
        fitted |= {WIDTHS_PREFIX + task: [factor_HLC] for task, factor_HLC in widths.items()}
        for name, weights in fitted.items():
            self._model.get_layer(name).set_weights(weights)
        self._ensemble = ensemble
        self._shares = shares
        self._widths = widths

    def network_points(self, span: Span) -> dict[str, NDArray[np.float32]]:
        """Say what the network forecasts for a span, per task, (W, H, C), not yet coherent."""
        return forecast_windows(self._held.alone, span.raw_windows())

    def coherent(self, span: Span, points: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Make points of a span, per task, (W, H, C), coherent as the published model does."""
        limits = self._limits(span)
        return {name: TASKS[name].coherent(np, values, *limits) for name, values in points.items()}

    def forecast_span(self, span: Span) -> Forecasts:
        """Forecast a span; numpy walks the paths, in a tenth of the time that the published graph takes.

        Raises RuntimeError if the graph says something else of some of the windows.
        """
        if self._ensemble is None:
            return super().forecast_span(span)
        said, distances = self._ensemble.member_forecasts(span, self.network_points(span))
        points = self.coherent(span, ranges.mix(self._shares, said))
        distances = {name: distances[name] * factor for name, factor in self._widths.items()}
        made = points | _about_points(np, span.profile, points, distances, self._limits(span))
        made = {name: values.astype(np.float32) for name, values in made.items()}
        self._require_graph_to_agree(span, made)
        return split_outputs(made)

    def _require_graph_to_agree(self, span: Span, made: Mapping[str, NDArray[np.float32]]) -> None:
        """Raise RuntimeError if the published graph says something else of windows spread over a span."""
        compared = np.linspace(0, len(span) - 1, COMPARED_WINDOWS).round().astype(np.int64)
        for name, values in self._model.predict_on_batch(span.raw_windows()[compared]).items():
            evaluated = made[name][compared]
            if not np.abs(values - evaluated).max() < PUBLISHED_TOLERANCE * np.abs(evaluated).max():
                raise RuntimeError(f"serving model: its graph forecasts another {name} than is evaluated")

    def _limits(self, span: Span) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the last close, (W, 1, 1), and the least volatility, (1, 1, 1), as the graph has them."""
        least = np.full((1, 1, 1), LEAST_VOLATILITY_SHARE * self._scaling.volatility_floor, np.float32)
        return span.last_close[:, None, None].astype(np.float32), least

    @property
    def _held(self) -> ServingGraph:
        if self._graph.holder is not self:
            raise RuntimeError("serving model: its graph holds another series now; save it before the next")
        return self._graph

    @property
    def _model(self) -> keras.Model:
        return self._held.model


def build_serving(
    profile: Profile, scaling: Scaling, network: keras.Model
) -> tuple[keras.Model, keras.Model]:
    """Wrap a float32 network of the profile into the published model.

    Returns:
        Model from `window` (B, T, F), raw features in the profile's order, float32, to a dict, task
        to (B, H, C), float32, quote currency (volatility unitless); with quantiles, also `quantile_output` of
        the task to (B, H, Q, C). Beside it one that says what the network alone forecasts, not yet coherent.
    """
    window_BTF = keras.Input((profile.lookback_bars, len(profile.features)), name="window")
    close_BT1 = _columns_of(window_BTF, profile, [CLOSE])
    last_B11 = ops.take(close_BT1, [profile.lookback_bars - 1], axis=1)
    constants = _looked_up(scaling, last_B11)
    scaled = network(_scaled(window_BTF, close_BT1, last_B11, scaling, constants))
    newest_B1F = ops.take(window_BTF, [profile.lookback_bars - 1], axis=1)
    num_known = min(BAND_PERIOD_BARS, profile.lookback_bars)
    known = [*range(profile.lookback_bars - num_known, profile.lookback_bars)]
    closes_BP = ops.squeeze(ops.take(close_BT1, known, axis=1), axis=-1)
    has_window = any(task.has_window for task in profile.shape.tasks)
    standing = naive_closes(ops, closes_BP, profile.horizon_bars, has_window=has_window)
    range_B11 = 1.0
    if RECENT_RANGE in profile.features and scaling.range_floor > 0:
        range_B11 = ops.maximum(_columns_of(newest_B1F, profile, [RECENT_RANGE]), constants("range floor"))
    points = {}
    for one in scaling.tasks:
        task = TASKS[one.task]
        rolled = task.implied(ops, standing)
        points[task.name] = restore(
            ops,
            one.form,
            scaled[task.name] * constants(f"{task.name} scale"),
            reference=task.floored(ops, rolled, rolled, constants("volatility floor")),
            unit=task.size(last_B11, range_B11),
            center=constants(f"{task.name} center") if one.form is TargetForm.LEVEL else None,
        )
    alone = keras.Model(window_BTF, points)
    distances: dict[str, Any] = {}
    if profile.has_paths:
        points, distances = _with_formulas(profile, window_BTF, closes_BP, standing, points)
    limits = last_B11, constants("least volatility")
    outputs = {name: TASKS[name].coherent(ops, values, *limits) for name, values in points.items()}
    outputs |= _about_points(ops, profile, outputs, distances, limits)
    model = keras.Model(window_BTF, outputs, name=f"{profile.name}_forecaster")
    load_scaling(model, scaling)
    return model, alone


def load_scaling(model: keras.Model, scaling: Scaling) -> None:
    """Make a published model that of another series of its structure, but for weights.

    The network has every share again, and nothing is fitted.
    """
    row_K = np.concatenate(list(_numbers(scaling).values()))
    for layer in model.layers:
        if layer.name == CONSTANTS:
            layer.set_weights([row_K[None]])
        elif layer.name == LIMITS:
            layer.set_weights([np.array([[UNFITTED_FLOOR, np.log(UNFITTED_FLOOR), 0.0]])])
        elif layer.name.startswith(SHARES_PREFIX):
            layer.set_weights([ranges.network_alone(layer.kernel.shape[1])])
        elif layer.name in (RANGES, PATHS) or layer.name.startswith((MOVES_PREFIX, WIDTHS_PREFIX)):
            layer.set_weights([np.zeros(weight.shape) for weight in layer.weights])


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
    places = {}
    end = 0
    for name, values in _numbers(scaling).items():
        places[name] = range(end, end + len(values))
        end += len(values)
    row_B1K = looked_up(ops.squeeze(last_B11, axis=-1), end, CONSTANTS)

    def constants(name: str, numbers: Sequence[int] | None = None) -> Any:
        wanted = places[name] if numbers is None else [places[name][number] for number in numbers]
        return ops.take(row_B1K, list(wanted), axis=-1)

    return constants


def _scaled(
    window_BTF: Any, close_BT1: Any, last_B11: Any, scaling: Scaling, constants: Callable[..., Any]
) -> Any:
    """Scale the raw window column group by column group, then restore the column order."""
    pieces = []
    order = []
    names = [column.name for column in scaling.columns]
    for (transform, close), numbers in _groups(scaling).items():
        close_BTG = close_BT1
        anchor_B1G = last_B11
        if close != CLOSE:
            close_BTG = ops.take(window_BTF, [names.index(close)], axis=-1)
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
                close = with_origin(split_origin(one.name)[0], CLOSE) if has_close else CLOSE
                groups.setdefault((transform, close), []).append(number)
    return groups


def _about_points(
    xp: Any, profile: Profile, points: Mapping[str, Any], distances: Mapping[str, Any], limits: Sequence[Any]
) -> dict[str, Any]:
    """Put coherent quantiles, by `quantile_output`, (B, H, Q, C), about coherent points, (B, H, C).

    The outer ones lie `distances` off, (B, H, L, C); all are in the task's unit. Limits are the last close,
    (B, 1, 1), and the least volatility, likewise.
    """
    limits = [xp.expand_dims(each, 1) for each in limits]
    made = {}
    for name, distance_BHLC in distances.items():
        beside_BHLC = xp.expand_dims(points[name], 2) + distance_BHLC
        beside_BHLC = TASKS[name].coherent(xp, beside_BHLC, *limits)
        made[quantile_output(name)] = _ordered(xp, profile, points[name], beside_BHLC)
    return made


def _ordered(xp: Any, profile: Profile, median_BHC: Any, beside_BHLC: Any) -> Any:
    """Put coherent quantiles about the point forecast so that none crosses its neighbour, (B, H, Q, C)."""
    levels = outer(profile.quantiles)
    median = xp.expand_dims(median_BHC, 2)
    num_below = sum(level < MEDIAN for level in levels)
    one = [xp.take(beside_BHLC, [place], axis=2) for place in range(len(levels))]
    below = [median]
    above = [median]
    for each in reversed(one[:num_below]):
        below.append(xp.minimum(below[-1], each))
    for each in one[num_below:]:
        above.append(xp.maximum(above[-1], each))
    return xp.concatenate([*reversed(below), *above[1:]], axis=2)


def _with_formulas(
    profile: Profile, window_BTF: Any, closes_BK: Any, standing: Closes, points: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Mix a network's points, per task, (B, H, C), in the task's unit, with those of the formulas.

    The newest known closes are twenty where a task has their window. Returns the mixed points, and how far
    the outer quantiles lie off them by the paths, per task, (B, H, L, C), likewise, nothing where the profile
    has none.
    """
    ranges_BH = _forecast_ranges(profile, window_BTF)
    terms = ranges.move_terms(ops, standing, ranges_BH)
    paths = untrained("bh,phc->bhcp", (profile.horizon_bars, len(OHLC), ranges.NUM_PATHS), PATHS)
    simulated, beside = _simulated(profile, closes_BK, paths(ranges_BH))
    last_B11 = ops.expand_dims(ops.take(closes_BK, [closes_BK.shape[1] - 1], axis=1), -1)
    mixed = {}
    for task in profile.shape.tasks:
        shape = (profile.horizon_bars, len(task.columns))
        moved_BHC = untrained("bhr,hrc->bhc", shape, MOVES_PREFIX + task.name)(terms[task.has_window])
        regressed_BHC = task.implied(ops, standing) + task.size(last_B11, moved_BHC)
        members_BMHC = ops.stack([points[task.name], regressed_BHC, simulated[task.name]], axis=1)
        mixed[task.name] = untrained("bmhc,mh->bhc", shape, SHARES_PREFIX + task.name)(members_BMHC)
    return mixed, beside


def _simulated(profile: Profile, closes_BK: Any, moved_BHCP: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the medians over the paths, (B, H, C), and the distances of the outer quantiles from them."""
    tasks = profile.shape.tasks
    levels = profile.quantiles or (MEDIAN,)
    medians = {}
    beside = {}
    for task, values_BHQC in ranges.path_quantiles(ops, levels, tasks, closes_BK, moved_BHCP).items():
        medians[task], distance_BHLC = apart(ops, levels, values_BHQC)
        if profile.quantiles:
            shape = tuple(distance_BHLC.shape[1:])
            beside[task] = untrained("bhlc,hlc->bhlc", shape, WIDTHS_PREFIX + task)(distance_BHLC)
    return medians, beside


def _forecast_ranges(profile: Profile, window_BTF: Any) -> Any:
    """Forecast the range of each coming bar, (B, H), as `RangeFormula.ranges` does."""
    first_B = ops.take(ops.take(window_BTF, 0, axis=2), 0, axis=1)
    row_BK = looked_up(first_B, 3, LIMITS)
    floor_B1, log_floor_B1, most_B1 = (ops.take(row_BK, [place], axis=1) for place in range(3))
    known = ranges.range_terms(profile)
    newest_BF = ops.take(window_BTF, profile.lookback_bars - 1, axis=1)
    high_BT, low_BT = (ops.take(window_BTF, profile.features.index(name), axis=2) for name in (HIGH, LOW))
    behind = [candle_deviations(high_BT, low_BT, known.from_candles)]
    if known.from_features:
        recent_B1 = _columns_of(newest_BF, profile, [RECENT_RANGE])
        behind.append(recent_B1 * _columns_of(newest_BF, profile, [*map(range_column, known.from_features)]))
    logs_BX = ops.log(ops.maximum(ops.concatenate(behind, axis=-1), floor_B1))
    if known.waves:
        logs_BX = ops.concatenate([logs_BX, _columns_of(newest_BF, profile, known.waves)], axis=-1)
    ahead = dense_ahead(profile, RANGES)
    return ops.exp(ops.minimum(ops.maximum(ahead(logs_BX), log_floor_B1), most_B1))


def _columns_of(rows: Any, profile: Profile, names: Sequence[str]) -> Any:
    """Take features out of raw rows, shape (..., F), in the order of the names."""
    return ops.take(rows, [profile.features.index(name) for name in names], axis=-1)


_FITTED: Final = {"kernel_initializer": "zeros", "trainable": False, "dtype": "float32"}
"""Options of layers that hold what was fitted."""


def untrained(equation: str, shape: tuple[int, ...], name: str) -> keras.layers.Layer:
    """Make a linear layer that holds what was fitted."""
    return keras.layers.EinsumDense(equation, shape, name=name, **_FITTED)


def dense_ahead(profile: Profile, name: str) -> keras.layers.Layer:
    """Make the layer that forecasts the log range of each coming bar."""
    return keras.layers.Dense(profile.horizon_bars, name=name, **_FITTED)


def looked_up(like: Any, num: int, name: str) -> Any:
    """Let every window look up row 0 of a table, whatever `like` holds; shape (*like.shape, num)."""
    table = keras.layers.Embedding(
        1, num, embeddings_initializer="zeros", trainable=False, dtype="float32", name=name
    )
    return table(ops.zeros_like(like, dtype="int32"))


def candle_deviations(high_BT: Any, low_BT: Any, bars: Sequence[int]) -> Any:
    """Return the deviations of `Span.range_variance` over so many bars each, shape (B, R), unitless."""
    num_bars = low_BT.shape[1]
    # Not the logarithm of a ratio: single precision would round the small ranges of one bar.
    range_BT = ops.log1p((high_BT - low_BT) / low_BT)
    newest = [ops.take(range_BT, [*range(num_bars - one, num_bars)], axis=1) for one in bars]
    means_BR = ops.concatenate([ops.mean(one, axis=1, keepdims=True) for one in newest], axis=1)
    return means_BR * float(np.sqrt(RANGE_TO_VARIANCE))
