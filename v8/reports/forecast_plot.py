"""A picture of one forecast: the last candles, the coming ones, and whatever else was forecast.

Shape legend: N known candles, H forecast bars.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from v8.artifacts.forecast_sample import ForecastSample, IssuedForecast
from v8.columns import TASK_OHLC
from v8.errors import ArtifactError
from v8.features.table import compute_columns
from v8.market.candles import Candles
from v8.reports.figures import upright
from v8.reports.forecast_figure import PANEL_FORMAT, forecast_figure
from v8.reports.palette import LIGHT
from v8.reports.png import write_png
from v8.tasks import TASKS

SHOWN_BARS: Final = 60
"""Known candles in the picture; more become too thin to see."""

_NUM_TICKS: Final = 7


def draw_forecast(candles: Candles, forecast: pd.DataFrame, file: Path, *, notes: Sequence[str] = ()) -> None:
    """Draw a forecast beside the candles before it and write it as PNG, atomically.

    Args:
        candles: Checked candles up to the newest known one, N rows.
        forecast: What `Forecaster.predict` returned for them, H rows.
        file: Where to.
        notes: Sentences under the picture.

    Raises:
        ArtifactError: If the file cannot be written.
    """
    figure = issued_figure(candles, forecast)
    title = f"{candles.series}: forecast issued at {forecast.index[0]:%Y-%m-%d %H:%M} UTC"
    height = 6.4 if "yaxis2" in figure.layout else 5.0
    try:
        write_png(file, title, [figure], inches=(10.0, height), notes=notes)
    except OSError as error:
        raise ArtifactError(
            where=str(file),
            rule="must be a file that can be written",
            got=error.strerror or "an output error",
            fix="Choose another place for --plot",
        ) from error


def issued_figure(candles: Candles, forecast: pd.DataFrame) -> go.Figure:
    """Draw a forecast beside the candles before it; arguments as of `draw_forecast`.

    Bars are numbered, the newest known one is 0, and the ticks below tell their times.
    """
    shown = candles.newest(SHOWN_BARS)
    num_known, num_coming = len(shown), len(forecast)
    sample = _sample(candles, shown, forecast)
    figure = forecast_figure(sample, places=range(1 - num_known, num_coming + 1), has_candles=True)
    figure.data[0].name = "known"
    times = [*shown.to_frame().index, *forecast.index]
    ticks = np.unique(np.linspace(0, len(times) - 1, _NUM_TICKS).round().astype(int)).tolist()
    figure.update_xaxes(
        range=[-num_known, num_coming + 1],
        tickvals=[tick - num_known + 1 for tick in ticks],
        ticktext=[f"{times[tick]:%d %b<br>%H:%M}" for tick in ticks],
        showgrid=False,
    )
    figure.update_layout(yaxis={"title": "price, quote currency"})
    figure.update_yaxes(rangemode="tozero", selector={"tickformat": PANEL_FORMAT})
    figure.add_shape(upright(0.5, {"color": LIGHT["soft"], "dash": "dot", "width": 1}))
    shade = upright(0.5, {"width": 0}) | {"type": "rect", "x1": num_coming + 1}
    return figure.add_shape(shade, fillcolor=LIGHT["blue"], opacity=0.04)


def _sample(candles: Candles, shown: Candles, forecast: pd.DataFrame) -> ForecastSample:
    """Put what is known and one forecast after it side by side; nan where too little came before."""
    tasks = [task for task in TASKS.values() if set(task.columns) <= set(forecast.columns)]
    others = [column for task in tasks if task.name != TASK_OHLC for column in task.columns]
    known = shown.to_frame()
    for name, values in compute_columns(candles, others).items():
        known[name] = values[-len(shown) :]
    truth, coming = (
        {
            task.name: tuple(map(tuple, frame[list(task.columns)].to_numpy(np.float64).tolist()))
            for task in tasks
        }
        for frame in (known, forecast)
    )
    return ForecastSample(
        series=str(candles.series),
        bar_s=candles.series.bar_s,
        open_time_s=tuple(shown.open_time_s.tolist()),
        truth=truth,
        issued=(IssuedForecast(len(shown) - 1, coming),),
    )
