"""Comparison: several profiles on the same candles: errors, time, memory."""
