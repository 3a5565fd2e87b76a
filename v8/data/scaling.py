"""Scaling: constants fitted on train rows only, invertible, saved with the model.

Three ways, chosen by the profile:

* `anchored`: price levels enter as log ratio to the window's last close over the train deviation of
  log returns; differences of prices are divided by the close; skewed positive columns are logged;
  then all but prices are centred and divided by their deviation. A target is the log ratio of the
  truth to the roll-forward forecast over that ratio's deviation.
* `ranged`: inputs as in `anchored`. A target is the distance of the truth from the roll-forward forecast in
  units of the recent range (and of the last close, for prices). Forecasts are judged by their error in
  returns, in which a window counts by its recent range, so that is its weight in every mean and loss.
* `standard`, `minmax`: the lineage's scalers on plain levels, inputs and targets alike. They are kept
  so that anyone can see the difference; nothing else is fitted to them.

Whatever the way, an untrained network is the strongest constant forecast: `start` holds the median
(absolute and Huber loss) or mean (squared loss) of the scaled target per task, step and column.

Shape legend: N rows, W windows, F features, H horizon, C columns of a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from v8.columns import (
    CLOSE,
    RECENT_RANGE,
    TASK_COLUMNS,
    TASK_OHLC,
    TASK_VOLATILITY,
    VOLATILITY,
)
from v8.data.medians import weighted_median
from v8.errors import SeriesError
from v8.features.indicators import FEATURES, Kind
from v8.profile import Profile

VOLATILITY_FLOOR_SHARE = 0.05
"""Volatilities below this share of the train median are raised to it before a logarithm.

A dead market (no trade for 20 bars) has volatility zero, whose logarithm would rule the whole loss.
"""

RANGE_FLOOR_SHARE = 0.05
"""Recent ranges below this share of the train median are raised to it: they divide targets."""

LOG_FLOOR_SHARE = 1e-3
"""Likewise for logged inputs: the smallest value that is told apart, as a share of the train median."""

PRICE_FLOOR_SHARE = 0.01
"""Prices below this share of the last close are raised to it: a lower band can fall to zero."""


class Transform(StrEnum):
    """How one input column is brought to unit size."""

    ANCHORED = "log(x / last close) / scale"
    RELATIVE = "(x / close - center) / scale"
    LOGGED = "(log(max(x, floor)) - center) / scale"
    LEVEL = "(x - center) / scale"


class TargetForm(StrEnum):
    """How one task's truth is brought to unit size."""

    ROLL_FORWARD = "log(x / roll-forward forecast) / scale"
    RANGED = "(x - roll-forward forecast) / (recent range, times last close for prices) / scale"
    LEVEL = "(x - center) / scale"


_ANCHORED_TRANSFORMS = {
    Kind.PRICE: Transform.ANCHORED,
    Kind.PRICE_CHANGE: Transform.RELATIVE,
    Kind.POSITIVE: Transform.LOGGED,
    Kind.CENTRED: Transform.LEVEL,
}


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
    """Constants of one task.

    Args:
        task: A key of `TASK_COLUMNS`.
        form: What the network's output means.
        center: Per column, shape (C,); zeros but under `LEVEL`.
        scale: Per column, shape (C,); one common value but under `LEVEL`, which keeps order.
        start: Scaled constant forecast per step and column, shape (H, C).
        offset: Median log ratio of truth to roll-forward on train windows, shape (H, C).
    """

    task: str
    form: TargetForm
    center: tuple[float, ...]
    scale: tuple[float, ...]
    start: tuple[tuple[float, ...], ...]
    offset: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class ScalingStructure:
    """What of a scaling decides the arithmetic; scalings of one structure differ in constants alone.

    Args:
        transforms: Of each input column, in the profile's order.
        forms: Each task and what the network's output for it means, in the profile's order.
        has_range_floor: Whether a recent range divides the targets.
    """

    transforms: tuple[Transform, ...]
    forms: tuple[tuple[str, TargetForm], ...]
    has_range_floor: bool


