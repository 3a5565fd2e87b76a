"""What trading by forecasts would have gained: sentences and tables of terminal and page, and their files.

`worth.csv` holds a row for each rule over all series, whose series is empty, and a row for each rule and
series. `worth.json` holds these results, figures and curves. `worth.html` first says whether any gain is
statistically significant, and draws what the rules that hold a position would have earned.
"""

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from v8.annexes.trading import BPS
from v8.annexes.trading.rules import (
    MIN_DAYS,
    NAIVE,
    PERFECT_FORESIGHT,
    TRADING_RULES,
    RuleResult,
    TradingResults,
)
from v8.base.storage import write_json, write_text
from v8.base.wording import ABSENT, Table, between, column, frame_csv, language, p_value, plural, say, term
from v8.model.evaluation.evaluation import MODEL
from v8.model.evaluation.significance import BEATS, LOSES, UNKNOWN, ComparisonResult, is_equal
from v8.publish.report.charts import LINES, Chart, Json, axis, line, plot
from v8.publish.report.charts import rule as rule_across
from v8.publish.report.markup import Html, document, element, filled, folded, shown_table
from v8.publish.report.page import row_of_cards
from v8.publish.report.verdict import baseline_in_words, in_words, verdict_box

WORTH_FORMAT: Final = 4  # version of the keys of `worth.json`

TITLE: Final = (
    "What is traded: gain of each rule in its unit (utility is no money), mean over days and series; more "
    "is better. The 95 % interval is that of one comparison alone; p and verdict are corrected for all of "
    "them, so that an interval may leave out 0 where the difference is not significant."
)
SCORES_TITLE: Final = (
    "As forecasts: score of each rule, mean over days and series; more is better. The 95 % interval is that "
    "of one comparison alone; p and verdict are corrected for all of them."
)

CERTAIN_DAYS: Final = 180  # a rate of a year that was measured over fewer days is called uncertain

_MOST_TICKS: Final = 8  # dates below a chart, which a phone has room for

_COMPARED: Final = ("model − best alternative, 95 %", "p, corrected", "verdict")
_HEAD: Final = (
    "rule, unit",
    "series",
    "model",
    "naive",
    "best alternative",
    "its gain",
    "no forecast",
    "perfect foresight",
    *_COMPARED,
)
_SCORES_HEAD: Final = (
    "rule, unit",
    "series",
    "model",
    "naive",
    "best alternative",
    "its score",
    "perfect foresight",
    *_COMPARED,
)


def sentences(results: TradingResults) -> Iterator[str]:
    """Say whether any gain is significant, first of money, then of scores; what rates mean, and the costs."""
    money, scores = _money_and_scores(results.pooled)
    yield from _verdicts_of_groups(money, scores)
    yield from _money_sentences(results, money)
    yield say(
        "A trade costs a fee of {fee} bps. An order that is filled at once also pays half of the spread of "
        "{spread} bps: {half} bps. 1 bps is 0.01 %. Funding and what borrowed money costs are left out. Only "
        "candles of test spans count, to which nothing was fitted.",
        fee=f"{BPS * results.terms.fee:g}",
        spread=f"{BPS * results.terms.spread:g}",
        half=f"{BPS * results.terms.spread / 2:g}",
    )


def _verdicts_of_groups(money: list[RuleResult], scores: list[RuleResult]) -> Iterator[str]:
    yield from _group_sentences(say("In money, after costs"), money)
    yield from _group_sentences(say("As forecasts, by their scores"), scores)


def _money_and_scores(results: Iterable[RuleResult]) -> tuple[list[RuleResult], list[RuleResult]]:
    """Divide results into those of rules that trade, and those of rules that only score a forecast."""
    money: list[RuleResult] = []
    scores: list[RuleResult] = []
    for result in results:
        group = scores if TRADING_RULES[result.rule].is_score else money
        group.append(result)
    return money, scores


def _group_sentences(subject: str, results: list[RuleResult]) -> Iterator[str]:
    """Say which rules of a group, named by `subject`, differ significantly from their best alternative."""
    won = _titles_of(results, BEATS)
    lost = _titles_of(results, LOSES)
    if results[0].num_days < MIN_DAYS:
        yield say("{subject}: too few days to know whether any difference is significant.", subject=subject)
    elif won:
        yield say(
            "{subject}: significantly better than the best alternative: {won}.", subject=subject, won=won
        )
    else:
        yield say("{subject}: nothing is significantly better than the best alternative.", subject=subject)
    if lost:
        yield say("Significantly worse than it: {lost}.", lost=lost)


