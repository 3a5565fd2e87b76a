import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from v8.base.errors import DataError
from v8.data.market.candles import price_decimals, require_newest
from v8.data.market.checks import check_candles
from v8.data.market.series import Series, iso

START_S = 1_704_067_200
"""2024-01-01T00:00:00Z, where generated frames begin."""

HOURLY = Series("BTCUSDT", "1h")
QUARTER = Series("BTCUSDT", "15m")


def in_unit(open_ms, unit):
    match unit:
        case "s":
            return open_ms / 1_000
        case "us":
            return open_ms * 1_000
        case "ns":
            return open_ms * 1_000_000
        case "text":
            return iso(open_ms / 1_000)
        case _:
            return open_ms


def check(frame, series=HOURLY, **more):
    return check_candles(frame, series, source="files", **more)


def accounted(report):
    return report.num_kept + sum(report.dropped().values())


def test_a_valid_frame_is_kept_whole(valid_frame):
    frame = valid_frame(50, 3_600)
    candles = check(frame)
    assert candles.open_time_s[0] == START_S
    assert len(candles) == candles.report.num_kept == candles.report.num_read == 50
    assert not any(candles.report.dropped().values())
    np.testing.assert_array_equal(candles.values, frame[["open", "high", "low", "close", "volume"]])
    np.testing.assert_array_equal(candles.segment, np.zeros(50, np.int32))
    assert (candles.report.first_open, candles.report.last_open) == (
        "2024-01-01T00:00:00Z",
        "2024-01-03T01:00:00Z",
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    units=st.lists(st.sampled_from(["s", "ms", "us", "ns", "text"]), min_size=1, max_size=4),
    doubled=st.lists(st.integers(0, 39), max_size=10),
)
def test_g2_order_unit_and_exact_repetition_of_rows_change_nothing(valid_frame, seed, units, doubled):
    frame = valid_frame(40, 3_600)
    known = check(frame)
    shuffled = pd.concat([frame, frame.iloc[doubled]]).sample(frac=1, random_state=seed)
    written = [in_unit(open_ms, units[row % len(units)]) for row, open_ms in enumerate(shuffled["open_time"])]
    candles = check(shuffled.assign(open_time=pd.Series(written, index=shuffled.index, dtype=object)))
    assert candles.digest == known.digest
    np.testing.assert_array_equal(candles.open_time_s, known.open_time_s)
    np.testing.assert_array_equal(candles.values, known.values)
    assert candles.report.num_identical == len(doubled)
    assert accounted(candles.report) == candles.report.num_read


@given(lost=st.sets(st.integers(1, 58), max_size=20))
def test_g2_holes_part_the_rows_into_contiguous_segments(valid_frame, lost):
    frame = valid_frame(60, 3_600)
    candles = check(frame.drop(index=list(lost)))
    step_s = np.diff(candles.open_time_s)
    np.testing.assert_array_equal(np.diff(candles.segment), (step_s > 3_600).astype(int))
    assert candles.segment[0] == 0
    assert candles.report.num_missing == len(lost)
    assert candles.report.num_gaps == candles.segment[-1]
    assert sum(gap.num_missing for gap in candles.report.gaps) <= len(lost)


def test_hours_listed_twice_keep_the_precise_row_and_lose_the_contradictory_ones(valid_frame):
    # Like mixed-units-newest-first-BTCUSDT-1h.csv: newest first, the second listing of an hour in float
    # seconds and with a volume cut to two decimals; one second listing was taken before the close.
    frame = valid_frame(100, 3_600)
    frame.loc[50:59, "volume"] = 1_234.567
    coarse = frame.iloc[50:60].assign(volume=1_234.57)
    coarse["open_time"] = coarse["open_time"] / 1_000
    coarse.loc[55, "volume"] = 1_000.00
    both = pd.concat([frame.assign(open_time=frame.open_time.astype(float)), coarse]).iloc[::-1]
    report = (candles := check(both)).report
    assert (report.num_rounded, report.num_conflicting, report.num_kept) == (9, 2, 99)
    assert candles.digest == check(frame.drop(index=55)).digest
    assert [(gap.after, gap.num_missing) for gap in report.gaps] == [("2024-01-03T06:00:00Z", 1)]
    assert accounted(report) == report.num_read == 110


