"""`v8.features(candles, profile)`: exactly what a published model is fed with, for plain Keras."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from v8.api.arguments import in_python
from v8.artifacts.forecast_input import checked_candles
from v8.columns import OPEN_TIME
from v8.errors import DataError
from v8.features.table import compute_table
from v8.market.candles import Candles
from v8.market.companions import Companions
from v8.market.frames import GivenCandles, candle_table
from v8.market.open_times import US_PER_S, read_open_times
from v8.market.series import TIMEFRAME_S, Series
from v8.profile import Profile, load_profile

UNNAMED: Final = "CANDLES"
"""Symbol of candles that nobody named."""


@in_python
def features(
    candles: Candles | GivenCandles,
    profile: str | Path | Profile,
    *,
    series: str | None = None,
    covariates: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Return the features of a profile, one row a candle, as its models read them.

    Args:
        candles: A frame of raw candles, the list that an exchange library returns, or checked `Candles`;
            unbroken ones, because indicators warm up anew after every hole.
        profile: A shipped name, a path to a YAML file, or a profile.
        series: What they are, such as "BTCUSDT-15m"; None finds the timeframe by the steps between them.
        covariates: What a profile reads beside them: candles by symbol, tables by the name of their file;
            tables that are left out are read from the folder that `V8_TABLES` names.

    Returns:
        Float32 columns in the order of the profile, index `open_time` (UTC); without the warm-up.

    Raises:
        DataError: If the candles cannot be read, or none is left after the warm-up.

    >>> import v8
    >>> window = v8.features(candles, "aligned").tail(60)
    >>> window.shape, window.columns[:4].tolist()
    ((60, 12), ['open', 'high', 'low', 'close'])
    """
    loaded = profile if isinstance(profile, Profile) else load_profile(str(profile))
    names = loaded.features
    named = Series.parse(series) if series else _series_of(candles)
    own = checked_candles(candles, named, None)
    table = compute_table(own if own.beside else Companions.of(loaded, covariates).joined(own), names)
    index = pd.DatetimeIndex(pd.to_datetime(table.open_time_s, unit="s", utc=True), name=OPEN_TIME)
    return pd.DataFrame(table.select(names).astype(np.float32), index=index, columns=list(names))


def _series_of(candles: Candles | GivenCandles) -> Series:
    if isinstance(candles, Candles):
        return candles.series
    times = read_open_times(candle_table(candles, Series(UNNAMED, "1h"), "candles=")[OPEN_TIME])
    steps_s = np.diff(np.unique(times.open_us[times.is_readable])) / US_PER_S
    step_s = float(np.median(steps_s)) if len(steps_s) else 0.0
    names = [name for name, bar_s in TIMEFRAME_S.items() if bar_s == step_s]
    if not names:
        raise DataError(
            where="candles=",
            rule=f"open apart by one of {', '.join(TIMEFRAME_S)}",
            got=f"mostly {step_s:,.10g} s",
            fix='Name the series, for example series="BTCUSDT-15m"',
        )
    return Series(UNNAMED, names[0])
