"""Calibration of a trained model on its validation span, before the test span is touched.

The validation span is forecast once, by the very model that is about to be published; its prices, which
are coherent already, are scaled again and compared with the targets. See `v8.data.shrinkage`.

Under `calibration: blend` a regression is fitted to the train span first (`v8.data.range_regression`).

Under `calibration: ensemble` two formulas are fitted to it (`v8.data.range_ensemble`), and what the network
forecasts is mixed with theirs in the units of the tasks.

Quantiles come last: the span is forecast again, by the calibrated model, and each quantile is moved to where
it holds its share of the windows (`v8.data.quantiles`).

Legend: N windows, H steps of the horizon, Q levels, C columns of a task.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from v8.data.dataset import SeriesData
from v8.data.ensemble_shares import fit_shares, told_shares
from v8.data.quantiles import conformal_shifts, fit_spread
from v8.data.range_ensemble import fit_ensemble
from v8.data.range_regression import fit_regression, forecast_ranges, regress
from v8.data.shrinkage import NO_RIVALS, Shrinkage, fit_shrinkage
from v8.levels import quantile_output
from v8.models.serving import ServingModel
from v8.tasks.closes import RANGE_TO_VARIANCE


def calibrate(model: ServingModel, data: SeriesData) -> Shrinkage | None:
    """Fit what the profile asks for on the validation span, and fold it into the model.

    Args:
        model: The serving model of the series; changed in place.
        data: The prepared series.

    Returns:
        The factors, or None under `calibration: none`, which leaves the model as it is.
    """
    profile = data.profile
    if profile.calibration == "none":
        return None
    windows_NTF = data.spans["validation"].raw_windows()
    found = (_mix if profile.calibration == "ensemble" else _shrink)(model, data, windows_NTF)
    if profile.quantiles:
        _calibrate_quantiles(model, data, windows_NTF)
    return found


def _mix(model: ServingModel, data: SeriesData, windows_NTF: NDArray[np.float32]) -> Shrinkage:
    """Let formulas forecast beside the network."""
    train = data.spans["train"]
    ensemble = fit_ensemble(train)
    shares = fit_shares(data.spans["validation"], model.forecast(windows_NTF), ensemble)
    model.fold_ensemble(ensemble, shares)
    if data.profile.quantiles:
        medians = data.scaling.scale_targets(train, ensemble.regress(train))
        recent_W1 = data.scaling.floored_range(train.recent_range)[:, None]
        squares_WH = RANGE_TO_VARIANCE * np.square(ensemble.ranges(train) / recent_W1)
        model.fold_spread(fit_spread(data, medians, squares_WH))
    return told_shares(shares)


def _shrink(model: ServingModel, data: SeriesData, windows_NTF: NDArray[np.float32]) -> Shrinkage:
    """Shrink the network's forecasts towards the constant, or blend them with a regression."""
    profile, span = data.profile, data.spans["validation"]
    regression = fit_regression(data) if profile.calibration == "blend" else None
    shrinkage = fit_shrinkage(
        profile,
        data.scaling,
        truth={task: values[span.anchors] for task, values in data.targets_NHC.items()},
        forecast=data.scaling.scale_targets(span, model.forecast(windows_NTF)),
        weight_W=data.weight_N[span.anchors],
        rivals=regress(span, regression) if regression else NO_RIVALS,
    )
    model.fold(shrinkage, regression)
    if profile.quantiles and regression:
        train = data.spans["train"]
        squares_WH = np.square(forecast_ranges(train, regression.path_LH))
        model.fold_spread(fit_spread(data, regress(train, regression), squares_WH))
    return shrinkage


def _calibrate_quantiles(model: ServingModel, data: SeriesData, windows_NTF: NDArray[np.float32]) -> None:
    """Move the quantiles to where they hold their shares of the validation windows."""
    span, levels = data.spans["validation"], data.profile.quantiles
    forecast = model.forecast_all(windows_NTF).quantiles
    by_level = [
        data.scaling.scale_targets(span, {task: values[:, :, place] for task, values in forecast.items()})
        for place in range(len(levels))
    ]
    quantiles = {task: np.stack([one[task] for one in by_level], axis=2) for task in forecast}
    truth = {task: values[span.anchors] for task, values in data.targets_NHC.items()}
    units = {task: data.units_NHC[quantile_output(task)][span.anchors] for task in truth}
    model.fold_shifts(conformal_shifts(levels, truth, quantiles, units))
