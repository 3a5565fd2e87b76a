"""Quantiles: where a network's begin, and how far those of paths must be stretched.

* The untrained network forecasts the train span's quantiles of each step and column, in multiples of the
  units of `spread_units`, which are in recent ranges: an interval is as wide as the market is wild.
* Under `calibration: ensemble` no network says quantiles: they lie off the median as those of the simulated
  paths do (`v8.formulas.ranges`), times a factor. On the validation span every distance is stretched
  by what is missing there to its level: the level's own quantile of truth over distance (conformalised
  quantile regression: Romano, Patterson and Candès 2019, arXiv:1905.03222, each end by itself). Windows
  overlap, so that few of them are news: of a move found in them a share is kept (`kept_share`).

Shape legend: W windows, H horizon, Q levels, L levels but the median, C columns of a task.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.quantile_levels import MEDIAN, outer, quantile_output
from v8.windows.dataset import SeriesData
from v8.windows.regression import weighted_quantiles
from v8.windows.span import Floats

DOUBTED_WINDOWS: Final = 200
"""Independent windows from which on more than half of a move is believed. Measured on three seasons of real
candles: all of it cost up to 1 % of CRPS where the season changed, and coverage was as right without."""

LEAST_STEP: Final = 1e-4
"""From one quantile to the next, in units; a network whose step starts at nothing could not learn it."""


def first_steps(data: SeriesData) -> dict[str, NDArray[np.float32]]:
    """Return what the biases of a network's quantile heads start at; nothing where it forecasts none.

    By `quantile_output` of each task, shape (H, L, C), it is what `softplus` turns into the steps from the
    quantiles of the train span to their neighbours, in units.
    """
    train, levels = data.spans["train"], data.profile.quantiles
    if not data.profile.shape.outer_levels:
        return {}
    starts = {}
    for task in data.profile.tasks:
        name, start_HC = quantile_output(task), np.array(data.scaling.task(task).start)
        beyond_WHC = data.targets_NHC[task][train.anchors] - start_HC
        unit_WHC = data.units_NHC[name][train.anchors].astype(np.float64)
        # The pinball loss of a distance of c units is the unit times that of distance / unit at c.
        weight_WHC = np.broadcast_to(data.weight_N[train.anchors, None, None] * unit_WHC, beyond_WHC.shape)
        found = weighted_quantiles(beyond_WHC / unit_WHC, weight_WHC, levels)
        steps = np.maximum(np.diff(found, axis=0), LEAST_STEP)
        # softplus(x) = log(1 + exp(x)), so that x = log(exp(step) - 1).
        inverse_LHC = steps + np.log(-np.expm1(-steps))
        starts[name] = np.moveaxis(inverse_LHC, 0, 1).astype(np.float32)
    return starts


def conformal_widths(
    levels: Sequence[float],
    truth: Mapping[str, NDArray[Any]],
    points: Mapping[str, Floats],
    distances: Mapping[str, Floats],
) -> dict[str, Floats]:
    """Return how many times as far each outer quantile must lie off to hold its share of the windows.

    Per task, truth and median forecasts are (W, H, C), distances of the outer quantiles off a median (W, H,
    L, C), all in one unit; factors are (H, L, C). Levels are all, ascending.
    """
    factors = {}
    for task, truth_WHC in truth.items():
        found = []
        for place, level in enumerate(outer(levels)):
            distance_WHC, beyond_WHC = distances[task][:, :, place], truth_WHC - points[task]
            # Where nothing ever moved no factor widens anything.
            ratio_WHC = np.divide(
                beyond_WHC, distance_WHC, out=np.ones_like(beyond_WHC), where=distance_WHC != 0
            )
            found.append(_shift(ratio_WHC, max(level, 1 - level)))
        moved_HLC = np.stack(found, axis=1) - 1.0
        factors[task] = np.maximum(1.0 + kept_share(*truth_WHC.shape[:2]) * moved_HLC, 0.0)
    return factors


def kept_share(num_windows: int, horizon_bars: int) -> float:
    """Say how much of a move is kept that was found in so many windows, which overlap by their horizons.

    >>> kept_share(2_000, 10)
    0.5
    """
    num_independent = num_windows / horizon_bars
    return num_independent / (num_independent + DOUBTED_WINDOWS)


def _shift(beyond_WHC: Floats, level: float) -> Floats:
    """Return the order statistic that a new window exceeds with the chance that its level leaves."""
    num_windows = len(beyond_WHC)
    # The outer end is the cautious one: of n windows and the new one, ceil((n + 1) level) are at or below.
    above = level > MEDIAN
    rank = np.ceil((num_windows + 1) * (level if above else 1 - level))
    place = int(np.clip(rank, 1, num_windows)) - 1
    ordered = np.sort(beyond_WHC, axis=0)
    found: Floats = ordered[place if above else num_windows - 1 - place]
    return found
