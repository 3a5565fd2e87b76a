"""A few forecasts of the test span's end beside what really happened, for people to look at.

`forecasts.json` lies beside the model. It holds the newest candles of the test span and forecasts that
were issued one horizon apart, so that together they cover most of those candles once. Judgements are
made on the whole span; this sample only shows what a forecast looks like.

Shape legend: N shown rows, W test windows, H horizon, Q levels, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from v8.columns import TASK_OHLC
from v8.errors import ArtifactError
from v8.quantile_levels import fault_of
from v8.records import Count, Number, OpenTime, Text, checked, read_json_object
from v8.tasks import TASKS
from v8.windows.dataset import SeriesData

FORECASTS_FILE = "forecasts.json"

SAMPLE_FORMAT: Final = 1
"""Version of the keys of `forecasts.json`."""

SHOWN_BARS: Final = 80
"""Candles of a sample; more become too thin to see on a telephone."""

LEAD_IN_BARS: Final = 20
"""Candles at the start of a sample that no forecast covers, to show where the market came from."""

Rows = tuple[tuple[Number, ...], ...]
"""One tuple of a task's columns per row; quote currency, volatility unitless."""


@dataclass(frozen=True)
class IssuedForecast:
    """One forecast of the bars after a known one.

    Args:
        last_known: Number of the row it was issued after, within the sample.
        values: Per task, H rows of its columns for the rows after `last_known`.
        quantiles: Per task, such rows for each level of the sample; empty without.
    """

    last_known: Count
    values: Mapping[str, Rows]
    quantiles: Mapping[str, tuple[Rows, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class ForecastSample:
    """The end of a test span and forecasts of it.

    Args:
        series: Its name, "BTCUSDT-15m".
        bar_s: Length of a bar in seconds.
        open_time_s: Open time of each of N rows, UTC seconds since the epoch, ascending.
        truth: Per task, N rows of its columns.
        issued: Forecasts, oldest first.
        levels: Of their quantiles, ascending; none where they have none.
    """

    series: Text
    bar_s: Count
    open_time_s: tuple[OpenTime, ...]
    truth: Mapping[str, Rows]
    issued: Annotated[tuple[IssuedForecast, ...], Field(alias="forecasts")]
    levels: tuple[Number, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        # Defaults, which are no quantiles, are left out: a sample without them is as it was before they came.
        content: dict[str, Any] = _SAMPLE.dump_python(self, mode="json", by_alias=True, exclude_defaults=True)
        return {"format": SAMPLE_FORMAT, "columns": _columns(self.truth), **content}


_SAMPLE: Final = TypeAdapter(ForecastSample)


def sample_forecasts(
    data: SeriesData,
    model: Mapping[str, NDArray[np.floating[Any]]],
    quantiles: Mapping[str, NDArray[np.floating[Any]]] = MappingProxyType({}),
) -> ForecastSample:
    """Cut a sample out of the model's forecasts of every test window.

    Args:
        data: The series.
        model: Per task, shape (W, H, C).
        quantiles: Per task, shape (W, H, Q, C); none without.
    """
    anchors, horizon = data.anchors["test"], data.profile.horizon_bars
    end = int(anchors[-1]) + horizon + 1
    first = max(0, end - SHOWN_BARS)
    first_anchor = first + min(LEAD_IN_BARS, data.profile.lookback_bars) - 1
    windows = [len(anchors) - 1]  # one horizon apart, backwards from the newest
    for window in range(len(anchors) - 2, -1, -1):
        if anchors[window] >= first_anchor and anchors[windows[-1]] - anchors[window] >= horizon:
            windows.append(window)
    return ForecastSample(
        series=str(data.series),
        bar_s=data.series.bar_s,
        open_time_s=tuple(data.table.open_time_s[first:end].tolist()),
        truth={task: _rows(data.table.select(TASKS[task].columns)[first:end]) for task in model},
        issued=tuple(
            IssuedForecast(
                int(anchors[window]) - first,
                {task: _rows(values[window]) for task, values in model.items()},
                {
                    task: tuple(map(_rows, values[window].swapaxes(0, 1)))
                    for task, values in quantiles.items()
                },
            )
            for window in reversed(windows)
        ),
        levels=data.profile.quantiles if quantiles else (),
    )


def read_sample(file: Path) -> ForecastSample | None:
    """Read `forecasts.json`; None when there is none, as beside models of an older v8.

    Raises:
        ArtifactError: If it is damaged.
    """
    if not file.exists():
        return None
    content = read_json_object(file, fix="Restore the file or train the series again")
    rule = f"must be a sample of forecasts of format {SAMPLE_FORMAT}"
    fix = "Restore the file, or delete it to have the report without this chart"
    sample = checked(_SAMPLE, content, where=str(file), fix=fix, rule=rule)
    if not _is_whole(sample) or _columns(sample.truth) != content.get("columns"):
        got = "rows and forecasts that do not fit together"
        raise ArtifactError(where=str(file), rule=rule, got=got, fix=fix)
    return sample


def _rows(values: NDArray[np.floating[Any]]) -> Rows:
    """Write float32 numbers with the digits that count."""
    return tuple(tuple(float(f"{value:.7g}") for value in row) for row in values)


def _columns(truth: Mapping[str, Rows]) -> dict[str, list[str]]:
    return {task: list(TASKS[task].columns) for task in truth if task in TASKS}


def _is_whole(sample: ForecastSample) -> bool:
    if not all(_has_levels(sample, one) for one in sample.issued):
        return False
    parts, num_rows = [sample.truth, *(one.values for one in sample.issued)], len(sample.open_time_s)
    widths = {task: {len(columns)} for task, columns in _columns(sample.truth).items()}
    horizons = {len(rows) for part in parts[1:] for rows in part.values()}
    return (
        TASK_OHLC in widths
        and all({task: set(map(len, rows)) for task, rows in part.items()} == widths for part in parts)
        and all(len(rows) == num_rows for rows in sample.truth.values())
        and len(horizons) == 1
        and all(one.last_known < num_rows - max(horizons) for one in sample.issued)
    )


def _has_levels(sample: ForecastSample, one: IssuedForecast) -> bool:
    """Say whether a forecast has rows of the shape of its values for each task and level, or none at all."""
    if not sample.levels:
        return not one.quantiles
    shapes = {task: [[len(row) for row in rows]] * len(sample.levels) for task, rows in one.values.items()}
    found = {task: [[len(row) for row in rows] for rows in each] for task, each in one.quantiles.items()}
    return fault_of(sample.levels) is None and found == shapes
