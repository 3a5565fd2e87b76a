"""Perpetual contracts from an archive and an API on loopback in the exchange's layout, and their funding."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from exchange_api import ExchangeApi
from tiny_profiles import tiny_profile

import v8
from v8.annexes.sources.perpetuals import PerpetualLive, PerpetualVision
from v8.base.errors import DataError, UnknownSeriesError
from v8.data.market.candles import Candles
from v8.data.market.companions import Companions
from v8.data.market.series import Series
from v8.data.market.sources import CutOffSource, open_source, present_source
from v8.profile.settings import TableSettings

HOUR_S = 3_600
DAY_S = 24 * HOUR_S
MONTH_S = int(
    (pd.Timestamp(time.time(), unit="s") - pd.Timedelta(days=3)).to_period("M").start_time.timestamp()
)
NOW_S = MONTH_S + 2 * DAY_S + 600
"""Ten minutes into the third day of a month: the archive has the funding of whole months only."""

NUM_BARS = 2_400
BITCOIN = Series("BTCUSDT.P", "1h")
SHIBA = Series("1000SHIBUSDT.P", "1h")
TABLE = TableSettings(
    file="funding", time="time", columns=("funding_rate",), available_after_s=0, max_age_s=12 * HOUR_S
)


def rate_at(time_s: int) -> float:
    """Return the rate that is paid at a time: another one at each payment."""
    return round(1e-4 + 1e-8 * (time_s // (8 * HOUR_S) % 1_000), 8)


@pytest.fixture
def exchange(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ExchangeApi]:
    """Serve two contracts up to now; funding is paid every eight hours, some milliseconds late."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    start_s = NOW_S // HOUR_S * HOUR_S - NUM_BARS * HOUR_S
    with ExchangeApi(NOW_S, is_um=True) as served:
        for symbol, simulated in (("BTCUSDT", "BTCUSDT-1h"), ("1000SHIBUSDT", "ETHUSDT-1h")):
            candles = open_source("demo").candles(Series.parse(simulated), NUM_BARS + 48)
            opens_s = start_s + HOUR_S * np.arange(len(candles))
            served.put(f"{symbol}-1h", candles.to_frame().assign(open_time=1_000 * opens_s))
            times_s = range(start_s // (8 * HOUR_S) * 8 * HOUR_S, NOW_S, 8 * HOUR_S)
            served.funding[symbol] = {time_s * 1_000 + 4: rate_at(time_s) for time_s in times_s}
        monkeypatch.setenv("V8_UM_REST_URL", served.url)
        monkeypatch.setenv("V8_VISION_URL", served.url)
        monkeypatch.setenv("V8_REST_URL", "http://127.0.0.1:1")  # spot's: nobody may ask it
        yield served


def require_funding(candles: Candles) -> None:
    """Compare the funding of each candle with what had been paid when it closed.

    A payment is some milliseconds after the full hour: the bar that closes then does not know it yet.
    """
    closes_s = candles.open_time_s + HOUR_S
    paid_s = [(close_s - 1) // (8 * HOUR_S) * 8 * HOUR_S for close_s in closes_s.tolist()]
    rates = [rate_at(time_s) for time_s in paid_s]
    np.testing.assert_array_equal(candles.covariates["csv.funding_rate"], rates)


def test_the_archive_is_read_with_its_headers_under_a_name_of_its_own(exchange: ExchangeApi) -> None:
    candles = open_source("vision-um").candles(BITCOIN, 500)
    assert (candles.source, str(candles.series)) == ("vision-um", "BTCUSDT.P-1h")
    expected = exchange.frame("BTCUSDT-1h", NOW_S // DAY_S * DAY_S)[-500:]
    np.testing.assert_array_equal(candles.values, expected.to_numpy())
    assert all("/data/futures/um/" in path for path in exchange.archive_requests)
    asked = len(exchange.archive_requests)
    assert PerpetualVision().cached(BITCOIN, 500, int(candles.open_time_s[-1])).digest == candles.digest
    assert len(exchange.archive_requests) == asked


@pytest.mark.parametrize("name", ["live-um", "rest-um"])
def test_candles_of_the_present_come_from_the_api_of_futures(exchange: ExchangeApi, name: str) -> None:
    candles = open_source(name).candles(BITCOIN, 1_500)
    assert candles.source == name
    np.testing.assert_array_equal(candles.values, exchange.frame("BTCUSDT-1h")[-1_500:].to_numpy())
    assert {path.partition("?")[0].rpartition("/")[0] for path in exchange.requests} == {"/fapi/v1"}
    assert present_source("vision-um") == "live-um"


@pytest.mark.parametrize("name", ["vision-um", "live-um", "rest-um"])
def test_each_candle_has_the_funding_that_was_known_at_its_close(exchange: ExchangeApi, name: str) -> None:
    source = open_source(name)
    companions = Companions(["csv.funding_rate"], [TABLE])
    candles = companions.candles(source, BITCOIN, 1_200)
    assert len(candles) == 1_200
    require_funding(candles)
    past = CutOffSource(source, {str(BITCOIN): int(candles.open_time_s[-200])})
    require_funding(companions.candles(past, BITCOIN, 300))
    if name == "vision-um":  # the archive has whole months of it
        assert candles.open_time_s[-1] == MONTH_S - HOUR_S
    else:
        assert candles.open_time_s[-1] == BITCOIN.last_closed_s(NOW_S)


def test_a_page_of_funding_is_continued_and_a_wrong_one_refused(exchange: ExchangeApi) -> None:
    times_s = range(NOW_S - 2_400 * HOUR_S, NOW_S, HOUR_S)  # some contracts pay every hour
    exchange.funding["BTCUSDT"] = {time_s * 1_000: 1e-4 for time_s in times_s}
    source = open_source("rest-um")
    table = source.table("funding", source.candles(BITCOIN, 2_300))  # type: ignore[attr-defined]
    assert len(table.frame) == sum(time_s >= NOW_S // HOUR_S * HOUR_S - 2_324 * HOUR_S for time_s in times_s)
    exchange.funding["BTCUSDT"][NOW_S * 1_000 - 5] = 17.0
    with pytest.raises(DataError) as caught:
        source.table("funding", source.candles(BITCOIN, 100))  # type: ignore[attr-defined]
    assert "17" in str(caught.value.got)


def test_funding_is_only_where_the_source_of_the_candles_has_it(exchange: ExchangeApi) -> None:
    companions = Companions(["csv.funding_rate"], [TABLE])
    with pytest.raises(DataError) as caught:
        companions.candles(open_source("demo"), Series("BTCUSDT", "1h"), 100)
    assert "demo" in str(caught.value.got)
    frame = pd.DataFrame({"time": [0], "funding_rate": [1e-4]}).assign(time=[NOW_S - 400 * HOUR_S])
    given = Companions(
        ["csv.funding_rate"], [TABLE.model_copy(update={"max_age_s": 10**8})], {"funding": frame}
    )
    assert len(given.candles(open_source("live-um"), BITCOIN, 100)) == 100


@pytest.mark.parametrize(
    ("source", "series", "advice"),
    [
        ("vision", BITCOIN, "vision-um"),
        ("live", BITCOIN, "live-um"),
        ("vision-um", Series("BTCUSDT", "1h"), "BTCUSDT.P-1h"),
        ("vision-um", Series("SHIBUSDT.P", "1h"), "1000SHIBUSDT.P-1h"),
        ("live-um", Series("SHIBUSDT.P", "1h"), "1000SHIBUSDT.P-1h"),
        ("rest-um", Series("SHIBUSDT.P", "1h"), "1000SHIBUSDT.P-1h"),
    ],
)
def test_a_symbol_of_another_market_is_refused_with_the_right_one(
    exchange: ExchangeApi, monkeypatch: pytest.MonkeyPatch, source: str, series: Series, advice: str
) -> None:
    with pytest.raises(UnknownSeriesError) as caught:
        opened: Any = open_source(source)
        if source == "live":  # whose API is not there: it is not asked
            opened.prefetch([series], 10)
            opened.candles(series, 10)
        opened.require(series)
    assert advice in str(caught.value.fix)
    assert not any(path.startswith("/data/spot") for path in exchange.archive_requests)


@pytest.mark.nightly
@pytest.mark.tf
@pytest.mark.process
def test_contracts_are_trained_from_the_archive_and_forecast_from_the_present(exchange: ExchangeApi) -> None:
    features = ("open", "high", "low", "close", "csv.funding_rate", "BTCUSDT.P.range_20")
    covariates = (TABLE.model_dump(),)
    profile = tiny_profile("dense_newest", features=features, covariates=covariates, training={"epochs": 1})
    run = v8.train("vision-um", profile, series=str(SHIBA), evaluate=False, progress=False)
    assert (run.failures, list(run.series)) == ({}, ["1000SHIBUSDT.P-1h"])
    card = (run.path / str(SHIBA) / "README.md").read_text("utf-8")
    assert "`funding`, a table that the source vision-um has" in card
    source = PerpetualLive()
    forecaster = v8.load(run.path, str(SHIBA))
    joined = forecaster.companions().newest(source, SHIBA, forecaster.needed_bars)
    forecast = forecaster.predict(joined, now_s=NOW_S)
    assert len(forecast) == profile.horizon_bars
    assert forecast.index[0] == pd.Timestamp(NOW_S // HOUR_S * HOUR_S, unit="s", tz="UTC")
