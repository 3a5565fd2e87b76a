"""Calibration of a trained model on its validation span, before the test span is touched.

The validation span is forecast once, by the very model that is about to be published; its prices, which
are coherent already, are scaled again and compared with the targets. See `v8.formulas.shrinkage`.

Under `calibration: blend` a regression is fitted to the train span first (`v8.formulas.range_regression`).

Under `calibration: ensemble` two formulas are fitted to it (`v8.formulas.range_ensemble`), and what the
network forecasts is mixed with theirs in the units of the tasks.

Quantiles come last: each is moved from where the calibrated model has it to where it holds its share of the
windows (`v8.formulas.quantiles`).

Legend: N windows, H steps of the horizon, Q levels, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.formulas.ensemble_shares import fit_shares, mix, told_shares
from v8.formulas.quantiles import conformal_shifts, conformal_widths, fit_spread
from v8.formulas.range_ensemble import MEMBERS, fit_ensemble
from v8.formulas.range_regression import fit_regression, regress
from v8.formulas.shrinkage import NO_RIVALS, Shrinkage, fit_shrinkage
from v8.networks.serving import ServingModel
from v8.quantile_levels import apart, quantile_output
from v8.windows.dataset import SeriesData


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
    return (_mix if profile.calibration == "ensemble" else _shrink)(model, data, windows_NTF)


def _mix(model: ServingModel, data: SeriesData, windows_NTF: NDArray[np.float32]) -> Shrinkage:
    """Let formulas forecast beside the network, and simulated paths say how sure that is."""
    span, levels = data.spans["validation"], data.profile.quantiles
    ensemble = fit_ensemble(data.spans["train"])
    walked = ensemble.walk_quantiles(span, levels) if levels else {}
    parted = {task: apart(np, levels, values) for task, values in walked.items()}
    medians = {task: median for task, (median, _) in parted.items()} or ensemble.walk(span)
    members: list[Mapping[str, NDArray[Any]]] = [model.forecast(windows_NTF), ensemble.regress(span), medians]
    said = dict(zip(MEMBERS, members, strict=True))
    shares = fit_shares(span, said)
    model.fold_ensemble(ensemble, shares)
    if levels:
        distances = {task: distance for task, (_, distance) in parted.items()}
        model.fold_widths(conformal_widths(levels, span.truth, mix(shares, said), distances))
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
        model.fold_spread(fit_spread(data, regression))
    if profile.quantiles:
        _shift_quantiles(model, data, model.forecast_all(windows_NTF).quantiles)
    return shrinkage


def _shift_quantiles(model: ServingModel, data: SeriesData, forecast: Mapping[str, NDArray[Any]]) -> None:
    """Move the quantiles to where they hold their shares of the validation windows.

    Args:
        model: Calibrated but for its quantiles.
        data: The prepared series.
        forecast: What the model says of these windows, per task, shape (N, H, Q, C), in the task's unit.
    """
    span, levels = data.spans["validation"], data.profile.quantiles
    by_level = [
        data.scaling.scale_targets(span, {task: values[:, :, place] for task, values in forecast.items()})
        for place in range(len(levels))
    ]
    quantiles = {task: np.stack([one[task] for one in by_level], axis=2) for task in forecast}
    truth = {task: values[span.anchors] for task, values in data.targets_NHC.items()}
    units = {task: data.units_NHC[quantile_output(task)][span.anchors] for task in truth}
    model.fold_shifts(conformal_shifts(levels, truth, quantiles, units))
