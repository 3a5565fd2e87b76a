"""Fan charts of a forecast as inline SVG in the colours of the page: candles, lines and intervals.

The charts of a page are drawn twice, wide and narrow, because the text of a scaled chart would become too
small; the page shows the one that fits. Lengths are SVG user units; values rise upwards.

Charts are drawn without a library because the page has 20 kB in all, is replaced at every candle and works
without a script. Plotly would add 5 MB, and styles that the content security policy forbids; text and colours
of Matplotlib would not follow the reader's font size and dark mode.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from v8.arrays import FloatArray
from v8.columns import CLOSE, HIGH, LOW, OPEN
from v8.reports.markup import Html, element

Columns = Mapping[str, FloatArray]
_MIN_PADDING: Final = 1e-4  # above and below the values, as a share of the highest: a market may stand still


@dataclass(frozen=True)
class ChartLayout:
    """Size and details of a chart."""

    css_class: str
    width: int
    height: int
    margin: tuple[int, int]  # space for values on the right, and for times below
    num_known: int  # largest number of known bars
    num_times: int  # largest number of times on the axis; 0 draws no axes


WIDE: Final = ChartLayout("chart wide-chart", 1_000, 400, margin=(92, 28), num_known=120, num_times=8)
NARROW: Final = ChartLayout("chart narrow-chart", 360, 300, margin=(84, 28), num_known=44, num_times=3)
PAGE_LAYOUTS: Final = (WIDE, NARROW)
LOW_LAYOUTS: Final = (replace(WIDE, height=200), replace(NARROW, height=180))
TILE_LAYOUTS: Final = (ChartLayout("chart", 280, 84, margin=(0, 0), num_known=30, num_times=0),)


@dataclass(frozen=True)
class ChartData:
    """Known bars and the forecast bars after them, without a gap; forecasts begin at the newest known bar."""

    title: str
    opens_s: NDArray[np.int64]  # of all bars, seconds since the epoch, UTC, shape (N + H,), ascending
    label: Callable[[float], str]  # writes a value of the axis
    known_columns: Columns  # open, high, low and close as candles, or columns as lines, each of shape (N,)
    lines: Sequence[tuple[str, FloatArray]]  # CSS class of each line and its values, shape (H + 1,)
    fans: Sequence[
        tuple[FloatArray, FloatArray]
    ]  # lower and upper ends of intervals, likewise, the widest first
    usual_range: tuple[float, float] | None = None  # drawn in grey

    @property
    def num_ahead(self) -> int:
        """Number of forecast bars."""
        return len(self.lines[-1][1]) - 1

    def newest(self, num_known: int) -> "ChartData":
        """Return the same with so many known bars at most."""
        known_columns = {name: values[-num_known:] for name, values in self.known_columns.items()}
        num_bars = num_known + self.num_ahead
        return replace(self, opens_s=self.opens_s[-num_bars:], known_columns=known_columns)


def draw(data: ChartData, caption: str, layouts: Sequence[ChartLayout] = PAGE_LAYOUTS) -> Html:
    """Draw a chart in each layout; the last of its lines has dots. `caption` says in words what it shows."""
    charts = [_draw_chart(data.newest(layout.num_known), layout, caption) for layout in layouts]
    return element("div", *charts)


def _draw_chart(data: ChartData, layout: ChartLayout, caption: str) -> Html:
    scale = _Scale(data, layout)
    parts = [element("title", data.title)]
    if layout.num_times:
        parts += _grid(data, scale)
        parts += _times(data, scale)
    if OPEN in data.known_columns:
        parts += _candles(data.known_columns, scale)
    else:
        for values in data.known_columns.values():
            parts.append(element("path", d=_path(scale.points(values)), class_="known"))
    parts += _forecast(data, scale)
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {layout.width} {layout.height}",
        role="img",
        aria_label=f"{data.title}. {caption}",
        class_=layout.css_class,
    )


class _Scale:
    """Positions of bars and values in a layout."""

    def __init__(self, data: ChartData, layout: ChartLayout) -> None:
        arrays = [*data.known_columns.values(), *(values for _, values in data.lines)]
        for lower, upper in data.fans:
            arrays += [lower, upper]
        all_values = np.concatenate(arrays)
        lowest = float(np.nanmin(all_values))
        highest = float(np.nanmax(all_values))
        padding = max(0.04 * (highest - lowest), _MIN_PADDING * highest)
        self.layout = layout
        self.lowest = lowest - padding
        self.highest = highest + padding
        self.right = layout.width - layout.margin[0]
        self.bottom = layout.height - layout.margin[1]
        self.bar_width = self.right / len(data.opens_s)

    def x(self, bar: float) -> float:
        """Return the position of the middle of a bar, from 0."""
        return round((bar + 0.5) * self.bar_width, 1)

    def y(self, value: float) -> float:
        """Return the position of a value, from the top."""
        share = (self.highest - value) / (self.highest - self.lowest)
        return round(self.bottom * min(max(share, 0.0), 1.0), 1)

    def points(self, values: FloatArray, first: int = 0) -> list[str]:
        """Write the points of a line that begins at the bar `first`, without values that are not finite."""
        bars = enumerate(values.tolist(), first)
        return [f"{self.x(bar)} {self.y(value)}" for bar, value in bars if math.isfinite(value)]


def _grid(data: ChartData, scale: _Scale) -> Iterator[Html]:
    """Draw the usual range, and lines with labels at round values."""
    if data.usual_range:
        low, high = data.usual_range
        top = scale.y(high)
        height = round(scale.y(low) - top, 1)
        yield element("rect", x=0, y=top, width=scale.right, height=height, class_="usual")
    locator = MaxNLocator(scale.layout.height // 45, steps=[1, 2, 5, 10])
    for tick in locator.tick_values(scale.lowest, scale.highest):
        value = float(tick)
        if scale.lowest <= value <= scale.highest:
            y = scale.y(value)
            yield element("path", d=f"M0 {y}H{scale.right}", class_="grid")
            yield element("text", data.label(value), x=scale.right + 6, y=max(y + 4, 12))


def _times(data: ChartData, scale: _Scale) -> Iterator[Html]:
    """Label some open times, at least a label's width apart and off the edge."""
    step = math.ceil(len(data.opens_s) / scale.layout.num_times)
    for bar in range(step // 2, len(data.opens_s), step):
        label = f"{datetime.fromtimestamp(data.opens_s[bar], UTC):%m-%d %H:%M}"
        yield element("text", label, x=scale.x(bar), y=scale.bottom + 20, text_anchor="middle")


def _candles(columns: Columns, scale: _Scale) -> Iterator[Html]:
    """Draw rising and falling candles: a path of wicks, and one of bodies, with strokes as wide as a body."""
    is_rising = columns[CLOSE] >= columns[OPEN]
    body_width = 0.64 * scale.bar_width
    for style, is_drawn in (("gain", is_rising), ("loss", ~is_rising)):
        bars = np.flatnonzero(is_drawn).tolist()
        yield _strokes(columns[LOW], columns[HIGH], bars, scale, width=1.0, css_class=f"wick {style}")
        yield _strokes(
            columns[OPEN], columns[CLOSE], bars, scale, width=body_width, css_class=f"body {style}"
        )


def _strokes(
    starts: FloatArray, ends: FloatArray, bars: Sequence[int], scale: _Scale, *, width: float, css_class: str
) -> Html:
    """Draw a vertical stroke at each of some bars, from one value to another."""
    strokes = []
    for bar in bars:
        top, bottom = sorted((scale.y(starts[bar]), scale.y(ends[bar])))
        strokes.append(f"M{scale.x(bar)} {top}V{max(bottom, top + 1.0)}")  # at least one unit high
    return element("path", d="".join(strokes), stroke_width=round(width, 1), class_=css_class)


def _forecast(data: ChartData, scale: _Scale) -> Iterator[Html]:
    """Draw intervals, a line where the forecast begins, and the lines of the forecast."""
    last_known = len(data.opens_s) - data.num_ahead - 1
    for lower, upper in data.fans:
        outline = [*scale.points(upper, last_known), *reversed(scale.points(lower, last_known))]
        yield element("path", d=f"{_path(outline)}z", class_="fan")
    x_begin = round((last_known + 1) * scale.bar_width, 1)
    yield element("path", d=f"M{x_begin} 0V{scale.bottom}", class_="now")
    for css_class, values in data.lines:
        yield element("path", d=_path(scale.points(values, last_known)), class_=css_class)
    if scale.layout.num_times:
        _, values = data.lines[-1]
        for bar, value in enumerate(values[1:], last_known + 1):
            yield element("circle", cx=scale.x(bar), cy=scale.y(value), r=2.4, class_="dot")


def _path(points: Sequence[str]) -> str:
    return f"M{'L'.join(points)}" if points else ""
