"""Covariates: columns from elsewhere beside a series' own, and how their names are read.

- `BTCUSDT.range_20` is the feature `range_20` of the candles of BTCUSDT that open, and so close, with those
  of the series. Any feature may stand there, those of the package `ta` too.
- `csv.funding_rate` is a column of a table of the user's, as the newest row says that was known when the
  bar closed.

Both are computed from columns that lie beside the candles (`Candles.beside`): `BTCUSDT.high`, or
`csv.funding_rate` itself. So a covariate is a formula like others, of other inputs: warm-ups, pieces, going
on from known rows and digests are those of every feature. `v8.market.companions` puts the columns there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from v8.columns import OHLCV, OPEN_TIME
from v8.features.feature import Feature, Formula, Kind
from v8.symbols import SYMBOL_PATTERN, is_symbol

USER: Final = "csv"
"""Origin of the columns of all tables of the user."""

COLUMN_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_-]{0,50}"
"""Names of columns of such tables; they become names of features."""

MOST_NEIGHBOURS: Final = 20
"""Other series a profile may name: the candles of each are fetched, and the profile may be a stranger's."""

_MOST_WORDS: Final = 300
"""Letters that a published definition may have."""

_OF_NEIGHBOUR: Final = re.compile(rf"({SYMBOL_PATTERN})\.([a-z].*)")
_OF_USER: Final = re.compile(rf"{USER}\.({COLUMN_PATTERN})")


@lru_cache(4_096)
def parted(name: str) -> tuple[str, str]:
    """Return where a column comes from, "" for the series itself, and what it is there.

    >>> parted("BTCUSDT.ta.rsi(window=9)"), parted("csv.funding_rate"), parted("ta.rsi")
    (('BTCUSDT', 'ta.rsi(window=9)'), ('csv', 'funding_rate'), ('', 'ta.rsi'))
    """
    if found := _OF_USER.fullmatch(name):
        return USER, found[1]
    found = _OF_NEIGHBOUR.fullmatch(name) if len(name) <= _MOST_WORDS else None
    return (found[1], found[2]) if found and is_symbol(found[1]) else ("", name)


def beside(origin: str, name: str) -> str:
    """Write the name of a column of some origin.

    >>> beside("BTCUSDT", "high"), beside("", "high")
    ('BTCUSDT.high', 'high')
    """
    return f"{origin}.{name}" if origin else name


def is_covariate(name: str) -> bool:
    """Tell whether a column comes from elsewhere than the series' own candles."""
    return bool(parted(name)[0])


def is_given(name: str) -> bool:
    """Tell whether a column is not computed: one of candles, or one that lies beside them."""
    origin, plain = parted(name)
    return origin == USER or plain in OHLCV or name == OPEN_TIME


def neighbours(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the symbols that columns come from, each once.

    >>> neighbours(["close", "BTCUSDT.close", "csv.funding_rate", "BTCUSDT.roc"])
    ('BTCUSDT',)
    """
    return tuple(dict.fromkeys(origin for origin, _ in map(parted, columns) if origin not in ("", USER)))


def user_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """Return what columns of the user's tables are named, without their origin.

    >>> user_columns(["close", "csv.funding_rate"])
    ('funding_rate',)
    """
    return tuple(plain for origin, plain in map(parted, columns) if origin == USER)


def covariate_feature(name: str, own: Feature | None) -> Feature:
    """Return the feature of a covariate's name.

    Args:
        name: One that `is_covariate`.
        own: What a neighbour's feature is among a series' own; None for a column of the user's.
    """
    origin, plain = parted(name)
    if own is None:
        sentence = f"{plain}, a column of the user's, as its newest row said that was known at the close"
        return Feature(name, Kind.OTHER, sentence, source="the user")
    sentence = f"{plain} of the candles of {origin}: {own.sentence}"
    if len(f"{name}: {sentence}") > _MOST_WORDS:
        sentence = f"what {plain} is, of the candles of {origin}"
    formula = None if own.formula is None else of_origin(own.formula, origin)
    return Feature(name, own.kind, sentence, formula, own.source)


def of_origin(formula: Formula, origin: str) -> Formula:
    """Return a formula that reads the columns of an origin; bars open everywhere at the same time."""
    inputs = (name if name == OPEN_TIME else beside(origin, name) for name in formula.inputs)
    return replace(formula, inputs=tuple(inputs))
