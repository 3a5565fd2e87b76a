"""An API that speaks broken HTTP: every answer is candles or one sentence, and never a hang."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from broken_http import BROKEN, RawServer, answer
from exchange_api import NOW_S, ExchangeApi

from v8.base.errors import DataError
from v8.base.http_client import RetryPolicy, TimeLimits
from v8.data.market.series import Series
from v8.data.market.sources.downloads import Downloader
from v8.data.market.sources.rest import ApiPolicy, CandleSpan, KlinesApi, read_addresses

SERIES = Series("BTCUSDT", "15m")
LAST_S = NOW_S // 900 * 900 - 900
SPAN = CandleSpan(SERIES, LAST_S - 9 * 900, LAST_S)
NUM_TRIES = 2
LIMITS = TimeLimits(connect_s=2.0, silence_s=0.2, try_s=0.4, file_s=60.0)

Pieces = list[bytes | float]


@pytest.fixture
def downloader(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Downloader]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    etiquette = ApiPolicy(sleep=lambda _: None)
    patience = RetryPolicy(num_tries=NUM_TRIES, sleep=lambda _: None)
    limits = getattr(request, "param", LIMITS)
    with closing(Downloader("V8_REST_URL", policy=etiquette, patience=patience, limits=limits)) as opened:
        yield opened


def refusal(downloader: Downloader, url: str) -> str:
    """Ask a host for candles and return the sentence that comes instead."""
    with pytest.raises(DataError, match="BTCUSDT-15m from the exchange's API: must be answered by") as caught:
        KlinesApi(read_addresses(url), downloader).klines(SPAN)
    assert len(str(caught.value)) <= 600
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize("pieces", BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_is_one_sentence(downloader: Downloader, pieces: Pieces) -> None:
    with closing(RawServer(pieces)) as server:
        assert server.url.removeprefix("http://") in refusal(downloader, server.url)


def test_a_redirect_ends_at_candles_or_in_a_sentence(
    downloader: Downloader, exchange_api: ExchangeApi, valid_frame
) -> None:
    exchange_api.put(str(SERIES), valid_frame(10, 900, start_s=SPAN.first_s))
    words = f"symbol=BTCUSDT&interval=15m&startTime={SPAN.first_s}000&endTime={SPAN.last_s}000&limit=10"
    there = f"Location: {exchange_api.url}/api/v3/klines?{words}"
    elsewhere = f"Location: {exchange_api.url}/login"
    with closing(RawServer([answer(there, status="302 Found")])) as server:
        rows = KlinesApi(read_addresses(server.url), downloader).klines(SPAN)
    np.testing.assert_array_equal(
        rows[["open", "high", "low", "close", "volume"]], exchange_api.frame(str(SERIES))
    )
    with closing(RawServer([answer(elsewhere, status="302 Found")])) as server:
        assert "status 404" in refusal(downloader, server.url)


def test_a_redirect_does_not_take_the_password_along(
    downloader: Downloader, exchange_api: ExchangeApi
) -> None:
    exchange_api.password = ("me", "s3cr3t")
    there = answer(f"Location: {exchange_api.url}/api/v3/klines", status="302 Found")
    with closing(RawServer([there])) as server:
        told = refusal(downloader, server.url.replace("://", "://me:s3cr3t@"))
    assert "status 401" in told
    assert "s3cr3t" not in told
