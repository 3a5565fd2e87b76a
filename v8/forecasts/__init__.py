"""Forecasts: of the present by every model of a place, and of the test parts as a table."""
