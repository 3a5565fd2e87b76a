"""Calibration of a trained model on its validation span, before the test span is touched.

The validation span is forecast once, by the very model that is about to be published; its prices, which
are coherent already, are scaled again and compared with the targets. See `v8.data.shrinkage`.

Legend: N windows, H steps of the horizon, C columns of a task.
"""

from __future__ import annotations

from typing import Any

from v8.artifacts.forecaster import forecast_windows
from v8.data.dataset import SeriesData
from v8.data.shrinkage import Shrinkage, fit_shrinkage
from v8.models.serving import fold_shrinkage


def calibrate(model: Any, data: SeriesData) -> Shrinkage | None:
    """Fit what the profile asks for on the validation span, and fold it into the model.

    Args:
        model: The serving model of the series; changed in place.
        data: The prepared series.

    Returns:
        The factors, or None under `calibration: none`, which leaves the model as it is.
    """
    if data.profile.calibration == "none":
        return None
    anchors = data.anchors["validation"]
    scaled = data.scaled(anchors, forecast_windows(model, data.raw_windows(anchors)))
    truth = {task: values[anchors] for task, values in data.targets_NHC.items()}
    shrinkage = fit_shrinkage(data.profile, data.scaling, truth, scaled, data.weight_N[anchors])
    fold_shrinkage(model, data.scaling, shrinkage)
    return shrinkage
