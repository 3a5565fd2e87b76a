"""What is judged: the truth of the test span, a model's forecasts of it and what was known before.

Arrays are checked when they are put together, so whoever holds a `Forecasts` may compare them. NumPy
would broadcast a truth of shape (N, 1, 4) against forecasts of shape (N, 4) without a word and judge
every window against every other one; here that is an error.

Legend: N windows, H steps of the horizon, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from v8.columns import BAND_PERIOD_BARS, TASK_COLUMNS, TASK_OHLC
from v8.errors import SeriesError, listed
from v8.evaluation.past import Floats, Past


@dataclass(frozen=True)
class Forecasts:
    """A test span: truth, forecasts and the closes each window knew.

    Args:
        truth: Per task, shape (N, H, C), float; quote currency, volatility unitless.
        model: The same tasks, shapes and units, float32 or float64.
        history_close: Closes of the last 20 known rows, oldest first, shape (N, 20), quote currency.
        offsets: Per task, shape (H, C): log ratio of the typical truth to the roll-forward forecast,
            fitted on the train span (its median residual), unitless.
        series: What error messages name; "BTCUSDT-15m".
        bar_numbers: Bar of each window's last known row, counted from any bar of the series, strictly
            ascending, shape (N,), int64; None when the windows follow one another bar by bar.
        past: What baselines may learn from; None leaves out those that are fitted to the train span.

    Raises:
        SeriesError: If there is no window, tasks or shapes differ, a number is not finite, or bars do not
            ascend.
    """

    truth: Mapping[str, Floats]
    model: Mapping[str, Floats]
    history_close: Floats
    offsets: Mapping[str, Floats]
    series: str = "the test span"
    bar_numbers: NDArray[np.int64] | None = None
    past: Past | None = None

    def __post_init__(self) -> None:
        _check_tasks(self)
        _check_history(self)
        _check_shapes(self)
        _check_numbers(self)
        _check_bars(self)

    @property
    def num_windows(self) -> int:
        """Windows of the test span."""
        return len(self.history_close)

    @property
    def horizon_bars(self) -> int:
        """Steps ahead."""
        return int(self.truth[TASK_OHLC].shape[1])

    @property
    def last_close(self) -> NDArray[np.float64]:
        """Last known close of each window, shape (N,), float64, quote currency."""
        return self.history_close[:, -1].astype(np.float64)


def _check_tasks(forecasts: Forecasts) -> None:
    tasks = set(forecasts.truth)
    if TASK_OHLC not in tasks or not tasks <= set(TASK_COLUMNS):
        raise SeriesError(
            where=f"{forecasts.series}, truth",
            rule=f"holds {TASK_OHLC} and no task but {', '.join(TASK_COLUMNS)}",
            got=listed(sorted(tasks)) or "no task",
            fix="Pass the tasks of the profile",
        )
    for name, arrays in (("model", forecasts.model), ("offsets", forecasts.offsets)):
        if set(arrays) != tasks:
            raise SeriesError(
                where=f"{forecasts.series}, {name}",
                rule=f"holds the tasks of the truth ({', '.join(sorted(tasks))})",
                got=listed(sorted(arrays)) or "no task",
                fix="Pass one array for each task of the profile",
            )


def _check_history(forecasts: Forecasts) -> None:
    shape = forecasts.history_close.shape
    if len(shape) != 2 or shape[0] == 0 or shape[1] != BAND_PERIOD_BARS:
        raise SeriesError(
            where=f"{forecasts.series}, history_close",
            rule=f"has the shape (windows, {BAND_PERIOD_BARS}) with at least one window",
            got=f"the shape {shape}",
            fix="Use a longer history with --bars, so that the test span holds a window",
        )


def _check_shapes(forecasts: Forecasts) -> None:
    horizon_bars = forecasts.truth[TASK_OHLC].shape[1] if forecasts.truth[TASK_OHLC].ndim > 1 else 0
    for task, columns in TASK_COLUMNS.items():
        if task not in forecasts.truth:
            continue
        cells = (max(1, horizon_bars), len(columns))
        windows = (len(forecasts.history_close), *cells)
        _check_shape(forecasts, "truth", task, windows)
        _check_shape(forecasts, "model", task, windows)
        _check_shape(forecasts, "offsets", task, cells)


def _check_shape(forecasts: Forecasts, name: str, task: str, expected: tuple[int, ...]) -> None:
    got = getattr(forecasts, name)[task].shape
    if got != expected:
        raise SeriesError(
            where=f"{forecasts.series}, {name} of {task}",
            rule=f"has the shape {expected}, as truth and history give it",
            got=f"the shape {got}",
            fix="Give every task the axes (windows, steps, columns), and offsets (steps, columns)",
        )


def _check_numbers(forecasts: Forecasts) -> None:
    if not np.all(np.isfinite(forecasts.history_close) & (forecasts.history_close > 0)):
        raise SeriesError(
            where=f"{forecasts.series}, history_close",
            rule="holds positive prices",
            got=_first_bad(forecasts.history_close, minimum=0.0),
            fix="Check the candles of this series",
        )
    for name in ("truth", "model", "offsets"):
        for task, values in getattr(forecasts, name).items():
            if not np.all(np.isfinite(values)):
                raise SeriesError(
                    where=f"{forecasts.series}, {name} of {task}",
                    rule="holds finite numbers",
                    got=_first_bad(values),
                    fix="Train again with a lower learning_rate or a clip_norm"
                    if name == "model"
                    else "Check the candles of this series",
                )


def _check_bars(forecasts: Forecasts) -> None:
    bars = forecasts.bar_numbers
    if bars is not None and (bars.shape != (forecasts.num_windows,) or np.any(np.diff(bars) <= 0)):
        raise SeriesError(
            where=f"{forecasts.series}, bar_numbers",
            rule=f"holds one bar for each of {forecasts.num_windows} windows, strictly ascending",
            got=f"the shape {bars.shape}, "
            + ("ascending" if np.all(np.diff(bars) > 0) else "not strictly ascending"),
            fix="Pass the windows in the order of time, each once",
        )


def _first_bad(values: Floats, *, minimum: float = -np.inf) -> str:
    bad = np.argwhere(~(np.isfinite(values) & (values > minimum)))
    first = tuple(int(index) for index in bad[0])
    return f"{values[first]} at {first} ({len(bad)} such numbers in all)"
