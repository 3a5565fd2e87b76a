"""A small chart of a tile as inline SVG: the newest closes, and the range of the bars ahead.

It is drawn on the server, because an overview of a thousand series has to show without a script and at once.
Colours are those of the page. Lengths are SVG user units; values rise upwards.
"""

import math
from typing import Final

import numpy as np

from v8.base.arrays import FloatArray
from v8.publish.report.markup import Html, element

WIDTH: Final = 280
HEIGHT: Final = 64
_RIGHT: Final = 274  # where the bars end: the dot at the last one needs the rest
_TOP: Final = 5  # above and below the values
MIN_KNOWN: Final = 24  # known bars at least, if there are so many
_MIN_SPAN: Final = 1e-6  # of the values, as a share of the highest: a market may stand still


def num_known_bars(num_ahead: int) -> int:
    """Return how many known bars are drawn: the bars ahead take a third of the width at most."""
    return max(MIN_KNOWN, 2 * num_ahead)


def sparkline(known: FloatArray, ahead: FloatArray, ends: tuple[float, float], title: str) -> Html:
    """Draw known closes, the forecast closes behind them, and the range of all bars ahead.

    Args:
        known: Closes, the newest last, shape (N,), in quote currency.
        ahead: Forecast closes, shape (H,), in quote currency.
        ends: Low and high end of the range, in quote currency.
        title: Says in words what is drawn.
    """
    known = known[-num_known_bars(len(ahead)) :]
    low, high = ends
    values = np.concatenate([known, ahead, ends])
    lowest = float(values.min())
    span = max(float(values.max()) - lowest, _MIN_SPAN * float(values.max()))
    step = _RIGHT / (len(known) + len(ahead) - 1)

    def y(value: float) -> float:
        return round(HEIGHT - _TOP - (HEIGHT - 2 * _TOP) * (value - lowest) / span, 1)

    def path(closes: FloatArray, first: int) -> str:
        points = [
            f"{round(bar * step, 1)} {y(close)}"
            for bar, close in enumerate(closes.tolist(), first)
            if math.isfinite(close)
        ]
        return f"M{'L'.join(points)}"

    now = len(known) - 1
    x_now = round(now * step, 1)
    y_last = y(float(ahead[-1]))
    range_height = round(max(y(low) - y(high), 1.0), 1)
    return element(
        "svg",
        element(
            "rect", x=x_now, y=y(high), width=round(_RIGHT - x_now, 1), height=range_height, class_="range"
        ),
        element("path", d=path(known, 0), class_="known"),
        element("path", d=path(np.concatenate([known[-1:], ahead]), now), class_="ahead"),
        element("circle", cx=_RIGHT, cy=y_last, r=2.5),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=title,
        class_="spark",
    )
