"""Series to judge, shared by the rooms of formulas and losses."""

from made_series import _offset_scaling, _table_of, make_candles, make_market_span, make_span, profile_of

__all__ = ["_offset_scaling", "_table_of", "make_candles", "make_market_span", "make_span", "profile_of"]