def test_too_many_contradictory_bars_refuse_the_series(valid_frame):
    frame = valid_frame(100, 3_600)
    other = frame.iloc[:3].assign(volume=frame["volume"].iloc[:3] * 2)
    with pytest.raises(
        DataError,
        match=r"BTCUSDT-1h from files: .*got 6 of 103, mostly bars listed.*2024-01-01T00:00:00Z.*01:00:00Z",
    ):
        check(pd.concat([frame, other]))


def test_a_few_rows_of_a_shifted_grid_become_a_counted_gap(valid_frame):
    # Like off-grid-LTCUSDT-1h.csv: after an outage of 33 hours the exchange opened bars at hh:28:16.812.
    frame = valid_frame(1_000, 3_600)
    frame.loc[500:519, "open_time"] += 28 * 60_000 + 16_812
    report = (candles := check(frame)).report
    assert (report.num_off_grid, report.num_kept, report.num_gaps, report.num_missing) == (20, 980, 1, 20)
    assert np.all(candles.open_time_s % 3_600 == 0)


@pytest.mark.parametrize(
    ("bar_s", "series", "reason"),
    [
        (900, HOURLY, r"BTCUSDT-1h from files: .*got rows that are.*900.*\(15m\)"),
        (3_600, QUARTER, r"BTCUSDT-15m from files: .*got rows that are.*3,600.*\(1h\)"),  # all on the grid
    ],
)
def test_a_file_of_another_timeframe_is_refused(valid_frame, bar_s, series, reason):
    with pytest.raises(DataError, match=reason):
        check(valid_frame(100, bar_s), series)


def relisted_frame(valid_frame, hole_bars, factor):
    old = valid_frame(60, 3_600)
    prices = ["open", "high", "low", "close"]
    new = valid_frame(40, 3_600, start_s=START_S + (60 + hole_bars) * 3_600, seed=1)
    scale = factor * old["close"].iloc[-1] / new["close"].iloc[0]
    return pd.concat([old, new.assign(**{name: new[name] * scale for name in prices})])


def test_a_relisted_symbol_uses_its_newest_life_only(valid_frame):
    # Like relisted-LUNAUSDT-1h.csv: 437 hours of nothing, then 170,000 times the price, log 12.04.
    report = (candles := check(relisted_frame(valid_frame, 437, 170_000))).report
    assert (report.num_older_life, report.num_kept, report.num_gaps) == (60, 40, 0)
    # 60 + 437 = 497 hours after 2024-01-01: 20 days and 17 hours.
    assert report.relisted_at == report.first_open == "2024-01-21T17:00:00Z"
    assert np.all(candles.segment == 0)
    assert report.largest_log_return < 0.1
    assert report.relisted_factor == pytest.approx(170_000)
    assert report.num_leaps == 0


@pytest.mark.parametrize(
    ("hole_bars", "factor", "why"),
    [
        (33, 1.001, "the longest outage of the exchange"),
        (1_344, 1.3, "eight weeks without a file, and log return 0.26"),
        (33, 170_000, "any leap across an ordinary outage"),
        (437, 7.0, "a long hole and log return 1.95"),
    ],
)
def test_other_holes_stay_gaps(valid_frame, hole_bars, factor, why):
    report = check(relisted_frame(valid_frame, hole_bars, factor)).report
    assert (report.num_older_life, report.num_kept, report.num_missing) == (0, 100, hole_bars), why


def test_flat_candles_of_an_outage_are_kept_and_counted_and_missing_ones_stay_missing(valid_frame):
    # Like outage-BTCUSDT-15m.csv: five flat candles without volume, then five missing.
    frame = valid_frame(100, 900)
    for name in ("open", "high", "low"):
        frame.loc[50:54, name] = frame.loc[50:54, "close"] = 99.5
    frame.loc[50:54, "volume"] = 0.0
    report = check(frame.drop(index=range(55, 60)), QUARTER).report
    assert (report.num_flat, report.longest_flat_bars) == (5, 5)
    assert (report.num_kept, report.num_gaps, report.num_missing) == (95, 1, 5)


