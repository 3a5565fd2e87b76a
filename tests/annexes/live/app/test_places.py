"""The live record on the page and in the API is that of the ledger, read again when it changed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ledger_entries import ISSUER, made_entry, made_score

from v8.annexes.live.app import service
from v8.annexes.live.app.service import LedgerReader
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.record import live_record

PLACE = "someone/fleet"
BTC = "BTCUSDT-15m"


def write(ledger: Ledger, number: int, losses: list[list[float]] | None) -> None:
    """Write the forecast of a close, and its score unless the actual values have not come."""
    entry = made_entry(number, replace(ISSUER, place=PLACE))
    assert ledger.add(entry)
    if losses is not None:
        key = next(iter(ledger.pending(PLACE, BTC, entry.issued_for_s)))
        ledger.add_score(key, made_score(losses, entry))


@pytest.mark.tf
def test_the_record_is_that_of_the_ledger_and_grows_with_it(
    serve: Callable[..., AbstractContextManager[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RECORD_S", "PREPARE_S"):
        monkeypatch.setattr(service, name, 0.1)
    file = tmp_path / "ledger.sqlite"
    with serve(record=LedgerReader(file, PLACE)) as page:
        assert page.get(f"/api/track/{BTC}").json() == {"series": BTC, "record": None, "all_series": {}}
        assert "No live record yet" in page.get(f"/part/{BTC}").text
        with Ledger.open_to_write(file) as ledger:
            write(ledger, 0, [[1.0, 4.0], [2.0, 2.0], [4.0, 1.0]])
            write(ledger, 2, None)
            page.until(lambda: page.get(f"/api/track/{BTC}").json()["record"] is not None)
            told = page.get(f"/api/track/{BTC}").json()
            assert told["record"]["num_pending"] == 1
            assert told["record"]["tasks"]["ohlc"]["naive"]["relative_mae"] == 0.5
            write(ledger, 1, [[2.0, 4.0], [4.0, 2.0], [4.0, 1.0]])
            page.until(lambda: page.get(f"/api/track/{BTC}").json()["record"]["num_scored"] == 2)
            told = page.get(f"/api/track/{BTC}").json()
            record = live_record(ledger, PLACE)
        assert told["record"] == record.series[0].to_json()
        assert told["all_series"] == {task: live.to_json() for task, live in record.tasks.items()}
        part = page.get(f"/part/{BTC}").text
        # What did not occur, such as a forecast that was late, is not counted.
        assert "3 issued, 2 scored, 1 waiting" in part
        told = "Candles: 50.0 % lower error than the naive forecast"
        verdict = f"{told} (not tested: too few windows), and no baseline is better. 2 scored of 1 day."
        assert verdict in part
        whole = page.get("/record").text  # on the page of all series, too
        assert told in whole and f'<a href="/series/{BTC}">' in whole
        assert page.get("/api/track/ETHUSDT-1h").json()["record"] is None
        assert str(tmp_path) not in page.get(f"/api/track/{BTC}").text


def test_a_ledger_is_read_again_only_when_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite"
    tracks = LedgerReader(file, PLACE)
    assert tracks() is None
    with Ledger.open_to_write(file) as ledger:
        assert tracks() is None
        write(ledger, 0, [[1.0, 4.0], [2.0, 2.0], [4.0, 1.0]])
        first = tracks()
        assert first is not None
        assert tracks() is first
        write(ledger, 1, None)
        assert tracks() is not first


@pytest.mark.tf
def test_what_is_no_ledger_is_told_without_its_path(
    serve: Callable[..., AbstractContextManager[Any]], tmp_path: Path
) -> None:
    file = tmp_path / "ledger.sqlite"
    file.write_bytes(b"no database" * 500)
    with serve(record=LedgerReader(file, PLACE)) as page:
        response = page.get(f"/api/track/{BTC}")
        assert response.status == 503
        assert str(tmp_path) not in response.text
        assert page.get(f"/api/forecast/{BTC}").status == 200
