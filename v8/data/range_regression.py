"""A regression that forecasts bands and volatility from the recent range, on a profile's own features.

If every bar ahead moved as the recent range says, the variance of the twenty closes of a band's window would
be that of roll-forward plus the bar's variance times `future_weights`. The deviation that follows and that of
roll-forward itself are the two terms, with a coefficient each per step and column. The recent range blends
ranges over several horizons as the heterogeneous autoregression of Corsi does (2009,
doi:10.1093/jjfinec/nbp001), but with fixed weights: on validation spans a coefficient for each of its ranges
erred more (scripts/FRONTIER.md).

Everything is in recent ranges, as targets are under `scaling: ranged`, and read from the newest row of the
window, so that a published model can compute it too (`v8.models.serving`).

Legend: W windows, H steps of the horizon, R terms, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.columns import RANGED_TASKS, deviation_columns
from v8.data.dataset import SeriesData
from v8.data.regression import least_absolute_errors
from v8.data.targets import future_weights

Coefficients = Mapping[str, NDArray[np.float64]]
"""Per task, shape (H, R, C), scaled targets per unit of a term."""


def regression_terms(data: SeriesData, anchors: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the terms of some windows.

    Args:
        data: Its profile has `deviation_columns`.
        anchors: Last known row of each window, shape (W,).

    Returns:
        Shape (W, H, R), in recent ranges.
    """
    horizon = data.profile.horizon_bars
    rolled_WH = data.table.select(deviation_columns(horizon))[anchors].astype(np.float64)
    return np.stack([np.sqrt(np.square(rolled_WH) + future_weights(horizon)), rolled_WH], axis=2)


def fit_regression(data: SeriesData) -> dict[str, NDArray[np.float64]]:
    """Fit a profile's ranged tasks, per step and column, on the train span alone.

    The sum of absolute errors is that in returns: each window counts by its recent range.

    Args:
        data: The prepared series, of a profile with `scaling: ranged`.

    Returns:
        `Coefficients` of the `RANGED_TASKS` that the profile has.
    """
    anchors = data.anchors["train"]
    weight_W1 = data.weight_N[anchors].astype(np.float64)[:, None]
    terms_HWR = np.moveaxis(regression_terms(data, anchors), 1, 0)
    return {
        task: np.stack(
            [
                least_absolute_errors(weight_W1 * terms_WR, weight_W1 * target_WC)
                for terms_WR, target_WC in zip(terms_HWR, _targets_by_step(data, task, anchors), strict=True)
            ]
        )
        for task in RANGED_TASKS
        if task in data.profile.tasks
    }


def regress(
    data: SeriesData, anchors: NDArray[np.int64], coefficients: Coefficients
) -> dict[str, NDArray[np.float64]]:
    """Forecast windows, per ranged task, shape (W, H, C), scaled as targets are."""
    if not coefficients:
        return {}
    terms_WHR = regression_terms(data, anchors)
    return {
        task: np.einsum("whr,hrc->whc", terms_WHR, coefficients_HRC)
        for task, coefficients_HRC in coefficients.items()
    }


def _targets_by_step(data: SeriesData, task: str, anchors: NDArray[np.int64]) -> NDArray[Any]:
    return np.moveaxis(data.targets_NHC[task][anchors].astype(np.float64), 1, 0)
