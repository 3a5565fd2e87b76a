"""The tasks: what can be forecast, and the arithmetic of a band's window of twenty closes that they share.

Everything that differs from task to task is a field of `Task`. Functions take their array namespace first,
`numpy` or `keras.ops`, so that the forecast a model is evaluated against and the one inside the published file
are the same lines of code. Slices are written as `take`, which every Keras can save. A task of one's own is
one file that calls `TASKS.register`.

Legend: N windows, H steps of the horizon, C columns of the task, P paths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8 import columns as c
from v8.columns import BAND_PERIOD_BARS, BAND_WIDTH_STDS, OHLC
from v8.registry import Named, Registry, read_descriptions

QUOTE_CURRENCY: Final = "quote currency"
UNITLESS: Final = "unitless"

PRICE_FLOOR_SHARE: Final = 0.01
"""Prices below this share of the window's price level are raised to it: a lower band can fall to zero."""

RANGE_TO_VARIANCE: Final = np.pi / 8
"""Variance of a random walk over its squared mean range: E[range] = sqrt(8 / pi) deviations (Feller 1951,
doi:10.1214/aoms/1177729589)."""


@dataclass(frozen=True, eq=False)
class Closes:
    """The coming closes, with mean and sample deviation of the twenty that end at each.

    Candles are open, high, low and close of each step as log ratios to the last close, shape (N, H, 4, P);
    None where only closes are foreseen. `middle` and `deviation` are (N, H, P) then.
    """

    unit: Any  # what the others are multiples of, such as the last close, (N, 1), quote currency; or 1
    close: Any  # at each step, (N, H)
    middle: Any  # mean of the twenty, (N, H)
    deviation: Any  # their sample deviation, (N, H)
    candles: Any = None


@dataclass(frozen=True, eq=False)
class Task(Named):
    """One thing forecast.

    Args:
        sides: Where a wider range moves each column: up, down, or, with 0, not at all.
        deviations: By how many deviations of the twenty closes a column lies off their middle, per unit of
            its side; None for what follows the walk of the closes itself.
        implied: Maps namespace and closes to what the task would be, shape (N, H, C).
        coherent: Maps namespace, values (N, H, C), last close (N, 1, 1) and the smallest value of a
            unitless task to values that can all be true at once.
        on_paths: Maps namespace, the task, closes along P paths and what sums up (N, H, C, P) over the paths
            to what that says of the task, in units of the last close.
    """

    title: str  # what readers call it
    columns: tuple[str, ...]  # what it forecasts, in the order of its output's last axis
    unit: str  # QUOTE_CURRENCY or UNITLESS; prices are evaluated as shares of the last close too
    colour: str  # its name in the palette
    sides: tuple[float, ...]
    deviations: float | None
    implied: Callable[[Any, Closes], Any]
    coherent: Callable[[Any, Any, Any, Any], Any]
    on_paths: Callable[..., Any] = lambda xp, task, closes, summed_up: summed_up(
        xp.transpose(task.implied(xp, closes), (0, 1, 3, 2))
    )

    @property
    def is_price(self) -> bool:
        """Whether it forecasts price levels, so that its errors have two units."""
        return self.unit == QUOTE_CURRENCY

    @property
    def has_window(self) -> bool:
        """Whether it follows from the twenty closes of a band's window, not from the last close alone."""
        return self.deviations is not None

    @property
    def min_lookback_bars(self) -> int:
        """Rows its naive forecast looks at."""
        return BAND_PERIOD_BARS if self.has_window else 1

    @property
    def max_horizon_bars(self) -> int | None:
        """Steps ahead up to which its naive forecast knows at least two closes; None without end."""
        return c.MAX_ROLLED_STEPS if self.has_window else None

    @property
    def is_moved(self) -> NDArray[np.float64]:
        """1 for the columns that a range moves, shape (C,)."""
        return np.abs(np.sign(np.array(self.sides)))

    @property
    def column_deviations(self) -> NDArray[np.float64]:
        """By how many deviations of the twenty closes each column lies off their middle, shape (C,)."""
        return np.array(self.sides) * (self.deviations or 0.0)

    def size(self, last_close: Any, share: Any = 1.0) -> Any:
        """Return what a share of the last close is in the task's unit; unitless tasks keep the share."""
        return last_close * share if self.is_price else share

    def floored(self, xp: Any, values: Any, reference: Any, floor: Any) -> Any:
        """Raise values, (N, H, C), to the smallest that has a logarithm worth learning.

        The first column of the reference, the naive forecast, stands for the price level; `floor` is
        the smallest value of a unitless task.
        """
        level = PRICE_FLOOR_SHARE * xp.take(reference, [0], axis=-1)
        return xp.maximum(values, level if self.is_price else floor)


