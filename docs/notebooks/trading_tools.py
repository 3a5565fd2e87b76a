# %% [markdown]
# # Trading tools
#
# Forecasts joined to candles, a rule that sizes a position by the coming range, and what it would have earned after fees.
# Nothing here is advice to trade; on the simulated market it shows only how the tables fit together. The same rule in
# backtesting.py and vectorbt: [use forecasts in back-testing tools](../how-to/trading-tools.md).

# %%
import matplotlib.pyplot as plt
import pandas as pd
import v8
from v8.data.market.series import Series
from v8.data.market.sources import open_source

run = v8.train("demo", "frontier", series="BTCUSDT-15m", smoke=True, progress=False)
forecaster = run["BTCUSDT-15m"].forecaster

# %% [markdown]
# ## Forecasts and candles in one frame
#
# `usable_from` is the close of the candle: nobody knows the row earlier. Rows begin after the last candle that training
# has seen.

# %%
candles = open_source("demo").candles(Series.parse("BTCUSDT-15m"), 637).to_frame()
begin = pd.Timestamp(forecaster.trained_until_s, unit="s", tz="UTC")
frame = forecaster.forecast_history(candles, as_frame=True, start=begin).dropna()
frame[["close", "usable_from", "high_ahead_1", "low_ahead_1"]].tail(3)

# %% [markdown]
# ## A rule
#
# The wider the coming range, the smaller the position. A new order only when the wanted share has moved by a tenth.

# %%
ranges = (frame["high_ahead_1"] - frame["low_ahead_1"]) / frame["close"]
wanted = (0.5 * ranges.expanding(min_periods=2).median() / ranges).clip(0.05, 0.95)
share = pd.Series(float("nan"), frame.index)
last = 0.0
for time, value in wanted.items():
    if abs(value - last) > 0.1:
        share[time] = last = value
share.dropna().describe().round(3)

# %% [markdown]
# ## What it would have earned
#
# An order of one row is filled at the next open: `shift(1)`. Fees are 0.1 % of what is traded.

# %%
held = share.ffill().fillna(0).shift(1).fillna(0)
returns = frame["open"].shift(-1) / frame["open"] - 1
fees = 0.001 * held.diff().abs().fillna(0)
wealth = (1 + held * returns.fillna(0) - fees).cumprod()
figure, axes = plt.subplots(figsize=(7, 2.6), dpi=90)
axes.plot(wealth.index, wealth, color="#1668a8", label="sized by the range")
axes.plot(frame.index, frame["close"] / frame["close"].iloc[0], color="#999", label="the coin")
axes.legend(frameon=False)
figure.autofmt_xdate()
plt.show()
print(f"turnover {held.diff().abs().sum():.1f} times the wealth, fees {fees.sum():.2%}")
