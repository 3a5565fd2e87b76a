"""Scaling: constants that are fitted on train rows only, invertible, and saved with the model.

The profile selects one of these methods:

* `anchored`: a price level becomes its log ratio to the window's last close, divided by the train deviation
  of log returns; differences of prices are divided by the close; skewed positive columns are replaced by
  their logarithms; then all columns but prices are centred and divided by their deviation. A target is the
  log ratio of the actual values to the naive forecast, divided by the deviation of that ratio.
* `ranged`: inputs as in `anchored`. A target is the difference of the actual values and the naive forecast in
  units of the recent range (and of the last close, for prices). Forecasts are evaluated by their error in
  returns, which is proportional to the recent range; so that is the weight of a window in every mean and
  loss.
* `standard`, `minmax`: the lineage's scalers, for inputs and targets. They are kept for comparison.

With every method an untrained network is the strongest constant forecast: `start` holds the median (absolute
and Huber loss) or mean (squared loss) of the scaled target per task, step and column.

Shape legend: N rows, W windows, F features, H horizon, C columns of a task.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.base.arrays import FloatArray, weighted_median
from v8.base.errors import SeriesError
from v8.data.span import Span, undersampled_waves
from v8.profile.columns import CLOSE, RECENT_RANGE, VOLATILITY, split_origin, with_origin
from v8.profile.formulas import Kind
from v8.profile.indicators import FEATURES
from v8.profile.profile import Profile
from v8.profile.tasks import TASKS

VOLATILITY_FLOOR_SHARE = 0.05
"""Volatilities below this share of the train median are raised to it before a logarithm.

