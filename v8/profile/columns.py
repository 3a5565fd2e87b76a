"""Names that several packages share: symbols of traded pairs, and names of columns with their constants.

A symbol consists of capital letters, digits and single dots between them. It also names folders, and some
file systems do not distinguish small and capital letters; for the same reason the device names of Windows are
not allowed.

Columns are always selected by name. `v8.profile.indicators` lists every column that exists.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

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
