"""The pages: an overview with a tile a series, a page for each series, the live record, and errors.

All text passes through `v8.publish.report.markup`, which escapes it, and is in the current language. Style,
scripts and icon are files of their own. When the next candle has closed, the script requests the part of a
page that changes again; other scripts draw charts, filter tiles and watch alerts. Without them pages work by
their links and their form, and show tables. They count their errors in `data-errors` of the root element,
where a test in a browser finds them, and in `data-shown` how often the part was shown.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from v8.annexes.live.app import answers
from v8.annexes.live.app.places import MONTH_DAYS, ModelSnapshot, PastMonth, change_of_a_day
from v8.annexes.live.app.sparkline import sparkline
from v8.annexes.live.app.tiles import (
    MOODS,
    Selection,
    TileNumbers,
    direction_of,
    mood_label,
    mood_of,
    signed_percent,
    tile_attributes,
    verdict_chip,
)
from v8.annexes.live.ledger.entries import ForecastCounts
from v8.annexes.live.ledger.record import MIN_DAYS, DailyCoverage, LiveRecord, LiveTask, own_baseline_sentence
from v8.annexes.live.limits import KINDS, RANGE_AHEAD, sentence_of, title_of, values_of
from v8.api.issuing import IssuedForecast, coverage_sentence, periods_ahead
from v8.base.errors import listed
from v8.base.invocation import command
from v8.base.language import ENGLISH, LANGUAGES, chosen, language, say, term
from v8.base.storage import digest_bytes
from v8.base.wording import ABSENT, Table, count, duration, moment, percent, plural, spaced
from v8.data.market.series import Series, iso
from v8.data.market.sources.demo import DemoSource
from v8.data.market.sources.live import LiveSource
from v8.model.evaluation.leaderboard import LeaderboardRow
from v8.model.evaluation.price_range import pooled
from v8.profile.columns import BAND_PERIOD_BARS, CLOSE, HIGH, LOW, TOTAL_RANGE, VOLATILITY, WAVE_COLUMNS
from v8.profile.quantile_levels import interval_names, intervals, quantile_column
from v8.profile.tasks import TASKS, is_share
from v8.publish.report.first_screen import row_of_cards, task_card, task_cards
from v8.publish.report.markup import DEMO_WARNING, Html, element, facts, filled, folded, join, shown_table
from v8.publish.report.page import marked
from v8.publish.report.verdict import RelativeError, TaskVerdict, is_tested, titled, verdict

_RUN_LABEL: Final = "run "  # begins the label of a run folder, see `ModelSource`
_TABLE_COLUMNS: Final = (CLOSE, LOW, HIGH, TOTAL_RANGE, VOLATILITY)
_CHART_SCRIPTS: Final = Html(
    '<script src="/lightweight-charts.js" defer></script>\n<script src="/touch.js" defer></script>\n'
    '<script type="module" src="/chart.js"></script>'
)
_OVERVIEW_SCRIPTS: Final = Html('<script type="module" src="/overview.js"></script>')
_ALERT_SCRIPTS: Final = Html('<script type="module" src="/alerts.js"></script>')


def overview_page(
    snapshot: ModelSnapshot, part: Html, selection: Selection | None = None, source: str = ""
) -> Html:
    """Return the page of all series, or of those that are selected."""
    selection = selection or Selection()
    all_metadata = snapshot.metadata.values()
    profiles = sorted({metadata.profile.name for metadata in all_metadata})
    timeframes = {series.timeframe: series.bar_s for series in snapshot.metadata}
    ordered = sorted(timeframes, key=lambda timeframe: timeframes[timeframe])
    orders = {
        "wild": say("By volatility percentile"),
        "series": say("By name"),
        "change": say("By change of 24 h"),
        "volatility": say("By volatility ahead"),
    }
    before = filled(
        "v8.annexes.live.app",
        "overview.html",
        demo=_demo_banner(is_demo(snapshot, source)),
        scope=_scope(snapshot, profiles),
        total=len(snapshot.metadata),
        sought=selection.text,
        timeframes=_options(
            {"": say("All timeframes")} | dict(zip(ordered, ordered, strict=True)), selection.timeframe
        ),
        moods=_options({"": say("All moods")} | {mood: term(mood) for mood in MOODS}, selection.mood),
        orders=_options(orders, selection.order),
        view="table" if selection.is_table else "",
        **_range_legends(snapshot),
        shown="{n}",  # the script counts the shown series and fills this in
    )
    scripts = join([_OVERVIEW_SCRIPTS, "\n", _ALERT_SCRIPTS])
    return _page(
        say("Current forecasts"),
        snapshot,
        part,
        "/part",
        scripts=scripts,
        before=before,
        after=_alerts(),
    )


def _scope(snapshot: ModelSnapshot, profiles: Sequence[str]) -> str:
    """Say how many series there are, and whose models; a profile of the run's own name is left out."""
    sentence = _models_of(snapshot, profiles)
    if is_tested(snapshot.rows):
        return sentence
    return f"{sentence} {say('No model is tested: the test spans hold too few windows.')}"


