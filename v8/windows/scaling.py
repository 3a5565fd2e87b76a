"""Scaling: constants fitted on train rows only, invertible, saved with the model.

Three ways, chosen by the profile:

* `anchored`: price levels enter as log ratio to the window's last close over the train deviation of
  log returns; differences of prices are divided by the close; skewed positive columns are logged;
  then all but prices are centred and divided by their deviation. A target is the log ratio of the
  actual values to the naive forecast over that ratio's deviation.
* `ranged`: inputs as in `anchored`. A target is the distance of the actual values from the naive forecast in
  units of the recent range (and of the last close, for prices). Forecasts are evaluated by their error in
  returns, in which a window counts by its recent range, so that is its weight in every mean and loss.
* `standard`, `minmax`: the lineage's scalers on plain levels, inputs and targets alike. They are kept
  so that anyone can see the difference; nothing else is fitted to them.

Whatever the way, an untrained network is the strongest constant forecast: `start` holds the median
(absolute and Huber loss) or mean (squared loss) of the scaled target per task, step and column.

Shape legend: N rows, W windows, F features, H horizon, C columns of a task.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.arrays import FloatArray
from v8.columns import CLOSE, RECENT_RANGE, VOLATILITY, beside, parted
from v8.errors import SeriesError
from v8.features.formulas import Kind
from v8.features.indicators import FEATURES
from v8.profile import Profile
from v8.tasks import TASKS
from v8.windows.regression import weighted_median
from v8.windows.span import Span, unheld_waves

VOLATILITY_FLOOR_SHARE = 0.05
"""Volatilities below this share of the train median are raised to it before a logarithm.

A dead market (no trade for 20 bars) has volatility zero, whose logarithm would rule the whole loss.
"""

RANGE_FLOOR_SHARE = 0.05
"""Recent ranges below this share of the train median are raised to it: they divide targets."""

LOG_FLOOR_SHARE = 1e-3
"""Likewise for logged inputs: the smallest value that is told apart, as a share of the train median."""

SILENT_SCALE: Final = 3e38
"""Scale of an input that is to say nothing: waves over it are no number that single precision adds to others.
What it is made of stays as it is, so that the published models of one profile remain one network."""

WINDOWS_AT_ONCE: Final = 65_536
"""Windows whose logarithms are taken at once: of a million they would fill gigabytes on the way."""


class Transform(StrEnum):
    """How one input column is brought to unit size."""

    ANCHORED = "log(x / last close) / scale"
    RELATIVE = "(x / close - center) / scale"
    LOGGED = "(log(max(x, floor)) - center) / scale"
    LEVEL = "(x - center) / scale"


class TargetForm(StrEnum):
    """How one task's actual values are brought to unit size."""

    NAIVE = "log(x / naive forecast) / scale"
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
    form: TargetForm  # what the network's output means
    center: tuple[float, ...]  # per column, shape (C,); zeros but under `LEVEL`
    scale: tuple[float, ...]  # per column, shape (C,); one common value but under `LEVEL`, which keeps order
    start: tuple[tuple[float, ...], ...]  # scaled constant forecast per step and column, shape (H, C)
    offset: tuple[
        tuple[float, ...], ...
    ]  # median log ratio of actual values to the naive forecast in training, (H, C)


@dataclass(frozen=True)
class Scaling:
    """Everything that turns prices into numbers near one, and back; columns and tasks as in the profile."""

    columns: tuple[ColumnScaling, ...]
    tasks: tuple[TaskScaling, ...]
    reference_price: float  # median train close; keeps float32 logarithms small, cancels out in windows
    volatility_floor: float  # smallest volatility told apart, unitless
    range_floor: float = 0.0  # smallest recent range that divides a target, unitless; 0 unless `ranged`

    @property
    def structure(self) -> tuple[Hashable, ...]:
        """What decides the arithmetic; scalings of one structure differ in constants alone."""
        forms = [(task.task, task.form) for task in self.tasks]
        return (*(column.transform for column in self.columns), *forms, self.range_floor > 0)

    def task(self, name: str) -> TaskScaling:
        """Return the constants of one task."""
        return next(task for task in self.tasks if task.task == name)

    def scale_inputs(self, table_NF: FloatArray, closes: Mapping[str, FloatArray]) -> NDArray[np.float32]:
        """Scale raw rows, (N, F), float32; anchored columns still miss their last close, see `anchored_mask`.

        Closes of each row, quote currency, (N,), are by origin: "" for the series' own, and those of other
        series whose prices are among the columns.
        """
        scaled = []
        for column, x_N in zip(self.columns, table_NF.T, strict=True):
            origin = parted(column.name)[0]
            price = 1.0 if origin else self.reference_price
            close_N = closes.get(origin)
            shaped = shape_inputs(np, column.transform, x_N, close=close_N, anchor=price, floor=column.floor)
            scaled.append((shaped - column.center) / column.scale)
        return np.stack(scaled, axis=1).astype(np.float32)

    def anchored_mask(self, origin: str = "") -> NDArray[np.float32]:
        """Return 1 for columns from which a window subtracts its last scaled close, shape (F,).

        The origin is "" for the series itself, else the symbol of another one.
        """
        anchored = (each.name if each.transform is Transform.ANCHORED else None for each in self.columns)
        return np.array([name is not None and parted(name)[0] == origin for name in anchored], np.float32)

    def floored_range(self, range_W: FloatArray) -> FloatArray:
        """Raise recent ranges to the smallest one that divides a target, shape (W,), unitless."""
        return np.maximum(range_W, self.range_floor)

    def scale_targets(self, span: Span, task: str) -> NDArray[np.float32]:
        """Turn the actual values of a task into a network's targets, (W, H, C), unitless."""
        constants = self.task(task)
        actual_WHC = span.actual[task]
        if constants.form is TargetForm.LEVEL:
            moved = actual_WHC - np.array(constants.center)
        elif constants.form is TargetForm.RANGED:
            moved = _range_distance(task, span, actual_WHC, self.range_floor)
        else:
            moved = _log_ratio(task, span, actual_WHC, self.volatility_floor)
        return (moved / np.array(constants.scale)).astype(np.float32)


