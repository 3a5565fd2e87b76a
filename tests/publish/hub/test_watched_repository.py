"""A repository is watched: its newest commit forecasts, each forecast says which, a lost Hub stops none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from exchange_api import ExchangeApi
from later_candles import BEGIN_S, with_future
from moved_clock import open_following

from v8.annexes.live.ledger import Ledger
from v8.annexes.live.watching import LedgerUpdater, ServingModels
from v8.base.errors import ArtifactError

pytestmark = pytest.mark.tf

REPO = "someone/tiny"
SERIES = "BTCUSDT-15m"
BAR_S = 900


@pytest.mark.nightly
def test_the_newest_commit_forecasts_and_each_forecast_says_which(
    published_tiny: Any, exchange_api: ExchangeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    exchange_api.put(SERIES, with_future(SERIES, 1_500, 100))
    exchange_api.now_s = BEGIN_S + 5
    messages: list[str] = []
    with Ledger.open_to_write(tmp_path / "ledger.sqlite") as ledger:
        watch = LedgerUpdater(
            ServingModels(REPO), open_following, ledger, ledger.place(REPO), notify=messages.append
        )
        assert watch.update().num_issued == 1
        first = str(published_tiny.commits(REPO)[-1].oid)
        second = str(published_tiny.commit(REPO, {"notes.md": b"nothing about models\n"}))
        exchange_api.now_s += BAR_S
        assert watch.update().num_issued == 1
        published_tiny.stop()
        exchange_api.now_s += BAR_S
        assert watch.update().num_issued == 1
        issued = ledger.pending(REPO, SERIES).values()
        assert [entry.issuer.revision for entry in issued] == [first, second, second]
        assert {entry.issuer.place for entry in issued} == {REPO}
    assert messages == []


def test_a_series_that_is_not_published_is_refused_by_name(published_tiny: Any) -> None:
    with pytest.raises(ArtifactError, match=r"got none of BTCUSDT-1h\. Did you mean BTCUSDT-15m"):
        ServingModels(REPO, ["BTCUSDT-1h"])
