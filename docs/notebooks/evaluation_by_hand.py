# %% [markdown]
# # Evaluation by hand
#
# Every number of a leaderboard can be computed again with pandas. This notebook does it for one model of the simulated
# market. What the numbers mean is explained in [how models are evaluated](../explanation/evaluation.md).

# %%
import numpy as np
import pandas as pd
import v8
from v8.data.market.series import Series
from v8.data.market.sources import open_source

run = v8.train("demo", "frontier", series="BTCUSDT-1h", smoke=True, progress=False)
trained = run["BTCUSDT-1h"]
published = run.leaderboard.loc["BTCUSDT-1h", "volatility_relative_mae"]
print(f"{published:.8f}")

# %% [markdown]
# ## The relative MAE from the errors of each step

# %%
errors = trained.evaluation
volatility = errors[errors["task"] == "volatility"]
mae = volatility.groupby("forecaster")["mae_return"].mean()
print(f"{mae['model'] / mae['naive']:.8f}")

# %% [markdown]
# ## The same from forecasts and candles
#
# The forecaster forecasts every window of the test part again. Actual values come from the candles alone: volatility is the
# standard deviation of the last twenty closes, divided by their mean.

# %%
candles = open_source("demo").candles(Series.parse("BTCUSDT-1h"), trained.metadata["candles"]["num_bars"]).to_frame()
test = trained.metadata["split"]["test"]
history = trained.forecaster.forecast_history(candles, start=test["first_open"])
closes = candles["close"]
actual = closes.rolling(20).std() / closes.rolling(20).mean()
forecasts = history["volatility"].reset_index()
forecasts["actual"] = actual.reindex(forecasts["open_time"]).to_numpy()
forecasts = forecasts.dropna()
complete = forecasts.groupby("issued_at")["step"].transform("size") == 10
# A window of the test part reads 20 bars of it before it forecasts.
begin = pd.Timestamp(test["first_open"]) + 20 * pd.Timedelta("1h")
forecasts = forecasts[complete & (forecasts["issued_at"] >= begin)]
print(forecasts["issued_at"].nunique(), "windows")


# %% [markdown]
# The naive forecast is the same formula with a close that stays:

# %%
def naive_volatility(issued_at: pd.Timestamp, step: int) -> float:
    known = closes[closes.index < issued_at].to_numpy()[-20:]
    window = np.concatenate([known, np.full(step, known[-1])])[-20:]
    return float(window.std(ddof=1) / window.mean())


pairs = zip(forecasts["issued_at"], forecasts["step"], strict=True)
forecasts["naive"] = [naive_volatility(issued_at, step) for issued_at, step in pairs]
model_mae = (forecasts["volatility"] - forecasts["actual"]).abs().mean()
naive_mae = (forecasts["naive"] - forecasts["actual"]).abs().mean()
print(f"{model_mae / naive_mae:.5f}")

# %% [markdown]
# ## Is the difference more than chance?
#
# Windows overlap, so their errors depend on each other. With the 21 windows of a smoke run no test is possible, which the
# leaderboard says:

# %%
print(run.leaderboard.loc["BTCUSDT-1h", "volatility_verdict"])

# %% [markdown]
# ## Are the intervals honest?
#
# Coverage is the share of actual values within the interval from the 5 % to the 95 % quantile:

# %%
within = history.reset_index().merge(forecasts[["issued_at", "step", "actual"]], on=["issued_at", "step"])
inside = within["actual"].between(within["volatility_q5"], within["volatility_q95"])
print(f"{inside.mean():.3f}")
