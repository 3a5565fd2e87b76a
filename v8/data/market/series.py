"""Series and universe: which symbols at which timeframes.

A Series is written `BTCUSDT-15m`: the last dash separates symbol and timeframe. The name is also used for
folders, on every system; `v8.profile.columns` describes the consequences. `btcusdt`, `BTC/USDT`, `BTC-USDT`,
`BTC_USDT` and `BINANCE:BTCUSDT` are other ways to write BTCUSDT.

A universe is a YAML file, because coins are listed, renamed and re-listed more often than code changes; the
default one is under `configs/`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field

from v8.base import records
from v8.base.errors import ProfileError, listed, shown
from v8.base.records import read_yaml
from v8.base.registry import advice
from v8.profile.columns import SYMBOL_RULE, is_symbol, plain_symbol
from v8.profile.profile import config_path

US_PER_S: Final = 1_000_000
DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S

UNIT_S: Final = {"m": 60, "h": 3_600, "d": DAY_S, "w": WEEK_S}
_TIMEFRAMES: Final = ("1m", "3m", "5m", "15m", "30m", "1h", "2h", "4h", "6h", "8h", "12h", "1d", "3d", "1w")
TIMEFRAME_S: Final = {name: int(name[:-1]) * UNIT_S[name[-1]] for name in _TIMEFRAMES}
"""Seconds of one bar for every timeframe the exchange archive offers on a fixed grid."""

TIMEFRAMES: Final[dict[float, str]] = {bar_s: name for name, bar_s in TIMEFRAME_S.items()}
"""Timeframes by the seconds of one bar."""

_MOST_UNIT_LETTERS: Final = 12
"""Letters of a misspelt timeframe that are tried to be understood."""

_PAIR: Final = re.compile(r"(.{2,})(?:U[SDT]{1,4}|USDC|BTC|ETH|BNB|EUR|TRY)")


@dataclass(frozen=True, order=True)
class Series:
    """One symbol at one timeframe."""

    symbol: str  # exchange symbol, capital letters, digits and single dots between them ("BTCUSDT", "BRK.B")
    timeframe: str  # a key of `TIMEFRAME_S` ("15m")

    def __post_init__(self) -> None:
        location = f"series {self}"
        if not is_symbol(self.symbol):
            raise ProfileError(
                where=location,
                rule=SYMBOL_RULE,
                got=repr(self.symbol),
                fix="Write it as the exchange does, for example BTCUSDT-15m",
            )
        if self.timeframe not in TIMEFRAME_S:
            raise ProfileError(
                where=location,
                rule=f"a timeframe is one of {', '.join(TIMEFRAME_S)}",
                got=repr(self.timeframe),
                fix=_timeframe_advice(self.symbol, self.timeframe),
            )

    @classmethod
    def parse(cls, text: str) -> "Series":
        """Read `BTCUSDT-15m`, or another way to write it.

        >>> Series.parse("BTCUSDT-15m").bar_s, str(Series.parse("btc/usdt-15m"))
        (900, 'BTCUSDT-15m')
        """
        symbol, dash, timeframe = text.rpartition("-")
        names = re.split(r"[,;\s]+", text.strip())
        if len(names) > 1 and all("-" in name for name in names):
            raise ProfileError(
                where="param:series",
                rule="names one series",
                got=repr(text),
                fix=f"Repeat it: {' '.join(f'param:series {name}' for name in names[:2])}",
            )
        if not dash:
            raise ProfileError(
                where="param:series",
                rule="a series is SYMBOL-TIMEFRAME",
                got=repr(text),
                fix="Write for example BTCUSDT-15m",
            )
        return cls(plain_symbol(symbol), timeframe)

    @property
    def phase_s(self) -> int:
        """Seconds from the epoch, a Thursday, to the first open time: weeks start on Monday."""
        return 4 * DAY_S if self.bar_s == WEEK_S else 0

    @property
    def bar_s(self) -> int:
        """Seconds from one open time to the next."""
        return TIMEFRAME_S[self.timeframe]

    def last_closed_s(self, now_s: int) -> int:
        """Return the open time of the last bar that is closed at a time, seconds since the epoch.

        >>> Series("BTCUSDT", "1h").last_closed_s(7_199), Series("BTCUSDT", "1h").last_closed_s(7_200)
        (0, 3600)
        """
        return (now_s - self.phase_s) // self.bar_s * self.bar_s + self.phase_s - self.bar_s

    def last_wanted_s(self, now_s: int, end_s: int | None) -> int:
        """Return the open time of the last bar that is closed now and opens at or before `end_s`."""
        return self.last_closed_s(now_s if end_s is None else min(now_s, end_s + self.bar_s))

    def __str__(self) -> str:
        return f"{self.symbol}-{self.timeframe}"


def iso(open_s: int | float) -> str:
    """Write seconds since the epoch as UTC text.

    >>> iso(1_518_048_000), iso(1_518_168_496.812)
    ('2018-02-08T00:00:00Z', '2018-02-09T09:28:16.812Z')
    """
    open_us = round(open_s * US_PER_S)
    moment = np.datetime64(open_us, "us")
    return f"{np.datetime_as_string(moment, unit='ms' if open_us % US_PER_S else 's')}Z"


_UNIT_NAMES: Final = re.compile(r"(\d+) ?(m|h|d|w)?(?:in|inutes?|ours?|r|rs|ays?|eeks?)?", re.IGNORECASE)


def _timeframe_advice(symbol: str, text: str) -> str:
    """Say which timeframe is probably meant.

    >>> _timeframe_advice("BTCUSDT", "15min"), _timeframe_advice("BTCUSDT", "4H")
    ('Did you mean BTCUSDT-15m', 'Did you mean BTCUSDT-4h')
    >>> _timeframe_advice("BTCUSDT", "60"), _timeframe_advice("15M", "BTCUSDT"), _timeframe_advice("A", "7m")
    ('Did you mean BTCUSDT-1h', 'Did you mean BTCUSDT-15m', 'Choose one of these')
    """
    if symbol.lower() in TIMEFRAME_S:
        return f"Did you mean {text.upper()}-{symbol.lower()}"
    parts = _UNIT_NAMES.fullmatch(text.strip())
    if parts and len(text) <= _MOST_UNIT_LETTERS:
        seconds = int(parts[1]) * UNIT_S[(parts[2] or "m").lower()]
        if seconds in TIMEFRAMES:
            return f"Did you mean {symbol}-{TIMEFRAMES[seconds]}"
    return "Choose one of these"


def is_series_like(text: str) -> bool:
    """Return whether a text is the name of a series, or meant as one.

    >>> is_series_like("btcusdt-15m"), is_series_like("BTCUSDT-15min"), is_series_like("runs/frontier-2")
    (True, True, False)
    """
    symbol, dash, timeframe = text.rpartition("-")
    is_timeframe = timeframe in TIMEFRAME_S or "Did you mean" in _timeframe_advice("A", timeframe)
    return bool(dash) and is_symbol(plain_symbol(symbol)) and is_timeframe


def series_advice(name: str, series: Sequence[str], otherwise: str) -> str:
    """Suggest the known series with the most similar name, of the same coin only.

    >>> series_advice("BTCUSD-15m", ["ETHUSDT-15m", "BTCUSDT-1h", "BTCUSDT-15m"], "Fetch it")
    'Did you mean BTCUSDT-15m'
    >>> series_advice("SOLUSDT-15m", ["BTCUSDT-15m"], "Fetch it")
    'Fetch it'
    >>> series_advice("PEPEUSD-15m", ["BTCUSDT-15m"], "Fetch it")
    'Did you mean PEPEUSDT-15m? Exchanges quote coins in USDT, hardly any in USD'
    """
    suggestion = nearest_advice(name, series, otherwise)
    symbol, _, timeframe = name.rpartition("-")
    if suggestion == otherwise and symbol == f"{_coin(name)}USD":
        return f"Did you mean {symbol}T-{timeframe}? Exchanges quote coins in USDT, hardly any in USD"
    return suggestion


def nearest_advice(name: str, series: Sequence[str], otherwise: str) -> str:
    """Suggest the listed series with the most similar name, of the same coin only."""
    coin = _coin(name)
    candidates = [candidate for candidate in series if coin and _coin(candidate) == coin]
    return advice(name, candidates, otherwise)


def _coin(name: str) -> str:
    """Return the base currency of a symbol: the part before the quote currency, even if that is misspelt.

    >>> [_coin(name) for name in ("BTCUSDT-15m", "btcusd", "BTCUSTD-1h", "ETHBTC-1h", "AAPL-1d")]
    ['BTC', 'BTC', 'BTC', 'ETH', 'AAPL']
    """
    symbol = plain_symbol(name.partition("-")[0])
    pair = _PAIR.fullmatch(symbol)
    return pair[1] if pair else symbol


def is_series_name(name: str) -> bool:
    """Return whether a text is the canonical name of a series, which is safe as the name of a folder.

    >>> is_series_name("BTCUSDT-15m"), is_series_name("../BTCUSDT-15m")
    (True, False)
    """
    try:
        return str(Series.parse(name)) == name
    except ProfileError:
        return False


SeriesName = Annotated[
    str,
    Field(strict=True),
    records.refusing(lambda name: None if is_series_name(name) else "names a series such as BTCUSDT-15m"),
]
"""Such as "BTCUSDT-15m"; safe as the name of a folder."""


def by_series(mapping: Any) -> Any:
    """Validate the keys of a mapping in a record: each must name a series, which may name a folder."""
    if isinstance(mapping, dict):
        for name in mapping:
            if not is_series_name(name):
                raise ValueError(f"names series such as BTCUSDT-15m, not {shown(repr(name), 60)}")
    return mapping


def load_universe(path: Path | None = None) -> tuple[Series, ...]:
    """Read a universe file; the installed one when None.

    It is YAML with `series`, or with `symbols` and `timeframes`, which are combined symbol by symbol.
    """
    path = path or config_path("universe")
    content = read_yaml(path)
    keys = ("series",) if "series" in content else ("symbols", "timeframes")
    for key in content:
        if key not in keys:
            raise ProfileError(
                where=f"{path}, key {key}",
                rule="a universe has the key series, or the keys symbols and timeframes, which are combined",
                got=f"{key!r} where {' and '.join(keys)} belong",
                fix=advice(key, keys, "Remove it"),
            )
    lists = [_names(f"{path}, key {key}", content.get(key)) for key in keys]
    universe = tuple(Series.parse("-".join(parts)) for parts in product(*lists))
    _require_unique(str(path), universe)
    return universe


def _names(location: str, value: object) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise ProfileError(
            where=location,
            rule="needs a list of names",
            got=repr(value),
            fix="Write one name on each line, after a dash",
        )
    _require_unique(location, value)
    return value


def _require_unique(location: str, names: Iterable[object]) -> None:
    repeated = sorted(name for name, count in Counter(map(str, names)).items() if count > 1)
    if repeated:
        raise ProfileError(
            where=location,
            rule="names each entry once",
            got=f"{listed(repeated)} more than once",
            fix="Remove the repetition",
        )
