"""Which of several volumes of a table is in units of the base currency: the prices decide.

A quote volume is a base volume times the average price at which it was traded, which lies between low and
high of its bar. Contracts, lots, numbers of trades and volumes in thousands have no such pair.

Shapes: R raw rows.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.base.errors import DataError
from v8.data.market.column_names import AMOUNTS, COUNT_OR_TURNOVER, QUOTE_VOLUMES, VOLUMES
from v8.profile.columns import VOLUME

Values = NDArray[np.float64]

_TOLERANCE: Final = 0.002  # volumes and prices are rounded (unitless, of the price)
_LEAST_SHARE: Final = 0.9  # of the rows: small volumes are rounded most
_FEWEST_ROWS: Final = 10  # rows that must agree by chance before a volume is taken for a price


def base_volume(volumes: Mapping[str, Values], low: Values, high: Values, location: str) -> str:
    """Return the name of the volume in units of the base currency.

    Args:
        volumes: Columns by their normalised names, in any of the units, shape (R,).
        low: Lowest prices, in quote currency, shape (R,).
        high: Highest prices, in quote currency, shape (R,).
        location: Name of the table for messages.

    Raises:
        DataError: If the prices confirm none, or if the volume of rows without names is a price.

    >>> price, coins = np.array([50.0, 60.0]), np.array([2.0, 3.0])
    >>> base_volume({"vol": coins * price, "amount": coins}, price, price, "a table")
    'amount'
    """
    if COUNT_OR_TURNOVER in volumes:
        _require_no_price(volumes[VOLUME], low, high, location)
        if (np.floor(volumes[COUNT_OR_TURNOVER]) == volumes[COUNT_OR_TURNOVER]).all():  # a number of trades
            return VOLUME
    is_refuted = False
    for name in (*VOLUMES, *AMOUNTS):
        for other in (*QUOTE_VOLUMES, *AMOUNTS, *VOLUMES):
            if name in volumes and other in volumes and name != other:
                prices, is_known = _prices(volumes[name], volumes[other])
                is_inside = (prices >= low * (1 - _TOLERANCE)) & (prices <= high * (1 + _TOLERANCE))
                if is_known.any() and is_inside[is_known].mean() >= _LEAST_SHARE:
                    return name
                is_refuted |= bool(is_known.any())
    candidates = [name for name in (*VOLUMES, *AMOUNTS) if name in volumes]
    if is_refuted or len(candidates) > 1:
        raise _unclear(volumes, location)
    return candidates[0]


def _prices(base: Values, quote: Values) -> tuple[Values, NDArray[np.bool_]]:
    """Return the average price of each row if these are its volumes, and which rows have both."""
    is_known = (base > 0) & (quote > 0) & np.isfinite(base) & np.isfinite(quote)
    with np.errstate(over="ignore", under="ignore"):
        prices = np.divide(quote, base, out=np.full(len(base), np.nan), where=is_known)
    return prices, is_known


def _require_no_price(volume: Values, low: Values, high: Values, location: str) -> None:
    """Refuse rows without names whose sixth value is an average price."""
    if len(volume) >= _FEWEST_ROWS and ((volume >= low) & (volume <= high)).all():
        rule = "the sixth value of a row is its volume"
        got = f"values such as {volume[0]:.10g} that all lie between low and high: an average price"
        raise DataError(where=location, rule=rule, got=got, fix="Add a header that names the columns")


def _unclear(volumes: Mapping[str, Values], location: str) -> DataError:
    names: Sequence[str] = [name for name in volumes if name != COUNT_OR_TURNOVER]
    rule = "a volume counts coins: times a price of its bar it is the quote volume"
    first = ", ".join(f"{name} {values[0]:.10g}" for name, values in volumes.items() if len(values))
    fix = f"Rename the one of {' and '.join(names)} that counts coins to base_volume, or remove them"
    if COUNT_OR_TURNOVER in volumes:
        fix = "Add a header that names the columns: rows of more than six values cannot be told apart"
    return DataError(where=location, rule=rule, got=f"in the first row {first}", fix=fix)
