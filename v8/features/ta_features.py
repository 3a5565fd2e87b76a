"""Features of the package `ta`: an output that a profile names is examined, then computed in blocks.

An output is a public method of an indicator's class, such as `adx_pos` of `ADXIndicator`; a profile writes
`ta.adx_pos`, or `ta.adx_pos(window=20)` with parameters of the class. Parameters that are left out, or are
what the package takes anyway, are not part of the one way to write a name.

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
3. Are its values for the first candles the same, to the bit and from the first row on, when they are computed
   again, and whatever comes after them (`v8.features.examination`)? If not it is refused.
4. How does it change when all prices, or all volumes, double? That tells its unit, and how it is scaled.

The version of the package is part of a feature's digest: a model trained with another one refuses to
forecast.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module, metadata
from typing import Any, Final

import numpy as np

from v8.arrays import FloatArray
from v8.columns import HIGH, LOW, OHLC, OHLCV, OPEN_TIME, VOLUME
from v8.features.examination import Market, made_market, row_that_changes, row_that_looks_ahead
from v8.features.formulas import Feature, Formula, Kind, windows
from v8.registry import nearest, suggestion_clause

PACKAGE: Final = "ta"
PREFIX: Final = f"{PACKAGE}."
HOME: Final = "https://github.com/bukosabino/ta"

_WAY: Final = 1  # raised whenever blocks are computed otherwise

FILLING: Final = "fillna"
"""Parameter of every output: whether its last value, or one of its own, stands where it has none."""

LARGEST_PARAMETER: Final = 4_096  # of either sign; no window is longer

SHORTEST_BLOCK_BARS: Final = 32

RESOLUTION: Final = 2.0**-24
"""Of float32: what a longer history may change of a value, as a share of the largest one near it."""

_MODULES: Final = ("momentum", "trend", "volatility", "volume", "others")
_NAME: Final = re.compile(r"ta\.([A-Za-z][A-Za-z0-9_]{0,60})(\(([^()]{0,100})\))?")
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,9}(\.[0-9]{1,12})?")

Value = float | bool | None  # of a parameter; None where the package leaves one out itself


class RefusedError(ValueError):
    """A name that stands for no feature, with the reason, as a clause."""


@dataclass(frozen=True)
class Output:
    """One output of an indicator, a class of the package: the method `name` returns it."""

    name: str
    indicator: Callable[..., Any]
    inputs: tuple[str, ...]  # columns of candles that it reads, in the order of `OHLCV`
    defaults: Mapping[str, Any]  # parameters in the package's order, each its default or `Parameter.empty`


@dataclass(frozen=True)
class Wish:
    """An output with the value of each of its parameters, in the order of the package."""

    output: Output
    parameters: Mapping[str, Value]

    @property
    def text(self) -> str:
        """The one way to write it: without parameters that the package would take anyway."""
        defaults = self.output.defaults
        told = _told({name: each for name, each in self.parameters.items() if each != defaults[name]})
        return f"{PREFIX}{self.output.name}" + (f"({told})" if told else "")


@cache
def outputs() -> dict[str, Output]:
    """Read every output of the installed package, by the name of its method."""
    found = {}
    mixin = import_module(f"{PACKAGE}.utils").IndicatorMixin
    for module in (import_module(f"{PACKAGE}.{name}") for name in _MODULES):
        for each in vars(module).values():
            if not inspect.isclass(each) or not issubclass(each, mixin) or each.__module__ != module.__name__:
                continue
            signature = inspect.signature(each).parameters
            inputs = tuple(name for name in OHLCV if name in signature)
            defaults = {name: told.default for name, told in signature.items() if name not in OHLCV}
            for name, method in vars(each).items():
                if inspect.isfunction(method) and not name.startswith("_"):
                    found[name] = Output(name, each, inputs, defaults)
    return found


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


def suggestion(word: str) -> str | None:
    """Return the feature of the package that a name without prefix may have meant; None if there is none."""
    plain = word.partition("(")[0].lower()
    return f"{PREFIX}{plain}" if plain in outputs() else None


def read_wish(name: str) -> Wish:
    """Read a name such as `ta.stoch(window=10, smooth_window=5)`, or raise a RefusedError with the reason."""
    found = _NAME.fullmatch(name)
    if not found:
        raise RefusedError(
            f"{name!r} is not written like ta.adx or ta.stoch(window=10, smooth_window=5), which needs a "
            "line of its own or quotation marks"
        )
    if found[1] not in outputs():
        # Perhaps a word of initials, such as atr, or else the output most like it.
        initials = {"".join(part[0] for part in each.split("_")): each for each in reversed(outputs())}
        near = initials.get(found[1].lower()) or nearest(found[1], outputs())
        rather = f"; did you mean ta.{near}" if near else ""
        raise RefusedError(f"{name!r} is no output of the package ta{rather}")
    output = outputs()[found[1]]
    given: dict[str, str] = {}
    for part in (found[3] or "").split(","):
        key, sign, text = (each.strip() for each in part.partition("="))
        if part.strip() and not (sign and key):
            raise RefusedError(
                f"{name!r} has the parameter {part.strip()!r}, which is not written NAME=VALUE"
            )
        given |= {key: text} if key else {}
    for unknown in given.keys() - output.defaults.keys():
        known = f"{', '.join(output.defaults)}{suggestion_clause(unknown, output.defaults)}"
        raise RefusedError(f"{unknown!r} is no parameter of ta.{output.name}, which has {known}")
    return Wish(output, {key: _value(output, key, given.get(key)) for key in output.defaults})


def _value(output: Output, key: str, text: str | None) -> Value:
    default = output.defaults[key]
    if text is None:
        if default is inspect.Parameter.empty:
            raise RefusedError(f"ta.{output.name} needs {key}: write for example ta.{output.name}({key}=14)")
        return default
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise RefusedError(f"{key}={text} of ta.{output.name} must be true or false")
        return text == "true"
    if not _NUMBER.fullmatch(text) or abs(float(text)) > LARGEST_PARAMETER:
        raise RefusedError(f"{key}={text} of ta.{output.name} must be a number up to {LARGEST_PARAMETER}")
    return int(float(text)) if float(text).is_integer() else float(text)


def _told(parameters: Mapping[str, Value]) -> str:
    """Write parameters for people."""
    return ", ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) or value is None else f'{value:.12g}'}"
        for name, value in parameters.items()
    )


def refusal(name: str) -> str:
    """Say in one sentence why a name of the package is no feature; empty for one that is."""
    try:
        package_feature(name)
    except RefusedError as error:
        return str(error)
    return ""


@cache
def package_feature(name: str) -> Feature:
    """Examine the feature of a name in its one way, or raise a RefusedError with the reason."""
    wish = read_wish(name)
    if wish.text != name:
        raise RefusedError(f"{name!r} is written {wish.text}")
    subject = _Subject(wish)
    output = wish.output
    version = metadata.version(PACKAGE)
    context_bars = subject.context_bars()
    block_bars = block_bars_of(context_bars)
    subject.require_causal(context_bars)
    price, volume = (subject.degree(context_bars, doubled) for doubled in (OHLC, (VOLUME,)))
    sentence = (
        f"{output.name}() of {output.indicator.__name__} in ta {version}, {_told(wish.parameters)}, from "
        f"{context_bars} bars before its block of {block_bars} on, blocks counted from the epoch, "
        f"{_UNITS.get((price, volume), 'of a unit of its own')}"
    )
    formula = Formula(
        partial(in_blocks, output),
        (OPEN_TIME, *output.inputs),
        {**wish.parameters, "context_bars": context_bars, "block_bars": block_bars},
        warmup_bars=context_bars + block_bars - 1,
        version=f"ta {version}, {_WAY}",
        is_windowed=True,
    )
    return Feature(name, sentence, HOME, subject.kind(context_bars, price, volume), formula)


_UNITS: Final[dict[tuple[int | None, int | None], str]] = {
    (0, 0): "unitless",
    (1, 0): "quote currency",
    (0, 1): "base currency",
    (1, 1): "quote currency times base currency",
    (2, -1): "quote currency squared per base currency",
}
"""By the powers of two by which values change when prices, or volumes, double."""


def block_bars_of(context_bars: int) -> int:
    """Return how long the blocks of a context are: what is computed twice costs time, a long warm-up candles.

    >>> block_bars_of(32), block_bars_of(512)
    (32, 128)
    """
    return max(SHORTEST_BLOCK_BARS, context_bars // 4)


def in_blocks(
    output: Output,
    open_time_s: FloatArray,
    *columns: FloatArray,
    context_bars: int,
    block_bars: int,
    **parameters: Value,
) -> FloatArray:
    """Compute an output for N contiguous candles, block by block, from `context_bars` before each on.

    Open times, in seconds and one bar apart, and the output's inputs in their order have the shape (N,), N at
    least 2. Returns shape (N,), float64; NaN where bars of the context are not there, at most in the first
    `context_bars` + `block_bars` - 1 rows.
    """
    found = np.full(len(open_time_s), np.nan)
    bar_s = int(open_time_s[1] - open_time_s[0])
    first = context_bars + -(context_bars + int(open_time_s[0]) // bar_s) % block_bars
    for start in range(first, len(found), block_bars):
        rows = slice(start - context_bars, start + block_bars)
        block = dict(zip(output.inputs, (column[rows] for column in columns), strict=True))
        found[start : start + block_bars] = computed(output, block, parameters)[context_bars:]
    return found


def computed(output: Output, candles: Market, parameters: Mapping[str, Value]) -> FloatArray:
    """Let the package compute N candles, shape (N,), float64; not finite where it has no value."""
    import pandas as pd  # noqa: PLC0415 - profiles name indicators, and reading one must not wait for pandas

    columns = {name: pd.Series(candles[name]) for name in output.inputs}
    # It divides by zero in a flat market; what comes of that is looked at, not printed.
    with np.errstate(all="ignore"):
        found = getattr(output.indicator(**columns, **parameters), output.name)()
        return found.to_numpy(dtype=np.float64)


LONGEST_CONTEXT_BARS: Final = LARGEST_PARAMETER
_CONTEXTS: Final = (*(part * 2**power for power in range(4, 11) for part in (2, 3)), LONGEST_CONTEXT_BARS)
_BEGIN: Final = 2 * LONGEST_CONTEXT_BARS
_STARTS: Final = tuple(_BEGIN + 131 * number for number in range(12))
"""Where blocks of the examination start: whether the past is forgotten in time may hang on the market."""

_NUM_BARS: Final = max(_STARTS) + SHORTEST_BLOCK_BARS
_STRETCH_BARS: Final = 384  # bars on which units are found

_FAULTS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What the package raises for parameters that mean nothing, or for fewer candles than it needs."""


