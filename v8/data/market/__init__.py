"""Series, candles, and where candles come from."""
