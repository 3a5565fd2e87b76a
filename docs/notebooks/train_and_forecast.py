# %% [markdown]
# # Train and forecast
#
# From nothing to a forecast with its intervals, on the simulated market `demo`: nothing is downloaded, and these numbers
# say nothing about real coins.

# %%
import matplotlib.pyplot as plt
import v8
from v8.data.market.series import Series
from v8.data.market.sources import open_source

# %% [markdown]
# `smoke=True` trains a tiny model on few candles. Leave it away for a real one, and write `"vision"` in place of `"demo"`
# for candles of the exchange's archive.

# %%
run = v8.train("demo", "frontier", series="BTCUSDT-1h", smoke=True, progress=False)
run.leaderboard[["ohlc_relative_mae", "bands_relative_mae", "volatility_relative_mae"]].T.round(3)

# %% [markdown]
# Below 1 the model has a lower error than the naive forecast, in which the close stays where it is; bands and
# volatility follow from that. The test part of so short a run is too short for a statistical test:

# %%
run.leaderboard["volatility_verdict"].item()

# %% [markdown]
# ## Forecast the next ten bars
#
# A forecaster takes any frame with open, high, low, close and volume. Here it is the end of the simulated market.

# %%
candles = open_source("demo").candles(Series.parse("BTCUSDT-1h"), 300).to_frame()
forecaster = run["BTCUSDT-1h"].forecaster
forecast = forecaster.predict(candles)
forecast[["open", "high", "low", "close"]].round(1)

# %% [markdown]
# ## How sure is it?
#
# Quantiles stand in the same frame: between `close_q5` and `close_q95` the close should lie 9 of 10 times.

# %%
known = candles["close"].iloc[-40:]
figure, axes = plt.subplots(figsize=(7, 3), dpi=90)
axes.plot(known.index, known, color="#555")
axes.plot(forecast.index, forecast["close"], color="#1668a8")
for low, high, strength in (("close_q5", "close_q95", 0.15), ("close_q25", "close_q75", 0.3)):
    axes.fill_between(forecast.index, forecast[low], forecast[high], color="#1668a8", alpha=strength, lw=0)
axes.set_ylabel("close, USDT")
figure.autofmt_xdate()
plt.show()
