"""Permutation importance of the inputs: how much the error grows when one kind of inputs is permuted.

Some windows of the test span are taken at equal distances. One kind of inputs at a time is replaced by the
same inputs of another window, chosen at random (Breiman 2001, doi:10.1023/A:1010933404324). Inputs are
permuted by kinds, because inputs of one kind can replace each other. Prices and amounts are scaled to the
newest close of the window that receives them, because models read them relative to it.

Legend: W windows, T lookback, F features.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from v8.base.records import Number, Word
from v8.base.wording import number
from v8.data.windows.span import Span
from v8.profile.columns import split_origin
from v8.profile.formulas import ANCHORED_KINDS
from v8.profile.indicators import FEATURES

MOST_WINDOWS: Final = 256  # windows that are used; they take 3 s of a core with `frontier`
SEED: Final = 2001  # of the permutation
KINDS: Final = {
    "clock": r"(day|week)_",
    "volume": r"volume",
    "bands": r"bb_|rolled_",
    "ranges": r"(recent_)?range|realised_|volatility|atr",
    "candles": r"(open|high|low|close)$",
}
"""Kinds of inputs of the series itself, by the pattern that their names begin with; all others are moves."""

Importance: TypeAlias = Mapping[Word, Mapping[Word, Number]]
"""Error with one kind of inputs permuted divided by the error without, by kind and task, unitless."""


def kind_of(name: str) -> str:
    """Return the kind of an input.

    >>> kind_of("range_240"), kind_of("rsi"), kind_of("BTCUSDT.close")
    ('ranges', 'moves', 'beside')
    """
    origin, plain_name = split_origin(name)
    if origin:
        return "beside"
    for kind, beginning in KINDS.items():
        if re.match(beginning, plain_name):
            return kind
    return "moves"


def measure_importance(span: Span, forecast: Callable[[NDArray[np.float32]], Any]) -> Importance:
    """Measure the permutation importance of each kind of inputs of a model.

    Args:
        span: Windows that the model was not fitted to.
        forecast: Takes raw windows, shape (W, T, F), float32; returns the model's `Forecasts`.
    """
    chosen = Span(span.table, span.profile, span.anchors[:: -(-len(span) // MOST_WINDOWS)])
    windows_WTF = chosen.raw_windows()
    names = span.profile.features
    donor_W = np.random.default_rng(SEED).permutation(len(chosen))
    in_closes_F = np.array([FEATURES[name].kind in ANCHORED_KINDS for name in names])
    ratio_W1 = (chosen.last_close / chosen.last_close[donor_W])[:, None]
    donated_WTF = windows_WTF[donor_W] * np.where(in_closes_F, ratio_W1, 1.0)[:, None]

    def mean_errors(permuted_kind: str) -> dict[str, float]:
        is_permuted_F = np.array([kind_of(name) == permuted_kind for name in names])
        permuted_WTF = np.where(is_permuted_F, donated_WTF, windows_WTF).astype(np.float32)
        points = forecast(permuted_WTF).points
        errors = {}
        for task, actual in chosen.actual.items():
            scaled = (points[task] - actual) / chosen.unit(task)
            errors[task] = float(np.abs(scaled).mean())
        return errors

    unchanged = mean_errors("")  # no input is of the kind "": nothing is permuted
    return {
        kind: {task: error / (unchanged[task] or 1.0) for task, error in mean_errors(kind).items()}
        for kind in dict.fromkeys(map(kind_of, names))
    }


def importance_rows(importances: Sequence[Importance]) -> list[list[str]]:
    """Return the rows of a table of medians over models: a row per kind, a column per task.

    The rows are sorted by the last task, the most important kind first.
    """
    medians = {
        kind: [median(importance[kind][task] for importance in importances) for task in tasks]
        for kind, tasks in importances[0].items()
    }
    ranked = sorted(medians.items(), key=lambda row: -row[1][-1])
    return [[kind, *map(number, values)] for kind, values in ranked]
