"""The report of a run as one self-contained page, `report.html`, and the leaderboard of any page.

All text passes through `v8.publish.report.markup`, which escapes it and builds the page: `filled` puts parts
into a template, `element` makes one tag. `say` translates a sentence and `term` a word (`v8.base.language`).
Every series has a folded section: forecasts, errors by step, training, candles, time.

A section with its charts takes 50 to 100 kB, so a page of a thousand series would take 80 MB. Beyond
`MOST_IN_ONE_FILE` series the page holds one line for each, and the section is loaded from its own file, such
as `report/series/BTCUSDT-15m.js`, when the line is opened. A browser that shows a page from the disk may not
read files, but it may run a script that the page's own script names. So each file is a script that calls
`v8Section`, a function of the page's own script, with two strings, the name of the series and the markup. The
first line of the file holds a digest of what it was drawn from; a file that is up to date is not drawn again.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from v8.base.errors import listed
from v8.base.language import chosen, say, term
from v8.base.storage import MAX_FILE_BYTES, digest_bytes, open_given, read_given, write_text
from v8.base.version import VERSION
from v8.base.wording import ABSENT, Table, count, duration, epochs, moment, number, p_value, percent, spaced
from v8.data.windows.dataset import SPANS, WindowCounts
from v8.forecaster.metadata import HISTORY_FILE, METADATA_FILE
from v8.forecaster.series_artifact import FORECASTS_FILE, ForecastSample
from v8.model.baselines.baselines import BASELINES, NAIVE, called
from v8.model.evaluation.bootstrap import ErrorInterval
from v8.model.evaluation.evaluation import MODEL, EvaluatedTask, Evaluation, QuantileEvaluation
from v8.model.evaluation.importance import Importance, importance_rows
from v8.model.evaluation.leaderboard import (
    LeaderboardRow,
    SeriesResult,
    TrainingHistory,
    compared,
    median,
)
from v8.model.evaluation.metrics import StepDirection
from v8.model.evaluation.price_range import RANGE_SHARE, RangeCoverage
from v8.model.evaluation.significance import BEATS, LOSES, BaselineComparison, ComparisonResult
from v8.profile.columns import TASK_OHLC
from v8.profile.quantile_levels import interval_names, percent_of
from v8.profile.tasks import TASKS
from v8.publish.report import figures
from v8.publish.report.candle_chart import candle_chart, has_candle_chart
from v8.publish.report.first_screen import first_screen, sample_note
from v8.publish.report.markup import (
    CHART_NOTICE,
    Html,
    content_in_language,
    document,
    element,
    facts,
    filled,
    folded,
    join,
    plot,
    shown_table,
)
from v8.publish.report.verdict import (
    best_baselines_in_words,
    in_words,
    source_in_words,
    titled,
    verdict_in_brief,
)
from v8.runs.run_folder import RunRecord

MARK: Final = "●"
"""Follows a ratio that differs from 1 significantly."""

_SPAN_TIMES: Final = ("first_open", "last_open")
_SPAN_COUNTS: Final = ("rows", "num_windows")
"""Columns of the table of spans, as keys of `metadata.json`."""
_WINDOW_COUNTS: Final = ("num_windows", "num_windows_without_holes")

SECTIONS_FOLDER: Final = "report/series"
"""Where the files of sections lie, relative to the folder of `report.html`."""

MOST_IN_ONE_FILE: Final = 40
"""A page of so many series, those of the default universe, is one file that can be sent as it is."""

_MAX_STAMP: Final = 200
"""Characters read of the first line of a section's file; it is shorter."""


@dataclass(frozen=True)
class RunPage:
    """The page of a run and its leaderboard, in the current language."""

    run: RunRecord
    rows: Sequence[LeaderboardRow]  # the leaderboard
    bodies: Mapping[str, Html | None]
    """For each series its `series_body`, or None where that is in a file."""
    sample: ForecastSample | None = None  # forecasts of one series, for the first screen
    intervals: Mapping[str, ErrorInterval] = field(default_factory=dict)
    """By task, how sure the headline is: the 95 % interval of its error relative to the best baseline's.

    Computed by `v8.publish.report.verdict.headline_intervals`.
    """

    @property
    def title(self) -> str:
        """What the browser's tab shows."""
        return f"v8: {self.run.profile_name}"

    @property
    def heading(self) -> str:
        """The headline."""
        return say("Run of profile {name}", name=self.run.profile_name)

    @property
    def is_demo(self) -> bool:
        """Whether a market was simulated."""
        return not self.run.is_publishable or any(row.is_demo for row in self.rows)

    def whole(self, languages: Mapping[str, str] = MappingProxyType({})) -> Html:
        """Return the page; `languages` as of `document`."""
        return document(
            self.title,
            self.heading,
            [self.content()],
            is_demo=self.is_demo,
            has_files=is_in_files(self.run),
            has_candles=True,
            languages=languages,
        )

    def in_language(self, languages: Iterable[str]) -> str:
        """Return the file that a page in another language loads; `languages` are all, that one's first."""
        return content_in_language(
            self.title, self.heading, [self.content()], is_demo=self.is_demo, languages=languages
        )

    def content(self) -> Html:
        """Return what is below the headline."""
        return _run_content(self.run, self.rows, self.bodies, self.sample, self.intervals)


