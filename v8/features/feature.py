"""What a feature is: a named column with its kind, its meaning and the formula that computes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from v8.columns import MOST_WORDS, OPEN_TIME, beside, parted
from v8.features.formulas import Floats


class Kind(Enum):
    """What kind of number a column holds; it decides how `anchored` scaling treats the column."""

    PRICE = "a price level, in quote currency"
    PRICE_CHANGE = "a difference of prices, in quote currency"
    AMOUNT = "an amount in quote currency, of any sign"
    OTHER = "a number in another unit"
    POSITIVE = "a skewed positive number, unitless"
    CENTRED = "a bounded or roughly symmetric number, unitless or percent"


ANCHORED_KINDS: Final = frozenset({Kind.PRICE, Kind.PRICE_CHANGE, Kind.AMOUNT})
"""What `anchored` scaling measures from a close, or in closes, of the same candles."""


class Past(Enum):
    """How much of its past a formula must be given for a new row."""

    WINDOW = "the bars of its own warm-up"
    AVERAGES = "the row before, and where its exponential averages stood; its function takes `average`"
    PIECE = "all of its contiguous piece"


@dataclass(frozen=True)
class Formula:
    """How one column or stage comes from candles, from other columns or from a shared stage.

    Args:
        function: Takes one array per input, then the parameters by keyword.
        inputs: Names of candle columns, features or stages.
        parameters: Name and value of every number in the formula, in bars or unitless.
        warmup_bars: First rows of a contiguous piece that are not valid although all inputs are.
        version: Raised whenever the function computes something else, or the package that computes it and
            its version; part of the digest.
        past: What a new row needs; it says nothing of what the column means and is no part of the digest.
    """

    function: Callable[..., Floats]
    inputs: tuple[str, ...]
    parameters: Mapping[str, float | None] = field(default_factory=dict)
    warmup_bars: int = 0
    version: int | str = 1
    past: Past = Past.PIECE


@dataclass(frozen=True)
class Feature:
    """A column that a profile can name.

    Args:
        name: As profiles write it.
        kind: What kind of number it is.
        sentence: What it means, for people, unit included.
        formula: How it is computed; None for a price of the candle itself.
        source: Who described it.
    """

    name: str
    kind: Kind
    sentence: str
    formula: Formula | None = None
    source: str = "the lineage"


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
    if len(f"{name}: {sentence}") > MOST_WORDS:
        sentence = f"what {plain} is, of the candles of {origin}"
    formula = None if own.formula is None else of_origin(own.formula, origin)
    return Feature(name, own.kind, sentence, formula, own.source)


def of_origin(formula: Formula, origin: str) -> Formula:
    """Return a formula that reads the columns of an origin; bars open everywhere at the same time."""
    inputs = (name if name == OPEN_TIME else beside(origin, name) for name in formula.inputs)
    return replace(formula, inputs=tuple(inputs))
