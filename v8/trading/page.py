"""What forecasts are worth in money: the sentences and tables of terminal and page, and the files of both.

`worth.csv` holds a row for each rule over all series, whose name is empty, and for each rule and series,
`worth.json` these and figures and curves; `worth.html` opens with whether any of it is more than chance, and
draws what the rules that hold something would have earned.
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
from v8.reports.verdict import in_words, opening
from v8.storage import write_json, write_text
from v8.trading.rules import ACTUAL, BPS, LEAST_DAYS, NAIVE, RULES, Result, Worth
from v8.wording import ABSENT, Table, between, frame_csv, number, p_value, spaced

WORTH_FORMAT: Final = 1  # version of the keys of `worth.json`

TITLE: Final = "Gain of a day, mean over series; more is better"

_HEAD: Final = (
    *("rule, unit", "series", "model", "naive", "best other way", "its gain", "no forecast", "actual"),
    *("model − best, 95 %", "p", "verdict"),
)


def sentences(worth: Worth) -> Iterator[str]:
    """Say whether any of it is more than chance, first of money, then of scores, and what trading costs."""
    for is_score, about in enumerate((say("In money, after costs"), say("As forecasts, by their scores"))):
        those = [one for one in worth.together if is_score != bool(RULES[one.rule].without)]
        won, lost = (
            ", ".join(term(RULES[one.rule].title) for one in those if one.best.outcome == outcome)
            for outcome in (BEATS, LOSES)
        )
        if those[0].num_days < LEAST_DAYS:
            yield say("{about}: too few days to tell whether any of it is more than chance.", about=about)
        elif won:
            yield say("{about}: beats the best other way by more than chance: {won}.", about=about, won=won)
        else:
            yield say("{about}: nothing beats the best other way by more than chance.", about=about)
        if lost:
            yield say("Loses to it by more than chance: {lost}.", lost=lost)
    yield say(
        "A trade costs {fee} bps, and half the spread of {spread} bps if it cannot wait; funding and what "
        "borrowed money costs are left out. Only candles of test spans count, to which nothing was fitted.",
        fee=f"{BPS * worth.terms.fee:g}",
        spread=f"{BPS * worth.terms.spread:g}",
    )


def rules_table(results: Iterable[Result], title: str = "") -> Table:
    """Return what each rule gains, over all series or by series."""
    return Table(_HEAD, map(_cells, results), title)


def _cells(one: Result) -> Iterator[str]:
    gains = one.gains
    best = one.best
    rule = RULES[one.rule]
    other = term(spaced(best.baseline))
    yield from (f"{term(rule.title)}, {term(rule.unit)}", one.series or say("all"))
    yield from (number(gains[MODEL]), number(gains[NAIVE]), other)
    yield from (number(gains.get(name)) for name in (best.baseline, rule.without, ACTUAL))
    yield between(map(number, one.interval)) if one.interval else ABSENT
    yield from (p_value(best.corrected_p_value), in_words(best.outcome, other))


def figure_tables(worth: Worth) -> Iterator[Table]:
    """Yield the figures of each rule by forecaster, means over windows."""
    for rule, told in worth.figures.items():
        rows = [[term(spaced(str(name))), *map(number, values)] for name, values in told.items()]
        yield Table(["", *told.index], rows, RULES[rule].title)


def worth_section(worth: Worth) -> Iterator[Html]:
    """Tell below a heading what it is worth: sentences, the table of rules, what they earned, who is who."""
    yield element("h2", say("What forecasts are worth in money"))
    yield opening("", *sentences(worth))
    yield shown_table(rules_table(worth.together, TITLE), class_="wrapped figures")
    for rule, earned in worth.curves.items():
        label = say("{rule}: earned until each day, %, mean over series", rule=term(RULES[rule].title))
        yield plot(_curves(earned), label)
    yield filled("v8.reports", "worth.html")


def _curves(earned: pd.DataFrame) -> Chart:
    days = pd.to_datetime(earned.index, unit="D").strftime("%Y-%m-%d").tolist()
    styles = {str(name): line_style(place) for place, name in enumerate(earned)}
    styles[MODEL] = {"color": "$blue", "width": 3.5}
    lines = [line(term(spaced(name)), days, earned[name].tolist(), style) for name, style in styles.items()]
    # Day after day that was evaluated: folds lie years apart, in which nothing was earned.
    x = axis(type="category", nticks=4)
    y = axis(say("earned, %"))
    return Chart(lines, 330, x, y, tells_all_at_x=True, has_legend_below=True)


def worth_page(worth: Worth) -> Html:
    """Return the page; charts on it need a browser, tables do not."""
    _, *found = worth_section(worth)
    figures = (shown_table(table, class_="wrapped figures") for table in figure_tables(worth))
    each = folded(say("Every series"), shown_table(rules_table(worth.each), class_="wrapped figures"))
    heading = say("What forecasts are worth in money")
    return document(f"v8: {heading}", heading, [*found, *figures, each], is_demo=worth.is_demo)


def _row(one: Result) -> dict[str, Any]:
    about = {"rule": one.rule, "series": one.series, "days": one.num_days, "unit": RULES[one.rule].unit}
    low, high = one.interval or (None, None)
    beside = {"best_other": one.best.baseline, "difference_low_95": low, "difference_high_95": high}
    chances = {"p_naive": one.naive.corrected_p_value, "p_best": one.best.corrected_p_value}
    return {**about, **one.gains, **beside, **chances, "outcome": one.best.outcome}


def write_worth(folder: Path, worth: Worth) -> list[Path]:
    """Write `worth.json`, `worth.csv` and `worth.html` into a folder, each atomically; return them."""
    files = [folder / f"worth.{kind}" for kind in ("json", "csv", "html")]
    rows = [*map(_row, (*worth.together, *worth.each))]
    about = {"format": WORTH_FORMAT, "is_demo": worth.is_demo, "terms": vars(worth.terms), "results": rows}
    figures = {rule: told.to_dict() for rule, told in worth.figures.items()}
    curves = {rule: earned.reset_index().to_dict("list") for rule, earned in worth.curves.items()}
    write_json(files[0], {**about, "figures": figures, "curves": curves})
    write_text(files[1], frame_csv(pd.DataFrame(rows)))
    with language():
        write_text(files[2], worth_page(worth))
    return files
