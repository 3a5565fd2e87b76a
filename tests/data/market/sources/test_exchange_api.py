"""The exchange that the tests have on loopback behaves like the real one."""

from __future__ import annotations

import json
from urllib.request import urlopen

import numpy as np
from exchange_api import NOW_S, ExchangeApi

from v8.data.market.series import Series
from v8.data.market.sources.source import present_of
from v8.data.market.sources.vision import VisionSource

SERIES = Series("BTCUSDT", "15m")
START_S = NOW_S // 86_400 * 86_400 - 40 * 86_400


def klines(exchange: ExchangeApi, words: str = "") -> list[list[object]]:
    with urlopen(f"{exchange.url}/api/v3/klines?symbol=BTCUSDT&interval=15m{words}") as answer:
        assert answer.headers["X-MBX-USED-WEIGHT-1M"] == str(exchange.used_weight)
        return json.load(answer)


def test_rows_are_the_newest_or_follow_the_start_and_the_running_candle_is_the_last(
    exchange_api, valid_frame
):
    exchange_api.put(str(SERIES), valid_frame(4_000, 900, start_s=START_S))
    rows = klines(exchange_api)
    assert len(rows) == 500
    assert {len(row) for row in rows} == {12}
    assert rows[-1][0] == NOW_S // 900 * 900_000
    assert len(klines(exchange_api, "&limit=5000")) == 1_000
    first = klines(exchange_api, f"&startTime={START_S * 1_000 + 1}&endTime={START_S * 1_000 + 2_000_000}")
    assert [row[0] for row in first] == [(START_S + 900) * 1_000, (START_S + 1_800) * 1_000]
    exchange_api.now_s += 900
    later = klines(exchange_api)
    assert later[-2][0] == rows[-1][0]
    assert later[-2][1] == rows[-1][1]
    assert later[-2][5] != rows[-1][5]  # what was running then is whole now


def test_the_archive_holds_the_same_candles_of_days_and_months_that_are_over(exchange_api, valid_frame):
    exchange_api.put(str(SERIES), valid_frame(4_000, 900, start_s=START_S))
    candles = VisionSource(now=lambda: exchange_api.now_s).candles(SERIES, 4_000)
    assert candles.report.last_open == "2024-09-03T23:45:00Z"
    closed = exchange_api.frame(str(SERIES))
    np.testing.assert_array_equal(candles.values, closed[: len(candles)])
    assert len(closed) - len(candles) == 48


def test_the_present_is_that_of_a_source_that_keeps_the_exchanges_time():
    class Kept:
        def now_s(self) -> int:
            return 7

    assert present_of(Kept()) == 7
    assert present_of(object()) > NOW_S
