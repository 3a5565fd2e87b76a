"""What a call from Python is given: checked by the annotations of the function, and told in words of Python.

A function of the API says by its annotations what it takes. `in_python` refuses everything else before the
function sees it, in one sentence that names the argument, and writes the parameters of errors from further
down as arguments. So there is one check for all of them, and none in the functions themselves.
"""

import inspect
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Final, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
from pydantic import ValidationError

from v8.errors import PARTS, ArgumentError, StorageError, V8Error, as_argument, listed, shown, with_parameters
from v8.invocation import command
from v8.records import adapter, first_fault
from v8.registry import nearest

MOST_LETTERS: Final = 4_096  # of a text; no path is longer
_LARGEST_SHOWN: Final = 10**30
_WORDS: Final[Mapping[Any, str]] = {
    **{str: "a text", Path: "a path", type(None): "None", bool: "True or False", int: "a whole number"},
    **{float: "a number", datetime: "a time", pd.DataFrame: "a frame", np.ndarray: "an array"},
    **{Mapping: "a mapping by text", Sequence: "a list", Sequence[str]: "a list of texts"},
}
"""What kinds of arguments are called."""

_KINDS: Final[Mapping[Any, Any]] = {int: Integral, float: Real, Path: os.PathLike, Any: object}
"""What an annotation takes instances of, where that is more than itself."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_python(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Check what a function is given, and let its errors name arguments, not the flags of a command.

    The arguments of a call that are none of the annotated ones are refused as an `ArgumentError`.
    """
    called = f"v8.{function.__qualname__.removesuffix('.__init__')}"

    @wraps(function)
    def call(*positional: Parameters.args, **named: Parameters.kwargs) -> Result:
        try:
            bound = _bound(function, called, positional, named)
            return function(*bound.args, **bound.kwargs)
        except V8Error as error:
            told = error
        except OSError as error:  # of a place that nothing of ours looks after
            told = StorageError.out_of_reach(error)
        parts: dict[str, Any] = {name: with_parameters(getattr(told, name), as_argument) for name in PARTS}
        if parts["where"] in (command(), command("run")):
            parts["where"] = called
        raise type(told)(**parts) from told

    return call


def _bound(
    function: Callable[..., Any], called: str, positional: Sequence[Any], named: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Put arguments in their places, each checked.

    Raises:
        ArgumentError: If one is unknown, missing, or not what its annotation says.
    """
    signature, kinds, is_open = _signature(function)
    unknown = next((name for name in named if name not in kinds and not is_open), None)
    if unknown:
        raise unknown_argument(called, unknown, list(kinds))
    try:
        bound = signature.bind(*positional, **named)
    except TypeError as error:
        raise _refused(called, "takes the arguments that it lists", str(error)) from error
    for name in bound.arguments.keys() & kinds.keys():
        bound.arguments[name] = taken(called, name, bound.arguments[name], kinds[name])
    return bound


@cache
def _signature(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any], bool]:
    """Return the signature of a function, what each argument is annotated with, and if it takes others."""
    signature = inspect.signature(function)
    told = {name: kind for name, kind in function.__annotations__.items() if name != "return"}
    annotated = types.SimpleNamespace(__annotations__=told)
    kinds = get_type_hints(annotated, getattr(function, "__globals__", {}), include_extras=True)
    return signature, kinds, any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())


def taken(called: str, name: str, value: Any, kind: Any) -> Any:
    """Return an argument as a function takes it: numbers of NumPy become those of Python.

    Raises:
        ArgumentError: If it is not of its kind.
    """
    value = value.item() if isinstance(value, np.integer | np.floating | np.bool_) else value
    if not _fits(value, kind):
        raise _refused(f"{called}, {name}=", _rule(value, kind), _told(value))
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Tell whether a value is of an annotated kind; a text is no list of letters, and True no number."""
    members = get_args(kind)
    plain = get_origin(kind) or kind
    if plain in (Union, types.UnionType):
        return any(_fits(value, one) for one in members)
    if plain is Annotated:
        return _fits(value, members[0]) and not _out_of_range(value, kind)
    is_one = isinstance(value, _KINDS.get(plain, plain))
    if plain in (int, float):
        return is_one and not isinstance(value, bool)
    if plain in (str, Path):
        return is_one and 0 < len(os.fspath(value)) <= MOST_LETTERS and str(os.fspath(value)).isprintable()
    if plain in (Sequence, Mapping):  # a mapping is looked at by its keys
        is_one = is_one and not isinstance(value, str | bytes | bytearray)
        return is_one and all(_fits(one, members[0]) for one in value)
    return is_one


def _out_of_range(value: Any, kind: Any) -> str | None:
    try:
        adapter(kind).validate_python(value)
    except ValidationError as error:
        return first_fault(error)[1]
    return None


def _rule(value: Any, kind: Any) -> str:
    """Say what an argument must be, or what is wrong with one that is almost so."""
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if isinstance(value, str | os.PathLike) and {str, Path} & {*members}:
        return f"is of 1 to {MOST_LETTERS:,} printable letters"
    for one in members:
        if get_origin(one) is Annotated and _fits(value, get_args(one)[0]):
            return f"{_out_of_range(value, one)}".replace("input should be", "is")
    said = list(dict.fromkeys(map(_word, members)))
    return f"is {', '.join(said[:-1])} or {said[-1]}" if len(said) > 1 else f"is {said[0]}"


def _word(kind: Any) -> str:
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    origin = get_origin(plain) or plain
    return _WORDS.get(plain) or _WORDS.get(origin) or f"a {origin.__name__}"


def _told(value: Any) -> str:
    """Show a wrong argument: its value where it is a plain one, else its type."""
    if isinstance(value, int) and abs(value) > _LARGEST_SHOWN:
        return f"one of {value.bit_length():,} bits"
    if value is None or isinstance(value, int | float | complex | str | bytes):
        is_long = isinstance(value, str) and len(value) > MOST_LETTERS
        return shown(repr(value), 60) + (f" of {len(str(value)):,} letters" if is_long else "")
    return f"a {shown(type(value).__name__, 60)}"


def unknown_argument(
    called: str, name: str, known: Sequence[str], others: Iterable[str] = ()
) -> ArgumentError:
    """Build the error for an argument that nobody knows; it suggests a known one, or one of the others."""
    near = nearest(name, known) or nearest(name, others)
    fix = f"Did you mean {near}=" if near else f"help({called}) lists them"
    rule = f"has the arguments {listed(known)}"
    return ArgumentError(where=called, rule=rule, got=f"one named {shown(name, 60)!r}", fix=fix)


def _refused(where: str, rule: str, got: str) -> ArgumentError:
    called = where.partition(",")[0]
    return ArgumentError(where=where, rule=rule, got=got, fix=f"help({called}) says what it means")


class Shown:
    """What tab completion lists the public names of, and nothing else."""

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]