def _models_of(snapshot: ModelSnapshot, profiles: Sequence[str]) -> str:
    place = _place_in_words(snapshot.label)
    total = len(snapshot.metadata)
    if [_run_name(snapshot.label)] == [*profiles]:
        return say("{total} series, forecast by the models of {place}.", total=total, place=place)
    return say(
        "{total} series, forecast by the models of {place}, profile {profiles}.",
        total=total,
        place=place,
        profiles=say(", ").join(profiles),
    )


def series_page(snapshot: ModelSnapshot, series: Series, part: Html) -> Html:
    """Return the page of one series."""
    scripts = join([_CHART_SCRIPTS, "\n", _ALERT_SCRIPTS])
    before = element("ul", id="alert-now", class_="alert-now", role="alert")
    return _page(
        str(series), snapshot, part, f"/part/{series}", scripts=scripts, before=before, after=_alerts()
    )


def record_page(snapshot: ModelSnapshot, part: Html, source: str = "") -> Html:
    """Return the page of the live record of all series."""
    return _page(
        say("Live record"),
        snapshot,
        part,
        "/part-record",
        scripts=_CHART_SCRIPTS,
        before=_demo_banner(is_demo(snapshot, source)),
    )


def api_page(snapshot: ModelSnapshot, source: str = "") -> Html:
    """Return the page of the JSON API; its script draws the reference, in English."""
    banner = _demo_banner(is_demo(snapshot, source))
    is_english = chosen() == ENGLISH
    note = "" if is_english else element("p", say("The descriptions are in English only."), class_="soft")
    return filled(
        "v8.annexes.live.app",
        "api.html",
        language=chosen(),
        navigation=_navigation(),
        demo=banner,
        english_only=note,
    )


def _navigation() -> Html:
    return filled("v8.annexes.live.app", "navigation.html")


def error_page(status: int, content: Mapping[str, Any]) -> Html:
    """Return an error of the API as a page, in the current language; the error itself is in English."""
    return filled(
        "v8.annexes.live.app",
        "error.html",
        language=chosen(),
        title=_error_title(status),
        error=Html(element("p", "{where}: {rule}; got {got}. {fix}.".format(**content["error"]), lang="en")),
        status=status,
    )


def _error_title(status: int) -> str:
    if status == 404:
        return say("There is no such page")
    if status == 500:
        return say("The server made a mistake")
    if status in (429, 503):
        return say("Not now: please try again in a moment")
    return say("This request is not understood")


def _page(
    title: str,
    snapshot: ModelSnapshot,
    part: Html,
    address: str,
    *,
    scripts: str,
    before: str = "",
    after: str = "",
) -> Html:
    """Return a page with a part that the script requests again from an address."""
    return filled(
        "v8.annexes.live.app",
        "page.html",
        navigation=_navigation(),
        before=before,
        after=after,
        scripts=scripts,
        part=part,
        address=address,
        title=title,
        place=_place_in_words(snapshot.label),
        language=chosen(),
        tag=digest_bytes(part.encode()),
    )


def _options(titles: Mapping[str, str], selected: str) -> Html:
    """Return the options of a choice, by value."""
    options = []
    for value, title in titles.items():
        options.append(
            element("option", title, value=value, selected="selected" if value == selected else None)
        )
    return join(options)