@pytest.mark.parametrize(
    ("column", "value", "count"),
    [
        ("close", np.nan, "num_unreadable"),
        ("volume", np.inf, "num_unreadable"),
        ("open", 0.0, "num_non_positive"),
        ("low", -1.0, "num_non_positive"),
        ("volume", -0.5, "num_non_positive"),
        ("high", 1.0, "num_inconsistent"),
        ("low", 1_000.0, "num_inconsistent"),
    ],
)
def test_a_row_that_cannot_be_true_is_dropped_and_counted_once(valid_frame, column, value, count):
    frame = valid_frame(100, 3_600)
    frame.loc[40, column] = value
    report = check(frame).report
    assert getattr(report, count) == 1
    assert (report.num_kept, report.num_missing, accounted(report)) == (99, 1, 100)


def test_the_running_bar_is_dropped_and_counted(valid_frame):
    frame = valid_frame(10, 3_600)
    report = check(frame, now_s=START_S + 9 * 3_600 + 1_800).report
    assert (report.num_unclosed, report.num_kept) == (1, 9)
    assert check(frame, now_s=START_S + 10 * 3_600).report.num_unclosed == 0


def test_rows_from_the_future_are_refused(valid_frame):
    with pytest.raises(
        DataError, match=r"BTCUSDT-1h from files: .*2024-01-01T08:00:00Z.*got bars .*T08:00:00Z, .*T09:00:00Z"
    ):
        check(valid_frame(10, 3_600), now_s=START_S + 8 * 3_600)


