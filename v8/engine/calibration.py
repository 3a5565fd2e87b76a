"""Calibration of a trained model on its validation span, before the test span is touched.

The validation span is forecast once, by the very model that is about to be published; its prices, which
are coherent already, are scaled again and compared with the targets. See `v8.data.shrinkage`.

Under `calibration: blend` a regression is fitted to the train span first (`v8.data.range_regression`).

Legend: N windows, H steps of the horizon, C columns of a task.
"""

from __future__ import annotations

from v8.data.dataset import SeriesData
from v8.data.range_regression import fit_regression, regress
from v8.data.shrinkage import NO_RIVALS, Shrinkage, fit_shrinkage
from v8.models.serving import ServingModel


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
    span = data.spans["validation"]
    regression = fit_regression(data) if profile.calibration == "blend" else None
    shrinkage = fit_shrinkage(
        profile,
        data.scaling,
        truth={task: values[span.anchors] for task, values in data.targets_NHC.items()},
        forecast=data.scaling.scale_targets(span, model.forecast(span.raw_windows())),
        weight_W=data.weight_N[span.anchors],
        rivals=regress(span, regression) if regression else NO_RIVALS,
    )
    model.fold(shrinkage, regression)
    return shrinkage
