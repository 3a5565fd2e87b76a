"""The pages: an overview with a tile a series, and a page for each series.

All text passes through `v8.reports.markup`, which escapes it, and is in the current language. Style, script
and icon are files of their own. When the next candle has closed, the script requests the part of a page that
changes again; it also searches tiles. Without it pages work by their links and their form. It counts its
errors in `data-errors` of the root element, where a test in a browser finds them, and in `data-shown` how
often the part was shown.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from v8.app import answers
from v8.app.drawing import LOW_LAYOUTS, TILE_LAYOUTS, ChartData, draw
from v8.app.places import MONTH_DAYS, ModelSnapshot
from v8.arrays import FloatArray
from v8.columns import BB_LOWER, BB_UPPER, CLOSE, HIGH, LOW, OHLC, VOLATILITY
from v8.errors import listed
from v8.features.table import compute_columns
from v8.forecasts.issuing import IssuedForecast
from v8.language import LANGUAGES, chosen, language, say, term
from v8.ledger.record import LiveRecord, LiveTask
from v8.market.series import Series, iso
from v8.quantile_levels import interval_names, intervals, quantile_column
from v8.reports.markup import DEMO_WARNING, Html, element, facts, filled, join, shown_table
from v8.reports.verdict import RelativeError, TaskVerdict, verdict
from v8.storage import digest_bytes
from v8.wording import ABSENT, Table, count, duration, moment, percent, plural, spaced

_LINE_CLASSES: Final = {HIGH: "reach", LOW: "reach", BB_UPPER: "bands", BB_LOWER: "bands", CLOSE: "line"}
"""CSS classes of the forecast columns that a chart shows as lines."""
_TABLE_COLUMNS: Final = (LOW, HIGH, CLOSE, VOLATILITY)
_VOLATILITY_LABELS: Final = ((19, "calm"), (79, "usual"), (100, "wild"))
"""Labels of a volatility, each with the highest percentile of its month that has it."""


def overview_page(snapshot: ModelSnapshot, part: Html, search_text: str) -> Html:
    """Return the page of all series, or of those whose name contains the search text."""
    all_metadata = snapshot.metadata.values()
    profiles = sorted({metadata.profile.name for metadata in all_metadata})
    before = filled(
        "v8.app",
        "overview.html",
        demo=_demo_banner(any(metadata.is_demo_market for metadata in all_metadata)),
        total=len(snapshot.metadata),
        place=snapshot.label,
        profiles=", ".join(profiles),
        sought=search_text,
        shown="{n}",  # the script counts the shown series and fills this in
    )
    return _page(say("Forecasts of the present"), snapshot, part, "/part", before)


def series_page(snapshot: ModelSnapshot, series: Series, part: Html) -> Html:
    """Return the page of one series."""
    return _page(str(series), snapshot, part, f"/part/{series}")


def _page(title: str, snapshot: ModelSnapshot, part: Html, address: str, before: str = "") -> Html:
    """Return a page with a part that the script requests again from an address."""
    return filled(
        "v8.app",
        "page.html",
        before=before,
        part=part,
        address=address,
        title=title,
        place=snapshot.label,
        language=chosen(),
        tag=digest_bytes(part.encode()),
    )


def error_paragraph(content: Mapping[str, Any], role: str | None = None) -> Html:
    """Return an error of the API as a paragraph; `role` is its ARIA role."""
    text = "{where}: {rule}; got {got}. {fix}.".format(**content["error"])
    return element("p", text, data_status=text, class_="trouble", role=role)


def tiles(
    snapshot: ModelSnapshot, newest: Mapping[Series, Any], record: LiveRecord | None, search_text: str
) -> Html:
    """Return a tile for each series whose name contains the search text.

    Series with the most unusual volatility come first, others by name.

    Args:
        snapshot: The models.
        newest: The newest view of each series, or the error.
        record: The live record; None without one.
        search_text: Part of a name, in any case.
    """
    views = dict(newest)  # a copy, because a worker thread changes the original
    tasks_by_series = {live.series: live.tasks for live in record.series} if record else {}
    names = [series for series in snapshot.metadata if search_text.casefold() in str(series).casefold()]
    names.sort(key=lambda series: (-getattr(views.get(series), "unusualness", -1), str(series)))
    items = [_tile(series, views.get(series), tasks_by_series.get(str(series), {})) for series in names]
    num_made = len(views.keys() & snapshot.metadata.keys())
    status = say("{n} of {total} forecasts are made.", n=num_made, total=len(snapshot.metadata))
    return element("ul", *items, class_="tiles", data_status=status)


def _tile(series: Series, view: Any, tasks: Mapping[str, LiveTask]) -> Html:
    if isinstance(view, ForecastView):
        content = view.tiles[chosen()]
    elif view:
        content = error_paragraph(answers.public_error_json(view, str(series)))
    else:
        content = element("p", say("The forecast is being made."))
    record = element("p", _record_text(tasks), class_="soft")
    link = element("a", element("h2", str(series)), content, record, href=f"/series/{series}")
    return element("li", link)


def _record_text(tasks: Mapping[str, LiveTask]) -> str:
    """Return the errors of issued forecasts per task, and how often intervals held the actual values."""
    sentences = []
    for task, live in tasks.items():
        naive = RelativeError.of(live.naive)
        best = RelativeError.of(live.best) if len(live.comparisons) > 1 else None
        sentences.append(str(TaskVerdict(task, naive, best)))
        days = plural(live.num_days, "day")
        sentences.append(say("{n} scored of {days}.", n=live.num_scored, days=days))
        if live.coverage:
            for name, share in live.coverage.shares.items():
                sentences.append(say("Within {name}: {share}.", name=name, share=percent(share)))
    return " ".join(sentences) or say("No live record yet.")


def record_part(record: LiveRecord | None, series: Series) -> Html:
    """Show the live record of a series, and of all series together."""
    for live in record.series if record else ():
        if record and live.series == str(series):
            return filled(
                "v8.app",
                "record.html",
                own=_record_text(live.tasks),
                every=_record_text(record.tasks),
                **live.counts.to_json(),
            )
    return element("p", _record_text({}))


class ForecastView:
    """A forecast as it is shown: the JSON of the API, its tile, and its part of its own page.

    A tile is written in every language together, because the overview shows all tiles; a part when it is
    first requested.

    Args:
        snapshot: The models.
        issued: The forecast.
        month: Percentiles 0 to 100 of the volatility in the month before, shape (101,), or an empty array.
    """

    def __init__(self, snapshot: ModelSnapshot, issued: IssuedForecast, month: FloatArray) -> None:
        self.content: Final = answers.encode_json(answers.forecast(snapshot, issued))
        self._snapshot = snapshot
        self.issued = issued
        self._month = month
        self._series = issued.candles.series
        self._forecast = issued.forecast
        self._decimals = price_decimals(issued.candles.values[:, : len(OHLC)])
        self._percentile = None
        if VOLATILITY in self._forecast and len(month):
            num_below = np.searchsorted(month, self._forecast[VOLATILITY].iloc[-1])
            self._percentile = max(0, int(num_below) - 1)
        self.unusualness: Final = 0 if self._percentile is None else abs(self._percentile - 50)
        """Distance of its volatility from the middle of its month, in percentiles; 0 if that is unknown."""
        self._parts: dict[str, Html] = {}
        """The part of its page by language."""
        self.tiles: Final[dict[str, Html]] = {}
        for name in LANGUAGES:
            with language(name):
                self.tiles[name] = join(self._tile())

    @property
    def part(self) -> Html:
        """Its part of its page; an attribute `data-status` summarises it in a sentence."""
        if chosen() not in self._parts:
            self._parts[chosen()] = self._make_part()
        return self._parts[chosen()]

    def _tile(self) -> Iterator[Html]:
        chart = self._chart_data(OHLC, _LINE_CLASSES)
        small_chart = replace(chart, lines=chart.lines[-1:], fans=chart.fans[:1])
        label = _volatility_label(self._percentile)
        yield draw(small_chart, self._range_text(), TILE_LAYOUTS)
        yield element("b", term(label), class_=f"mood {label}")
        yield self._age_warning()
        yield element("p", self._range_text())
        yield element("p", self._volatility_text())
        yield element("p", self._verdict_text())

    def _make_part(self) -> Html:
        issued = self.issued
        volatility = self._volatility_chart() if VOLATILITY in self._forecast else Html("")
        return filled(
            "v8.app",
            "series.html",
            series=self._series,
            demo=_demo_banner(not issued.is_dated),
            age=self._age_warning(),
            range=self._range_text(),
            outlook=self._volatility_text(),
            verdicts=self._verdict_text(),
            inputs=self._inputs_text(),
            closed=moment(iso(issued.closed_s)),
            close=self._format(CLOSE, issued.candles.column(CLOSE)[-1]),
            made=moment(iso(issued.issued_at_s)),
            candles=draw(self._chart_data(OHLC, _LINE_CLASSES), self._range_text()),
            shaded=self._interval_text(),
            volatility=volatility,
            numbers=self._table(),
            trained=facts(self._training_facts()),
        )

    def _range_text(self) -> str:
        """Say between which prices the coming bars stay 9 times of 10."""
        prices = self.issued.price_range
        if prices is None:
            num_bars = len(self._forecast)
            return say(
                "Next {n} bars ({span}): medians from {low} to {high}; how far beyond is not forecast.",
                n=num_bars,
                span=duration(num_bars * self._series.bar_s),
                low=self._format(LOW, self._forecast[LOW].min()),
                high=self._format(HIGH, self._forecast[HIGH].max()),
            )
        return say(
            "9 of 10 times the price stays between {low} and {high} over the next {span}.",
            low=self._format(LOW, prices.low),
            high=self._format(HIGH, prices.high),
            span=duration(len(self._forecast) * self._series.bar_s),
        )

    def _volatility_text(self) -> str:
        """Give the volatility at the last bar, and say whether that is usual."""
        if VOLATILITY not in self._forecast:
            return say("This model does not forecast volatility.")
        volatility = self._format(VOLATILITY, self._forecast[VOLATILITY].iloc[-1])
        if self._percentile is None:
            return say("Volatility ahead: {ahead}; what is usual is not known.", ahead=volatility)
        return say(
            "Volatility ahead: {ahead}, {mood}: above {share} % of the last {days} days.",
            ahead=volatility,
            mood=term(_volatility_label(self._percentile)),
            share=self._percentile,
            days=MONTH_DAYS,
        )

    def _verdict_text(self) -> str:
        """Compare its errors on the test span with those of baselines."""
        rows = [row for row in self._snapshot.rows if row.series == str(self._series)]
        _, *sentences = verdict(rows)
        return " ".join(sentences)

    def _inputs_text(self) -> str:
        """Say whether the inputs of the forecast lie within the range of the training data."""
        out_of_range = self.issued.out_of_range
        if out_of_range is None:
            return say("Whether its inputs are in the range of the training data is not known.")
        if not out_of_range:
            return say("Its inputs are in the range of the training data.")
        return say(
            "Out of range of the training data: {names}, by up to {share} of that range.",
            names=listed(list(out_of_range)),
            share=percent(max(out_of_range.values())),
        )

    def _age_warning(self) -> Html:
        """Warn of a model that `update` calls stale by its age."""
        metadata = self._snapshot.metadata[self._series]
        num_new = (self.issued.closed_s - metadata.candles.last_open_s) // self._series.bar_s - 1
        first, end = metadata.split.test.rows
        if not self.issued.is_dated or num_new <= end - first:
            return Html("")
        text = say(
            "Old model: {n} candles have come since, more than the {tested} of its test.",
            n=count(num_new),
            tested=count(end - first),
        )
        return element("p", text, class_="old")

    def _format(self, name: str, value: float) -> str:
        """Write a value of a column; prices have as many decimals as on the exchange."""
        return percent(value, 3) if name == VOLATILITY else f"{value:,.{self._decimals}f}"

    def _volatility_chart(self) -> Html:
        usual_range = None
        if self._percentile is not None:
            usual_range = (float(self._month[20]), float(self._month[80]))
        data = self._chart_data([VOLATILITY], {VOLATILITY: "line"})
        chart = draw(replace(data, usual_range=usual_range), self._volatility_text(), LOW_LAYOUTS)
        return filled("v8.app", "volatility.html", chart=chart, days=MONTH_DAYS)

    def _chart_data(self, names: Sequence[str], line_classes: Mapping[str, str]) -> ChartData:
        """Return the data of a chart.

        Args:
            names: The known columns that are drawn.
            line_classes: The forecast columns that are drawn as lines, with their CSS classes; the last one
                has its intervals, too.
        """
        candles = self.issued.candles
        known_columns = {name: candles.column(name) for name in OHLC}
        for name, (values,) in compute_columns(candles, [BB_UPPER, BB_LOWER, VOLATILITY]).items():
            known_columns[name] = values.astype(np.float64)

        def continued(known_name: str, forecast_name: str) -> FloatArray:
            """Return the newest known value of a column and the forecast values of another one."""
            return np.concatenate([known_columns[known_name][-1:], self._forecast[forecast_name].to_numpy()])

        main = list(line_classes)[-1]
        interval_columns = []
        for low, high in intervals(self.issued.forecaster.quantiles):
            interval_columns.append((quantile_column(main, low), quantile_column(main, high)))
        if not interval_columns and main == CLOSE:
            interval_columns = [(LOW, HIGH)]
        last_open_s = candles.open_time_s[-1]
        forecast_opens_s = last_open_s + self._series.bar_s * np.arange(1, len(self._forecast) + 1)
        lines = []
        for name, css_class in line_classes.items():
            if name in self._forecast:
                lines.append((css_class, continued(name, name)))
        return ChartData(
            title=f"{self._series}: {term(main)}",
            opens_s=np.concatenate([candles.open_time_s, forecast_opens_s]),
            label=partial(self._format, main),
            known_columns={name: known_columns[name] for name in names},
            lines=lines,
            fans=[(continued(main, lower), continued(main, upper)) for lower, upper in interval_columns],
        )

    def _interval_text(self) -> str:
        """Say what the shaded areas are."""
        names = " / ".join(interval_names(self.issued.forecaster.quantiles))
        if names:
            return say(
                "Shaded: intervals of the close ({names}): so often should it stay within.", names=names
            )
        return say("Shaded: from low to high; nothing says how often the actual values stay within.")

    def _table(self) -> Html:
        """Show the widest interval of the main columns, or without quantiles their forecast, a row a bar."""
        levels = self.issued.forecaster.quantiles
        names = [name for name in _TABLE_COLUMNS if name in self._forecast]
        columns = {name: [name] for name in names}
        caption = say("Point forecasts")
        if intervals(levels):
            low, high = intervals(levels)[0]
            columns = {name: [quantile_column(name, low), quantile_column(name, high)] for name in names}
            caption = say("{name} intervals", name=interval_names(levels)[0])
        rows = []
        for open_time, row in zip(self.issued.open_times(), self._forecast.to_dict("records"), strict=True):
            cells = [moment(open_time)]
            for name, value_columns in columns.items():
                cells.append(" – ".join(self._format(name, row[column]) for column in value_columns))
            rows.append(cells)
        return shown_table(Table(["opens, UTC", *names], rows, caption))

    def _training_facts(self) -> Iterator[tuple[str, str]]:
        """Yield what the model was trained on, as names and values."""
        training = answers.trained(self._snapshot, self._series)
        for name, span in training.pop("spans").items():
            yield f"{name} span", f"{moment(span['first_open'])} – {moment(span['last_open'])}"
        for name, value in training.items():
            yield spaced(name), str(value or ABSENT)


def price_decimals(prices: FloatArray) -> int:
    """Return the number of decimals of prices, of any shape; at most as many as give seven digits.

    Prices of a simulated market have no ticks, and so these seven digits.

    >>> price_decimals(np.array([64_000.1, 63_999.25])), price_decimals(np.array([0.00001234]))
    (2, 8)
    """
    most = max(0, 6 - math.floor(math.log10(prices.max())))
    for num_decimals in range(most):
        if np.allclose(prices.round(num_decimals), prices, 1e-9, 0.0):
            return num_decimals
    return most


def _demo_banner(is_demo: bool) -> Html:
    return element("p", term(DEMO_WARNING), class_="banner") if is_demo else Html("")


def _volatility_label(percentile: int | None) -> str:
    """Return the label of a volatility by its percentile of the month."""
    if percentile is not None:
        for highest, label in _VOLATILITY_LABELS:
            if percentile <= highest:
                return label
    return "unknown"
