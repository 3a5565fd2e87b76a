"""From candles to windows: market, features, windows."""
