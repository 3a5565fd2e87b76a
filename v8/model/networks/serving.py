"""The published model: raw feature windows in, forecasts in price units out, of stock Keras layers only.

Scaling and its inverse are written as `keras.ops` between the input and the network and between the network
and the outputs. The fitted constants are weights: the single row of an embedding table, which every window
looks up. So models of one structure differ in weights alone, and `load_scaling` turns the model of one series
into that of the next without building and tracing another graph. Plain Keras loads the file in safe mode.

Outputs are coherent by construction: low <= open, close <= high; bb_lower <= bb_upper; volatility > 0.

**Quantiles** are as far from the point forecast as those of simulated paths are from their median. They never
cross and are coherent for any weights: each level is made coherent by itself, as the point forecast is; then
a quantile that would cross its inner neighbour is moved out to it. The smaller and the larger of two coherent
candles are coherent again, because low is a minimum and high a maximum.

**The ensemble** of a profile that has paths mixes the network's forecast with those of two baselines, which
read the raw candles of the window, as `v8.model.baselines.ranges` does in NumPy. Until `add_calibration`
loads fitted numbers, the network has a share of 1, and the baselines, whose numbers are zeros, have none.

Shape legend: B batch, T lookback, F features, G features of a group, H horizon, C columns of a task,
K constants, or in closes the 20 bars of the bands, O levels but the median, Q all levels, M members of the
ensemble, R terms, or past ranges, P paths.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.base.arrays import MAX_STEPS, FloatArray
from v8.base.errors import ArtifactError
from v8.data.scaling import Scaling, TargetForm, Transform, restore, shape_inputs
from v8.data.span import Span
from v8.model.baselines import ranges
from v8.model.baselines.paths import path_quantiles
from v8.model.networks.published import (
    FORECAST_BATCH,
    Forecasts,
    PublishedModel,
    forecast_windows,
    forecasts_apart,
    split_outputs,
    without_cudnn,
)
from v8.profile.columns import (
    BAND_PERIOD_BARS,
    CLOSE,
    HIGH,
    LOW,
    MEDIAN,
    OHLC,
    RECENT_RANGE,
    apart,
    outer,
    quantile_output,
    range_column,
    split_origin,
    with_origin,
)
from v8.profile.formulas import RANGE_TO_VARIANCE
from v8.profile.profile import Profile
from v8.profile.tasks import TASKS, Closes, naive_closes

CONSTANTS = "constants"  # name of the layer with the constants of the scaling
LIMITS: Final = "ensemble_limits"
"""Name of the layer with the smallest deviation, its logarithm and the largest log range."""
RANGES: Final = "ensemble_ranges"  # name of the layer that forecasts the log range of each bar ahead
PATHS: Final = ranges.PATH_LAYERS[0]
"""Name of the layer with the bars resampled from past windows."""
MOVES_PREFIX: Final = "ensemble_moves_"
SHARES_PREFIX: Final = "ensemble_shares_"
WIDTHS_PREFIX: Final = "ensemble_widths_"  # layers that scale the distances of quantiles from the median
UNFITTED_FLOOR: Final = 1e-9
EVALUATED_BATCH: Final = 304
"""Windows of a span that the network forecasts together, in half of the time that batches of 64 take; they
are rounded differently, in the last bit. Four of them hold a test span of 8,000 candles: missing windows of
the last batch take as long as others. A single window would take longer."""
LEAST_VOLATILITY_SHARE = 1e-3  # the smallest forecast volatility, as a share of the scaling's floor


class ServingGraph:
    """A published model that many series share, because building and tracing one takes over a second.

    Args:
        profile: The profile.
        scaling: Any scaling of the structure.
        network: An untrained float32 network, which becomes part of the model.
    """

    def __init__(self, profile: Profile, scaling: Scaling, network: keras.Model) -> None:
        self.network = network
        self.model, self.network_model = build_serving(profile, scaling, network)
        without_cudnn(self.model)
        self.holder: ServingModel | None = None
        """The model whose numbers the graph has now; another one loads its own before it is used."""


class ServingModel(PublishedModel):
    """The published model of one series; until `add_calibration` its network forecasts alone.

    It loads its numbers into the shared graph, and again where the graph was used for another series since.

    Args:
        graph: The shared graph.
        scaling: Scaling of the series.
        weights: Trained weights, in the network's order.
    """

    def __init__(self, graph: ServingGraph, scaling: Scaling, weights: Sequence[NDArray[np.float32]]) -> None:
        self._graph = graph
        self._scaling = scaling
        self._weights = weights
        self._calibration: dict[
            str, list[NDArray[Any]]
        ] = {}  # weights of the layers of the ensemble, by name
        self._ensemble: ranges.RangeFormula | None = None
        self._shares: Mapping[str, FloatArray] = {}
        self._widths: Mapping[str, FloatArray] = {}
        self._load()

    def _load(self) -> None:
        """Let the graph have this model's numbers."""
        for variable, weight in zip(self._graph.network.trainable_variables, self._weights, strict=True):
            variable.assign(weight)
        load_scaling(self._graph.model, self._scaling)
        self._load_calibration()
        self._graph.holder = self

    def _load_calibration(self) -> None:
        """Let the graph have the numbers of the ensemble."""
        for layer in self._graph.model.layers:
            if layer.name in self._calibration:
                layer.set_weights(self._calibration[layer.name])

    def add_calibration(
        self,
        ensemble: ranges.RangeFormula,
        shares: Mapping[str, FloatArray],
        widths: Mapping[str, FloatArray],
    ) -> None:
        """Mix the network's forecasts with those of the baselines from now on, and widen its quantiles.

        Args:
            ensemble: The fitted baselines.
            shares: Share of each member of the ensemble, per task, shape (M, H), unitless.
            widths: Factors of the paths' distances of quantiles from the median, per task, shape (H, O, C).
        """
        layers: dict[str, list[NDArray[Any]]] = {
            LIMITS: [np.array([[ensemble.floor, *ensemble.bounds]])],
            RANGES: [ensemble.path_LH[1:], ensemble.path_LH[0]],
            PATHS: [ensemble.resampled_PHC],
        }
        for task, moves_HRC in ensemble.moves.items():
            layers[MOVES_PREFIX + task] = [moves_HRC]
            layers[SHARES_PREFIX + task] = [shares[task].reshape(1, -1)]
        for task, factor_HOC in widths.items():
            layers[WIDTHS_PREFIX + task] = [factor_HOC]
        self._calibration = layers
        # If the graph has the other numbers already, these are sufficient. They are all that it can have of
        # an ensemble, because a model is calibrated once.
        if self._graph.holder is self:
            self._load_calibration()
        else:
            self._load()
        self._ensemble = ensemble
        self._shares = shares
        self._widths = widths

    def network_points(self, span: Span) -> dict[str, NDArray[np.float32]]:
        """Return the network's own forecasts for a span, per task, (W, H, C), not yet coherent."""
        network_model = self._current_graph.network_model
        return forecast_windows(network_model, span.raw_windows(), batch=EVALUATED_BATCH)

    def coherent(self, span: Span, points: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Make points of a span, per task, (W, H, C), coherent as the published model does."""
        last_close, least_volatility = self._limits(span)
        return {
            name: TASKS[name].coherent(np, values, last_close, least_volatility)
            for name, values in points.items()
        }

    def forecast_span(self, span: Span) -> Forecasts:
        """Forecast a span; NumPy simulates the paths, in a tenth of the time that the published graph takes.

        Raises ArtifactError if the graph's forecasts differ for some of the windows.
        """
        if self._ensemble is None:
            return super().forecast_span(span)
        members, distances = self._ensemble.member_forecasts(span, self.network_points(span))
        points = self.coherent(span, ranges.mix(self._shares, members))
        distances = {name: distances[name] * factor for name, factor in self._widths.items()}
        quantiles = _coherent_quantiles(np, span.profile, points, distances, self._limits(span))
        outputs = {name: values.astype(np.float32) for name, values in {**points, **quantiles}.items()}
        self._require_graph_to_agree(span, self._ensemble, outputs)
        return split_outputs(outputs)

    def path_bars(self, span: Span) -> NDArray[Any] | None:
        """Return the bars of each path of the ensemble; None for a network without one."""
        return None if self._ensemble is None else self._ensemble.path_bars(span)

    def _require_graph_to_agree(
        self, span: Span, ensemble: ranges.RangeFormula, outputs: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Raise ArtifactError if the graph's forecasts differ from these for some windows of a span."""
        places = _compared_places(ensemble.ranges(span))
        values = forecast_windows(self.keras_model, span.raw_windows()[places])
        expected = {name: outputs[name][places] for name in values}
        for name, steps in forecasts_apart(values, expected, span.last_close[places]).items():
            if not steps <= MAX_STEPS:
                raise ArtifactError(
                    where=f"{span.table.series}, the model that would be published",
                    rule=f"forecasts what is evaluated, within {MAX_STEPS} steps of single precision",
                    got=f"{name} that is {steps:.0f} steps apart",
                    fix="Report it with the profile: v8 computes one of the two wrongly",
                )

    def _limits(self, span: Span) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the last close, (W, 1, 1), and the smallest volatility, (1, 1, 1), as the graph has them."""
        least = np.full((1, 1, 1), LEAST_VOLATILITY_SHARE * self._scaling.volatility_floor, np.float32)
        return span.last_close[:, None, None].astype(np.float32), least

    @property
    def _current_graph(self) -> ServingGraph:
        """The graph with this model's numbers."""
        if self._graph.holder is not self:
            self._load()
        return self._graph

    @property
    def keras_model(self) -> keras.Model:
        """The graph's model with this series' numbers."""
        return self._current_graph.model


def _compared_places(ranges_WH: FloatArray) -> NDArray[np.int64]:
    """Return the numbers of the windows that are compared, from their ranges ahead; they fill a batch.

    Those are the ones with the smallest and the largest range, where rounding errors are largest, and others
    that are spread over the span, because neighbouring windows share most of their bars. TensorFlow sorts the
    paths of a window in 2 ms of a core.
    """
    mean_ranges_W = ranges_WH.mean(axis=1)
    extremes = [np.argmin(mean_ranges_W), np.argmax(mean_ranges_W)]
    spread = np.linspace(0, len(ranges_WH) - 1, FORECAST_BATCH - len(extremes)).round()
    return np.concatenate([extremes, spread]).astype(np.int64)


def build_serving(
    profile: Profile, scaling: Scaling, network: keras.Model
) -> tuple[keras.Model, keras.Model]:
    """Wrap a float32 network of the profile into the published model.

    Returns:
        Model from `window` (B, T, F), raw features in the profile's order, float32, to a dict, task
        to (B, H, C), float32, quote currency (volatility unitless); with quantiles, also `quantile_output` of
        the task to (B, H, Q, C). And a model from the same input to the network's own forecasts, per task
        (B, H, C), not yet coherent.
    """
    window_BTF = keras.Input((profile.lookback_bars, len(profile.features)), name="window")
    close_BT1 = _columns_of(window_BTF, profile, [CLOSE])
    last_B11 = ops.take(close_BT1, [profile.lookback_bars - 1], axis=1)
    constants = _looked_up(scaling, last_B11)
    newest_B1F = ops.take(window_BTF, [profile.lookback_bars - 1], axis=1)
    if profile.family.reads_newest_row_only:
        # The other rows are not scaled, which would take most of the time; the network crops them away.
        inputs_B1F = _scaled(newest_B1F, last_B11, last_B11, scaling, constants)
        inputs_BTF = ops.repeat(inputs_B1F, profile.lookback_bars, axis=1)
    else:
        inputs_BTF = _scaled(window_BTF, close_BT1, last_B11, scaling, constants)
    scaled = network(inputs_BTF)
    num_known = min(BAND_PERIOD_BARS, profile.lookback_bars)
    known_bars = list(range(profile.lookback_bars - num_known, profile.lookback_bars))
    closes_BK = ops.squeeze(ops.take(close_BT1, known_bars, axis=1), axis=-1)
    has_window = any(task.has_window for task in profile.shape.tasks)
    standing = naive_closes(ops, closes_BK, profile.horizon_bars, has_window=has_window)
    if any(task.is_size for task in profile.shape.tasks):
        standing = replace(standing, bar_range=_newest_range(profile, window_BTF))
    range_B11 = 1.0
    if RECENT_RANGE in profile.features and scaling.range_floor > 0:
        range_B11 = ops.maximum(_columns_of(newest_B1F, profile, [RECENT_RANGE]), constants("range floor"))
    points = {}
    for task_scaling in scaling.tasks:
        task = TASKS[task_scaling.task]
        naive_BHC = task.implied(ops, standing)
        points[task.name] = restore(
            ops,
            task_scaling.form,
            scaled[task.name] * constants(f"{task.name} scale"),
            reference=task.floored(ops, naive_BHC, naive_BHC, constants("volatility floor")),
            unit=task.size(last_B11, range_B11),
            center=constants(f"{task.name} center") if task_scaling.form is TargetForm.LEVEL else None,
        )
    network_model = keras.Model(window_BTF, points)
    distances: dict[str, Any] = {}
    if profile.uses_simulated_paths:
        points, distances = _mixed_with_baselines(profile, window_BTF, closes_BK, standing, points)
    least_volatility = constants("least volatility")
    outputs = {
        name: TASKS[name].coherent(ops, values, last_B11, least_volatility) for name, values in points.items()
    }
    outputs |= _coherent_quantiles(ops, profile, outputs, distances, (last_B11, least_volatility))
    model = keras.Model(window_BTF, outputs, name=f"{profile.name}_forecaster")
    load_scaling(model, scaling)
    return model, network_model


def load_scaling(model: keras.Model, scaling: Scaling) -> None:
    """Load the scaling of another series of the same structure into a published model.

    The numbers of the ensemble are reset: the network has a share of 1 again. Its weights stay as they are.
    """
    row_K = np.concatenate(list(_numbers(scaling).values()))
    for layer in model.layers:
        if layer.name == CONSTANTS:
            layer.set_weights([row_K[None]])
        elif layer.name == LIMITS:
            layer.set_weights([np.array([[UNFITTED_FLOOR, np.log(UNFITTED_FLOOR), 0.0]])])
        elif layer.name.startswith(SHARES_PREFIX):
            num_steps = layer.output_dim // len(ranges.MEMBERS)
            layer.set_weights([ranges.network_alone(num_steps).reshape(1, -1)])
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
    """Let every window look up row 0 of the table of constants; `load_scaling` writes the row.

    Returns a function from the name of constants, and the numbers of those wanted if not all, to a tensor of
    shape (B, 1, number of constants).
    """
    places = {}
    end = 0
    for name, values in _numbers(scaling).items():
        places[name] = range(end, end + len(values))
        end += len(values)
    row_B1K = looked_up(ops.squeeze(last_B11, axis=-1), end, CONSTANTS)

    def constants(name: str, numbers: Sequence[int] | None = None) -> Any:
        own_places = places[name] if numbers is None else [places[name][number] for number in numbers]
        return ops.take(row_B1K, list(own_places), axis=-1)

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
    """Group the columns, by number, by transform and by the close that they are measured relative to.

    Columns whose transform needs no close are in the group of the series' own close.
    """
    groups: dict[tuple[Transform, str], list[int]] = {}
    for transform in Transform:
        for number, column in enumerate(scaling.columns):
            if column.transform is transform:
                has_close = transform in (Transform.ANCHORED, Transform.RELATIVE)
                close = with_origin(split_origin(column.name)[0], CLOSE) if has_close else CLOSE
                groups.setdefault((transform, close), []).append(number)
    return groups


def _coherent_quantiles(
    xp: Any,
    profile: Profile,
    points: Mapping[str, Any],
    distances: Mapping[str, Any],
    limits: tuple[Any, Any],
) -> dict[str, Any]:
    """Compute coherent quantiles around coherent points, all in the tasks' units.

    Args:
        xp: `numpy` or `keras.ops`.
        profile: The profile.
        points: Per task, (B, H, C).
        distances: Distances of the outer quantiles from the points, per task, (B, H, O, C).
        limits: The last close, (B, 1, 1), and the smallest volatility, which broadcasts to it.

    Returns:
        By `quantile_output` of the task, (B, H, Q, C), levels ascending.
    """
    last_close = xp.expand_dims(limits[0], 1)
    least_volatility = xp.expand_dims(limits[1], 1)
    quantiles = {}
    for name, distance_BHOC in distances.items():
        outer_BHOC = xp.expand_dims(points[name], 2) + distance_BHOC
        outer_BHOC = TASKS[name].coherent(xp, outer_BHOC, last_close, least_volatility)
        quantiles[quantile_output(name)] = _ordered(xp, profile, points[name], outer_BHOC)
    return quantiles


def _ordered(xp: Any, profile: Profile, median_BHC: Any, outer_BHOC: Any) -> Any:
    """Join the point forecast and coherent quantiles so that no level crosses its neighbour, (B, H, Q, C)."""
    levels = outer(profile.quantiles)
    median = xp.expand_dims(median_BHC, 2)
    num_below = sum(level < MEDIAN for level in levels)
    quantiles = [xp.take(outer_BHOC, [place], axis=2) for place in range(len(levels))]
    below = [median]
    above = [median]
    for quantile in reversed(quantiles[:num_below]):
        below.append(xp.minimum(below[-1], quantile))
    for quantile in quantiles[num_below:]:
        above.append(xp.maximum(above[-1], quantile))
    return xp.concatenate([*reversed(below), *above[1:]], axis=2)


def _mixed_with_baselines(
    profile: Profile, window_BTF: Any, closes_BK: Any, standing: Closes, points: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Mix a network's points, per task, (B, H, C), in the task's unit, with those of the baselines.

    `closes_BK` are the newest known closes, twenty of them where a task has the window of the bands. Returns
    the mixed points; and the distances of the outer quantiles from the median of the paths, per task, (B, H,
    L, C), in the task's unit, empty where the profile has no quantiles.
    """
    ranges_BH = _forecast_ranges(profile, window_BTF)
    terms = ranges.move_terms(ops, standing, ranges_BH)
    paths = untrained("bh,phc->bhcp", (profile.horizon_bars, len(OHLC), ranges.NUM_PATHS), PATHS)
    simulated, distances = _simulated(profile, closes_BK, paths(ranges_BH))
    last_B11 = ops.expand_dims(ops.take(closes_BK, [closes_BK.shape[1] - 1], axis=1), -1)
    mixed = {}
    for task in profile.shape.tasks:
        shape = (profile.horizon_bars, len(task.columns))
        moved_BHC = untrained("bhr,hrc->bhc", shape, MOVES_PREFIX + task.name)(terms[task.has_window])
        regressed_BHC = moved_BHC
        if not task.is_size:
            regressed_BHC = task.implied(ops, standing) + task.size(last_B11, moved_BHC)
        members_BMHC = ops.stack([points[task.name], regressed_BHC, simulated[task.name]], axis=1)
        mixed[task.name] = _weighted_sum(members_BMHC, last_B11, SHARES_PREFIX + task.name)
    return mixed, distances


def _weighted_sum(members_BMHC: Any, last_B11: Any, name: str) -> Any:
    """Return the mean of forecasts, (B, H, C), with weights of members and steps from a layer of that name.

    The forecasts are prices. A layer that multiplies matrices would have them rounded on GPUs that multiply
    in TF32, which has 11 bits: a price of 93,000 to multiples of 64.
    """
    num_members, num_steps = members_BMHC.shape[1:3]
    row_BX = looked_up(ops.squeeze(last_B11, axis=(1, 2)), num_members * num_steps, name)
    rows = [list(range(first, first + num_steps)) for first in range(0, num_members * num_steps, num_steps)]
    weights_BMH = ops.stack([ops.take(row_BX, row, axis=1) for row in rows], axis=1)
    return ops.sum(members_BMHC * ops.expand_dims(weights_BMH, -1), axis=1)


def _simulated(profile: Profile, closes_BK: Any, moved_BHCP: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the medians over the paths, (B, H, C), and the distances of the outer quantiles from them."""
    tasks = profile.shape.tasks
    levels = profile.quantiles or (MEDIAN,)
    medians = {}
    distances = {}
    for task, values_BHQC in path_quantiles(ops, levels, tasks, closes_BK, moved_BHCP).items():
        medians[task], distance_BHOC = apart(ops, levels, values_BHQC)
        if profile.quantiles:
            shape = tuple(distance_BHOC.shape[1:])
            distances[task] = untrained("bhlc,hlc->bhlc", shape, WIDTHS_PREFIX + task)(distance_BHOC)
    return medians, distances


def _forecast_ranges(profile: Profile, window_BTF: Any) -> Any:
    """Forecast the range of each bar ahead, (B, H), as `RangeFormula.ranges` does."""
    first_B = ops.take(ops.take(window_BTF, 0, axis=2), 0, axis=1)
    row_BK = looked_up(first_B, 3, LIMITS)
    floor_B1 = ops.take(row_BK, [0], axis=1)
    log_floor_B1 = ops.take(row_BK, [1], axis=1)
    largest_B1 = ops.take(row_BK, [2], axis=1)
    inputs = ranges.range_terms(profile)
    newest_BF = ops.take(window_BTF, profile.lookback_bars - 1, axis=1)
    high_BT = ops.take(window_BTF, profile.features.index(HIGH), axis=2)
    low_BT = ops.take(window_BTF, profile.features.index(LOW), axis=2)
    past_ranges = [candle_deviations(high_BT, low_BT, inputs.from_candles)]
    if inputs.from_features:
        recent_B1 = _columns_of(newest_BF, profile, [RECENT_RANGE])
        names = [range_column(bars) for bars in inputs.from_features]
        past_ranges.append(recent_B1 * _columns_of(newest_BF, profile, names))
    logs_BX = ops.log(ops.maximum(ops.concatenate(past_ranges, axis=-1), floor_B1))
    if inputs.waves:
        logs_BX = ops.concatenate([logs_BX, _columns_of(newest_BF, profile, inputs.waves)], axis=-1)
    ahead = dense_ahead(profile, RANGES)
    return ops.exp(ops.minimum(ops.maximum(ahead(logs_BX), log_floor_B1), largest_B1))


def _newest_range(profile: Profile, window_BTF: Any) -> Any:
    """Return the mean log range of the newest bars, (B, 1), as `Span.mean_range` does."""
    high_BT = ops.take(window_BTF, profile.features.index(HIGH), axis=2)
    low_BT = ops.take(window_BTF, profile.features.index(LOW), axis=2)
    return candle_deviations(high_BT, low_BT, (BAND_PERIOD_BARS,)) / float(np.sqrt(RANGE_TO_VARIANCE))


def _columns_of(rows: Any, profile: Profile, names: Sequence[str]) -> Any:
    """Select features of raw rows, shape (..., F), in the order of the names."""
    return ops.take(rows, [profile.features.index(name) for name in names], axis=-1)


_FITTED: Final = {"kernel_initializer": "zeros", "trainable": False, "dtype": "float32"}
"""Options of layers whose weights are fitted without gradients."""


def untrained(equation: str, shape: tuple[int, ...], name: str) -> keras.layers.Layer:
    """Return a linear layer whose weights are fitted without gradients."""
    return keras.layers.EinsumDense(equation, shape, name=name, **_FITTED)


def dense_ahead(profile: Profile, name: str) -> keras.layers.Layer:
    """Return the layer that forecasts the log range of each bar ahead."""
    return keras.layers.Dense(profile.horizon_bars, name=name, **_FITTED)


def looked_up(like: Any, num: int, name: str) -> Any:
    """Return row 0 of a table of weights for every element of `like`; shape (*like.shape, num)."""
    table = keras.layers.Embedding(
        1, num, embeddings_initializer="zeros", trainable=False, dtype="float32", name=name
    )
    return table(ops.zeros_like(like, dtype="int32"))


def candle_deviations(high_BT: Any, low_BT: Any, bars: Sequence[int]) -> Any:
    """Return the square roots of `Span.range_variance` over each number of bars, shape (B, R), unitless."""
    num_bars = low_BT.shape[1]
    # Not the logarithm of high / low: in single precision it would lose digits of the small range of a bar.
    range_BT = ops.log1p((high_BT - low_BT) / low_BT)
    newest = [ops.take(range_BT, list(range(num_bars - num, num_bars)), axis=1) for num in bars]
    means_BR = ops.concatenate([ops.mean(ranges_BT, axis=1, keepdims=True) for ranges_BT in newest], axis=1)
    return means_BR * float(np.sqrt(RANGE_TO_VARIANCE))
