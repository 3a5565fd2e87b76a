"""Forecasts as columns next to closed candles, and the size of a position and its stop computed from them.

Forecasts come from a table that `v8 export` wrote, from the models of a run or a repository, or from `v8
app`. Each returns a frame with `usable_from`, the close before which the row is not known, and columns such
as `high_ahead_1`, for the bar that opens then. A candle is known at its close, so both are joined there.

A bot puts in money by them, so what cannot be a forecast is none: prices that are not finite, positive and
ordered, and answers of the app about anything else than was asked for, or too late. There nothing is done.

It needs only pandas and NumPy; v8 if models forecast, requests if the app does. It is MIT like v8.
"""

import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import cache, partial
from itertools import pairwise
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
WAITING_S: Final = 20.0
"""Seconds that the app is asked for a forecast that knows the newest candle, all requests together."""
REST_S: Final = 60.0
"""An app that did not answer in time is not asked again for so many seconds, for no series."""
MOST_UNFINISHED: Final = 8
"""Requests that were given up and are not over yet; with more of them nothing is asked."""
MOST_BYTES: Final = 1_048_576  # of an answer; that of a model with ten bars ahead has 14,000
MOST_STEPS: Final = 1_000  # bars ahead
MOST_RANGE: Final = 10.0
"""Highest price of an answer of the app, as a multiple of its lowest one."""
MOST_NUMBER: Final = 1e15
_SLACK: Final = 1e-6  # of a price, by which rounding may exchange two of them
_COLUMN: Final = re.compile(r"(?P<name>[a-z]+(_(?!q)[a-z]+)*)(_q(?P<level>[0-9]{1,2}([.][0-9]{1,9})?))?")
_log: Final = logging.getLogger(__name__)

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


class NoForecastError(ValueError):
    """There is no answer, or one that is not the forecast that was asked for."""


def of_app(address: str) -> Forecasts:
    """Ask `v8 app` for the newest forecast; answers are kept, what was never answered is missing."""
    return _App(address).forecasts


