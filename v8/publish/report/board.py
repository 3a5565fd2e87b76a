"""The page and the data set card of a board, from its tables (`v8.api.board.Board`)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pandas as pd

from v8.base.storage import packaged
from v8.base.wording import ABSENT, Table, between, number, p_value, say, spaced, term
from v8.model.baselines.baselines import BASELINES, NAIVE
from v8.profile.tasks import TASKS
from v8.publish.report.figures import Dot, change_pct, spread_figure
from v8.publish.report.markup import DEMO_WARNING, Html, document, element, folded, plot, shown_table
from v8.publish.report.verdict import baseline_in_words, relative_to_naive, titled, verdict_box

PAGE_FILE: Final = "board.html"

MARK: Final = "●"
"""Follows the methods that cannot be told apart from the best."""


def board_page(
    table: pd.DataFrame, scores: pd.DataFrame, methods: pd.DataFrame, *, is_demo: bool = False
) -> Html:
    """Return the page; arguments are the tables of a board, and whether its market was simulated."""
    parts = [verdict_box(_scope(table, scores), *board_sentences(table))]
    for task, timeframe, rows in _groups(table):
        parts.append(element("h2", f"{_title(task)}, {timeframe}"))
        parts.append(plot(*_chart(rows, scores, methods)))
        parts.append(shown_table(comparison_table(rows), class_="wrapped figures"))
    explanation = say(
        "Errors are mean absolute errors in returns, divided by those of the naive forecast, in which the "
        "close stays where it is, and of the best baseline: medians over series, with 95 % intervals by a "
        "block bootstrap. p: chance of such a difference if both were equally good (Diebold-Mariano, "
        "corrected over the board). All methods of a task are compared on the same windows and steps."
    )
    mark = say(
        "Series lower: in how many the error is lower. {mark} cannot be told apart from the best (model "
        "confidence set).",
        mark=MARK,
    )
    parts.append(element("p", f"{explanation} {mark}", class_="soft"))
    parts.append(element("h2", say("What is known of the methods")))
    parts.append(shown_table(methods_table(methods), class_="wrapped"))
    again = say(
        "forecasts.parquet has every forecast with its actual value: Board.load computes all numbers again, "
        "and Board.add puts other forecasts beside these."
    )
    parts.append(folded(say("Compute it again, add your own"), element("p", again)))
    title = say("Board of forecasts")
    return document(f"v8: {title}", title, parts, is_demo=is_demo)


def _scope(table: pd.DataFrame, scores: pd.DataFrame) -> str:
    names = list(dict.fromkeys(scores["unique_id"]))
    return say(
        "{methods} methods on the same windows of {num} series: {series}.",
        methods=table["method"].nunique(),
        num=len(names),
        series=say(", ").join(names),
    )


def _groups(table: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield each task and timeframe with its rows."""
    for _, rows in table.groupby(["task", "timeframe"], sort=False):
        yield str(rows["task"].iloc[0]), str(rows["timeframe"].iloc[0]), rows


def _title(task: str) -> str:
    return titled(task) if task in TASKS else term(spaced(task))


def board_sentences(table: pd.DataFrame) -> Iterator[str]:
    """Say of each task which method has the lowest error, and which cannot be told apart from it."""
    for task, timeframe, rows in _groups(table):
        first = rows.iloc[0]
        names = [_method(name) for name in rows.loc[rows["is_among_best"], "method"]]
        best = say(
            "{task}, {timeframe}: {name} has the lowest error, {comparison}.",
            task=_title(task),
            timeframe=timeframe,
            name=_method(first["method"]),
            comparison=relative_to_naive(float(first["relative_mae"])),
        )
        sure = say(
            "{n} of {num} methods cannot be told apart from the best: {names}.",
            n=len(names),
            num=len(rows),
            names=say(", ").join(names),
        )
        yield f"{best} {sure}"


def _method(name: str) -> str:
    """Write the name of a method: of a baseline as elsewhere, of anything else as it is."""
    return baseline_in_words(name, has_key=True) if name in BASELINES else name


def board_tables(table: pd.DataFrame) -> Iterator[Table]:
    """Yield a table for a terminal for each task and timeframe, without p-values."""
    for task, timeframe, rows in _groups(table):
        shown = comparison_table(rows, is_short=True)
        yield Table(shown.columns, shown.rows, f"{_title(task)}, {timeframe}: {shown.title}")


