"""Computing an output of the package in blocks, so that a candle has one value, whoever asks and from where.

Most indicators of the package remember: exponential averages for ever, and sums in the last digits even
where they move with a window. Their values depend on where a table begins, so a forecast would not see what
training saw. Here a value depends on nothing but candles at fixed places in time: bars are counted from
the epoch, parted into blocks, and each block is computed alone, from so many bars before it on. Training,
a table that has grown and a forecast all cut at the same places and get the same bits.

The price is a longer warm-up, of the context and one block, and the context being computed once a block.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from v8.features.formulas import Floats
from v8.features.ta_package.outputs import Output, Value

SHORTEST_BLOCK_BARS = 32


def block_bars_of(context_bars: int) -> int:
    """Return how long the blocks of a context are: what is computed twice costs time, a long warm-up candles.

    >>> block_bars_of(32), block_bars_of(512)
    (32, 128)
    """
    return max(SHORTEST_BLOCK_BARS, context_bars // 4)


def in_blocks(
    output: Output,
    open_time_s: Floats,
    *columns: Floats,
    context_bars: int,
    block_bars: int,
    **parameters: Value,
) -> Floats:
    """Compute an output for contiguous candles, block by block.

    Args:
        output: Which.
        open_time_s: Seconds since the epoch, shape (N,), one bar apart; N is at least 2.
        columns: What the output reads, in the order of its inputs, each of shape (N,).
        context_bars: Bars before a block that it is computed from, too.
        block_bars: Bars of a block.
        parameters: All parameters of the output.

    Returns:
        Shape (N,), float64; NaN where bars of the context are not there, at most in the first
        `context_bars` + `block_bars` - 1 rows.
    """
    found = np.full(len(open_time_s), np.nan)
    bar_s = int(open_time_s[1] - open_time_s[0])
    first = context_bars - (context_bars + int(open_time_s[0]) // bar_s) % block_bars
    first += block_bars if first < context_bars else 0
    for start in range(first, len(found), block_bars):
        rows = slice(start - context_bars, start + block_bars)
        block = dict(zip(output.inputs, (column[rows] for column in columns), strict=True))
        found[start : start + block_bars] = computed(output, block, parameters)[context_bars:]
    return found


def computed(output: Output, candles: Mapping[str, Floats], parameters: Mapping[str, Value]) -> Floats:
    """Let the package compute an output for candles from the first of them on.

    Args:
        output: Which.
        candles: What it reads, by name, each of shape (N,).
        parameters: All of them.

    Returns:
        Shape (N,), float64; not finite where the package has no value.
    """
    import pandas as pd  # noqa: PLC0415 - profiles name indicators, and reading one must not wait for pandas

    columns = {name: pd.Series(candles[name]) for name in output.inputs}
    # It divides by zero in a flat market; what comes of that is looked at, not printed.
    with np.errstate(all="ignore"):
        found = getattr(output.indicator(**columns, **parameters), output.name)()
        return found.to_numpy(dtype=np.float64)