@pytest.mark.parametrize(("timeframe", "phase_s"), [("1h", 1_800), ("1d", 18_000), ("1w", 0), ("15m", 60)])
def test_candles_lie_on_the_grid_that_most_of_them_share(valid_frame, timeframe, phase_s):
    series = Series("BTCUSDT", timeframe)
    frame = valid_frame(60, series.bar_s, start_s=START_S + phase_s)
    frame.loc[7, "open_time"] += 1_000
    candles = check(frame, series)
    assert (candles.report.num_kept, candles.report.num_off_grid) == (59, 1)
    assert candles.report.num_gaps == 1
    mixed = pd.concat(
        [frame[:30], frame[30:].assign(open_time=frame.open_time[30:] + 1_000 * series.bar_s // 2)]
    )
    with pytest.raises(DataError, match="got 30 of 60, mostly opens between"):
        check(mixed, series)


def test_candles_without_a_volume_have_none_anywhere(valid_frame):
    frame = valid_frame(20, 3_600)
    for without in (frame.drop(columns="volume"), frame.assign(volume=np.nan)):
        candles = check(without)
        assert np.isnan(candles.column("volume")).all() and not candles.has_volume
        assert candles.report.summary().endswith("no volume")
        assert check(candles.newest(10).to_frame().reset_index()).digest == candles.newest(10).digest
    partly = check(frame.assign(volume=frame.volume.where(frame.index != 3)))
    assert partly.has_volume and partly.report.num_unreadable == 1


def test_the_newest_candles_before_a_time_are_a_slice_with_its_own_segments_and_account(valid_frame):
    candles = check(valid_frame(60, 3_600).drop(index=[20, 50]))
    part = candles.newest(10, end_s=START_S + 52 * 3_600 + 1)
    assert (part.report.num_newer, candles.report.num_newer) == (7, 0)
    # Rows 42..49, 51 and 52: bar 50 is missing.
    assert part.open_time_s[0] == START_S + 42 * 3_600
    assert part.segment.tolist() == [0] * 8 + [1] * 2
    assert (part.report.num_kept, part.report.num_outside, part.report.num_missing) == (10, 48, 1)
    assert accounted(part.report) == part.report.num_read == 58
    assert part.digest == check(valid_frame(60, 3_600).iloc[42:53].drop(index=50)).digest


def test_a_time_before_the_first_candle_is_refused(valid_frame):
    with pytest.raises(
        DataError, match=r"BTCUSDT-1h from files: .*2023-12-31T00:00:00Z.*got the first one.*2024"
    ):
        check(valid_frame(10, 3_600)).newest(5, end_s=START_S - 86_400)


def test_no_bars_cannot_be_asked_for(valid_frame):
    with pytest.raises(DataError, match=r"BTCUSDT-1h: .*got 0"):
        check(valid_frame(10, 3_600)).newest(0)


def test_the_digest_tells_series_times_and_values_apart_and_nothing_else(valid_frame):
    frame = valid_frame(10, 3_600)
    known = check(frame).digest
    assert check_candles(frame, HOURLY, source="vision").digest == known
    assert check_candles(frame, Series("ETHUSDT", "1h"), source="files").digest != known
    assert check(frame.assign(open_time=frame.open_time + 3_600_000)).digest != known
    assert check(frame.assign(volume=frame.volume + 0.001)).digest != known


def test_candles_cannot_be_changed(valid_frame):
    candles = check(valid_frame(10, 3_600))
    with pytest.raises(ValueError, match="read-only"):
        candles.values[0, 0] = 1.0


def test_the_frame_of_candles_reads_back_as_the_same_candles(valid_frame):
    candles = check(valid_frame(10, 3_600))
    frame = candles.to_frame()
    assert frame.index.name == "open_time"
    assert str(frame.index.tz) == "UTC"
    assert check(frame.reset_index()).digest == candles.digest
    np.testing.assert_array_equal(candles.column("close"), frame["close"])


def test_the_report_is_json_and_one_line(valid_frame):
    report = check(valid_frame(60, 3_600).drop(index=[20])).report
    content = json.loads(json.dumps(asdict(report), allow_nan=False))
    assert content["gaps"] == [{"after": "2024-01-01T19:00:00Z", "num_missing": 1}]
    assert content["time_units"] == {"milliseconds": 59}
    assert report.summary() == (
        "59 of 59 rows kept, 2024-01-01T00:00:00Z to 2024-01-03T11:00:00Z; "
        "1 gap, 1 bar missing, most (1) after 2024-01-01T19:00:00Z"
    )


def test_the_summary_names_everything_that_is_not_zero(valid_frame):
    frame = valid_frame(100, 3_600)
    for name in ("open", "high", "low", "close"):
        frame.loc[99, name] = 99.5
    frame.loc[99, "volume"] = 0.0
    frame["open_time"] = [ms / 1_000 if row == 0 else float(ms) for row, ms in enumerate(frame.open_time)]
    assert check(frame.iloc[::-1]).report.summary() == (
        "100 of 100 rows kept, 2024-01-01T00:00:00Z to 2024-01-05T03:00:00Z; "
        "sorted (99 rows out of order); times in milliseconds (99) and seconds (1); "
        "1 flat candles without volume kept (longest run 1)"
    )
    assert check(relisted_frame(valid_frame, 437, 170_000)).report.summary() == (
        "40 of 100 rows kept, 2024-01-21T17:00:00Z to 2024-01-23T08:00:00Z; "
        "60 from before the re-listing; listed again at 2024-01-21T17:00:00Z"
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"close": np.nan}, "values that are missing"),
        ({"volume": np.nan}, "values that are missing"),
        ({"low": 0.0}, "prices not above zero"),
        ({"high": 1.0}, "low <= open, close <= high violated"),
        ({"open_time": (START_S + 99 * 3_600 + 7) * 1_000}, "opens between two bars"),
    ],
)
def test_a_newest_row_that_is_dropped_is_told_and_begins_no_forecast(valid_frame, changes, why):
    frame = valid_frame(100, 3_600)
    frame.loc[99, list(changes)] = list(changes.values())
    for rows, row in ((frame, 100), (frame.iloc[::-1], 1)):
        candles = check(rows)
        assert f"the newest dropped: row {row} of 2024-01-05T03:00:0" in candles.report.summary()
        written = json.loads(json.dumps(asdict(candles.report)))
        assert written["newest_lost"]["open_s"] == START_S + 99 * 3_600
        with pytest.raises(DataError, match=rf"newest candle, .* got row {row} of 2024-01-05T03:00:0.*{why}"):
            require_newest(candles)
        with pytest.raises(DataError, match=r"BTCUSDT-1h from files: .*from 2024-01-05T02"):
            require_newest(candles.newest(10))
        require_newest(candles.newest(10, end_s=START_S + 98 * 3_600))
        # Its bar is still running: it would be dropped in any case.
        require_newest(check(rows, now_s=START_S + 100 * 3_600 - 1))


