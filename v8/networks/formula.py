"""The published model of a formula: raw candles in, price units out, stock Keras operations inside.

No network and no scaling: the window tells the ranges behind, a dense layer the ranges ahead, and one
multiplication with the bars that past windows lent makes the paths of `v8.formulas.range_paths`. What was
fitted are weights, so models of one profile differ in weights alone.

Shape legend: B batch, T lookback, H horizon, C open, high, low, close, P paths, R ranges behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.columns import BAND_PERIOD_BARS, CLOSE, HIGH, LOW, OHLC, RANGE_BARS
from v8.formulas.range_paths import NUM_PATHS, RangePaths, path_medians
from v8.networks.forecasting import Forecasts, forecast_windows, split_outputs
from v8.networks.portable import save_portable
from v8.profile import Profile
from v8.tasks.closes import RANGE_TO_VARIANCE

FLOORS: Final = "floors"
"""Name of the layer that holds the smallest deviation and the smallest volatility told apart."""
RANGE_AHEAD: Final = "range_ahead"
"""Name of the layer that forecasts the log range of each coming bar."""
PATHS: Final = "paths"
"""Name of the layer that holds the bars which past windows lent."""

Weights = Sequence[NDArray[np.float32]]


class FormulaModel:
    """The published model of one series.

    Args:
        model: Made by `build_formula`; several series may share it.
        weights: Those of the series, from `formula_weights`.
    """

    def __init__(self, model: keras.Model, weights: Weights) -> None:
        self._shared, self._weights = model, weights

    def forecast(self, windows_NTF: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Forecast raw windows, per task, shape (N, H, C), in the task's unit."""
        return self.forecast_all(windows_NTF).points

    def forecast_all(self, windows_NTF: NDArray[np.float32]) -> Forecasts:
        """Forecast raw windows, as every published model does."""
        return split_outputs(forecast_windows(self._model, windows_NTF))

    def save(self, file: Path, series: str | None = None) -> None:
        """Write the Keras file, which every Keras from 3.10 on loads, and which names the series."""
        save_portable(self._model, file, series)

    @property
    def _model(self) -> keras.Model:
        """The shared model with this series' weights."""
        floors, *ahead, lent = self._weights
        for name, weights in {FLOORS: [floors], RANGE_AHEAD: ahead, PATHS: [lent]}.items():
            self._shared.get_layer(name).set_weights(weights)
        return self._shared


def build_formula(profile: Profile) -> keras.Model:
    """Build the model of a profile of family `range_paths`, without its numbers.

    Returns:
        Model from `window` (B, T, F), raw features in the profile's order, float32, to a dict, task
        to (B, H, C), float32, quote currency (volatility unitless).
    """
    window_BTF = keras.Input((profile.lookback_bars, profile.num_features), name="window")
    column_BT = {name: ops.take(window_BTF, profile.features.index(name), axis=2) for name in OHLC}
    floor_B1, least_B1 = _floors(column_BT[CLOSE])
    ahead = keras.layers.Dense(profile.horizon_bars, trainable=False, dtype="float32", name=RANGE_AHEAD)
    paths = keras.layers.EinsumDense(
        "bh,phc->bphc",
        output_shape=(NUM_PATHS, profile.horizon_bars, len(OHLC)),
        trainable=False,
        dtype="float32",
        name=PATHS,
    )
    deviations_BR = candle_deviations(column_BT[HIGH], column_BT[LOW], RANGE_BARS)
    moved_BPHC = paths(ops.exp(ahead(ops.log(ops.maximum(deviations_BR, floor_B1)))))
    num_bars = profile.lookback_bars
    known = [*range(num_bars - BAND_PERIOD_BARS, num_bars)]
    history_BK = ops.take(column_BT[CLOSE], known, axis=1)
    tasks = profile.shape.tasks
    made = path_medians(ops, tasks, history_BK, moved_BPHC)
    last_B11 = ops.expand_dims(ops.take(history_BK, [BAND_PERIOD_BARS - 1], axis=1), -1)
    least_B11 = ops.expand_dims(least_B1, -1)
    outputs = {task.name: task.coherent(ops, made[task.name], last_B11, least_B11) for task in tasks}
    return keras.Model(window_BTF, outputs, name=f"{profile.name}_forecaster")


def formula_weights(fitted: RangePaths, least_volatility: float) -> list[NDArray[np.float32]]:
    """List what `FormulaModel` puts into its layers.

    Args:
        fitted: The formula of a series.
        least_volatility: No volatility below this one is forecast, unitless.
    """
    constant_H, coefficients_RH = fitted.coefficients_TH[0], fitted.coefficients_TH[1:]
    floors = [[fitted.floor, least_volatility]]
    return [np.array(one, np.float32) for one in (floors, coefficients_RH, constant_H, fitted.lent_PHC)]


def num_fitted(profile: Profile) -> int:
    """Count the fitted numbers; the mirror images of paths are none of their own."""
    per_step = len(RANGE_BARS) + 1 + NUM_PATHS // 2 * len(OHLC)
    return profile.horizon_bars * per_step + 1


def candle_deviations(high_BT: Any, low_BT: Any, bars: Sequence[int]) -> Any:
    """Return the deviations of `Span.range_variance` over so many bars each, shape (B, R), unitless."""
    num_bars = low_BT.shape[1]
    # Not the logarithm of a ratio: single precision would round the small ranges of one bar.
    range_BT = ops.log1p((high_BT - low_BT) / low_BT)
    newest = [ops.take(range_BT, [*range(num_bars - one, num_bars)], axis=1) for one in bars]
    means_BR = ops.concatenate([ops.mean(one, axis=1, keepdims=True) for one in newest], axis=1)
    return means_BR * float(np.sqrt(RANGE_TO_VARIANCE))


def _floors(close_BT: Any) -> list[Any]:
    """Let every window look up row 0, whatever prices it holds; each of shape (B, 1)."""
    table = keras.layers.Embedding(1, 2, trainable=False, dtype="float32", name=FLOORS)
    row_BT = ops.zeros_like(ops.take(close_BT, 0, axis=1), dtype="int32")
    return [ops.take(table(row_BT), [place], axis=1) for place in range(2)]
