"""What a test starts, read from its code: marks that nobody has to write, and that move with the code.

    tf       it calls what imports Keras, TensorFlow or JAX, or asks for a fixture that does
    process  it starts a process, or asks for a fixture that does
    drill    real faults and kills, minutes of work; this one is written into the file: `pytestmark`

`scripts/test --quick` takes the tests that have none of them; `-m "tf and not process"` chooses, too. A test
reaches every name in its code, and what the functions, classes and fixtures of tests reach that these names
mean. The code of v8 is not looked into: a module of it counts as TensorFlow where importing it imports that.
What only the words of a command ask for is not seen; the fixture that the command works on is.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

TF = frozenset({"keras", "tensorflow", "jax"})
PROCESS = frozenset({"subprocess", "multiprocessing", "forked", "nbclient", "v8.machine.processes"})
_Cached = type(cache(len))
_IMPORTED_WHERE_USED = re.compile(r"v8\.|(keras|tensorflow|jax)$")


def mark_what_is_started(items: list[pytest.Item]) -> None:
    """Give every test the marks of what it reaches; doctests have none."""
    for item in items:
        if isinstance(item, pytest.Function):
            fixtures = item._fixtureinfo.name2fixturedefs.values()
            functions = [item.function, *(each.func for several in fixtures for each in several)]
            for mark in frozenset().union(*map(_marks, functions)):
                item.add_marker(mark)


@cache
def _marks(function: Any) -> frozenset[str]:
    found, waiting, seen = set[str](), [function], set[int]()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        place = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
        if isinstance(place, str):
            found |= {"process"} if PROCESS & {place, place.partition(".")[0]} else set()
            found |= {"tf"} if _starts_tf(place) else set()
        waiting += _named_by(thing)
        if isinstance(thing, FunctionType) and any(map(_starts_tf, _imported_by(thing))):
            found.add("tf")
    return frozenset(found)


def _named_by(thing: Any) -> Iterator[Any]:
    """Yield what a function, class or module of the tests leads to; nothing for anything else."""
    if isinstance(thing, FunctionType) and _is_of_tests(thing.__code__.co_filename):
        yield from (thing.__globals__[name] for name in _names(thing) if name in thing.__globals__)
        yield from inspect.getclosurevars(thing).nonlocals.values()
    elif isinstance(thing, type | ModuleType):
        home = thing if isinstance(thing, ModuleType) else inspect.getmodule(thing)
        if _is_of_tests(getattr(home, "__file__", None) or ""):
            yield from map(_plain, vars(thing).values())
    elif _plain(thing) is not thing:
        yield _plain(thing)


def _plain(thing: Any) -> Any:
    """Return the function within a method, a property or a decorated function."""
    match thing:
        case staticmethod() | classmethod():
            return thing.__func__
        case property():
            return thing.fget
        case partial():
            return thing.func
        case FunctionType() | _Cached():
            return inspect.unwrap(thing)
    return thing


def _imported_by(function: FunctionType) -> Iterator[str]:
    return filter(
        _IMPORTED_WHERE_USED.match, _names(function) if _is_of_tests(function.__code__.co_filename) else ()
    )


def _names(function: FunctionType) -> set[str]:
    """Return the names in the code of a function and of what is defined in it."""
    waiting, names = [function.__code__], set[str]()
    while waiting:
        code = waiting.pop()
        names |= {*code.co_names}
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return names


def _is_of_tests(file: str) -> bool:
    return "/tests/" in file.replace("\\", "/")


@cache
def _starts_tf(module: str) -> bool:
    """Whether a module is of `TF`, or one of v8 that imports it, directly or not."""
    waiting, seen = [module], set[str]()
    while waiting:
        name = waiting.pop()
        if name.partition(".")[0] in TF:
            return True
        if name.partition(".")[0] == "v8" and name not in seen:
            seen.add(name)
            for value in vars(import_module(name)).values():
                place = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
                waiting += [place] if isinstance(place, str) else []
    return False