A market without trades for 20 bars has volatility zero, whose logarithm would dominate the loss.
"""

RANGE_FLOOR_SHARE = 0.05
"""Recent ranges below this share of the train median are raised to it: they divide targets."""

LOG_FLOOR_SHARE = 1e-3
"""The same for logged inputs: their smallest value before the logarithm, as a share of the train median."""

SILENT_SCALE: Final = 3e38
"""Scale of an input without influence: waves divided by it vanish in single precision. The input itself
stays, so that all published models of one profile are the same network."""


class Transform(StrEnum):
    """How one input column is scaled."""

    ANCHORED = "log(x / last close) / scale"
    RELATIVE = "(x / close - center) / scale"
    LOGGED = "(log(max(x, floor)) - center) / scale"
    LEVEL = "(x - center) / scale"


class TargetForm(StrEnum):
    """How the actual values of one task is scaled."""

    NAIVE_RATIO = "log(x / naive forecast) / scale"
    RANGED = "(x - naive forecast) / (recent range, times last close for prices) / scale"
    LEVEL = "(x - center) / scale"


_ANCHORED_TRANSFORMS = {
    Kind.PRICE: Transform.ANCHORED,
    Kind.PRICE_CHANGE: Transform.RELATIVE,
    Kind.AMOUNT: Transform.RELATIVE,
    Kind.POSITIVE: Transform.LOGGED,
}
"""How `anchored` scaling transforms columns by their kind; all others by `LEVEL`."""


@dataclass(frozen=True)
class ColumnScaling:
    """Constants of one input column; `floor` matters to `LOGGED` only."""

    name: str
    transform: Transform
    center: float
    scale: float
    floor: float


@dataclass(frozen=True)
class TaskScaling:
    """Constants of one task."""

    task: str  # a key of `TASKS`
    form: TargetForm  # meaning of the network's output
    center: tuple[float, ...]  # per column, shape (C,); zeros except for `LEVEL`
    scale: tuple[float, ...]
    """Per column, shape (C,); one common value, which keeps the order of columns, except for `LEVEL`."""
    start: tuple[tuple[float, ...], ...]  # scaled constant forecast per step and column, shape (H, C)
    offset: tuple[tuple[float, ...], ...]  # median log ratio of actual values to naive in training, (H, C)


@dataclass(frozen=True)
class Scaling:
    """All constants of inputs and targets; columns and tasks are in the order of the profile."""

    columns: tuple[ColumnScaling, ...]
    tasks: tuple[TaskScaling, ...]
    reference_price: float  # median train close; keeps float32 logarithms small, cancels out in windows
    volatility_floor: float  # lower limit of volatilities before the logarithm, unitless
    range_floor: float = 0.0  # smallest recent range that divides a target, unitless; 0 unless `ranged`

    @property
    def structure(self) -> tuple[Hashable, ...]:
        """Everything that determines the computation; scalings of one structure differ in constants only."""
        forms = [(task.task, task.form) for task in self.tasks]
        return (*(column.transform for column in self.columns), *forms, self.range_floor > 0)

    def task(self, name: str) -> TaskScaling:
        """Return the constants of one task."""
        return next(task for task in self.tasks if task.task == name)

    def scale_inputs(self, table_NF: FloatArray, closes: Mapping[str, FloatArray]) -> NDArray[np.float32]:
        """Scale raw rows, (N, F), float32; for anchored columns see also `anchored_mask`.

        Args:
            table_NF: Raw rows.
            closes: Close of each row, quote currency, (N,), by origin: "" for the series itself, and the
                symbols of other series whose prices are among the columns.
        """
        scaled = []
        for column, x_N in zip(self.columns, table_NF.T, strict=True):
            origin = split_origin(column.name)[0]
            price = 1.0 if origin else self.reference_price
            close_N = closes.get(origin)
            shaped = shape_inputs(np, column.transform, x_N, close=close_N, anchor=price, floor=column.floor)
            scaled.append((shaped - column.center) / column.scale)
        return np.stack(scaled, axis=1).astype(np.float32)

    def anchored_mask(self, origin: str = "") -> NDArray[np.float32]:
        """Return 1 for columns from which a window subtracts its last scaled close, shape (F,).

        The origin is "" for the series itself, else the symbol of another one.
        """
        is_anchored = [
            column.transform is Transform.ANCHORED and split_origin(column.name)[0] == origin
            for column in self.columns
        ]
        return np.array(is_anchored, np.float32)

    def floored_range(self, range_N: FloatArray) -> FloatArray:
        """Raise recent ranges to the lower limit of divisors of targets, shape (N,), unitless."""
        return np.maximum(range_N, self.range_floor)

    def scale_targets(self, span: Span, task: str) -> NDArray[np.float32]:
        """Scale the actual values of a task to a network's targets, (W, H, C), unitless."""
        constants = self.task(task)
        actual_WHC = span.actual[task]
        if constants.form is TargetForm.LEVEL:
            moved = actual_WHC - np.array(constants.center)
        elif constants.form is TargetForm.RANGED:
            moved = _range_distance(task, span, actual_WHC, self.range_floor)
        else:
            moved = _log_ratio(task, span, actual_WHC, self.volatility_floor)
        return (moved / np.array(constants.scale)).astype(np.float32)

    def unscale_targets(self, span: Span, task: str, scaled_WHC: FloatArray) -> FloatArray:
        """Return a network's outputs in the unit of the task, (W, H, C): the inverse of `scale_targets`."""
        constants = self.task(task)
        naive_WHC = span.naive[task]
        unit_W11 = None
        if constants.form is TargetForm.RANGED:
            unit_W11 = span.unit(task, self.floored_range(span.target_unit))
        elif constants.form is TargetForm.NAIVE_RATIO:
            naive_WHC = TASKS[task].floored(np, naive_WHC, naive_WHC, self.volatility_floor)
        stretched_WHC = scaled_WHC.astype(np.float64) * np.array(constants.scale)
        center = np.array(constants.center)
        restored: FloatArray = restore(
            np, constants.form, stretched_WHC, reference=naive_WHC, unit=unit_W11, center=center
        )
        return restored