def _titles_of(results: Iterable[RuleResult], outcome: ComparisonResult) -> str:
    """Name the rules with an outcome of the comparison with the best alternative, joined by commas."""
    titles = [term(TRADING_RULES[result.rule].title) for result in results if result.best.outcome == outcome]
    return say(", ").join(titles)


def _money_sentences(results: TradingResults, money: Iterable[RuleResult]) -> Iterator[str]:
    """Say what the model's forecasts earned by each rule that trades, and over how many days."""
    num_days = results.pooled[0].num_days
    for result in money:
        rule = TRADING_RULES[result.rule]
        if not rule.is_yearly:
            gain, without_forecast = column([result.gains[MODEL], result.gains[rule.without_forecast]])
            yield say(
                "Model, {rule}: {gain} bps an order compared with the last known close, after costs; a "
                "market order: {without_forecast} bps.",
                rule=term(rule.title),
                gain=gain,
                without_forecast=without_forecast,
            )
            continue
        (yearly,) = column([result.gains[MODEL]])
        curves = results.curves[result.rule]
        earned, earned_without = column(
            [float(curves[name].iloc[-1]) for name in (MODEL, rule.without_forecast)]
        )
        values = {
            "rule": term(rule.title),
            "earned": earned,
            "alternative": term(rule.without_forecast),
            "without": earned_without,
            "days": plural(num_days, "day"),
            "yearly": yearly,
        }
        if num_days < CERTAIN_DAYS or result.gains[MODEL] <= -100.0:  # no rate loses more than all
            yield say(
                "Model, {rule}: earned {earned} % in {days}, the days added up ({alternative}: {without} %).",
                **values,
            )
        elif rule.is_return:
            yield say(
                "Model, {rule}: earned {earned} % in {days}, the days added up ({alternative}: {without} %); "
                "as a rate, {yearly} % a year.",
                **values,
            )
        else:
            yield say(
                "Model, {rule}: earned {earned} % in {days}, the days added up ({alternative}: {without} %); "
                "its utility, which also counts the risk, but not whether prices rose, and is no return: "
                "{yearly} % a year.",
                **values,
            )
    if num_days < CERTAIN_DAYS:
        yield say(
            "A rate of a year that was measured over fewer than {days} days is uncertain: a few days decide "
            "it.",
            days=CERTAIN_DAYS,
        )


def _rule_label(result: RuleResult) -> str:
    """Name a rule and the unit of its gain; with a rate of a year, over how many days it was measured."""
    rule = TRADING_RULES[result.rule]
    if not rule.is_yearly:
        return say("{rule}, {unit}", rule=term(rule.title), unit=term(rule.unit))
    # Translators: a rule of trading, whose gain is a rate of a year that was measured over so many days.
    return say(
        "{rule}, {unit}, a rate over {days}",
        rule=term(rule.title),
        unit=term(rule.unit),
        days=plural(result.num_days, "day"),
    )


def _verdict_of(result: RuleResult) -> str:
    """Say how the model compares with the best alternative, and which way where that may be chance."""
    best = result.best
    if best.outcome == UNKNOWN:
        return say("too few days")
    verdict = in_words(best.outcome, best.baseline)
    if best.outcome in (BEATS, LOSES) or is_equal(best.model_error, best.baseline_error):
        return verdict
    if best.model_error > best.baseline_error:  # errors are gains with the sign reversed
        return say("{verdict} (lower, but it may be chance)", verdict=verdict)
    return say("{verdict} (higher, but it may be chance)", verdict=verdict)


def rules_tables(results: Iterable[RuleResult]) -> Iterator[Table]:
    """Yield what each rule that trades gains, over all series or by series, and the scores of the others."""
    money, scores = _money_and_scores(results)
    yield Table(_HEAD, [_cells(result) for result in money], TITLE)
    yield Table(_SCORES_HEAD, [_cells(result) for result in scores], SCORES_TITLE)


