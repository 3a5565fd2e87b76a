"""Series to evaluate, shared by the tests of baselines and evaluation."""

from made_series import _offset_scaling, _table_of, make_candles, make_market_span, make_span, profile_of

__all__ = ["_offset_scaling", "_table_of", "make_candles", "make_market_span", "make_span", "profile_of"]
