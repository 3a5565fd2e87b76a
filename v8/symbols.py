"""Symbols: how a coin, or whatever else is traded, is written.

Capital letters only, because a symbol is also the name of folders and some systems do not tell letters apart
by size, digits, and single dots between them; no name that Windows keeps for a device.
"""

import re
from typing import Final

MAX_SYMBOL: Final = 30
SYMBOL_PATTERN: Final = r"[A-Z0-9](?:\.?[A-Z0-9])*"
SYMBOL_RULE: Final = (
    f"a symbol is 1 to {MAX_SYMBOL} capital letters and digits, perhaps with single dots "
    "between them, and no name of a device"
)

_SYMBOL: Final = re.compile(SYMBOL_PATTERN)
_DEVICE: Final = re.compile(r"(CON|PRN|AUX|NUL|COM\d|LPT\d)(\..*)?")
"""Windows opens a device under these names, whatever follows a dot."""

_BETWEEN_ASSETS: Final = re.compile(r"[-/_]")


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
