"""Symbols as the exchange lists them."""

from __future__ import annotations

from v8.errors import DataError
from v8.market.series import Series


def require_listed(series: Series, source: str) -> None:
    """Refuse a symbol that the exchange cannot have before anything is asked.

    Raises:
        DataError: If it is not of letters and digits only.
    """
    if not series.symbol.isalnum():
        raise DataError(
            where=f"{series} from {source}",
            rule="the exchange's symbols are letters and digits, such as BTCUSDT",
            got=series.symbol,
            fix="Write it as the exchange does, or give files of your own with --source files",
        )
