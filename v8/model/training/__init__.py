"""Fitting the weights."""