def shape_inputs(xp: Any, transform: Transform, x: Any, *, close: Any, anchor: Any, floor: Any) -> Any:
    """Shape raw columns before they are centred and divided; the published model does so too.

    `xp` is `numpy` or `keras.ops`, the close of the same rows, the anchor a price that `ANCHORED` takes
    logarithms against, and the floor the smallest value that `LOGGED` tells apart.
    """
    if transform is Transform.ANCHORED:
        return xp.log(x / anchor)
    if transform is Transform.RELATIVE:
        return x / close
    return xp.log(xp.maximum(x, floor)) if transform is Transform.LOGGED else x


def restore(xp: Any, form: TargetForm, stretched: Any, *, reference: Any, unit: Any, center: Any) -> Any:
    """Turn targets times their scale, (W, H, C), back into the task's unit; the published model does so too.

    The reference is the naive forecast, floored where its logarithm was taken, the unit what a recent
    range is in the task's unit, (W, 1, 1), for `RANGED` only, and the center, per column, for `LEVEL` only.
    """
    if form is TargetForm.RANGED:
        return reference + stretched * unit
    if form is TargetForm.NAIVE:
        return reference * xp.exp(stretched)
    return stretched + center


def fit_scaling(train: Span, rows: tuple[int, int], columns: Sequence[str]) -> Scaling:
    """Fit every constant on the train span, rows from the first to before the last of `rows`.

    Inputs are fitted to features, close, volatility and recent range in `columns`. A SeriesError tells that
    the close never moves, so that nothing can be scaled by it.
    """
    profile = train.profile
    where = str(train.table.series)
    raw = {name: train.table.column(name)[slice(*rows)].astype(np.float64) for name in columns}
    close = raw[CLOSE]
    volatility = raw[VOLATILITY]
    floor = VOLATILITY_FLOOR_SHARE * _positive_median(volatility)
    is_ranged = profile.scaling == "ranged"
    fix = "Leave this series out or fetch another span"
    range_floor = RANGE_FLOOR_SHARE * _positive_median(raw[RECENT_RANGE]) if is_ranged else 0.0
    if not floor or float(np.std(np.diff(np.log(close)))) == 0:
        rule = "the close must move on the train span"
        got = "one price throughout"
        raise SeriesError(where=where, rule=rule, got=got, fix=fix)
    if is_ranged and not range_floor:
        rule = "some bar of the train span must trade at more than one price with scaling: ranged"
        raise SeriesError(where=where, rule=rule, got="high equal to low throughout", fix=fix)
    fitted = [_fit_column(profile, name, raw) for name in profile.features]
    for place in unheld_waves(train, profile.features):
        fitted[place] = replace(fitted[place], scale=SILENT_SCALE)
    return Scaling(
        columns=tuple(fitted),
        tasks=tuple(_fit_task(train, task, floor, range_floor) for task in profile.tasks),
        reference_price=float(np.median(close)),
        volatility_floor=floor,
        range_floor=range_floor,
    )


def _log_ratio(task: str, span: Span, values_WHC: FloatArray, volatility_floor: float) -> FloatArray:
    """Return log(values / the naive forecast) with both raised to the task's floor, shape (W, H, C)."""
    rolled_WHC = span.naive[task]
    ratio_WHC = np.empty(values_WHC.shape)
    for start in range(0, len(span), WINDOWS_AT_ONCE):
        part = slice(start, start + WINDOWS_AT_ONCE)
        rolled = rolled_WHC[part]
        top, bottom = (
            TASKS[task].floored(np, values, rolled, volatility_floor) for values in (values_WHC[part], rolled)
        )
        ratio_WHC[part] = np.log(top / bottom)
    return ratio_WHC


