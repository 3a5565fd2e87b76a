"""A formula in place of a network: its published model, and what fits it.

The published model takes raw candles in and gives price units out, with stock Keras operations inside. No
network and no scaling: the window tells the ranges behind, a dense layer the ranges ahead, and one
multiplication with the bars that past windows lent makes the paths of `v8.baselines.ranges`. What was
fitted are weights, so models of one profile differ in weights alone.

Shape legend: B batch, T lookback, H horizon, C open, high, low, close, P paths, R ranges behind.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.baselines.ranges import NUM_PATHS, PATH_LAYERS, fit_range_paths, path_quantiles
from v8.columns import BAND_PERIOD_BARS, CLOSE, HIGH, LOW, OHLC, RANGE_BARS
from v8.hardware import device_of, peak_bytes_of
from v8.networks import serving
from v8.networks.published import PublishedModel
from v8.profile import Profile
from v8.quantile_levels import MEDIAN
from v8.training.trainer import Member, Results, TrainingResult
from v8.windows.dataset import SeriesData

FLOORS: Final = "floors"
"""Name of the layer that holds the smallest deviation and the smallest volatility told apart."""
RANGE_AHEAD: Final = "range_ahead"  # name of the layer that forecasts the log range of each coming bar
PATHS: Final = PATH_LAYERS[1]
"""Name of the layer that holds the bars which past windows lent."""
Weights = Sequence[NDArray[np.float32]]


class FormulaModel(PublishedModel):
    """The published model of one series: a graph that several may share, and its own fitted numbers.

    They are the floor of deviations and the smallest volatility that is forecast, unitless, coefficients and
    constants of the range ahead, and the bars that were lent.
    """

    def __init__(self, model: keras.Model, weights: Weights) -> None:
        self._shared = model
        self._weights = weights

    @property
    def _model(self) -> keras.Model:
        """The shared model with this series' weights."""
        floors, *ahead, resampled = self._weights
        for name, weights in {FLOORS: [floors], RANGE_AHEAD: ahead, PATHS: [resampled]}.items():
            self._shared.get_layer(name).set_weights(weights)
        return self._shared


def build_formula(profile: Profile) -> keras.Model:
    """Build the model of a profile of family `range_paths`, without its numbers.

    It maps `window` (B, T, F), raw features in the profile's order, float32, to a dict, task to (B, H, C),
    float32, quote currency (volatility unitless).
    """
    window_BTF = keras.Input((profile.lookback_bars, len(profile.features)), name="window")
    high_BT, low_BT, close_BT = (
        ops.take(window_BTF, profile.features.index(name), axis=2) for name in (HIGH, LOW, CLOSE)
    )
    row_B2 = serving.looked_up(ops.take(close_BT, 0, axis=1), 2, FLOORS)
    floor_B1, least_B1 = (ops.take(row_B2, [place], axis=1) for place in range(2))
    ahead = serving.dense_ahead(profile, RANGE_AHEAD)
    paths = serving.untrained("bh,phc->bhcp", (profile.horizon_bars, len(OHLC), NUM_PATHS), PATHS)
    deviations_BR = serving.candle_deviations(high_BT, low_BT, RANGE_BARS)
    moved_BHCP = paths(ops.exp(ahead(ops.log(ops.maximum(deviations_BR, floor_B1)))))
    known = [*range(profile.lookback_bars - BAND_PERIOD_BARS, profile.lookback_bars)]
    history_BK = ops.take(close_BT, known, axis=1)
    tasks = profile.shape.tasks
    made = path_quantiles(ops, (MEDIAN,), tasks, history_BK, moved_BHCP)
    last_B11 = ops.expand_dims(ops.take(history_BK, [BAND_PERIOD_BARS - 1], axis=1), -1)
    least_B11 = ops.expand_dims(least_B1, -1)
    outputs = {
        task.name: task.coherent(ops, ops.squeeze(made[task.name], axis=2), last_B11, least_B11)
        for task in tasks
    }
    return keras.Model(window_BTF, outputs, name=f"{profile.name}_forecaster")


class FormulaTrainer:
    """Fits the formula of a profile to series, as `v8.training.trainer` trains networks.

    It publishes float32 only, has no parts of steps, and calls `check` before every fit, which may raise.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        precision: str = "float32",
        check: Callable[[], None] = lambda: None,
        num_parts: int | None = None,
    ) -> None:
        self.profile = profile
        self.precision = precision
        self.num_parts = num_parts or 1
        self._check = check
        self._model = build_formula(profile)
        self.without_twins: list[str] = []  # a formula has no layers

    @property
    def num_parameters(self) -> int:
        """Fitted numbers of one series; the mirror images of paths are none of their own."""
        per_step = len(RANGE_BARS) + 1 + NUM_PATHS // 2 * len(OHLC)
        return self.profile.horizon_bars * per_step + 1

    def fit_fleet(self, members: Sequence[Member]) -> Results:
        """Fit the train span of each series; yield place in `members` and result, as each one is fitted."""
        for place, member in enumerate(members):
            self._check()
            started = time.perf_counter()
            device = device_of(self._model.weights[0].value)
            weights = _fitted_weights(member.data)
            seconds = {"train": time.perf_counter() - started}
            yield place, TrainingResult("fit", weights, seconds, device, peak_bytes_of(device))

    def serving_model(self, data: SeriesData, weights: list[NDArray[np.float32]]) -> FormulaModel:
        """Return the published model of a series: raw window in, price units out, always float32."""
        return FormulaModel(self._model, weights)


def _fitted_weights(data: SeriesData) -> list[NDArray[np.float32]]:
    fitted = fit_range_paths(data.spans["train"])
    least_volatility = serving.LEAST_VOLATILITY_SHARE * data.scaling.volatility_floor
    weights = [[fitted.floor, least_volatility]], fitted.path_LH[1:], fitted.path_LH[0], fitted.resampled_PHC
    return [np.array(one, np.float32) for one in weights]
