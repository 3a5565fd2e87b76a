"""What a table of candles tells against itself: refused, because a forecast from it would be wrong unseen.

- Opens that lie a second or less before a bar ends are closes, and others between two minutes no opens.
- What is called open begins where what is called close ended, within the range that a bar moves. Where the
  close continues the open instead, the two are swapped, or the prices run backwards under their times.
- Numbers of 16 bits hold three digits of a price.

Shapes: N candles, R raw rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.errors import DataError
from v8.market.open_times import US_PER_S, iso

SWAPPED_SHARE: Final = 0.5
"""If the step from open to next close has less than this share of the step from close to next open, the two
are swapped. Rightly named candles have 1.9 times
at least, mostly above 10, in any month of 20 coins."""

MOST_CHANCE: Final = 5.0
"""Standard deviations by which it must be so bar by bar, too, which takes 25 bars: a few bars of a price that
jumps between two ticks may look like anything. Of 5,320 windows of 80 bars none is refused, and 5,285 are if
their open and close are swapped."""

_COARSE_BYTES: Final = 2

_LATEST_CLOSE_US: Final = US_PER_S
"""Exchanges write the close of a bar a second, a millisecond or a microsecond before the next one opens."""


def require_opens(open_us: NDArray[np.int64], bar_s: int, where: str) -> None:
    """Refuse times at which no bar opens: candles would be placed a bar late, or beside the minute.

    Args:
        open_us: Times of rows on one grid, microseconds since the epoch, UTC, shape (N,), N at least 1.
        bar_s: Seconds of a bar.
        where: Name of the table, for the error.

    Raises:
        DataError: If they lie between two minutes.
    """
    beyond_us = int(open_us[0]) % (60 * US_PER_S)
    early_us = -int(open_us[0]) % (bar_s * US_PER_S)
    if beyond_us == 0:
        return
    got, fix = f"{beyond_us / US_PER_S:g} s off", f"subtract {beyond_us / US_PER_S:g} s, if it is these"
    if early_us <= _LATEST_CLOSE_US:
        got = f"{early_us / US_PER_S:g} s before a bar ends: closes"
        fix = f"add {early_us / US_PER_S:g} s and subtract a bar, {bar_s} s"
    raise DataError(
        where=where,
        rule="a candle is placed by when it opens, on a full minute",
        got=f"times such as {iso(open_us[0] / US_PER_S)}, {got}",
        fix=f"Give the times at which the bars open: {fix}",
    )


def require_continuity(
    open_us: NDArray[np.int64], values: NDArray[np.float64], bar_s: int, where: str
) -> None:
    """Refuse prices that do not continue each other as candles in the order of time do.

    Args:
        open_us: Open times, microseconds since the epoch, UTC, ascending, shape (N,).
        values: Prices above zero: open, high, low, close and perhaps more, shape (N, 4 or 5).
        bar_s: Seconds of a bar.
        where: Name of the table, for the error.

    Raises:
        DataError: If open and close are swapped, or prices run backwards.
    """
    opened, close = np.log(values[:, 0]), np.log(values[:, 3])
    is_next = np.diff(open_us) == bar_s * US_PER_S
    steps = np.abs(opened[1:] - close[:-1])[is_next]
    swapped = np.abs(close[1:] - opened[:-1])[is_next]
    signs = np.sign(steps - swapped)
    is_sure = signs.sum() > MOST_CHANCE * np.sqrt(np.abs(signs).sum())
    if is_sure and swapped.sum() < SWAPPED_SHARE * steps.sum():
        raise DataError(
            where=where,
            rule="a bar opens where the one before closed",
            got=f"opens {steps.mean():.2%} from the close before, and closes {swapped.mean():.2%} from the "
            "open before: open and close swapped, or prices backwards under their times",
            fix="Name the columns rightly (rows without names are time, open, high, low, close, volume)",
        )


def is_coarse(column: pd.Series) -> bool:
    """Tell whether a column has numbers of 16 bits."""
    if column.dtype == object:
        return any(isinstance(item, np.float16) for item in column)
    return pd.api.types.is_float_dtype(column.dtype) and getattr(column.dtype, "itemsize", 0) == _COARSE_BYTES


def too_coarse(where: str, name: str) -> DataError:
    """Build the error for numbers of 16 bits."""
    return DataError(
        where=where,
        rule="prices and volumes have more than the three digits of 16 bits",
        got=f"float16 in {name}",
        fix="Read them again as float64; what was rounded does not come back by converting",
    )
