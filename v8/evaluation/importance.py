"""What kinds of inputs are worth to a model: how much more it errs where those of another window are shown.

Windows of the test span, evenly over it, lend each other one kind of inputs at a time, by lot (permutation
importance: Breiman 2001, doi:10.1023/A:1010933404324; by kinds, because inputs of one kind stand in for each
other). Prices and amounts are lent in multiples of the newest close, as models read them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from v8.columns import split_origin
from v8.features.formulas import ANCHORED_KINDS
from v8.features.indicators import FEATURES
from v8.records import Number, Word
from v8.windows.span import Span
from v8.wording import number

MOST_WINDOWS: Final = 256  # that are looked at, which takes 3 s of a core with `frontier`
SEED: Final = 2001  # of the lot
KINDS: Final = {
    "clock": r"(day|week)_",
    "volume": r"volume",
    "bands": r"bb_|rolled_",
    "ranges": r"(recent_)?range|realised_|volatility|atr",
    "candles": r"(open|high|low|close)$",
}
"""Kinds of inputs of the series itself by how their names begin; what is of none is a move."""


Importance: TypeAlias = Mapping[Word, Mapping[Word, Number]]
"""Errors with one kind of inputs lent, by kind and task, as multiples of the error as it is."""


def kind_of(name: str) -> str:
    """Return of which kind an input is.

    >>> kind_of("range_240"), kind_of("rsi"), kind_of("BTCUSDT.close")
    ('ranges', 'moves', 'beside')
    """
    origin, plain = split_origin(name)
    found = (kind for kind, begin in KINDS.items() if re.match(begin, plain))
    return "beside" if origin else next(found, "moves")


def measure_importance(span: Span, forecast: Callable[[NDArray[np.float32]], Any]) -> Importance:
    """Measure what each kind of inputs is worth to a model, given what forecasts raw windows: `Forecasts`."""
    chosen = Span(span.table, span.profile, span.anchors[:: -(-len(span) // MOST_WINDOWS)])
    windows_WTF = chosen.raw_windows()
    names = span.profile.features
    donor_W = np.random.default_rng(SEED).permutation(len(chosen))
    in_closes_F = np.array([FEATURES[name].kind in ANCHORED_KINDS for name in names])
    ratio_W1 = (chosen.last_close / chosen.last_close[donor_W])[:, None]
    permuted_WTF = windows_WTF[donor_W] * np.where(in_closes_F, ratio_W1, 1.0)[:, None]

    def errors(kind: str) -> dict[str, float]:
        is_permuted_F = np.array([kind_of(name) == kind for name in names])
        points = forecast(np.where(is_permuted_F, permuted_WTF, windows_WTF).astype(np.float32)).points
        moved = {task: (points[task] - actual) / chosen.unit(task) for task, actual in chosen.actual.items()}
        return {task: float(np.abs(each).mean()) for task, each in moved.items()}

    plain = errors("")
    return {
        kind: {task: error / (plain[task] or 1.0) for task, error in errors(kind).items()}
        for kind in dict.fromkeys(map(kind_of, names))
    }


def importance_rows(found: Sequence[Importance]) -> list[list[str]]:
    """Write medians over models by kind, a column a task, the kind that the last task needs most first."""
    middle = {
        kind: [median(one[kind][task] for one in found) for task in tasks] for kind, tasks in found[0].items()
    }
    ranked = sorted(middle.items(), key=lambda row: -row[1][-1])
    return [[kind, *map(number, values)] for kind, values in ranked]
