"""Charts of the present as inline SVG in the colours of the page: candles, lines and the fans of a forecast.

Those of a page are drawn twice, wide and narrow, because letters in a picture shrink with it; the page shows
the one that fits. Lengths are SVG user units; values rise upwards.

By hand, because the page of the present weighs 20 kB in all, is replaced at every candle and works without a
script: Plotly would bring 5 MB and styles that the page's policy forbids, Matplotlib letters that do not grow
with the reader's and colours that do not follow light and dark.
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
_LEAST_ROOM: Final = 1e-4  # above and below the values, as a share of the highest: a market may stand still


@dataclass(frozen=True)
class Paper:
    """What a chart is drawn on: its class in the style sheet, its size, most known bars and most times named.

    The margin is room for values on the right and for times below; where no time is named there are no axes.
    """

    name: str
    width: int
    height: int
    margin: tuple[int, int]
    num_known: int
    num_times: int


WIDE: Final = Paper("chart wide-chart", 1_000, 400, (92, 28), 120, 8)
NARROW: Final = Paper("chart narrow-chart", 360, 300, (84, 28), 44, 3)
SHEET: Final = (WIDE, NARROW)
LOW_SHEET: Final = (replace(WIDE, height=200), replace(NARROW, height=180))
STAMP: Final = (Paper("chart", 280, 84, (0, 0), 30, 0),)


@dataclass(frozen=True)
class Picture:
    """Known bars and those forecast behind them, without a hole; forecasts begin at the newest known bar."""

    title: str
    opens_s: NDArray[np.int64]  # of all bars, seconds since the epoch, UTC, shape (N + H,), ascending
    label: Callable[[float], str]  # writes a value of the axis
    known: Columns  # open, high, low and close as candles, or columns as lines, each of shape (N,)
    lines: Sequence[
        tuple[str, FloatArray]
    ]  # how each looks and its values, shape (H + 1,); the last has dots
    fans: Sequence[
        tuple[FloatArray, FloatArray]
    ]  # lower and upper ends of intervals, likewise, the widest first
    usual: tuple[float, float] | None = None  # between which values there is nothing unusual

    def newest(self, num_known: int) -> "Picture":
        """Return the same with so many known bars at most."""
        known = {name: values[-num_known:] for name, values in self.known.items()}
        num_bars = num_known + len(self.lines[-1][1]) - 1
        return replace(self, opens_s=self.opens_s[-num_bars:], known=known)


def draw(picture: Picture, caption: str, sheet: Sequence[Paper] = SHEET) -> Html:
    """Draw a chart on each paper; `caption` says in words what it shows."""
    return element("div", *(_drawn(picture.newest(paper.num_known), paper, caption) for paper in sheet))


def _drawn(picture: Picture, paper: Paper, caption: str) -> Html:
    scale = _Scale(picture, paper)
    axes = [*_grid(picture, scale), *_times(picture, scale)] if paper.num_times else []
    lines = (element("path", d=_path(scale.points(one)), class_="known") for one in picture.known.values())
    known = _candles(picture.known, scale) if OPEN in picture.known else lines
    parts = [element("title", picture.title), *axes, *known, *_forecast(picture, scale)]
    box = f"0 0 {paper.width} {paper.height}"
    label = f"{picture.title}. {caption}"
    return element("svg", *parts, viewBox=box, role="img", aria_label=label, class_=paper.name)


class _Scale:
    """Where bars and values stand on a paper."""

    def __init__(self, picture: Picture, paper: Paper) -> None:
        lines = [*picture.known.values(), *(line for _, line in picture.lines)]
        every = np.concatenate([*lines, *(end for ends in picture.fans for end in ends)])
        lowest = float(np.nanmin(every))
        highest = float(np.nanmax(every))
        room = max(0.04 * (highest - lowest), _LEAST_ROOM * highest)
        self.paper = paper
        self.lowest = lowest - room
        self.highest = highest + room
        self.right = paper.width - paper.margin[0]
        self.bottom = paper.height - paper.margin[1]
        self.bar = self.right / len(picture.opens_s)  # width of one

    def x(self, bar: float) -> float:
        """Return the middle of a bar, from 0."""
        return round((bar + 0.5) * self.bar, 1)

    def y(self, value: float) -> float:
        share = (self.highest - value) / (self.highest - self.lowest)
        return round(self.bottom * min(max(share, 0.0), 1.0), 1)

    def points(self, values: FloatArray, first: int = 0) -> list[str]:
        """Write the points of a line that begins at a bar, where it has values."""
        bars = enumerate(values.tolist(), first)
        return [f"{self.x(bar)} {self.y(value)}" for bar, value in bars if math.isfinite(value)]


def _grid(picture: Picture, scale: _Scale) -> Iterator[Html]:
    """Draw the round values within, and what is usual."""
    if picture.usual:
        bottom, top = map(scale.y, picture.usual)
        yield element("rect", x=0, y=top, width=scale.right, height=round(bottom - top, 1), class_="usual")
    locator = MaxNLocator(scale.paper.height // 45, steps=[1, 2, 5, 10])
    for value in map(float, locator.tick_values(scale.lowest, scale.highest)):
        if scale.lowest <= value <= scale.highest:
            y = scale.y(value)
            yield element("path", d=f"M0 {y}H{scale.right}", class_="grid")
            yield element("text", picture.label(value), x=scale.right + 6, y=max(y + 4, 12))


def _times(picture: Picture, scale: _Scale) -> Iterator[Html]:
    """Name some opens, at least a label's width apart and off the edge."""
    every = math.ceil(len(picture.opens_s) / scale.paper.num_times)
    for bar in range(every // 2, len(picture.opens_s), every):
        label = f"{datetime.fromtimestamp(picture.opens_s[bar], UTC):%m-%d %H:%M}"
        yield element("text", label, x=scale.x(bar), y=scale.bottom + 20, text_anchor="middle")


def _candles(known: Columns, scale: _Scale) -> Iterator[Html]:
    """Draw rising and falling candles: a path of wicks, and one of bodies, strokes as wide as a body is."""
    rising = known[CLOSE] >= known[OPEN]
    for style, chosen in (("gain", rising), ("loss", ~rising)):
        for part, ends, width in (("wick", (LOW, HIGH), 1.0), ("body", (OPEN, CLOSE), 0.64 * scale.bar)):
            strokes = []
            for bar in np.flatnonzero(chosen).tolist():
                top, bottom = sorted(scale.y(known[end][bar]) for end in ends)
                strokes.append(f"M{scale.x(bar)} {top}V{max(bottom, top + 1.0)}")  # at least one unit high
            yield element("path", d="".join(strokes), stroke_width=round(width, 1), class_=f"{part} {style}")


def _forecast(picture: Picture, scale: _Scale) -> Iterator[Html]:
    """Draw fans, where the forecast begins, and lines."""
    last = len(picture.opens_s) - len(picture.lines[-1][1])
    for lower, upper in picture.fans:
        around = [*scale.points(upper, last), *reversed(scale.points(lower, last))]
        yield element("path", d=f"{_path(around)}z", class_="fan")
    yield element("path", d=f"M{round((last + 1) * scale.bar, 1)} 0V{scale.bottom}", class_="now")
    for style, values in picture.lines:
        yield element("path", d=_path(scale.points(values, last)), class_=style)
    for bar, value in enumerate(values[1:], last + 1) if scale.paper.num_times else ():
        yield element("circle", cx=scale.x(bar), cy=scale.y(value), r=2.4, class_="dot")


def _path(points: Sequence[str]) -> str:
    return f"M{'L'.join(points)}" if points else ""
