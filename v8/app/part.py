"""The part of the page about one series: chart, forecast, quality, live record, training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from v8.app import answers
from v8.app.drawing import Picture, draw
from v8.app.places import Fleet
from v8.columns import CLOSE, OHLC
from v8.market.open_times import iso
from v8.market.series import Series
from v8.quantile_levels import intervals, quantile_column
from v8.tasks import TASKS
from v8.views.markup import Html, element, facts, join, table
from v8.wording import ABSENT, count, duration, number, p_value, percent, spaced

if TYPE_CHECKING:  # it comes with TensorFlow
    from v8.live.issuing import Issued

_DAY_S = 86_400


@dataclass(frozen=True)
class Shown:
    """A forecast as it is answered with.

    Args:
        content: The JSON of the API.
        html: Its part of the page; an attribute `data-status` says it in one sentence.
    """

    content: bytes
    html: Html


def shown(fleet: Fleet, issued: Issued) -> Shown:
    """Write a forecast down, once for all who ask for it."""
    content = answers.forecast(fleet, issued)
    status = _status(issued)
    parts = [
        element("h2", str(issued.candles.series)),
        *_warnings(issued),
        element("p", status, data_status=status),
        element("figure", draw(_picture(issued), status), element("figcaption", _note(issued))),
        _numbers(issued),
        element("h3", "How good this model was, on candles that training had not seen"),
        _quality(content["model"]["quality"]),
        _trained(fleet, issued.candles.series, issued.issued_at_s),
    ]
    return Shown(answers.written(content), join(parts))


def _trained(fleet: Fleet, series: Series, now_s: float) -> Html:
    """Tell what the model of a series was trained on, and how long ago its candles end."""
    about = answers.trained(fleet, series)
    pairs = [
        ("profile", about["profile"]),
        ("candles", f"{count(about['num_bars'])} from {about['source']}"),
        ("first candle opened", moment(about["first_open"])),
        ("last candle opened", moment(about["last_open"])),
        *(
            (f"{name} span", f"{moment(span['first_open'])} to {moment(span['last_open'])}")
            for name, span in about["spans"].items()
        ),
        ("trained", moment(about["created_at"])),
        ("digest of the candles", (about["candles_digest"] or ABSENT)[:16]),
        ("digest of the model", about["model_sha256"][:16]),
    ]
    if not fleet.metadata[series]["is_demo_market"]:
        end_s = datetime.fromisoformat(about["last_open"]).timestamp() + series.bar_s
        pairs.append(("age of the newest of them", _age(max(0.0, now_s - end_s))))
    if fleet.revision:
        pairs.append(("commit on the Hub", fleet.revision[:16]))
    return join([element("h3", "What the model was trained on"), facts(pairs)])


def record_part(track: Mapping[str, Any]) -> Html:
    """Show the live record of a series, as `/api/track/{series}` tells it."""
    head = element("h3", "Live record: forecasts written down before the truth was known")
    record = track["record"]
    if record is None:
        return join([head, element("p", "No record yet: no forecast of this series is in the ledger.")])
    counted = (
        f"{count(record['num_issued'])} issued, {count(record['num_scored'])} scored, "
        f"{count(record['num_pending'])} waiting for their truth, {count(record['num_late'])} late (in no "
        f"error), {count(record['num_void'])} without a truth for ever."
    )
    if not record["tasks"]:
        return join([head, element("p", counted)])
    return join([head, element("p", counted), _tracked(record["tasks"], track["all_series"])])


def _tracked(tasks: Mapping[str, Any], all_series: Mapping[str, Any]) -> Html:
    lines = [(TASKS[task].title, live) for task, live in tasks.items()]
    lines += [(f"{TASKS[task].title}, all series", live) for task, live in all_series.items()]
    rows = ([title, *_live_cells(live)] for title, live in lines)
    head = ["task", "forecasts", "days", "× naive", "verdict", "p", "× best", "of", "verdict", "p"]
    caption = "Mean absolute error as a multiple of baselines' issued at the same moment; p is corrected"
    shown = table(head, rows, caption=caption)
    return join([shown, _covered(lines)]) if any("coverage" in live for _, live in lines) else shown


def _covered(lines: Sequence[tuple[str, Mapping[str, Any]]]) -> Html:
    """Show how good the quantiles of issued forecasts were."""
    having = [(title, live) for title, live in lines if "coverage" in live]
    names = list(dict.fromkeys(name for _, live in having for name in live["coverage"]))
    rows = (
        [title, number(live["crps_multiple"]), *(percent(live["coverage"].get(name)) for name in names)]
        for title, live in having
    )
    caption = "Quantiles: CRPS as a multiple of naive's error, and how many truths lay within each interval"
    return table(["task", "CRPS × naive", *(f"within {name}" for name in names)], rows, caption=caption)


def _live_cells(live: Mapping[str, Any]) -> list[str]:
    naive, best = live["naive"], live["best"]
    cells = [count(live["num_scored"]), count(live["num_days"]), number(naive["multiple"])]
    cells += [naive["verdict"], p_value(naive["corrected_p_value"]), number(best["multiple"])]
    return [*cells, spaced(best["baseline"]), best["verdict"], p_value(best["corrected_p_value"])]


def moment(text: str) -> str:
    """Write a time of a file for people.

    >>> moment("2026-08-01T00:15:00+00:00"), moment("2026-08-01T00:15:00Z")
    ('2026-08-01 00:15', '2026-08-01 00:15')
    """
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M}"


def _age(seconds: float) -> str:
    return duration(seconds) if seconds < 3 * _DAY_S else f"{seconds // _DAY_S:,.0f} days"


def _status(issued: Issued) -> str:
    """Say the forecast in a sentence: when it was made, and where its last close stands."""
    known, last = float(issued.candles.column(CLOSE)[-1]), float(issued.forecast[CLOSE].iloc[-1])
    change = f"{100 * (last / known - 1):+.2f} %"
    made = f", made at {moment(iso(issued.issued_at_s))}" if issued.is_dated else ""
    return (
        f"{issued.candles.series}: the newest candle closed at {moment(iso(issued.closed_s))} UTC at "
        f"{known:.7g}; forecast {len(issued.forecast)} bars on{made}: {last:.7g} ({change})."
    )


def _warnings(issued: Issued) -> Iterator[Html]:
    if not issued.is_dated:
        yield element(
            "p",
            "Simulated market: this forecast says nothing about real prices.",
            class_="banner",
        )


def _picture(issued: Issued) -> Picture:
    candles = issued.candles
    columns = {name: candles.column(name) for name in OHLC}
    prices = {
        name: issued.forecast[name].to_numpy()
        for task in TASKS.values()
        if task.is_price
        for name in task.columns
        if name in issued.forecast
    }
    fans = [
        tuple(issued.forecast[quantile_column(CLOSE, level)].to_numpy() for level in pair)
        for pair in intervals(issued.forecaster.quantiles)
    ]
    return Picture(str(candles.series), candles.series.bar_s, candles.open_time_s, columns, prices, fans)


def _note(issued: Issued) -> str:
    bands = " Dashed: the forecast Bollinger bands." if "bb_upper" in issued.forecast else ""
    shaded = (
        "what lies between its low and its high, which is no interval: nothing says how often the truth "
        "stays within."
    )
    if named := [*issued.intervals()]:
        shaded = f"its {' and '.join(named)} intervals: so often should the truth stay within, at each step."
    return (
        f"Newest candles, and behind the line the forecast: its close, and shaded {shaded}"
        f"{bands} Times in UTC."
    )


def _numbers(issued: Issued) -> Html:
    points = issued.points()
    head, opens = ["opens, UTC", *map(spaced, points.columns)], [*map(_whole_day, issued.opens())]
    written = [[f"{value:.7g}" for value in row] for row in points.to_numpy().tolist()]
    caption = f"Forecast of {issued.candles.series}, one row a bar; prices in quote currency"
    tables = [table(head, _beside(opens, written), caption=caption)]
    for name, cells in issued.intervals().items():
        tables.append(table(head, _beside(opens, cells), caption=f"{name} intervals of the same"))
    return join(tables)


def _beside(opens: Sequence[Html], cells: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[time, *row] for time, row in zip(opens, cells, strict=True)]


def _whole_day(text: str) -> Html:
    """Write a time that a narrow column may break between day and hour only."""
    day, _, hour = moment(text).partition(" ")
    return join([element("span", day, class_="whole"), " ", hour])


def _quality(quality: Mapping[str, Mapping[str, Any]]) -> Html:
    rows = (
        [
            TASKS[task].title,
            number(told["multiple_of_naive"]),
            told["verdict"],
            number(told["multiple_of_best"]),
            told["verdict_against_best"],
        ]
        for task, told in quality.items()
    )
    head = ["task", "× naive", "verdict", "× best baseline", "verdict"]
    caption = "Mean absolute error on the test span as a multiple of the naive forecast's and of the best "
    return table(head, rows, caption=f"{caption}baseline's: below 1 is less")