def shape_inputs(xp: Any, transform: Transform, x: Any, *, close: Any, anchor: Any, floor: Any) -> Any:
    """Transform raw columns before they are centred and divided; the published model uses the same code.

    Args:
        xp: `numpy` or `keras.ops`.
        transform: How the columns are transformed.
        x: Raw values.
        close: Close of the same rows, for `RELATIVE`.
        anchor: Price by which `ANCHORED` divides before the logarithm.
        floor: Lower limit of values before the logarithm, for `LOGGED`.
    """
    if transform is Transform.ANCHORED:
        return xp.log(x / anchor)
    if transform is Transform.RELATIVE:
        return x / close
    return xp.log(xp.maximum(x, floor)) if transform is Transform.LOGGED else x


def restore(xp: Any, form: TargetForm, stretched: Any, *, reference: Any, unit: Any, center: Any) -> Any:
    """Convert targets times their scale, (W, H, C), to the task's unit; also in the published model.

    Args:
        xp: `numpy` or `keras.ops`.
        form: Meaning of the targets.
        stretched: Targets times their scale.
        reference: The naive forecast, with the lower limit of `NAIVE_RATIO`.
        unit: The recent range in the task's unit, (W, 1, 1), for `RANGED`.
        center: Per column, for `LEVEL`.
    """
    if form is TargetForm.RANGED:
        return reference + stretched * unit
    if form is TargetForm.NAIVE_RATIO:
        return reference * xp.exp(stretched)
    return stretched + center


def fit_scaling(train: Span, rows: tuple[int, int], columns: Sequence[str]) -> Scaling:
    """Fit all constants on the train span.

    Args:
        train: Windows of the train span.
        rows: First and past-the-end row of the train span.
        columns: Features, close, volatility and, for `ranged`, recent range.

    Raises:
        SeriesError: If the close never moves, so that nothing can be scaled by it.
    """
    profile = train.profile
    location = str(train.table.series)
    first, end = rows
    raw = {name: train.table.column(name)[first:end].astype(np.float64) for name in columns}
    close = raw[CLOSE]
    volatility = raw[VOLATILITY]
    floor = VOLATILITY_FLOOR_SHARE * _positive_median(volatility)
    is_ranged = profile.scaling == "ranged"
    fix = "Leave this series out or fetch another span"
    range_floor = RANGE_FLOOR_SHARE * _positive_median(raw[RECENT_RANGE]) if is_ranged else 0.0
    if not floor or float(np.std(np.diff(np.log(close)))) == 0:
        raise SeriesError(
            where=location, rule="the close must move on the train span", got="one price throughout", fix=fix
        )
    if is_ranged and not range_floor:
        raise SeriesError(
            where=location,
            rule="some bar of the train span must trade at more than one price with scaling: ranged",
            got="high equal to low throughout",
            fix=fix,
        )
    fitted = [_fit_column(profile, name, raw) for name in profile.features]
    for position in undersampled_waves(train, profile.features):
        fitted[position] = replace(fitted[position], scale=SILENT_SCALE)
    return Scaling(
        columns=tuple(fitted),
        tasks=tuple(_fit_task(train, task, floor, range_floor) for task in profile.tasks),
        reference_price=float(np.median(close)),
        volatility_floor=floor,
        range_floor=range_floor,
    )


def _log_ratio(task: str, span: Span, values_WHC: FloatArray, volatility_floor: float) -> FloatArray:
    """Return log(values / naive forecast) with both raised to the task's floor, shape (W, H, C)."""
    ratio_WHC = np.empty(values_WHC.shape)
    for rows, piece in span.pieces():
        naive = piece.naive[task]
        numerator = TASKS[task].floored(np, values_WHC[rows], naive, volatility_floor)
        denominator = TASKS[task].floored(np, naive, naive, volatility_floor)
        ratio_WHC[rows] = np.log(numerator / denominator)
    return ratio_WHC


def _range_distance(task: str, span: Span, values_WHC: FloatArray, range_floor: float) -> FloatArray:
    """Return the difference from the naive forecast in recent ranges, shape (W, H, C)."""
    unit_W11 = span.unit(task, np.maximum(span.target_unit, range_floor))
    return (values_WHC - span.naive[task]) / unit_W11