def gains_tables(results: Iterable[RuleResult]) -> Iterator[Table]:
    """Yield the same for a terminal, a column for each rule: its numbers have one unit."""
    money, scores = _money_and_scores(results)
    yield gains_table(money, TITLE)
    yield gains_table(scores, SCORES_TITLE)


def gains_table(results: Iterable[RuleResult], title: str) -> Table:
    """Return for a terminal what each rule gains, a column for each: its numbers have one unit."""
    results = list(results)
    names = list(dict.fromkeys(name for result in results for name in result.gains))
    names.sort(key=lambda name: name == PERFECT_FORESIGHT)
    columns = [""]
    rows = [[baseline_in_words(name)] for name in names]
    last_rows = [["best alternative"], *([title] for title in _COMPARED)]
    for result in results:
        columns.append(_rule_label(result))
        for row, cell in zip(rows, column(result.gains.get(name) for name in names), strict=True):
            row.append(cell)
        best = result.best
        best_name = baseline_in_words(best.baseline)
        interval = between(column(result.interval)) if result.interval else ABSENT
        cells = [best_name, interval, p_value(best.corrected_p_value), _verdict_of(result)]
        for row, cell in zip(last_rows, cells, strict=True):
            row.append(cell)
    return Table(columns, [*rows, *last_rows], title)


def _cells(result: RuleResult) -> list[str]:
    gains = result.gains
    best = result.best
    rule = TRADING_RULES[result.rule]
    best_name = baseline_in_words(best.baseline)
    names = [MODEL, NAIVE, best.baseline, rule.without_forecast, PERFECT_FORESIGHT]
    if rule.is_score:
        names.remove(rule.without_forecast)
    model, naive, *others = column(gains.get(name) for name in names)
    return [
        _rule_label(result),
        result.series or say("all"),
        model,
        naive,
        best_name,
        *others,
        between(column(result.interval)) if result.interval else ABSENT,
        p_value(best.corrected_p_value),
        _verdict_of(result),
    ]


def figure_tables(results: TradingResults) -> Iterator[Table]:
    """Yield the figures of each rule by forecaster, means over windows."""
    days = plural(results.pooled[0].num_days, "day")
    for rule, figures in results.figures.items():
        written = [column(_known(figures.loc[label])) for label in figures.index]
        names = [baseline_in_words(str(name)) for name in figures]
        rows = [[name, *cells] for name, *cells in zip(names, *written, strict=True)]
        title = say("{rule}, measured over {days}", rule=term(TRADING_RULES[rule].title), days=days)
        yield Table(["", *figures.index], rows, title)


def _known(values: pd.Series) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


def figure_notes() -> dict[str, str]:
    """Explain the figures of each rule, by its key."""
    held = say(
        "Held: bars with a position. Held and right: bars with a position that earned, of all bars; hit "
        "rate: of the bars with a position. Maximum drawdown: from a high of the wealth to the next low."
    )
    foresight = say(
        "Perfect foresight knows here how far prices move, not where to: it has the best utility, and "
        "still loses where the market falls."
    )
    return {
        "volatility": f"{held} {foresight}",
        "limits": say("Filled: orders that were filled at their price."),
        "direction": held,
        "ranges": say(
            "Stopped: trades that ended at an end of the range. Lost by stops: how much more these trades "
            "would have earned without the stop, mean over all trades; below 0 the stops gained."
        ),
        "variance": say("MAE: mean absolute error of the volatility."),
    }


def trading_section(results: TradingResults) -> Iterator[Html]:
    """Yield a heading, and below it sentences, the table of rules, curves of what was earned, and notes."""
    yield element("h2", say("What forecasts are worth in money"))
    yield from _trading_content(results)


def _trading_content(results: TradingResults) -> Iterator[Html]:
    num_series = len({result.series for result in results.by_series})
    num_days = results.pooled[0].num_days
    scope = say("{num} series, {days} days of test spans in UTC:", num=num_series, days=num_days)
    money, scores = _money_and_scores(results.pooled)
    yield verdict_box(scope, *_verdicts_of_groups(money, scores))
    yield row_of_cards(_money_card(result, results) for result in money)
    plots = [_plot(one, results.curves[one.rule]) for one in results.pooled if one.rule in results.curves]
    yield element("div", *plots, class_="charts")
    yield folded(say("The same in sentences"), *(element("p", sentence) for sentence in sentences(results)))
    yield shown_table(_short_table([*money, *scores]), class_="wrapped figures")
    tables = [shown_table(table, class_="wrapped figures") for table in rules_tables(results.pooled)]
    yield folded(say("Every number of each rule"), *tables)
    yield folded(
        say("How to read these figures"),
        filled("v8.annexes.trading", "rules.html", points=f"{365 / num_days:.1f}", num_days=num_days),
        filled("v8.annexes.trading", "worth.html"),
    )


