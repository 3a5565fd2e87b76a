"""Which series the name of a candle file tells, in the forms in which people and programs name them.

`BTCUSDT-15m`, `BTCUSDT_15m` and `BTCUSDT 15m` as whole words, whatever stands before and behind them:
`BTCUSDT-15m-2024-08`, `Binance_BTCUSDT_15m`. A pair may be parted (`BTC_USDT-1h`), and settled in a currency
(`BTC_USDT_USDT-1h-futures`, as freqtrade does). TradingView writes exchange, symbol and minutes:
`BINANCE_BTCUSDT, 60`. Capital letters matter in the timeframe only, where `1m` is a minute and `1M` a month.
"""

from __future__ import annotations

import re
from typing import Final

from v8.errors import ProfileError
from v8.market.series import TIMEFRAME_S, Series
from v8.symbols import plain_symbol

_WORD_END: Final = r"(?![A-Za-z0-9])"
_TIMEFRAME: Final = re.compile(rf"(?<=[-_ ])({'|'.join(TIMEFRAME_S)}){_WORD_END}")
_EXPORTED: Final = re.compile(r"[A-Z0-9]+_([A-Z0-9.]+), (\d+|\d*[DW])(_[0-9a-f]+)?( ?\(\d+\))?")
"""How TradingView names what it exports, and browsers what they download again."""

_QUOTES: Final = re.compile(
    r"USDT|USDC|USD|BUSD|FDUSD|TUSD|USDP|DAI|BTC|ETH|BNB|EUR|GBP|JPY|TRY|BRL|AUD|KRW|PERP", re.IGNORECASE
)
"""Currencies in which pairs are quoted: behind one of these words the base stands before."""

_MOST_LETTERS: Final = 255


def named_series(stem: str) -> tuple[Series, ...]:
    """List the series that the name of a file tells, each once.

    >>> [str(series) for series in named_series("BTC_USDT_USDT-1h-futures")]
    ['BTCUSDT-1h']
    >>> [str(series) for series in named_series("BINANCE_BTCUSDT, 240")]
    ['BTCUSDT-4h']
    """
    if exported := _EXPORTED.fullmatch(stem[:_MOST_LETTERS]):
        pairs = [(exported[1], _timeframe(exported[2]))]
    else:
        found = _TIMEFRAME.finditer(stem[:_MOST_LETTERS])
        pairs = [(_symbol(stem[: match.start() - 1]), match[1]) for match in found]
    return tuple(dict.fromkeys(series for pair in pairs if (series := _series(*pair))))


def names_series(stem: str, series: Series) -> bool:
    """Tell whether the name of a file tells a series, or holds it as a whole word.

    >>> names_series("Binance_BTCUSDT_1m-2024", Series("BTCUSDT", "1m"))
    True
    >>> names_series("1000BTCUSDT-1m", Series("BTCUSDT", "1m"))
    False
    """
    return series in named_series(stem) or holds_name(stem, series)


def holds_name(stem: str, series: Series) -> bool:
    """Tell whether the name of a file holds a series as a whole word."""
    if series.symbol.lower() not in stem.lower():  # a thousand series look at a thousand names each
        return False
    word = rf"(?<![A-Za-z0-9])(?i:{re.escape(series.symbol)})[-_]{series.timeframe}{_WORD_END}"
    return re.search(word, stem) is not None


def _symbol(text: str) -> str:
    """Read the symbol off the end of what stands before a timeframe: the last word, or a pair of words."""
    words = [word for word in re.split(r"[-_, ]+", text) if word]
    while len(words) > 2 and words[-1] == words[-2]:  # the currency that settles is the one that quotes
        words.pop()
    is_parted = len(words) > 1 and _QUOTES.fullmatch(words[-1]) is not None
    return "".join(words[-2:] if is_parted else words[-1:])


def _timeframe(minutes: str) -> str:
    """Write TradingView's minutes, days or weeks as a timeframe; empty for one that there is not."""
    if not minutes.isdigit():
        return f"{minutes[:-1] or 1}{minutes[-1].lower()}"
    seconds = int(minutes[:9]) * 60
    return next((name for name, bar_s in TIMEFRAME_S.items() if bar_s == seconds), "")


def _series(symbol: str, timeframe: str) -> Series | None:
    try:
        return Series(plain_symbol(symbol), timeframe)
    except ProfileError:
        return None
