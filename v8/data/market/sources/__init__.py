"""Places candles come from, one module each; `open_source` in `source.py` is the way in."""