def _alerts() -> Html:
    """Return the form of alerts; the script fills the places in braces."""
    sentences = {kind: sentence_of(kind, "{series}", "{value}", "{limit}") for kind in KINDS}
    kinds = _options({kind: title_of(kind) for kind in KINDS}, selected="")
    return filled("v8.annexes.live.app", "alerts.html", **sentences, kinds=kinds, n="{n}")


def record_part(record: LiveRecord | None, series: Series, *, is_demo: bool = False) -> Html:
    """Show the live record of a series, and of all series together; that of a demo market says why not."""
    for live in record.series if record else ():
        if record and live.series == str(series):
            return filled(
                "v8.annexes.live.app",
                "record.html",
                counts=_counts_text(live.counts),
                errors=_record_of_series(live.tasks, record.tasks) if record.tasks else "",
            )
    text = _no_record_of_demo_text() if is_demo else say("No live record yet.")
    return element("p", text)


def _no_record_of_demo_text() -> str:
    return say("No live record: models of a simulated market cannot have one.")


def whole_record_part(
    record: LiveRecord | None, place: str = "", source: str = LiveSource.name, *, is_demo: bool = False
) -> Html:
    """Show the live record of all series, and how often their intervals held the actual values by day.

    Args:
        record: The record; None while there is none.
        place: The label of the models, see `ModelSnapshot`; the command that writes a record names them.
        source: Where the candles of the page come from, which that command names, too.
        is_demo: Whether the market is simulated, whose models cannot have a record.
    """
    if record is None and is_demo:
        text = _no_record_of_demo_text()
        return element("p", text, data_status=text)
    if record is None:
        return _no_record_part(place, source)
    cards = ""
    if record.tasks:
        sentences = folded(say("The same in sentences"), _record_list(record.tasks))
        cards = join([row_of_cards(_record_cards(record.tasks)), sentences])
    parts = [_coverage(task, live.daily_coverage) for task, live in record.tasks.items()]
    return filled(
        "v8.annexes.live.app",
        "whole_record.html",
        sentence=" ".join(_record_sentences(record.tasks)),
        counts=_counts_text(record.counts),
        cards=cards,
        coverage=filled("v8.annexes.live.app", "coverage.html", parts=join(parts)) if any(parts) else "",
        table=_record_table(record),
    )


def _counts_text(counts: ForecastCounts) -> str:
    """Say how many forecasts were issued, and what became of them; what did not occur is left out."""
    parts = [
        say("{n} issued", n=count(counts.num_issued)),
        say("{n} scored", n=count(counts.num_scored)),
    ]
    if counts.num_pending:
        parts.append(say("{n} waiting for their actual values", n=count(counts.num_pending)))
    if counts.num_late:
        parts.append(say("{n} issued too late, which no error counts", n=count(counts.num_late)))
    if counts.num_void:
        parts.append(say("{n} without actual values for ever", n=count(counts.num_void)))
    return say("{parts}.", parts=say(", ").join(parts))


def _record_cards(tasks: Mapping[str, LiveTask]) -> Iterator[Html]:
    for task, live in tasks.items():
        best = {live.best.baseline: RelativeError.of(live.best)} if len(live.comparisons) > 1 else {}
        yield task_card(task, RelativeError.of(live.naive), best)


def _record_of_series(own: Mapping[str, LiveTask], every: Mapping[str, LiveTask]) -> Html:
    """Show the errors of issued forecasts of a series in cards, and folded, beside those of all series."""
    both = facts([("This series", _record_list(own)), ("All series", _record_list(every))])
    return join(
        [row_of_cards(_record_cards(own)), folded(say("The same in sentences, and of all series"), both)]
    )


def _record_table(record: LiveRecord) -> Html:
    """Show the counts of each series, and the errors of each task relative to the naive forecast's."""
    tasks = list(record.tasks)
    rows = []
    for live in record.series:
        counts = live.counts
        cells: list[str] = [element("a", live.series, href=f"/series/{live.series}")]
        cells += [count(number) for number in (counts.num_issued, counts.num_scored, counts.num_pending)]
        for task in tasks:
            of_task = live.tasks.get(task)
            naive = of_task.naive if of_task else None
            shown: str = ABSENT
            if naive:
                shown = marked(naive.relative_mae, naive.outcome, naive.name, naive.corrected_p_value)
            cells.append(shown)
        rows.append(cells)
    header = ["Series", "issued", "scored", "waiting", *["× naive"] * len(tasks)]
    groups = [("", 4), *((TASKS[task].title, 1) for task in tasks)] if tasks else []
    note = ""
    if tasks:
        note = say(
            "Error relative to that of the naive forecast: below 1 is better; in colour where it is "
            "significant."
        )
    return shown_table(Table(header, rows, note), groups=groups, class_="wrapped")


