# %% [markdown]
# # Own candles and plug-ins
#
# v8 trains on any frame of candles, and on features and baselines of your own. The candles here are a random walk made
# with NumPy, so that the notebook needs no file; put your own frame in its place.

# %%
from pathlib import Path

import numpy as np
import pandas as pd
import v8

# %% [markdown]
# ## Candles
#
# A frame needs the time at which each bar opens, and open, high, low, close and volume. The volatility of this walk comes
# in waves, as that of a market does.

# %%
random = np.random.default_rng(7)
num_bars = 1_200
size = 0.004 * np.exp(0.6 * np.sin(np.arange(num_bars) / 40))
close = 100 * np.exp(np.cumsum(random.normal(0, size)))
opened = np.concatenate([[100.0], close[:-1]])
spread = size * close * random.uniform(0.2, 1.0, num_bars)
candles = pd.DataFrame(
    {
        "open": opened,
        "high": np.maximum(opened, close) + spread,
        "low": np.minimum(opened, close) - spread,
        "close": close,
        "volume": random.uniform(10, 20, num_bars),
    },
    index=pd.date_range("2026-01-01", periods=num_bars, freq="1h", tz="UTC", name="open_time"),
)
candles.tail(3).round(2)

# %% [markdown]
# ## A baseline in a plug-in
#
# A plug-in is a file that registers something. Worker processes load it too, so it is a file and no cell. This one adds a
# baseline: the close goes half of the way back to its mean.

# %%
Path("halfway.py").write_text(
    '''
import numpy as np

from v8.model.baselines.baselines import BASELINES, Baseline
from v8.profile.columns import TASK_OHLC


def fit_halfway(train, scaling):
    def forecast(span):
        halfway = (span.last_close + span.history_close.mean(axis=1)) / 2
        return {TASK_OHLC: np.broadcast_to(halfway[:, None, None], span.target_shape(TASK_OHLC))}

    return forecast


BASELINES.register(Baseline("halfway", "The close goes half of the way back to its mean.", "this file", fit_halfway))
'''
)
v8.plugin("halfway.py")

# %% [markdown]
# ## Train with them
#
# `features` adds an indicator of the package `ta` to those of the profile; `epochs` and `learning_rate` change keys of
# its training. A changed key is another profile, with a run of its own.

# %%
profile = v8.Profile.of("frontier")
profile = profile.but(
    features=[*profile.features, "ta.rsi"], newest_bars=1_200, training={"epochs": 3, "learning_rate": 1e-3}
)
run = v8.train(candles, profile, series="MYCOINUSDT-1h", plugin=["halfway.py"], progress=False)
run.leaderboard[["ohlc_relative_mae", "volatility_relative_mae", "volatility_verdict"]].T

# %% [markdown]
# The baseline is evaluated together with all others. A relative MAE above 1 says that it is worse than a close that stays:

# %%
errors = run["MYCOINUSDT-1h"].evaluation
close_errors = errors[(errors["task"] == "ohlc") & (errors["column"] == "close")]
mae = close_errors.groupby("forecaster")["mae_return"].mean()
(mae / mae["naive"]).round(3).sort_values()
