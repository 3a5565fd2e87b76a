"""The report of a run as one self-contained page, `report.html`, and the leaderboard of any page.

All text passes through `v8.reports.markup`, which escapes it and makes the page. A series
has a folded section: forecasts, errors by horizon, training, candles, time.

A section with its charts is 50 to 100 kB, so a page of a thousand would be 80 MB. Beyond `MOST_IN_ONE_FILE`
series the page holds a line each, and a section comes from its file when its line is opened, such as
`report/series/BTCUSDT-15m.js`. A page that was opened from a disk may not read files, but it may run one that
its own script names: so each file is a call of that script's `v8Section` with the name and the markup as two
texts, and says nothing else but, in its first line, what it was drawn from; one that is up to date is not
drawn again.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from v8.artifacts.metadata import HISTORY_FILE, METADATA_FILE
from v8.artifacts.run_folder import RunRecord
from v8.artifacts.series_artifact import FORECASTS_FILE, ForecastSample
from v8.baselines.baselines import BASELINES, NAIVE, called
from v8.evaluation.evaluation import MODEL, Evaluation, QuantileEvaluation
from v8.evaluation.importance import Importance, importance_rows
from v8.evaluation.leaderboard import (
    LeaderboardRow,
    SeriesResult,
    TrainingHistory,
    compared,
    median,
    rank_results,
)
from v8.evaluation.metrics import StepDirection
from v8.evaluation.significance import ALPHA, BEATS, LOSES, ComparisonResult
from v8.language import chosen, say, term
from v8.quantile_levels import interval_names
from v8.records import MAX_FILE_BYTES
from v8.reports import figures
from v8.reports.markup import Html, document, element, facts, filled, folded, join, plot, shown_table
from v8.reports.verdict import in_words, opening, titled, verdict
from v8.storage import digest_bytes, open_given, read_given, write_text
from v8.tasks import TASKS
from v8.version import VERSION
from v8.wording import ABSENT, Table, count, duration, epochs, number, p_value, percent, price, spaced

if TYPE_CHECKING:
    from v8.comparison.page import Comparison

MARK: Final = "●"
"""Stands beside a number that differs from 1 by more than chance."""

_SPAN_KEYS: Final = ("first_open", "last_open", "rows", "num_windows")
"""What the table of spans shows of each, in the order of its columns."""

SECTIONS_FOLDER: Final = "report/series"
"""Beside `report.html`."""

MOST_IN_ONE_FILE: Final = 40
"""A page of so many series, those of the default universe, is one file that can be sent as it is."""

_MAX_STAMP: Final = 200
"""Letters of the first line, and more."""


def run_page(run: RunRecord, results: Sequence[SeriesResult], sections: Mapping[str, Html]) -> Html:
    """Return the whole page of a run and its finished series, in any order.

    Sections are each one's `series_section`, or its `series_line` where the section lies in a file.
    """
    rows = rank_results(results)
    reasons = Table(["Series", "Reason"], sorted(run.reasons.items()), is_prose=True)
    unevaluated = element("p", say("None was to be evaluated: nothing is known of their errors."))
    content = filled(
        "v8.reports",
        "run.html",
        opening=_opening(rows) if rows else "",
        done=len(rows) if run.is_evaluated else len(run.done),
        num=len(run.series),
        failed=say(" {num} failed.", num=len(run.reasons)) if run.reasons else "",
        unevaluated="" if run.is_evaluated else unevaluated,
        failures=join([element("h2", say("Failed series")), shown_table(reasons)]) if run.reasons else "",
        leaderboard=_leaderboard(rows, sections) if rows else "",
        provenance=provenance(run),
    )
    title = f"v8: {run.profile_name}"
    heading = say("Run of profile {name}", name=run.profile_name)
    is_demo = not run.is_publishable or any(result.is_demo for result in results)
    return document(title, heading, [content], is_demo=is_demo, has_files=is_in_files(run))


def is_in_files(run: RunRecord) -> bool:
    """Tell whether the sections of a run lie in files of their own."""
    return len(run.series) > MOST_IN_ONE_FILE


def _opening(rows: Sequence[LeaderboardRow]) -> Html:
    """Say what series come to, and draw their errors beside those of nothing changed and the best formula."""
    drawn = join(plot(chart, chart.title) for chart in figures.verdict_figures(rows))
    told = opening(*verdict(rows))
    return filled("v8.reports", "opening.html", verdict=told, charts=drawn, alpha=percent(ALPHA, 0))


def provenance(made: "RunRecord | Comparison") -> Html:
    """List where the numbers of a page come from."""
    digest = [("profile digest", made.profile_digest)] if isinstance(made, RunRecord) else []
    return facts(
        [
            ("candle source", made.source),
            ("started", made.created_at),
            ("command", made.command),
            *digest,
            *((say("version of {name}", name=name), str(value)) for name, value in made.versions.items()),
            *((f"machine: {name.replace('_', ' ')}", str(value)) for name, value in made.machine.items()),
        ]
    )


def _leaderboard(rows: Sequence[LeaderboardRow], sections: Mapping[str, Html]) -> Html:
    """Show one line a series, the median first, then every baseline explained, then the sections.

    Verdicts and p-values are found by a pointer.
    """
    every = compared(rows)
    spans = Counter(TASKS[task].title for task, _ in every)
    head = ["Series", *(f"× {spaced(name)}" for _, name in every), "direction, step 1", "best epoch", "time"]
    best, run = (median(getattr(row, name) for row in rows) for name in ("best_epoch", "epochs_run"))
    middle = [number(median(one.relative_mae for one in those.values())) for those in every.values()]
    middle += [percent(median(row.hit_rate for row in rows)), epochs(best or 0, run or 0)]
    lines = [[say("median"), *middle, duration(median(row.total_seconds for row in rows))]]
    for row in rows:
        cells: list[str] = [element("a", row.series, href=f"#{row.series}")]
        for (_, name), those in every.items():
            one = those.get(row.series)
            if one:
                cells.append(marked(one.relative_mae, one.outcome, name, one.corrected_p_value))
            else:
                cells.append(say("no such task") if name == called(NAIVE) else ABSENT)
        cells.append(element("span", percent(row.hit_rate), title=f"95 %: {_ends(row.hit_rate_95)}"))
        lines.append([*cells, epochs(row.best_epoch, row.epochs_run), duration(row.total_seconds)])
    groups = [("", 1), *spans.items(), ("", 3)]
    shown = {name for row in rows for errors in row.evaluation.errors.values() for name in errors}
    formulas = ((spaced(name), term(about.sentence)) for name, about in BASELINES.items() if name in shown)
    return filled(
        "v8.reports",
        "leaderboard.html",
        table=shown_table(Table(head, lines), groups=groups, class_="wrapped"),
        mark=MARK,
        num=len(rows),
        formulas=facts(formulas),
        sections=join(sections[row.series] for row in rows),
    )


def marked(multiple: float | None, outcome: ComparisonResult, name: str, p: float | None) -> Html:
    """Show a multiple, coloured and marked where it is better or worse and no luck; a pointer finds p."""
    style = {BEATS: "better", LOSES: "worse"}.get(outcome)
    mark = element("span", MARK if style else "", class_="mark")
    said = say("{told}, corrected p {p}", told=in_words(outcome, name), p=p_value(p))
    return element("span", number(multiple), mark, class_=style, title=said)


def _ends(interval: tuple[float, float] | None) -> str:
    return ABSENT if interval is None else " – ".join(map(percent, interval))


def series_section(result: SeriesResult, history: TrainingHistory, sample: ForecastSample | None) -> Html:
    """Return the folded section of one series; `sample` is None beside models that were saved without."""
    return element("details", _summary(result), series_body(result, history, sample), id=result.series)


def series_line(result: SeriesResult) -> Html:
    """Return the folded section of one series whose body comes from its file when it is opened."""
    said = say("Comes from {folder} beside this page.", folder=SECTIONS_FOLDER)
    lost = say("{file} is not beside this page.", file=section_file(result.series))
    waiting = element("p", said, class_="soft far", data_lost=lost)
    file = quote(section_file(result.series))
    return element("details", _summary(result), waiting, id=result.series, data_file=file)


def _summary(result: SeriesResult) -> Html:
    """Compare one series with naive and with the baseline that is best on this series alone."""
    evaluation = result.evaluation
    told = []
    for task in evaluation.tasks:
        those = (evaluation.against(task, one) for one in (NAIVE, evaluation.best_baseline(task)))
        said = dict.fromkeys(in_words(one.outcome, one.name) for one in those)
        told.append(f"{titled(task)} {', '.join(said)}")
    return element("summary", result.series, element("span", "; ".join(told)))


def series_body(result: SeriesResult, history: TrainingHistory, sample: ForecastSample | None) -> Html:
    """Return what is in the section of one series, drawn from what `series_section` gets."""
    evaluation = result.evaluation
    charts = (
        plot(
            figures.error_figure(evaluation, task),
            say("{task}: mean absolute error ÷ naive's", task=titled(task)),
        )
        for task in evaluation.tasks
    )
    # What did not occur among the candles is left out: zeros, empty lists and None.
    found = ((spaced(name), _shown(value)) for name, value in result.candle_report.items() if value)
    times = (result.seconds | {"all": result.total_seconds}).items()
    return filled(
        "v8.reports",
        "series.html",
        forecasts=_forecasts(sample),
        charts=join(charts),
        errors=join(each for task in evaluation.errors for each in _error_tables(evaluation, task)),
        intervals=_intervals(result.quantiles) if result.quantiles else "",
        importance=_importance(result.importance) if result.importance else "",
        direction=_direction(evaluation),
        training=join(_training(result, history)),
        spans=join(_split(result.split)),
        source=result.source,
        candles=facts(found),
        times=facts((spaced(stage), duration(took)) for stage, took in times),
    )


def _forecasts(sample: ForecastSample | None) -> Html:
    if sample is None:
        return element("p", say("No forecasts are kept beside this model."))
    num_steps = len(next(iter(sample.issued[0].values.values())))
    spans = say(
        "the forecast low to high. It is no interval: nothing says how often the actual values stay within."
    )
    names = interval_names(sample.levels)
    if names:
        told = say(" and ").join(names)
        spans = say(
            "the {told} interval of the close: so often should the actual values be in it.", told=told
        )
    note = say(
        "Newest {num} candles of the test span, times in UTC. A forecast was issued {every}; each "
        "shaded area opens at the close it knew last and spans {spans}",
        num=len(sample.open_time_s),
        every=say("every bar") if num_steps == 1 else say("every {num} bars", num=num_steps),
        spans=spans,
    )
    return plot(figures.sample_figure(sample), note)


def _error_tables(evaluation: Evaluation, task: str) -> Iterator[Html]:
    """Show the errors of the model, naive and the best baseline, and fold away those of all others."""
    units = ("of last close", "price") if TASKS[task].is_price else ("in %", "as is")
    head = ["", *(f"{kind} {unit}" for unit in units for kind in ("MAE", "RMSE"))]
    head += ["model's MAE ÷ its", "p of it", "model's RMSE ÷ its"]
    rows = {}
    for name in (MODEL, *evaluation.tasks[task].significance):
        errors = evaluation.errors[task][name]
        beside = [ABSENT] * 3
        if name != MODEL:
            absolute = number(evaluation.relative_error(task, "mae", name))
            squared = number(evaluation.relative_error(task, "rmse", name))
            beside = [absolute, p_value(evaluation.against(task, name).p_value), squared]
        cells = [percent(grid.overall, 4) for grid in (errors.mae_return, errors.rmse_return)]
        cells += [price(grid.overall) for grid in (errors.mae_price, errors.rmse_price)]
        rows[name] = [term(spaced(name)), *cells, *beside]
    columns = ", ".join(term(spaced(name)) for name in TASKS[task].columns)
    title = say("{task}, over all steps and {columns}", task=titled(task), columns=columns)
    yield from _few_first(Table(head, (), title), rows, evaluation.best_baseline(task))


def _few_first(table: Table, rows: Mapping[str, list[str]], best: str) -> Iterator[Html]:
    """Show what stands beside model, naive and the best baseline, and fold away the rows of all others."""
    few = [rows[name] for name in dict.fromkeys((MODEL, NAIVE, best)) if name in rows]
    yield shown_table(Table(table.columns, few, table.title))
    others = [row for row in rows.values() if row not in few]
    if others:
        said = say("{num} more formulas", num=len(others))
        yield folded(said, shown_table(Table(table.columns, others)))


def _intervals(evaluated: QuantileEvaluation) -> Html:
    """Show how the quantiles of one series did, beside those of the baselines."""
    names = interval_names(evaluated.levels)
    within = [say("within {interval}", interval=name) for name in names]
    widths = [say("width of {interval}", interval=name) for name in names]
    each = [title for pair in zip(within, widths, strict=True) for title in pair]
    head = ["", "CRPS", *each, "model's CRPS ÷ its", "p of it"]
    tables = []
    for task, about in evaluated.tasks.items():
        title = titled(task)
        rows = []
        for name, errors in about.errors.items():
            cells = [term(spaced(name)), percent(errors.crps, 4)]
            for place in range(len(names)):
                cells += [percent(errors.mean_coverage(place)), percent(errors.mean_width(place), 3)]
            test = about.significance.get(name)
            told = [number(about.relative_error(name)), p_value(test.p_value)] if test else [ABSENT] * 2
            rows.append([*cells, *told])
        tables.append(shown_table(Table(head, rows, say("{task}, over all steps", task=title))))
    return filled("v8.reports", "intervals.html", tables=join(tables))


def _importance(found: Importance) -> Html:
    """Show how much more a model errs without each kind of inputs."""
    rows = [[term(kind), *cells] for kind, *cells in importance_rows([found])]
    table = Table(["inputs", *map(titled, next(iter(found.values())))], rows)
    return filled("v8.reports", "importance.html", table=shown_table(table))


def _direction(evaluation: Evaluation) -> Html:
    head = ["step", "hit rate", "95 %", "always up", "windows counted"]
    head += ["worth, independent", "actual values flat", "forecast flat"]
    return shown_table(Table(head, map(_direction_cells, evaluation.direction)))


def _direction_cells(step: StepDirection) -> list[str]:
    always_up = step.num_rises / step.num_counted if step.num_counted else None
    counts = (step.num_counted, round(step.num_effective), step.num_flat_actual, step.num_flat_forecast)
    shares = [percent(step.rate), _ends(step.interval), percent(always_up)]
    return [str(step.step), *shares, *map(count, counts)]


def _training(result: SeriesResult, history: TrainingHistory) -> Iterator[Html]:
    best = result.best_epoch
    run = result.epochs_run
    kept = say("Weights of epoch {best} of {run} were kept.", best=best, run=run)
    if run == 0:
        kept = say("There is no network: the formula was fitted to the train span.")
    elif best == 0:
        kept = say("None of {run} epochs beat the untrained network, which was kept.", run=run)
    yield element("p", kept)
    if history:
        curve = figures.learning_figure(history, best)
        yield plot(curve, say("Loss per epoch and the epoch kept (dashed)"))


def _split(split: Mapping[str, Any]) -> Iterator[Html]:
    spans = {name: span for name, span in split.items() if isinstance(span, Mapping)}
    rows = [[term(name), *(_shown(span.get(key)) for key in _SPAN_KEYS)] for name, span in spans.items()]
    yield shown_table(Table(["span", *map(spaced, _SPAN_KEYS)], rows))
    yield facts((spaced(name), _shown(value)) for name, value in split.items() if name not in spans)


def _shown(value: object) -> str:
    """Write a JSON value for people, nested ones on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{term(spaced(str(name)))} {_shown(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_shown(item) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return count(value) if isinstance(value, int) else f"{value:.4g}"
    return ABSENT if value is None else term(str(value))


def section_file(series: str) -> str:
    """Return where the section of a series lies, beside the page.

    >>> section_file("BTCUSDT-15m")
    'report/series/BTCUSDT-15m.js'
    """
    return f"{SECTIONS_FOLDER}/{series}.js"


def write_section(run: Path, series: str, served: Path, draw: Callable[[], Html], *, is_anew: bool) -> None:
    """Write the section of a series beside the page of a run, atomically.

    It is drawn anew if asked, or if it was drawn from other files than lie in `served`, the model shown.
    """
    parts = [VERSION.encode("ascii"), chosen().encode("ascii")]
    for name in (METADATA_FILE, HISTORY_FILE, FORECASTS_FILE):
        with suppress(FileNotFoundError):  # older models have no forecasts beside them
            parts.append(read_given(served / name, MAX_FILE_BYTES))
    file = run / section_file(series)
    stamp = f"// drawn from {digest_bytes(*parts)}"
    if not is_anew:
        with suppress(OSError), open_given(file) as stream:
            if stream.readline(_MAX_STAMP) == f"{stamp}\n".encode():
                return
    # ASCII only, and nothing in it that ends a script.
    name, markup = (json.dumps(text).replace("<", "\\u003c") for text in (series, draw()))
    write_text(file, f"{stamp}\nv8Section({name}, {markup});\n")