def _no_record_part(place: str, source: str) -> Html:
    """Give the command that writes a record, and say what will be shown."""
    text = say("No live record yet.")
    run = _run_name(place)
    words = ["--repo", place] if run is None else [f"runs/{run}"]
    if source != LiveSource.name:
        words += ["--source", source]
    line = element("code", command("forecast", *words, "--every"))
    after = say(
        "Here will stand how many forecasts were issued, their errors once the actual values are known, and "
        "how often the intervals held them. The first figures appear when the last bar of the first forecast "
        "has closed; errors are tested from {n} days on.",
        n=MIN_DAYS,
    )
    return join(
        [
            element("p", text, data_status=text),
            element("p", say("This command issues a forecast at each candle's close and writes it down:")),
            element("p", line, class_="copy"),
            element("p", after),
        ]
    )


def _coverage(task: str, daily: DailyCoverage) -> Html:
    """Show the share of actual values in each interval by day, as a table that the script draws as well."""
    if not daily:
        return Html("")
    names = list(next(iter(daily.values())).num_inside)
    head = [element("th", say("day"), scope="col")]
    head += [element("th", say("in {name}", name=name), scope="col", data_nominal=name) for name in names]
    head.append(element("th", say("values"), scope="col"))
    rows = []
    for day_s in sorted(daily, reverse=True):
        coverage = daily[day_s]
        cells = [element("th", iso(day_s)[:10], scope="row", data_time=day_s)]
        for name in names:
            share = coverage.shares.get(name)
            cells.append(element("td", percent(share), data_value=None if share is None else f"{share:.5f}"))
        cells.append(element("td", count(coverage.num_actual_values)))
        rows.append(element("tr", *cells))
    table = element(
        "table",
        element("caption", say("{task}: actual values within the intervals, by day", task=titled(task))),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
        class_="coverage",
    )
    shown = element("div", table, class_="scroll", data_more=say("scroll sideways for more →"))
    place = element("div", class_="coverage-place", hidden="hidden")
    return element("section", place, folded(say("{task}: coverage by day", task=titled(task)), shown))


def _record_sentences(tasks: Mapping[str, LiveTask]) -> list[str]:
    """Return the errors of issued forecasts per task, and how often intervals held the actual values."""
    sentences = []
    for task, live in tasks.items():
        naive = RelativeError.of(live.naive)
        best = RelativeError.of(live.best) if len(live.comparisons) > 1 else None
        days = plural(live.num_days, "day")
        parts = [
            str(TaskVerdict(task, naive, best)),
            say("{n} scored of {days}.", n=live.num_scored, days=days),
        ]
        if live.coverage:
            for name, share in live.coverage.shares.items():
                parts.append(say("Within {name}: {share}.", name=name, share=percent(share)))
        sentences.append(" ".join(parts))
    if not all(live.is_best_of_run for live in tasks.values()):
        sentences.append(own_baseline_sentence())
    return sentences or [say("No live record yet.")]


def _record_list(tasks: Mapping[str, LiveTask]) -> Html:
    return _sentence_list(_record_sentences(tasks))


def _sentence_list(sentences: Iterable[str]) -> Html:
    return element("ul", *(element("li", sentence) for sentence in sentences), class_="verdicts")


