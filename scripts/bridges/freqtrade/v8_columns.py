"""Forecasts as columns next to closed candles, and the size of a position and its stop computed from them.

Forecasts come from a table that `v8 export` wrote, from the models of a run or a repository, or from `v8
app`. Each returns a frame with `usable_from`, the close before which the row is not known, and columns such
as `high_ahead_1`, for the bar that opens then. A candle is known at its close, so both are joined there.

It needs only pandas and NumPy; v8 if models forecast, requests if the app does. It is MIT like v8.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import numpy as np
import pandas as pd

USABLE_FROM: Final = "usable_from"
VOLATILITY: Final = "v8_volatility"
"""Forecast volatility of the bars ahead, of a year."""
USUAL: Final = "v8_usual"
USUAL_BARS: Final = 200
"""Newest forecasts whose median is the usual volatility."""
STOP: Final = "v8_stop"
"""Price that the lows of the bars ahead stay above, but for the share of their lowest quantile."""

YEAR: Final = pd.Timedelta(days=365)
RANGE_TO_VARIANCE: Final = 1 / (4 * np.log(2))  # Parkinson (1980), doi:10.1086/296071
OHLCV: Final = ["open", "high", "low", "close", "volume"]
WAITING_S: Final = 20
"""How long the app is asked again for a forecast that knows the newest candle."""

Forecasts = Callable[[str, pd.DataFrame], pd.DataFrame]
"""Gives the forecasts of a series for its candles as freqtrade has them: `date`, when they open, OHLCV."""


def forecasts_from(settings: Mapping[str, str]) -> Forecasts:
    """Return what gives forecasts, by the one key of settings: `export`, `models` or `api`.

    >>> forecasts_from({})
    Traceback (most recent call last):
    ValueError: "v8" of the configuration: names one of export, models, api; got none. Say where they are.
    """
    kinds: dict[str, Callable[[str], Forecasts]] = {"export": of_export, "models": of_models, "api": of_app}
    if len(settings) != 1 or not settings.keys() <= kinds.keys():
        rule = f"names one of {', '.join(kinds)}"
        got = ", ".join(settings) or "none"
        raise ValueError(f'"v8" of the configuration: {rule}; got {got}. Say where they are.')
    ((kind, place),) = settings.items()
    return kinds[kind](place)


def of_export(file: str) -> Forecasts:
    """Give what `v8 export` wrote; the actual values and naive forecasts next to it are left out."""
    table = pd.read_csv(file) if file.endswith(".csv") else pd.read_parquet(file)
    columns = [name for name in table.columns if not name.endswith(("_actual", "_naive"))]
    by_series = {str(name): rows for name, rows in table[columns].groupby("series")}

    def forecasts(series: str, candles: pd.DataFrame) -> pd.DataFrame:
        if series not in by_series:
            raise ValueError(f"{file}: must hold {series}; got {', '.join(by_series)}. Export it, too.")
        # Where folds overlap, the newest model that spoke of a bar is heard.
        rows = by_series[series].drop_duplicates(["issued_at", "step"], keep="last")
        wide = rows.drop(columns=["series", "fold", "open_time"]).pivot(index="issued_at", columns="step")
        names_and_steps: list[Any] = wide.columns.to_list()
        wide.columns = pd.Index([f"{name}_ahead_{step}" for name, step in names_and_steps])
        return wide.rename_axis(USABLE_FROM).reset_index()

    return forecasts


def of_models(place: str) -> Forecasts:
    """Let the models of a run's folder, or of a repository `user/name`, forecast from these very candles."""

    def forecasts(series: str, candles: pd.DataFrame) -> pd.DataFrame:
        frame = candles.rename(columns={"date": "open_time"}).set_index("open_time")[OHLCV]
        frame = _model(place, series).forecast_history(frame, as_frame=True)
        return frame[[USABLE_FROM, *(name for name in frame if "_ahead_" in name)]].reset_index(drop=True)

    return forecasts


@cache  # a bot opens its strategy again for every back-test
def _model(place: str, series: str) -> Any:
    import v8  # noqa: PLC0415 - other forecasts need no v8 here

    return v8.load(place, series)


