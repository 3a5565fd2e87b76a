"""How forecasts are printed: as tables, CSV or JSON.

A few series are printed bar by bar; of many the table has one row a series. Numbers go to standard output;
what is said about those of a CSV goes to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from v8.columns import CLOSE, HIGH, LOW
from v8.tables import Table
from v8.wording import ABSENT, number, percent

if TYPE_CHECKING:
    from v8.live.issuing import Issued

MOST_WHOLE: Final = 4
"""Series that are printed bar by bar; more are printed in a row each."""


def print_tables(issued: Sequence[Issued], *, is_many: bool) -> None:
    """Print a table a series, or one of all of them."""
    if len(issued) > MOST_WHOLE:
        _print_rows(issued)
        return
    for one in issued:
        _print_bars(one)


def print_csv(issued: Sequence[Issued], *, is_many: bool) -> None:
    """Print numbers with all their digits, one row a bar; the first column is the series where many are."""
    import pandas as pd

    frames = []
    for one in issued:
        frames.append(one.forecast.set_axis(one.opens()).rename_axis("open_time").reset_index())
        if is_many:
            frames[-1].insert(0, "series", str(one.forecaster.series))
        sys.stderr.write("\n".join(one.lines()) + "\n")
    if frames:
        pd.concat(frames).to_csv(sys.stdout, index=False, lineterminator="\n")


def print_json(issued: Sequence[Issued], *, is_many: bool) -> None:
    """Print one object, or a list of them where many were asked for."""
    contents = [one.to_json() for one in issued]
    sys.stdout.write(json.dumps(contents if is_many else contents[0], indent=2, allow_nan=False) + "\n")


PRINTERS: Final[dict[str, Callable[..., None]]] = {
    "table": print_tables,
    "csv": print_csv,
    "json": print_json,
}
"""Every form by the name that `--format` takes; each is given forecasts and whether many were asked for."""


def _print_bars(one: Issued) -> None:
    from v8.cli.printing import print_lines, print_table
    from v8.market.series import iso

    shown = (map("{:.7g}".format, values) for values in one.points().to_numpy())
    rows = [(time, *values) for time, values in zip(one.opens(), shown, strict=True)]
    title = f"{one.forecaster.series}: forecast issued at {iso(one.issued_at_s)}"
    print_table(Table(("open time", *one.points().columns), rows, title))
    for name, cells in one.intervals().items():
        rows = [(time, *values) for time, values in zip(one.opens(), cells, strict=True)]
        print_table(Table(("open time", *one.points().columns), rows, f"{name} intervals"))
    print_lines(*one.lines())


def _print_rows(issued: Sequence[Issued]) -> None:
    from v8.cli.printing import print_lines, print_table
    from v8.market.series import iso

    first, last = issued[0], max(one.issued_at_s for one in issued)
    header = ("series", "first bar", "bars", "last close", "low", "high", "close", "change", "× best", "age")
    print_table(Table(header, map(_row, issued), f"{len(issued)} forecasts issued at {iso(last)}"))
    print_lines(*_about(first))


def _row(one: Issued) -> list[Any]:
    """Sum a forecast up: how low and how high it goes, where it ends, what the model is worth, its age."""
    from v8.live.issuing import age

    forecast, close = one.forecast, float(one.candles.column(CLOSE)[-1])
    ends = float(forecast[CLOSE].iloc[-1]) if CLOSE in forecast else None
    numbers = [
        forecast[LOW].min() if LOW in forecast else None,
        forecast[HIGH].max() if HIGH in forecast else None,
        ends,
    ]
    change = ABSENT if ends is None else percent(ends / close - 1.0, 2)
    best = next(iter(one.quality.values()))["multiple_of_best"]
    old = ABSENT if one.model_age_s is None else age(one.model_age_s)
    prices = [ABSENT if value is None else f"{value:.7g}" for value in numbers]
    first = one.forecast.index[0].strftime("%Y-%m-%dT%H:%MZ")
    start = [str(one.forecaster.series), first, len(forecast), f"{close:.7g}"]
    return [*start, *prices, change, number(best), old]


def _about(one: Issued) -> list[str]:
    """Say of forecasts of one place where they come from, and how their table is read."""
    revision = f" at {one.revision}" if one.revision else ""
    task = next(iter(one.quality))
    return [
        f"Models: {one.place}{revision}, profile {one.profile}. Candles: {one.candles.source}.",
        *one.demo_lines(),
        "low, high: of all bars; close: of the last bar, and its change from the last close.",
        f"× best: error of {task} on the test span as a multiple of the best baseline's; below 1 it is less.",
        "age: how long before the forecast the newest candle closed that training has seen.",
    ]
