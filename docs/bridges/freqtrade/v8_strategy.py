"""A strategy for freqtrade that holds a position while the forecast range is no wider than usual.

The close is a random walk to every model of v8, so its direction is not used: forecasts say how far it may
move, which decides whether to hold a position, how large, and where the stop lies. An example, no advice.

    "v8": {"export": "forecasts.parquet"}      in the configuration; or {"models": "runs/frontier"},
                                               {"models": "user/name"}, {"api": "http://127.0.0.1:8008"}

freqtrade is GPL-3.0, which applies to a distribution of both together. v8 neither imports nor contains it.
"""

from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar

from freqtrade.persistence import Trade
from freqtrade.strategy import IStrategy, stoploss_from_absolute
from pandas import DataFrame, Series
from v8_columns import (
    STOP,
    USUAL,
    VOLATILITY,
    Forecasts,
    aligned,
    closes,
    entries,
    forecasts_from,
    size,
)


def series_of(pair: str, timeframe: str) -> str:
    """Return what v8 calls a pair: BTCUSDT-1h for BTC/USDT, and for BTC/USDT:USDT."""
    return f"{pair.partition(':')[0].replace('/', '')}-{timeframe}"


class V8Strategy(IStrategy):  # type: ignore[misc]  # freqtrade is not installed for the checks
    """Long while the forecast volatility is below its usual, sized by it, with the stop at a quantile."""

    INTERFACE_VERSION = 3
    timeframe = "1h"
    can_short = False
    minimal_roi: ClassVar[dict[str, float]] = {}  # nothing is sold for having gained
    stoploss = -0.5  # until the forecast's own stop is set, immediately
    use_custom_stoploss = True
    process_only_new_candles = True
    startup_candle_count = 800  # to warm models up, and usual volatility behind that

    target = 0.3  # volatility of a year
    most = 1.0  # of a pair's part of the wallet
    leaves_at = 1.25  # times the usual volatility

    @cached_property
    def forecasts(self) -> Forecasts:
        """What gives forecasts, as the configuration says."""
        return forecasts_from(self.config.get("v8", {}))

    def populate_indicators(self, dataframe: DataFrame, metadata: dict[str, Any]) -> DataFrame:
        """Put forecasts next to the candles at whose close they could be used first."""
        return aligned(dataframe, self.forecasts(series_of(metadata["pair"], self.timeframe), dataframe))

    def populate_entry_trend(self, dataframe: DataFrame, metadata: dict[str, Any]) -> DataFrame:
        """Enter where the coming range is no wider than usual."""
        dataframe.loc[entries(dataframe), "enter_long"] = 1
        return dataframe

    def populate_exit_trend(self, dataframe: DataFrame, metadata: dict[str, Any]) -> DataFrame:
        """Leave where it is much wider."""
        dataframe.loc[dataframe[VOLATILITY] > self.leaves_at * dataframe[USUAL], "exit_long"] = 1
        return dataframe

    def custom_stake_amount(  # noqa: PLR0917 - as freqtrade calls it
        self,
        pair: str,
        current_time: datetime,
        current_rate: float,
        proposed_stake: float,
        min_stake: float | None,
        max_stake: float,
        leverage: float,
        entry_tag: str | None,
        side: str,
        **kwargs: Any,
    ) -> float:
        """Put in the less the wider the coming range."""
        part = self.wallets.get_total_stake_amount() / max(self.config["max_open_trades"], 1)
        row = self._newest_row(pair, current_time)
        share = 0.0 if row is None else size(row[VOLATILITY], self.target, self.most)
        if not share:
            return 0.0  # no trade
        return min(max(part * share, min_stake or 0.0), max_stake)

    def custom_stoploss(  # noqa: PLR0917 - as freqtrade calls it
        self,
        pair: str,
        trade: Trade,
        current_time: datetime,
        current_rate: float,
        current_profit: float,
        after_fill: bool,
        **kwargs: Any,
    ) -> float | None:
        """Set the stop once, where the forecast that was known at the entry has its lowest quantile."""
        row = self._newest_row(pair, trade.open_date_utc) if after_fill else None
        if row is None:
            return None  # it stays where it is
        return stoploss_from_absolute(row[STOP], current_rate, is_short=trade.is_short)

    def _newest_row(self, pair: str, when: datetime) -> Series | None:
        """Return the newest row that had closed by then; None where it has no forecast."""
        frame, _ = self.dp.get_analyzed_dataframe(pair, self.timeframe)
        rows = frame[closes(frame) <= when]
        return None if rows.empty or rows[VOLATILITY].isna().iloc[-1] else rows.iloc[-1]
