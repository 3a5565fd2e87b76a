"""The folded section of a series on the report: forecasts, errors by step, training, candles, time.

A section with its charts takes 50 to 100 kB, so a page of a thousand series would take 80 MB. Beyond
`MOST_IN_ONE_FILE` series the page holds one line for each, and the section is loaded from its own file, such
as `report/series/BTCUSDT-15m.js`, when the line is opened. A browser that shows a page from the disk may not
read files, but it may run a script that the page's own script names. So each file is a script that calls
`v8Section`, a function of the page's own script, with two strings, the name of the series and the markup. The
first line of the file holds a digest of what it was drawn from; a file that is up to date is not drawn again.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from v8.base.records import MAX_FILE_BYTES, open_given, read_given
from v8.base.storage import digest_bytes, write_text
from v8.base.version import VERSION
from v8.base.wording import (
    ABSENT,
    Table,
    chosen,
    count,
    duration,
    moment,
    number,
    p_value,
    percent,
    say,
    spaced,
    term,
)
from v8.data.windows import SPANS, WindowCounts
from v8.forecaster.metadata import HISTORY_FILE, METADATA_FILE
from v8.forecaster.series_artifact import FORECASTS_FILE, ForecastSample
from v8.model.baselines.paths import RANGE_SHARE, RangeCoverage
from v8.model.evaluation.evaluation import MODEL, EvaluatedTask, Evaluation, QuantileEvaluation
from v8.model.evaluation.leaderboard import (
    LeaderboardRow,
    SeriesResult,
    TrainingHistory,
)
from v8.model.evaluation.metrics import Importance, StepDirection, importance_rows
from v8.profile.columns import interval_names, percent_of
from v8.profile.tasks import TASKS
from v8.publish.report import figures
from v8.publish.report.charts import candle_chart, plot, sample_note
from v8.publish.report.markup import Html, element, facts, filled, join, script_json, shown_table
from v8.publish.report.verdict import (
    baseline_in_words,
    in_words,
    source_in_words,
    titled,
    verdict_in_brief,
)

_SPAN_TIMES: Final = ("first_open", "last_open")


_SPAN_COUNTS: Final = ("rows", "num_windows")
"""Columns of the table of spans, as keys of `metadata.json`."""


_WINDOW_COUNTS: Final = ("num_windows", "num_windows_without_holes")


SECTIONS_FOLDER: Final = "report/series"
"""Where the files of sections lie, relative to the folder of `report.html`."""


_MAX_STAMP: Final = 200
"""Characters read of the first line of a section's file; it is shorter."""


def ends_in_words(interval: tuple[float, float] | None) -> str:
    """Write the ends of an interval of shares."""
    return ABSENT if interval is None else " – ".join(map(percent, interval))


def series_section(row: LeaderboardRow, body: Html | None) -> Html:
    """Return the folded section of one series.

    `body` is its `series_body`; None where that is loaded from its file when the section is opened.
    """
    if body is not None:
        return element("details", _summary(row), body, id=row.series)
    return _series_line(row)


def _series_line(result: LeaderboardRow) -> Html:
    file = section_file(result.series)
    waiting = say("Comes from {folder} next to this page.", folder=SECTIONS_FOLDER)
    missing = say("{file} is not next to this page.", file=file)
    body = element("p", waiting, class_="soft far", data_lost=missing)
    return element("details", _summary(result), body, id=result.series, data_file=quote(file))


def _summary(row: LeaderboardRow) -> Html:
    """Give the verdict on one series in the words of its tile; a pointer shows those on each task."""
    summaries = []
    for task, of_task in row.tasks.items():
        outcomes = [in_words(comparison.outcome, comparison.name) for comparison in of_task.comparisons]
        # Translators: what is forecast, and how the model compares with baselines: "Candles: beats naive".
        summaries.append(
            say("{task}: {outcomes}", task=titled(task), outcomes=say(", ").join(dict.fromkeys(outcomes)))
        )
    text, style = verdict_in_brief(row)
    # Translators: stands between the parts of a list.
    return element(
        "summary", row.series, element("span", text, class_=style, title=say("; ").join(summaries))
    )


