"""Errors of forecasts and of baselines, significance tests, and the leaderboard."""
