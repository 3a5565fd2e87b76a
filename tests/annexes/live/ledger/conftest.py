"""Ledgers with forecasts that no model made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from v8.annexes.live.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open_to_write(tmp_path / "ledger.sqlite") as opened:
        opened._connection.execute("PRAGMA synchronous = OFF")  # no power is cut in these tests
        yield opened
