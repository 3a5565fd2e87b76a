"""Sources of candles beyond archive, exchange, files and demo: Yahoo, and a dataset on the Hub."""
