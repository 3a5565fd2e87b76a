"""Answers of the exchange's API: rows of candles, its time and its refusals, read strictly.

A zip of the archive has a published sha256, an answer of the API has nothing: so here one row that cannot be
true refuses the whole answer, where a file may lose a few. An answer is a JSON list of rows of twelve fields:
open time in milliseconds, open, high, low, close and volume as texts of decimal numbers, close time in
milliseconds, and five that are of no use to us. The rows open on the grid of the series, within the span that
was asked for, in ascending order, each once.

https://developers.binance.com/docs/binance-spot-api-docs/rest-api/market-data-endpoints#klinecandlestick-data
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np
import pandas as pd

from v8.columns import OHLCV, OPEN_TIME
from v8.errors import DataError
from v8.market.candles import MAX_VALUE
from v8.market.jumps import are_doubted
from v8.market.open_times import iso
from v8.market.series import Series
from v8.redaction import shown

MOST_ROWS: Final = 1_000
"""Candles of one answer, set by the exchange."""

MAX_ANSWER_BYTES: Final = 1 << 20
"""A row has about 150 bytes."""

NUM_FIELDS: Final = 12
_CLOSE_TIME: Final = 6
_DECIMAL: Final = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")

FIRST_TIME_S, LAST_TIME_S = 1_500_000_000, 4_102_444_800
"""2017-07-14, when the exchange opened, and the year 2100: its time lies between."""


@dataclass(frozen=True)
class Span:
    """Candles of one series that open between two times.

    Args:
        series: Which symbol and timeframe.
        first_s: Open time of the first, seconds since the epoch, UTC.
        last_s: Open time of the last, not before it.
    """

    series: Series
    first_s: int
    last_s: int

    @property
    def num_bars(self) -> int:
        """Bars of the span, whether or not there is a candle for each."""
        return (self.last_s - self.first_s) // self.series.bar_s + 1

    def pages(self) -> list[Span]:
        """Part it into spans that one answer holds, newest first."""
        page_s = MOST_ROWS * self.series.bar_s
        stops_s = range(self.last_s, self.first_s - 1, -page_s)
        first_s = [max(self.first_s, stop_s - page_s + self.series.bar_s) for stop_s in stops_s]
        return [Span(self.series, *each) for each in zip(first_s, stops_s, strict=True)]

    def doubtful(self, rows: pd.DataFrame) -> Span | None:
        """Return the shortest span that holds every bar without a row and every doubted one; None without."""
        grid = np.arange(self.first_s, self.last_s + 1, self.series.bar_s)
        open_time_s = rows[OPEN_TIME].to_numpy(np.int64) // 1_000
        absent = np.setdiff1d(grid, open_time_s, assume_unique=True)
        asked = np.union1d(absent, open_time_s[are_doubted(rows[list(OHLCV)].to_numpy(np.float64))])
        return Span(self.series, int(asked[0]), int(asked[-1])) if len(asked) else None


def read_klines(content: bytes, span: Span, most: int, where: str) -> pd.DataFrame:
    """Read the rows of an answer.

    Args:
        content: Body of the answer.
        span: What was asked for.
        most: Most rows that were asked for.
        where: The host, for the error.

    Returns:
        Columns `open_time`, in milliseconds, int64, and `OHLCV`, float64, ascending; no row at all when the
        answer is an empty list.

    Raises:
        DataError: If any of it is not as it must be.
    """
    rows = read_json(content, where)
    if not isinstance(rows, list):
        _refuse(where, "candles come as a list of rows", shown(rows))
    if len(rows) > most:
        _refuse(where, f"at most {most} rows were asked for", str(len(rows)))
    for row in rows:
        _require_row(row, span.series.bar_s, where)
    open_ms = np.array([row[0] for row in rows], dtype=np.int64)
    values = np.array([list(map(float, row[1:_CLOSE_TIME])) for row in rows]).reshape(len(rows), len(OHLCV))
    _require_times(open_ms, span, where)
    _require_plausible(open_ms, values, where)
    return pd.DataFrame(values, columns=list(OHLCV)).assign(**{OPEN_TIME: open_ms})


def read_time(content: bytes, where: str) -> float:
    """Read the exchange's time, seconds since the epoch.

    Raises:
        DataError: If it is none.
    """
    answer = read_json(content, where)
    time_ms: Any = answer.get("serverTime") if isinstance(answer, dict) else None
    is_whole = isinstance(time_ms, int) and not isinstance(time_ms, bool)
    if not (is_whole and FIRST_TIME_S <= time_ms / 1_000 < LAST_TIME_S):
        _refuse(where, "must tell its time in milliseconds as serverTime", shown(answer))
    return float(time_ms) / 1_000


def read_code(content: bytes) -> tuple[int, str]:
    """Read code and message of a refusal; 0 and nothing where it has none."""
    try:
        answer = read_json(content, "")
    except DataError:
        return 0, ""
    number, message = (answer.get(key) for key in ("code", "msg")) if isinstance(answer, dict) else (0, "")
    return (number, shown(message)) if isinstance(number, int) else (0, "")


def read_json(content: bytes, where: str) -> Any:
    """Read JSON without the numbers that only Python knows (NaN, Infinity).

    Raises:
        DataError: If it is none.
    """
    try:
        return json.loads(content, parse_constant=_no_number)
    except (ValueError, RecursionError):  # text that is no UTF-8, and integers of 5,000 digits, too
        begin = shown(content[:200].decode("utf-8", "replace"), 60)
        _refuse(where, "must answer in JSON", repr(begin) if content else "an empty answer")


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _require_row(row: Any, bar_s: int, where: str) -> None:
    """Refuse what is no row of twelve fields with times of this timeframe and texts of numbers."""
    is_row = isinstance(row, list) and len(row) == NUM_FIELDS
    if not is_row or not all(type(row[place]) is int for place in (0, _CLOSE_TIME)):
        _refuse(where, f"a candle is a row of {NUM_FIELDS} fields with its times in milliseconds", shown(row))
    if not all(isinstance(text, str) and _DECIMAL.fullmatch(text) for text in row[1:_CLOSE_TIME]):
        _refuse(where, "prices and volume are texts of decimal numbers", shown(row[:_CLOSE_TIME]))
    if not 0 <= row[0] < LAST_TIME_S * 1_000 or row[_CLOSE_TIME] != row[0] + bar_s * 1_000 - 1:
        times = f"{shown(row[0], 40)} to {shown(row[_CLOSE_TIME], 40)}"
        _refuse(where, f"a candle closes {bar_s} s after it opens, less a millisecond", times)


def _require_times(open_ms: np.ndarray, span: Span, where: str) -> None:
    first_ms, last_ms, bar_ms = span.first_s * 1_000, span.last_s * 1_000, span.series.bar_s * 1_000
    is_outside = (open_ms < first_ms) | (open_ms > last_ms)
    if is_outside.any():
        asked = f"candles of {iso(span.first_s)} to {iso(span.last_s)} were asked for"
        _refuse(where, asked, f"one of {_written(open_ms, is_outside)}")
    is_off_grid = (open_ms - first_ms) % bar_ms != 0
    if is_off_grid.any():
        _refuse(where, f"candles open every {bar_ms // 1_000} s", f"one at {_written(open_ms, is_off_grid)}")
    is_late = np.diff(open_ms, prepend=first_ms - 1) <= 0
    if is_late.any():
        rule = "candles come in the order of time, each once"
        _refuse(where, rule, f"{_written(open_ms, is_late)} after one that is not older")


def _require_plausible(open_ms: np.ndarray, values: np.ndarray, where: str) -> None:
    """Refuse rows whose numbers cannot be true; the rules are those of `v8.market.candles`."""
    opened, high, low, close, volume = values.T
    is_wrong = ~((values <= MAX_VALUE).all(axis=1) & (np.minimum(low, high) >= 1 / MAX_VALUE) & (volume >= 0))
    is_wrong |= (low > np.minimum(opened, close)) | (high < np.maximum(opened, close))
    if is_wrong.any():
        row = values[np.argmax(is_wrong)].tolist()
        rule = f"prices lie between low and high, above zero, and nothing is beyond {MAX_VALUE:g}"
        _refuse(where, rule, f"{shown(row)} at {_written(open_ms, is_wrong)}")


def _written(open_ms: np.ndarray, is_chosen: np.ndarray) -> str:
    return iso(int(open_ms[np.argmax(is_chosen)]) / 1_000)


def _refuse(where: str, rule: str, got: str) -> NoReturn:
    raise DataError(where=where, rule=rule, got=got, fix="Try again later, or ask another address of the API")