def series_body(result: SeriesResult, history: TrainingHistory, sample: ForecastSample | None) -> Html:
    """Return the content of the section of one series.

    `sample` is None where a model was saved without forecasts.
    """
    evaluation = result.evaluation
    charts = []
    tables: list[Html] = []
    for task in evaluation.tasks:
        label = say("{task}: mean absolute error ÷ naive's", task=titled(task))
        charts.append(plot(figures.error_figure(evaluation, task), label))
    for task in evaluation.errors:
        tables += _error_tables(evaluation, task)
    # What did not occur among the candles is left out: zeros, empty lists and None.
    candles = [(spaced(name), _written(value)) for name, value in result.candle_report.items() if value]
    seconds = {**result.seconds, "all": result.total_seconds}
    times = facts((spaced(stage), duration(stage_s)) for stage, stage_s in seconds.items())
    return filled(
        "v8.publish.report",
        "series.html",
        forecasts=_forecasts(sample, is_demo=result.is_demo),
        charts=join(charts),
        errors=join(tables),
        intervals=_intervals(result.quantiles, result.price_range),
        importance=_importance(result.importance),
        direction=_direction(evaluation),
        training=join(_training(result, history)),
        spans=join(_split(result.split)),
        holes=_windows_kept(result),
        source=source_in_words(result.source),
        candles=facts(candles),
        times=times,
    )


def _forecasts(sample: ForecastSample | None, *, is_demo: bool) -> Html:
    if sample is None:
        return element("p", say("No forecasts are stored with this model."))
    return candle_chart(sample, sample_note(sample), is_demo=is_demo)


def _error_tables(evaluation: Evaluation, task: str) -> Iterator[Html]:
    """Show the errors of the model and of every baseline."""
    units = ("of last close", "price") if TASKS[task].is_price else ("in %", "as is")
    header = ["", *(f"{kind} {unit}" for unit in units for kind in ("MAE", "RMSE"))]
    header += ["model's MAE ÷ its", "p of it", "model's RMSE ÷ its"]
    if not TASKS[task].is_price:
        header.append("QLIKE")
    rows = {}
    model_errors = evaluation.errors[task][MODEL]
    decimals = _decimals(model_errors.mae_price.overall)
    for name in (MODEL, *evaluation.tasks[task].significance):
        errors = evaluation.errors[task][name]
        cells = [baseline_in_words(name)]
        cells += [percent(errors.mae_return.overall, 4), percent(errors.rmse_return.overall, 4)]
        for error in (errors.mae_price.overall, errors.rmse_price.overall):
            cells.append(f"{error:,.{decimals}f}")
        if name == MODEL:
            cells += [ABSENT, ABSENT, ABSENT]
        else:
            cells.append(number(evaluation.relative_error(task, "mae", name)))
            cells.append(p_value(evaluation.against(task, name).p_value))
            cells.append(number(evaluation.relative_error(task, "rmse", name)))
        if errors.qlike is not None:
            cells.append(number(errors.qlike.overall))
        rows[name] = cells
    columns = ", ".join(term(spaced(name)) for name in TASKS[task].columns)
    title = say("{task}, over all steps and {columns}", task=titled(task), columns=columns)
    yield shown_table(Table(header, list(rows.values()), title))
    evaluated = evaluation.tasks[task]
    if evaluated.confidence_set:
        yield element("p", _confidence_sentence(evaluated), class_="soft")
    if evaluated.lines:
        yield _lines_table(evaluated, title=say("{task}: actual values on forecasts", task=titled(task)))


def _confidence_sentence(evaluated: EvaluatedTask) -> str:
    """Say which forecasts cannot be told apart from the best one."""
    best = [baseline_in_words(name) for name in reversed(evaluated.best_forecasters)]
    return say(
        "{n} of {num} methods cannot be told apart from the best: {names}.",
        n=len(best),
        num=len(evaluated.confidence_set),
        names=say(", ").join(best),
    )


def _lines_table(evaluated: EvaluatedTask, title: str) -> Html:
    """Show the lines of actual values on the model's forecasts at the first and the last step."""
    rows = []
    for step in sorted({1, len(evaluated.lines)}):
        for column, line in zip(evaluated.columns, evaluated.lines[step - 1], strict=True):
            cells = [term(spaced(column)), str(step)]
            if line is None:
                cells += [ABSENT] * 3
            else:
                cells += [number(line.slope), percent(line.intercept, 4), percent(line.r_squared)]
            rows.append(cells)
    return shown_table(Table(["", "step", "slope", "intercept", "R²"], rows, title))


def _decimals(error: float) -> int:
    """Return how many decimals show five significant digits of an error, at least none.

    >>> _decimals(7.6392), _decimals(0.00064142), _decimals(123_456.0), _decimals(0.0)
    (4, 8, 0, 4)
    """
    return max(0, 4 - math.floor(math.log10(error))) if error > 0 else 4


