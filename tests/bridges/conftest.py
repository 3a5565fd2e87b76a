"""Series of a simulated market, for bridges that forecast spans."""

from made_series import (  # noqa: F401 - fixtures of this folder
    make_market_span,
    profile_of,
)
