"""One series made ready: table, split, scaling, windows, all by row number into resident arrays.

A window is never copied out of the table before its batch is made: memory grows with rows times
(features + horizon x targets), never with the lookback.

Shape legend: N rows, W windows, T lookback, F features, H horizon, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.columns import BAND_PERIOD_BARS, CLOSE, RECENT_RANGE, TASK_COLUMNS, VOLATILITY
from v8.data.scaling import Scaling, fit_scaling, target_unit
from v8.data.splits import SPANS, Split, rows_needed, split_rows, window_anchors
from v8.data.targets import roll_forward
from v8.errors import DataError
from v8.features.table import FeatureTable
from v8.market.series import Series
from v8.profile import Profile


@dataclass(frozen=True)
class SeriesData:
    """Everything the trainer and the judge need of one series.

    Args:
        series: Which series.
        profile: What is trained.
        table: Raw columns, at least `table_columns(profile)`.
        split: Row ranges of the spans.
        scaling: Constants from train rows.
        anchors: Per span, last known row of each complete window, shape (W,), int64.
        inputs_NF: Scaled features of every row, float32.
        targets_NHC: Per task, scaled targets by anchor row, float32; rows that anchor no window are 0.
        weight_N: Weight of the window anchored at each row in losses, mean about one, float32.
    """

    series: Series
    profile: Profile
    table: FeatureTable
    split: Split
    scaling: Scaling
    anchors: dict[str, NDArray[np.int64]]
    inputs_NF: NDArray[np.float32]
    targets_NHC: dict[str, NDArray[np.float32]]
    weight_N: NDArray[np.float32]

    def num_windows(self, span: str) -> int:
        """Return the complete windows of `train`, `validation` or `test`."""
        return len(self.anchors[span])

    def raw_windows(self, anchors: NDArray[np.int64]) -> NDArray[np.float32]:
        """Gather raw feature windows for the serving model, shape (W, T, F), float32."""
        rows = anchors[:, None] + np.arange(1 - self.profile.lookback_bars, 1)
        return self.table.select(self.profile.features)[rows]

    def truth(self, anchors: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """Gather true values per task, shape (W, H, C), quote currency (volatility unitless)."""
        return true_values(self.table, anchors, self.profile)

    def scaled(
        self, anchors: NDArray[np.int64], values: Mapping[str, NDArray[np.floating[Any]]]
    ) -> dict[str, NDArray[np.float32]]:
        """Scale values of the tasks as targets are.

        Args:
            anchors: Rows of the windows, shape (W,).
            values: Per task, truth or forecasts, shape (W, H, C), quote currency (volatility unitless).

        Returns:
            Same tasks and shapes, float32, unitless.
        """
        return _scaled(self.table, self.profile, self.scaling, anchors, values)

    def history_close(self, anchors: NDArray[np.int64]) -> NDArray[np.float64]:
        """Gather the closes of the last 20 known rows, oldest first, shape (W, 20)."""
        return history_close(self.table, anchors)

    def describe_split(self) -> dict[str, Any]:
        """Return rows, open times (ISO, UTC) and windows of each span, and the embargo, as JSON values."""
        spans = {name: self._describe_span(name) for name in SPANS}
        return {**spans, "embargo_bars": self.split.embargo_bars}

    def _describe_span(self, name: str) -> dict[str, Any]:
        first, end = self.split.span(name)
        opens = [datetime.fromtimestamp(int(self.table.open_time_s[row]), UTC) for row in (first, end - 1)]
        return {
            "rows": [first, end],
            "first_open": opens[0].isoformat(),
            "last_open": opens[1].isoformat(),
            "num_windows": self.num_windows(name),
        }


def table_columns(profile: Profile) -> tuple[str, ...]:
    """List the columns a FeatureTable must hold for a profile: features, targets, close, volatility."""
    wanted: list[str] = [*profile.features]
    for task in profile.tasks:
        wanted.extend(TASK_COLUMNS[task])
    wanted.extend((CLOSE, VOLATILITY))
    if profile.scaling == "ranged":
        wanted.append(RECENT_RANGE)
    return tuple(dict.fromkeys(wanted))


def prepare_series(table: FeatureTable, profile: Profile) -> SeriesData:
    """Split, scale and index one series.

    Args:
        table: Holds at least `table_columns(profile)`.
        profile: What is trained.

    Raises:
        DataError: If a span holds no complete window.
        SeriesError: If the close never moves on the train span.
    """
    split = split_rows(len(table.open_time_s), profile, where=str(table.series))
    anchors = {name: _anchors(table, split, name, profile) for name in SPANS}
    scaling = _fit(table, profile, split, anchors["train"])
    names = profile.features
    return SeriesData(
        series=table.series,
        profile=profile,
        table=table,
        split=split,
        scaling=scaling,
        anchors=anchors,
        inputs_NF=scaling.scale_inputs(
            table.select(names).astype(np.float64), table.column(CLOSE).astype(np.float64)
        ),
        targets_NHC=_targets(table, profile, scaling, np.concatenate([anchors[name] for name in SPANS])),
        weight_N=_weights(table, profile, scaling, anchors["train"]),
    )


def true_values(
    table: FeatureTable, anchors: NDArray[np.int64], profile: Profile
) -> dict[str, NDArray[np.float64]]:
    """Gather what really followed each anchor, per task, shape (W, H, C), by column name."""
    rows = anchors[:, None] + np.arange(1, profile.horizon_bars + 1)
    return {task: _columns(table, TASK_COLUMNS[task])[rows] for task in profile.tasks}


def history_close(table: FeatureTable, anchors: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gather the closes of the last 20 rows up to each anchor, oldest first, shape (W, 20).

    Where the lookback is shorter than 20, an early anchor may reach before the first row or across a
    hole; profiles with bands or volatility demand a longer lookback, so only OHLC is affected, and
    OHLC uses the last close alone.
    """
    rows = anchors[:, None] + np.arange(1 - BAND_PERIOD_BARS, 1)
    return table.column(CLOSE).astype(np.float64)[np.maximum(rows, 0)]