def _money_card(result: RuleResult, results: TradingResults) -> Html:
    """Show what the model earned by a rule that trades, and what that is without a forecast."""
    rule = TRADING_RULES[result.rule]
    names = [MODEL, rule.without_forecast]
    if rule.is_yearly:
        curves = results.curves[result.rule]
        earned, without = column([float(curves[name].iloc[-1]) for name in names])
        figure = say("{earned} %", earned=earned)
        label = say(
            "earned in {days} ({alternative}: {without} %)",
            days=plural(result.num_days, "day"),
            alternative=term(rule.without_forecast),
            without=without,
        )
    else:
        earned, without = column([result.gains[name] for name in names])
        figure = say("{earned} bps", earned=earned)
        label = say(
            "an order, compared with the last known close ({alternative}: {without} bps)",
            alternative=term(rule.without_forecast),
            without=without,
        )
    style = {BEATS: "better", LOSES: "worse"}.get(result.best.outcome, "unclear")
    shown = element("div", element("strong", figure, class_=style), element("span", label), class_="figure")
    chip = element("span", _verdict_of(result), class_=f"chip {style}")
    return element("section", element("h2", term(rule.title)), shown, chip, class_="card")


def _short_table(results: Iterable[RuleResult]) -> Table:
    """Return the pooled results in lines: model, best alternative, and their difference."""
    head = ("rule", "model", "best alternative", "its gain", *_COMPARED[:2], "unit")
    rows = []
    for result in results:
        rule = TRADING_RULES[result.rule]
        best = result.best
        gain, gain_of_best = column([result.gains[MODEL], result.gains.get(best.baseline)])
        unit = term(rule.unit)
        if rule.is_yearly:
            unit = say("{unit}, over {days}", unit=unit, days=plural(result.num_days, "day"))
        cells = [term(rule.title), gain, baseline_in_words(best.baseline), gain_of_best]
        cells.append(between(column(result.interval)) if result.interval else ABSENT)
        rows.append([*cells, p_value(best.corrected_p_value), unit])
    return Table(head, rows)


def _plot(result: RuleResult, earned: pd.DataFrame) -> Html:
    """Draw what was earned by a rule; at first only the model and what it is compared with are shown."""
    rule = TRADING_RULES[result.rule]
    shown = {MODEL, rule.without_forecast, result.best.baseline}
    chart = _curves(earned, shown)
    label = say(
        "{rule}: earned until each day, in % (not a year), the days added up. Test spans one after another, "
        "{days} days in all.",
        rule=term(rule.title),
        days=len(earned),
    )
    if chart.rules:
        label += say(" A dotted line is where days are missing between two spans.")
    return plot(chart, label)


def _curves(earned: pd.DataFrame, shown: Container[str]) -> Chart:
    """Draw what was earned until each day; a line breaks where days are missing between two test spans."""
    dates = pd.to_datetime(earned.index, unit="D").strftime("%Y-%m-%d").tolist()
    places, seams = _places(earned.index.tolist())
    # A category axis shows evaluated days only: folds may lie years apart, and nothing is earned in between.
    # The axis wants a name of its own for an empty place, too: so many blanks.
    days = [" " * (place + 1) for place in range(places[-1] + 1)]
    for place, date in zip(places, dates, strict=True):
        days[place] = date
    styles: dict[str, Json] = {}
    for position, name in enumerate(earned):
        styles[str(name)] = {"color": LINES[position % len(LINES)], "width": 3.5}
    styles[MODEL] = {"color": "$blue", "width": 2}  # on top of what it may equal, which stays visible
    lines = []
    for name, style in styles.items():
        values: list[float | None] = [None] * len(days)
        for place, value in zip(places, earned[name], strict=True):
            values[place] = float(value)
        lines.append(
            line(
                baseline_in_words(name),
                days,
                values,
                style,
                visible=True if name in shown else "legendonly",
                zorder=int(name == MODEL),
            )
        )
    starts = _apart([0, *(seam + 1 for seam in seams)], len(days) / _MOST_TICKS)
    # The year above the day, so that a phone has room for the dates of short spans.
    ticks: dict[float, str] = {start: days[start].replace("-", "<br>", 1) for start in starts}
    x = axis(say("day, UTC"), ticks=ticks, type="category")
    y = axis(say("earned, days added up, %"))
    rules = [rule_across(seam, "$soft", 1.0, "dot") for seam in seams]
    return Chart(lines, 330, x, y, rules=rules, tells_all_at_x=True, has_legend_below=True)


