"""How good intervals were, in tables and sentences: coverage beside what is promised, width, CRPS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from v8.losses.judgement import MODEL
from v8.losses.quantile_judgement import JudgedQuantiles, QuantileJudgement
from v8.quantile_levels import intervals, nominal, percent_of
from v8.tasks import TASKS
from v8.views.markup import Html, element, table
from v8.views.results import SeriesResult
from v8.wording import markdown_table, number, p_value, percent, spaced


def named_intervals(levels: Sequence[float]) -> str:
    """Name the central intervals among levels: "90 % and 50 %"; nothing where there are none.

    >>> named_intervals([0.05, 0.25, 0.5, 0.75, 0.95])
    '90 % and 50 %'
    """
    return " and ".join(f"{percent_of(nominal(pair))} %" for pair in intervals(levels))


def interval_tables(judged: QuantileJudgement | None) -> Iterator[Html]:
    """Show how the quantiles of one series did, beside those of the baselines."""
    if judged is None:
        return
    yield element("h3", "Quantiles and intervals")
    note = (
        "CRPS is twice the mean pinball loss over the levels, in returns: what the mean absolute error is "
        "for one number. Within: how many of the truths lay in the interval; width: its mean, in returns."
    )
    yield element("p", note, class_="soft")
    for task, about in judged.tasks.items():
        yield table(_head(judged), _rows(judged, about), caption=f"{TASKS[task].title}, over all steps")
    by_step = [_step_cells(judged, task, step) for task in judged.tasks for step in range(_horizon(judged))]
    yield table(["task and step", *_within(judged)], by_step, caption="The model's, step by step")


def interval_summary(results: Sequence[SeriesResult]) -> str:
    """Write the medians over series as a table in Markdown; nothing where none has quantiles."""
    judged = [result.quantiles for result in results if result.quantiles]
    if not judged:
        return ""
    first, rows = judged[0], []
    for task, about in first.tasks.items():
        those = [one.tasks[task] for one in judged if one.levels == first.levels and task in one.tasks]
        for name in about.errors:
            errors = [one.errors[name] for one in those if name in one.errors]
            within = [percent(median(each.mean_coverage(at) for each in errors)) for at in _places(first)]
            crps = number(median(one.errors[name].crps / one.errors[MODEL].crps for one in those))
            rows.append((TASKS[task].title, spaced(name), crps, *within))
    return markdown_table(("task", "forecaster", "CRPS, model = 1", *_within(first)), rows)


def _places(judged: QuantileJudgement) -> range:
    return range(len(judged.intervals))


def _within(judged: QuantileJudgement) -> list[str]:
    return [f"within {name}" for name in judged.named_intervals()]


def _head(judged: QuantileJudgement) -> list[str]:
    each = [f"{what} {name}" for name in judged.named_intervals() for what in ("within", "width of")]
    return ["", "CRPS", *each, "model's CRPS ÷ its", "p of it"]


def _rows(judged: QuantileJudgement, about: JudgedQuantiles) -> Iterator[list[str]]:
    for name, errors in about.errors.items():
        cells = [spaced(name), percent(errors.crps, 4)]
        for place in _places(judged):
            cells += [percent(errors.mean_coverage(place)), percent(errors.mean_width(place), 3)]
        is_model = name == MODEL
        multiple = None if is_model else about.multiple(name)
        yield [*cells, number(multiple), p_value(None if is_model else about.significance[name].p_value)]


def _step_cells(judged: QuantileJudgement, task: str, step: int) -> list[str]:
    errors = judged.tasks[task].errors[MODEL]
    within = [percent(errors.coverage_by_step(place)[step]) for place in _places(judged)]
    return [f"{TASKS[task].title}, {step + 1}", *within]


def _horizon(judged: QuantileJudgement) -> int:
    return len(next(iter(judged.tasks.values())).errors[MODEL].pinball[0])
