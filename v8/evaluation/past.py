"""What a baseline may know and learn from: closes, bars, and what followed the windows of the train span.

A span's windows are given by the rows at which they stand. Everything computed here for a row reads that
row and earlier ones only; the rows behind the last window of a span are there for the next span's.

Legend: R rows of a series, N windows, H steps of the horizon, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.columns import CLOSE, HIGH, LOW, OHLC
from v8.data.dataset import SeriesData
from v8.data.targets import RANGE_TO_VARIANCE, roll_forward

EWMA_DECAY: Final = 0.94
"""What is left of a bar's weight one bar later; RiskMetrics Technical Document (1996), section 5.3."""

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Bars:
    """All bars of a series, in the order of time.

    Args:
        ohlc: Open, high, low, close, shape (R, 4), float64, quote currency.
        segment: Number of the unbroken piece of each row, shape (R,), ascending.
    """

    ohlc: NDArray[np.float64]
    segment: NDArray[np.int32]

    def column(self, name: str) -> NDArray[np.float64]:
        """Return one of open, high, low, close, shape (R,), quote currency."""
        return self.ohlc[:, OHLC.index(name)]

    def range_variance(self, num_bars: int) -> NDArray[np.float64]:
        """Estimate the variance of one bar's log return from the mean range of the newest bars.

        Args:
            num_bars: Bars in the mean; near the first row those there are.

        Returns:
            Shape (R,), unitless.
        """
        total = np.concatenate([[0.0], np.cumsum(np.log(self.column(HIGH) / self.column(LOW)))])
        rows = np.arange(1, len(total))
        first = np.maximum(rows - num_bars, 0)
        mean_range = np.maximum(total[rows] - total[first], 0.0) / (rows - first)
        return RANGE_TO_VARIANCE * mean_range**2

    @cached_property
    def ewma_variance(self) -> NDArray[np.float64]:
        """Exponentially weighted mean of squared log returns, shape (R,), unitless.

        Returns across holes are left out. Weights add up to one from the first return on.
        """
        squares = np.full(len(self.ohlc), np.nan)
        squares[1:] = np.diff(np.log(self.column(CLOSE))) ** 2
        squares[1:][np.diff(self.segment) != 0] = np.nan
        smoothed = pd.Series(squares).ewm(alpha=1 - EWMA_DECAY, adjust=True, ignore_na=True).mean()
        return np.nan_to_num(smoothed.to_numpy(np.float64))


@dataclass(frozen=True, eq=False)
class Known:
    """What is known at the windows of one span.

    Args:
        history_close: Closes of the last 20 known rows, oldest first, shape (N, 20), quote currency.
        horizon_bars: Steps ahead.
        rows: Row of each window's last known bar, shape (N,), int64; empty when only closes are known.
        bars: All bars of the series; none when only closes are known.
    """

    history_close: NDArray[np.float64]
    horizon_bars: int
    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    bars: Bars = field(default_factory=lambda: Bars(np.empty((0, len(OHLC))), np.empty(0, np.int32)))

    @property
    def last_close(self) -> NDArray[np.float64]:
        """Last known close of each window, shape (N,), quote currency."""
        return self.history_close[:, -1]

    @cached_property
    def rolled(self) -> dict[str, NDArray[np.float64]]:
        """The roll-forward forecast; see `v8.data.targets.roll_forward`."""
        return roll_forward(self.history_close, self.horizon_bars)


@dataclass(frozen=True, eq=False)
class Lesson:
    """What a baseline is fitted to: the train span.

    Args:
        offsets: Per task, shape (H, C): log ratio of the typical truth to the roll-forward forecast.
        known: What was known at its windows; no windows for a baseline that needs no past.
        truth: Per task, what followed them, shape (N, H, C), float64; quote currency, volatility
            unitless; empty likewise.
    """

    offsets: Mapping[str, Floats]
    known: Known
    truth: Mapping[str, NDArray[np.float64]]


TaskForecasts = Mapping[str, NDArray[np.float64]]
Forecast = Callable[[Known], TaskForecasts]


@dataclass(frozen=True, eq=False)
class Past:
    """What the baselines of a judged span may learn from and look at.

    Args:
        train: What was known at the windows of the train span, with bars.
        train_truth: Per task, what followed them, shape (N, H, C), float64; quote currency, volatility
            unitless.
        rows: Row of each judged window's last known bar, in the order of the windows, int64.
    """

    train: Known
    train_truth: Mapping[str, NDArray[np.float64]]
    rows: NDArray[np.int64]


def past_of(data: SeriesData, anchors: NDArray[np.int64]) -> Past:
    """Gather what the baselines of a span may use.

    Args:
        data: The prepared series.
        anchors: Rows of the windows to be judged, shape (N,), int64, of the validation or test span.
    """
    bars = Bars(ohlc=data.table.select(OHLC).astype(np.float64), segment=data.table.segment)
    train = data.anchors["train"]
    known = Known(data.history_close(train), data.profile.horizon_bars, train, bars)
    return Past(known, data.truth(train), anchors)
