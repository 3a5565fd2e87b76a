"""Forecasts of many windows of a table: a frame with a row per forecast and bar ahead.

Windows with a jump of prices are left out: a price or band, read or forecast, would not be above zero.

Shape legend: N windows, T lookback, F features, H horizon, Q levels, C columns of a task.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.base.errors import DataError
from v8.base.process import command
from v8.data.features import FeatureTable
from v8.data.market.candles import Candles
from v8.data.market.series import Series, iso
from v8.model.networks.published import FORECAST_BATCH, Forecasts
from v8.profile.columns import MEDIAN, OPEN_TIME, quantile_column
from v8.profile.tasks import TASKS

FRAME: Final = "a frame"  # name of the source of candles in a table in memory
FILES: Final = "files"  # name of the source of candles in files of the user
LIVE: Final = "live"  # name of the source that can download candles again from the exchange

ISSUED_AT = "issued_at"
"""Index level of a back-test: when the last known candle closed and the first forecast bar opens."""

USABLE_FROM: Final = "usable_from"
"""Column of forecasts that are joined to candles: when the candle closed; the row is not known before."""

STEP = "step"  # index level of a back-test: bars ahead, from 1

_CHUNK_WINDOWS = 512 * FORECAST_BATCH  # windows of a back-test that are in memory at the same time


@dataclass(frozen=True)
class Usable:
    """Forecasts of some windows, without those in which a price would not be above zero."""

    series: Series
    frame: pd.DataFrame | None  # as `forecast_history` returns it; None if all windows are left out
    anchors: NDArray[np.int64]  # rows of the table at which the forecast windows end, shape (N,)
    left_out: NDArray[np.int64]  # rows at which the windows end that are left out, shape (L,)
    fault: str = ""  # one of the prices that are not above zero, and its bar; empty if there is none

    def required(self, source: str) -> pd.DataFrame:
        """Return the forecasts, made from candles of a source; a `DataError` if all windows are left out."""
        if self.frame is None:
            raise self.refusal(source)
        return self.frame

    def refusal(self, source: str = "") -> DataError:
        """Return the error for windows with a jump of prices; its advice depends on the source of candles."""
        fix = "Look for a leap in the candles before it"
        if source == LIVE:
            update = command("data", "update", "--accept-revision")
            fix = f"{fix}; to replace wrong candles of the exchange's API, run `{update}`"
        elif source in (FILES, FRAME):
            fix = f"{fix}: write all prices in one unit, or give only the candles after it"
        return DataError(
            where=str(self.series),
            rule="prices and bands lie above zero, those that are read and those that are forecast",
            got=self.fault,
            fix=fix,
        )

    def sentence(self, table: FeatureTable) -> str:
        """Describe how many windows of a table are left out and the times of their forecasts."""
        num_windows = len(self.left_out) + len(self.anchors)
        first_s, last_s = table.open_time_s[self.left_out[[0, -1]]] + table.series.bar_s
        span = f"issued from {iso(first_s)} to {iso(last_s)}"
        return (
            f"{table.series}: {len(self.left_out):,} of {num_windows:,} windows, {span}, lie across a leap "
            f"of the candles and are left out: {self.fault}"
        )


@dataclass(frozen=True)
class WindowForecasts:
    """What forecasts windows of a table, and the names of what it forecasts."""

    series: Series
    features: Sequence[str]  # columns of the windows, in their order
    lookback_bars: int
    horizon_bars: int
    quantiles: Sequence[float]  # levels; none if it forecasts no quantiles
    forecast_all: Callable[[NDArray[np.float32]], Forecasts]  # of raw windows, shape (N, T, F)

    def usable(self, table: FeatureTable, anchors: NDArray[np.int64]) -> Usable:
        """Forecast from the windows that end at some rows, and leave out windows with a jump of prices.

        In those a price or band, read or forecast, would not be above zero.

        Args:
            table: A table with at least the features of the model.
            anchors: Last row of each window, shape (N,), at least one.
        """
        chunks: list[dict[str, NDArray[np.float32]]] = []
        chunk_anchors: list[NDArray[np.int64]] = []
        faults: list[str] = []
        for first in range(0, len(anchors), _CHUNK_WINDOWS):
            chunk, usable_anchors = self._forecast_chunk(
                table, anchors[first : first + _CHUNK_WINDOWS], faults
            )
            if chunk:
                chunks.append(chunk)
                chunk_anchors.append(usable_anchors)
        usable = np.concatenate([*chunk_anchors, anchors[:0]])
        frame = None
        if len(usable):
            columns = {
                name: np.concatenate([chunk[name] for chunk in chunks]).astype(np.float64).ravel()
                for name in chunks[0]
            }
            frame = pd.DataFrame(columns, index=self._history_index(table, usable))
        return Usable(
            series=self.series,
            frame=frame,
            anchors=usable,
            left_out=np.setdiff1d(anchors, usable),
            fault=faults[0] if faults else "",
        )

    def _forecast_chunk(
        self, table: FeatureTable, anchors: NDArray[np.int64], faults: list[str]
    ) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.int64]]:
        """Forecast from a few windows.

        Returns: Forecasts by column, shape (N, H), and the last rows of their windows, shape (N,), of the
            windows in which all prices are above zero. Descriptions of other prices are appended to `faults`.
        """
        rows = anchors[:, None] + np.arange(1 - self.lookback_bars, 1)
        windows_NTF = table.select(self.features)[rows]
        inputs = dict(zip(self.features, np.moveaxis(windows_NTF, -1, 0), strict=True))
        is_valid = self._above_zero(inputs, table.open_time_s[rows], faults)
        if not is_valid.any():
            return {}, anchors[:0]
        valid_anchors = anchors[is_valid]
        forecasts = self._by_column(self.forecast_all(windows_NTF[is_valid]))
        is_usable = self._above_zero(forecasts, self._opens_s(table, valid_anchors), faults)
        usable_forecasts = {name: values[is_usable] for name, values in forecasts.items()}
        return usable_forecasts, valid_anchors[is_usable]

    def _history_index(self, table: FeatureTable, anchors: NDArray[np.int64]) -> pd.MultiIndex:
        """Return the index of `forecast_history`, shape (N * H,)."""
        opens = pd.to_datetime(self._opens_s(table, anchors).ravel(), unit="s", utc=True)
        issued = opens[:: self.horizon_bars].repeat(self.horizon_bars)
        steps = np.tile(np.arange(1, self.horizon_bars + 1), len(anchors))
        return pd.MultiIndex.from_arrays([issued, steps, opens], names=[ISSUED_AT, STEP, OPEN_TIME])

    def _opens_s(self, table: FeatureTable, anchors: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when the forecast bars of windows open, seconds since the epoch, shape (N, H)."""
        steps = np.arange(1, self.horizon_bars + 1)
        opens_s: NDArray[np.int64] = table.open_time_s[anchors][:, None] + steps * self.series.bar_s
        return opens_s

    def _above_zero(
        self, columns: Mapping[str, NDArray[Any]], open_time_s: NDArray[np.int64], faults: list[str]
    ) -> NDArray[np.bool_]:
        """Return in which windows all prices and bands are above zero.

        Args:
            columns: Values by column, shape (N, bars); columns that are no prices are ignored.
            open_time_s: Open times of their bars, seconds since the epoch, shape (N, bars).
            faults: Gets a description of the smallest value of each column that is not above zero.

        Returns:
            Shape (N,).
        """
        is_positive = np.ones(len(open_time_s), np.bool_)
        prices = [name for task in TASKS.values() if task.is_price for name in task.columns]
        for name, values in columns.items():
            is_price = any(name == price or name.startswith(f"{price}_q") for price in prices)
            if is_price and (values <= 0).any():
                row = np.unravel_index(np.argmin(values), values.shape)
                faults.append(f"{name} {values[row]:.7g} for the bar at {iso(int(open_time_s[row]))}")
                is_positive &= (values > 0).all(axis=1)
        return is_positive

    def _by_column(self, forecasts: Forecasts) -> dict[str, NDArray[np.float32]]:
        """Return the columns of a frame of forecasts, each of shape (N, H): points, then quantiles."""
        columns = {}
        for task, values_NHC in forecasts.points.items():
            for number, name in enumerate(TASKS[task].columns):
                columns[name] = values_NHC[:, :, number]
        for task, values_NHQC in forecasts.quantiles.items():
            for number, name in enumerate(TASKS[task].columns):
                for level_number, level in enumerate(self.quantiles):
                    if level != MEDIAN:  # the median is the point forecast
                        columns[quantile_column(name, level)] = values_NHQC[:, :, level_number, number]
        return columns


def joined_to_candles(candles: Candles, history: pd.DataFrame) -> pd.DataFrame:
    """Join each forecast of a history to the newest candle that it was made from."""
    ahead = pd.DataFrame(history.droplevel(OPEN_TIME).unstack(STEP))
    ahead.columns = ahead.columns.map("{0[0]}_ahead_{0[1]}".format)
    frame = candles.to_frame()
    frame[USABLE_FROM] = pd.to_datetime(candles.open_time_s + candles.series.bar_s, unit="s", utc=True)
    return frame.join(ahead, on=USABLE_FROM)


def seconds_of(moment: str | datetime | None, default: int) -> int:
    """Return a time in seconds since the epoch; without a zone it is UTC. None gives `default`.

    Raises:
        DataError: If it is not a time, or before 1678 or after 2261.
    """
    if moment is None:
        return default
    try:
        return int(pd.to_datetime(moment, utc=True).timestamp())
    except (ValueError, OverflowError, TypeError) as error:  # NaT has no timestamp
        raise DataError(
            where="start or end",
            rule="is a time, such as 2024-08-01 or 2024-08-01T12:00+02:00",
            got=repr(moment),
            fix="Write it in ISO 8601; without a zone it is UTC",
        ) from error
