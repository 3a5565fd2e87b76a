"""Names that several packages share: symbols of traded pairs, columns with their constants, and quantiles.

A symbol consists of capital letters, digits and single dots between them. It also names folders, and some
file systems do not distinguish small and capital letters; for the same reason the device names of Windows are
not allowed.

Columns are always selected by name. `v8.profile.indicators` lists every column that exists.

A quantile of a column is a column, too. The actual values are below the quantile of level 0.05 in 5 of 100
cases. The median is the point forecast, so every set of levels contains 0.5. The others are outer levels.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

OPEN_TIME: Final = "open_time"
OPEN: Final = "open"
HIGH: Final = "high"
LOW: Final = "low"
CLOSE: Final = "close"
VOLUME: Final = "volume"

BB_UPPER: Final = "bb_upper"
BB_LOWER: Final = "bb_lower"
VOLATILITY: Final = "volatility"
BAR_RANGE: Final = "bar_range"
TOTAL_RANGE: Final = "total_range"

BAND_PERIOD_BARS: Final = 20  # window of the Bollinger average and deviation, and of `volatility`
MAX_ROLLED_STEPS: Final = BAND_PERIOD_BARS - 2  # steps ahead at which that window still has two known closes
RECENT_RANGE: Final = "recent_range"
RANGE_BARS: Final = (1, 5, 20, 60, 240)
REALISED_BARS: Final = (5, 20, 60, 240)
MOVE_BARS: Final = (1, 5, 20, 60)

WAVES: Final = {"day": (1, 2, 3, 4, 5, 6, 7, 8, 24, 48), "week": (1, 2, 3, 4, 5, 6, 8, 9)}
"""Waves per period, whose sine and cosine encode the time.

24 and 48 a day are the hour and its half, because markets move at the quarters of the hour (Hansen, Kim &
Kimbrough 2024, Journal of Financial Econometrics). 5, 6, 8 and 9 a week are the wave of the day (7 a week)
with another size at the weekend.
"""


def range_column(num_bars: int) -> str:
    """Return the name of the column with the range of the newest bars."""
    return f"range_{num_bars}"


def wave_columns(period: str, num_waves: int) -> tuple[str, str]:
    """Return the names of sine and cosine with so many waves per `day` or `week`."""
    return f"{period}_sin_{num_waves}", f"{period}_cos_{num_waves}"


def split_wave(column: str) -> tuple[str, int]:
    """Split the name of a wave into its period and the number of waves in it.

    >>> split_wave("day_sin_24")
    ('day', 24)
    """
    period, _, num_waves = column.split("_")
    return period, int(num_waves)


WAVE_COLUMNS: Final = tuple(
    name for period, waves in WAVES.items() for num_waves in waves for name in wave_columns(period, num_waves)
)


def rolled_columns(step: int) -> tuple[str, str]:
    """Return the names of middle and deviation of the naive forecast's bands, some steps ahead."""
    return f"rolled_middle_{step}", f"rolled_deviation_{step}"


OHLC: Final = (OPEN, HIGH, LOW, CLOSE)
OHLCV: Final = (*OHLC, VOLUME)

TASK_OHLC: Final = "ohlc"
TASK_BANDS: Final = "bands"
TASK_VOLATILITY: Final = "volatility"
TASK_RANGE: Final = "range"

BAND_WIDTH_STDS: Final = 2.0  # sample standard deviations from the average to a band
USER: Final = "csv"  # origin of the columns of all tables that the user provides
COLUMN_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_-]{0,50}"  # of tables' columns, which become features
MOST_NEIGHBOURS: Final = (
    20  # other series that a profile may name: profiles may be untrusted, and all are fetched
)
MOST_WORDS: Final = 300  # longest published definition of a column, in letters
MAX_SYMBOL: Final = 30
SYMBOL_PATTERN: Final = r"[A-Z0-9](?:\.?[A-Z0-9])*"
SYMBOL_RULE: Final = (
    f"a symbol is 1 to {MAX_SYMBOL} capital letters and digits, perhaps with single dots "
    "between them, and no name of a device"
)

QUOTE_CURRENCIES: Final = (
    *("USDT", "USDC", "USD", "BUSD", "FDUSD", "TUSD", "USDP", "DAI", "BTC", "ETH", "BNB"),
    *("EUR", "GBP", "JPY", "TRY", "BRL", "AUD", "KRW"),
)
"""Currencies in which exchanges quote coins."""

