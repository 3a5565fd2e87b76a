"""Errors in the words of Python: an argument where the command line says a flag."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from v8.errors import V8Error

_FLAG: Final = re.compile(r"--([a-z]+(?:-[a-z]+)*)")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_python(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let errors of a function name its arguments, not the flags of a command."""

    @wraps(function)
    def call(*positional: Parameters.args, **named: Parameters.kwargs) -> Result:
        try:
            return function(*positional, **named)
        except V8Error as error:
            told = error
        raise _translated(told) from told

    return call


def argument_of(text: str) -> str:
    """Turn every flag of a text into the argument of that name.

    >>> argument_of("Add --data-dir FOLDER, or start a new run beside it with --fresh")
    'Add data_dir= FOLDER, or start a new run beside it with fresh='
    """
    return _FLAG.sub(lambda found: found[1].replace("-", "_") + "=", text)


def _translated(error: V8Error) -> V8Error:
    names = ("where", "rule", "got", "fix")
    parts: dict[str, Any] = {name: argument_of(getattr(error, name)) for name in names}
    return type(error)(**parts)
