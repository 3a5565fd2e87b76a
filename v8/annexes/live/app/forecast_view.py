"""A forecast as it is shown: its tile on the overview, and its part of the page of its series.

The small chart of a tile (`sparkline`) is inline SVG in user units, drawn on the server, because an overview
of a thousand series has to show without a script and at once.
"""

import json
import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from v8.annexes.live import RANGE_AHEAD, values_of
from v8.annexes.live.app import answers
from v8.annexes.live.app.page import sentence_list
from v8.annexes.live.app.service import (
    MONTH_DAYS,
    ModelSnapshot,
    PastMonth,
    change_of_a_day,
)
from v8.annexes.live.app.tiles import (
    TileNumbers,
    demo_banner,
    direction_of,
    mood_label,
    mood_of,
    signed_percent,
    tile_attributes,
    verdict_chip,
)
from v8.api.issuing import IssuedForecast, coverage_sentence
from v8.base.arrays import FloatArray
from v8.base.errors import listed
from v8.base.wording import (
    ABSENT,
    LANGUAGES,
    Table,
    chosen,
    count,
    duration,
    language,
    moment,
    percent,
    say,
    spaced,
    term,
)
from v8.data.market.series import iso
from v8.model.evaluation.leaderboard import LeaderboardRow
from v8.profile.columns import (
    BAND_PERIOD_BARS,
    CLOSE,
    HIGH,
    LOW,
    TOTAL_RANGE,
    VOLATILITY,
    WAVE_COLUMNS,
    interval_names,
    intervals,
    quantile_column,
)
from v8.profile.tasks import is_share
from v8.publish.report.markup import Html, element, facts, filled, join, shown_table
from v8.publish.report.page import row_of_cards, task_cards
from v8.publish.report.verdict import best_baselines_in_words, verdict

_TABLE_COLUMNS: Final = (CLOSE, LOW, HIGH, TOTAL_RANGE, VOLATILITY)
WIDTH: Final = 280
HEIGHT: Final = 64
_RIGHT: Final = 274  # where the bars end: the dot at the last one needs the rest
_TOP: Final = 5  # above and below the values
MIN_KNOWN: Final = 24  # known bars at least, if there are so many
_MIN_SPAN: Final = 1e-6  # of the values, as a share of the highest: a market may stand still


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
        period = say("next {span}:", span=self._span)
        if self.issued.num_closed_bars:
            period = say("{span} from {closed} UTC on:", span=self._span, closed=self._closed)
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
            demo=demo_banner(not issued.is_dated),
            age=self._age_warning(),
            range=self._range_text(),
            now=join(self._now_cards()),
            lead=self._tested_range_text(),
            meaning=self._volatility_meaning(),
            outlook=self._volatility_text(),
            verdict_cards=row_of_cards(task_cards([self._row])),
            verdicts=sentence_list(self._verdict_sentences()),
            inputs=self._inputs_text(),
            newest=self._newest_text(),
            best_baselines=say("Best baselines: {names}.", names=best_baselines_in_words([self._row])),
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
        closed = say("closed {closed} UTC", closed=self._closed)
        price = self._format(CLOSE, self.issued.candles.column(CLOSE)[-1])
        yield _now_card(say("Price"), price, closed, join([say("24 h"), " ", change]))
        low, high = self._range_ends()
        ahead = f"{self._format(LOW, low)} – {self._format(HIGH, high)}"
        meaning = say("9 of 10 times the price should stay within.")
        if self.issued.price_range is None:
            meaning = say("Medians: how far beyond is not forecast.")
        period = say("Next {span}", span=self._span)
        if self.issued.num_closed_bars:
            period = say("{span} from {closed} UTC on", span=self._span, closed=self._closed)
        yield _now_card(period, ahead, meaning)
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

    @property
    def _span(self) -> str:
        """The time ahead."""
        return duration(len(self._forecast) * self._series.bar_s, omits_zero=True)

    @property
    def _closed(self) -> str:
        """When the newest candle closed."""
        return moment(iso(self.issued.closed_s))

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
            return say(
                "Next {n} bars ({span}): medians from {low} to {high}; how far beyond is not forecast.",
                n=len(self._forecast),
                span=self._span,
                low=self._format(LOW, self._forecast[LOW].min()),
                high=self._format(HIGH, self._forecast[HIGH].max()),
            )
        low = self._format(LOW, prices.low)
        high = self._format(HIGH, prices.high)
        if self.issued.num_closed_bars:
            return say(
                "9 of 10 times the price should stay between {low} and {high} over the {span} from {closed} "
                "UTC on; {n} of {num_bars} bars have closed already.",
                low=low,
                high=high,
                span=self._span,
                closed=self._closed,
                n=self.issued.num_closed_bars,
                num_bars=len(self._forecast),
            )
        return say(
            "9 of 10 times the price should stay between {low} and {high} over the next {span}.",
            low=low,
            high=high,
            span=self._span,
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
        limits = say(
            "Percentiles are of the {days} days up to the last midnight UTC. "
            "Calm: below 20; wild: from 80 on.",
            days=MONTH_DAYS,
        )
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
        """Say what the dotted frame is, and how the shaded areas differ; empty without a range of prices."""
        if self.issued.price_range is None:
            return ""
        return say(
            "Dotted frame: 9 of 10 times no price of any bar ahead should leave it. Shaded: narrower, "
            "because it holds for the close of one bar alone."
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


def sparkline(known: FloatArray, ahead: FloatArray, ends: tuple[float, float], title: str) -> Html:
    """Draw known closes, the forecast closes behind them, and the range of all bars ahead.

    Args:
        known: Closes, the newest last, shape (N,), in quote currency.
        ahead: Forecast closes, shape (H,), in quote currency.
        ends: Low and high end of the range, in quote currency.
        title: Says in words what is drawn.
    """
    known = known[-max(MIN_KNOWN, 2 * len(ahead)) :]  # the bars ahead take a third of the width at most
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
