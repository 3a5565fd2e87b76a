"""Forecasts of a ledger that no model made, and their scores."""

from __future__ import annotations

import numpy as np

from v8.annexes.live.entries import Entry, Issuer, Score

FIRST_S = 1_700_006_400
"""A midnight, 2023-11-15T00:00:00Z."""

ISSUER = Issuer(
    place="./tiny",
    series="BTCUSDT-15m",
    model_sha256="0" * 64,
    revision=None,
    trained_until_s=1_690_000_000,
    profile="tiny",
    profile_digest="1" * 64,
    source="live",
    bar_s=900,
    horizon_bars=2,
    tasks={"ohlc": ("open", "high", "low", "close"), "volatility": ("volatility",)},
    forecasters=("model", "naive", "har"),
)


def made_entry(number: int = 0, issuer: Issuer = ISSUER, *, delay_s: int = 5) -> Entry:
    """Return the forecast of a close, so many bars after `FIRST_S`."""
    issued_for_s = FIRST_S + number * issuer.bar_s
    shape = (len(issuer.forecasters), issuer.num_values)
    values = (100.0 + number + np.arange(np.prod(shape)).reshape(shape)).astype(np.float32)
    return Entry(issuer, issued_for_s, issued_for_s + delay_s, "2" * 64, values)


def said(entry: Entry, forecaster: str) -> dict[str, np.ndarray]:
    """Return what one forecaster said, per task, shape (H, C)."""
    return entry.issuer.split(entry.values[entry.issuer.forecasters.index(forecaster)])


def made_score(losses: list[list[float]], entry: Entry) -> Score:
    """Return a score with losses by forecaster and task."""
    return Score(entry.due_s, "3" * 64, entry.values[0], np.array(losses))
