"""Features of the package `ta`: an output that a profile names is examined, then computed in blocks.

Most indicators of the package remember: exponential averages for ever, and sums in the last digits even where
they move with a window. Their values depend on where a table begins, so a forecast would not see what
training saw. Here a value depends on nothing but candles at fixed places in time: bars are counted from the
epoch, parted into blocks, and each block is computed alone, from so many bars before it on. The price is a
longer warm-up, of the context and one block.

The examination, once a process and on a market of its own, asks of the very parameters that a profile names
(any numbers, so no table could hold the answers):

1. From how many bars before does it give what it gives from twice as many, to the resolution of float32? That
   is its context; twice that where the market has a say in it, as for a trailing stop. Sums since the first
   candle never do: such an output is refused, because a candle would have another value in every table.
2. Does every candle have a value?
3. Are its values for the first candles the same, to the bit and from the first row on, whatever comes after
   them? If not it looks ahead: it is refused.
4. How does it change when all prices, or all volumes, double? That tells its unit, and how it is scaled.

The version of the package is part of a feature's digest: a model trained with another one refuses to
forecast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Final

import numpy as np

from v8.columns import CLOSE, HIGH, LOW, OHLC, OPEN, OPEN_TIME, VOLUME
from v8.features.feature import Feature, Formula, Kind, Past
from v8.features.formulas import Floats
from v8.features.ta_outputs import (
    FILLING,
    HOME,
    LARGEST_PARAMETER,
    PREFIX,
    Output,
    RefusedError,
    Value,
    Wish,
    package_version,
    read_wish,
)

_WAY: Final = 1
"""Raised whenever blocks are computed otherwise."""


def is_package_name(name: str) -> bool:
    """Tell whether a name is meant for the package."""
    return name.startswith(PREFIX)


def one_way(name: str) -> str:
    """Return the one way to write a name; a name that cannot be read stays as it is.

    >>> one_way("ta.adx(window=14)"), one_way("ta.stoch( smooth_window=5,window=10 )"), one_way("close")
    ('ta.adx', 'ta.stoch(window=10, smooth_window=5)', 'close')
    """
    try:
        return read_wish(name).text if is_package_name(name) else name
    except RefusedError:
        return name


def with_filling(name: str) -> str:
    """Write a name so that the package puts its last value where it has none, as in a flat market.

    >>> with_filling("ta.stoch(window=10)")
    'ta.stoch(window=10, fillna=true)'
    """
    wish = read_wish(name)
    return Wish(wish.output, {**wish.parameters, FILLING: True}).text


@cache
def package_feature(name: str) -> Feature:
    """Return the feature of a name in its one way, or raise a RefusedError with the reason."""
    wish = read_wish(name)
    if wish.text != name:
        raise RefusedError(f"{name!r} is written {wish.text}")
    findings = examine(wish)
    return Feature(name, findings.kind, _sentence(wish, findings), _formula(wish, findings), HOME)


def _formula(wish: Wish, findings: Findings) -> Formula:
    context_bars, block_bars = findings.context_bars, block_bars_of(findings.context_bars)
    blocks = {"context_bars": context_bars, "block_bars": block_bars}
    return Formula(
        partial(in_blocks, wish.output),
        (OPEN_TIME, *wish.output.inputs),
        {**wish.parameters, **blocks},
        warmup_bars=context_bars + block_bars - 1,
        version=f"ta {package_version()}, {_WAY}",
        past=Past.WINDOW,
    )


def _sentence(wish: Wish, findings: Findings) -> str:
    name, indicator = wish.output.name, wish.output.indicator.__name__
    block_bars = block_bars_of(findings.context_bars)
    return (
        f"{name}() of {indicator} in ta {package_version()}, {wish.told_parameters}, from "
        f"{findings.context_bars} bars before its block of {block_bars} on, blocks counted from the epoch, "
        f"{findings.unit}"
    )


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
    """Compute an output for N contiguous candles, block by block, from `context_bars` before each on.

    Open times, in seconds and one bar apart, and the output's inputs in their order have the shape (N,), N at
    least 2. Returns shape (N,), float64; NaN where bars of the context are not there, at most in the first
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
    """Let the package compute N candles, shape (N,), float64; not finite where it has no value."""
    import pandas as pd  # noqa: PLC0415 - profiles name indicators, and reading one must not wait for pandas

    columns = {name: pd.Series(candles[name]) for name in output.inputs}
    # It divides by zero in a flat market; what comes of that is looked at, not printed.
    with np.errstate(all="ignore"):
        found = getattr(output.indicator(**columns, **parameters), output.name)()
        return found.to_numpy(dtype=np.float64)


