"""The main charts of a run as PNG files, for READMEs and chats where a page cannot go.

They show the same numbers as the page. Figures are made without pyplot, so nothing global changes and
no display is needed.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from v8.artifacts.forecast_sample import ForecastSample
from v8.columns import CLOSE, HIGH, LOW, OHLC, OPEN, TASK_COLUMNS, TASK_OHLC
from v8.evaluation.baselines import BASELINES, NAIVE
from v8.evaluation.judgement import MODEL, Judgement
from v8.reports.leaderboard import LeaderboardRow, rank_results, summarise
from v8.reports.palette import LIGHT
from v8.reports.results import History, SeriesResult
from v8.storage import write_bytes
from v8.tasks import TASKS

SKILL_FILE: Final = "skill.png"
ERRORS_FILE: Final = "errors_by_step.png"
LEARNING_FILE: Final = "learning_curves.png"
FORECASTS_FILE: Final = "forecasts.png"

_BLUE, _ORANGE, _PURPLE, _GREY = "#1769aa", "#c2571a", "#7a5bb5", "#8a94a0"
_GAIN, _LOSS = "#2f9e83", "#cf5468"
_DPI: Final = 150


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
    pictures: dict[str, Callable[[], Figure]] = {}
    if rows:
        pictures[SKILL_FILE] = lambda: _skill(rows, title)
        pictures[ERRORS_FILE] = lambda: _errors(results, title)
    if any(histories.values()):
        pictures[LEARNING_FILE] = lambda: _learning(histories, title)
    if best:
        pictures[FORECASTS_FILE] = lambda: _forecasts(best, title)
    for name, draw in pictures.items():
        _save(folder / name, draw())
    return [folder / name for name in pictures]


def _skill(rows: Sequence[LeaderboardRow], title: str) -> Figure:
    """Draw each series' error as a multiple of naive; hollow dots may be luck."""
    figure, (axes,) = _sheet(
        f"{title}: error ÷ naive error, below 1 is better", 1, height=1.6 + 0.22 * len(rows)
    )
    for task in summarise(rows).tasks:
        scored = [(at, row.tasks[task]) for at, row in enumerate(rows) if task in row.tasks]
        for is_sure in (True, False):
            known = [
                (at, one.multiple) for at, one in scored if one.is_significant == is_sure and one.multiple
            ]
            axes.scatter(
                [multiple for _, multiple in known],
                [at for at, _ in known],
                label=TASKS[task].title if is_sure else None,
                facecolors=LIGHT[TASKS[task].colour] if is_sure else "none",
                edgecolors=LIGHT[TASKS[task].colour],
            )
    axes.axvline(1.0, color=_GREY, linewidth=1)
    axes.set_yticks(range(len(rows)), [row.series for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("filled: differs from 1 by more than chance")
    axes.legend(loc="best", fontsize=8)
    return figure


def _errors(results: Sequence[SeriesResult], title: str) -> Figure:
    """Draw each forecaster's error by step as a multiple of naive's, the median over all series."""
    tasks = [task for task in TASK_COLUMNS if any(task in one.judgement.errors for one in results)]
    what = "mean absolute error ÷ naive's by step"
    figure, panels = _sheet(f"{title}: {what}, median over {len(results)} series", len(tasks))
    for axes, task in zip(panels, tasks, strict=True):
        judged = [one.judgement for one in results if task in one.judgement.errors]
        for at, name in enumerate((*BASELINES, MODEL)):
            ratios = _median_ratios(judged, task, name)
            if not ratios:
                continue  # no series was judged beside it
            style = _model_style() if name == MODEL else _baseline_style(at)
            axes.plot(range(1, len(ratios) + 1), ratios, label=name.replace("_", " "), **style)
        axes.set_title(TASKS[task].title, fontsize=10)
        axes.set_xlabel("steps ahead")
    panels[0].legend(fontsize=8)
    return figure


def _median_ratios(judged: Sequence[Judgement], task: str, name: str) -> list[float]:
    """Return the median over series of error ÷ naive error per step, as far as all series go."""
    rows = [
        [ours / theirs if theirs else math.nan for ours, theirs in zip(*pair, strict=True)]
        for pair in (
            (one.error(task, name).by_step, one.error(task, NAIVE).by_step)
            for one in judged
            if name in one.errors[task]
        )
    ]
    return [statistics.median(step) for step in zip(*rows, strict=False)]


def _learning(histories: Mapping[str, History], title: str) -> Figure:
    """Draw every series' validation loss relative to its first epoch's."""
    figure, (axes,) = _sheet(f"{title}: validation loss ÷ that of the first epoch", 1)
    for history in (one for one in histories.values() if one):
        first = history[0]["validation_loss"] or 1.0
        epochs = [one["epoch"] for one in history]
        losses = [one["validation_loss"] / first for one in history]
        axes.plot(epochs, losses, color=_BLUE, alpha=0.5, marker="." if len(epochs) < 3 else None)
    axes.axhline(1.0, color=_GREY, linewidth=1)
    axes.set_xlabel(f"epoch; one line for each of {len(histories)} series")
    return figure


def _forecasts(sample: ForecastSample, title: str) -> Figure:
    """Draw candles and the forecasts issued on the way; bars are numbered, the last one is 0."""
    figure, (axes,) = _sheet(f"{title}: {sample.series}, end of the test span", 1, width=10)
    bars = np.arange(len(sample.open_time_s)) - len(sample.open_time_s) + 1
    truth = {name: np.array([row[at] for row in sample.truth[TASK_OHLC]]) for at, name in enumerate(OHLC)}
    colours = np.where(truth[CLOSE] >= truth[OPEN], _GAIN, _LOSS)
    axes.vlines(bars, truth[LOW], truth[HIGH], colors=list(colours), linewidth=0.8)
    axes.bar(bars, truth[CLOSE] - truth[OPEN], 0.7, truth[OPEN], color=list(colours), label="truth")
    for number, one in enumerate(sample.issued):
        values = np.array(one.values[TASK_OHLC])
        ahead = bars[one.last_known : one.last_known + len(values) + 1]
        start = truth[CLOSE][one.last_known]
        fan = {name: np.r_[start, values[:, at]] for at, name in enumerate(OHLC)}
        names = ("forecast, low to high", "forecast, close") if number == 0 else (None, None)
        axes.fill_between(ahead, fan[LOW], fan[HIGH], color=_BLUE, alpha=0.18, linewidth=0, label=names[0])
        axes.plot(ahead, fan[CLOSE], color=_BLUE, linewidth=2, label=names[1])
    axes.set_xlabel(f"bars of {sample.bar_s // 60} minutes before the last one")
    axes.set_ylabel("price")
    axes.legend(fontsize=8)
    return figure


def _sheet(
    title: str, num_panels: int, *, width: float = 8.0, height: float = 4.0
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width if num_panels == 1 else 4 * num_panels, height), layout="constrained")
    figure.suptitle(title, fontsize=11)
    panels = list(figure.subplots(1, num_panels, squeeze=False)[0])
    for axes in panels:
        axes.grid(color="#e1e4e8", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _model_style() -> dict[str, Any]:
    return {"color": _BLUE, "linewidth": 3, "marker": "o", "markersize": 4}


def _baseline_style(at: int) -> dict[str, Any]:
    colours = (_GREY, _GREY, _PURPLE, _LOSS, _GAIN, _ORANGE, _PURPLE, _LOSS)
    dashes = (":", "-", "-", "--", "--", "-.", "-.", ":")
    return {"color": colours[at % 8], "linestyle": dashes[at % 8], "linewidth": 1.5}


def _save(path: Path, figure: Figure) -> None:
    stream = io.BytesIO()
    figure.savefig(stream, dpi=_DPI, format="png")
    write_bytes(path, stream.getvalue())