class ForecastView:
    """A forecast as it is shown: the JSON of the API, its tile, and its part of its own page.

    A tile is written in every language together, because the overview shows all tiles; a part when it is
    first requested.

    Args:
        snapshot: The models.
        issued: The forecast.
        month: What is known of the month before.
    """

    def __init__(self, snapshot: ModelSnapshot, issued: IssuedForecast, month: PastMonth) -> None:
        self.content: Final = answers.encode_json(answers.forecast(snapshot, issued))
        self._snapshot = snapshot
        self.issued = issued
        self._series = issued.candles.series
        self._forecast = issued.forecast
        self._decimals = issued.price_decimals
        self.numbers: Final = self._numbers(month)
        self._parts: dict[str, Html] = {}
        """The part of its page by language."""
        self.tiles: Final[dict[str, Html]] = {}
        """What its tile shows below the price, by language."""
        for name in LANGUAGES:
            with language(name):
                self.tiles[name] = join(self._tile())

    @property
    def part(self) -> Html:
        """Its part of its page; an attribute `data-status` summarises it in a sentence."""
        if chosen() not in self._parts:
            self._parts[chosen()] = self._make_part()
        return self._parts[chosen()]

    def _numbers(self, month: PastMonth) -> TileNumbers:
        close = float(self.issued.candles.column(CLOSE)[-1])
        prices = self.issued.price_range
        volatility = None
        percentile = None
        if VOLATILITY in self._forecast:
            volatility = float(self._forecast[VOLATILITY].iloc[-1])
            if len(month.volatility_percentiles):
                num_below = np.searchsorted(month.volatility_percentiles, volatility)
                percentile = max(0, int(num_below) - 1)
        compared = values_of(close, volatility, prices)
        return TileNumbers(
            change=change_of_a_day(self.issued.candles, month),
            volatility=volatility,
            range_width=compared[RANGE_AHEAD],
            percentile=percentile,
            price=self._format(CLOSE, close),
            closed_s=self.issued.closed_s,
        )

    def _tile(self) -> Iterator[Html]:
        numbers = self.numbers
        forecast = self._forecast
        ends = self._range_ends()
        yield sparkline(
            self.issued.candles.column(CLOSE),
            forecast[CLOSE].to_numpy(),
            ends,
            title=f"{self._series}: {self._range_text()}",
        )
        volatility = ABSENT if numbers.volatility is None else self._format(VOLATILITY, numbers.volatility)
        yield mood_label(numbers.percentile, self._volatility_text())
        # Without its time the range reads as that of the last day.
        period = say("next {span}:", span=duration(len(forecast) * self._series.bar_s, omits_zero=True))
        text = f"{self._format(LOW, ends[0])} – {self._format(HIGH, ends[1])}"
        yield element("span", period, " ", element("span", text), class_="ahead", title=self._range_text())
        width = percent(numbers.range_width, 2)
        yield element("span", width, class_="width", title=self._range_text())
        name = element("i", say("volatility ahead"), " ")
        yield element("span", name, volatility, class_="volatility")
        row = self._snapshot.row_of.get(str(self._series))
        yield verdict_chip(row, " ".join(self._verdict_sentences()))
        if self._age_warning():
            yield element("span", say("old model"), class_="chip old-model", title=self._age_text())

    def _make_part(self) -> Html:
        issued = self.issued
        return filled(
            "v8.annexes.live.app",
            "series.html",
            series=self._series,
            numbers_of_tile=element("div", hidden="hidden", **tile_attributes(self._series, self.numbers)),
            demo=_demo_banner(not issued.is_dated),
            age=self._age_warning(),
            range=self._range_text(),
            now=join(self._now_cards()),
            lead=self._tested_range_text(),
            meaning=self._volatility_meaning(),
            outlook=self._volatility_text(),
            verdict_cards=row_of_cards(task_cards([self._row], {})),
            verdicts=_sentence_list(self._verdict_sentences()),
            inputs=self._inputs_text(),
            newest=self._newest_text(),
            best_baselines=self._best_baselines_text(),
            chart_words=json.dumps(_chart_words()),
            decimals=self._decimals,
            shaded=self._interval_text(),
            frame=self._frame_text(),
            numbers=self._table(),
            trained=facts(self._training_facts()),
        )

    @property
    def _row(self) -> LeaderboardRow:
        return self._snapshot.row_of[str(self._series)]

    def _now_cards(self) -> Iterator[Html]:
        """Show in figures what its tile shows: price, range ahead, how often it held, volatility."""
        numbers = self.numbers
        change = element("i", signed_percent(numbers.change), class_=direction_of(numbers.change))
        closed = say("closed {closed} UTC", closed=moment(iso(self.issued.closed_s)))
        price = self._format(CLOSE, self.issued.candles.column(CLOSE)[-1])
        yield _now_card(say("Price"), price, closed, join([say("24 h"), " ", change]))
        low, high = self._range_ends()
        ahead = f"{self._format(LOW, low)} – {self._format(HIGH, high)}"
        if self.issued.price_range is None:
            yield _now_card(self._period(), ahead, say("Medians: how far beyond is not forecast."))
        else:
            yield _now_card(self._period(), ahead, say("9 of 10 times the price should stay within."))
        tested = self._row.price_range
        if self.issued.price_range is not None and tested is not None:
            share = percent(tested.share) if tested.has_enough_windows else say("not known")
            yield _now_card(say("How often it held"), share, coverage_sentence(tested))
        if VOLATILITY in self._forecast:
            mood = mood_label(numbers.percentile, self._volatility_text())
            usual = ""
            if numbers.percentile is not None:
                usual = say(
                    "In the last {days} days it was lower {share} % of the time.",
                    share=numbers.percentile,
                    days=MONTH_DAYS,
                )
            figure = self._format(VOLATILITY, self._forecast[VOLATILITY].iloc[-1])
            yield _now_card(say("Volatility ahead"), join([figure, mood]), usual)

    def _period(self) -> str:
        """Name the time ahead."""
        return say("Next {span}", span=duration(len(self._forecast) * self._series.bar_s, omits_zero=True))

    def _range_ends(self) -> tuple[float, float]:
        """Return between which prices the bars ahead stay, or their lowest and highest median."""
        prices = self.issued.price_range
        if prices is not None:
            return prices.low, prices.high
        return float(self._forecast[LOW].min()), float(self._forecast[HIGH].max())

    def _range_text(self) -> str:
        """Say between which prices the coming bars stay 9 times of 10."""
        prices = self.issued.price_range
        if prices is None:
            num_bars = len(self._forecast)
            return say(
                "Next {n} bars ({span}): medians from {low} to {high}; how far beyond is not forecast.",
                n=num_bars,
                span=duration(num_bars * self._series.bar_s, omits_zero=True),
                low=self._format(LOW, self._forecast[LOW].min()),
                high=self._format(HIGH, self._forecast[HIGH].max()),
            )
        return say(
            "9 of 10 times the price should stay between {low} and {high} over the next {span}.",
            low=self._format(LOW, prices.low),
            high=self._format(HIGH, prices.high),
            span=duration(len(self._forecast) * self._series.bar_s, omits_zero=True),
        )

    def _tested_range_text(self) -> str:
        """Say what `_range_text` says, and how often it was so on the test candles where that is known."""
        text = self._range_text()
        tested = self._row.price_range
        if self.issued.price_range is None or tested is None:
            return text
        return f"{text} {coverage_sentence(tested)}"

    def _volatility_text(self) -> str:
        """Give the volatility at the last bar, and say whether that is usual."""
        if VOLATILITY not in self._forecast:
            return say("This model does not forecast volatility.")
        volatility = self._format(VOLATILITY, self._forecast[VOLATILITY].iloc[-1])
        percentile = self.numbers.percentile
        if percentile is None:
            return say("Volatility ahead: {ahead}; what is usual is not known.", ahead=volatility)
        return say(
            "Volatility ahead: {ahead}, {mood}: volatility percentile {share} of 100, higher than {share} % "
            "of the time in the last {days} days.",
            ahead=volatility,
            mood=term(mood_of(percentile)),
            share=percentile,
            days=MONTH_DAYS,
        )

    def _volatility_meaning(self) -> Html:
        """Say what the volatility is, and which of its forecasts stands in the first sentence."""
        if VOLATILITY not in self._forecast:
            return Html("")
        text = say(
            "Volatility: the sample standard deviation of the last {n} closes, divided by their mean. "
            "The figure above is its forecast at the last bar ahead.",
            n=BAND_PERIOD_BARS,
        )
        limits = say("Calm: a percentile below 20; wild: from 80 on.")
        if self.issued.forecaster.quantiles:
            limits = f"{say('The table below has the interval around it.')} {limits}"
        return element("p", f"{text} {limits}", class_="soft")

    def _newest_text(self) -> str:
        """Say when the newest candle closed, and how much later the forecast was made."""
        text = say(
            "The newest candle closed at {closed} UTC at {close} ({change} in 24 h).",
            closed=moment(iso(self.issued.closed_s)),
            close=self._format(CLOSE, self.issued.candles.column(CLOSE)[-1]),
            change=signed_percent(self.numbers.change),
        )
        made = moment(iso(self.issued.issued_at_s))
        if not self.issued.is_dated:
            after = say(
                "The simulated market's candles end there, on an old date; "
                "the forecast was made at {made} UTC.",
                made=made,
            )
        else:
            age = duration(max(0, self.issued.issued_at_s - self.issued.closed_s), omits_zero=True)
            after = say("The forecast was made at {made} UTC, {age} after the close.", made=made, age=age)
        return f"{text} {after}"

    def _best_baselines_text(self) -> str:
        """Name the best baseline of each task."""
        tasks = self._row.tasks
        names = []
        for task, against in tasks.items():
            names.append(say("{task}: {outcomes}", task=titled(task), outcomes=spaced(against.best.baseline)))
        return say("Best baselines: {names}.", names=say("; ").join(names))

    def _verdict_sentences(self) -> list[str]:
        """Compare its errors on the test span with those of baselines."""
        _, *sentences = verdict([self._row])
        return sentences

    def _inputs_text(self) -> str | Html:
        """Say whether the inputs of the forecast lie within the range of the training data."""
        out_of_range = self.issued.out_of_range
        if out_of_range is None:
            return say("Whether its inputs are in the range of the training data is not known.")
        if not out_of_range:
            return say("Its inputs are in the range of the training data.")
        text = say(
            "Some inputs are higher or lower than all that training saw: {names}, by up to {share} "
            "of the range it saw; there the forecast extrapolates.",
            names=listed(list(dict.fromkeys(_input_in_words(name) for name in out_of_range))),
            share=percent(max(out_of_range.values())),
        )
        return element("span", text, title=", ".join(out_of_range))

    def _age_text(self) -> str:
        """Warn of a model that `update` calls stale by its age; empty for another one."""
        metadata = self._snapshot.metadata[self._series]
        num_new = (self.issued.closed_s - metadata.candles.last_open_s) // self._series.bar_s - 1
        first, end = metadata.split.test.rows
        if not self.issued.is_dated or num_new <= end - first:
            return ""
        return say(
            "Old model: {n} candles have come since, more than the {tested} of its test.",
            n=count(num_new),
            tested=count(end - first),
        )

    def _age_warning(self) -> Html:
        text = self._age_text()
        return element("p", text, class_="old") if text else Html("")

    def _format(self, name: str, value: float) -> str:
        """Write a value of a column; prices have as many decimals as on the exchange."""
        return percent(value, 3) if is_share(name) else self.issued.written_price(value)

    def _interval_text(self) -> str:
        """Say what the shaded areas are."""
        names = " / ".join(interval_names(self.issued.forecaster.quantiles))
        if names:
            text = say(
                "Shaded: intervals of the close ({names}): the share of closes that should lie within.",
                names=names,
            )
            widest = interval_names(self.issued.forecaster.quantiles)[0]
            return f"{text} {say('Below: the {name} interval of the volatility.', name=widest)}"
        return say("Shaded: from low to high; nothing says how often the actual values stay within.")

    def _frame_text(self) -> str:
        """Say what the dotted frame is; empty without a range of prices."""
        if self.issued.price_range is None:
            return ""
        return say(
            "Dotted frame: 9 of 10 times no price ahead should leave it; "
            "a shaded area holds for the close of one bar."
        )

    def _table(self) -> Html:
        """Show the forecast of the main columns, a row a bar.

        With quantiles that is the close, then the widest interval of each column, that of the close first: a
        narrow screen shows these.
        """
        levels = self.issued.forecaster.quantiles
        names = [name for name in _TABLE_COLUMNS if name in self._forecast]
        columns = {spaced(name): [name] for name in names}
        caption = say("Point forecasts")
        if intervals(levels):
            low, high = intervals(levels)[0]
            share = interval_names(levels)[0]
            columns = {CLOSE: [CLOSE]}
            for name in names:
                title = say("{name}, {share} interval", name=term(spaced(name)), share=share)
                columns[title] = [quantile_column(name, low), quantile_column(name, high)]
            caption = say("The median forecast of the close, then {share} intervals", share=share)
        rows = []
        for open_time, row in zip(self.issued.open_times(), self._forecast.to_dict("records"), strict=True):
            cells = [moment(open_time)]
            for value_columns in columns.values():
                cells.append(" – ".join(self._format(column, row[column]) for column in value_columns))
            rows.append(cells)
        return shown_table(Table(["opens, UTC", *columns], rows, caption), class_="wrapped")

    def _training_facts(self) -> Iterator[tuple[str, str]]:
        """Yield what the model was trained on, as names and values."""
        training = answers.trained(self._snapshot, self._series)
        for name, span in training.pop("spans").items():
            yield f"{name} span", f"{moment(span['first_open'])} – {moment(span['last_open'])}"
        for name, value in training.items():
            yield spaced(name), str(value or ABSENT)