class _App:
    """Asks one address. Whatever it answers, or does not answer, a call returns in time.

    Args:
        address: Of the app, `http://127.0.0.1:8008`.
    """

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")
        token = os.environ.get("V8_APP_TOKEN")
        self._headers = {"Accept-Encoding": "identity"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._rows: dict[str, dict[pd.Timestamp, dict[str, Any]]] = {}
        self._num_steps: dict[str, int] = {}
        self._unfinished: list[Future[bytes]] = []
        self._rests_until_s = -math.inf

    def forecasts(self, series: str, candles: pd.DataFrame) -> pd.DataFrame:
        """Return what was answered about a series; it is asked for what the newest candle's close needs."""
        rows = self._rows.setdefault(series, {})
        started_s = time.monotonic()
        if closes(candles).iloc[-1] not in rows and started_s >= self._rests_until_s:
            try:
                self._ask(series, candles, started_s + WAITING_S)
            except NoForecastError as error:
                _log.warning("no forecast of %s: %s", series, error)
            if time.monotonic() >= started_s + WAITING_S:
                self._rests_until_s = time.monotonic() + REST_S
        if not rows:
            return pd.DataFrame({USABLE_FROM: pd.Series(dtype="datetime64[ms, UTC]")})
        return pd.DataFrame([*rows.values()])

    def _ask(self, series: str, candles: pd.DataFrame, until_s: float) -> None:
        """Ask until an answer knows the newest candle, or until a time of `time.monotonic`."""
        closed = closes(candles).iloc[-1]
        while True:
            answer = _read_json(self._fetch(series, until_s))
            require_forecast(answer, series, closed, bar_of(candles))
            num_steps = self._num_steps.setdefault(series, len(answer["forecast"]))
            if len(answer["forecast"]) != num_steps:
                rule = f"has {num_steps} bars, as the answers before"
                raise _refusal(rule, len(answer["forecast"]), "Start the bot again for another model")
            row = row_of(answer)
            self._rows[series][row[USABLE_FROM]] = row
            remaining_s = until_s - time.monotonic()
            if row[USABLE_FROM] >= closed or remaining_s <= 0:
                return
            time.sleep(min(1.0, remaining_s))

    def _fetch(self, series: str, until_s: float) -> bytes:
        """Return the body of an answer, until a time of `time.monotonic`.

        A server that sends a byte now and then would hold a request for ever, so it runs in a thread that is
        given up.
        """
        self._unfinished = [request for request in self._unfinished if not request.done()]
        if len(self._unfinished) >= MOST_UNFINISHED:
            raise _refusal("ends its answers", f"{MOST_UNFINISHED} that go on", "Check what listens there")
        request: Future[bytes] = Future()
        self._unfinished.append(request)
        url = f"{self._address}/api/forecast/{series}"
        threading.Thread(target=_fulfil, args=(request, partial(self._get, url)), daemon=True).start()
        try:
            return request.result(max(0.0, until_s - time.monotonic()))
        except FutureTimeoutError:
            raise _refusal(f"comes within {WAITING_S:g} s", "none", "Check that the app runs") from None

    def _get(self, url: str) -> bytes:
        import requests  # noqa: PLC0415 - other forecasts need it not

        try:
            # With an auth of its own, requests looks for no password in ~/.netrc, which would replace the
            # token. A redirect is not followed: it would send the question elsewhere.
            with requests.get(
                url,
                headers=self._headers,
                auth=lambda request: request,
                timeout=WAITING_S,
                stream=True,
                allow_redirects=False,
            ) as answer:
                if answer.status_code != 200 or "Content-Encoding" in answer.headers:
                    got = f"status {answer.status_code}"
                    raise _refusal("is plain JSON with status 200", got, "Look at the address in a browser")
                body = b""
                for chunk in answer.iter_content(65_536):
                    body += chunk
                    if len(body) > MOST_BYTES:
                        got = "more"
                        raise _refusal(f"has at most {MOST_BYTES:,} bytes", got, "Check what listens there")
                return body
        except (requests.RequestException, OSError) as error:
            got = type(error).__name__
            raise _refusal("can be read", got, "Check the address, and that the app runs") from error


def _fulfil(request: "Future[bytes]", get: Callable[[], bytes]) -> None:
    """Set the result of a request, or its error."""
    try:
        request.set_result(get())
    except Exception as error:  # noqa: BLE001 - raised where the result is waited for
        request.set_exception(error)


def _refusal(rule: str, got: object, fix: str) -> NoForecastError:
    """Return the error of an answer; what was got is cut, because a stranger may have written it."""
    return NoForecastError(f"the answer of the app: {rule}; got {str(got)[:80]}. {fix}.")


def _json_summary(value: Any) -> str:
    """Write a JSON value; of a list or an object only that it is one."""
    return type(value).__name__ if isinstance(value, list | dict) else repr(value)


def _read_json(body: bytes) -> Any:
    """Read JSON, in which every number is one."""

    def refuse(text: str) -> None:
        raise ValueError(text)

    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise _refusal("is JSON", type(error).__name__, "Check what listens there") from error


def require_forecast(answer: Any, series: str, closed: pd.Timestamp, bar: pd.Timedelta) -> None:
    """Require the answer of `/api/forecast` to be a forecast of a series that may be traded by.

    Args:
        answer: JSON values.
        series: The series that was asked for.
        closed: When any candle closes; its bars open so many whole bars earlier or later.
        bar: How long a bar is.

    Raises:
        NoForecastError: If it is of another series, or of bars that are not the next ones, or if its prices
            are not finite, positive, ordered, and within `MOST_RANGE` of each other.
    """
    fix = "Check the app, and its models"
    content = answer if isinstance(answer, dict) else {}
    if content.get("series") != series:
        raise _refusal(f"is of {series}", _json_summary(content.get("series")), fix)
    bars = content.get("forecast")
    if not isinstance(bars, list) or not 1 <= len(bars) <= MOST_STEPS:
        got = len(bars) if isinstance(bars, list) else _json_summary(bars)
        raise _refusal(f"has 1 to {MOST_STEPS:,} bars", got, fix)
    first_bar = _time_of(content.get("first_bar"))
    if (first_bar - closed) % bar:
        raise _refusal("begins where a candle closes", content["first_bar"], fix)
    prices: list[float] = []
    for step, values in enumerate(bars):
        if not isinstance(values, dict) or values.keys() != bars[0].keys():
            raise _refusal("has the same columns in every bar", f"others in bar {step + 1}", fix)
        if "open_time" in values and _time_of(values["open_time"]) != first_bar + step * bar:
            raise _refusal("has a bar after the other", f"bar {step + 1} at another time", fix)
        prices += _prices_of(values, step, fix)
    if max(prices) > MOST_RANGE * min(prices):
        raise _refusal(f"has prices within {MOST_RANGE:g} times the lowest", f"{max(prices):g}", fix)


def _time_of(text: Any) -> pd.Timestamp:
    """Read a time with its zone, as the app writes it."""
    try:
        moment = pd.Timestamp(text) if isinstance(text, str) and len(text) <= 40 else None
    except (ValueError, OverflowError):
        moment = None
    if moment is None or pd.isna(moment) or moment.tzinfo is None or not 1970 < moment.year < 2200:
        raise _refusal("has times such as 2026-01-01T00:00:00Z", _json_summary(text), "Check the app")
    return moment


def _prices_of(values: Mapping[str, Any], step: int, fix: str) -> list[float]:
    """Return the prices of a bar, which must be in order, and all its values numbers."""
    quantiles: dict[str, list[tuple[float, float]]] = {}
    points: dict[str, float] = {}
    for key, value in values.items():
        if key == "open_time":
            continue
        match = _COLUMN.fullmatch(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if match is None or not is_number or not 0 <= value <= MOST_NUMBER:
            rule = f"has numbers from 0 to {MOST_NUMBER:g} by the name of their column"
            raise _refusal(rule, f"{key[:40]!r} {_json_summary(value)[:20]} in bar {step + 1}", fix)
        if match["name"] not in OHLCV[:4]:
            continue
        if match["level"]:
            quantiles.setdefault(match["name"], []).append((float(match["level"]), value))
        else:
            points[match["name"]] = value
    if not points.keys() >= {"high", "low"} or not points["low"] < points["high"]:
        raise _refusal("has a low below a high in every bar", f"none in bar {step + 1}", fix)
    inner = [points[name] for name in ("open", "close") if name in points]
    rising = [[points["low"], price, points["high"]] for price in inner]
    for name, levels in quantiles.items():
        own = [(50.0, points[name])] if name in points else []
        rising.append([price for _, price in sorted([*levels, *own])])
    for prices in rising:
        if any(above < below * (1 - _SLACK) for below, above in pairwise(prices)):
            rule = "has prices in order: low, open and close, high; quantiles by their level"
            raise _refusal(rule, f"others in bar {step + 1}", fix)
    return [*points.values(), *(price for levels in quantiles.values() for _, price in levels)]


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
    A row whose prices cannot be those of bars (`are_bars`) is none either.
    """
    columns = pd.DataFrame({USABLE_FROM: _in_ms(pd.to_datetime(forecasts[USABLE_FROM], utc=True))})
    columns[[VOLATILITY, STOP]] = np.nan
    if len(forecasts):
        usable = forecasts.where(are_bars(forecasts))
        columns[VOLATILITY] = volatility(usable, bar_of(candles)).to_numpy()
        columns[STOP] = stop(usable).to_numpy()
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


def are_bars(forecasts: pd.DataFrame) -> pd.Series:
    """Return for each row whether all bars ahead have a high above their low, and the stop is no higher.

    >>> rows = {"high_ahead_1": [2.0, 2.0, 2.0, np.inf], "low_ahead_1": [1.0, 2.0, -1.0, 1.0]}
    >>> are_bars(pd.DataFrame(rows)).tolist()
    [True, False, False, False]
    """
    stops = stop(forecasts)
    usable = stops > 0
    for high, low in _pairs(forecasts, "high", "low"):
        usable &= (forecasts[high] < np.inf) & (forecasts[high] > forecasts[low])
        usable &= forecasts[low] >= stops * (1 - _SLACK)
    return usable


def entries(frame: pd.DataFrame) -> pd.Series:
    """Return where a position may be entered: the range no wider than usual, the stop below the price."""
    return (frame[VOLATILITY] <= frame[USUAL]) & (frame[STOP] < frame["close"])


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

    A volatility that no market has puts in nothing.

    >>> size(0.8, 0.4, 1.0), size(0.2, 0.4, 1.0), size(0.0, 0.4, 1.0), size(math.nan, 0.4, 1.0)
    (0.5, 1.0, 0.0, 0.0)
    """
    if not 0 < volatility_a_year < math.inf:
        return 0.0
    return min(target / volatility_a_year, most)