RESOLUTION: Final = 2.0**-24
"""Of float32: what a longer history may change of a value, as a share of the largest one near it."""

LONGEST_CONTEXT_BARS: Final = LARGEST_PARAMETER
_CONTEXTS: Final = (
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    3072,
    LONGEST_CONTEXT_BARS,
)
_BEGIN: Final = 2 * LONGEST_CONTEXT_BARS
_STARTS: Final = tuple(_BEGIN + 131 * number for number in range(12))
"""Where blocks of the examination start: whether the past is forgotten in time may hang on the market."""

_NUM_BARS: Final = max(_STARTS) + SHORTEST_BLOCK_BARS
_STRETCH_BARS: Final = 384
"""Bars on which units are found."""

_FAULTS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What the package raises for parameters that mean nothing, or for fewer candles than it needs."""

_WILD: Final = 1e9 / 7.0
"""What prices are multiplied with from one candle to the next, so that a look at them cannot be missed."""

Market = Mapping[str, Floats]


@dataclass(frozen=True)
class Findings:
    """What an examination found: the context of a block in bars, how it is scaled, its unit."""

    context_bars: int
    kind: Kind
    unit: str


def examine(wish: Wish) -> Findings:
    """Examine an output with its parameters, or raise a RefusedError with the reason."""
    subject = _Subject(wish)
    context_bars = _context_bars(subject)
    _require_causal(subject, context_bars)
    price, volume = (_degree(subject, context_bars, doubled) for doubled in (OHLC, (VOLUME,)))
    return Findings(context_bars, _kind(subject, context_bars, price, volume), _unit(price, volume))


@dataclass(frozen=True)
class _Subject:
    """What is examined, its values on stretches of the market so far, and the faults of the package."""

    wish: Wish
    known: dict[tuple[int, int], Floats] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def values(self, start: int, stop: int) -> Floats:
        """Compute it from one bar up to another, shape (stop - start,)."""
        if (start, stop) not in self.known:
            market = {name: values[start:stop] for name, values in _market().items()}
            self.known[start, stop] = self.on(market)
        return self.known[start, stop]

    def on(self, market: Market) -> Floats:
        """Compute it for other candles."""
        return computed(self.wish.output, market, self.wish.parameters)

    def refused(self, reason: str) -> RefusedError:
        """Say why it is no feature."""
        return RefusedError(f"{self.wish.text} {reason}")


def _context_bars(subject: _Subject) -> int:
    for bars in _CONTEXTS:
        if all(_agree(subject, bars, start) for start in _STARTS):
            # Where a third would do at times, the market decides how long the past lasts: others need more.
            is_chance = bars > _CONTEXTS[0] and any(_agree(subject, bars // 3, start) for start in _STARTS)
            return min(2 * bars, LONGEST_CONTEXT_BARS) if is_chance else bars
    endless = "depends on the first candle of a table however far back that lies, as a sum since then does"
    raise subject.refused(subject.faults[-1] if subject.faults else endless)


def _agree(subject: _Subject, context_bars: int, start: int) -> bool:
    """Tell whether a block is the same after a context and after one twice as long."""
    stop = start + SHORTEST_BLOCK_BARS
    try:
        late, early = (
            subject.values(start - context_bars, stop),
            subject.values(start - 2 * context_bars, stop),
        )
    except _FAULTS as error:  # perhaps it needs more bars
        subject.faults.append(f"cannot be computed: the package says {type(error).__name__}: {error}")
        return False
    most = np.abs(early[context_bars:][np.isfinite(early[context_bars:])]).max(initial=0.0)
    late, early = late[context_bars:], early[2 * context_bars :]
    is_told = np.isfinite(early)
    if is_told.any() and not is_told.all() and (np.isfinite(late) == is_told).all():
        raise subject.refused("has no value at some candles; with fillna=true the last one stands for it")
    return bool(is_told.all() and (np.abs(late - early) <= RESOLUTION * most).all())


def _require_causal(subject: _Subject, context_bars: int) -> None:
    num_rows, start = context_bars + block_bars_of(context_bars), _BEGIN - context_bars
    for num_known in (context_bars + 1, (context_bars + num_rows) // 2, num_rows - 1):
        market = {name: values[start : start + num_rows].copy() for name, values in _market().items()}
        for values in market.values():
            values[num_known:] *= _WILD
        known, whole = subject.values(start, start + num_known), subject.on(market)
        if len(whole) != num_rows or not np.array_equal(whole[:num_known], known, equal_nan=True):
            raise subject.refused("looks ahead: its values for the first candles change with later ones")


def _degree(subject: _Subject, context_bars: int, doubled: tuple[str, ...]) -> int | None:
    """Return by which power of two the values change when some columns double; None if by none."""
    start, stop = _BEGIN - context_bars, _BEGIN + _STRETCH_BARS
    market = {
        name: values[start:stop] * (2.0 if name in doubled else 1.0) for name, values in _market().items()
    }
    plain, changed = subject.values(start, stop)[context_bars:], subject.on(market)[context_bars:]
    powers = (power for power in (0, 1, 2, -1) if np.allclose(changed, plain * 2.0**power, rtol=1e-9, atol=0))
    return next(powers, None)


def _kind(subject: _Subject, context_bars: int, price: int | None, volume: int | None) -> Kind:
    if (price, volume) == (0, 0):
        return Kind.CENTRED
    if (price, volume) != (1, 0):
        return Kind.OTHER
    start, stop, market = _BEGIN, _BEGIN + _STRETCH_BARS, _market()
    values = subject.values(start - context_bars, stop)[context_bars:]
    # What lies within the prices of its bars is above zero, and may have a logarithm.
    windows = [slice(row - context_bars, row + 1) for row in range(start, stop)]
    lowest, highest = (
        [most(market[name][each]) for each in windows] for name, most in ((LOW, min), (HIGH, max))
    )
    return Kind.PRICE if ((lowest <= values) & (values <= highest)).all() else Kind.AMOUNT


def _unit(price: int | None, volume: int | None) -> str:
    known: dict[tuple[int | None, int | None], str] = {
        (0, 0): "unitless",
        (1, 0): "quote currency",
        (0, 1): "base currency",
        (1, 1): "quote currency times base currency",
        (2, -1): "quote currency squared per base currency",
    }
    return known.get((price, volume), "of a unit of its own")


@cache
def _market() -> Market:
    """Draw the candles of the examination: quiet, wild and one-sided days, the same on every machine."""
    # The one generator of NumPy whose numbers are promised never to change.
    random, num_rows, num_days = np.random.RandomState(20_261_122), _NUM_BARS, _NUM_BARS // 64 + 1
    size = np.repeat(random.choice([0.001, 0.004, 0.02], num_days), 64)[:num_rows]
    drift = np.repeat(random.choice([-0.5, 0.0, 0.0, 0.5], num_days), 64)[:num_rows]
    returns = (random.standard_normal(num_rows) + drift) * size
    close = 100.0 * np.exp(np.cumsum(returns - returns.mean()))
    opened = np.concatenate([close[:1], close[:-1]])
    reach = random.uniform(0.0, 1.0, (2, num_rows)) * size
    return {
        OPEN: opened,
        HIGH: np.maximum(opened, close) * (1.0 + reach[0]),
        LOW: np.minimum(opened, close) * (1.0 - reach[1]),
        CLOSE: close,
        VOLUME: random.gamma(2.0, 10.0, num_rows),
    }
