"""Who has how much say in `calibration: ensemble`, told by the validation span.

Per task and step, two factors from 0 to 1: how much of the way from the regression to the paths, then how
much of the way from their mean to the network. Each is the one with the smallest absolute error in returns,
and goes but half of the way from where it would be without any knowledge: equal shares of regression and
paths, which are hard to beat by fitted ones (Clemen 1989, doi:10.1016/0169-2070(89)90012-5), and none of the
network, which was fitted to one season and errs most where the market has just changed. scripts/FRONTIER.md
has the figures.

Half of the way may still be far from a member that is much better than the others, where these have gone
astray. Where the mix errs by more than `MOST_LOST` times what one of its members does, that one speaks alone.

Legend: W windows, H steps of the horizon, C columns of a task, M members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.formulas.range_ensemble import MEMBERS
from v8.formulas.shrinkage import EQUAL_SHARE, Shrinkage, TaskShrinkage
from v8.windows.regression import weighted_median
from v8.windows.span import Floats, Span

MOST_LOST: Final = 1.02
"""Error of the mix over that of its best member, by step, up to which the mix is published: going half of the
way costs up to 0.5 % on the validation span of real candles, and that is meant."""


def fit_shares(span: Span, said: Mapping[str, Mapping[str, NDArray[Any]]]) -> dict[str, Floats]:
    """Fit everybody's shares.

    Args:
        span: The validation span.
        said: Per member what it forecasts for these windows, per task, shape (W, H, C), in the task's unit.

    Returns:
        Per task, shape (M, H), in the order of `MEMBERS`; each step adds up to one.
    """
    shares = {}
    for task, truth_WHC in span.truth.items():
        members = [said[member][task].astype(np.float64) for member in MEMBERS]
        network, regressed, walked = members
        # Prices of a series weigh by their level alone, which hardly moves: no need of returns.
        paths_H = (EQUAL_SHARE + _factor(truth_WHC, regressed, walked)) / 2
        mean_WHC = regressed + paths_H[:, None] * (walked - regressed)
        network_H = _factor(truth_WHC, mean_WHC, network) / 2
        rest_H = 1.0 - network_H
        fitted_MH = np.stack([network_H, rest_H * (1.0 - paths_H), rest_H * paths_H])
        shares[task] = _without_loss(truth_WHC, members, fitted_MH)
    return shares


def mix(shares: Mapping[str, Floats], said: Mapping[str, Mapping[str, NDArray[Any]]]) -> dict[str, Floats]:
    """Return what the members forecast together, per task, shape (W, H, C)."""
    return {task: _mixed(one, (said[member][task] for member in MEMBERS)) for task, one in shares.items()}


def told_shares(shares: Mapping[str, Floats]) -> Shrinkage:
    """Say what metadata holds of the shares: the network's."""
    kept = {task: shares_MH[MEMBERS.index("network")] for task, shares_MH in shares.items()}
    return Shrinkage(
        tuple(TaskShrinkage(task, tuple(map(float, kept_H)), "ensemble") for task, kept_H in kept.items())
    )


def _without_loss(truth_WHC: Floats, members: Sequence[Floats], shares_MH: Floats) -> Floats:
    """Leave the steps to the best member in which their mix errs by too much more than it, shape (M, H)."""
    mixed_WHC = _mixed(shares_MH, members)
    error_H, *errors = (np.abs(one - truth_WHC).mean(axis=(0, 2)) for one in (mixed_WHC, *members))
    best_H = np.argmin(errors, axis=0)
    alone_MH = (np.arange(len(members))[:, None] == best_H).astype(np.float64)
    return np.where(error_H > MOST_LOST * np.min(errors, axis=0), alone_MH, shares_MH)


def _mixed(shares_MH: Floats, members: Iterable[Floats]) -> Floats:
    return sum(share_H[:, None] * one for share_H, one in zip(shares_MH, members, strict=True))


def _factor(truth_WHC: Floats, start_WHC: Floats, end_WHC: Floats) -> Floats:
    """Fit how much of the way from start to end has the smallest absolute error, per step, shape (H,)."""
    asked, way = (
        np.moveaxis(one - start_WHC, 1, 2).reshape(-1, truth_WHC.shape[1]) for one in (truth_WHC, end_WHC)
    )
    ratios = np.divide(asked, way, out=np.zeros_like(asked), where=way != 0)
    return np.clip(weighted_median(ratios, np.abs(way)), 0.0, 1.0) + 0.0  # -0.0 is told as 0
