"""Small inline SVG charts that take their colours from the page's style sheet.

Lengths are SVG user units; the page shows a line chart at 320 to 480 pixels, so that its text stays
readable on a telephone. Colours are classes, so that light and dark follow the reader's setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from v8.reports.markup import Html, element, join

_WIDTH: Final = 340
_HEIGHT: Final = 190
_LEFT: Final = 52
_RIGHT: Final = 12
_TOP: Final = 12
_BOTTOM: Final = 36
_BAR_WIDTH: Final = 96
_BAR_HEIGHT: Final = 14


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Args:
        name: What it shows.
        style: Its class in the style sheet.
        points: x and y of each point, left to right, finite.
    """

    name: str
    style: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class _Frame:
    """The ranges of both axes and where they lie on the drawing."""

    x: tuple[float, float]
    y: tuple[float, float]

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = _share(x, self.x) * (_WIDTH - _LEFT - _RIGHT)
        up = _share(y, self.y) * (_HEIGHT - _TOP - _BOTTOM)
        return round(_LEFT + across, 1), round(_HEIGHT - _BOTTOM - up, 1)


def line_chart(
    lines: Sequence[Line],
    *,
    label: str,
    x_label: str,
    is_from_zero: bool = True,
    marked_x: tuple[float, str] | None = None,
) -> Html:
    """Draw lines over whole-numbered x.

    Args:
        lines: At least one, each with at least one point; the last is drawn on top.
        label: What the chart shows, with unit, for those who hear it.
        x_label: Name of the x axis.
        is_from_zero: Whether the y axis starts at zero, as errors should; losses need not.
        marked_x: An x to mark with an upright line, and its name.
    """
    xs = [x for line in lines for x, _ in line.points] + ([marked_x[0]] if marked_x else [])
    ys = [y for line in lines for _, y in line.points]
    ticks = nice_ticks(0.0 if is_from_zero else min(ys), max(ys))
    frame = _Frame((min(xs), max(xs)), (ticks[0], ticks[-1]))
    return element(
        "svg",
        element("title", label),
        *(_y_tick(frame, tick) for tick in ticks),
        *(_x_tick(frame, tick) for tick in _x_ticks(*frame.x)),
        _text(x_label, (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 4, "middle"),
        _mark(frame, *marked_x) if marked_x else Html(),
        *(_line(frame, line) for line in lines),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        class_="chart",
    )


def skill_bar(skill: float, limit: float) -> Html:
    """Draw one skill as a bar to the right (better than naive) or left (worse) of a middle line.

    Args:
        skill: Unitless, 1 at most.
        limit: Skill at the end of the drawing, above 0; a bar that is longer ends in a point.
    """
    middle, half = _BAR_WIDTH / 2, _BAR_WIDTH / 2 - 4
    length = round(min(1.0, abs(skill) / limit) * half, 1)
    side = 1 if skill >= 0 else -1
    style = "good" if skill >= 0 else "bad"
    bar = element(
        "rect", x=min(middle, middle + side * length), y=3, width=length, height=_BAR_HEIGHT - 6, class_=style
    )
    end = middle + side * half
    tip = f"M{end} 1 l{side * 4} {_BAR_HEIGHT / 2 - 1} l{-side * 4} {_BAR_HEIGHT / 2 - 1} z"
    return element(
        "svg",
        element("line", x1=middle, x2=middle, y1=0, y2=_BAR_HEIGHT, class_="axis"),
        bar,
        element("path", d=tip, class_=style) if abs(skill) > limit else Html(),
        width=_BAR_WIDTH,
        height=_BAR_HEIGHT,
        viewBox=f"0 0 {_BAR_WIDTH} {_BAR_HEIGHT}",
        aria_hidden="true",
        class_="bar",
    )


def share_bar(share: float) -> Html:
    """Draw a share of a whole, 0 to 1, as a bar."""
    return element(
        "svg",
        element("rect", x=0, y=3, width=round(share * _BAR_WIDTH, 1), height=_BAR_HEIGHT - 6, class_="share"),
        width=_BAR_WIDTH,
        height=_BAR_HEIGHT,
        viewBox=f"0 0 {_BAR_WIDTH} {_BAR_HEIGHT}",
        aria_hidden="true",
        class_="bar",
    )


def nice_ticks(low: float, high: float) -> list[float]:
    """Return 3 to 7 round numbers, evenly spaced, that enclose a range.

    Args:
        low: Lower end, finite.
        high: Upper end, finite, at least `low`.

    >>> nice_ticks(0.0, 0.83)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    spread = high - low
    if spread <= 1e-9 * max(abs(low), abs(high)):  # one value: give it room, whatever its size
        spread = abs(high) or 1.0
    rough = spread / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    last = max(last, first + 2)
    return [number * step for number in range(first, last + 1)]


def _share(value: float, ends: tuple[float, float]) -> float:
    return (value - ends[0]) / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.5


def _x_ticks(first: float, last: float) -> list[float]:
    middle = float(round((first + last) / 2))
    return sorted({first, middle, last})


def _line(frame: _Frame, line: Line) -> Html:
    places = [frame.place(x, y) for x, y in line.points]
    path = "M" + " L".join(f"{x} {y}" for x, y in places)
    dots = (
        element("circle", _tooltip(line, x, y), cx=place[0], cy=place[1], r=2.5)
        for (x, y), place in zip(line.points, places, strict=True)
        if line.style == "model" or len(places) == 1
    )
    return element("g", element("path", d=path), *dots, class_=line.style)


def _tooltip(line: Line, x: float, y: float) -> Html:
    return element("title", f"{line.name}, {x:g}: {y:.4g}")


def _y_tick(frame: _Frame, tick: float) -> Html:
    _, y = frame.place(frame.x[0], tick)
    rule = element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid")
    return join([rule, _text(f"{tick:.4g}", _LEFT - 6, y + 4, "end")])


def _x_tick(frame: _Frame, tick: float) -> Html:
    x, _ = frame.place(tick, frame.y[0])
    return _text(f"{tick:g}", x, _HEIGHT - _BOTTOM + 15, "middle")


def _mark(frame: _Frame, x: float, name: str) -> Html:
    place, _ = frame.place(x, frame.y[0])
    rule = element("line", element("title", name), x1=place, x2=place, y1=_TOP, y2=_HEIGHT - _BOTTOM)
    return element("g", rule, class_="mark")


def _text(content: str, x: float, y: float, anchor: str) -> Html:
    return element("text", content, x=x, y=y, text_anchor=anchor)