class _Subject:
    """What is examined, its values on stretches of the market so far, and the faults of the package."""

    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        self._values = cache(self._between)
        self._faults: list[str] = []

    def context_bars(self) -> int:
        """Find from how many bars before a block its values do not change any more."""
        for bars in _CONTEXTS:
            if all(self._agrees(bars, start) for start in _STARTS):
                # Where a third would do at times, the market decides how long the past lasts.
                is_chance = bars > _CONTEXTS[0] and any(self._agrees(bars // 3, start) for start in _STARTS)
                return min(2 * bars, LONGEST_CONTEXT_BARS) if is_chance else bars
        endless = "depends on the first candle of a table however far back that lies, as a sum since then"
        raise self._refused(self._faults[-1] if self._faults else f"{endless} does")

    def require_causal(self, context_bars: int) -> None:
        """Refuse what looks ahead, and what is another value each time."""
        num_rows = context_bars + block_bars_of(context_bars)
        start = _BEGIN - context_bars
        market = {name: values[start : start + num_rows] for name, values in _market().items()}
        if row_that_changes(self._on, market) is not None:
            raise self._refused("gives another value when it is computed again")
        nums_known = context_bars + 1, (context_bars + num_rows) // 2, num_rows - 1
        if row_that_looks_ahead(self._on, market, nums_known) is not None:
            raise self._refused("looks ahead: its values for the first candles change with later ones")

    def degree(self, context_bars: int, doubled: tuple[str, ...]) -> int | None:
        """Return by which power of two the values change when some columns double; None if by none."""
        start = _BEGIN - context_bars
        stop = _BEGIN + _STRETCH_BARS
        market = {
            name: values[start:stop] * (2.0 if name in doubled else 1.0) for name, values in _market().items()
        }
        plain = self._values(start, stop)[context_bars:]
        changed = self._on(market)[context_bars:]
        powers = (
            each for each in (0, 1, 2, -1) if np.allclose(changed, plain * 2.0**each, rtol=1e-9, atol=0)
        )
        return next(powers, None)

    def kind(self, context_bars: int, price: int | None, volume: int | None) -> Kind:
        """Say what kind of number it is that has these degrees in prices and volumes."""
        if (price, volume) != (1, 0):
            return Kind.CENTRED if (price, volume) == (0, 0) else Kind.OTHER
        start = _BEGIN - context_bars
        stop = _BEGIN + _STRETCH_BARS
        values = self._values(start, stop)[context_bars:]
        # What lies within the prices of its bars is above zero, and may have a logarithm.
        low, high = (windows(_market()[name][start:stop], context_bars + 1) for name in (LOW, HIGH))
        is_within = (low.min(axis=0) <= values) & (values <= high.max(axis=0))
        return Kind.PRICE if is_within.all() else Kind.AMOUNT

    def _agrees(self, context_bars: int, start: int) -> bool:
        """Tell whether a block is the same after a context and after one twice as long."""
        stop = start + SHORTEST_BLOCK_BARS
        try:
            late, early = (self._values(start - bars, stop) for bars in (context_bars, 2 * context_bars))
        except _FAULTS as error:  # perhaps it needs more bars
            self._faults.append(f"cannot be computed: the package says {type(error).__name__}: {error}")
            return False
        most = np.abs(early[context_bars:][np.isfinite(early[context_bars:])]).max(initial=0.0)
        late = late[context_bars:]
        early = early[2 * context_bars :]
        is_told = np.isfinite(early)
        if is_told.any() and not is_told.all() and (np.isfinite(late) == is_told).all():
            raise self._refused("has no value at some candles; with fillna=true the last one stands for it")
        return bool(is_told.all() and (np.abs(late - early) <= RESOLUTION * most).all())

    def _between(self, start: int, stop: int) -> FloatArray:
        """Compute it from one bar of the market up to another, shape (stop - start,)."""
        return self._on({name: one[start:stop] for name, one in _market().items()})

    def _on(self, market: Market) -> FloatArray:
        return computed(self._wish.output, market, self._wish.parameters)

    def _refused(self, reason: str) -> RefusedError:
        return RefusedError(f"{self._wish.text} {reason}")


def _market() -> Market:
    return made_market(_NUM_BARS)