def of_app(address: str) -> Forecasts:
    """Ask `v8 app` for the newest forecast; answers are kept, what was never answered is missing."""
    import requests  # noqa: PLC0415 - as above

    rows_by_series: dict[str, dict[pd.Timestamp, dict[str, Any]]] = {}
    token = os.environ.get("V8_APP_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}

    def fetch(series: str) -> dict[str, Any]:
        url = f"{address.rstrip('/')}/api/forecast/{series}"
        # With an auth of its own, requests looks for no password in ~/.netrc, which would replace the token.
        answer = requests.get(url, headers=headers, auth=lambda request: request, timeout=10)
        answer.raise_for_status()
        return row_of(answer.json())

    def forecasts(series: str, candles: pd.DataFrame) -> pd.DataFrame:
        rows = rows_by_series.setdefault(series, {})
        closed = closes(candles).iloc[-1]
        ends = time.monotonic() + WAITING_S
        while closed not in rows:
            row = fetch(series)
            rows[row[USABLE_FROM]] = row
            if row[USABLE_FROM] >= closed or time.monotonic() > ends:
                break
            time.sleep(1)
        return pd.DataFrame([*rows.values()])

    return forecasts


def row_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of `/api/forecast` as the row of a frame; `close_q05` is called `close_q5` there."""
    row: dict[str, Any] = {USABLE_FROM: pd.Timestamp(answer["first_bar"])}
    for step, bar in enumerate(answer["forecast"], 1):
        values = {name.replace("_q0", "_q"): value for name, value in bar.items() if name != "open_time"}
        row |= {f"{name}_ahead_{step}": value for name, value in values.items()}
    return row


def aligned(candles: pd.DataFrame, forecasts: pd.DataFrame) -> pd.DataFrame:
    """Add `VOLATILITY`, `USUAL` and `STOP` to candles whose close is when a forecast may be used first.

    No forecast of another close is ever taken: a candle without its own has none, and nothing is done there.
    """
    columns = pd.DataFrame({USABLE_FROM: _in_ms(pd.to_datetime(forecasts[USABLE_FROM], utc=True))})
    columns[VOLATILITY] = volatility(forecasts, bar_of(candles)).to_numpy()
    columns[STOP] = stop(forecasts).to_numpy()
    closed = candles.assign(**{USABLE_FROM: _in_ms(closes(candles))})
    joined = closed.merge(columns, how="left", on=USABLE_FROM, validate="one_to_one")
    return with_usual(joined.drop(columns=USABLE_FROM))


def with_usual(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the median of the newest forecasts of `VOLATILITY`, the row's own among them."""
    newest = frame[VOLATILITY].rolling(USUAL_BARS, min_periods=USUAL_BARS // 2)
    return frame.assign(**{USUAL: newest.median()})


def _in_ms(times: pd.Series) -> pd.Series:
    return times.astype("datetime64[ms, UTC]")


def bar_of(candles: pd.DataFrame) -> pd.Timedelta:
    """Return how long a bar is: the commonest step between candles."""
    return candles["date"].diff().mode().iloc[0]


def closes(candles: pd.DataFrame) -> pd.Series:
    """Return when candles close."""
    return candles["date"] + bar_of(candles)


def volatility(forecasts: pd.DataFrame, bar: pd.Timedelta) -> pd.Series:
    """Return the volatility of a year by the forecast highs and lows of the bars ahead."""
    squares = [
        pd.Series(np.log(forecasts[high] / forecasts[low]) ** 2)
        for high, low in _pairs(forecasts, "high", "low")
    ]
    return np.sqrt(RANGE_TO_VARIANCE * pd.concat(squares, axis=1).mean(axis=1) * (YEAR / bar))


def _pairs(forecasts: pd.DataFrame, *columns: str) -> Iterator[list[str]]:
    steps = sorted(
        int(name.rpartition("_")[2]) for name in forecasts.columns if name.startswith(f"{columns[0]}_ahead_")
    )
    yield from ([f"{name}_ahead_{step}" for name in columns] for step in steps)


def stop(forecasts: pd.DataFrame) -> pd.Series:
    """Return the lowest of the lowest quantile of the lows ahead, or of the lows where none is forecast."""
    levels = {name.split("_")[1] for name in forecasts.columns if name.startswith("low_q")}
    name = min(levels, key=lambda level: float(level[1:]), default="")
    low = f"low_{name}" if name else "low"
    return forecasts[[name for (name,) in _pairs(forecasts, low)]].min(axis=1)


def size(volatility_a_year: float, target: float, most: float) -> float:
    """Return a position as a share of what may be put into it: target over forecast volatility, capped.

    >>> size(0.8, 0.4, 1.0), size(0.2, 0.4, 1.0)
    (0.5, 1.0)
    """
    return min(target / volatility_a_year, most)
