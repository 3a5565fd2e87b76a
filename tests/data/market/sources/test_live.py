"""The source `live`: what it asks whom for, and that its candles are those of one cold fetch."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from exchange_api import NOW_S, ApiFault, ExchangeApi
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from v8.base.errors import DataError, StorageError
from v8.cli.inspection import update_store
from v8.data.market.series import Series
from v8.data.market.sources import cached_views, open_source, present_of
from v8.data.market.sources.live import LiveSource
from v8.profile.columns import OHLC

SERIES = Series("BTCUSDT", "15m")
BAR_S = 900
DAY_S = 86_400
LAST_S = NOW_S // BAR_S * BAR_S - BAR_S
"""11:45, whose candle closed at 12:00; it is 12:07."""

NUM_PAST = 4_000
START_S = LAST_S - (NUM_PAST - 1) * BAR_S


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def exchange(exchange_api: ExchangeApi, valid_frame: Any, home: Path) -> ExchangeApi:
    """Hold 4,000 closed candles, 42 days, and 20 days to come."""
    exchange_api.put(str(SERIES), valid_frame(NUM_PAST + 1_920, BAR_S, start_s=START_S))
    return exchange_api


def require_cold(candles: Any, exchange: ExchangeApi, num_bars: int) -> None:
    """Compare with what one cold fetch at this moment gives."""
    expected = exchange.frame(str(candles.series))[-num_bars:]
    np.testing.assert_array_equal(candles.to_frame().index, expected.index)
    np.testing.assert_array_equal(candles.values, expected.to_numpy())


def stored(home: Path, ending: str = "15m.parquet") -> list[Path]:
    return sorted(home.glob(f"candles/*/*{ending}"))


def test_a_cold_start_is_one_request_where_a_page_is_enough(exchange, home) -> None:
    source = open_source("live")
    candles = source.candles(SERIES, 260)
    require_cold(candles, exchange, 260)
    assert (candles.source, len(exchange.klines_requests()), len(exchange.requests)) == ("live", 1, 2)
    assert exchange.archive_requests == []
    assert present_of(source) - NOW_S in range(5)
    require_cold(source.candles(SERIES, 1_000), exchange, 1_000)
    assert len(exchange.requests) == 2


def test_what_the_store_holds_is_read_again_without_asking_anybody(
    exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_s = LAST_S - 100 * BAR_S
    first = LiveSource().candles(SERIES, 300, end_s)
    exchange.requests.clear()
    assert LiveSource().cached(SERIES, 300, end_s).digest == first.digest
    with pytest.raises(DataError, match=r"ETHUSDT-15m from live: .*; got none"):
        LiveSource().cached(Series("ETHUSDT", "15m"), 300, end_s)
    assert exchange.requests == []
    monkeypatch.setenv("V8_VISION_URL", f"{exchange.url}/elsewhere")
    _, kept = cached_views(LiveSource())  # its own store, which is empty, and the other one's
    assert kept.candles(SERIES, 300, end_s).digest == first.digest


def test_a_long_history_comes_from_the_archive_and_its_end_from_the_api(exchange) -> None:
    require_cold(LiveSource().candles(SERIES, 3_500), exchange, 3_500)
    newest, page = exchange.klines_requests()
    assert newest["limit"] == "1"
    assert int(page["startTime"]) == (NOW_S // DAY_S * DAY_S - 3 * BAR_S) * 1_000
    assert exchange.archive_requests
    exchange.requests.clear()
    exchange.archive_requests.clear()
    require_cold(LiveSource().candles(SERIES, 3_500), exchange, 3_500)
    assert exchange.requests == ["/api/v3/time"]
    assert exchange.archive_requests == []


@pytest.mark.parametrize("num_missing", [0, 1, 2, 997, 998, 999])
def test_what_a_page_holds_is_one_request_that_asks_the_last_candles_again(exchange, num_missing) -> None:
    LiveSource().candles(SERIES, 1_000)
    exchange.requests.clear()
    exchange.now_s += num_missing * BAR_S
    num_bars = 1_500 if num_missing > 600 else 900
    require_cold(LiveSource().candles(SERIES, num_bars), exchange, num_bars)
    requests = exchange.klines_requests()
    assert len(requests) == (num_missing > 0)
    assert [int(one["startTime"]) <= LAST_S * 1_000 for one in requests] == [True] * len(requests)
    assert [int(one["limit"]) for one in requests] == [min(num_missing + 3, 1_000)] * len(requests)


def test_an_archive_that_is_late_is_followed_by_as_many_pages_as_it_takes(exchange) -> None:
    LiveSource().candles(SERIES, 1_000)
    exchange.now_s += 1_900 * BAR_S
    exchange.archive_lag_s = 15 * DAY_S
    require_cold(LiveSource().candles(SERIES, 2_500), exchange, 2_500)


def test_an_end_in_the_past_is_served_from_the_store_or_from_the_archive(exchange) -> None:
    end_s = LAST_S - 2_000 * BAR_S
    candles = LiveSource().candles(SERIES, 100, end_s + 7)
    assert (int(candles.open_time_s[-1]), len(candles), candles.report.num_newer) == (end_s, 100, 2_000)
    assert exchange.klines_requests() == []
    again = LiveSource().candles(SERIES, 100, end_s + 7)
    assert again.digest == candles.digest
    require_cold(LiveSource().candles(SERIES, 3_000), exchange, 3_000)
    with pytest.raises(DataError, match=r"; got .* 2024-07-24"):
        LiveSource().candles(SERIES, 100, START_S - BAR_S)


def test_a_young_coin_is_asked_for_its_begin_once(exchange_api, valid_frame, home) -> None:
    exchange_api.put("NEWUSDT-15m", valid_frame(200, BAR_S, start_s=LAST_S - 99 * BAR_S))
    assert len(LiveSource().candles(Series("NEWUSDT", "15m"), 260)) == 100
    num_asked = len(exchange_api.klines_requests())
    exchange_api.now_s += BAR_S
    assert len(LiveSource().candles(Series("NEWUSDT", "15m"), 260)) == 101
    assert len(exchange_api.klines_requests()) == num_asked + 1
    assert exchange_api.archive_requests == []


def test_a_symbol_that_is_no_longer_traded_costs_one_request(exchange_api, valid_frame, home) -> None:
    exchange_api.put(str(SERIES), valid_frame(1_500, BAR_S, start_s=LAST_S - 1_499 * BAR_S))
    before = LiveSource().candles(SERIES, 1_500)
    exchange_api.now_s += 90 * DAY_S
    exchange_api.requests.clear()
    exchange_api.archive_requests.clear()
    assert LiveSource().candles(SERIES, 1_500).digest == before.digest
    assert (len(exchange_api.klines_requests()), exchange_api.archive_requests) == (1, [])


def test_minutes_between_a_page_and_the_archive_are_fetched(exchange_api, valid_frame, home) -> None:
    """1,000 minutes do not reach back to the end of yesterday at 18:00."""
    exchange_api.now_s = NOW_S // DAY_S * DAY_S + 18 * 3_600
    start_s = exchange_api.now_s - 4_000 * 60
    exchange_api.put("BTCUSDT-1m", valid_frame(4_500, 60, start_s=start_s))
    series = Series("BTCUSDT", "1m")
    require_cold(LiveSource().candles(series, 100), exchange_api, 100)
    require_cold(LiveSource().candles(series, 3_500), exchange_api, 3_500)


def test_a_revision_by_the_api_is_named_counted_and_kept_while_the_first_version_serves(
    exchange, home, caplog
) -> None:
    before = LiveSource().candles(SERIES, 500)
    exchange.revise(str(SERIES), LAST_S, volume=7.0)
    exchange.now_s += BAR_S
    after = LiveSource().candles(SERIES, 501)
    np.testing.assert_array_equal(after.values[:-1], before.values)
    assert (after.report.num_revised, before.report.num_revised) == (1, 0)
    assert "1 in two versions" in after.report.summary()
    assert "BTCUSDT-15m: 1 candle was different before (2024-09-04T11:45:00Z)" in caplog.text
    (row,) = pq.read_table(stored(home, "revised.parquet")[0]).to_pylist()
    assert (row["open_time_s"], row["other_volume"], row["other_from"]) == (LAST_S, 7.0, "API")
    assert (row["served_volume"], row["served_from"]) == (before.values[-1, 4], "API")
    exchange.now_s += BAR_S
    caplog.clear()
    assert LiveSource().candles(SERIES, 501).report.num_revised == 1
    assert caplog.text == ""  # the same revision is told once


def times(factor: float, num_rows: int = 1) -> Any:
    """Return what multiplies the prices of the newest rows of an answer."""

    def changed(rows: Any) -> Any:
        for row in rows[-num_rows:]:
            row[1:5] = [f"{float(price) * factor:.8f}" for price in row[1:5]]
        return rows

    return changed


@pytest.mark.parametrize("factor", [900.0, 1.5, 0.01])
@pytest.mark.parametrize("is_cold", [True, False], ids=["cold", "a bar later"])
def test_a_wild_newest_candle_counts_only_when_it_is_told_twice(exchange, is_cold, factor) -> None:
    if not is_cold:
        LiveSource().candles(SERIES, 500)
        exchange.now_s += BAR_S
    exchange.faults = [ApiFault(rows=times(factor))]
    require_cold(LiveSource().candles(SERIES, 500), exchange, 500)
    assert len(exchange.klines_requests()) == 2 + (not is_cold)


def test_a_wild_candle_that_was_told_twice_serves_until_it_is_told_otherwise(exchange, home, caplog) -> None:
    exchange.faults = [ApiFault(rows=times(900.0))] * 2
    wild = LiveSource().candles(SERIES, 500)
    assert wild.report.largest_log_return > 6
    require_cold(LiveSource().candles(SERIES, 500), exchange, 500)  # asked again although none is missing
    assert "1 candle was different before (2024-09-04T11:45:00Z)" in caplog.text
    (row,) = pq.read_table(stored(home, "revised.parquet")[0]).to_pylist()
    assert (row["served_from"], row["other_from"]) == ("API", "API")
    assert row["other_close"] == pytest.approx(900 * row["served_close"])
    num_requests = len(exchange.requests)
    require_cold(LiveSource().candles(SERIES, 500), exchange, 500)
    assert len(exchange.requests) == num_requests + 1  # the time alone


def test_a_known_price_that_is_suddenly_told_otherwise_refuses_the_newest_beside_it(exchange) -> None:
    exchange.now_s -= BAR_S
    LiveSource().candles(SERIES, 500)
    exchange.now_s += BAR_S
    exchange.faults = [ApiFault(rows=times(900.0, num_rows=4))]
    with pytest.raises(DataError, match=r"BTCUSDT-15m: .*; got a close"):
        LiveSource().candles(SERIES, 500)
    require_cold(LiveSource().candles(SERIES, 500), exchange, 500)


def test_an_exchange_that_tells_all_prices_otherwise_is_refused_until_that_is_accepted(
    exchange, home
) -> None:
    true = exchange.frame(str(SERIES), NOW_S + BAR_S)
    exchange.put(str(SERIES), true.assign(**{name: true[name] * 900 for name in OHLC}))
    wild = LiveSource().candles(SERIES, 1_000)
    exchange.put(str(SERIES), true)
    exchange.now_s += BAR_S
    for _ in range(2):
        with pytest.raises(DataError, match=r"\(3 such candles\)\. Try again later; .* --accept-revision`"):
            LiveSource().candles(SERIES, 500)
    (updated,) = LiveSource().update([SERIES], 1_000, accept_revisions=True)
    assert updated.num_revised == 1_000
    require_cold(LiveSource().candles(SERIES, 1_001), exchange, 1_001)
    assert wild.report.num_revised == 0
    assert len(pq.read_table(stored(home, "revised.parquet")[0])) == 1_000


def test_what_is_accepted_is_the_apis_word_and_never_against_the_archives(exchange, home) -> None:
    LiveSource().candles(SERIES, 3_500)
    final_s = NOW_S // DAY_S * DAY_S - 5 * BAR_S
    open_s = LAST_S - 9 * BAR_S
    for at in (final_s, open_s):
        exchange.revise(str(SERIES), at, volume=7.0)
    exchange.now_s += BAR_S
    before = LiveSource().candles(SERIES, 500)  # neither is asked for again
    assert before.report.num_revised == 0
    (updated,) = LiveSource().update([SERIES], 500, accept_revisions=True)
    assert updated.num_revised == 1
    after = LiveSource().candles(SERIES, 500)
    volumes = dict(zip(after.open_time_s.tolist(), after.column("volume").tolist(), strict=True))
    assert volumes[open_s] == 7.0
    assert volumes[final_s] != 7.0
    (again,) = LiveSource().update([SERIES], 500, accept_revisions=True)
    assert again.num_revised == 0


def test_the_archives_word_serves_and_the_apis_is_kept(exchange, home) -> None:
    LiveSource().candles(SERIES, 900)
    changed_s = NOW_S // DAY_S * DAY_S - 50 * BAR_S
    exchange.revise(str(SERIES), changed_s, in_archive=True, close=101.0, high=1e4)
    candles = LiveSource().candles(SERIES, 3_000)
    at = list(candles.open_time_s).index(changed_s)
    assert (candles.column("close")[at], candles.report.num_revised) == (101.0, 1)
    (row,) = pq.read_table(stored(home, "revised.parquet")[0]).to_pylist()
    assert (row["served_close"], row["served_from"], row["other_from"]) == (101.0, "archive", "API")


def test_a_candle_that_vanishes_or_comes_late_is_a_revision(exchange, home) -> None:
    exchange.cut_hole(str(SERIES), LAST_S - BAR_S, LAST_S - BAR_S)
    before = LiveSource().candles(SERIES, 500)
    late = exchange.frame(str(SERIES)).iloc[[-1]]
    exchange.put(str(SERIES), late.set_axis(late.index - pd.Timedelta(seconds=BAR_S)))
    exchange.cut_hole(str(SERIES), LAST_S, LAST_S)
    exchange.now_s += BAR_S
    after = LiveSource().candles(SERIES, 502)
    assert len(after) == 502
    assert {LAST_S, LAST_S - BAR_S} <= set(after.open_time_s.tolist())
    assert (before.report.num_missing, after.report.num_missing, after.report.num_revised) == (1, 0, 2)
    rows = pq.read_table(stored(home, "revised.parquet")[0]).to_pylist()
    assert [(row["served_from"], row["other_from"]) for row in rows] == [("API", "nobody")] * 2


@pytest.mark.parametrize(("num_bars_ago", "is_mended"), [(2, True), (700, True), (1_100, False)])
def test_a_candle_that_came_late_is_asked_for_again(
    exchange, num_bars_ago: int, is_mended: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """At 1ad3d8c1 a hole stayed while models looked back: only three candles were asked for again."""
    hole_s = LAST_S - num_bars_ago * BAR_S
    whole = exchange.frame(str(SERIES))
    exchange.cut_hole(str(SERIES), hole_s, hole_s)
    exchange.cut_hole(str(SERIES), LAST_S - 1_300 * BAR_S, LAST_S - 1_299 * BAR_S)  # too old for a page
    exchange.has_archive = False
    assert LiveSource().candles(SERIES, 1_500).report.num_missing == 3
    exchange.put(str(SERIES), whole.loc[[pd.Timestamp(hole_s, unit="s", tz="UTC")]])
    exchange.now_s += BAR_S
    exchange.requests.clear()
    candles = LiveSource().candles(SERIES, 1_200)
    assert (candles.report.num_missing == 0) == is_mended
    assert len(exchange.klines_requests()) == 1
    exchange.now_s += BAR_S
    exchange.requests.clear()
    LiveSource().candles(SERIES, 1_200)
    (request,) = exchange.klines_requests()
    assert int(request["limit"]) == 4
    assert ("in one of two answers only" in caplog.text) == is_mended


def test_a_hole_that_the_archive_has_too_is_not_asked_for_again(exchange) -> None:
    hole_s = NOW_S // DAY_S * DAY_S - 50 * BAR_S
    exchange.cut_hole(str(SERIES), hole_s, hole_s)
    LiveSource().candles(SERIES, 1_500)
    exchange.now_s += BAR_S
    exchange.requests.clear()
    assert LiveSource().candles(SERIES, 1_500).report.num_missing == 1
    assert [int(request["limit"]) for request in exchange.klines_requests()] == [4]


def test_months_that_are_over_are_compared_with_the_archive_by_an_update(exchange, home) -> None:
    exchange.now_s = NOW_S - 10 * DAY_S
    source = LiveSource()
    source.candles(SERIES, 900)
    august_s = NOW_S // DAY_S * DAY_S - 12 * DAY_S
    exchange.revise(str(SERIES), august_s, in_archive=True, volume=3.0)
    exchange.now_s = NOW_S
    exchange.requests.clear()
    (updated,) = LiveSource().update([SERIES], 900)
    assert (updated.num_revised, updated.note) == (1, "")
    assert len(exchange.klines_requests()) == 1
    history = updated.result.candles
    assert set(history.is_final[history.open_time_s < august_s + DAY_S]) == {True}
    exchange.archive_requests.clear()
    LiveSource().update([SERIES], 900)
    assert exchange.archive_requests == []


def test_an_archive_out_of_reach_is_a_note_where_it_is_not_needed(exchange) -> None:
    exchange.now_s = NOW_S - 10 * DAY_S
    LiveSource().candles(SERIES, 900)
    exchange.now_s = NOW_S
    exchange.has_archive = False
    (updated,) = LiveSource().update([SERIES], 900)
    assert "not compared with the archive: BTCUSDT-15m from vision: " in updated.note


@pytest.mark.parametrize("num_kept", [0, 500])
def test_a_series_that_the_archive_lacks_comes_from_the_api_alone(exchange, num_kept) -> None:
    exchange.has_archive = False
    if num_kept:
        LiveSource().candles(SERIES, num_kept)
    require_cold(LiveSource().candles(SERIES, 3_500), exchange, 3_500)
    end_s = NOW_S // DAY_S * DAY_S - BAR_S
    past = LiveSource().candles(SERIES, 3_700, end_s)  # as the baselines of a forecast ask for it
    assert (len(past), int(past.open_time_s[-1])) == (3_700, end_s)
    require_cold(LiveSource().candles(SERIES, 9_000), exchange, 4_000)
    exchange.requests.clear()
    exchange.now_s += 1_500 * BAR_S
    require_cold(LiveSource().candles(SERIES, 9_000), exchange, 5_500)
    assert len(exchange.klines_requests()) <= 6


def test_a_series_that_neither_archive_nor_api_has_is_one_sentence(exchange) -> None:
    exchange.has_archive = False
    with pytest.raises(DataError, match=r"BTCUSDT-1h from rest: .*; got none "):
        LiveSource().candles(Series("BTCUSDT", "1h"), 1_500)


def test_one_series_error_is_not_anothers(exchange) -> None:
    gone = Series("NOPEUSDT", "15m")
    found = {one.series: one for one in LiveSource().update([gone, SERIES], 500)}
    assert isinstance(found[gone].result, DataError)
    assert found[SERIES].num_added == 1_000


@pytest.mark.parametrize(
    "harm", [lambda content: content[:-20], lambda content: b"", lambda content: b"PAR1" * 9]
)
def test_a_damaged_store_is_set_aside_with_a_line_and_begun_anew(exchange, home, caplog, harm) -> None:
    before = LiveSource().candles(SERIES, 500)
    (path,) = stored(home)
    harmed = harm(path.read_bytes())
    path.write_bytes(harmed)
    assert LiveSource().candles(SERIES, 500).digest == before.digest
    assert caplog.text.count("was damaged") == 1
    assert path.with_name("BTCUSDT-15m.damaged-1.parquet").read_bytes() == harmed
    assert LiveSource().candles(SERIES, 500).digest == before.digest
    assert len(exchange.klines_requests()) == 2


def test_a_value_that_was_changed_in_the_store_is_damage(exchange, home, caplog) -> None:
    LiveSource().candles(SERIES, 500)
    (path,) = stored(home)
    table = pq.read_table(path)
    prices = table["close"].to_pylist()
    changed = table.set_column(
        table.schema.get_field_index("close"), "close", [[prices[0] * 1.01, *prices[1:]]]
    )
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
    require_cold(LiveSource().candles(SERIES, 500), exchange, 500)
    assert "its rows are not" in caplog.text


def test_a_store_that_cannot_be_written_costs_one_line_and_requests_and_is_not_filled(
    exchange, monkeypatch, caplog, tmp_path
) -> None:
    place = tmp_path / "a file of the user"
    place.write_text("mine")
    monkeypatch.setenv("V8_HOME", str(place))
    for _ in range(2):
        require_cold(LiveSource().candles(SERIES, 500), exchange, 500)
    assert len(exchange.klines_requests()) == 2
    assert caplog.text.count("\n") == 1
    assert "Nothing is kept" in caplog.text
    with pytest.raises(StorageError, match="; got Not a directory"):
        update_store(LiveSource(), [SERIES], 100, accept_revisions=False)
    assert len(exchange.klines_requests()) == 2


def test_two_markets_never_mix(exchange, home, valid_frame, monkeypatch) -> None:
    LiveSource().candles(SERIES, 100)
    with ExchangeApi() as other:
        other.put(str(SERIES), valid_frame(NUM_PAST, BAR_S, start_s=START_S, seed=9))
        monkeypatch.setenv("V8_REST_URL", other.url)
        require_cold(LiveSource().candles(SERIES, 100), other, 100)
        monkeypatch.setenv("V8_VISION_URL", other.url)  # the same API beside another archive
        LiveSource().candles(SERIES, 100)
    assert len(stored(home)) == 3


def test_threads_that_update_at_once_lose_nothing(exchange, home) -> None:
    exchange.now_s -= 40 * BAR_S
    LiveSource().candles(SERIES, 500)
    exchange.now_s += 40 * BAR_S
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(LiveSource().candles(SERIES, 500).digest))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    require_cold(LiveSource().candles(SERIES, 1_040), exchange, 1_040)
    assert len(set(found)) == 1
    assert len(found) == 4
    assert stored(home, "damaged-1.parquet") == []


moves = st.lists(
    st.tuples(
        st.integers(-30, 1_300), st.sampled_from([5, 260, 1_000, 1_001, 2_500]), st.sampled_from([0, 0, 700])
    ),
    min_size=1,
    max_size=4,
)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # a smaller example would cost minutes
)
@given(moves=moves, holes=st.lists(st.integers(0, NUM_PAST + 1_000), max_size=4))
def test_any_moves_of_the_clock_and_any_updates_give_the_candles_of_one_cold_fetch(
    moves, holes, valid_frame, tmp_path_factory
) -> None:
    with ExchangeApi(NOW_S - 1_500 * BAR_S) as exchange, pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("NO_PROXY", "127.0.0.1"),
            ("V8_REST_URL", exchange.url),
            ("V8_VISION_URL", exchange.url),
        ):
            patch.setenv(name, value)
        patch.setenv("V8_HOME", str(tmp_path_factory.mktemp("home")))
        exchange.put(str(SERIES), valid_frame(NUM_PAST + 1_920, BAR_S, start_s=START_S))
        for hole in holes:
            exchange.cut_hole(str(SERIES), START_S + hole * BAR_S, START_S + (hole + 2) * BAR_S)
        for num_bars_on, num_bars, num_back in moves:
            exchange.now_s += num_bars_on * BAR_S
            end_s = int(exchange.now_s) - num_back * BAR_S if num_back else None
            candles = LiveSource().candles(SERIES, num_bars, end_s)
            cold = exchange.frame(str(SERIES))
            cold = cold[
                : None
                if end_s is None
                else cold.index.searchsorted(pd.Timestamp(end_s, unit="s", tz="UTC"), "right")
            ]
            np.testing.assert_array_equal(candles.to_frame().index, cold.index[-num_bars:])
            np.testing.assert_array_equal(candles.values, cold.to_numpy()[-num_bars:])
            assert candles.report.num_revised == 0
