"""Features of the package `ta`: an output that a profile names is examined, then computed in blocks.

An output is a public method of an indicator class, such as `adx_pos` of `ADXIndicator`; a profile writes
`ta.adx_pos`, or `ta.adx_pos(window=20)` with parameters of the class. In the canonical form of a name,
parameters with default values are left out.

Most indicators of the package depend on the whole history: exponential averages always, and moving sums in
their last digits. Their values would depend on the first candle of a table, so training and forecasting would
get different values for the same candle. Here a value depends only on candles at fixed positions in time:
bars are counted from the epoch and divided into blocks, and each block is computed alone, from a number of
bars before it (its *context*). The cost is a longer warm-up, of the context and one block.

The examination runs once in a process, on a synthetic market, with the parameters that a profile names (they
can be any numbers, so the answers cannot be tabulated):

1. How long must the context be, so that twice the context gives the same values to the resolution of float32?
   Twice that length is used if the necessary length depends on the market, as for a trailing stop. Sums since
   the first candle have no such length: such an output is refused, because the value of a candle would be
   different in every table.
2. Does every candle have a value?
3. Are the values of the first candles bit-identical when they are computed again, and with any later candles
   (`v8.profile.formulas`)? If not, the output is refused.
4. How does it change when all prices, or all volumes, double? This shows its unit, and how to scale it.

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

from v8.base.arrays import FloatArray
from v8.base.registry import nearest, suggestion_clause
from v8.profile.columns import HIGH, LOW, OHLC, OHLCV, OPEN_TIME, VOLUME
from v8.profile.formulas import (
    Feature,
    Formula,
    Kind,
    Market,
    first_lookahead_row,
    first_unstable_row,
    synthetic_market,
    windows,
)

PACKAGE: Final = "ta"
PREFIX: Final = f"{PACKAGE}."
HOME: Final = "https://github.com/bukosabino/ta"

_VERSION: Final = 1  # raised whenever blocks are computed in another way

FILLING: Final = "fillna"
"""Parameter of every output: whether missing values are replaced, by the last value or a constant."""

LARGEST_PARAMETER: Final = 4_096  # absolute value; no window is longer

SHORTEST_BLOCK_BARS: Final = 32

RESOLUTION: Final = 2.0**-24
"""Resolution of float32: how much a longer context may change a value, as a share of the largest in its
block."""

_MODULES: Final = ("momentum", "trend", "volatility", "volume", "others")
_NAME: Final = re.compile(r"ta\.([A-Za-z][A-Za-z0-9_]{0,60})(\(([^()]{0,100})\))?")
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,9}(\.[0-9]{1,12})?")

Value = float | bool | None  # of a parameter; None is a default of the package


class RefusedError(ValueError):
    """A name that is not a feature; the message gives the reason."""


@dataclass(frozen=True)
class Output:
    """One output of an indicator class of the package: the result of its method `name`."""

    name: str
    indicator: Callable[..., Any]
    inputs: tuple[str, ...]  # columns of candles that it reads, in the order of `OHLCV`
    defaults: Mapping[str, Any]  # parameters in the package's order, each its default or `Parameter.empty`


@dataclass(frozen=True)
class ParameterizedOutput:
    """An output with values of all its parameters, in the order of the package."""

    output: Output
    parameters: Mapping[str, Value]

    @property
    def text(self) -> str:
        """The canonical name: without parameters that have their default values."""
        defaults = self.output.defaults
        changed = {name: value for name, value in self.parameters.items() if value != defaults[name]}
        name = f"{PREFIX}{self.output.name}"
        return f"{name}({_written(changed)})" if changed else name


@cache
def outputs() -> dict[str, Output]:
    """Return all outputs of the installed package, by the names of their methods."""
    all_outputs = {}
    for module_name in _MODULES:
        for indicator in _indicators(f"{PACKAGE}.{module_name}"):
            parameters = inspect.signature(indicator).parameters
            inputs = tuple(name for name in OHLCV if name in parameters)
            defaults = {
                name: parameter.default for name, parameter in parameters.items() if name not in OHLCV
            }
            for name, method in vars(indicator).items():
                if inspect.isfunction(method) and not name.startswith("_"):
                    all_outputs[name] = Output(name, indicator, inputs, defaults)
    return all_outputs


def _indicators(module_name: str) -> list[type]:
    """List the indicator classes that a module of the package defines."""
    base = import_module(f"{PACKAGE}.utils").IndicatorMixin
    return [
        member
        for member in vars(import_module(module_name)).values()
        if inspect.isclass(member) and issubclass(member, base) and member.__module__ == module_name
    ]


def is_package_name(name: str) -> bool:
    """Return whether a name has the prefix of the package."""
    return name.startswith(PREFIX)


def canonical_name(name: str) -> str:
    """Return the canonical form of a name; a name that cannot be read stays as it is.

    >>> canonical_name("ta.adx(window=14)")
    'ta.adx'
    >>> canonical_name("ta.stoch( smooth_window=5,window=10 )")
    'ta.stoch(window=10, smooth_window=5)'
    >>> canonical_name("close")
    'close'
    """
    try:
        return read_name(name).text if is_package_name(name) else name
    except RefusedError:
        return name


def with_filling(name: str) -> str:
    """Return the name of the variant that replaces missing values, such as those in a flat market.

    >>> with_filling("ta.stoch(window=10)")
    'ta.stoch(window=10, fillna=true)'
    """
    parameterized = read_name(name)
    return ParameterizedOutput(parameterized.output, {**parameterized.parameters, FILLING: True}).text


def suggestion(word: str) -> str | None:
    """Return the feature of the package that a name without prefix may have meant; None if there is none."""
    plain = word.partition("(")[0].lower()
    return f"{PREFIX}{plain}" if plain in outputs() else None


def read_name(name: str) -> ParameterizedOutput:
    """Read a name such as `ta.stoch(window=10, smooth_window=5)`; a RefusedError if it is invalid."""
    match = _NAME.fullmatch(name)
    if not match:
        raise RefusedError(
            f"{name!r} is not written like ta.adx or ta.stoch(window=10, smooth_window=5), which needs a "
            "line of its own or quotation marks"
        )
    output = _output(name, match[1])
    texts = _parameter_texts(name, match[3] or "")
    for unknown in texts.keys() - output.defaults.keys():
        parameters = f"{', '.join(output.defaults)}{suggestion_clause(unknown, output.defaults)}"
        raise RefusedError(f"{unknown!r} is no parameter of ta.{output.name}, which has {parameters}")
    values = {key: _value(output, key, texts.get(key)) for key in output.defaults}
    return ParameterizedOutput(output, values)


def _output(name: str, method: str) -> Output:
    """Return an output by its method; the error suggests one with these initials or a similar name."""
    if method in outputs():
        return outputs()[method]
    by_initials = {}
    for other in reversed(outputs()):
        initials = "".join(part[0] for part in other.split("_"))
        by_initials[initials] = other
    near = by_initials.get(method.lower()) or nearest(method, outputs())
    suggestion_text = f"; did you mean ta.{near}" if near else ""
    raise RefusedError(f"{name!r} is no output of the package ta{suggestion_text}")


def _parameter_texts(name: str, text: str) -> dict[str, str]:
    """Split `window=10, smooth_window=5` into names and texts of values."""
    texts: dict[str, str] = {}
    for part in text.split(","):
        key, sign, value = (piece.strip() for piece in part.partition("="))
        if part.strip() and not (sign and key):
            raise RefusedError(
                f"{name!r} has the parameter {part.strip()!r}, which is not written NAME=VALUE"
            )
        if key:
            texts[key] = value
    return texts


def _value(output: Output, key: str, text: str | None) -> Value:
    """Return the value of a parameter, its default if `text` is None."""
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


def _written(parameters: Mapping[str, Value]) -> str:
    """Write parameters as in a name: `window=10, fillna=true`."""
    parts = []
    for name, value in parameters.items():
        is_word = isinstance(value, bool) or value is None
        parts.append(f"{name}={str(value).lower()}" if is_word else f"{name}={value:.12g}")
    return ", ".join(parts)


def refusal(name: str) -> str:
    """Return in one sentence why a name of the package is not a feature; an empty text if it is one."""
    try:
        package_feature(name)
    except RefusedError as error:
        return str(error)
    return ""


@cache
def package_feature(name: str) -> Feature:
    """Examine the feature of a canonical name; a RefusedError if it cannot be used."""
    parameterized = read_name(name)
    if parameterized.text != name:
        raise RefusedError(f"{name!r} is written {parameterized.text}")
    examination = _Examination(parameterized)
    output = parameterized.output
    version = metadata.version(PACKAGE)
    context_bars = examination.context_bars()
    block_bars = block_bars_of(context_bars)
    examination.require_causal(context_bars)
    price_degree = examination.degree(context_bars, OHLC)
    volume_degree = examination.degree(context_bars, (VOLUME,))
    unit = _UNITS.get((price_degree, volume_degree), "of a unit of its own")
    sentence = (
        f"{output.name}() of {output.indicator.__name__} in ta {version}, "
        f"{_written(parameterized.parameters)}, from {context_bars} bars before its block of "
        f"{block_bars} on, blocks counted from the epoch, {unit}"
    )
    formula = Formula(
        partial(in_blocks, output),
        (OPEN_TIME, *output.inputs),
        {**parameterized.parameters, "context_bars": context_bars, "block_bars": block_bars},
        warmup_bars=context_bars + block_bars - 1,
        version=f"ta {version}, {_VERSION}",
        is_windowed=True,
    )
    kind = examination.kind(context_bars, price_degree, volume_degree)
    return Feature(name, sentence, HOME, kind, formula)


_UNITS: Final[dict[tuple[int | None, int | None], str]] = {
    (0, 0): "unitless",
    (1, 0): "quote currency",
    (0, 1): "base currency",
    (1, 1): "quote currency times base currency",
    (2, -1): "quote currency squared per base currency",
}
"""Units by degree in prices and in volumes: values change by 2**degree when these double."""


def block_bars_of(context_bars: int) -> int:
    """Return the length of the blocks of a context: short blocks cost time, long ones a longer warm-up.

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
    """Compute an output for N contiguous candles, block by block, each with its context.

    Args:
        output: The output.
        open_time_s: Open times, seconds since the epoch, one bar apart, shape (N,), N at least 2.
        *columns: Inputs of the output in their order, shape (N,).
        context_bars: Bars before a block from which it is computed.
        block_bars: Bars of a block.
        **parameters: Parameters of the output.

    Returns:
        Shape (N,), float64; NaN where the context is incomplete, at most in the first `context_bars` +
        `block_bars` - 1 rows.
    """
    values = np.full(len(open_time_s), np.nan)
    bar_s = int(open_time_s[1] - open_time_s[0])
    first = context_bars + -(context_bars + int(open_time_s[0]) // bar_s) % block_bars
    for start in range(first, len(values), block_bars):
        rows = slice(start - context_bars, start + block_bars)
        block = {name: column[rows] for name, column in zip(output.inputs, columns, strict=True)}
        values[start : start + block_bars] = computed(output, block, parameters)[context_bars:]
    return values


def computed(output: Output, candles: Market, parameters: Mapping[str, Value]) -> FloatArray:
    """Compute an output with the package, shape (N,), float64; not finite where it has no value."""
    import pandas as pd  # noqa: PLC0415 - profiles name indicators, and reading one must not wait for pandas

    columns = {name: pd.Series(candles[name]) for name in output.inputs}
    with np.errstate(all="ignore"):  # in a flat market it divides by zero; callers check the results
        indicator = output.indicator(**columns, **parameters)
        values = getattr(indicator, output.name)()
        return values.to_numpy(dtype=np.float64)


LONGEST_CONTEXT_BARS: Final = LARGEST_PARAMETER
_CONTEXTS: Final = (*(part * 2**power for power in range(4, 11) for part in (2, 3)), LONGEST_CONTEXT_BARS)
_FIRST_START: Final = 2 * LONGEST_CONTEXT_BARS
_STARTS: Final = tuple(_FIRST_START + 131 * number for number in range(12))
"""Starts of the examined blocks: several, because the necessary context may depend on the market."""

_NUM_BARS: Final = max(_STARTS) + SHORTEST_BLOCK_BARS
_STRETCH_BARS: Final = 384  # bars from which units are derived

_FAULTS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Raised by the package for invalid parameters, or for fewer candles than it needs."""


class _Examination:
    """Examination of one output with its parameters, on the synthetic market."""

    def __init__(self, feature: ParameterizedOutput) -> None:
        self._feature = feature
        self._values = cache(self._compute_values)
        self._faults: list[str] = []  # errors of the package

    def context_bars(self) -> int:
        """Return the number of bars before a block beyond which more bars do not change its values."""
        for bars in _CONTEXTS:
            if all(self._agrees(bars, start) for start in _STARTS):
                # If a third is enough for some blocks, the necessary length depends on the market.
                varies = bars > _CONTEXTS[0] and any(self._agrees(bars // 3, start) for start in _STARTS)
                return min(2 * bars, LONGEST_CONTEXT_BARS) if varies else bars
        endless = "depends on the first candle of a table however far back that lies, as a sum since then"
        raise self._refused(self._faults[-1] if self._faults else f"{endless} does")

    def require_causal(self, context_bars: int) -> None:
        """Refuse an output that looks ahead or has other values each time."""
        num_rows = context_bars + block_bars_of(context_bars)
        start = _FIRST_START - context_bars
        market = {name: values[start : start + num_rows] for name, values in _market().items()}
        if first_unstable_row(self._compute, market) is not None:
            raise self._refused("gives another value when it is computed again")
        nums_known = (context_bars + 1, (context_bars + num_rows) // 2, num_rows - 1)
        if first_lookahead_row(self._compute, market, nums_known) is not None:
            raise self._refused("looks ahead: its values for the first candles change with later ones")

    def degree(self, context_bars: int, doubled: tuple[str, ...]) -> int | None:
        """Return the power of two by which the values change when some columns double; None without one."""
        start = _FIRST_START - context_bars
        stop = _FIRST_START + _STRETCH_BARS
        market = {
            name: values[start:stop] * (2.0 if name in doubled else 1.0) for name, values in _market().items()
        }
        original = self._values(start, stop)[context_bars:]
        changed = self._compute(market)[context_bars:]
        for power in (0, 1, 2, -1):
            if np.allclose(changed, original * 2.0**power, rtol=1e-9, atol=0):
                return power
        return None

    def kind(self, context_bars: int, price_degree: int | None, volume_degree: int | None) -> Kind:
        """Return the kind of a number that has these degrees in prices and volumes."""
        if (price_degree, volume_degree) == (0, 0):
            return Kind.CENTRED
        if (price_degree, volume_degree) != (1, 0):
            return Kind.OTHER
        start = _FIRST_START - context_bars
        stop = _FIRST_START + _STRETCH_BARS
        values = self._values(start, stop)[context_bars:]
        # Values between the lowest and the highest price of their bars are positive prices.
        low = windows(_market()[LOW][start:stop], context_bars + 1)
        high = windows(_market()[HIGH][start:stop], context_bars + 1)
        is_within = (low.min(axis=0) <= values) & (values <= high.max(axis=0))
        return Kind.PRICE if is_within.all() else Kind.AMOUNT

    def _agrees(self, context_bars: int, start: int) -> bool:
        """Return whether a block has the same values with a context and with one twice as long."""
        stop = start + SHORTEST_BLOCK_BARS
        try:
            short = self._values(start - context_bars, stop)
            long = self._values(start - 2 * context_bars, stop)
        except _FAULTS as error:  # perhaps it needs more bars
            self._faults.append(f"cannot be computed: the package says {type(error).__name__}: {error}")
            return False
        nearby = long[context_bars:]
        largest = np.abs(nearby[np.isfinite(nearby)]).max(initial=0.0)
        short = short[context_bars:]
        long = long[2 * context_bars :]
        has_value = np.isfinite(long)
        if has_value.any() and not has_value.all() and (np.isfinite(short) == has_value).all():
            raise self._refused("has no value at some candles; with fillna=true the last one is repeated")
        return bool(has_value.all() and (np.abs(short - long) <= RESOLUTION * largest).all())

    def _compute_values(self, start: int, stop: int) -> FloatArray:
        """Compute the output from one bar of the synthetic market up to another, shape (stop - start,)."""
        return self._compute({name: values[start:stop] for name, values in _market().items()})

    def _compute(self, market: Market) -> FloatArray:
        return computed(self._feature.output, market, self._feature.parameters)

    def _refused(self, reason: str) -> RefusedError:
        return RefusedError(f"{self._feature.text} {reason}")


def _market() -> Market:
    return synthetic_market(_NUM_BARS)
