"""The functions of `features.py` that are the same for every profile: from a frame of candles to inputs.

`v8.forecaster.standalone` copies them, and the formulas that a profile needs, into the file `features.py` of
a run or a repository. So they use numpy and pandas alone. The constants here are of no profile: the file has
others.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

LOOKBACK_BARS: Final[int] = 0  # bars that a forecast is made from
HORIZON_BARS: Final[int] = 0  # bars that are forecast
WARMUP_BARS: Final[int] = 0  # bars before a row on which it depends
INPUTS: Final[Mapping[str, tuple[str, ...]]] = {}
"""Columns of candles that are read, by symbol; the empty one is the series itself."""
FEATURES: Final[tuple[str, ...]] = ()  # in the order in which the models read them
STEPS: Final[Mapping[str, tuple[Callable[..., Any], tuple[str, ...], Mapping[str, Any]]]] = {}
"""For each computed column its function, the columns that the function reads, and its parameters."""
TASKS: Final[Mapping[str, tuple[str, ...]]] = {}  # columns of each output of the models
QUANTILES: Final[tuple[str, ...]] = ()  # names of the quantile levels; the median has none


def compute(candles: Any, others: Mapping[str, Any] | None = None, now: Any = None) -> pd.DataFrame:
    """Compute the inputs of the models from N candles, oldest first in the result.

    Args:
        candles: A frame with `open_time` (column or index; UTC; text, times, or numbers from seconds to
            nanoseconds since 1970) and the columns of `INPUTS`: prices in quote currency, the volume in base
            currency.
        others: For models that read other series: a frame like `candles` by symbol.
        now: The current time, UTC; None for the clock. A candle that has not closed by then is left out.

    Returns:
        Columns `FEATURES`, float32; index `open_time` (UTC): candles after the last gap and the warm-up.

    Raises:
        ValueError: If a column is missing, a value is not a number above zero, an open time occurs twice, or
            fewer than LOOKBACK_BARS + WARMUP_BARS candles are left.
    """
    table = _checked(candles, "")
    bar = table.index.to_series().diff().min()
    for symbol in INPUTS:
        if symbol and symbol not in (others or {}):
            raise ValueError(
                f"the models also read candles of {symbol}: compute(candles, {{{symbol!r}: frame}})"
            )
        if symbol and others:
            table = table.join(_checked(others[symbol], symbol).add_prefix(f"{symbol}."), how="inner")
    present = pd.Timestamp.now(tz="UTC") if now is None else pd.to_datetime(now, utc=True)
    table = table[table.index + bar <= present]
    starts = np.flatnonzero(
        table.index.to_series().diff() != bar
    )  # of pieces without a gap, the first one too
    table = table.iloc[starts[-1] if len(starts) else 0 :]
    if len(table) < LOOKBACK_BARS + WARMUP_BARS:
        needed = f"{LOOKBACK_BARS + WARMUP_BARS} closed candles without a gap at the end"
        raise ValueError(f"needs {needed}; got {len(table)}")
    columns = {name: table[name].to_numpy(dtype=np.float64) for name in table.columns}
    seconds = (table.index - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    columns["open_time"] = seconds.to_numpy(dtype=np.float64)
    for name, (function, inputs, parameters) in STEPS.items():
        columns[name] = function(*[columns[source] for source in inputs], **parameters)
    inputs_frame = pd.DataFrame({name: columns[name] for name in FEATURES}, index=table.index)
    return inputs_frame.iloc[WARMUP_BARS:].astype(np.float32)


def window(inputs: pd.DataFrame) -> Any:
    """Return the newest window of what `compute` returned: shape (1, LOOKBACK_BARS, features), float32."""
    return inputs[list(FEATURES)].to_numpy(dtype=np.float32)[None, -LOOKBACK_BARS:]


def forecast_table(outputs: Mapping[str, Any], inputs: pd.DataFrame) -> pd.DataFrame:
    """Return the outputs of a model for `window(inputs)` as a table: a row for each coming bar.

    Args:
        outputs: Arrays by the name of the output, as `model.predict` returns them.
        inputs: What `compute` returned.

    Returns:
        Columns of `TASKS` in quote currency (volatility unitless), then quantiles such as `close_q5`; index
        `open_time` (UTC).
    """
    bar = inputs.index[-1] - inputs.index[-2]
    steps = range(1, HORIZON_BARS + 1)
    index = pd.DatetimeIndex([inputs.index[-1] + step * bar for step in steps], name="open_time")
    columns = {}
    for task, names in TASKS.items():
        for place, name in enumerate(names):
            columns[name] = np.asarray(outputs[task], dtype=np.float64)[0, :, place]
    for task, names in TASKS.items():
        for place, name in enumerate(names):
            for level, quantile in enumerate(QUANTILES):
                if quantile:
                    values = np.asarray(outputs[f"{task}_quantiles"], dtype=np.float64)
                    columns[f"{name}_{quantile}"] = values[0, :, level, place]
    return pd.DataFrame(columns, index=index)


def _checked(candles: Any, symbol: str) -> pd.DataFrame:
    """Return the columns of `INPUTS` of a symbol, float64, by ascending open time."""
    place = f"candles of {symbol}" if symbol else "candles"
    table = pd.DataFrame(candles)
    if "open_time" not in table.columns:
        if not isinstance(table.index, pd.DatetimeIndex):
            raise ValueError(f"{place}: needs a column open_time")
        table = table.rename_axis("open_time").reset_index()
    missing = [name for name in INPUTS[symbol] if name not in table.columns]
    if missing:
        raise ValueError(
            f"{place}: needs the columns {', '.join(INPUTS[symbol])}; lacks {', '.join(missing)}"
        )
    index = pd.DatetimeIndex(_times(table["open_time"]), name="open_time")
    values = table[list(INPUTS[symbol])].astype(np.float64).set_axis(index).sort_index()
    if values.index.has_duplicates:
        raise ValueError(f"{place}: an open time occurs twice, {values.index[values.index.duplicated()][0]}")
    for name in INPUTS[symbol]:
        least = 0.0 if name == "volume" else np.nextafter(0.0, 1.0)
        if "." not in name and not values[name].between(least, np.finfo(np.float64).max).all():
            raise ValueError(f"{place}: {name} has values that are not numbers above zero")
    return values.dropna()  # without a value of a table of the user's, a candle is left out, like a gap


def _times(column: Any) -> Any:
    """Read open times in UTC; the size of numbers tells their unit."""
    if not pd.api.types.is_numeric_dtype(column):
        return pd.to_datetime(column, utc=True)
    largest = float(column.abs().max())
    units = {"s": 1e11, "ms": 1e14, "us": 1e17, "ns": np.inf}
    unit = next(name for name, limit in units.items() if largest < limit)
    return pd.to_datetime(column, unit=unit, utc=True)  # type: ignore[call-overload]