_TOLD: Final = read_descriptions("v8", "tasks.yaml")


def _true_candles(xp: Any, values: Any, last: Any, least: Any) -> Any:
    """Low at most open and close, high at least; nothing below a share of the last close."""
    values = xp.maximum(values, PRICE_FLOOR_SHARE * last)
    opened = xp.take(values, [0], axis=-1)
    closed = xp.take(values, [3], axis=-1)
    high = xp.max(xp.take(values, [0, 1, 3], axis=-1), axis=-1, keepdims=True)
    low = xp.min(xp.take(values, [0, 2, 3], axis=-1), axis=-1, keepdims=True)
    return xp.concatenate([opened, high, low, closed], axis=-1)


def _bands(xp: Any, closes: Closes) -> Any:
    middle = closes.unit * closes.middle
    reach = closes.unit * (BAND_WIDTH_STDS * closes.deviation)
    return xp.stack([middle + reach, middle - reach], axis=-1)


def _bands_on_paths(xp: Any, task: "Task", closes: Closes, summed_up: Any) -> Any:
    """Sum up both bands; of numpy's arrays each band lies in one piece, as they are sorted."""
    if xp is not np:
        return Task.on_paths(xp, task, closes, summed_up)
    reach = BAND_WIDTH_STDS * closes.deviation
    return summed_up(np.stack([closes.middle + reach, closes.middle - reach], axis=2))


OHLC_TASK: Final = Task(
    **_TOLD[c.TASK_OHLC],
    columns=OHLC,
    unit=QUOTE_CURRENCY,
    sides=(0.0, 1.0, -1.0, 0.0),
    deviations=None,
    implied=lambda xp, closes: xp.repeat(xp.expand_dims(closes.unit * closes.close, -1), len(OHLC), axis=-1),
    coherent=_true_candles,
    # In logarithms, in which up and down are alike.
    on_paths=lambda xp, task, closes, summed_up: xp.exp(summed_up(closes.candles)),
)


BANDS_TASK: Final = Task(
    **_TOLD[c.TASK_BANDS],
    columns=(c.BB_UPPER, c.BB_LOWER),
    unit=QUOTE_CURRENCY,
    sides=(1.0, -1.0),
    deviations=BAND_WIDTH_STDS,
    implied=_bands,
    on_paths=_bands_on_paths,
    # The upper band is the larger of the two.
    coherent=lambda xp, values, last, least: xp.flip(xp.sort(values, axis=-1), axis=-1),
)


VOLATILITY_TASK: Final = Task(
    **_TOLD[c.TASK_VOLATILITY],
    columns=(c.VOLATILITY,),
    unit=UNITLESS,
    sides=(1.0,),
    deviations=1.0,
    implied=lambda xp, closes: xp.expand_dims(closes.deviation / closes.middle, -1),
    coherent=lambda xp, values, last, least: xp.maximum(values, least),  # above zero
)

TASKS: Final[Registry[Task]] = Registry("task", [OHLC_TASK, BANDS_TASK, VOLATILITY_TASK])
"""Every task, in the order of every report."""


def standing_closes(xp: Any, history_close: Any, horizon_bars: int, *, has_window: bool = True) -> Closes:
    """Say what follows if the close stays at the last close: the honest naive forecast of every task.

    Bands and volatility still move, because known closes leave their window and repeated last closes enter
    it. At step k it holds the newest 20 - k known closes and k times the last close, whose ratio minus one is
    zero, so suffix sums of the known ratios are all that is needed. The history is the last 20 known closes,
    oldest first, (N, 20), quote currency; fewer will do where mean and deviation are not wanted.
    """
    last = xp.take(history_close, [history_close.shape[1] - 1], axis=1)
    close = xp.ones((1, horizon_bars))
    if not has_window:
        return Closes(last, close, None, None)
    mean, deviation = window_moments(xp, history_close / last - 1.0, horizon_bars)
    return Closes(last, close, 1.0 + mean, deviation)


