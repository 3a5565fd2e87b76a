"""The source `hub` against a real server on loopback: one commit for all, whole files, clear refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from local_server import LocalServer, QuietHandler

from v8.annexes.sources import DATASET_VARIABLE, ENDPOINT_VARIABLE, HubSource, read_dataset
from v8.base.errors import DataError, ProfileError
from v8.base.http_client import RetryPolicy
from v8.data.market.series import Series
from v8.data.market.sources import CutOffSource, dataset_of, open_source
from v8.data.market.sources.downloads import Downloader

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SERIES = Series("BTCUSDT", "1h")
FILE = "klines_binance_us/BTCUSDT/BTCUSDT_1h_binance_us.csv"
NOW_S = 1_725_616_800
START_S = 1_714_521_600


class Hub(LocalServer):
    """Answers what `answers` holds by path, 404 otherwise, and keeps what was asked."""

    def __init__(self) -> None:
        super().__init__(Answering)
        self.answers: dict[str, bytes] = {}
        self.asked: list[str] = []


class Answering(QuietHandler):
    server: Hub

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        content = self.server.answers.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")


def lineage_csv(num_bars: int = 300) -> bytes:
    """Write candles as the lineage's files have them: text for times, and a close time behind."""
    opens = pd.to_datetime(START_S + 3_600 * np.arange(num_bars), unit="s")
    close = 60_000 * np.exp(np.cumsum(np.random.default_rng(1).normal(0, 0.003, num_bars)))
    frame = pd.DataFrame({"open_time": opens, "open": close, "high": close * 1.01, "low": close * 0.99})
    return (
        frame.assign(close=close, volume=1.5, close_time=opens + pd.Timedelta(minutes=59, seconds=59))
        .to_csv(index=False)
        .encode()
    )


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        monkeypatch.setenv(ENDPOINT_VARIABLE, server.url)
        monkeypatch.setenv(DATASET_VARIABLE, "someone/candles")
        server.answers["/api/datasets/someone/candles/revision/main"] = json.dumps({"sha": COMMIT}).encode()
        server.answers[f"/datasets/someone/candles/resolve/{COMMIT}/{FILE}"] = lineage_csv()
        yield server


def source() -> HubSource:
    patience = RetryPolicy(num_tries=2, sleep=lambda pause_s: None)
    return HubSource(downloader=Downloader(ENDPOINT_VARIABLE, patience=patience), now=lambda: float(NOW_S))


def test_model_cards_can_name_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("V8_HUB_DATASET", "someone/candles@v1")
    source = HubSource()
    assert dataset_of(source) == "someone/candles"
    assert dataset_of(CutOffSource(source, {})) == "someone/candles"
    assert dataset_of(open_source("demo")) is None


def test_all_series_come_from_one_commit_that_is_asked_for_once(hub: Hub) -> None:
    other = FILE.replace("BTC", "ETH")
    hub.answers[f"/datasets/someone/candles/resolve/{COMMIT}/{other}"] = lineage_csv()
    both = source()
    candles = both.candles(SERIES, 200)
    assert (len(candles), candles.source) == (200, "hub")
    assert int(candles.open_time_s[-1]) == START_S + 299 * 3_600
    both.candles(Series("ETHUSDT", "1h"), 200)
    assert sum("/revision/" in path for path in hub.asked) == 1
    assert len(hub.asked) == 3


def test_a_file_that_is_not_there_is_an_error_that_names_it(hub: Hub) -> None:
    with pytest.raises(
        DataError, match=rf"needs {FILE.replace('BTC', 'SOL')} in the dataset someone/candles"
    ):
        source().candles(Series("SOLUSDT", "1h"), 200)


@pytest.mark.parametrize(
    "answer",
    [b"", b"<html>", b"[]", b'{"sha": 7}', b'{"sha": "../../x"}', b"[" * 100_000, None],
    ids=["empty", "page", "list", "number", "path", "deep", "absent"],
)
def test_an_answer_without_a_commit_is_an_error(hub: Hub, answer: bytes | None) -> None:
    hub.answers.pop("/api/datasets/someone/candles/revision/main")
    if answer is not None:
        hub.answers["/api/datasets/someone/candles/revision/main"] = answer
    with pytest.raises(DataError, match="must return the commit"):
        source().candles(SERIES, 200)


@pytest.mark.parametrize("content", [b"", b"<html>no</html>", lineage_csv().replace(b",", b"\x00")])
def test_a_file_that_holds_no_candles_is_an_error(hub: Hub, content: bytes) -> None:
    hub.answers[f"/datasets/someone/candles/resolve/{COMMIT}/{FILE}"] = content
    with pytest.raises(DataError):
        source().candles(SERIES, 200)


@pytest.mark.parametrize(
    "name", ["one", "a/b/c", "../b", "a/..", "a/b@", "a/b@x y", "a/b@../x", "http://a/b"]
)
def test_a_name_that_is_no_dataset_is_refused(name: str) -> None:
    with pytest.raises(ProfileError, match=r"V8_HUB_DATASET: .*names a dataset on"):
        read_dataset(name)


def test_a_revision_may_be_named() -> None:
    assert read_dataset("someone/candles@v1.2").revision == "v1.2"
    assert read_dataset(None).repo == "zongowo111/cpb-models"
