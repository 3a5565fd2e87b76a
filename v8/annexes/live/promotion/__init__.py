"""Promotion: trains stale models again on newer candles, and lets the better of old and new serve."""
