"""The chart of candles and forecasts on pages, which a reader can touch; `candles.js` draws it.

It is drawn by the library `lightweight-charts` (`v8.base.vendor`), which a page holds once. The same
forecasts are drawn for pictures by `v8.publish.report.figures.issued_on_the_way`.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from v8.base.wording import say, term
from v8.data.market.candles import price_decimals, simulated_price_decimals
from v8.forecaster.series_artifact import ForecastSample, SampledForecast
from v8.profile.columns import CLOSE, OHLC, TASK_OHLC, interval_names, intervals
from v8.profile.tasks import TASKS, Task
from v8.publish.report.markup import Html, element, join

_PLACE_CLASS: Final = "touch"
"""Class of the element in which `candles.js` draws a chart."""


def candle_chart(
    sample: ForecastSample, label: str, others: Sequence[str] = (), *, is_demo: bool = False
) -> Html:
    """Return the chart of a sample with its caption; the page draws it when it becomes visible.

    Args:
        sample: The candles, and the forecasts that were issued among them.
        label: The caption.
        others: Names of series whose charts can be chosen instead, each with a section on the same page, that
            of the sample among them; empty without a choice.
        is_demo: Whether the prices are simulated, which decides how many decimals they are written with.
    """
    content = json.dumps(chart_content(sample, is_demo=is_demo), separators=(",", ":"), allow_nan=False)
    choice: str = ""
    if len(others) > 1:
        options = [
            element("option", name, value=name, selected="" if name == sample.series else None)
            for name in others
        ]
        choice = element("select", join(options), aria_label=say("Series"))
    return element(
        "figure",
        choice or element("b", sample.series),
        # A browser unescapes nothing in a script, so the one sign that could end it is written as a code.
        element("script", Html(content.replace("<", "\\u003c")), type="application/json"),
        element("div", class_=_PLACE_CLASS),
        element("figcaption", label),
        class_="candles",
    )


def has_candle_chart(markup: str) -> bool:
    """Return whether some markup has the chart of candles."""
    return f'class="{_PLACE_CLASS}"' in markup


def chart_content(sample: ForecastSample, *, is_demo: bool) -> dict[str, Any]:
    """Return a sample as the script reads it: JSON values, times in seconds since the epoch."""
    tasks = [task for task in TASKS.values() if task.name in sample.actual and task.name != TASK_OHLC]
    names = interval_names(sample.levels)
    candles = np.asarray(sample.actual[TASK_OHLC])
    if is_demo:
        decimals = simulated_price_decimals(float(candles[-1, OHLC.index(CLOSE)]))
    else:
        decimals = price_decimals(candles)
    return {
        "time": sample.open_time_s,
        "candles": sample.actual[TASK_OHLC],
        "decimals": decimals,
        "intervals": [say("close, {share} interval", share=name) for name in names],
        "tasks": [_task_content(sample, task, place) for place, task in enumerate(tasks)],
        "issued": [_issued_content(sample, issued, tasks) for issued in sample.issued],
        "words": _words(),
    }


def _words() -> dict[str, str]:
    return {
        "actual": say("actual candle"),
        "forecast": say("forecast candle"),
        "four": say("open, high, low, close"),
        "more": say("More lines"),
        "hide": say("Show or hide"),
        "larger": say("Zoom in"),
        "smaller": say("Zoom out"),
        "all": say("Show all"),
        "help": say("Chart of candles and forecasts. Arrow keys move from bar to bar, + and - zoom."),
    }


def _task_content(sample: ForecastSample, task: Task, place: int) -> dict[str, Any]:
    title = term(task.title)
    names = interval_names(sample.levels) if len(task.columns) == 1 else []
    return {
        "place": place,
        "colour": task.colour,
        "format": "price" if task.is_price else "share",
        "actual": say("{task}, actual values", task=title),
        "forecast": say("{task}, forecast", task=title),
        "intervals": [say("{task}, {share} interval", task=title, share=name) for name in names],
        "known": list(zip(*sample.actual[task.name], strict=True)),
    }


def _issued_content(sample: ForecastSample, issued: SampledForecast, tasks: Sequence[Task]) -> dict[str, Any]:
    content: dict[str, Any] = {
        "last": issued.last_known,
        "candles": issued.values[TASK_OHLC],
        "intervals": _intervals(sample, issued, TASK_OHLC, OHLC.index(CLOSE)),
        "tasks": [],
    }
    for task in tasks:
        # An area of each of several lines would hide the others.
        fills = _intervals(sample, issued, task.name, 0) if len(task.columns) == 1 else []
        lines = list(zip(*issued.values[task.name], strict=True))
        content["tasks"].append({"lines": lines, "fills": fills})
    return content


def _intervals(
    sample: ForecastSample, issued: SampledForecast, task: str, column: int
) -> list[list[tuple[float, float]]]:
    """Return the ends of each interval of a column at each step, the widest interval first."""
    if task not in issued.quantiles:
        return []
    by_level = dict(zip(sample.levels, issued.quantiles[task], strict=True))
    return [
        [(low[column], high[column]) for low, high in zip(by_level[lower], by_level[upper], strict=True)]
        for lower, upper in intervals(sample.levels)
    ]
