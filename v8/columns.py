"""Names that several packages use: names of columns, and rules for symbols.

A symbol consists of capital letters, digits, and single dots between them. It is also the name of a folder,
and some file systems ignore case, so lower-case letters are refused; so are names that Windows reserves for
devices.

Columns are always selected by name. `v8.features.indicators` lists all columns.
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

BAND_PERIOD_BARS: Final = 20  # bars of the Bollinger average and deviation, and of `volatility`
MAX_ROLLED_STEPS: Final = BAND_PERIOD_BARS - 2
"""Most steps ahead at which at least two closes of the band period are known."""
RECENT_RANGE: Final = "recent_range"
RANGE_BARS: Final = (1, 5, 20, 60, 240)
REALISED_BARS: Final = (5, 20, 60, 240)
MOVE_BARS: Final = (1, 5, 20, 60)

WAVES: Final = {"day": (1, 2, 3), "week": (1, 2)}
"""Numbers of waves per period whose sine and cosine are features of the time."""


def range_column(num_bars: int) -> str:
    """Return the name of the range of the newest bars."""
    return f"range_{num_bars}"


def wave_columns(period: str, num_waves: int) -> tuple[str, str]:
    """Return the names of sine and cosine of a number of waves per `day` or `week`."""
    return f"{period}_sin_{num_waves}", f"{period}_cos_{num_waves}"


WAVE_COLUMNS: Final = tuple(
    name for period, waves in WAVES.items() for num_waves in waves for name in wave_columns(period, num_waves)
)


def rolled_columns(step: int) -> tuple[str, str]:
    """Return the names of the middle and the deviation of the naive bands some steps ahead."""
    return f"rolled_middle_{step}", f"rolled_deviation_{step}"


OHLC: Final = (OPEN, HIGH, LOW, CLOSE)
OHLCV: Final = (*OHLC, VOLUME)

TASK_OHLC: Final = "ohlc"
TASK_BANDS: Final = "bands"
TASK_VOLATILITY: Final = "volatility"

BAND_WIDTH_STDS: Final = 2.0  # sample standard deviations from the average to a band
USER: Final = "csv"  # origin of the columns of all tables of the user
COLUMN_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_-]{0,50}"  # of columns of tables, which become features
MOST_NEIGHBOURS: Final = 20
"""Most other series that a profile may name: it may come from anybody, and all of them are downloaded."""
MOST_WORDS: Final = 300  # most characters of a published definition
MAX_SYMBOL: Final = 30
SYMBOL_PATTERN: Final = r"[A-Z0-9](?:\.?[A-Z0-9])*"
SYMBOL_RULE: Final = (
    f"a symbol is 1 to {MAX_SYMBOL} capital letters and digits, perhaps with single dots "
    "between them, and no name of a device"
)

_SYMBOL: Final = re.compile(SYMBOL_PATTERN)
_DEVICE: Final = re.compile(r"(CON|PRN|AUX|NUL|COM\d|LPT\d)(\..*)?")  # Windows opens these, whatever follows
_BETWEEN_ASSETS: Final = re.compile(r"[-/_]")
_OF_NEIGHBOUR: Final = re.compile(rf"({SYMBOL_PATTERN})\.([a-z].*)")
_OF_USER: Final = re.compile(rf"{USER}\.({COLUMN_PATTERN})")


def is_symbol(text: str) -> bool:
    """Return whether a text is a valid symbol.

    >>> [is_symbol(text) for text in ("BTCUSDT", "BRK.B", "btcusdt", "CON", "")]
    [True, True, False, False, False]
    """
    return len(text) <= MAX_SYMBOL and bool(_SYMBOL.fullmatch(text)) and not _DEVICE.fullmatch(text)


def plain_symbol(text: str) -> str:
    """Normalise a symbol: capital letters, without separators and without the currency of settlement.

    >>> [plain_symbol(text) for text in ("BTC/USDT", "btc-usdt", "BTC/USDT:USDT", "BRK.B")]
    ['BTCUSDT', 'BTCUSDT', 'BTCUSDT', 'BRK.B']
    """
    return _BETWEEN_ASSETS.sub("", text.partition(":")[0]).upper()


@lru_cache(4_096)
def parted(name: str) -> tuple[str, str]:
    """Split the name of a column into its origin, "" for the series itself, and its name there.

    >>> parted("BTCUSDT.ta.rsi(window=9)"), parted("csv.funding_rate"), parted("ta.rsi")
    (('BTCUSDT', 'ta.rsi(window=9)'), ('csv', 'funding_rate'), ('', 'ta.rsi'))
    """
    of_user = _OF_USER.fullmatch(name)
    if of_user:
        return USER, of_user[1]
    of_neighbour = _OF_NEIGHBOUR.fullmatch(name) if len(name) <= MOST_WORDS else None
    if of_neighbour and is_symbol(of_neighbour[1]):
        return of_neighbour[1], of_neighbour[2]
    return "", name


def beside(origin: str, name: str) -> str:
    """Return the full name of a column of an origin.

    >>> beside("BTCUSDT", "high"), beside("", "high")
    ('BTCUSDT.high', 'high')
    """
    return f"{origin}.{name}" if origin else name


def is_covariate(name: str) -> bool:
    """Return whether a column comes from another source than the series' own candles."""
    return bool(parted(name)[0])


def is_given(name: str) -> bool:
    """Return whether a column is read, not computed: a column of candles, or of a user's table."""
    origin, plain = parted(name)
    return origin == USER or plain in OHLCV or name == OPEN_TIME


def neighbours(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the other symbols that columns come from, each once.

    >>> neighbours(["close", "BTCUSDT.close", "csv.funding_rate", "BTCUSDT.roc"])
    ('BTCUSDT',)
    """
    return tuple(dict.fromkeys(origin for origin, _ in map(parted, columns) if origin not in ("", USER)))