def board_markdown(table: pd.DataFrame) -> str:
    """Return a heading and a table in Markdown for each task and timeframe of a board."""
    parts = []
    for task, timeframe, rows in _groups(table):
        shown = comparison_table(rows)
        parts.append(f"### {_title(task)}, {timeframe}\n\n{shown.title}.\n\n{shown.markdown()}")
    return "\n\n".join(parts)


def comparison_table(rows: pd.DataFrame, *, is_short: bool = False) -> Table:
    """Return the rows of one task and timeframe for people; a short table has no p-values."""
    best = _method(rows["best_baseline"].iloc[0])
    header = [say("method")]
    endings = []
    for name, ending in {_method(NAIVE): "", best: "_to_best"}.items():
        endings.append(ending)
        header += [f"÷ {name}", say("95 % interval"), *([] if is_short else ["p"]), say("series lower")]
    lines = []
    for row in rows.to_dict("records"):
        cells = [_method(row["method"]) + (f" {MARK}" if row["is_among_best"] else "")]
        for ending in endings:
            ratio, interval, p, share = _cells(row, ending)
            cells += [ratio, interval, *([] if is_short else [p]), share]
        lines.append(cells)
    first = rows.iloc[0]
    title = say(
        "{windows} windows of {num} series, {steps} steps ahead",
        windows=f"{first['num_windows']:,}",
        num=first["num_series"],
        steps=first["num_steps"],
    )
    return Table(header, lines, title)


def _cells(row: Mapping[Any, Any], ending: str) -> list[str]:
    """Write a ratio, its interval, its p-value and in how many series the error is lower."""
    ends = [row[f"{name}{ending}"] for name in ("low_95", "high_95")]
    interval = ABSENT if any(map(pd.isna, ends)) else between(map(number, ends))
    p = row[f"p_value{ending}"]
    num_lower = round(row[f"win_rate{ending}"] * row["num_series"])
    share = say("{best} of {run}", best=num_lower, run=row["num_series"])
    return [number(row[f"relative_mae{ending}"]), interval, p_value(None if pd.isna(p) else p), share]


def _chart(rows: pd.DataFrame, scores: pd.DataFrame, methods: pd.DataFrame) -> tuple[Any, str]:
    """Draw the error of each method in each series, relative to naive's."""
    task, timeframe = rows[["task", "timeframe"]].iloc[0]
    of_task = scores[(scores["task"] == task) & scores["unique_id"].str.endswith(f"-{timeframe}")]
    dots = {}
    colours = {}
    for name in rows["method"]:
        if name != NAIVE:
            of_method = of_task[of_task["method"] == name].dropna(subset="relative_mae")
            pairs = zip(of_method["unique_id"], of_method["relative_mae"], strict=True)
            dots[_method(name)] = [Dot(series, change_pct(ratio)) for series, ratio in pairs]
            colours[_method(name)] = "other" if methods.loc[name, "kind"] == "baseline" else "blue"
    label = say(
        "Error compared with the naive forecast's, difference in %: a dot is a series, a diamond the median. "
        "Grey: baselines."
    )
    return spread_figure(dots, colours, is_tested=False), label


def methods_table(methods: pd.DataFrame) -> Table:
    """Return what is known of the methods for people."""
    header = [say("method"), say("kind"), say("trained until"), say("licence of the weights")]
    header.append(say("could know these candles"))
    lines = []
    for name, row in methods.iterrows():
        facts = [row["kind"], row["trained_until"], row["licence"], term(row["could_know_candles"])]
        lines.append([_method(str(name)), *(str(fact) or ABSENT for fact in facts)])
    return Table(header, lines)


def board_card(table: pd.DataFrame, methods: pd.DataFrame, *, is_demo: bool = False) -> str:
    """Return the card of the data set in Markdown, with the metadata that the Hub reads at its top."""
    return packaged("v8.publish.report", "board.md").format(
        tables=board_markdown(table),
        demo=f"**{DEMO_WARNING}**\n\n" if is_demo else "",
        mark=MARK,
        methods=methods_table(methods).markdown(),
    )
