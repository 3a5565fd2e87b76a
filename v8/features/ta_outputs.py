"""What the package `ta` can compute, read from its classes, and how a profile names one of these outputs.

An output is a public method of an indicator's class, such as `adx_pos` of `ADXIndicator`; a profile writes
`ta.adx_pos`, or `ta.adx_pos(window=20)` with parameters of the class. Parameters that are left out, or are
what the package takes anyway, are not part of the one way to write a name.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module, metadata
from typing import Any, Final

from v8.columns import OHLCV
from v8.registry import nearest

PREFIX: Final = "ta."
PACKAGE: Final = "ta"
HOME: Final = "https://github.com/bukosabino/ta"

FILLING: Final = "fillna"
"""Parameter of every output: whether its last value, or one of its own, stands where it has none."""

LARGEST_PARAMETER: Final = 4_096
"""Of either sign. No window is longer than what an indicator may be given."""

_MODULES: Final = ("momentum", "trend", "volatility", "volume", "others")
_NAME: Final = re.compile(r"ta\.([A-Za-z][A-Za-z0-9_]{0,60})(\(([^()]{0,100})\))?")
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,9}(\.[0-9]{1,12})?")

Value = float | bool | None
"""Of a parameter; None where the package leaves one out itself."""


class RefusedError(ValueError):
    """A name that stands for no feature, with the reason, as a clause."""


@dataclass(frozen=True)
class Output:
    """One output of an indicator, a class of the package: the method `name` returns it."""

    name: str
    indicator: Callable[..., Any]

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Columns of candles that it reads, in the order of `OHLCV`."""
        return tuple(name for name in OHLCV if name in self._signature)

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """Parameters in the order of the package, each with its default, or `Parameter.empty`."""
        return {name: each.default for name, each in self._signature.items() if name not in OHLCV}

    @cached_property
    def _signature(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.indicator).parameters


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

    @property
    def told_parameters(self) -> str:
        """All parameters, for people."""
        return _told(self.parameters)


@cache
def outputs() -> dict[str, Output]:
    """Read every output of the installed package, by the name of its method."""
    modules = [import_module(f"{PACKAGE}.{name}") for name in _MODULES]
    mixin = import_module(f"{PACKAGE}.utils").IndicatorMixin
    classes = [
        each
        for module in modules
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, mixin) and each.__module__ == module.__name__
    ]
    return {
        name: Output(name, each)
        for each in classes
        for name, method in vars(each).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }


@cache
def package_version() -> str:
    """Return the version of the installed package."""
    return metadata.version(PACKAGE)


def read_wish(name: str) -> Wish:
    """Read a name such as `ta.stoch(window=10, smooth_window=5)`, or raise a RefusedError with the reason."""
    found = _NAME.fullmatch(name)
    if not found:
        raise RefusedError(
            f"{name!r} is not written like ta.adx or ta.stoch(window=10, smooth_window=5), which needs a "
            "line of its own or quotation marks"
        )
    if found[1] not in outputs():
        near = _alike(found[1])
        rather = f"; did you mean ta.{near}" if near else ""
        raise RefusedError(f"{name!r} is no output of the package ta{rather}")
    output = outputs()[found[1]]
    given = dict(_given(name, part) for part in (found[3] or "").split(",") if part.strip())
    for unknown in given.keys() - output.defaults.keys():
        known = ", ".join(output.defaults)
        raise RefusedError(
            f"{unknown!r} is no parameter of ta.{output.name}, which has {known}"
            + (f"; did you mean {near}" if (near := nearest(unknown, output.defaults)) else "")
        )
    return Wish(output, {key: _value(output, key, given) for key in output.defaults})


def suggestion(word: str) -> str | None:
    """Return the feature of the package that a name without prefix may have meant; None if there is none."""
    plain = word.partition("(")[0].lower()
    return f"{PREFIX}{plain}" if plain in outputs() else None


def _given(name: str, part: str) -> tuple[str, str]:
    key, sign, text = (each.strip() for each in part.partition("="))
    if not sign or not key:
        raise RefusedError(f"{name!r} has the parameter {part.strip()!r}, which is not written NAME=VALUE")
    return key, text


def _value(output: Output, key: str, given: Mapping[str, str]) -> Value:
    default = output.defaults[key]
    if key not in given:
        if default is inspect.Parameter.empty:
            raise RefusedError(f"ta.{output.name} needs {key}: write for example ta.{output.name}({key}=14)")
        return default
    text = given[key]
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise RefusedError(f"{key}={text} of ta.{output.name} must be true or false")
        return text == "true"
    if not _NUMBER.fullmatch(text) or abs(float(text)) > LARGEST_PARAMETER:
        raise RefusedError(f"{key}={text} of ta.{output.name} must be a number up to {LARGEST_PARAMETER}")
    return int(float(text)) if float(text).is_integer() else float(text)


def _told(parameters: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={_written(value)}" for name, value in parameters.items())


def _written(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else f"{value:.12g}"


def _alike(word: str) -> str | None:
    """Return the output whose initials a word is, such as atr, or else the one most like it."""
    initials = {"".join(part[0] for part in name.split("_")): name for name in reversed(outputs())}
    return initials.get(word.lower()) or nearest(word, outputs())