def test_a_newest_bar_in_two_versions_begins_no_forecast(valid_frame):
    frame = valid_frame(100, 3_600)
    twice = pd.concat([frame, frame.tail(1).assign(volume=1e6)])
    with pytest.raises(
        DataError, match=r"BTCUSDT-1h from files: .*got row 100 of 2024-01-05T03:00:00Z: listed more"
    ):
        require_newest(check(twice))


def test_an_unusable_row_before_the_newest_or_within_its_bar_is_no_newest(valid_frame):
    frame = valid_frame(100, 3_600)
    between = frame.tail(1).assign(open_time=frame.open_time.iloc[-1] + 600_000)
    require_newest(check(pd.concat([frame, between])))
    frame.loc[98, "close"] = np.nan
    assert check(frame).report.newest_lost is None


def multiplied(frame, first_row, factor):
    """Prices from a row on in another unit; the close before stays."""
    prices = ["open", "high", "low", "close"]
    later = frame.index >= first_row
    return frame.assign(**{name: frame[name].where(~later, frame[name] * factor) for name in prices})


@pytest.mark.parametrize(
    ("num_missing", "factor", "written"),
    [
        (24, 1_000.0, "1,000 times what it was, at 2024-01-05T04:00:00Z, after 24 missing bars"),
        (24, 0.001, "1/1,000 of what it was, at 2024-01-05T04:00:00Z, after 24 missing bars"),
        (0, 5.0, "5 times what it was, at 2024-01-04T04:00:00Z"),
    ],
)
def test_a_price_that_leaps_is_pointed_out_with_its_factor(valid_frame, num_missing, factor, written):
    # 76 hours after 2024-01-01 the first candle after the leap would open, on the fourth at four.
    frame = multiplied(valid_frame(200, 3_600), 76 + num_missing, factor)
    frame = frame.drop(index=range(76, 76 + num_missing))
    report = check(frame).report
    assert report.num_leaps == 1
    assert report.largest_leap.factor == pytest.approx(factor, rel=0.2)
    assert (report.largest_leap.num_missing, report.largest_leap.num_candles_since) == (
        num_missing,
        200 - 76 - num_missing,
    )
    assert written.split(" what", maxsplit=1)[1] in str(report.largest_leap)
    assert json.dumps(asdict(report), allow_nan=False)


def test_a_bar_that_opens_at_the_close_before_and_leaps_within_is_pointed_out(valid_frame):
    frame = multiplied(valid_frame(200, 3_600), 76, 5.0)
    frame.loc[76, ["open", "low"]] = frame.loc[75, "close"]
    assert check(frame).report.num_leaps == 1


def test_no_leap_is_seen_in_what_coins_do(valid_frame):
    report = check(valid_frame(200, 3_600).drop(index=range(50, 90))).report
    assert (report.num_leaps, report.largest_leap) == (0, None)


def test_only_leaps_of_the_candles_that_are_used_are_pointed_out(valid_frame):
    candles = check(multiplied(valid_frame(200, 3_600), 76, 5.0))
    assert candles.newest(124).report.largest_leap is None
    assert candles.newest(125).report.largest_leap.num_candles_since == 124


def test_prices_are_written_by_their_ticks() -> None:
    assert price_decimals(np.array([[64_000.0, 63_999.5]])) == 1
    assert price_decimals(np.array([0.1234, 0.12])) == 4
    assert price_decimals(np.array([1e-8, 2.5e-7])) == 8
    assert price_decimals(np.array([120_000.0, 7.0])) == 0
    assert price_decimals(np.array([64_000.123456789])) == 2  # no ticks: seven digits
