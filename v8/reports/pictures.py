"""The main charts of a run as PNG files, for READMEs and chats where a page cannot go.

They show the same numbers as the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import plotly.graph_objects as go

from v8.artifacts.forecast_sample import ForecastSample
from v8.columns import TASK_OHLC
from v8.reports.figures import error_figure, multiples_figure, relative_losses_figure
from v8.reports.forecast_figure import forecast_figure
from v8.reports.leaderboard import rank_results, summarise
from v8.reports.png import write_png
from v8.reports.results import History, SeriesResult
from v8.tasks import TASKS

SKILL_FILE: Final = "skill.png"
ERRORS_FILE: Final = "errors_by_step.png"
LEARNING_FILE: Final = "learning_curves.png"
FORECASTS_FILE: Final = "forecasts.png"


def write_pictures(
    folder: Path,
    title: str,
    results: Sequence[SeriesResult],
    histories: Mapping[str, History],
    samples: Mapping[str, ForecastSample],
) -> list[Path]:
    """Write the PNG files of a run, each atomically.

    Args:
        folder: Where to; made when missing.
        title: What run this is; stands on every picture, which travels alone.
        results: Finished series; without any, nothing is written.
        histories: Per series, its epochs.
        samples: Per series, some of its forecasts; the best series that has some is shown.

    Returns:
        The files written.
    """
    rows = rank_results(results)
    best = next((samples[row.series] for row in rows if row.series in samples), None)
    pictures: dict[str, tuple[str, list[go.Figure], tuple[float, float]]] = {}
    if rows:
        skill = multiples_figure(rows, x_title="filled: differs from 1 by more than chance")
        size = 8.0, 1.6 + 0.22 * len(rows)
        pictures[SKILL_FILE] = "error ÷ naive error, below 1 is better", [skill], size
        errors = [_median_errors(results, task) for task in summarise(rows)]
        said = f"mean absolute error ÷ naive's by step, median over {len(results)} series"
        pictures[ERRORS_FILE] = said, errors, (8.0 if len(errors) == 1 else 4.0 * len(errors), 4.0)
    if any(histories.values()):
        losses = relative_losses_figure(histories.values())
        pictures[LEARNING_FILE] = "validation loss ÷ that of the first epoch", [losses], (8.0, 4.0)
    if best:
        pictures[FORECASTS_FILE] = f"{best.series}, end of the test span", [_forecasts(best)], (10.0, 4.0)
    for name, (said, figures, inches) in pictures.items():
        write_png(folder / name, f"{title}: {said}", figures, inches=inches)
    return [folder / name for name in pictures]


def _median_errors(results: Sequence[SeriesResult], task: str) -> go.Figure:
    judgements = [one.judgement for one in results if task in one.judgement.errors]
    figure = error_figure(judgements, task)
    return figure.update_layout(title=TASKS[task].title, yaxis={"title": ""})


def _forecasts(sample: ForecastSample) -> go.Figure:
    """Draw candles and the forecasts issued on the way; bars are numbered, the last one is 0."""
    candles = replace(
        sample,
        truth={TASK_OHLC: sample.truth[TASK_OHLC]},
        issued=tuple(replace(one, values={TASK_OHLC: one.values[TASK_OHLC]}) for one in sample.issued),
    )
    figure = forecast_figure(candles, places=range(1 - len(sample.open_time_s), 1))
    said = f"bars of {sample.bar_s // 60} minutes before the last one"
    return figure.update_layout(xaxis={"title": said})