def _anchors(table: FeatureTable, split: Split, span: str, profile: Profile) -> NDArray[np.int64]:
    found = window_anchors(table.segment, split.span(span), profile.lookback_bars, profile.horizon_bars)
    if not len(found):
        raise DataError(
            where=str(table.series),
            rule=f"the {span} span needs an unbroken stretch of "
            f"{profile.lookback_bars + profile.horizon_bars} bars",
            got="holes in the candles that leave none",
            fix=f"Fetch a longer history with --bars (at least {rows_needed(profile)} unbroken rows)",
        )
    return found


def _fit(table: FeatureTable, profile: Profile, split: Split, anchors: NDArray[np.int64]) -> Scaling:
    first, end = split.train
    names = table_columns(profile)
    return fit_scaling(
        profile,
        {name: table.column(name)[first:end].astype(np.float64) for name in names},
        true_values(table, anchors, profile),
        roll_forward(history_close(table, anchors), profile.horizon_bars),
        window_range=_recent_range(table, profile)[anchors],
        where=str(table.series),
    )


def _targets(
    table: FeatureTable, profile: Profile, scaling: Scaling, anchors: NDArray[np.int64]
) -> dict[str, NDArray[np.float32]]:
    scaled = _scaled(table, profile, scaling, anchors, true_values(table, anchors, profile))
    targets = {}
    for task, values in scaled.items():
        targets[task] = np.zeros((len(table), *values.shape[1:]), np.float32)
        targets[task][anchors] = values
    return targets


def _scaled(
    table: FeatureTable,
    profile: Profile,
    scaling: Scaling,
    anchors: NDArray[np.int64],
    values: Mapping[str, NDArray[np.floating[Any]]],
) -> dict[str, NDArray[np.float32]]:
    closes = history_close(table, anchors)
    reference = roll_forward(closes, profile.horizon_bars)
    range_W = scaling.floored_range(_recent_range(table, profile)[anchors])
    return {
        task: scaling.scale_target(
            task, given.astype(np.float64), reference[task], target_unit(task, closes[:, -1], range_W)
        )
        for task, given in values.items()
    }


def _weights(
    table: FeatureTable, profile: Profile, scaling: Scaling, train_anchors: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Weigh windows by their recent range where targets are divided by it; all alike otherwise."""
    floored = scaling.floored_range(_recent_range(table, profile))
    return (floored / floored[train_anchors].mean()).astype(np.float32)


def _recent_range(table: FeatureTable, profile: Profile) -> NDArray[np.float64]:
    if profile.scaling == "ranged":
        return table.column(RECENT_RANGE).astype(np.float64)
    return np.ones(len(table))


def _columns(table: FeatureTable, names: Sequence[str]) -> NDArray[np.float64]:
    return table.select(names).astype(np.float64)
