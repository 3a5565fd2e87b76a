"""The pages: an overview with a tile a series, a page for each series, and the leaderboard.

All text passes through `v8.reports.markup`, which escapes it, and is said in the language that holds. Style,
script and icon are files of their own. The script asks again for the part of a page that changes when the
next candle has closed, and finds tiles; without it pages work by their links and their form. What goes wrong
is counted in `data-errors` of the root element, where a test in a browser finds it, and in `data-shown` how
often the part was shown.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from v8.app import answers
from v8.app.drawing import LOW_SHEET, STAMP, Picture, draw
from v8.app.places import MONTH_DAYS, Fleet
from v8.arrays import FloatArray
from v8.columns import BB_LOWER, BB_UPPER, CLOSE, HIGH, LOW, OHLC, VOLATILITY
from v8.errors import listed
from v8.features.table import compute_columns
from v8.forecasts.issuing import Issued
from v8.language import LANGUAGES, chosen, language, say, term
from v8.ledger.record import LiveTask, Record
from v8.market.series import Series, iso
from v8.quantile_levels import interval_names, intervals, quantile_column
from v8.reports.markup import DEMO_WARNING, Html, element, facts, filled, join, shown_table
from v8.reports.verdict import RelativeError, TaskVerdict, verdict
from v8.storage import digest_bytes
from v8.wording import ABSENT, Table, count, duration, moment, percent, plural, spaced

_STYLES: Final = {HIGH: "reach", LOW: "reach", BB_UPPER: "bands", BB_LOWER: "bands", CLOSE: "line"}
_LED_BY: Final = (LOW, HIGH, CLOSE, VOLATILITY)
_MOODS: Final = {19: "calm", 79: "usual", 100: "wild"}
"""By the highest percentile of its month that a volatility may reach."""


def overview_page(fleet: Fleet, part: Html, sought: str) -> Html:
    """Return the page of all series, or of those whose name holds what is sought."""
    before = filled(
        "v8.app",
        "overview.html",
        demo=_demo(any(about.is_demo_market for about in fleet.metadata.values())),
        total=len(fleet.metadata),
        place=fleet.label,
        profiles=", ".join(sorted({about.profile.name for about in fleet.metadata.values()})),
        sought=sought,
        shown="{n}",  # which the script counts
    )
    return _page(say("Forecasts of the present"), fleet, part, "/part", before)


def series_page(fleet: Fleet, series: Series, part: Html) -> Html:
    """Return the page of one series."""
    return _page(str(series), fleet, part, f"/part/{series}")


def _page(title: str, fleet: Fleet, part: Html, address: str, before: str = "") -> Html:
    """Return a page with a part that the script asks for anew, at an address."""
    told = {"title": title, "place": fleet.label, "language": chosen(), "tag": digest_bytes(part.encode())}
    return filled("v8.app", "page.html", before=before, part=part, address=address, **told)


def trouble(content: Mapping[str, Any], role: str | None = None) -> Html:
    """Return an error of four parts, as the API tells it, in place of what it is about."""
    text = "{where}: {rule}; got {got}. {fix}.".format(**content["error"])
    return element("p", text, data_status=text, class_="trouble", role=role)


def tiles(fleet: Fleet, newest: Mapping[Series, Any], record: Record | None, sought: str) -> Html:
    """Return a tile for each series whose name holds what is sought: what is unusual first, else by name."""
    found = dict(newest)  # a worker goes on with it
    live = {one.series: one.tasks for one in record.series} if record else {}
    names = [series for series in fleet.metadata if sought.casefold() in str(series).casefold()]
    names.sort(key=lambda series: (-getattr(found.get(series), "unusual", -1), str(series)))
    items = (_tile(series, found.get(series), live.get(str(series), {})) for series in names)
    num_made = len(found.keys() & fleet.metadata.keys())
    status = say("{n} of {total} forecasts are made.", n=num_made, total=len(fleet.metadata))
    return element("ul", *items, class_="tiles", data_status=status)


def _tile(series: Series, found: Any, tasks: Mapping[str, LiveTask]) -> Html:
    told = element("p", say("The forecast is being made."))
    if found:
        is_shown = isinstance(found, Shown)
        told = found.tiles[chosen()] if is_shown else trouble(answers.fault_of(found, str(series)))
    record = element("p", _lived(tasks), class_="soft")
    return element("li", element("a", element("h2", str(series)), told, record, href=f"/series/{series}"))


def _lived(tasks: Mapping[str, LiveTask]) -> str:
    """Say of each task how its issued forecasts did, and how often the actual values lay within their intervals."""
    said = []
    for task, live in tasks.items():
        said.append(str(TaskVerdict(task, *map(RelativeError.of, live.comparisons))))
        said.append(say("{n} scored of {days}.", n=live.num_scored, days=plural(live.num_days, "day")))
        shares = live.coverage.shares if live.coverage else {}
        said += (say("Within {name}: {share}.", name=each, share=percent(shares[each])) for each in shares)
    return " ".join(said) or say("No live record yet.")


def record_part(record: Record | None, series: Series) -> Html:
    """Show the live record of a series, and of all series together."""
    live = next((one for one in record.series if one.series == str(series)), None) if record else None
    if record is None or live is None:
        return element("p", _lived({}))
    told = {"own": _lived(live.tasks), "every": _lived(record.tasks)}
    return filled("v8.app", "record.html", **told, **live.tally.to_json())


class Shown:
    """A forecast as it is answered with: the JSON of the API, its tile, and its part of its own page.

    `month` holds the percentiles of its volatility of late, or nothing. A tile is written at once in every
    language, because all are asked for together, a part when it is first asked for.
    """

    def __init__(self, fleet: Fleet, issued: Issued, month: FloatArray) -> None:
        self.content: Final = answers.written(answers.forecast(fleet, issued))
        self._fleet = fleet
        self.issued = issued
        self._month = month
        self._series = issued.candles.series
        self._ahead = issued.forecast
        self._decimals = tick_decimals(issued.candles.values[:, : len(OHLC)])
        self._rank = None
        if VOLATILITY in self._ahead and len(month):
            num_below = np.searchsorted(month, self._ahead[VOLATILITY].iloc[-1])
            self._rank = max(0, int(num_below) - 1)
        self.unusual: Final = 0 if self._rank is None else abs(self._rank - 50)
        """How far its volatility lies from the middle of its month, in percentiles; 0 where nobody knows."""
        self._parts: dict[str, Html] = {}
        self.tiles: Final[dict[str, Html]] = {}
        for name in LANGUAGES:
            with language(name):
                self.tiles[name] = join(self._tile())

    @property
    def part(self) -> Html:
        """Its part of its page; an attribute `data-status` says it in a sentence."""
        if chosen() not in self._parts:
            self._parts[chosen()] = self._whole()
        return self._parts[chosen()]

    def _tile(self) -> Iterator[Html]:
        picture = self._picture(OHLC, _STYLES)
        mood = _mood(self._rank)
        yield draw(replace(picture, lines=picture.lines[-1:], fans=picture.fans[:1]), self._range(), STAMP)
        yield element("b", term(mood), class_=f"mood {mood}")
        yield self._age()
        yield from (element("p", said) for said in (self._range(), self._outlook(), self._verdicts()))

    def _whole(self) -> Html:
        issued = self.issued
        has_volatility = VOLATILITY in self._ahead
        return filled(
            "v8.app",
            "series.html",
            series=self._series,
            demo=_demo(not issued.is_dated),
            age=self._age(),
            range=self._range(),
            outlook=self._outlook(),
            verdicts=self._verdicts(),
            inputs=self._inputs(),
            closed=moment(iso(issued.closed_s)),
            close=self._written(CLOSE, issued.candles.column(CLOSE)[-1]),
            made=moment(iso(issued.issued_at_s)),
            candles=draw(self._picture(OHLC, _STYLES), self._range()),
            shaded=self._shaded(),
            volatility=self._volatility() if has_volatility else Html(""),
            numbers=self._table(),
            trained=facts(self._trained()),
        )

    def _range(self) -> str:
        """Say between which prices the coming bars lie."""
        low = self._ahead[LOW].min()
        high = self._ahead[HIGH].max()
        num_bars = len(self._ahead)
        told = {"n": num_bars, "span": duration(num_bars * self._series.bar_s)}
        told |= {"low": self._written(LOW, low), "high": self._written(HIGH, high)}
        told["share"] = percent(high / low - 1, 2)
        return say("Next {n} bars ({span}): {low} to {high}, {share} from low to high.", **told)

    def _outlook(self) -> str:
        """Say how volatile the last of them is, and whether that is usual."""
        if VOLATILITY not in self._ahead:
            return say("This model does not forecast volatility.")
        ahead = self._written(VOLATILITY, self._ahead[VOLATILITY].iloc[-1])
        if self._rank is None:
            return say("Volatility ahead: {ahead}; what is usual is not known.", ahead=ahead)
        told = {"ahead": ahead, "mood": term(_mood(self._rank)), "share": self._rank, "days": MONTH_DAYS}
        return say("Volatility ahead: {ahead}, {mood}: above {share} % of the last {days} days.", **told)

    def _verdicts(self) -> str:
        """Say how its errors on the test span compare with baselines'."""
        row = next(row for row in self._fleet.rows if row.series == str(self._series))
        return " ".join(verdict([row])[1:])

    def _inputs(self) -> str:
        """Say whether what the forecast is made from lies within what training saw."""
        outside = self.issued.outside
        if outside is None:
            return say("Whether its inputs lie within what training saw is not known.")
        if not outside:
            return say("Its inputs lie within what training saw.")
        told = {"names": listed([*outside]), "share": percent(max(outside.values()))}
        return say("Outside what training saw: {names}, by up to {share} of its width.", **told)

    def _age(self) -> Html:
        """Warn of a model that `update` calls stale by its age."""
        about = self._fleet.metadata[self._series]
        bar_s = self._series.bar_s
        num_new = (self.issued.closed_s - about.candles.last_open_s) // bar_s - 1
        first, end = about.split.test.rows
        if not self.issued.is_dated or num_new <= end - first:
            return Html("")
        told = {"n": count(num_new), "tested": count(end - first)}
        old = say("Old model: {n} candles have come since, more than the {tested} of its test.", **told)
        return element("p", old, class_="old")

    def _written(self, name: str, value: float) -> str:
        """Write a value of a column, prices as the exchange does."""
        return percent(value, 3) if name == VOLATILITY else f"{value:,.{self._decimals}f}"

    def _volatility(self) -> Html:
        usual = None if self._rank is None else (float(self._month[20]), float(self._month[80]))
        picture = replace(self._picture([VOLATILITY], {VOLATILITY: "line"}), usual=usual)
        chart = draw(picture, self._outlook(), LOW_SHEET)
        return filled("v8.app", "volatility.html", chart=chart, days=MONTH_DAYS)

    def _picture(self, names: Sequence[str], styles: Mapping[str, str]) -> Picture:
        """Draw known columns, and how some go on as lines, the last of them in fans of its intervals."""
        candles = self.issued.candles
        known = {name: candles.column(name) for name in OHLC}
        computed = compute_columns(candles, [BB_UPPER, BB_LOWER, VOLATILITY])
        known |= {name: values.astype(np.float64) for name, (values,) in computed.items()}

        def ahead(name: str, start: str) -> FloatArray:
            return np.concatenate([known[start][-1:], self._ahead[name].to_numpy()])

        *_, last = styles
        levels = intervals(self.issued.forecaster.quantiles)
        ends = [(quantile_column(last, low), quantile_column(last, high)) for low, high in levels]
        if not ends and last == CLOSE:
            ends = [(LOW, HIGH)]
        ahead_s = self._series.bar_s * np.arange(1, len(self._ahead) + 1)
        return Picture(
            title=f"{self._series}: {term(last)}",
            opens_s=np.concatenate([candles.open_time_s, candles.open_time_s[-1] + ahead_s]),
            label=partial(self._written, last),
            known={name: known[name] for name in names},
            lines=[(style, ahead(name, name)) for name, style in styles.items() if name in self._ahead],
            fans=[(ahead(low, last), ahead(high, last)) for low, high in ends],
        )

    def _shaded(self) -> str:
        """Say what the fans are."""
        names = " / ".join(interval_names(self.issued.forecaster.quantiles))
        if names:
            return say(
                "Shaded: intervals of the close ({names}): so often should it stay within.", names=names
            )
        return say("Shaded: from low to high; nothing says how often the actual values stay within.")

    def _table(self) -> Html:
        """Show the widest interval of what leads, or its forecast without any, a row a bar."""
        levels = self.issued.forecaster.quantiles
        ends = next(iter(intervals(levels)), ())
        caption = say("Point forecasts")
        if ends:
            caption = say("{name} intervals", name=interval_names(levels)[0])
        names = [name for name in _LED_BY if name in self._ahead]
        columns = {name: [quantile_column(name, level) for level in ends] or [name] for name in names}
        rows = []
        for opened, row in zip(self.issued.opens(), self._ahead.to_dict("records"), strict=True):
            told = ([self._written(name, row[each]) for each in those] for name, those in columns.items())
            rows.append([moment(opened), *map(" – ".join, told)])
        return shown_table(Table(["opens, UTC", *names], rows, caption))

    def _trained(self) -> Iterator[tuple[str, str]]:
        """Tell what the model was trained on, and how long ago."""
        about = answers.trained(self._fleet, self._series)
        for name, span in about.pop("spans").items():
            yield f"{name} span", f"{moment(span['first_open'])} – {moment(span['last_open'])}"
        for name, value in about.items():
            yield spaced(name), str(value or ABSENT)


def tick_decimals(prices: FloatArray) -> int:
    """Count the decimals of prices, of any shape; without ticks, as in a simulated market, those of 7 digits.

    >>> tick_decimals(np.array([64_000.1, 63_999.25])), tick_decimals(np.array([0.00001234]))
    (2, 8)
    """
    most = max(0, 6 - math.floor(math.log10(prices.max())))
    return next((n for n in range(most) if np.allclose(prices.round(n), prices, 1e-9, 0.0)), most)


def _demo(is_demo: bool) -> Html:
    return element("p", term(DEMO_WARNING), class_="banner") if is_demo else Html("")


def _mood(rank: int | None) -> str:
    """Say what the percentile of its month says of a volatility."""
    return "unknown" if rank is None else next(mood for most, mood in _MOODS.items() if rank <= most)