def _range_distance(task: str, span: Span, values_WHC: FloatArray, range_floor: float) -> FloatArray:
    """Return the distance from the naive forecast in recent ranges, shape (W, H, C)."""
    unit_W11 = span.unit(task, np.maximum(span.recent_range, range_floor))
    return (values_WHC - span.naive[task]) / unit_W11


def _fit_column(profile: Profile, name: str, raw: Mapping[str, FloatArray]) -> ColumnScaling:
    x_N = raw[name]
    origin = parted(name)[0]
    if profile.scaling == "minmax":
        low = float(x_N.min())
        high = float(x_N.max())
        return ColumnScaling(name, Transform.LEVEL, low, _positive(high - low), 0.0)
    transform = Transform.LEVEL
    if profile.scaling != "standard":
        transform = _ANCHORED_TRANSFORMS.get(FEATURES[name].kind, transform)
    close_N = raw.get(beside(origin, CLOSE))
    if transform is Transform.ANCHORED and close_N is not None:
        # The reference of others is their center: like `reference_price` it cancels out in windows.
        center = float(np.log(np.median(close_N))) if origin else 0.0
        return ColumnScaling(name, transform, center, _positive(float(np.std(np.diff(np.log(close_N))))), 0.0)
    floor = LOG_FLOOR_SHARE * (_positive_median(x_N) or 1.0)
    shaped = shape_inputs(np, transform, x_N, close=close_N, anchor=None, floor=floor)
    return ColumnScaling(name, transform, float(shaped.mean()), _positive(float(shaped.std())), floor)


def _fit_task(train: Span, task: str, floor: float, range_floor: float) -> TaskScaling:
    profile = train.profile
    num_columns = len(TASKS[task].columns)
    weight_W = np.maximum(train.recent_range, range_floor)
    actual_WHC = train.actual[task]
    ratio = _log_ratio(task, train, actual_WHC, floor)
    offset = tuple(map(tuple, np.median(ratio, axis=0).tolist()))
    form = _FORMS.get(profile.scaling, TargetForm.LEVEL)
    if form is TargetForm.LEVEL:
        flat = actual_WHC.reshape(-1, num_columns)
        is_standard = profile.scaling == "standard"
        center = flat.mean(axis=0) if is_standard else flat.min(axis=0)
        spread = flat.std(axis=0) if is_standard else np.ptp(flat, axis=0)
        moved = actual_WHC - center
        scale = np.array([_positive(float(value)) for value in spread])
    else:
        if form is TargetForm.NAIVE:
            moved = ratio
            size = np.sqrt(ratio.var(axis=0).mean())
        else:
            moved = _range_distance(task, train, actual_WHC, range_floor)
            # The naive forecast's mean error becomes one, so a loss reads as a multiple of it.
            size = np.average(np.abs(moved), axis=0, weights=weight_W).mean()
        # One scale for all columns of a task keeps their order: high above close stays above.
        center = np.zeros(num_columns)
        scale = np.full(num_columns, _positive(float(size)))
    scaled = np.divide(moved, scale, out=moved)
    start = _typical(scaled, weight_W, is_mean=profile.tasks[task].loss == "mse")
    return TaskScaling(
        task=task,
        form=form,
        center=tuple(center.tolist()),
        scale=tuple(scale.tolist()),
        start=tuple(map(tuple, start.tolist())),
        offset=offset,
    )


_FORMS = {"anchored": TargetForm.NAIVE, "ranged": TargetForm.RANGED}
"""What targets mean by the profile's scaling; `LEVEL` with any other."""


def _typical(scaled_WHC: FloatArray, weight_W: FloatArray, *, is_mean: bool) -> FloatArray:
    """Return the weighted mean or median of each step and column, shape (H, C)."""
    if is_mean:
        return np.average(scaled_WHC, axis=0, weights=weight_W)
    if np.all(weight_W == weight_W[0]):
        return np.median(scaled_WHC, axis=0)
    return weighted_median(scaled_WHC, np.broadcast_to(weight_W[:, None, None], scaled_WHC.shape))


def _positive_median(values: FloatArray) -> float:
    """Return the median of those above zero; 0 where none is."""
    positive = values[values > 0]
    return float(np.median(positive)) if len(positive) else 0.0


def _positive(scale: float) -> float:
    """Leave a column that never changes as it is: dividing by one is harmless, by zero is not."""
    return scale if scale > 0 else 1.0
