"""The page: a series to choose, the part about it, the leaderboard, and where the API is.

All text passes through `v8.views.markup`, which escapes it. Style, script and icon are files of their own.
The script asks for another series when one is chosen, and again when the next candle has closed; without
it the page works by its button. What goes wrong is counted in `data-errors` of the root element, where a
test in a browser finds it, and in `data-shown` how often a series was shown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from v8.app import answers
from v8.app.drawing import Picture, draw
from v8.app.places import Fleet
from v8.columns import CLOSE, OHLC
from v8.market.series import Series, iso
from v8.quantile_levels import intervals, quantile_column
from v8.storage import packaged
from v8.tasks import TASKS
from v8.views.markup import STYLE, Html, element, facts, join, shown_table
from v8.views.page import leaderboard
from v8.views.verdict import opening, verdict
from v8.wording import ABSENT, Table, count, duration, number, p_value, percent, plural, spaced

if TYPE_CHECKING:  # it comes with TensorFlow
    from v8.live.issuing import Issued

_READING: Final = (
    "The close of a coin is close to a random walk, so 1.000 times naive is an honest result for it; ranges, "
    "bands and volatility can be forecast, a little. Every number stands beside forecasts that need no "
    "training. Nothing here is advice to trade."
)
DOCTYPE: Final = Html("<!DOCTYPE html>\n")
_DAY_S: Final = 86_400


def page(fleet: Fleet, chosen: Series, part: Html | None) -> Html:
    """Return the whole page with what is said of the chosen series; None lets the script ask for it."""
    waiting = element("p", "The forecast is being made.", data_status="")
    routes = (
        [element("code", route if "{" in route else element("a", route, href=route)), about]
        for route, about in answers.ROUTES.items()
    )
    body = element(
        "main",
        *_head(fleet, chosen),
        element("section", part or waiting, id="present", aria_label="The chosen series"),
        _leaderboard(fleet),
        element("p", _READING),
        element("h2", "For programs"),
        shown_table(Table(["address", "what it answers, as JSON"], routes), class_="api"),
    )
    skip = element("a", "Skip to the chosen series", href="#present", class_="skip")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"v8: forecasts of the present, {fleet.label}"),
        element("link", rel="icon", href="/icon.svg", type="image/svg+xml"),
        element("link", rel="stylesheet", href="/page.css"),
        element("script", src="/page.js", defer="defer"),
    )
    return join([DOCTYPE, element("html", head, element("body", skip, body), lang="en"), "\n"])


def said(sentence: str, *, is_alert: bool = False) -> Html:
    """Return a sentence in place of the part about a series."""
    role = "alert" if is_alert else None
    return element("p", sentence, data_status=sentence, class_="banner" if is_alert else None, role=role)


def _head(fleet: Fleet, chosen: Series) -> Iterator[Html]:
    profiles = sorted({about.profile.name for about in fleet.metadata.values()})
    yield element("h1", "Forecasts of the present")
    told = f"{plural(len(fleet.metadata), 'model')} of {fleet.label}, profile {', '.join(profiles)}."
    yield element("p", told)
    options = (
        element("option", str(series), value=str(series), selected="selected" if series == chosen else None)
        for series in sorted(fleet.metadata, key=str)
    )
    yield element(
        "form",
        element("label", "Series", for_="series"),
        element("select", *options, id="series", name="series", autocomplete="off"),
        element("button", "Show"),
        id="choose",
        action="/",
        method="get",
    )
    yield element("p", "", id="status", class_="soft", role="status", aria_live="polite")


@lru_cache(maxsize=2)
def _leaderboard(fleet: Fleet) -> Html:
    told = [opening(*verdict(fleet.rows)), *leaderboard(fleet.rows, "/?series={}")]
    return join([element("h2", "Leaderboard"), *told])


@dataclass(frozen=True)
class Shown:
    """A forecast as it is answered with: the JSON of the API, and its part of the page.

    An attribute `data-status` of that part says it in one sentence.
    """

    issued: "Issued"
    content: bytes
    html: Html


def shown(fleet: Fleet, issued: "Issued") -> Shown:
    """Write a forecast down, once for all who ask for it."""
    content = answers.forecast(fleet, issued)
    status = _status(issued)
    demo = "Simulated market: this forecast says nothing about real prices."
    parts = [
        element("h2", str(issued.candles.series)),
        *([] if issued.is_dated else [element("p", demo, class_="banner")]),
        element("p", status, data_status=status),
        element("figure", draw(_picture(issued), status), element("figcaption", _note(issued))),
        *_numbers(issued),
        element("h3", "How good this model was, on candles that training had not seen"),
        _quality(content["model"]["quality"]),
        *_trained(fleet, issued.candles.series, issued.issued_at_s),
    ]
    return Shown(issued, answers.written(content), join(parts))


def _status(issued: "Issued") -> str:
    """Say the forecast in a sentence: when it was made, and where its last close stands."""
    known, last = float(issued.candles.column(CLOSE)[-1]), float(issued.forecast[CLOSE].iloc[-1])
    change = f"{100 * (last / known - 1):+.2f} %"
    made = f", made at {moment(iso(issued.issued_at_s))}" if issued.is_dated else ""
    return (
        f"{issued.candles.series}: the newest candle closed at {moment(iso(issued.closed_s))} UTC at "
        f"{known:.7g}; forecast {len(issued.forecast)} bars on{made}: {last:.7g} ({change})."
    )


def _picture(issued: "Issued") -> Picture:
    candles = issued.candles
    columns = {name: candles.column(name) for name in OHLC}
    priced = [name for task in TASKS.values() if task.is_price for name in task.columns]
    prices = {name: issued.forecast[name].to_numpy() for name in priced if name in issued.forecast}
    fans = [
        tuple(issued.forecast[quantile_column(CLOSE, level)].to_numpy() for level in pair)
        for pair in intervals(issued.forecaster.quantiles)
    ]
    return Picture(str(candles.series), candles.series.bar_s, candles.open_time_s, columns, prices, fans)


def _note(issued: "Issued") -> str:
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


def _numbers(issued: "Issued") -> Iterator[Html]:
    points = issued.points()
    head, opens = ["opens, UTC", *map(spaced, points.columns)], []
    for opened in issued.opens():  # a narrow column may break between day and hour only
        day, _, hour = moment(opened).partition(" ")
        opens.append(join([element("span", day, class_="whole"), " ", hour]))
    written = [[f"{value:.7g}" for value in row] for row in points.to_numpy().tolist()]
    told = f"Forecast of {issued.candles.series}, one row a bar; prices in quote currency"
    captions = {told: written}
    captions |= {f"{name} intervals of the same": cells for name, cells in issued.intervals().items()}
    for caption, cells in captions.items():
        rows = ([time, *row] for time, row in zip(opens, cells, strict=True))
        yield shown_table(Table(head, rows, caption))


def _quality(quality: Mapping[str, Mapping[str, Any]]) -> Html:
    rows = []
    for task, told in quality.items():
        naive = [number(told["multiple_of_naive"]), told["verdict"]]
        best = [number(told["multiple_of_best"]), told["verdict_against_best"]]
        rows.append([TASKS[task].title, *naive, *best])
    head = ["task", "× naive", "verdict", "× best baseline", "verdict"]
    caption = "Mean absolute error on the test span as a multiple of the naive forecast's and of the best "
    return shown_table(Table(head, rows, f"{caption}baseline's: below 1 is less"))


def _trained(fleet: Fleet, series: Series, now_s: float) -> Iterator[Html]:
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
    if not fleet.metadata[series].is_demo_market:
        end_s = datetime.fromisoformat(about["last_open"]).timestamp() + series.bar_s
        age_s = max(0.0, now_s - end_s)
        age = duration(age_s) if age_s < 3 * _DAY_S else f"{age_s // _DAY_S:,.0f} days"
        pairs.append(("age of the newest of them", age))
    if fleet.revision:
        pairs.append(("commit on the Hub", fleet.revision[:16]))
    yield element("h3", "What the model was trained on")
    yield facts(pairs)


def moment(text: str) -> str:
    """Write a time of a file for people.

    >>> moment("2026-08-01T00:15:00+00:00"), moment("2026-08-01T00:15:00Z")
    ('2026-08-01 00:15', '2026-08-01 00:15')
    """
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M}"


def record_part(track: Mapping[str, Any]) -> Html:
    """Show the live record of a series, as `/api/track/{series}` tells it."""
    return join(_record(track["record"], track["all_series"]))


def _record(record: Mapping[str, Any] | None, all_series: Mapping[str, Any]) -> Iterator[Html]:
    yield element("h3", "Live record: forecasts written down before the truth was known")
    if record is None:
        yield element("p", "No record yet: no forecast of this series is in the ledger.")
        return
    yield element(
        "p",
        f"{count(record['num_issued'])} issued, {count(record['num_scored'])} scored, "
        f"{count(record['num_pending'])} waiting for their truth, {count(record['num_late'])} late (in no "
        f"error), {count(record['num_void'])} without a truth for ever.",
    )
    if not record["tasks"]:
        return
    lines = [(TASKS[task].title, live) for task, live in record["tasks"].items()]
    lines += [(f"{TASKS[task].title}, all series", live) for task, live in all_series.items()]
    head = ["task", "forecasts", "days", "× naive", "verdict", "p", "× best", "of", "verdict", "p"]
    caption = "Mean absolute error as a multiple of baselines' issued at the same moment; p is corrected"
    yield shown_table(Table(head, ([title, *_live_cells(live)] for title, live in lines), caption))
    if having := [(title, live) for title, live in lines if "coverage" in live]:
        yield _covered(having)


def _live_cells(live: Mapping[str, Any]) -> list[str]:
    naive, best = live["naive"], live["best"]
    cells = [count(live["num_scored"]), count(live["num_days"]), number(naive["multiple"])]
    cells += [naive["verdict"], p_value(naive["corrected_p_value"]), number(best["multiple"])]
    return [*cells, spaced(best["baseline"]), best["verdict"], p_value(best["corrected_p_value"])]


def _covered(lines: Sequence[tuple[str, Mapping[str, Any]]]) -> Html:
    """Show how good the quantiles of issued forecasts were."""
    names: Iterable[str] = list(dict.fromkeys(name for _, live in lines for name in live["coverage"]))
    rows = (
        [title, number(live["crps_multiple"]), *(percent(live["coverage"].get(name)) for name in names)]
        for title, live in lines
    )
    caption = "Quantiles: CRPS as a multiple of naive's error, and how many truths lay within each interval"
    return shown_table(Table(["task", "CRPS × naive", *(f"within {name}" for name in names)], rows, caption))


STYLE_SHEET: Final = STYLE + "\n" + packaged("v8.app", "page.css")

SCRIPT: Final = packaged("v8.app", "page.js")

ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<path d="M4 2v12M12 2v12" stroke="#8a94a0"/><path fill="#2f9e83" d="M2 5h4v6H2z"/>'
    '<path fill="#1769aa" d="M10 4h4v6h-4z"/></svg>'
)