def _now_card(title: str, figure: str, *sentences: str) -> Html:
    """Return a card with one figure of the present, and what it means."""
    shown = element("strong", figure)
    below = [element("span", sentence) for sentence in sentences if sentence]
    return element(
        "section", element("h2", title), element("div", shown, *below, class_="figure"), class_="card"
    )


def _input_in_words(name: str) -> str:
    """Name an input for a reader: the parts of a day and of a week are two inputs and more each."""
    if name in WAVE_COLUMNS:
        return say("the time of day") if name.startswith("day") else say("the time of the week")
    return spaced(name)


def _place_in_words(label: str) -> str:
    """Return the label of a place, see `ModelSnapshot`, in the current language."""
    run = _run_name(label)
    return label if run is None else say("run {name}", name=run)


def _run_name(label: str) -> str | None:
    """Return the name of the run folder that a label of a place is of; None for another place."""
    return label.removeprefix(_RUN_LABEL) if label.startswith(_RUN_LABEL) else None


def _range_legends(snapshot: ModelSnapshot) -> dict[str, str]:
    """Say what the range ahead of a tile and of the table is, and how far ahead it reaches."""
    spans = periods_ahead(
        (metadata.horizon_bars * series.bar_s, series.timeframe)
        for series, metadata in snapshot.metadata.items()
    )
    if any(metadata.profile.quantiles for metadata in snapshot.metadata.values()):
        stated = {
            "shaded": say("shaded: 9 of 10 times the price should stay within, next {spans}.", spans=spans),
            "ahead": say(
                "range ahead: 9 of 10 times the price should stay within, next {spans}.", spans=spans
            ),
        }
        tested = pooled(row.price_range for row in snapshot.rows)
        measured = coverage_sentence(tested) if tested else ""
        return {name: f"{text} {measured}" for name, text in stated.items()}
    return {
        "shaded": say("shaded: from the lowest to the highest forecast of the next {spans}", spans=spans),
        "ahead": say("range ahead: – for models that forecast no intervals"),
    }


def is_demo(snapshot: ModelSnapshot, source: str) -> bool:
    """Return whether a model was trained on the simulated market, or the candles come from it."""
    return source == DemoSource.name or any(
        metadata.is_demo_market for metadata in snapshot.metadata.values()
    )


def _demo_banner(is_demo: bool) -> Html:
    return element("p", term(DEMO_WARNING), class_="banner") if is_demo else Html("")


def _chart_words() -> dict[str, str]:
    """Return what the script writes at the chart, by its key."""
    return {
        "open": say("open"),
        "high": say("high"),
        "low": say("low"),
        "close": say("close"),
        "bands": say("Bollinger bands"),
        "volatility": say("volatility"),
        "forecast": say("forecast"),
        "past": say("earlier forecast"),
        "interval": say("close, {share} interval", share="{name}"),
        "range": say("all prices ahead, 9 of 10 times"),
        "larger": say("Zoom in"),
        "smaller": say("Zoom out"),
        "newest": say("Newest"),
        "failed": say("The chart cannot be drawn now; the table below has the numbers."),
    }
