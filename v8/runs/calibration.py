"""Calibration: how much the validation span lets a network say beside two formulas, folded into its model.

What the network itself forecasts there is read from the published model, whose outputs are coherent already.
Under `calibration: ensemble` two formulas are fitted to the train span (`v8.formulas.ranges`) and
mixed with it, and quantiles lie off the mix as those of simulated paths do, stretched until they hold their
shares of the windows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.formulas.quantiles import conformal_widths
from v8.formulas.ranges import MEMBERS, Shares, fit_ensemble, fit_shares, mix, told_shares
from v8.networks.serving import ServingModel
from v8.quantile_levels import apart
from v8.windows.dataset import SeriesData


def calibrate(model: ServingModel, data: SeriesData) -> Shares | None:
    """Fit the shares on the validation span and fold them into the model; None under `calibration: none`."""
    if data.profile.calibration == "none":
        return None
    span, levels = data.spans["validation"], data.profile.quantiles
    ensemble = fit_ensemble(data.spans["train"])
    walked = ensemble.walk_quantiles(span, levels) if levels else {}
    parted = {task: apart(np, levels, values) for task, values in walked.items()}
    medians = {task: median for task, (median, _) in parted.items()} or ensemble.walk(span)
    members: list[Mapping[str, NDArray[Any]]] = [
        model.forecast(span.raw_windows()),
        ensemble.regress(span),
        medians,
    ]
    said = dict(zip(MEMBERS, members, strict=True))
    shares = fit_shares(span, said)
    model.fold_ensemble(ensemble, shares)
    if levels:
        distances = {task: distance for task, (_, distance) in parted.items()}
        model.fold_widths(conformal_widths(levels, span.truth, mix(shares, said), distances))
    return told_shares(shares)