_SYMBOL: Final = re.compile(SYMBOL_PATTERN)
_DEVICE: Final = re.compile(
    r"(CON|PRN|AUX|NUL|COM\d|LPT\d)(\..*)?"
)  # Windows opens devices, whatever the ending
_BETWEEN_ASSETS: Final = re.compile(r"[-/_]")
_PERPETUAL: Final = re.compile(r"(?<=.)[-_/]SWAP$", re.IGNORECASE)
_EXCHANGE_PAIR_AND_SETTLEMENT: Final = 3  # words with colons between them
_OF_NEIGHBOUR: Final = re.compile(rf"({SYMBOL_PATTERN})\.([a-z].*)")
_OF_USER: Final = re.compile(rf"{USER}\.({COLUMN_PATTERN})")


def is_symbol(text: str) -> bool:
    """Return whether a text is a symbol in its canonical form.

    >>> [is_symbol(text) for text in ("BTCUSDT", "BRK.B", "btcusdt", "CON", "")]
    [True, True, False, False, False]
    """
    return len(text) <= MAX_SYMBOL and bool(_SYMBOL.fullmatch(text)) and not _DEVICE.fullmatch(text)


def plain_symbol(text: str) -> str:
    """Return the canonical form of a symbol: no separator, exchange or settlement currency, capital letters.

    OKX writes the perpetual contract of a pair as `BTC-USDT-SWAP`.

    What precedes a colon is a pair with its settlement currency (`BTC/USDT:USDT`, as ccxt writes it), the
    base currency (`DUSK:USD`, as Bitfinex does) or the exchange (`BINANCE:BTCUSDT`, as TradingView does). The
    day on which a contract ends stays in its symbol: it is another series than one without end.

    >>> [plain_symbol(text) for text in ("BTC/USDT", "btc-usdt", "BTC/USDT:USDT", "BRK.B")]
    ['BTCUSDT', 'BTCUSDT', 'BTCUSDT', 'BRK.B']
    >>> [plain_symbol(text) for text in ("BINANCE:BTCUSDT", "DUSK:USD", "BTC-USDT-SWAP")]
    ['BTCUSDT', 'DUSKUSD', 'BTCUSDT']
    >>> plain_symbol("BTC/USDT:USDT-240628")
    'BTCUSDT240628'
    """
    parts = text.split(":")
    if len(parts) == _EXCHANGE_PAIR_AND_SETTLEMENT:
        parts = parts[1:]
    if len(parts) != 2:
        return _without_separators(text)
    first, second = parts
    if _BETWEEN_ASSETS.search(first) or first.upper().endswith(second.upper()):
        last_day = second.partition("-")[2]
        return _without_separators(f"{first}{last_day}")
    return _without_separators(f"{first}{second}" if second.upper() in QUOTE_CURRENCIES else second)


def _without_separators(text: str) -> str:
    return _BETWEEN_ASSETS.sub("", _PERPETUAL.sub("", text)).upper()


@lru_cache(4_096)
def split_origin(name: str) -> tuple[str, str]:
    """Split the name of a column into its origin, "" for the series itself, and its name there.

    >>> split_origin("BTCUSDT.ta.rsi(window=9)"), split_origin("csv.funding_rate"), split_origin("ta.rsi")
    (('BTCUSDT', 'ta.rsi(window=9)'), ('csv', 'funding_rate'), ('', 'ta.rsi'))
    """
    user_column = _OF_USER.fullmatch(name)
    if user_column:
        return USER, user_column[1]
    if len(name) <= MOST_WORDS:
        neighbour_column = _OF_NEIGHBOUR.fullmatch(name)
        if neighbour_column and is_symbol(neighbour_column[1]):
            return neighbour_column[1], neighbour_column[2]
    return "", name


def with_origin(origin: str, name: str) -> str:
    """Return the full name of a column: the inverse of `split_origin`.

    >>> with_origin("BTCUSDT", "high"), with_origin("", "high")
    ('BTCUSDT.high', 'high')
    """
    return f"{origin}.{name}" if origin else name


def is_covariate(name: str) -> bool:
    """Return whether a column comes from another source than the series' own candles."""
    return bool(split_origin(name)[0])


def is_raw_column(name: str) -> bool:
    """Return whether a column is read and not computed: one of candles, or of a table of the user."""
    origin, plain = split_origin(name)
    return origin == USER or plain in OHLCV or name == OPEN_TIME


