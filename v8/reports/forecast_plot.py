"""A picture of one forecast: the last candles, the coming ones, bands and volatility.

Figures are made without pyplot, so nothing global changes and no display is needed.

Shape legend: N known candles, H forecast bars.
"""

from __future__ import annotations

import io
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from v8.columns import BB_LOWER, BB_UPPER, CLOSE, HIGH, LOW, OPEN, VOLATILITY
from v8.errors import ArtifactError
from v8.features.table import FeatureTable, compute_table
from v8.market.candles import Candles
from v8.storage import write_bytes

SHOWN_BARS: Final = 60
"""Known candles in the picture; more become too thin to see."""

_GAIN, _LOSS, _BLUE, _ORANGE, _GREY = "#2f9e83", "#cf5468", "#1769aa", "#c2571a", "#5f6873"
_DPI: Final = 150
_BODY_WIDTH: Final = 0.64


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
    shown = candles.newest(SHOWN_BARS)
    known = _known_indicators(candles, shown)
    has_volatility = VOLATILITY in forecast.columns
    figure = Figure(figsize=(10, 6.4 if has_volatility else 5.0), dpi=_DPI, layout="constrained")
    axes = figure.subplots(
        2 if has_volatility else 1, 1, sharex=True, squeeze=False, height_ratios=[3, 1][: 1 + has_volatility]
    )[:, 0]
    _draw_prices(axes[0], shown.to_frame(), forecast, known)
    axes[0].set_title(f"{candles.series}: forecast issued at {_clock(forecast.index[0])} UTC", loc="left")
    if has_volatility:
        _draw_volatility(axes[1], forecast, known)
    for ax in axes:
        _decorate(ax, len(shown), len(forecast))
    _label_times(axes[-1], shown, forecast)
    figure.supxlabel("\n".join(notes), x=0.01, ha="left", fontsize=7.5, color=_GREY, parse_math=False)
    _write(figure, file)


def _known_indicators(candles: Candles, shown: Candles) -> dict[str, NDArray[np.float64]]:
    """Compute bands and volatility of the shown candles; NaN where too little came before."""
    names = (BB_UPPER, BB_LOWER, VOLATILITY)
    table: FeatureTable = compute_table(candles, names)
    rows = np.searchsorted(table.open_time_s, shown.open_time_s)
    rows = np.minimum(rows, len(table) - 1)
    is_known = table.open_time_s[rows] == shown.open_time_s
    return {name: np.where(is_known, table.column(name)[rows].astype(np.float64), np.nan) for name in names}


def _draw_prices(
    ax: Axes,
    shown: pd.DataFrame,
    forecast: pd.DataFrame,
    known: dict[str, NDArray[np.float64]],
) -> None:
    past_N, coming_H = _places(shown, forecast)
    _draw_candles(ax, shown, past_N, is_forecast=False)
    _draw_candles(ax, forecast, coming_H, is_forecast=True)
    for name in (BB_UPPER, BB_LOWER):
        ax.plot(past_N, known[name], color=_GREY, linewidth=0.9)
    ax.fill_between(past_N, known[BB_LOWER], known[BB_UPPER], color=_GREY, alpha=0.08, linewidth=0)
    if {BB_UPPER, BB_LOWER} <= {*forecast.columns}:
        upper, lower = (_joined(known, forecast, name) for name in (BB_UPPER, BB_LOWER))
        for band in (upper, lower):
            ax.plot([0.0, *coming_H], band, color=_BLUE, linewidth=1.2, linestyle="--")
        ax.fill_between([0.0, *coming_H], lower, upper, color=_BLUE, alpha=0.1, linewidth=0)
    handles: list[Any] = [
        *ax.plot([], [], color=_GREY, linewidth=0.9, label="Bollinger bands until now"),
        *ax.plot([], [], color=_BLUE, linewidth=1.2, linestyle="--", label="forecast"),
    ]
    ax.legend(handles=handles, loc="upper left", fontsize=8, frameon=False)
    ax.set_ylabel("price, quote currency")


def _draw_candles(ax: Axes, frame: pd.DataFrame, x: NDArray[np.float64], *, is_forecast: bool) -> None:
    opened, high, low, close = (frame[name].to_numpy() for name in (OPEN, HIGH, LOW, CLOSE))
    colours = np.where(close >= opened, _GAIN, _LOSS).tolist()
    ax.vlines(x, low, high, colors=_BLUE if is_forecast else colours, linewidth=0.9)
    bottom, height = np.minimum(opened, close), np.abs(close - opened)
    # A body without height would be invisible; a thousandth of the range is a line.
    least = 1e-3 * float(high.max() - low.min())
    ax.bar(
        x,
        np.maximum(height, least),
        _BODY_WIDTH,
        bottom=bottom,
        color="white" if is_forecast else colours,
        edgecolor=_BLUE if is_forecast else colours,
        linewidth=1.1 if is_forecast else 0.5,
        zorder=3,
    )


def _draw_volatility(ax: Axes, forecast: pd.DataFrame, known: dict[str, NDArray[np.float64]]) -> None:
    past_N, coming_H = _places(known[VOLATILITY], forecast)
    ax.plot(past_N, 100 * known[VOLATILITY], color=_GREY, linewidth=1.1)
    coming = 100 * _joined(known, forecast, VOLATILITY)
    ax.plot([0.0, *coming_H], coming, color=_ORANGE, linewidth=1.4, linestyle="--")
    ax.set_ylim(bottom=0)
    ax.set_ylabel("volatility, %")


def _joined(known: dict[str, NDArray[np.float64]], forecast: pd.DataFrame, name: str) -> NDArray[np.float64]:
    """Lead a forecast line off from its last known value, shape (H + 1,)."""
    return np.concatenate([known[name][-1:], forecast[name].to_numpy()])


def _places(known: Sized, forecast: Sized) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Count bars from the newest known one, which is 0: shapes (N,) and (H,)."""
    return np.arange(1.0 - len(known), 1.0), np.arange(1.0, len(forecast) + 1.0)


def _decorate(ax: Axes, num_known: int, num_coming: int) -> None:
    ax.axvline(0.5, color=_GREY, linewidth=0.8, linestyle=":")
    ax.axvspan(0.5, num_coming + 1, color=_BLUE, alpha=0.04, linewidth=0)
    ax.set_xlim(-num_known, num_coming + 1)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)


def _label_times(ax: Axes, shown: Candles, forecast: pd.DataFrame) -> None:
    times = [*shown.to_frame().index, *forecast.index]
    places = np.unique(np.linspace(0, len(times) - 1, 7).round().astype(int))
    ax.set_xticks(
        [place - len(shown) + 1 for place in places],
        [f"{times[place]:%d %b\n%H:%M}" for place in places],
    )


def _clock(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _write(figure: Figure, file: Path) -> None:
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    try:
        write_bytes(file, stream.getvalue())
    except OSError as error:
        raise ArtifactError(
            where=str(file),
            rule="must be a file that can be written",
            got=error.strerror or "an output error",
            fix="Choose another place for --plot",
        ) from error