def _fit_column(profile: Profile, name: str, raw: Mapping[str, FloatArray]) -> ColumnScaling:
    x_N = raw[name]
    origin = split_origin(name)[0]
    if profile.scaling == "minmax":
        low = float(x_N.min())
        high = float(x_N.max())
        return ColumnScaling(name, Transform.LEVEL, low, _positive(high - low), 0.0)
    transform = Transform.LEVEL
    if profile.scaling != "standard":
        transform = _ANCHORED_TRANSFORMS.get(FEATURES[name].kind, transform)
    close_N = raw.get(with_origin(origin, CLOSE))
    if transform is Transform.ANCHORED and close_N is not None:
        # Other series are centred at their median close; like `reference_price` it cancels out in windows.
        center = float(np.log(np.median(close_N))) if origin else 0.0
        deviation = float(np.std(np.diff(np.log(close_N))))
        return ColumnScaling(name, transform, center, _positive(deviation), 0.0)
    floor = LOG_FLOOR_SHARE * (_positive_median(x_N) or 1.0)
    shaped = shape_inputs(np, transform, x_N, close=close_N, anchor=None, floor=floor)
    return ColumnScaling(name, transform, float(shaped.mean()), _positive(float(shaped.std())), floor)


def _fit_task(train: Span, task: str, floor: float, range_floor: float) -> TaskScaling:
    profile = train.profile
    num_columns = len(TASKS[task].columns)
    weight_W = np.maximum(train.target_unit, range_floor)
    ratio = _log_ratio(task, train, train.actual[task], floor)
    # Step by step: the median of an array takes as much memory as the array.
    offset = tuple(tuple(np.median(ratio_WC, axis=0).tolist()) for ratio_WC in ratio.swapaxes(0, 1))
    form = _FORMS.get(profile.scaling, TargetForm.LEVEL)
    if form is TargetForm.LEVEL:
        actual_WHC = train.actual[task]
        flat = actual_WHC.reshape(-1, num_columns)
        is_standard = profile.scaling == "standard"
        center = flat.mean(axis=0) if is_standard else flat.min(axis=0)
        spread = flat.std(axis=0) if is_standard else np.ptp(flat, axis=0)
        moved = actual_WHC - center
        scale = np.array([_positive(float(value)) for value in spread])
    else:
        if form is TargetForm.NAIVE_RATIO:
            moved = ratio
            size = np.sqrt(ratio.var(axis=0).mean())
        else:
            moved = _range_distance(task, train, train.actual[task], range_floor)
            # The naive forecast has a mean error of one, so a loss is relative to it.
            size = np.average(np.abs(moved), axis=0, weights=weight_W).mean()
        # One scale for all columns of a task keeps their order: a high above the close stays above it.
        center = np.zeros(num_columns)
        scale = np.full(num_columns, _positive(float(size)))
    scaled = np.divide(moved, scale, out=moved)
    start = _typical(scaled, weight_W, is_mean=profile.tasks[task].loss == "mse")
    return TaskScaling(
        task=task,
        form=form,
        center=tuple(center.tolist()),
        scale=tuple(scale.tolist()),
        start=tuple(tuple(columns) for columns in start.tolist()),
        offset=offset,
    )


_FORMS = {"anchored": TargetForm.NAIVE_RATIO, "ranged": TargetForm.RANGED}
"""Meaning of targets by the profile's scaling; `LEVEL` for the others."""


def _typical(scaled_WHC: FloatArray, weight_W: FloatArray, *, is_mean: bool) -> FloatArray:
    """Return the weighted mean or median of each step and column, shape (H, C)."""
    if is_mean:
        return np.average(scaled_WHC, axis=0, weights=weight_W)
    if np.all(weight_W == weight_W[0]):
        return np.median(scaled_WHC, axis=0)
    return weighted_median(scaled_WHC, np.broadcast_to(weight_W[:, None, None], scaled_WHC.shape))


def _positive_median(values: FloatArray) -> float:
    """Return the median of the positive values; 0 without any."""
    positive = values[values > 0]
    return float(np.median(positive)) if len(positive) else 0.0


def _positive(scale: float) -> float:
    """Replace a scale of zero, of a column that never changes, by one."""
    return scale if scale > 0 else 1.0