def window_moments(xp: Any, known: Any, num_steps: int, path: Any = None) -> tuple[Any, Any]:
    """Mean and sample deviation of the twenty closes at each step, as ratios to the last close less one.

    k steps ahead the window holds the newest 20 - k known closes, (N, 20), oldest first, and the first k of
    the path, (N, H, P), all as such ratios; without a path they stay at the last close. Two arrays (N, H, P),
    or (N, H), unitless.
    """
    total = suffix_sums(xp, known, num_steps)
    squares = suffix_sums(xp, xp.square(known), num_steps)
    if path is not None and xp is np:
        return _path_moments(total, squares, path)
    if path is not None:
        total = xp.expand_dims(total, 2) + running_sums(xp, path)
        squares = xp.expand_dims(squares, 2) + running_sums(xp, xp.square(path))
    mean = total / BAND_PERIOD_BARS
    variance = (squares - BAND_PERIOD_BARS * xp.square(mean)) / (BAND_PERIOD_BARS - 1)
    return mean, xp.sqrt(xp.maximum(variance, 0.0))


def _path_moments(total_NH: Any, squares_NH: Any, path_NHP: Any) -> tuple[Any, Any]:
    """Do what `window_moments` does, to the same bits, in few arrays: new memory costs as much as a sum."""
    mean = running_sums(np, path_NHP)
    np.add(total_NH[:, :, None], mean, out=mean)
    mean /= BAND_PERIOD_BARS
    spare = np.square(path_NHP)
    deviation = running_sums(np, spare)
    np.add(squares_NH[:, :, None], deviation, out=deviation)
    np.square(mean, out=spare)
    spare *= BAND_PERIOD_BARS
    deviation -= spare
    deviation /= BAND_PERIOD_BARS - 1
    np.maximum(deviation, 0.0, out=deviation)
    return mean, np.sqrt(deviation, out=deviation)


def running_sums(xp: Any, steps: Any) -> Any:
    """Sum up the steps so far, (N, H, ...), along the second axis."""
    if xp is not np:
        return xp.cumsum(steps, axis=1)
    # Numpy's own cumsum goes along one path after the other, which takes ten times as long.
    sums = np.array(steps)
    for step in range(1, sums.shape[1]):
        sums[:, step] += sums[:, step - 1]
    return sums


def suffix_sums(xp: Any, values: Any, num_steps: int) -> Any:
    """Sum what is left of values, (N, K), oldest first, when the oldest 1, 2, ... have gone: (N, num_steps).

    A product with a triangular matrix would say the same, but rounds a row by how many rows there are.
    """
    sums = xp.flip(xp.cumsum(xp.flip(values, axis=1), axis=1), axis=1)
    num_missing = num_steps + 1 - values.shape[1]
    if num_missing > 0:
        sums = xp.concatenate([sums, *[xp.zeros_like(values[:, :1])] * num_missing], axis=1)
    return xp.take(sums, [*range(1, num_steps + 1)], axis=1)


def future_weights(horizon_bars: int) -> NDArray[np.float64]:
    """Say how much each coming bar's variance adds to the variance of the closes of a band's window, (H,).

    k steps ahead, at most 20, the window holds 20 - k known closes and the first k points of a random walk
    from the last close. The sample variance of the twenty is expected to be that of the naive forecast
    plus the walk's variance per bar times what its k bars weigh by `variance_weights`, all together.

    >>> [round(float(weight), 3) for weight in future_weights(3)]  # (1 - 1/20) / 19 = 0.05 first
    [0.05, 0.145, 0.279]
    """
    weights: NDArray[np.float64] = variance_weights(horizon_bars).sum(axis=1)
    return weights


def variance_weights(horizon_bars: int) -> NDArray[np.float64]:
    """Say how much each coming bar adds to the variance of a band's window: by step, then by bar, (H, H).

    k steps ahead, at most 20, bar j, at most k, has moved the newest n = k - j + 1 of the twenty closes
    alike, which adds n (1 - n / 20) / 19 of its variance to their sample variance. Rows add up to
    `future_weights`.

    >>> [round(float(weight), 3) for weight in variance_weights(2)[1]]  # n = 2, then n = 1
    [0.095, 0.05]
    """
    steps = np.arange(1, horizon_bars + 1)
    moved = np.maximum(steps[:, None] - steps[None, :] + 1.0, 0.0)
    return moved * (1.0 - moved / BAND_PERIOD_BARS) / (BAND_PERIOD_BARS - 1)