def _intervals(evaluated: QuantileEvaluation | None, price_range: RangeCoverage | None) -> Html:
    """Show the errors of a series' quantiles, compared with the baselines'; empty without quantiles."""
    if evaluated is None:
        return Html()
    names = interval_names(evaluated.levels)
    header = ["", "CRPS"]
    for name in names:
        header += [say("within {interval}", interval=name), say("width of {interval}", interval=name)]
        header.append(say("score of {interval}", interval=name))
    header += ["model's CRPS ÷ its", "p of it"]
    tables = []
    for task, quantiles in evaluated.tasks.items():
        rows = []
        for name, errors in quantiles.errors.items():
            cells = [baseline_in_words(name), percent(errors.crps, 4)]
            for place in range(len(names)):
                cells += [percent(errors.mean_coverage(place)), percent(errors.mean_width(place), 3)]
                cells.append(percent(errors.score[place], 3))
            test = quantiles.significance.get(name)
            if test:
                cells += [number(quantiles.relative_error(name)), p_value(test.p_value)]
            else:
                cells += [ABSENT, ABSENT]
            rows.append(cells)
        title = say("{task}, over all steps", task=titled(task))
        tables.append(shown_table(Table(header, rows, title)))
    tables.append(_coverage_by_level(evaluated))
    label = say(
        "Actual values at or below each quantile, more than stated, in percentage points; the bars are 95 % "
        "intervals. Of calibrated quantiles all lie at 0, within chance."
    )
    pictures = [plot(figures.coverage_figure(evaluated), label)]
    label = say(
        "Histogram of the probability integral transform: how many actual values lie between neighbouring "
        "quantiles, divided by the stated share. Calibrated: 1 everywhere; high at both ends: too narrow."
    )
    pictures.append(plot(figures.pit_figure(evaluated), label))
    range_note = element("p", _range_sentence(price_range)) if price_range else ""
    return filled(
        "v8.publish.report",
        "intervals.html",
        tables=join(tables),
        charts=join(pictures),
        price_range=range_note,
    )


def _coverage_by_level(evaluated: QuantileEvaluation) -> Html:
    """Show how many actual values lie at or below each quantile of the model."""
    header = ["", *(f"{percent_of(level)} %" for level in evaluated.levels)]
    rows = []
    for task, quantiles in evaluated.tasks.items():
        errors = quantiles.errors[MODEL]
        rows.append([titled(task), *map(percent, errors.below)])
    return shown_table(Table(header, rows, say("Actual values at or below each quantile of the model")))


def _range_sentence(coverage: RangeCoverage) -> str:
    """Say how often prices stayed within the range that was forecast."""
    return say(
        "Range of prices: stated to hold all bars ahead in {stated} of all cases, it did in {share} of "
        "{num} windows of the test span, which are at least a horizon apart.",
        stated=percent(RANGE_SHARE, 0),
        share=percent(coverage.share),
        num=count(coverage.num_windows),
    )


def _importance(importance: Importance | None) -> Html:
    """Show how much larger the error is without each kind of inputs; empty where it was not measured."""
    if not importance:
        return Html()
    rows = [[term(kind), *cells] for kind, *cells in importance_rows([importance])]
    tasks = next(iter(importance.values()))
    table = Table(["inputs", *map(titled, tasks)], rows)
    return filled("v8.publish.report", "importance.html", table=shown_table(table))


def _direction(evaluation: Evaluation) -> Html:
    header = ["step", "hit rate", "95 %", "closes that rose", "windows counted"]
    header += ["worth, independent", "actual values flat", "forecast flat"]
    counted = [step for step in evaluation.direction if step.num_counted]
    if not counted:
        return element("p", say("The forecast close is the last close at every step: it has no direction."))
    table = shown_table(Table(header, [_direction_cells(step) for step in counted]))
    if len(counted) == len(evaluation.direction):
        return table
    left_out = say("At the steps without a row the forecast close is the last close: it has no direction.")
    return join([table, element("p", left_out, class_="soft")])


def _direction_cells(step: StepDirection) -> list[str]:
    shares = [percent(step.rate), ends_in_words(step.interval), percent(step.rise_rate)]
    counts = (step.num_counted, round(step.num_effective), step.num_flat_actual, step.num_flat_forecast)
    return [str(step.step), *shares, *map(count, counts)]


