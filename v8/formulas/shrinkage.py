"""Shrinkage: how much of what a network says beyond its constant start the validation span bears out.

Per task and step the forecast becomes start + factor x (network - start), with a factor from 0 to 1 that
has the smallest loss on the validation span. A network that learned nothing of use gets 0 and equals the
constant instead of losing to it. Everything is in scaled units, in which the map is linear, so that it can
be folded into the published model exactly.

The factor minimises the task's own loss; for one factor that is a convex function, so the best within 0
and 1 is the best of all, moved to the nearer end:

* `mse`: the projection, sum of (truth - start)(network - start) over the sum of (network - start)^2.
* `mae`: the median of (truth - start) / (network - start), weighted by |network - start|.
* `huber`: where the slope of the loss changes sign, found by halving.

Under `calibration: blend` forecasts move towards a regression on past ranges instead
(`v8.formulas.range_regression`), which is a rival, not silence: the two err differently, and their mean errs
less than either. Equal shares of two good forecasts are hard to beat by fitted ones (Clemen 1989,
doi:10.1016/0169-2070(89)90012-5), so the fitted factor goes half of the way to one half.

Shape legend: W windows, H horizon, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from v8.profile import HUBER_TURN, Loss, Profile
from v8.windows.regression import weighted_median
from v8.windows.scaling import Scaling
from v8.windows.span import Floats

SILENCE: Final = 1e-3
"""A network that strays from its start by less, in scaled units, says nothing: float32 prices, scaled again,
stray by a tenth of this."""

NUM_HALVINGS: Final = 40
"""Halvings of the span from 0 to 1 under `huber`: a factor is then right to twelve digits."""

EQUAL_SHARE: Final = 0.5
"""Factor at which a network and its rival count alike."""

Rivals = Mapping[str, Floats]
"""Forecasts of the regression of `calibration: blend` per task, shape (W, H, C), scaled units."""

NO_RIVALS: Final[Rivals] = MappingProxyType({})


@dataclass(frozen=True)
class TaskShrinkage:
    """How much of a network's forecast of one task is kept.

    Args:
        task: A key of `TASKS`.
        factors: One per step, 0 (all anchor) to 1 (the network as it is), unitless.
        anchor: What it is moved towards: the constant start, a regression on past ranges, or both formulas of
            `v8.formulas.range_ensemble`.
    """

    task: str
    factors: tuple[float, ...]
    anchor: Literal["constant", "regression", "ensemble"] = "constant"


@dataclass(frozen=True)
class Shrinkage:
    """How much of a network's forecasts is kept.

    Args:
        tasks: In the profile's order.
    """

    tasks: tuple[TaskShrinkage, ...]


def fit_shrinkage(
    profile: Profile,
    scaling: Scaling,
    truth: Mapping[str, NDArray[np.float32]],
    forecast: Mapping[str, NDArray[np.float32]],
    weight_W: NDArray[np.float32] | None = None,
    *,
    rivals: Rivals = NO_RIVALS,
) -> Shrinkage:
    """Fit the factors on the validation span.

    Args:
        profile: Gives tasks and losses.
        scaling: Holds the constant start of each task.
        truth: Per task, scaled targets of the validation windows, shape (W, H, C).
        forecast: Per task, the network's scaled forecasts of the same shape.
        weight_W: Weight of each window in the loss, above 0; None weighs them alike.
        rivals: The regression's forecasts of the same windows, for tasks that are blended with it.
    """
    weights = np.ones(len(next(iter(truth.values())))) if weight_W is None else weight_W.astype(np.float64)
    fitted = []
    for task, settings in profile.tasks.items():
        anchor: Floats = rivals.get(task, np.array(scaling.task(task).start))
        factors = _fit(settings.loss, truth[task] - anchor, forecast[task] - anchor, weights)
        if task in rivals:
            factors = (factors + EQUAL_SHARE) / 2
        kept = tuple(float(factor) + 0.0 for factor in factors)  # no minus zero in files
        fitted.append(TaskShrinkage(task, kept, "regression" if task in rivals else "constant"))
    return Shrinkage(tuple(fitted))


def _fit(loss: Loss, asked: Floats, said: Floats, weight_W: Floats) -> Floats:
    """Fit one factor per step to distances from the anchor, shape (W, H, C)."""
    num_steps = asked.shape[1]
    asked = np.moveaxis(asked, 1, 0).reshape(num_steps, -1).T
    said = np.moveaxis(said, 1, 0).reshape(num_steps, -1).T
    said = np.where(np.abs(said).max(axis=0) > SILENCE, said, 0.0)
    weights = np.repeat(weight_W, len(asked) // len(weight_W))[:, None]
    best = {"mse": _projection, "mae": _median_ratio, "huber": _huber}[loss](asked, said, weights)
    return np.clip(best, 0.0, 1.0)


def _projection(asked: Floats, said: Floats, weights: Floats) -> Floats:
    size = (weights * said**2).sum(axis=0)
    return np.divide((weights * asked * said).sum(axis=0), size, out=np.zeros_like(size), where=size > 0)


def _median_ratio(asked: Floats, said: Floats, weights: Floats) -> Floats:
    ratios = np.divide(asked, said, out=np.zeros_like(asked), where=said != 0)
    return weighted_median(ratios, weights * np.abs(said))


def _huber(asked: Floats, said: Floats, weights: Floats) -> Floats:
    low, high = np.zeros(asked.shape[1]), np.ones(asked.shape[1])
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        pull = np.clip(asked - middle * said, -HUBER_TURN, HUBER_TURN)
        falls = (weights * said * pull).sum(axis=0) > 0
        low, high = np.where(falls, middle, low), np.where(falls, high, middle)
    # The ends themselves, which halving only nears.
    return np.where(high < 1e-9, 0.0, np.where(low > 1 - 1e-9, 1.0, low))