def _run_content(
    run: RunRecord,
    rows: Sequence[LeaderboardRow],
    bodies: Mapping[str, Html | None],
    sample: ForecastSample | None,
    intervals: Mapping[str, ErrorInterval],
) -> Html:
    # The first screen offers the series whose candle chart is in this page already.
    with_chart = [row.series for row in rows if has_candle_chart(bodies[row.series] or "")]
    unevaluated: str = ""
    if not run.is_evaluated:
        unevaluated = element("p", say("The models of this run were not evaluated."))
    failed = say(" {num} failed.", num=len(run.reasons)) if run.reasons else ""
    origin = provenance(
        source=run.source,
        created_at=run.created_at,
        command=run.command,
        profile_digest=run.profile_digest,
        versions=run.versions,
        machine=run.machine,
    )
    return filled(
        "v8.publish.report",
        "run.html",
        opening=first_screen(rows, sample, sorted(with_chart), intervals) if rows else "",
        # A series may be done whose files cannot be read: it has no row and is not counted.
        done=len(rows) if run.is_evaluated else len(run.done),
        num=len(run.series),
        failed=failed,
        unevaluated=unevaluated,
        holes=_few_windows(rows),
        failures=_failures(run),
        leaderboard=_leaderboard(rows, bodies) if rows else "",
        provenance=origin,
    )


def is_in_files(run: RunRecord) -> bool:
    """Return whether the sections of a run are in files of their own."""
    return len(run.series) > MOST_IN_ONE_FILE


def _failures(run: RunRecord) -> Html:
    """Show why series failed; empty where none did."""
    if not run.reasons:
        return Html()
    table = Table(["Series", "Reason"], sorted(run.reasons.items()), is_prose=True)
    return join([element("h2", say("Failed series")), shown_table(table)])


def provenance(
    *,
    source: str,
    created_at: str,
    command: str,
    versions: Mapping[str, Any],
    machine: Mapping[str, Any],
    profile_digest: str | None = None,
) -> Html:
    """List where the numbers of a page come from.

    Args:
        source: Name of the candle source.
        created_at: When the work began, ISO 8601.
        command: Command line that did it.
        versions: Versions of packages, by name.
        machine: Description of the machine, by property.
        profile_digest: Digest of the profile, where there is one.
    """
    pairs = [("candle source", source_in_words(source)), ("started", created_at), ("command", command)]
    if profile_digest is not None:
        pairs.append(("profile digest", element("span", profile_digest[:12], title=profile_digest)))
    pairs += [(say("version of {name}", name=name), str(value)) for name, value in versions.items()]
    for name, value in machine.items():
        words = f"machine: {name.removesuffix('_bytes').replace('_', ' ')}"
        is_size = name.endswith("_bytes") and isinstance(value, int)
        pairs.append((words, f"{value / 1e6:,.0f} MB" if is_size else str(value)))
    pairs.append(("charts", CHART_NOTICE))
    return folded(say("Where these numbers come from"), facts(pairs))


def _leaderboard(rows: Sequence[LeaderboardRow], bodies: Mapping[str, Html | None]) -> Html:
    """Show the medians, a line for each series, every baseline explained, then the sections.

    A pointer over a ratio shows the outcome and the p-value.
    """
    comparisons = compared(rows)
    num_columns = Counter(TASKS[task].title for task, _ in comparisons)
    header = ["Series", *(_column_head(name) for _, name in comparisons)]
    header += ["direction, step 1", "best epoch", "time"]
    lines = [_median_cells(rows, comparisons)]
    lines += [_leaderboard_cells(row, comparisons) for row in rows]
    groups = [("", 1), *num_columns.items(), ("", 3)]
    order = say("Ordered by {task} × naive, the lowest error first.", task=titled(TASK_OHLC))
    names = {name for row in rows for errors in row.evaluation.errors.values() for name in errors}
    best = best_baselines_in_words(rows)
    briefs = [
        say("{name}: {words}", name=spaced(name), words=term(baseline.brief))
        for name, baseline in BASELINES.items()
        if name in names and baseline.brief
    ]
    brief = say("In a few words: {parts}.", parts=say("; ").join(briefs))
    baselines = facts(
        (spaced(name), term(baseline.sentence)) for name, baseline in BASELINES.items() if name in names
    )
    return filled(
        "v8.publish.report",
        "leaderboard.html",
        table=shown_table(Table(header, lines, order), groups=groups, class_="wrapped"),
        mark=MARK,
        num=len(rows),
        brief=element("p", brief, class_="soft") if briefs else "",
        p_table=shown_table(_p_table(rows, comparisons), groups=groups[:-1], class_="wrapped"),
        best=element("p", say("Best baselines: {names}.", names=best), class_="soft") if best else "",
        baselines=baselines,
        sections=join(series_section(row, bodies[row.series]) for row in rows),
    )


