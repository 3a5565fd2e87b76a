"""A FreqAI model that forecasts with a published repository of v8, and the strategy that trades by it.

Nothing is trained here: the configuration names the models that forecast, `"v8": {"models": "user/name"}`,
and each window of FreqAI gets their forecasts from candles up to its rows. There are three labels: the
annualised volatility of the bars ahead, its usual value, and the log distance from the close to their lowest
low.

freqtrade is GPL-3.0, which applies to a distribution of both together. v8 neither imports nor contains it.
"""

from typing import Any

import numpy as np
from freqtrade.freqai.data_kitchen import FreqaiDataKitchen
from freqtrade.freqai.freqai_interface import IFreqaiModel
from numpy.typing import NDArray
from pandas import DataFrame, Series
from v8_columns import (
    RANGE_TO_VARIANCE,
    STOP,
    USUAL,
    VOLATILITY,
    YEAR,
    aligned,
    bar_of,
    forecasts_from,
    with_usual,
)
from v8_strategy import V8Strategy, series_of

AHEAD_BARS = 10
LABELS = {name: f"&-{name}" for name in (VOLATILITY, USUAL, STOP)}


class V8Forecaster(IFreqaiModel):  # type: ignore[misc]  # freqtrade is not installed for the checks
    """What the models of a repository, or of a run's folder, say."""

    def __init__(self, config: dict[str, Any], **kwargs: Any) -> None:
        """Open the place; whatever is wrong with it stops the bot immediately."""
        super().__init__(config=config)
        self.forecasts = forecasts_from(config.get("v8", {}))

    def train(self, unfiltered_df: DataFrame, pair: str, dk: FreqaiDataKitchen, **kwargs: Any) -> str:
        """Train nothing; note the spread of the labels, as FreqAI asks for it."""
        features, labels = dk.filter_features(
            unfiltered_df, dk.training_features_list, dk.label_list, training_filter=True
        )
        dk.make_train_test_datasets(features, labels)
        dk.fit_labels()
        dk.feature_pipeline = self.define_data_pipeline()
        dk.label_pipeline = self.define_label_pipeline()
        return pair

    def fit(self, data_dictionary: dict[str, Any], dk: FreqaiDataKitchen, **kwargs: Any) -> None:
        """Fit nothing: `train` does not ask for it."""

    def predict(
        self, unfiltered_df: DataFrame, dk: FreqaiDataKitchen, **kwargs: Any
    ) -> tuple[DataFrame, NDArray[np.int_]]:
        """Return the labels of each row, and 1 where there is a forecast, 0 elsewhere."""
        dk.find_features(unfiltered_df)
        candles = self.data_provider.get_pair_dataframe(dk.pair, self.config["timeframe"])
        past = candles[candles["date"] <= unfiltered_df["date"].max()]
        forecasts = aligned(past, self.forecasts(series_of(dk.pair, self.config["timeframe"]), past))
        rows = unfiltered_df[["date"]].merge(forecasts, how="left", on="date", validate="one_to_one")
        rows[STOP] = np.log(rows[STOP] / rows["close"])
        labels = rows[[*LABELS]].rename(columns=LABELS)
        return labels.fillna(0.0), labels.notna().all(axis=1).to_numpy().astype(np.int_)


class V8FreqaiStrategy(V8Strategy):
    """`V8Strategy` by what a FreqAI model says."""

    def populate_indicators(self, dataframe: DataFrame, metadata: dict[str, Any]) -> DataFrame:
        """Take the labels where there is a forecast."""
        frame = self.freqai.start(dataframe, metadata, self)
        labels = {name: frame[label].where(frame["do_predict"] == 1) for name, label in LABELS.items()}
        return frame.assign(**labels | {STOP: frame["close"] * np.exp(labels[STOP])})

    def feature_engineering_standard(
        self, dataframe: DataFrame, metadata: dict[str, Any], **kwargs: Any
    ) -> DataFrame:
        """Name a feature, because FreqAI wants one; models of v8 make their own from the candles."""
        return dataframe.assign(**{"%-close": dataframe["close"]})

    def set_freqai_targets(self, dataframe: DataFrame, metadata: dict[str, Any], **kwargs: Any) -> DataFrame:
        """Say what came of each label."""
        squares = Series(np.log(dataframe["high"] / dataframe["low"]) ** 2)
        variance = RANGE_TO_VARIANCE * (YEAR / bar_of(dataframe)) * squares.rolling(AHEAD_BARS).mean()
        lows = dataframe["low"].rolling(AHEAD_BARS).min().shift(-AHEAD_BARS)
        labels = with_usual(DataFrame({VOLATILITY: np.sqrt(variance).shift(-AHEAD_BARS)}))
        return dataframe.join(
            labels.assign(**{STOP: np.log(lows / dataframe["close"])}).rename(columns=LABELS)
        )
