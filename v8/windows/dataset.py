"""One series made ready: table, split, scaling, windows, all by row number into resident arrays.

A window is never copied out of the table before its batch is made: memory grows with rows times
(features + horizon x targets), never with the lookback.

Shape legend: N rows, W windows, T lookback, F features, H horizon, C columns of a task.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.columns import CLOSE, RECENT_RANGE, VOLATILITY, beside, neighbours
from v8.errors import DataError
from v8.features.table import FeatureTable
from v8.market.series import Series
from v8.profile import Profile
from v8.quantile_levels import quantile_output
from v8.tasks import TASKS
from v8.windows.scaling import Scaling, fit_scaling
from v8.windows.span import Floats, Span, recent_range
from v8.windows.splits import SPANS, Split, rows_needed, split_rows, window_anchors
from v8.windows.spread import flat_units


@dataclass(frozen=True)
class SeriesData:
    """Everything the trainer and the judge need of one series.

    Args:
        table: Raw columns, at least `table_columns(profile)`.
        spans: The complete windows of `train`, `validation` and `test`.
        inputs_NF: Scaled features of every row, float32.
        targets_NHC: Per task, scaled targets by anchor row, float32; rows that anchor no window are 0.
        weight_N: Weight of the window anchored at each row in losses, mean about one, float32.
        units_NHC: By `quantile_output` of each task, what its quantiles are multiples of, by anchor row,
            float32, see `v8.windows.spread`; nothing where the network forecasts none.
    """

    profile: Profile
    table: FeatureTable
    split: Split
    spans: Mapping[str, Span]
    scaling: Scaling
    inputs_NF: NDArray[np.float32]
    targets_NHC: dict[str, NDArray[np.float32]]
    weight_N: NDArray[np.float32]
    units_NHC: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def series(self) -> Series:
        """Which series."""
        return self.table.series

    @property
    def learned(self) -> dict[str, NDArray[np.float32]]:
        """All that a loss compares with what a network says: targets, and units of quantiles."""
        return self.targets_NHC | self.units_NHC

    @property
    def anchors(self) -> dict[str, NDArray[np.int64]]:
        """Per span, last known row of each window, shape (W,), int64."""
        return {name: span.anchors for name, span in self.spans.items()}

    def num_windows(self, span: str) -> int:
        """Return the complete windows of `train`, `validation` or `test`."""
        return len(self.spans[span])

    def describe_split(self) -> dict[str, Any]:
        """Return rows, open times (ISO, UTC) and windows of each span, and the embargo, as JSON values."""
        described: dict[str, Any] = {}
        for name in SPANS:
            first, end = self.split.span(name)
            ends_s = self.table.open_time_s[[first, end - 1]]
            first_open, last_open = (datetime.fromtimestamp(int(end_s), UTC).isoformat() for end_s in ends_s)
            described[name] = {
                "rows": [first, end],
                "first_open": first_open,
                "last_open": last_open,
                "num_windows": self.num_windows(name),
            }
        return {**described, "embargo_bars": self.split.embargo_bars}


def table_columns(profile: Profile) -> tuple[str, ...]:
    """List the columns a FeatureTable must hold for a profile: features, targets, close, volatility."""
    wanted = [*profile.features, *(name for task in profile.tasks for name in TASKS[task].columns)]
    wanted += [CLOSE, VOLATILITY, *([RECENT_RANGE] if profile.scaling == "ranged" else [])]
    return tuple(dict.fromkeys(wanted))


def prepare_series(table: FeatureTable, profile: Profile) -> SeriesData:
    """Split, scale and index a series; its table holds at least `table_columns(profile)`.

    Raises:
        DataError: If a span holds no complete window.
        SeriesError: If the close never moves on the train span.
    """
    split = split_rows(len(table), profile, where=str(table.series))
    spans = {name: _span(table, split, name, profile) for name in SPANS}
    scaling = fit_scaling(spans["train"], split.train, table_columns(profile))
    # Windows weigh as much as the recent range by which targets are divided; all alike where none does.
    floored = scaling.floored_range(recent_range(table, profile))
    return SeriesData(
        profile=profile,
        table=table,
        split=split,
        # What was computed for scaling is let go: a fleet holds many series for long.
        spans={name: Span(table, profile, span.anchors) for name, span in spans.items()},
        scaling=scaling,
        inputs_NF=scaling.scale_inputs(
            table.select(profile.features).astype(np.float64), _closes(table, profile)
        ),
        targets_NHC=_targets(spans, scaling),
        weight_N=(floored / floored[spans["train"].anchors].mean()).astype(np.float32),
        units_NHC=_units(spans, floored) if profile.shape.outer_levels else {},
    )


def _closes(table: FeatureTable, profile: Profile) -> dict[str, Floats]:
    """Return the closes by origin: the series' own, and those of others that the profile names."""
    named = {origin: beside(origin, CLOSE) for origin in ("", *neighbours(profile.features))}
    told = {origin: name for origin, name in named.items() if name in table.columns}
    return {origin: table.column(name).astype(np.float64) for origin, name in told.items()}


def _span(table: FeatureTable, split: Split, name: str, profile: Profile) -> Span:
    found = window_anchors(table.segment, split.span(name), profile.lookback_bars, profile.horizon_bars)
    if not len(found):
        raise DataError(
            where=str(table.series),
            rule=f"the {name} span needs an unbroken stretch of "
            f"{profile.lookback_bars + profile.horizon_bars} bars",
            got="holes in the candles that leave none",
            fix=f"Fetch a longer history with param:bars (at least {rows_needed(profile)} unbroken rows)",
        )
    return Span(table, profile, found)


def _targets(spans: Mapping[str, Span], scaling: Scaling) -> dict[str, NDArray[np.float32]]:
    targets: dict[str, NDArray[np.float32]] = {}
    for span in spans.values():
        for task in span.truth:  # one at a time: of a million rows each is hundreds of megabytes
            _put(targets, span, scaling.scale_targets(span, {task: span.truth[task]}))
    return targets


def _units(spans: Mapping[str, Span], floored_N: Floats) -> dict[str, NDArray[np.float32]]:
    units: dict[str, NDArray[np.float32]] = {}
    for span in spans.values():
        found = flat_units(span, floored_N[span.anchors])
        _put(units, span, {quantile_output(task): values for task, values in found.items()})
    return units


def _put(rows: dict[str, NDArray[np.float32]], span: Span, values: Mapping[str, NDArray[Any]]) -> None:
    """Write what belongs to the windows of a span into arrays by anchor row, made when missing."""
    for name, values_WHC in values.items():
        empty = np.zeros((len(span.table), *values_WHC.shape[1:]), np.float32)
        rows.setdefault(name, empty)[span.anchors] = values_WHC