def _places(days: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return where days are drawn, and the empty places between those that do not follow one another.

    >>> _places([7, 8, 11])
    ([0, 1, 3], [2])
    """
    places: list[int] = []
    seams: list[int] = []
    for position, day in enumerate(days):
        if position and day != days[position - 1] + 1:
            seams.append(position + len(seams))
        places.append(position + len(seams))
    return places, seams


def _apart(places: Sequence[int], least: float) -> list[int]:
    """Leave out places that are too near to one before them.

    >>> _apart([0, 1, 6, 7, 20], 5)
    [0, 6, 20]
    """
    kept = [places[0]]
    for place in places[1:]:
        if place - kept[-1] >= least:
            kept.append(place)
    return kept


def trading_page(results: TradingResults) -> Html:
    """Return the page; charts on it need a browser, tables do not."""
    means = say(
        "Means over all bars of all test spans: a span counts by its number of bars. Gains in the first "
        "table are means over days, so utility less costs here is not the gain there. In one test span: from "
        "the first to the last bar of one series in one fold, mean over these spans; the curves above add "
        "up the days of all spans instead."
    )
    figures = [element("p", means, class_="soft")]
    notes = figure_notes()
    for rule, table in zip(results.figures, figure_tables(results), strict=True):
        figures.append(shown_table(table, class_="wrapped figures"))
        figures.append(element("p", notes[rule], class_="soft"))
    by_series = rules_tables(results.by_series)
    series_tables = [shown_table(table, class_="wrapped figures") for table in by_series]
    folds = [folded(say("More figures of each rule"), *figures), folded(say("Every series"), *series_tables)]
    content = [*_trading_content(results), *folds]
    heading = say("What forecasts are worth in money")
    return document(f"v8: {heading}", heading, content, is_demo=results.is_demo)


def _row(result: RuleResult) -> dict[str, Any]:
    low, high = result.interval or (None, None)
    return {
        "rule": result.rule,
        "series": result.series,
        "days": result.num_days,
        "unit": TRADING_RULES[result.rule].unit,
        **result.gains,
        "best_other": result.best.baseline,
        "difference_low_95": low,
        "difference_high_95": high,
        "p_naive": result.naive.corrected_p_value,
        "p_best": result.best.corrected_p_value,
        "outcome": result.best.outcome,
    }


def _json_values(figures: pd.DataFrame) -> dict[str, Any]:
    """Return figures by forecaster and label; null where there is none."""
    return {str(name): dict(zip(figures.index, _known(figures[name]), strict=True)) for name in figures}


def write_trading_results(folder: Path, results: TradingResults) -> list[Path]:
    """Write `worth.json`, `worth.csv` and `worth.html` into a folder, each atomically; return their paths."""
    files = [folder / f"worth.{kind}" for kind in ("json", "csv", "html")]
    json_file, csv_file, html_file = files
    rows = [_row(result) for result in (*results.pooled, *results.by_series)]
    content = {
        "format": WORTH_FORMAT,
        "is_demo": results.is_demo,
        "terms": vars(results.terms),
        "results": rows,
        "figures": {rule: _json_values(figures) for rule, figures in results.figures.items()},
        "curves": {rule: earned.reset_index().to_dict("list") for rule, earned in results.curves.items()},
    }
    write_json(json_file, content)
    write_text(csv_file, frame_csv(pd.DataFrame(rows)))
    with language():
        write_text(html_file, trading_page(results))
    return files