def neighbours(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the other symbols that columns come from, each once, in the order of the columns.

    >>> neighbours(["close", "BTCUSDT.close", "csv.funding_rate", "BTCUSDT.roc"])
    ('BTCUSDT',)
    """
    origins = [split_origin(name)[0] for name in columns]
    return tuple(dict.fromkeys(origin for origin in origins if origin not in ("", USER)))


MEDIAN: Final = 0.5

MAX_LEVELS: Final = 19  # 0.05, 0.10 ... 0.95
LEAST_LEVEL: Final = 0.005  # a validation span of 1,000 windows has five actual values beyond this quantile
_TOLERANCE: Final = 1e-9  # levels that differ by less are equal: 1 - 0.95 is not exactly 0.05


def fault_of_levels(levels: Sequence[float]) -> str | None:
    """Describe what is wrong with a set of levels; None if it is valid.

    >>> fault_of_levels([0.1, 0.9])
    'must hold 0.5, the median'
    """
    if MEDIAN not in levels:
        return f"must hold {MEDIAN}, the median"
    if not 3 <= len(levels) <= MAX_LEVELS:
        return f"must hold 3 to {MAX_LEVELS} levels"
    if min(levels) < LEAST_LEVEL or max(levels) > 1 - LEAST_LEVEL:
        return f"must lie between {LEAST_LEVEL} and {1 - LEAST_LEVEL}"
    gaps = [high - low for low, high in pairwise(levels)]
    return "must ascend" if min(gaps) <= _TOLERANCE else None


def pinball(xp: Any, beyond: Any, levels: Any) -> Any:
    """Return the pinball losses of quantiles (Koenker and Bassett 1978, doi:10.2307/1913643).

    Twice that of the median is the absolute error. `beyond` is actual values less quantile, `xp` is `numpy`
    or `keras.ops`.

    >>> import numpy as np
    >>> pinball(np, np.array([2.0, -2.0]), 0.25).tolist()
    [0.5, 1.5]
    """
    return xp.maximum(levels * beyond, (levels - 1.0) * beyond)


def outer(levels: Sequence[float]) -> tuple[float, ...]:
    """Return all levels but the median, ascending.

    >>> outer([0.25, 0.5, 0.75])
    (0.25, 0.75)
    """
    return tuple(level for level in levels if level != MEDIAN)


def apart(xp: Any, levels: Sequence[float], quantiles: Any) -> tuple[Any, Any]:
    """Split quantiles into the median and the distances of the outer quantiles from it.

    Args:
        xp: `numpy` or `keras.ops`.
        levels: The Q levels.
        quantiles: Shape (N, H, Q, C).

    Returns:
        The median, shape (N, H, C), and the distances, shape (N, H, L, C), L outer levels.

    >>> import numpy as np
    >>> median, distances = apart(np, [0.1, 0.5, 0.9], np.array([[[[2.0], [5.0], [9.0]]]]))
    >>> median.tolist(), distances[0, 0, :, 0].tolist()
    ([[[5.0]]], [-3.0, 4.0])
    """
    places = [place for place, level in enumerate(levels) if level != MEDIAN]
    median = xp.take(quantiles, [list(levels).index(MEDIAN)], axis=2)
    return xp.squeeze(median, axis=2), xp.take(quantiles, places, axis=2) - median


def quantile_output(task: str) -> str:
    """Return the name of the output of a network, or of a published model, for the quantiles of a task."""
    return f"{task}_quantiles"


def quantile_column(column: str, level: float) -> str:
    """Return the name of a quantile of a column, with its level in per cent.

    >>> quantile_column("close", 0.05), quantile_column("low", 0.975)
    ('close_q5', 'low_q97.5')
    """
    return f"{column}_q{percent_of(level)}"


def interval_names(levels: Sequence[float]) -> list[str]:
    """Return the names of the central intervals among levels, the widest first.

    >>> interval_names([0.05, 0.25, 0.5, 0.75, 0.95])
    ['90 %', '50 %']
    """
    return [f"{percent_of(nominal(pair))} %" for pair in intervals(levels)]


def percent_of(level: float) -> str:
    """Write a level in per cent.

    >>> percent_of(0.29), percent_of(0.025)
    ('29', '2.5')
    """
    return f"{100 * level:.10g}"


def levels_of(names: Iterable[str], column: str) -> tuple[float, ...]:
    """Return the quantile levels of a column, from the names of all columns; empty if it has no quantiles.

    >>> levels_of(["close", "close_q95", "close_q5"], "close")
    (0.05, 0.5, 0.95)
    """
    start = quantile_column(column, 0)[:-1]
    outer_levels = [float(name.removeprefix(start)) / 100 for name in names if name.startswith(start)]
    return tuple(sorted([*outer_levels, MEDIAN])) if outer_levels else ()


def intervals(levels: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return the central intervals among levels, the widest first.

    >>> intervals([0.05, 0.25, 0.5, 0.75, 0.95])
    ((0.05, 0.95), (0.25, 0.75))
    """
    lows = [level for level in levels if level < MEDIAN]
    return tuple((low, high) for low in lows for high in levels if abs(low + high - 1) <= _TOLERANCE)


def nominal(interval: tuple[float, float]) -> float:
    """Return the nominal coverage of a central interval.

    >>> nominal((0.25, 0.75))
    0.5
    """
    return round(interval[1] - interval[0], 9)
