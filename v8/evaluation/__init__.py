"""Errors of a forecast beside its baselines."""
