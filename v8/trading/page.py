"""What trading by forecasts would have gained: sentences and tables of terminal and page, and their files.

`worth.csv` holds a row for each rule over all series, whose series is empty, and a row for each rule and
series. `worth.json` holds these results, figures and curves. `worth.html` first says whether any gain is
statistically significant, and draws what the rules that hold a position would have earned.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pandas as pd

from v8.evaluation.evaluation import MODEL
from v8.evaluation.significance import BEATS, LOSES
from v8.language import language, say, term
from v8.reports.charts import Chart, axis, line, line_style
from v8.reports.markup import Html, document, element, filled, folded, plot, shown_table
from v8.reports.verdict import in_words, verdict_box
from v8.storage import write_json, write_text
from v8.trading.rules import (
    BPS,
    MIN_DAYS,
    NAIVE,
    PERFECT_FORESIGHT,
    TRADING_RULES,
    RuleResult,
    TradingResults,
)
from v8.wording import ABSENT, Table, between, column, frame_csv, p_value, spaced

WORTH_FORMAT: Final = 2  # version of the keys of `worth.json`

TITLE: Final = "Gain by each rule, mean over days and series; more is better"

_HEAD: Final = (
    "rule, unit",
    "series",
    "model",
    "naive",
    "best other way",
    "its gain",
    "no forecast",
    "perfect foresight",
    "model − best, 95 %",
    "p",
    "verdict",
)


def sentences(results: TradingResults) -> Iterator[str]:
    """Say whether any gain is significant, first of money, then of scores, and what trading costs."""
    money = [result for result in results.pooled if not TRADING_RULES[result.rule].is_score]
    scores = [result for result in results.pooled if TRADING_RULES[result.rule].is_score]
    yield from _group_sentences(say("In money, after costs"), money)
    yield from _group_sentences(say("As forecasts, by their scores"), scores)
    yield say(
        "A trade costs {fee} bps, and half the spread of {spread} bps if it cannot wait; funding and what "
        "borrowed money costs are left out. Only candles of test spans count, to which nothing was fitted.",
        fee=f"{BPS * results.terms.fee:g}",
        spread=f"{BPS * results.terms.spread:g}",
    )


def _group_sentences(subject: str, results: list[RuleResult]) -> Iterator[str]:
    """Say which rules of a group, named by `subject`, differ significantly from their best alternative."""
    won = ", ".join(
        term(TRADING_RULES[result.rule].title) for result in results if result.best.outcome == BEATS
    )
    lost = ", ".join(
        term(TRADING_RULES[result.rule].title) for result in results if result.best.outcome == LOSES
    )
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


def rules_table(results: Iterable[RuleResult], title: str = "") -> Table:
    """Return what each rule gains, over all series or by series."""
    return Table(_HEAD, [_cells(result) for result in results], title)


def gains_table(results: Iterable[RuleResult], title: str) -> Table:
    """Return for a terminal what each rule gains, a column for each: its numbers have one unit."""
    results = list(results)
    names = list(dict.fromkeys(name for result in results for name in result.gains))
    names.sort(key=lambda name: name == PERFECT_FORESIGHT)
    columns = [""]
    rows = [[term(spaced(name))] for name in names]
    last_rows = [["best other way"], ["model − best, 95 %"], ["p"], ["verdict"]]
    for result in results:
        rule = TRADING_RULES[result.rule]
        columns.append(f"{term(rule.title)}, {term(rule.unit)}")
        for row, cell in zip(rows, column(result.gains.get(name) for name in names), strict=True):
            row.append(cell)
        best = result.best
        best_name = term(spaced(best.baseline))
        interval = between(column(result.interval)) if result.interval else ABSENT
        cells = [best_name, interval, p_value(best.corrected_p_value), in_words(best.outcome, best_name)]
        for row, cell in zip(last_rows, cells, strict=True):
            row.append(cell)
    return Table(columns, [*rows, *last_rows], title)


def _cells(result: RuleResult) -> list[str]:
    gains = result.gains
    best = result.best
    rule = TRADING_RULES[result.rule]
    best_name = term(spaced(best.baseline))
    names = (MODEL, NAIVE, best.baseline, rule.without_forecast, PERFECT_FORESIGHT)
    model, naive, of_best, without_forecast, foresight = column(gains.get(name) for name in names)
    return [
        f"{term(rule.title)}, {term(rule.unit)}",
        result.series or say("all"),
        model,
        naive,
        best_name,
        of_best,
        without_forecast,
        foresight,
        between(column(result.interval)) if result.interval else ABSENT,
        p_value(best.corrected_p_value),
        in_words(best.outcome, best_name),
    ]


def figure_tables(results: TradingResults) -> Iterator[Table]:
    """Yield the figures of each rule by forecaster, means over windows."""
    for rule, figures in results.figures.items():
        written = [column(figures.loc[label]) for label in figures.index]
        names = [term(spaced(str(name))) for name in figures]
        rows = [[name, *cells] for name, *cells in zip(names, *written, strict=True)]
        yield Table(["", *figures.index], rows, TRADING_RULES[rule].title)


def trading_section(results: TradingResults) -> Iterator[Html]:
    """Yield a heading, and below it sentences, the table of rules, curves of what was earned, and notes."""
    yield element("h2", say("What forecasts are worth in money"))
    yield from _trading_content(results)


def _trading_content(results: TradingResults) -> Iterator[Html]:
    num_series = len({result.series for result in results.by_series})
    num_days = results.pooled[0].num_days
    scope = say("{num} series, {days} days of test spans in UTC:", num=num_series, days=num_days)
    yield verdict_box(scope, *sentences(results))
    yield shown_table(rules_table(results.pooled, TITLE), class_="wrapped figures")
    for rule, earned in results.curves.items():
        title = term(TRADING_RULES[rule].title)
        label = say("{rule}: earned until each day, %, mean over series", rule=title)
        yield plot(_curves(earned), label)
    yield filled("v8.trading", "worth.html")


def _curves(earned: pd.DataFrame) -> Chart:
    days = pd.to_datetime(earned.index, unit="D").strftime("%Y-%m-%d").tolist()
    styles = {str(name): line_style(position) for position, name in enumerate(earned)}
    styles[MODEL] = {"color": "$blue", "width": 3.5}
    lines = [line(term(spaced(name)), days, earned[name].tolist(), style) for name, style in styles.items()]
    # A category axis shows evaluated days only: folds may lie years apart, and nothing is earned in between.
    x = axis(say("day, UTC"), type="category", nticks=4)
    y = axis(say("earned, %"))
    return Chart(lines, 330, x, y, tells_all_at_x=True, has_legend_below=True)


def trading_page(results: TradingResults) -> Html:
    """Return the page; charts on it need a browser, tables do not."""
    figures = [shown_table(table, class_="wrapped figures") for table in figure_tables(results)]
    series_table = shown_table(rules_table(results.by_series), class_="wrapped figures")
    content = [*_trading_content(results), *figures, folded(say("Every series"), series_table)]
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
        "figures": {rule: figures.to_dict() for rule, figures in results.figures.items()},
        "curves": {rule: earned.reset_index().to_dict("list") for rule, earned in results.curves.items()},
    }
    write_json(json_file, content)
    write_text(csv_file, frame_csv(pd.DataFrame(rows)))
    with language():
        write_text(html_file, trading_page(results))
    return files
