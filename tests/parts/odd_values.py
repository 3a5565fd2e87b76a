"""Values of every kind that a program may put where a text or a number belongs, and places to put them."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import pathlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pandas as pd


class Unspeakable:
    """Fails when it is shown."""

    def __repr__(self) -> str:
        raise ValueError("no words")

    __str__ = __repr__


class Number(enum.IntEnum):
    ONE = 1


def _endless() -> list[Any]:
    """A list that holds itself."""
    loop: list[Any] = []
    loop.append(loop)
    return loop


def _deep() -> list[Any]:
    inner: list[Any] = []
    for _ in range(2_000):
        inner = [inner]
    return inner


ARRAYS: Final[tuple[Any, ...]] = (
    *(np.array([0.05, 0.5, 0.95]), np.array([8, 4]), np.array(["close"]), np.array([[1, 2], [3, 4]])),
    *(np.array(3), np.array(3.5), np.array("x"), np.zeros(0), np.zeros((0, 3)), np.array([None, np.nan])),
    *(
        np.array(["2024"], "M8[s]"),
        np.array([(1, 2.0)], dtype="i4,f4"),
        np.array([object()]),
        np.arange(10**6),
    ),
    *(np.ma.array([1, 2], mask=[False, True]), np.int64(3), np.float32("nan"), np.bool_(True), np.str_("x")),
    *(np.longdouble(1), np.datetime64("2024"), np.void(b"ab"), pd.Series([0.05, 0.5, 0.95])),
    *(pd.Series([1, None], dtype="Int64"), pd.Index(["close", "open"]), pd.array([1, 2])),
    *(pd.DataFrame({"a": [1]}), pd.DataFrame({"dtype": [1]}), pd.Categorical(["a"]), pd.NA, pd.NaT),
    *(pd.Timestamp("2024"), pd.Timedelta(1), pd.Interval(0, 1), pd.MultiIndex.from_product([[0], [1]])),
)
"""Of NumPy and pandas."""

OBJECTS: Final[tuple[Any, ...]] = (
    *({"x": 1}, {1: 2}, {"x": {"y": {}}}, {}, {"": 0}, {"family": "lstm_dense"}, {"train": 0.5}, {None: 1}),
    *({"x" * 5_000: 1}, [], [[]], [{}], [None], (), _endless(), _deep(), set(), frozenset("a"), range(3)),
    *(object(), Unspeakable(), Unspeakable, b"x", bytearray(b"x"), memoryview(b"x"), 1j, ..., NotImplemented),
    *(decimal.Decimal("0.5"), fractions.Fraction(1, 2), pathlib.Path("x"), datetime.datetime(2024, 1, 1)),
    *(
        len,
        enum,
        Number.ONE,
        10**400,
        float("nan"),
        float("inf"),
        True,
        None,
        "",
        "\0",
        "\ud800",
        "x" * 5_000,
    ),
)
"""Of Python."""


def paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where each value of a JSON document stands; of lists the first two, for the others are alike."""
    yield path
    if isinstance(node, dict):
        items: Any = node.items()
    else:
        items = enumerate(node[:2]) if isinstance(node, list) else ()
    for key, value in items:
        yield from paths(value, (*path, key))
