"""The chart of the newest candles and the forecast after them, as inline SVG in the colours of the page.

It is drawn twice, wide and narrow, because letters in a picture shrink with it; the page shows the one that
fits. Lengths are SVG user units; prices rise upwards.

By hand, because the page of the present weighs 20 kB in all, is replaced at every candle and works without a
script: Plotly would bring 5 MB and styles that the page's policy forbids, Matplotlib letters that do not grow
with the reader's and colours that do not follow light and dark.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.columns import BB_LOWER, BB_UPPER, CLOSE, HIGH, LOW, OPEN
from v8.views.markup import Html, element

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]
_DAY_S: Final = 86_400
_SHOWN: Final = frozenset({HIGH, LOW, CLOSE, BB_UPPER, BB_LOWER})
_LEAST_ROOM: Final = 1e-4
"""Above and below the prices, as a share of the highest: a market may stand still."""


@dataclass(frozen=True)
class Paper:
    """What a chart is drawn on: its class in the style sheet, its size, most candles and most times named.

    The margin is room for prices on the right and for times below.
    """

    name: str
    width: int
    height: int
    margin: tuple[int, int]
    num_candles: int
    num_times: int


WIDE: Final = Paper("chart wide-chart", 1_000, 400, (84, 28), 120, 8)
NARROW: Final = Paper("chart narrow-chart", 360, 300, (74, 28), 44, 3)


@dataclass(frozen=True)
class Picture:
    """Candles of `bar_s` seconds and the forecast that follows them without a hole, in quote currency."""

    series: str
    bar_s: int
    open_time_s: NDArray[np.int64]  # of the candles, seconds since the epoch, UTC, shape (N,), ascending
    candles: Columns  # their open, high, low and close, each of shape (N,)
    forecast: Columns  # columns forecast, each of shape (H,)
    fans: Sequence[tuple[Floats, ...]] = ()  # ends of the close's intervals, the widest first, shape (H,)

    @property
    def opens_s(self) -> NDArray[np.int64]:
        """When candles open, and then the bars forecast: seconds since the epoch, UTC, shape (N + H,)."""
        ahead_s = self.bar_s * np.arange(1, len(self.forecast[CLOSE]) + 1)
        return np.concatenate([self.open_time_s, self.open_time_s[-1] + ahead_s])


def draw(picture: Picture, caption: str) -> Html:
    """Draw a chart on both papers; `caption` says in words what they show."""
    return element("div", *(_drawn(picture, paper, caption) for paper in (WIDE, NARROW)))


def _drawn(picture: Picture, paper: Paper, caption: str) -> Html:
    newest = slice(-paper.num_candles, None)
    candles = {name: values[newest] for name, values in picture.candles.items()}
    picture = replace(picture, open_time_s=picture.open_time_s[newest], candles=candles)
    scale, title = _Scale(picture, paper), f"{picture.series}: candles and forecast"
    told = [element("title", title), element("desc", caption)]
    parts = [*scale.grid(), *_times(picture, scale), *_candles(picture, scale), *_forecast(picture, scale)]
    box, label = f"0 0 {paper.width} {paper.height}", f"{title}. {caption}"
    return element("svg", *told, *parts, viewBox=box, role="img", aria_label=label, class_=paper.name)


class _Scale:
    """Where bars and prices stand on a paper."""

    def __init__(self, picture: Picture, paper: Paper) -> None:
        shown = [picture.candles[name] for name in (HIGH, LOW)]
        shown += [values for name, values in picture.forecast.items() if name in _SHOWN]
        shown += [end for fan in picture.fans for end in fan]
        lowest, highest = min(float(each.min()) for each in shown), max(float(each.max()) for each in shown)
        room = max(0.04 * (highest - lowest), _LEAST_ROOM * highest)
        self.paper, self._lowest, self._highest = paper, lowest - room, highest + room
        self.right, self.bottom = paper.width - paper.margin[0], paper.height - paper.margin[1]
        self.bar = self.right / len(picture.opens_s)  # width of one

    def x(self, bar: float) -> float:
        """Return the middle of a bar, from 0."""
        return round((bar + 0.5) * self.bar, 1)

    def y(self, price: float) -> float:
        return round(self.bottom * (self._highest - price) / (self._highest - self._lowest), 1)

    def grid(self) -> Iterator[Html]:
        """Draw the round prices within."""
        step = tick_step(self._highest - self._lowest, self.paper.height // 45)
        for number in range(math.ceil(self._lowest / step), math.floor(self._highest / step) + 1):
            y, label = self.y(number * step), tick_label(number * step, step)
            yield element("path", d=f"M0 {y}H{self.right}", class_="grid")
            yield element("text", label, x=self.right + 6, y=y + 4, class_="tick")


def tick_step(span: float, most: int) -> float:
    """Return the smallest round step that cuts a span above 0 into at most so many pieces.

    >>> tick_step(97.0, 5), tick_step(0.004, 4)
    (20.0, 0.001)
    """
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most)


def tick_label(price: float, step: float) -> str:
    """Write a price of an axis with as many decimals as its step needs.

    >>> tick_label(63_000.0, 500.0), tick_label(0.0125, 0.0005), tick_label(1.2e-7, 2e-8)
    ('63,000', '0.0125', '1.2e-07')
    """
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{price:,.{decimals}f}" if decimals < 7 else f"{price:.6g}"


def _times(picture: Picture, scale: _Scale) -> Iterator[Html]:
    """Name some opens, at least a label's width apart and off the edge; the day where it is another."""
    opens_s, day = picture.opens_s.tolist(), None
    every = math.ceil(len(opens_s) / scale.paper.num_times)
    for bar in range(every // 2, len(opens_s), every):
        moment = datetime.fromtimestamp(opens_s[bar], UTC)
        is_new_day, day = moment.date() != day, moment.date()
        label = f"{moment:%b %d %H:%M}" if is_new_day or picture.bar_s >= _DAY_S else f"{moment:%H:%M}"
        yield element("text", label, x=scale.x(bar), y=scale.bottom + 20, class_="tick", text_anchor="middle")


def _candles(picture: Picture, scale: _Scale) -> Iterator[Html]:
    """Draw rising and falling candles as one path of wicks and one of bodies each."""
    rows, width = [picture.candles[name] for name in (OPEN, HIGH, LOW, CLOSE)], round(0.64 * scale.bar, 1)
    for style, is_rising in (("gain", True), ("loss", False)):
        wicks, bodies = [], []
        for bar, (opened, high, low, close) in enumerate(zip(*rows, strict=True)):
            if bool(close >= opened) == is_rising:
                wicks.append(f"M{scale.x(bar)} {scale.y(high)}V{scale.y(low)}")
                top, bottom = scale.y(max(opened, close)), scale.y(min(opened, close))
                height = max(1.0, round(bottom - top, 1))  # a body is at least one unit high
                left = round(scale.x(bar) - width / 2, 1)
                bodies.append(f"M{left} {top}h{width}v{height}h-{width}z")
        yield element("path", d="".join(wicks), class_=f"wick {style}")
        yield element("path", d="".join(bodies), class_=f"body {style}")


def _forecast(picture: Picture, scale: _Scale) -> Iterator[Html]:
    """Draw bands, the close in fans that open at the last one, and where the forecast begins.

    The fans are the intervals of the close, or low to high where the model has none.
    """
    first, columns = len(picture.open_time_s), picture.forecast
    known = float(picture.candles[CLOSE][-1])
    edge = round(first * scale.bar, 1)
    yield element("path", d=f"M{edge} 0V{scale.bottom}", class_="now")
    for name in (BB_UPPER, BB_LOWER):
        if name in columns:
            yield element("path", d=_line(_points(first, columns[name], scale)), class_="bands")
    closes = [(scale.x(first - 1), scale.y(known)), *_points(first, columns[CLOSE], scale)]
    fans = picture.fans
    if not fans and HIGH in columns and LOW in columns:
        fans = [(columns[LOW], columns[HIGH])]
    for fan in fans:
        lower, upper = (_points(first, end, scale) for end in fan)
        yield element("path", d=f"{_line([closes[0], *upper, *reversed(lower)])}z", class_="fan")
    yield element("path", d=_line(closes), class_="line")
    for x, y in closes[1:]:
        yield element("circle", cx=x, cy=y, r=2.4, class_="dot")


def _points(first: int, values: Iterable[float], scale: _Scale) -> list[tuple[float, float]]:
    return [(scale.x(first + step), scale.y(float(value))) for step, value in enumerate(values)]


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)
