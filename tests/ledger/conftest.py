"""Ledgers with forecasts that no model made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from v8.ledger.database import Ledger
from v8.ledger.entries import Entry, Issuer, Score

FIRST_S = 1_700_006_400
"""A midnight, 2023-11-15T00:00:00Z."""

ISSUER = Issuer(
    place="./tiny",
    series="BTCUSDT-15m",
    model_sha256="0" * 64,
    revision=None,
    seen_until_s=1_690_000_000,
    profile="tiny",
    profile_digest="1" * 64,
    source="live",
    bar_s=900,
    horizon_bars=2,
    tasks={"ohlc": ("open", "high", "low", "close"), "volatility": ("volatility",)},
    forecasters=("model", "roll_forward", "har"),
)


def made_entry(number: int = 0, issuer: Issuer = ISSUER, *, delay_s: int = 5) -> Entry:
    """Return the forecast of a close, so many bars after `FIRST_S`."""
    issued_for_s = FIRST_S + number * issuer.bar_s
    shape = (len(issuer.forecasters), issuer.num_values)
    values = (100.0 + number + np.arange(np.prod(shape)).reshape(shape)).astype(np.float32)
    return Entry(issuer, issued_for_s, issued_for_s + delay_s, "2" * 64, values)


def made_score(losses: list[list[float]], entry: Entry) -> Score:
    """Return a score with losses by forecaster and task."""
    return Score(entry.due_s, "3" * 64, entry.values[0], np.array(losses))


@pytest.fixture
def make_entry() -> Callable[..., Entry]:
    return made_entry


@pytest.fixture
def make_score() -> Callable[..., Score]:
    return made_score


@pytest.fixture
def change_issuer() -> Callable[..., Issuer]:
    return lambda **changes: replace(ISSUER, **changes)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open_to_write(tmp_path / "ledger.sqlite") as opened:
        opened._connection.execute("PRAGMA synchronous = OFF")  # no power is cut in these tests
        yield opened
