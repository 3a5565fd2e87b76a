"""Series of a simulated market, for bridges that forecast spans."""

from made_series import make_market_span, profile_of

__all__ = ["make_market_span", "profile_of"]
