"""Names that several rooms speak of: symbols of what is traded, and columns with the numbers in them.

A symbol is of capital letters only, because it is also the name of folders and some systems do not tell
letters apart by size, digits, and single dots between them; no name that Windows keeps for a device.

Columns are only ever picked by name. `v8.features.indicators` lists every column there is.
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

BAND_PERIOD_BARS: Final = 20  # rows of the Bollinger average and deviation, and of `volatility`
MAX_ROLLED_STEPS: Final = BAND_PERIOD_BARS - 2  # ahead at which two closes of that window are known
RECENT_RANGE: Final = "recent_range"
RANGE_BARS: Final = (1, 5, 20, 60, 240)
REALISED_BARS: Final = (5, 20, 60, 240)
MOVE_BARS: Final = (1, 5, 20, 60)

WAVES: Final = {"day": (1, 2, 3), "week": (1, 2)}  # per period, whose sine and cosine tell the time


def range_column(num_bars: int) -> str:
    """Name the range of the newest bars."""
    return f"range_{num_bars}"


def wave_columns(period: str, num_waves: int) -> tuple[str, str]:
    """Name sine and cosine of some waves per `day` or `week`."""
    return f"{period}_sin_{num_waves}", f"{period}_cos_{num_waves}"


WAVE_COLUMNS: Final = tuple(
    name for period, waves in WAVES.items() for num_waves in waves for name in wave_columns(period, num_waves)
)


def rolled_columns(step: int) -> tuple[str, str]:
    """Name the middle and the deviation of the naive forecast bands some steps ahead."""
    return f"rolled_middle_{step}", f"rolled_deviation_{step}"


OHLC: Final = (OPEN, HIGH, LOW, CLOSE)
OHLCV: Final = (*OHLC, VOLUME)

TASK_OHLC: Final = "ohlc"
TASK_BANDS: Final = "bands"
TASK_VOLATILITY: Final = "volatility"

BAND_WIDTH_STDS: Final = 2.0  # sample standard deviations from the average to a band
USER: Final = "csv"  # origin of the columns of all tables of the user
COLUMN_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_-]{0,50}"  # of tables' columns, which become features
MOST_NEIGHBOURS: Final = 20  # other series a profile may name: it may be a stranger's, and all are fetched
MOST_WORDS: Final = 300  # letters that a published definition may have
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
    """Tell whether a text is the one way to write a symbol.

    >>> [is_symbol(text) for text in ("BTCUSDT", "BRK.B", "btcusdt", "CON", "")]
    [True, True, False, False, False]
    """
    return len(text) <= MAX_SYMBOL and bool(_SYMBOL.fullmatch(text)) and not _DEVICE.fullmatch(text)


def plain_symbol(text: str) -> str:
    """Write a symbol as a Series does: the pair without what parts it, or settles it, in capital letters.

    >>> [plain_symbol(text) for text in ("BTC/USDT", "btc-usdt", "BTC/USDT:USDT", "BRK.B")]
    ['BTCUSDT', 'BTCUSDT', 'BTCUSDT', 'BRK.B']
    """
    return _BETWEEN_ASSETS.sub("", text.partition(":")[0]).upper()


@lru_cache(4_096)
def parted(name: str) -> tuple[str, str]:
    """Return where a column comes from, "" for the series itself, and what it is there.

    >>> parted("BTCUSDT.ta.rsi(window=9)"), parted("csv.funding_rate"), parted("ta.rsi")
    (('BTCUSDT', 'ta.rsi(window=9)'), ('csv', 'funding_rate'), ('', 'ta.rsi'))
    """
    found = _OF_USER.fullmatch(name)
    if found:
        return USER, found[1]
    found = _OF_NEIGHBOUR.fullmatch(name) if len(name) <= MOST_WORDS else None
    return (found[1], found[2]) if found and is_symbol(found[1]) else ("", name)


def beside(origin: str, name: str) -> str:
    """Write the name of a column of some origin.

    >>> beside("BTCUSDT", "high"), beside("", "high")
    ('BTCUSDT.high', 'high')
    """
    return f"{origin}.{name}" if origin else name


def is_covariate(name: str) -> bool:
    """Tell whether a column comes from elsewhere than the series' own candles."""
    return bool(parted(name)[0])


def is_given(name: str) -> bool:
    """Tell whether a column is not computed: one of candles, or one that lies beside them."""
    origin, plain = parted(name)
    return origin == USER or plain in OHLCV or name == OPEN_TIME


def neighbours(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the symbols that columns come from, each once.

    >>> neighbours(["close", "BTCUSDT.close", "csv.funding_rate", "BTCUSDT.roc"])
    ('BTCUSDT',)
    """
    return tuple(dict.fromkeys(origin for origin, _ in map(parted, columns) if origin not in ("", USER)))