@dataclass(frozen=True)
class Scaling:
    """Everything that turns prices into numbers near one, and back.

    Args:
        columns: Input columns in the profile's order.
        tasks: Tasks in the profile's order.
        reference_price: Median train close; keeps float32 logarithms small, cancels out in windows.
        volatility_floor: Smallest volatility told apart, unitless.
        range_floor: Smallest recent range that divides a target, unitless; 0 unless `ranged`.
    """

    columns: tuple[ColumnScaling, ...]
    tasks: tuple[TaskScaling, ...]
    reference_price: float
    volatility_floor: float
    range_floor: float = 0.0

    @property
    def structure(self) -> ScalingStructure:
        """What decides the arithmetic, whatever the constants."""
        return ScalingStructure(
            transforms=tuple(column.transform for column in self.columns),
            forms=tuple((task.task, task.form) for task in self.tasks),
            has_range_floor=self.range_floor > 0,
        )

    def task(self, name: str) -> TaskScaling:
        """Return the constants of one task."""
        return next(task for task in self.tasks if task.task == name)

    def scale_inputs(
        self, table_NF: NDArray[np.float64], close_N: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        """Scale whole rows; anchored columns still miss their last close, see `anchored_mask`.

        Args:
            table_NF: Raw feature columns in the profile's order.
            close_N: Close of each row, quote currency.

        Returns:
            Shape (N, F), float32, unitless.
        """
        scaled = [
            self._scale_column(column, table_NF[:, number], close_N)
            for number, column in enumerate(self.columns)
        ]
        return np.stack(scaled, axis=1).astype(np.float32)

    def anchored_mask(self) -> NDArray[np.float32]:
        """Return 1 for columns from which a window subtracts its last scaled close, shape (F,)."""
        return np.array([column.transform is Transform.ANCHORED for column in self.columns], np.float32)

    def floored_range(self, range_W: NDArray[np.float64]) -> NDArray[np.float64]:
        """Raise recent ranges to the smallest one that divides a target, shape (W,), unitless."""
        return np.maximum(range_W, self.range_floor)

    def scale_target(
        self,
        task: str,
        truth_WHC: NDArray[np.float64],
        reference_WHC: NDArray[np.float64],
        unit_W: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float32]:
        """Turn true values into what the network is asked for.

        Args:
            task: A key of `TASK_COLUMNS`.
            truth_WHC: True values, quote currency (volatility unitless).
            reference_WHC: Roll-forward forecast of the same shape and unit.
            unit_W: What `target_unit` gives for each window, shape (W,); `RANGED` needs it.

        Returns:
            Shape (W, H, C), float32, unitless.
        """
        constants = self.task(task)
        if constants.form is TargetForm.LEVEL:
            return ((truth_WHC - np.array(constants.center)) / np.array(constants.scale)).astype(np.float32)
        if constants.form is TargetForm.RANGED:
            return (_ranged(truth_WHC, reference_WHC, unit_W) / np.array(constants.scale)).astype(np.float32)
        ratio = log_ratio(task, truth_WHC, reference_WHC, self.volatility_floor)
        return (ratio / np.array(constants.scale)).astype(np.float32)

    def restore_target(
        self,
        task: str,
        scaled_WHC: NDArray[np.float32],
        reference_WHC: NDArray[np.float64],
        unit_W: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Undo `scale_target`, up to its floors; same shapes and units."""
        constants = self.task(task)
        stretched = scaled_WHC.astype(np.float64) * np.array(constants.scale)
        if constants.form is TargetForm.LEVEL:
            return stretched + np.array(constants.center)
        if constants.form is TargetForm.RANGED:
            assert unit_W is not None  # noqa: S101 - whoever scaled with a unit has it
            return reference_WHC + stretched * unit_W[:, None, None]
        return _floored(task, reference_WHC, reference_WHC, self.volatility_floor) * np.exp(stretched)

    def _scale_column(
        self, column: ColumnScaling, x_N: NDArray[np.float64], close_N: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        if column.transform is Transform.ANCHORED:
            return np.log(x_N / self.reference_price) / column.scale
        shaped = _shaped(column.transform, x_N, close_N, column.floor)
        return (shaped - column.center) / column.scale


def fit_scaling(
    profile: Profile,
    columns: dict[str, NDArray[np.float64]],
    truth: dict[str, NDArray[np.float64]],
    reference: dict[str, NDArray[np.float64]],
    *,
    window_range: NDArray[np.float64],
    where: str,
) -> Scaling:
    """Fit every constant on the train span.

    Args:
        profile: Gives features, tasks, losses and the way of scaling.
        columns: Train rows of each feature and of close and volatility, shape (N,).
        truth: Train windows' true values per task, shape (W, H, C).
        reference: Their roll-forward forecasts, same shapes.
        window_range: Recent range at their last known bar, shape (W,), unitless; read if `ranged`.
        where: Name of the series, for the error.

    Raises:
        SeriesError: If the close never moves on the train span, so that nothing can be scaled by it.
    """
    close = columns[CLOSE]
    volatility = columns[VOLATILITY]
    if not np.any(volatility > 0) or float(np.std(np.diff(np.log(close)))) == 0:
        raise SeriesError(
            where=where,
            rule="the close must move on the train span",
            got="one price throughout",
            fix="Leave this series out or fetch another span",
        )
    floor = VOLATILITY_FLOOR_SHARE * float(np.median(volatility[volatility > 0]))
    range_floor = 0.0
    range_W = np.ones(len(truth[TASK_OHLC]))
    if profile.scaling == "ranged":
        range_floor = _range_floor(columns[RECENT_RANGE], where)
        range_W = np.maximum(window_range, range_floor)
    last_W = reference[TASK_OHLC][:, 0, 0]
    return Scaling(
        columns=tuple(_fit_column(profile, name, columns[name], close) for name in profile.features),
        tasks=tuple(
            _fit_task(
                profile,
                task,
                _Lesson(truth[task], reference[task], target_unit(task, last_W, range_W), range_W),
                floor,
            )
            for task in profile.tasks
        ),
        reference_price=float(np.median(close)),
        volatility_floor=floor,
        range_floor=range_floor,
    )


def _range_floor(recent_range: NDArray[np.float64], where: str) -> float:
    moving = recent_range[recent_range > 0]
    if not len(moving):
        raise SeriesError(
            where=where,
            rule="some bar of the train span must trade at more than one price with scaling: ranged",
            got="high equal to low throughout",
            fix="Leave this series out or fetch another span",
        )
    return RANGE_FLOOR_SHARE * float(np.median(moving))


def target_unit(
    task: str, last_close_W: NDArray[np.float64], range_W: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return what one recent range is in the unit of a task, shape (W,).

    Args:
        task: A key of `TASK_COLUMNS`.
        last_close_W: Last known close, quote currency.
        range_W: Recent range, floored, unitless.
    """
    return range_W if task == TASK_VOLATILITY else last_close_W * range_W


def log_ratio(
    task: str,
    truth_WHC: NDArray[np.float64],
    reference_WHC: NDArray[np.float64],
    volatility_floor: float,
) -> NDArray[np.float64]:
    """Return log(truth / roll-forward) with both raised to the task's floor, shape (W, H, C)."""
    top = _floored(task, truth_WHC, reference_WHC, volatility_floor)
    bottom = _floored(task, reference_WHC, reference_WHC, volatility_floor)
    ratio: NDArray[np.float64] = np.log(top / bottom)
    return ratio


def _floored(
    task: str,
    values: NDArray[np.float64],
    reference: NDArray[np.float64],
    volatility_floor: float,
) -> NDArray[np.float64]:
    if task == TASK_VOLATILITY:
        return np.maximum(values, volatility_floor)
    # The upper band or any OHLC column of the reference stands for the price level of its window.
    level = reference[:, :, :1]
    return np.maximum(values, PRICE_FLOOR_SHARE * level)


def _shaped(
    transform: Transform, x_N: NDArray[np.float64], close_N: NDArray[np.float64], floor: float
) -> NDArray[np.float64]:
    if transform is Transform.RELATIVE:
        return x_N / close_N
    if transform is Transform.LOGGED:
        logged: NDArray[np.float64] = np.log(np.maximum(x_N, floor))
        return logged
    return x_N


def _fit_column(
    profile: Profile, name: str, x_N: NDArray[np.float64], close_N: NDArray[np.float64]
) -> ColumnScaling:
    if profile.scaling == "minmax":
        low, high = float(x_N.min()), float(x_N.max())
        return ColumnScaling(name, Transform.LEVEL, low, _positive(high - low), 0.0)
    is_level = profile.scaling == "standard"
    transform = Transform.LEVEL if is_level else _ANCHORED_TRANSFORMS[FEATURES[name].kind]
    if transform is Transform.ANCHORED:
        return ColumnScaling(name, transform, 0.0, float(np.std(np.diff(np.log(close_N)))), 0.0)
    positive = x_N[x_N > 0]
    floor = LOG_FLOOR_SHARE * float(np.median(positive)) if len(positive) else LOG_FLOOR_SHARE
    shaped = _shaped(transform, x_N, close_N, floor)
    return ColumnScaling(name, transform, float(shaped.mean()), _positive(float(shaped.std())), floor)


@dataclass(frozen=True)
class _Lesson:
    """Train windows of one task: truth and roll-forward (W, H, C), unit and weight (W,)."""

    truth_WHC: NDArray[np.float64]
    reference_WHC: NDArray[np.float64]
    unit_W: NDArray[np.float64]
    weight_W: NDArray[np.float64]


def _fit_task(profile: Profile, task: str, lesson: _Lesson, floor: float) -> TaskScaling:
    num_columns = len(TASK_COLUMNS[task])
    ratio = log_ratio(task, lesson.truth_WHC, lesson.reference_WHC, floor)
    form, center, scale = _FORMS[profile.scaling], np.zeros(num_columns), np.ones(num_columns)
    if form is TargetForm.ROLL_FORWARD:
        # One scale for all columns of a task keeps their order: high above close stays above.
        scale = scale * _positive(float(np.sqrt(ratio.var(axis=0).mean())))
        scaled = ratio / scale
    elif form is TargetForm.RANGED:
        moved = _ranged(lesson.truth_WHC, lesson.reference_WHC, lesson.unit_W)
        # The naive forecast's mean error becomes one, so a loss reads as a multiple of it.
        mean_WHC = np.average(np.abs(moved), axis=0, weights=lesson.weight_W)
        scale = scale * _positive(float(mean_WHC.mean()))
        scaled = moved / scale
    else:
        flat = lesson.truth_WHC.reshape(-1, num_columns)
        is_standard = profile.scaling == "standard"
        center = flat.mean(axis=0) if is_standard else flat.min(axis=0)
        spread = flat.std(axis=0) if is_standard else np.ptp(flat, axis=0)
        scale = np.array([_positive(float(value)) for value in spread])
        scaled = (lesson.truth_WHC - center) / scale
    is_mean = profile.tasks[task].loss == "mse"
    return TaskScaling(
        task=task,
        form=form,
        center=_floats(center),
        scale=_floats(scale),
        start=tuple(_floats(row) for row in _typical(scaled, lesson.weight_W, is_mean=is_mean)),
        offset=tuple(_floats(row) for row in np.median(ratio, axis=0)),
    )


_FORMS = {
    "anchored": TargetForm.ROLL_FORWARD,
    "ranged": TargetForm.RANGED,
    "standard": TargetForm.LEVEL,
    "minmax": TargetForm.LEVEL,
}


def _ranged(
    truth_WHC: NDArray[np.float64], reference_WHC: NDArray[np.float64], unit_W: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    assert unit_W is not None  # noqa: S101 - the form and its unit are chosen together
    return (truth_WHC - reference_WHC) / unit_W[:, None, None]


def _typical(
    scaled_WHC: NDArray[np.float64], weight_W: NDArray[np.float64], *, is_mean: bool
) -> NDArray[np.float64]:
    """Return the weighted mean or median of each step and column, shape (H, C)."""
    if is_mean:
        return np.average(scaled_WHC, axis=0, weights=weight_W)
    if np.all(weight_W == weight_W[0]):
        return np.median(scaled_WHC, axis=0)
    return weighted_median(scaled_WHC, np.broadcast_to(weight_W[:, None, None], scaled_WHC.shape))


def _positive(scale: float) -> float:
    """Leave a column that never changes as it is: dividing by one is harmless, by zero is not."""
    return scale if scale > 0 else 1.0


def _floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
