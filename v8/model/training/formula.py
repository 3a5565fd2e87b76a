"""The formula of family `range_paths`, which takes the place of a network: its published model, and its fit.

The published model maps raw candles to forecasts in price units with stock Keras operations. It has no
network and no scaling: past ranges are computed from the window, a dense layer forecasts the ranges of the
bars ahead, and a product with bars resampled from past windows gives the paths of
`v8.model.baselines.ranges`. All fitted numbers are weights, so models of one profile differ in weights alone.

Shape legend: B batch, T lookback, H horizon, C open, high, low, close, P paths, R past ranges, K known
closes.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.base.hardware import device_of, peak_bytes_of
from v8.data.windows import SeriesData
from v8.model.baselines.paths import path_quantiles
from v8.model.baselines.ranges import NUM_PATHS, PATH_LAYERS, fit_range_paths
from v8.model.networks import serving
from v8.model.networks.published import PublishedModel
from v8.model.training.trainer import FleetMember, FleetResults, TrainingResult
from v8.profile.columns import BAND_PERIOD_BARS, CLOSE, HIGH, LOW, MEDIAN, OHLC, RANGE_BARS
from v8.profile.profile import Profile

FLOORS: Final = "floors"
"""Name of the layer with the smallest deviation and the smallest forecast volatility."""
RANGE_AHEAD: Final = "range_ahead"  # name of the layer that forecasts the log range of each bar ahead
PATHS: Final = PATH_LAYERS[1]
"""Name of the layer with the bars resampled from past windows."""
Weights = Sequence[NDArray[np.float32]]


class FormulaModel(PublishedModel):
    """The published model of one series: a graph that several may share, and its own fitted numbers.

    These are the smallest deviation and the smallest forecast volatility, unitless; the coefficients and the
    constants of the ranges ahead; and the resampled bars.
    """

    def __init__(self, model: keras.Model, weights: Weights) -> None:
        self._shared = model
        self._weights = weights

    @property
    def keras_model(self) -> keras.Model:
        """The shared model with this series' weights."""
        floors, coefficients, constants, bars = self._weights
        self._shared.get_layer(FLOORS).set_weights([floors])
        self._shared.get_layer(RANGE_AHEAD).set_weights([coefficients, constants])
        self._shared.get_layer(PATHS).set_weights([bars])
        return self._shared


def build_formula(profile: Profile) -> keras.Model:
    """Build the model of a profile of family `range_paths`, without its fitted numbers.

    It maps `window` (B, T, F), raw features in the profile's order, float32, to a dict, task to (B, H, C),
    float32, quote currency (volatility unitless).
    """
    window_BTF = keras.Input((profile.lookback_bars, len(profile.features)), name="window")
    high_BT = ops.take(window_BTF, profile.features.index(HIGH), axis=2)
    low_BT = ops.take(window_BTF, profile.features.index(LOW), axis=2)
    close_BT = ops.take(window_BTF, profile.features.index(CLOSE), axis=2)
    row_B2 = serving.looked_up(ops.take(close_BT, 0, axis=1), 2, FLOORS)
    floor_B1 = ops.take(row_B2, [0], axis=1)
    least_B1 = ops.take(row_B2, [1], axis=1)
    ahead = serving.dense_ahead(profile, RANGE_AHEAD)
    paths = serving.untrained("bh,phc->bhcp", (profile.horizon_bars, len(OHLC), NUM_PATHS), PATHS)
    deviations_BR = serving.candle_deviations(high_BT, low_BT, RANGE_BARS)
    ranges_BH = ops.exp(ahead(ops.log(ops.maximum(deviations_BR, floor_B1))))
    moved_BHCP = paths(ranges_BH)
    known_bars = list(range(profile.lookback_bars - BAND_PERIOD_BARS, profile.lookback_bars))
    history_BK = ops.take(close_BT, known_bars, axis=1)
    tasks = profile.shape.tasks
    medians = path_quantiles(ops, (MEDIAN,), tasks, history_BK, moved_BHCP)
    last_B11 = ops.expand_dims(ops.take(history_BK, [BAND_PERIOD_BARS - 1], axis=1), -1)
    least_B11 = ops.expand_dims(least_B1, -1)
    outputs = {
        task.name: task.coherent(ops, ops.squeeze(medians[task.name], axis=2), last_B11, least_B11)
        for task in tasks
    }
    return keras.Model(window_BTF, outputs, name=f"{profile.name}_forecaster")


class FormulaTrainer:
    """Fits the formula of a profile to series, as `v8.model.training.trainer` trains networks.

    It publishes float32 only and has no micro-batches. `check_interrupt` is called before every fit, and may
    raise.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        precision: str = "float32",
        check_interrupt: Callable[[], None] = lambda: None,
        num_micro_batches: int | None = None,
    ) -> None:
        self.profile = profile
        self.precision = precision
        self.num_micro_batches = num_micro_batches or 1
        self._check_interrupt = check_interrupt
        self._model = build_formula(profile)
        self.unstackable_layers: list[str] = []  # a formula has no layers

    @property
    def num_parameters(self) -> int:
        """Number of fitted numbers of one series; half of the paths are mirrored and have none."""
        per_step = len(RANGE_BARS) + 1 + NUM_PATHS // 2 * len(OHLC)
        return self.profile.horizon_bars * per_step + 1

    def fit_fleet(self, members: Sequence[FleetMember]) -> FleetResults:
        """Fit the train span of each series; yield index in `members` and result, as each one is fitted."""
        for index, member in enumerate(members):
            self._check_interrupt()
            started = time.perf_counter()
            device = device_of(self._model.weights[0].value)
            weights = _fitted_weights(member.data)
            seconds = {"train": time.perf_counter() - started}
            yield index, TrainingResult("fit", weights, seconds, device, peak_bytes_of(device))

    def serving_model(self, data: SeriesData, weights: list[NDArray[np.float32]]) -> FormulaModel:
        """Return the published model of a series: raw window in, price units out, always float32."""
        return FormulaModel(self._model, weights)


def _fitted_weights(data: SeriesData) -> list[NDArray[np.float32]]:
    """Fit the train span; return the weights of a `FormulaModel`."""
    fitted = fit_range_paths(data.spans["train"])
    least_volatility = serving.LEAST_VOLATILITY_SHARE * data.scaling.volatility_floor
    weights = [
        [[fitted.floor, least_volatility]],
        fitted.path_LH[1:],
        fitted.path_LH[0],
        fitted.resampled_PHC,
    ]
    return [np.array(weight, np.float32) for weight in weights]