def _training(result: SeriesResult, history: TrainingHistory) -> Iterator[Html]:
    """Say which weights the model has, and draw its losses by epoch."""
    if result.epochs_run == 0:
        sentence = say("There is no network: the baseline was fitted to the train span.")
    elif result.best_epoch == 0:
        sentence = say(
            "None of {run} epochs beat the untrained network, which was kept.", run=result.epochs_run
        )
    else:
        sentence = say(
            "Weights of epoch {best} of {run} were kept.", best=result.best_epoch, run=result.epochs_run
        )
    yield element("p", sentence)
    if history:
        curve = figures.learning_figure(history, result.best_epoch)
        yield plot(curve, say("Loss per epoch and the epoch kept (dashed)"))


def _split(split: Mapping[str, Any]) -> Iterator[Html]:
    """Show the table of spans, then the other facts about the split."""
    spans = {name: span for name, span in split.items() if isinstance(span, Mapping)}
    rows = []
    for name, span in spans.items():
        opens = [span.get(key) for key in _SPAN_TIMES]
        times = [moment(value) if isinstance(value, str) else _written(value) for value in opens]
        rows.append([term(name), *times, *(_written(span.get(key)) for key in _SPAN_COUNTS)])
    yield shown_table(Table(["span", *map(spaced, (*_SPAN_TIMES, *_SPAN_COUNTS))], rows))
    yield facts((spaced(name), _written(value)) for name, value in split.items() if name not in spans)


def _windows_kept(result: SeriesResult) -> Html:
    """Say how few windows holes leave to a series; empty where they leave enough."""
    counts = _window_counts(result.split)
    if counts is None or not counts.are_few:
        return Html()
    sentence = say(
        "Holes in the candles, and the warm-up of the indicators after each, leave {kept} of {num} windows "
        "({share}). Repaired candles or a profile with a shorter warm-up have more.",
        kept=count(sum(counts.kept.values())),
        num=count(sum(counts.without_holes.values())),
        share=percent(counts.share, 0),
    )
    return element("p", sentence)


def has_few_windows(result: SeriesResult) -> bool:
    """Return whether holes in the candles leave less than half of the windows of a series."""
    counts = _window_counts(result.split)
    return counts is not None and counts.are_few


def _window_counts(split: Mapping[str, Any]) -> WindowCounts | None:
    """Return the windows of a described split; None of a model that an older v8 has trained."""
    counts: dict[str, dict[str, int]] = {}
    for key in _WINDOW_COUNTS:
        counts[key] = {}
        for name in SPANS:
            span = split.get(name)
            number = span.get(key) if isinstance(span, Mapping) else None
            if not isinstance(number, int) or number < 1:
                return None
            counts[key][name] = number
    return WindowCounts(*counts.values())


def _written(value: object) -> str:
    """Write a JSON value for people, nested ones on one line."""
    if isinstance(value, Mapping):
        parts = [f"{term(spaced(str(name)))} {_written(item)}" for name, item in value.items()]
        return say(", ").join(parts)
    if isinstance(value, list | tuple):
        return "; ".join(_written(item) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return count(value) if isinstance(value, int) else f"{value:.4g}"
    return ABSENT if value is None else term(str(value))


def section_file(series: str) -> str:
    """Return where the section of a series lies, relative to the page.

    >>> section_file("BTCUSDT-15m")
    'report/series/BTCUSDT-15m.js'
    """
    return f"{SECTIONS_FOLDER}/{series}.js"


def write_section(run: Path, series: str, served: Path, draw: Callable[[], Html], *, is_forced: bool) -> None:
    """Write the section of a series to its file in the folder of a run, atomically.

    Args:
        run: Run folder.
        series: Name of the series.
        served: Folder of the model shown; the section is drawn again where its files changed.
        draw: Returns the markup of the section, see `series_body`.
        is_forced: Whether to draw it even if the file is up to date.
    """
    sources = [VERSION.encode("ascii"), chosen().encode("ascii")]
    for name in (METADATA_FILE, HISTORY_FILE, FORECASTS_FILE):
        with suppress(FileNotFoundError):  # models of older versions were saved without forecasts
            sources.append(read_given(served / name, MAX_FILE_BYTES))
    stamp = f"// drawn from {digest_bytes(*sources)}"
    file = run / section_file(series)
    if not is_forced and _has_stamp(file, stamp):
        return
    write_text(file, f"{stamp}\nv8Section({script_json(series)}, {script_json(draw())});\n")


def _has_stamp(file: Path, stamp: str) -> bool:
    """Return whether the first line of a file is this stamp."""
    with suppress(OSError), open_given(file) as stream:
        return stream.readline(_MAX_STAMP) == f"{stamp}\n".encode()
    return False
