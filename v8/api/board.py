"""The board that `v8.evaluate` returns: forecasts of any methods for the same candles, and their errors.

A saved board is a data set: everyone who has it can compute its numbers again, and put their own forecasts
beside those that are there, without candles and without models. Its page and its card are written from the
tables that the user sees.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from v8.api.arguments import PublicNames, in_python
from v8.base.errors import ArgumentError, ArtifactError, listed
from v8.base.storage import FORECASTS_KEY, is_own, packaged, write_text, write_with
from v8.base.wording import ABSENT, Table, between, frame_csv, language, number, p_value, say, spaced, term
from v8.data.market.series import iso
from v8.model.baselines.baselines import BASELINES, NAIVE
from v8.model.evaluation.board import (
    KEYS,
    Comparison,
    SeriesForecasts,
    compare,
    comparison_rows,
    in_windows,
    series_rows,
)
from v8.profile.tasks import TASKS
from v8.publish.report.charts import plot
from v8.publish.report.figures import Dot, change_pct, spread_figure
from v8.publish.report.markup import DEMO_WARNING, Html, document, element, folded, shown_table
from v8.publish.report.verdict import baseline_in_words, relative_to_naive, titled, verdict_box

PAGE_FILE: Final = "board.html"
FORECASTS_FILE: Final = "forecasts.parquet"
TABLE_FILE: Final = "table.csv"
SCORES_FILE: Final = "scores.csv"
METHODS_FILE: Final = "methods.csv"
CARD_FILE: Final = "README.md"

MARK: Final = "●"
"""Follows the methods that cannot be told apart from the best."""

_ORIGIN_KEY: Final = "v8_board"
"""Key of the metadata of the Parquet file, for a `BoardOrigin` in JSON."""

_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_FACTS: Final = ("kind", "trained_until", "licence", "could_know_candles")


@dataclass(frozen=True)
class Method:
    """What is known of a method besides its forecasts."""

    kind: str
    trained_until_s: int | None = None  # when its last training candle closed, seconds since the epoch
    licence: str = ""  # of its weights
    could_know_candles: bool | None = None  # whether it may have been trained on the evaluated candles

    def later(self, other: "Method | None") -> "Method":
        """Return it with the later one of two times of training."""
        if other is None or other.trained_until_s is None:
            return self
        return replace(self, trained_until_s=max(other.trained_until_s, self.trained_until_s or 0))

    def with_facts(self, name: str, facts: Any) -> "Method":
        """Return it with what the user says of it.

        Raises:
            ArgumentError: If that is no mapping from `_FACTS` to texts, a date, and for `could_know_candles`
                True, False or None.
        """
        if not isinstance(facts, Mapping) or not {*facts} <= {*_FACTS}:
            raise _wrong_fact(name, f"is a mapping with keys among {', '.join(_FACTS)}", repr(facts)[:60])
        content = dict(facts)
        trained_until = content.pop("trained_until", None)
        if trained_until is not None:
            rule = "has a day such as 2024-12-31 as trained_until"
            refused = _wrong_fact(name, rule, repr(trained_until)[:60])
            # Of "June" or 2024 pandas would make a day, long before the model was trained.
            if not isinstance(trained_until, date) and not _DAY.match(str(trained_until)):
                raise refused
            try:
                content["trained_until_s"] = int(pd.Timestamp(trained_until).timestamp())
            except (TypeError, ValueError) as error:
                raise refused from error
        for key in ("kind", "licence"):
            if not isinstance(content.get(key, ""), str):
                raise _wrong_fact(name, f"has a text as {key}", repr(content[key])[:60])
        knew = content.get("could_know_candles")
        if knew is not None and not isinstance(knew, bool):
            raise _wrong_fact(name, "has True, False or None as could_know_candles", repr(knew)[:60])
        return replace(self, **content)

    def knew(self, first_close_s: int) -> str:
        """Say whether it may have been trained on candles from a moment on: "no", "yes" or "unknown"."""
        if self.could_know_candles is not None:
            return "yes" if self.could_know_candles else "no"
        if self.trained_until_s is None:
            return "unknown"
        return "yes" if self.trained_until_s > first_close_s else "no"


def _wrong_fact(name: str, rule: str, got: str) -> ArgumentError:
    return ArgumentError(
        where=f"v8.evaluate, about={name}", rule=rule, got=got, fix="help(v8.evaluate) says what it may hold"
    )


@dataclass(frozen=True)
class BoardOrigin:
    """What the forecasts of a board do not say; it is stored in the metadata of their file."""

    best: Mapping[str, str]  # the best baseline by task
    is_demo: bool  # whether the market was simulated


class Board(PublicNames):
    """Forecasts of several methods for the same candles, with the naive forecast and the best baseline.

    `v8.evaluate` returns one, `Board.load` reads one that was saved.

    >>> import v8
    >>> board = v8.Board.load("boards/mine")  # doctest: +SKIP
    >>> board.add("theirs", frame).table  # doctest: +SKIP
    """

    def __init__(
        self, by_series: Sequence[SeriesForecasts], described: Mapping[str, Method], origin: BoardOrigin
    ) -> None:
        self._by_series = by_series
        self._described = described
        self._origin = origin

    @cached_property
    def _comparisons(self) -> list[Comparison]:
        return list(compare(self._by_series, self._origin.best))

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each task, timeframe and method, the lowest error first.

        * `task`: text, the task or the column; `timeframe`, `method`: text.
        * `num_series`, `num_windows`, `num_steps`: what all methods of the task share, int64.
        * `mae`: mean absolute error in returns, unitless, mean over the series.
        * `relative_mae`: divided by the naive forecast's, median over the series; below 1 is better.
        * `low_95`, `high_95`: its 95 % interval by a block bootstrap; NaN with too few windows.
        * `p_value`: of the difference (Diebold-Mariano), 0 to 1, corrected for all rows; NaN likewise.
        * `win_rate`: share of the series with a lower error, 0 to 1.
        * `best_baseline`, and the same compared with it: `relative_mae_to_best`, `low_95_to_best` and so on.
        * `is_among_best`: whether it cannot be told apart from the best method (model confidence set).
        """
        return comparison_rows(self._comparisons)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """A row for each series, task and method: `mae`, `relative_mae`, `relative_mae_to_best`."""
        return series_rows(self._comparisons)

    @property
    def forecasts(self) -> pd.DataFrame:
        """Every forecast, a row for each bar ahead, in the layout of Nixtla's `cross_validation`.

        * `unique_id`: the series, text.
        * `ds`: when the bar opens; `cutoff`: when the newest known candle opened, datetime64 in UTC.
        * `step`: bars ahead, from 1, int64; `column`: what is forecast, text.
        * `y`: the actual value in the unit of the column (prices: quote currency).
        * `scale`: what an error is divided by to be one in returns: the last close, or 1.
        * a column for each method, in the unit of `y`; NaN where it has no forecast.
        """
        return pd.concat([each.to_frame() for each in self._by_series], ignore_index=True)

    @property
    def methods(self) -> pd.DataFrame:
        """What is known of each method, by its name.

        * `kind`: text. `trained_until`: when its last training candle closed, ISO 8601, or empty if unknown.
        * `licence`: of its weights, empty if unknown.
        * `could_know_candles`: "yes", "no" or "unknown": whether it may have been trained on the evaluated
          candles.
        """
        first_close_s = min(int(each.cutoff_s[0]) + each.series.bar_s for each in self._by_series)
        rows: dict[Any, list[str]] = {}
        for name in dict.fromkeys(self.table["method"]):
            method = self._described[name]
            until_s = method.trained_until_s
            rows[name] = [
                method.kind,
                "" if until_s is None else iso(until_s),
                method.licence,
                method.knew(first_close_s),
            ]
        return pd.DataFrame.from_dict(rows, orient="index", columns=list(_FACTS)).rename_axis("method")

    @in_python
    def add(self, name: str, frame: pd.DataFrame, about: Mapping[str, Any] | None = None) -> "Board":
        """Return the board with the forecasts of one more method, without candles.

        All methods are then compared on the windows and steps that this one has, too (`num_windows`).

        Args:
            name: The name of the method.
            frame: Its forecasts, as for `v8.evaluate`; of its columns, one is neither `unique_id`, `ds`,
                `cutoff`, `step`, `column`, `y` nor `scale`.
            about: What is known of it: `kind`, `trained_until`, `licence`, `could_know_candles`.

        Raises:
            ArgumentError: If the name is taken, or the frame has another layout, or shares no window.
        """
        if name in self._described:
            raise ArgumentError(
                where=f"Board.add {name}",
                rule="adds a method under a name of its own",
                got=f"a name of the board: {listed([*self._described])}",
                fix="Choose another name",
            )
        columns = [str(column) for column in frame if column not in KEYS]
        needed = ["unique_id", "ds", "cutoff", *(["column"] if len(self._by_series[0].actual) > 1 else [])]
        if len(columns) != 1 or not {*needed} <= {*frame}:
            raise ArgumentError(
                where=f"Board.add {name}",
                rule=f"has the columns {', '.join(needed)} and one other, with the forecasts",
                got=f"the columns {listed([str(column) for column in frame])}",
                fix="Lay it out like Board.forecasts",
            )
        by_series = []
        for each in self._by_series:
            rows = frame[frame["unique_id"].astype(str) == str(each.series)]
            added = in_windows(rows, {columns[0]: name}, each)
            by_series.append(replace(each, methods={**each.methods, **added}))
        method = Method("forecasts of another program").with_facts(name, about or {})
        board = Board(by_series, {**self._described, name: method}, self._origin)
        if name not in {*board.table["method"]}:
            raise ArgumentError(
                where=f"Board.add {name}",
                rule="forecasts all columns of a task of the board in some window",
                got="none",
                fix="Board.forecasts has the windows and columns",
            )
        return board

    @in_python
    def save(self, folder: str | Path) -> list[Path]:
        """Write the board as a page and as a data set with its card, and return the files.

        Args:
            folder: A new or empty folder, or one that holds a board, which is replaced.

        Raises:
            ArgumentError: If the folder holds anything else.
        """
        place = Path(folder)
        require_board_folder(place, "Board.save, folder=")

        def write_parquet(file: Path) -> None:
            content = pa.Table.from_pandas(self.forecasts, preserve_index=False)
            notes = {FORECASTS_KEY: "1", _ORIGIN_KEY: json.dumps(asdict(self._origin))}
            content = content.replace_schema_metadata({**content.schema.metadata, **notes})
            parquet.write_table(content, file, compression="zstd")

        write_with(place / FORECASTS_FILE, write_parquet)
        tables = {TABLE_FILE: self.table, SCORES_FILE: self.scores, METHODS_FILE: self.methods.reset_index()}
        for name, table in tables.items():
            write_text(place / name, frame_csv(table))
        write_text(place / CARD_FILE, board_card(self.table, self.methods, is_demo=self._origin.is_demo))
        with language():
            write_text(
                place / PAGE_FILE,
                board_page(self.table, self.scores, self.methods, is_demo=self._origin.is_demo),
            )
        return [place / name for name in (PAGE_FILE, CARD_FILE, FORECASTS_FILE, *tables)]

    @classmethod
    @in_python
    def load(cls, folder: str | Path) -> "Board":
        """Read a board that was saved; its numbers are computed again from its forecasts.

        Raises:
            ArtifactError: If the folder holds none, or a damaged one.
        """
        place = Path(folder)
        try:
            content = parquet.read_table(place / FORECASTS_FILE)
            origin = BoardOrigin(**json.loads(content.schema.metadata[_ORIGIN_KEY.encode()]))
            frame = content.to_pandas()
            facts = pd.read_csv(place / METHODS_FILE, index_col="method", keep_default_na=False, dtype=str)
            by_series = [
                SeriesForecasts.from_frame(rows) for _, rows in frame.groupby("unique_id", sort=False)
            ]
            described = {str(name): _read_method(row) for name, row in facts.iterrows()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                where=str(place),
                rule=f"holds a board: {FORECASTS_FILE} and {METHODS_FILE} as Board.save writes them",
                got=f"{type(error).__name__}: {error}"[:200],
                fix="Save the board again",
            ) from error
        return cls(by_series, described, origin)

    def __repr__(self) -> str:
        table = self.table
        return f"<Board of {table['method'].nunique()} methods, {len(self._by_series)} series>"

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        return str(self.table.to_html())


def require_board_folder(folder: Path, parameter: str) -> None:
    """Refuse a folder, named by a parameter, that holds anything but a board."""
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free and not is_own(folder / FORECASTS_FILE):
        raise ArgumentError(
            where=parameter,
            rule="is a new or empty folder, or one that holds a board",
            got=f"{folder}, which holds other files" if folder.is_dir() else f"the file {folder}",
            fix="Choose another folder",
        )


def _read_method(row: "pd.Series[Any]") -> Method:
    until = row["trained_until"]
    knew = row["could_know_candles"]
    return Method(
        kind=row["kind"],
        trained_until_s=int(pd.Timestamp(until).timestamp()) if until else None,
        licence=row["licence"],
        could_know_candles=None if knew == "unknown" else knew == "yes",
    )


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
