"""A baseline that forecasts the range ahead with boosted trees: gradient boosting by LightGBM, if installed.

Like the regression of `v8.formulas.baselines` it knows ranges over several horizons and what
roll-forward says, but is free in how it joins them. One booster per task and column serves all steps: the
step is a term. Trees learn moves in recent ranges, each weighed by its range, which makes their absolute
error that in returns, by which forecasts are judged. No term depends on price, so that series can be pooled.

LightGBM is optional (`pip install lightgbm`). Fitting takes one thread and a fixed seed: the same
candles give the same forecast.

Legend: N windows, H steps of the horizon, C columns of a task, T terms, S rows to learn from.
"""

import importlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

import numpy as np

from v8.columns import RANGE_BARS
from v8.errors import SeriesError
from v8.features.formulas import FLOOR_SHARE, recent_range
from v8.formulas.baseline import Baseline, Forecast, TaskForecasts, moved_from_rolled, moves_from_rolled
from v8.tasks import BANDS_TASK, TASKS, future_weights
from v8.windows.span import Floats, Span

PACKAGE: Final = "lightgbm"

TERM_DECIMALS: Final = 6
"""Digits of a term: what differs by rounding only must not fall on either side of a branch."""


@dataclass(frozen=True)
class Boosting:
    """How boosters are grown."""

    num_trees: int  # trees of each booster
    num_leaves: int  # leaves of a tree
    learning_rate: float  # share of each tree's answer that counts
    min_leaf: int  # fewest rows of a leaf; a window gives one row per step
    max_windows: int  # most windows of a series to learn from, evenly spread; neighbours share most bars

    def settings(self) -> dict[str, Any]:
        """Return them under LightGBM's names, with those that make it repeatable."""
        return {
            "objective": "l1",
            "num_leaves": self.num_leaves,
            "learning_rate": self.learning_rate,
            "min_data_in_leaf": self.min_leaf,
            "seed": 42,
            "num_threads": 1,
            "deterministic": True,
            "force_row_wise": True,  # else the quicker of two ways is timed, and they round differently
            "verbosity": -1,
        }


ALONE: Final = Boosting(num_trees=20, num_leaves=4, learning_rate=0.15, min_leaf=1_000, max_windows=10_000)
"""For one series. Chosen on validation spans, where larger trees, more of them or fewer windows err more."""

POOLED: Final = Boosting(num_trees=200, num_leaves=15, learning_rate=0.06, min_leaf=400, max_windows=1_500)
"""For many series together; the size of the search in scripts/FRONTIER.md, not tuned further."""


def fit_boosted(spans: Sequence[Span], boosting: Boosting = ALONE) -> Forecast:
    """Fit one booster per task and column to the train spans of one or several series.

    Columns that a range does not move stay at roll-forward, for it says nothing about which way they go.

    Raises `SeriesError` if LightGBM is missing or cannot be loaded.
    """
    boosters = _boosters(_lightgbm(), spans, boosting)

    def forecast(span: Span) -> TaskForecasts:
        terms, unit_N11 = _flat(boosting_terms(span)), recent_unit(span)[:, None, None]
        moves = {task: np.zeros_like(rolled) for task, rolled in span.rolled.items()}
        for (task, column), booster in boosters.items():
            moves[task][:, :, column] = booster.predict(terms, num_threads=1).reshape(len(unit_N11), -1)
        return {task: moved_from_rolled(span, task, made * unit_N11) for task, made in moves.items()}

    return forecast


def boosting_terms(span: Span) -> Floats:
    """Describe each step of each window by numbers that do not depend on price.

    Returns:
        Shape (N, H, T): logarithms of the recent range and of the ranges over `RANGE_BARS` as shares of it;
        middle and deviation of roll-forward's bands in recent ranges; by how much the deviation would grow if
        bars ahead ranged as of late; the step. Zeros but for the step where nothing has moved.
    """
    unit = recent_unit(span)
    is_moving = unit > 0
    divisor = np.where(is_moving, unit, 1.0)
    deviations = np.stack([np.sqrt(span.range_variance(bars)) for bars in RANGE_BARS], axis=-1)
    shares = np.maximum(deviations / divisor[:, None], FLOOR_SHARE)
    by_window = np.log(np.concatenate([divisor[:, None], shares], axis=1)) * is_moving[:, None]
    bands = BANDS_TASK.implied(np, span.standing)
    middle = (bands.mean(axis=2) / span.last_close[:, None] - 1.0) / divisor[:, None]
    rolled = span.rolled_deviation / divisor[:, None]
    grown = np.sqrt(rolled**2 + future_weights(span.horizon_bars) * is_moving[:, None]) - rolled
    steps = np.broadcast_to(np.arange(1.0, span.horizon_bars + 1), rolled.shape)
    by_step = np.stack([middle, rolled, grown, steps], axis=-1)
    repeated = np.repeat(by_window[:, None], span.horizon_bars, axis=1)
    return np.concatenate([repeated, by_step], axis=2).round(TERM_DECIMALS)


def recent_unit(span: Span) -> Floats:
    """Return the going size of one bar's move at each window, shape (N,), in returns; 0 in a dead market."""
    return recent_range(*(np.sqrt(span.range_variance(bars)) for bars in RANGE_BARS[1:]))


def _boosters(lightgbm: ModuleType, spans: Sequence[Span], boosting: Boosting) -> dict[tuple[str, int], Any]:
    """Return one booster for each task and column that a range moves; none where there is no row."""
    terms, weights, moves = [], [], defaultdict(list)
    for span in spans:
        unit = recent_unit(span)
        used = np.flatnonzero(unit > 0)  # where nothing moves there is no unit to learn in
        used = used[:: max(1, -(-len(used) // boosting.max_windows))]
        terms.append(_flat(boosting_terms(Span(span.table, span.profile, span.anchors[used]))))
        weights.append(np.repeat(unit[used] / unit.mean(), span.horizon_bars))
        for task, moved in moves_from_rolled(span).items():
            moves[task].append(_flat(moved[used] / unit[used, None, None]))
    if not any(len(one) for one in terms):
        return {}
    settings = boosting.settings()
    # The terms are put into bins once and serve every booster.
    data = lightgbm.Dataset(np.concatenate(terms), weight=np.concatenate(weights), params=settings)
    boosters = {}
    for task, made in moves.items():
        for column in np.flatnonzero(TASKS[task].is_moved):
            data.set_label(np.concatenate([moved[:, column] for moved in made]))
            boosters[task, int(column)] = lightgbm.train(settings, data, boosting.num_trees)
    return boosters


def _flat(values_NHX: Floats) -> Floats:
    """Put the steps of all windows below one another, shape (N x H, X)."""
    return values_NHX.reshape(-1, values_NHX.shape[-1])


def _lightgbm() -> ModuleType:
    try:
        return importlib.import_module(PACKAGE)
    except (ImportError, OSError) as error:  # OSError: its library misses another one, such as libgomp
        raise SeriesError(
            where=f"baseline {PACKAGE}",
            rule=f"needs the optional package {PACKAGE}, whole or not at all",
            got=f"{type(error).__name__} ({error})",
            fix=f"Run: pip install {PACKAGE}, or uninstall it to go without",
        ) from error


LIGHTGBM: Final = Baseline(
    PACKAGE,
    "Roll-forward moved by boosted trees on the same ranges, on the step and on roll-forward's bands.",
    "gradient boosting of least absolute errors: Friedman (2001), doi:10.1214/aos/1013203451; LightGBM",
    lambda train, scaling: fit_boosted([train]),
    lambda: find_spec(PACKAGE) is not None,  # it is not imported for this
)