def _column_head(name: str) -> str:
    """Name the forecast that a column compares with; the sign is never alone on a line."""
    return f"×\u00a0{spaced(name)}"


_Comparisons = Mapping[tuple[str, str], Mapping[str, BaselineComparison]]
"""By task and the name of a baseline: the comparison of each series, as `leaderboard.compared` returns it."""


def _median_cells(rows: Sequence[LeaderboardRow], comparisons: _Comparisons) -> list[str]:
    cells = [say("median")]
    for by_series in comparisons.values():
        cells.append(number(median(comparison.relative_mae for comparison in by_series.values())))
    best_epoch = median(row.best_epoch for row in rows) or 0
    epochs_run = median(row.epochs_run for row in rows) or 0
    cells.append(percent(median(row.hit_rate for row in rows)))
    cells.append(epochs(best_epoch, epochs_run))
    cells.append(duration(median(row.total_seconds for row in rows)))
    return cells


def _leaderboard_cells(row: LeaderboardRow, comparisons: _Comparisons) -> list[str]:
    cells: list[str] = [element("a", row.series, href=f"#{row.series}")]
    for (_, name), by_series in comparisons.items():
        comparison = by_series.get(row.series)
        if comparison:
            p = comparison.corrected_p_value
            cells.append(marked(comparison.relative_mae, comparison.outcome, name, p))
        else:
            # The naive forecast is compared in every task, so the profile of this row lacks the task.
            cells.append(say("no such task") if name == called(NAIVE) else ABSENT)
    cells.append(element("span", percent(row.hit_rate), title=f"95 %: {_ends(row.hit_rate_95)}"))
    return [*cells, epochs(row.best_epoch, row.epochs_run), duration(row.total_seconds)]


def _p_table(rows: Sequence[LeaderboardRow], comparisons: _Comparisons) -> Table:
    """Show the corrected p-values of the leaderboard, where nothing can be pointed at."""
    header = ["Series", *(_column_head(name) for _, name in comparisons)]
    lines = []
    for row in rows:
        of_row = [by_series.get(row.series) for by_series in comparisons.values()]
        lines.append([row.series, *(p_value(one.corrected_p_value if one else None) for one in of_row)])
    return Table(header, lines)


def marked(multiple: float | None, outcome: ComparisonResult, name: str, p: float | None) -> Html:
    """Show a ratio of errors, coloured and marked where it is significant; a pointer shows outcome and p."""
    style = {BEATS: "better", LOSES: "worse"}.get(outcome)
    mark = element("span", MARK if style else "", class_="mark")
    tooltip = say("{outcome}, corrected p {p}", outcome=in_words(outcome, name), p=p_value(p))
    return element("span", number(multiple), mark, class_=style, title=tooltip)


def _ends(interval: tuple[float, float] | None) -> str:
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
        cells = [term(spaced(name))]
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
        yield element("p", confidence_sentence(evaluated), class_="soft")
    if evaluated.lines:
        yield _lines_table(evaluated, title=say("{task}: actual values on forecasts", task=titled(task)))


def confidence_sentence(evaluated: EvaluatedTask) -> str:
    """Say which forecasts cannot be told apart from the best one."""
    best = [term(spaced(name)) for name in reversed(evaluated.best_forecasters)]
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
            cells = [term(spaced(name)), percent(errors.crps, 4)]
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
    range_note = element("p", range_sentence(price_range)) if price_range else ""
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


def range_sentence(coverage: RangeCoverage) -> str:
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
    shares = [percent(step.rate), _ends(step.interval), percent(step.rise_rate)]
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


def _few_windows(rows: Sequence[LeaderboardRow]) -> Html:
    """Name the series of which holes leave too few windows; empty without one."""
    few = [row.series for row in rows if _has_few_windows(row)]
    if not few:
        return Html()
    sentence = say(
        "Holes in the candles, and the warm-up of the indicators after each, leave less than half of the "
        "windows of: {names}.",
        names=listed(few),
    )
    return element("p", sentence)


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


def _has_few_windows(result: SeriesResult) -> bool:
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
    kept, without_holes = counts.values()
    return WindowCounts(kept, without_holes)


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
    name = _javascript_string(series)
    markup = _javascript_string(draw())
    write_text(file, f"{stamp}\nv8Section({name}, {markup});\n")


def _has_stamp(file: Path, stamp: str) -> bool:
    """Return whether the first line of a file is this stamp."""
    with suppress(OSError), open_given(file) as stream:
        return stream.readline(_MAX_STAMP) == f"{stamp}\n".encode()
    return False


def _javascript_string(text: str) -> str:
    """Write a text as a string of JavaScript: in ASCII, and without the sign that could end a script."""
    return json.dumps(text).replace("<", "\\u003c")
