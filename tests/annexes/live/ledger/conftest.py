"""Ledgers with forecasts that no model made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ledger_entries import ISSUER, made_entry, made_score

from v8.annexes.live.ledger.database import Ledger
from v8.annexes.live.ledger.entries import Entry, Issuer, Score


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
