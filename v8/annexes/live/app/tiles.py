"""The overview: a tile for each series, which filters choose and which an order arranges.

Each tile is an element with `data-` attributes: the script filters and orders by them without another
request, and an alert compares them with its limit. Without the script the address does the same
(`Selection.from_query`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from v8.annexes.live.app import answers
from v8.annexes.live.app.service import ModelSnapshot
from v8.base.wording import ABSENT, chosen, moment, say, term
from v8.data.market.series import Series, iso
from v8.model.evaluation.leaderboard import LeaderboardRow
from v8.publish.report.markup import DEMO_WARNING, Html, element, join
from v8.publish.report.verdict import verdict_in_brief

MOODS: Final = ("calm", "usual", "wild")
"""Labels of a volatility compared with the month before, see `mood_of`."""
_HIGHEST_PERCENTILES: Final = (19, 79, 100)
ORDERS: Final = ("wild", "series", "change", "volatility")
_NUMBERS: Final = {"wild": "percentile", "change": "change", "volatility": "volatility"}
"""The number of `TileNumbers` that each order of tiles is by; `series` is by the name alone."""


def mood_of(percentile: int | None) -> str:
    """Return the label of a volatility by its percentile of the month before.

    The lowest fifth of the month is calm, the highest fifth wild, the three fifths between are usual.

    >>> [mood_of(percentile) for percentile in (0, 19, 20, 79, 80, None)]
    ['calm', 'calm', 'usual', 'usual', 'wild', 'unknown']
    """
    if percentile is not None:
        for highest, mood in zip(_HIGHEST_PERCENTILES, MOODS, strict=True):
            if percentile <= highest:
                return mood
    return "unknown"


@dataclass(frozen=True)
class TileNumbers:
    """What a tile is ordered and filtered by, and what alerts look at."""

    change: float | None = None  # of the price in 24 h, 0.01 is a per cent; None if it is not known
    volatility: float | None = None  # forecast for the last bar ahead, as a share of the price
    range_width: float | None = None  # of the range ahead, as a share of the price; None without one
    percentile: int | None = None  # of the volatility in its month, 0 to 100
    price: str = ""
    """The newest close, as it is written."""
    closed_s: int = 0
    """When the candle of the price closed, seconds since the epoch, UTC."""


@dataclass(frozen=True)
class Tile:
    """A series, its numbers with the newest price of the coin, and its newest forecast."""

    series: Series
    numbers: TileNumbers | None = None  # None while there is no forecast
    view: Any = None  # its `ForecastView`, or the error; None while the first forecast is made


@dataclass(frozen=True)
class Selection:
    """Which tiles an address requests, and in which order. Words that it does not know are ignored."""

    text: str = ""  # part of a name
    timeframe: str = ""
    mood: str = ""
    order: str = ORDERS[0]
    is_table: bool = False

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        """Read the query of an address."""
        mood = query.get("mood", "")
        order = query.get("order", "")
        return cls(
            text=query.get("q", ""),
            timeframe=query.get("timeframe", ""),
            mood=mood if mood in MOODS else "",
            order=order if order in ORDERS else ORDERS[0],
            is_table=query.get("view") == "table",
        )

    def includes(self, tile: Tile) -> bool:
        """Return whether a tile is shown."""
        mood = mood_of(tile.numbers.percentile) if tile.numbers else "unknown"
        has_text = self.text.casefold() in str(tile.series).casefold()
        has_timeframe = self.timeframe in ("", tile.series.timeframe)
        return has_text and has_timeframe and self.mood in ("", mood)

    def arrange(self, tiles: Sequence[Tile]) -> list[Tile]:
        """Return the tiles that are shown, in order; those without the number come last."""
        return sorted((tile for tile in tiles if self.includes(tile)), key=self._rank)

    def _rank(self, tile: Tile) -> tuple[bool, float, str]:
        """Return what a tile is ordered by: a number, the largest first, then its name; or its name alone."""
        name = _NUMBERS.get(self.order)
        value = getattr(tile.numbers, name, None) if name else None
        return value is None, -(value or 0), str(tile.series)


def tile_list(snapshot: ModelSnapshot, newest: Mapping[Series, Any], selection: Selection) -> Html:
    """Return the tiles of the series that are selected.

    Args:
        snapshot: The models.
        newest: The newest `ForecastView` of each series, or the error.
        selection: Which tiles, in which order.
    """
    views = {  # a copy, because a worker thread changes the original
        series: view for series, view in dict(newest).items() if series in snapshot.metadata
    }
    made = {series: view for series, view in views.items() if not isinstance(view, Exception)}
    numbers = with_newest_prices({series: view.numbers for series, view in made.items()})
    newest_s = max((each.closed_s for each in numbers.values()), default=0)
    tiles = [Tile(series, numbers.get(series), views.get(series)) for series in snapshot.metadata]
    num_made = len(views)
    total = len(snapshot.metadata)
    status = say("{n} of {total} forecasts are ready.", n=num_made, total=total)
    head_row = element("p", *_column_titles())
    # A wide screen has two columns of rows, each with titles.
    head = element("div", head_row, head_row, class_="columns", aria_hidden="true")
    items = [_tile(tile, newest_s) for tile in selection.arrange(tiles)]
    style = "tiles table" if selection.is_table else "tiles"
    board = element("div", head, element("ul", *items, class_=style, data_status=status), class_="board")
    times = [say("As of {closed} UTC.", closed=moment(iso(newest_s)))] if newest_s else []
    waiting = [status] if num_made < total else []
    # Translators: stands between two sentences.
    return join([element("p", " ".join([*waiting, *times]), class_="soft as-of"), board])


def with_newest_prices(numbers: Mapping[Series, TileNumbers]) -> dict[Series, TileNumbers]:
    """Give all series of a coin the price that closed last, with its time and its change of a day.

    Where candles of several timeframes closed last, the shortest one's price is taken.
    """
    newest: dict[str, tuple[tuple[int, int], TileNumbers]] = {}
    for series, own in numbers.items():
        rank = (own.closed_s, -series.bar_s)
        if series.symbol not in newest or rank > newest[series.symbol][0]:
            newest[series.symbol] = (rank, own)
    return {
        series: replace(own, price=known.price, closed_s=known.closed_s, change=known.change)
        for series, own in numbers.items()
        for _, known in [newest[series.symbol]]
    }


def _column_titles() -> list[Html]:
    """Return the titles of the table; a pointer shows what those mean that are not plain."""
    known = say("The coin's newest known price, whichever of its series knows it")
    titles = [element("span", say("Series")), element("span", say("Price"), title=known)]
    titles.append(element("span", say("24 h")))
    width = say("The whole width of the range: its highest price minus its lowest, in % of the last price")
    # Translators: title of a column: how much higher the top of the range ahead is than its bottom.
    titles.append(element("span", say("Range ahead, bottom to top"), title=width))
    titles.append(element("span", say("Volatility ahead")))
    meaning = say("The volatility ahead is higher than so many % of the time in the coin's own last 30 days")
    titles.append(element("span", say("Mood, volatility percentile"), title=meaning))
    titles.append(element("span", say("Verdict on the model")))
    return titles


def _tile(tile: Tile, newest_s: int) -> Html:
    numbers = tile.numbers or TileNumbers()
    if tile.view is None:
        content = element("p", say("The forecast is being made."))
    elif isinstance(tile.view, Exception):
        content = error_paragraph(answers.public_error_json(tile.view, str(tile.series)))
    else:
        content = join([_price(numbers, newest_s, tile.view.numbers), tile.view.tiles[chosen()]])
    link = element("a", element("h2", str(tile.series)), content, href=f"/series/{tile.series}")
    return element("li", link, **tile_attributes(tile.series, numbers))


def _price(numbers: TileNumbers, newest_s: int, issued: TileNumbers) -> Html:
    """Return the price with its time, and with the day if that is not the one of the newest close.

    The price that the forecast was made from stands behind it where another series knows a newer one.
    """
    closed = moment(iso(numbers.closed_s))
    day, _, time = closed.partition(" ")
    written = time if moment(iso(newest_s)).startswith(day) else closed
    price = element(
        "span",
        numbers.price,
        element("i", f" {written} UTC"),
        title=say("The newest known close, at {closed} UTC", closed=closed),
        class_="price",
    )
    change = element(
        "span",
        element("i", say("24 h"), " "),  # the table has it as the title of a column
        signed_percent(numbers.change),
        class_=f"change {direction_of(numbers.change)}",
    )
    if issued.closed_s == numbers.closed_s:
        return element("p", price, change, class_="now")
    time = moment(iso(issued.closed_s)).partition(" ")[2]
    origin = say("forecast from {price} at {time} UTC", price=issued.price, time=time)
    return element("p", price, change, element("i", origin, class_="origin"), class_="now")


def tile_attributes(series: Series, numbers: TileNumbers) -> dict[str, str | float | None]:
    """Return the `data-` attributes that filters, orders and alerts read."""
    return {
        "data_series": str(series),
        "data_timeframe": series.timeframe,
        "data_mood": mood_of(numbers.percentile),
        "data_change": rounded(numbers.change),
        "data_volatility": rounded(numbers.volatility),
        "data_range": rounded(numbers.range_width),
        "data_percentile": numbers.percentile,
    }


def rounded(share: float | None) -> str | None:
    """Write a share for a script; None stays.

    >>> rounded(0.0123456789), rounded(None)
    ('0.012346', None)
    """
    return None if share is None else f"{share:.6f}"


def signed_percent(share: float | None) -> str:
    """Write a change in per cent, with its sign.

    >>> signed_percent(0.0123), signed_percent(-0.5), signed_percent(None)
    ('+1.23 %', '−50.00 %', '–')
    """
    if share is None:
        return "–"
    sign = "−" if share < 0 else "+"
    return f"{sign}{abs(100 * share):.2f} %"


def direction_of(change: float | None) -> str:
    """Return the CSS class of a change."""
    if not change:
        return "none"
    return "gain" if change > 0 else "loss"


def verdict_chip(row: LeaderboardRow | None, sentence: str) -> Html:
    """Return the stored verdict on a series in a few words, with its sentence."""
    text, style = verdict_in_brief(row)
    return element("span", text, class_=f"chip {style}", title=sentence)


def mood_label(percentile: int | None, sentence: str) -> Html:
    """Return the mood as a word with the percentile that tiles are ordered by, and with its sentence."""
    mood = mood_of(percentile)
    rank = [ABSENT] if percentile is None else [str(percentile), element("i", "/100")]
    number = element("span", *rank, class_="percentile")
    return element("span", element("b", term(mood)), " ", number, class_=f"mood {mood}", title=sentence)


def error_paragraph(content: Mapping[str, Any], role: str | None = None) -> Html:
    """Return an error of the API as a paragraph; `role` is its ARIA role."""
    text = "{where}: {rule}; got {got}. {fix}.".format(**content["error"])
    return element("p", text, data_status=text, class_="trouble", role=role)


def demo_banner(is_demo: bool) -> Html:
    """Warn of a simulated market, above the parts of a page; empty for a real one."""
    return element("p", term(DEMO_WARNING), class_="banner") if is_demo else Html("")
