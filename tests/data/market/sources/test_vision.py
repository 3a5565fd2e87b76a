from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from v8.base.errors import DataError, ProfileError
from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.data.market.sources import CachedCandles, cached_views, open_source
from v8.data.market.sources.demo import DemoSource
from v8.data.market.sources.downloads import PATIENCE, Downloader
from v8.data.market.sources.vision import VisionSource

SERIES = Series("BTCUSDT", "4h")
BAR_S = 14_400
NOW_S = 1_725_616_800
"""2024-09-06T10:00:00Z."""


def seconds(day):
    return int(pd.Timestamp(day, tz="UTC").timestamp())


@pytest.fixture
def history(valid_frame):
    """Everything from 2024-03-01 to 2024-09-06, 4h bars: 31 + 30 + 31 + 30 + 31 + 31 + 5 days of 6."""
    start_s = seconds("2024-03-01")
    return valid_frame((seconds("2024-09-06") - start_s) // BAR_S, BAR_S, start_s=start_s)


def part(history, label):
    day = pd.Timestamp(label, tz="UTC")
    end = day + (pd.DateOffset(months=1) if label.count("-") == 1 else pd.DateOffset(days=1))
    opened = history["open_time"] / 1_000
    return history[(opened >= day.timestamp()) & (opened < end.timestamp())]


@pytest.fixture
def full_archive(archive, history):
    for label in ("2024-03", "2024-04", "2024-05", "2024-06", "2024-07", "2024-08"):
        archive.put_rows("BTCUSDT-4h", label, part(history, label))
    for label in ("2024-09-01", "2024-09-02", "2024-09-03", "2024-09-04", "2024-09-05"):
        archive.put_rows("BTCUSDT-4h", label, part(history, label))
    return archive


@pytest.fixture
def open_vision(archive, tmp_path, monkeypatch):
    """Open sources on the archive that share one cache and never really sleep."""
    monkeypatch.setenv("V8_VISION_URL", archive.url)
    monkeypatch.setenv("V8_HOME", str(tmp_path))
    opened = []

    def open_source(now_s=NOW_S, base_url=None):
        if base_url is not None:
            monkeypatch.setenv("V8_VISION_URL", base_url)
        patience = replace(PATIENCE, sleep=lambda pause_s: None)
        downloader = Downloader("V8_VISION_URL", patience=patience)
        opened.append(downloader)
        return VisionSource(downloader=downloader, now=lambda: now_s)

    yield open_source
    for downloader in opened:
        downloader.close()


def path_of(label, symbol="BTCUSDT"):
    kind = "monthly" if label.count("-") == 1 else "daily"
    return f"/data/spot/{kind}/klines/{symbol}/4h/{symbol}-4h-{label}.zip"


def labels(paths):
    return sorted(path.removesuffix(".zip").split("-4h-")[1] for path in paths)


def test_g2_months_and_days_become_one_ascending_series(full_archive, open_vision, history):
    candles = open_vision().candles(SERIES, 10_000)
    assert candles.digest == check_candles(history, SERIES, source="files").digest
    assert candles.source == "vision"
    assert np.all(candles.segment == 0)
    assert candles.report.num_unsorted == 0


def test_only_as_many_months_are_downloaded_as_the_bars_need(full_archive, open_vision, history):
    # Five days of 6 and August of 186 bars are 216; 84 more need July only.
    candles = open_vision().candles(SERIES, 300)
    np.testing.assert_array_equal(candles.column("close"), history["close"].iloc[-300:])
    expected = ["2024-07", "2024-08", *(f"2024-09-0{day}" for day in range(1, 6))]
    assert labels(full_archive.downloads()) == expected


def test_whether_a_series_is_there_is_asked_without_downloading_it(full_archive, open_vision):
    open_vision().require(SERIES)
    with pytest.raises(DataError, match=r"BTCUSD-4h from vision: .*in the archive"):
        open_vision().require(Series("BTCUSD", "4h"))
    assert full_archive.downloads() == []
    assert all(path.endswith(".CHECKSUM") for path in full_archive.requests)


def test_what_was_read_once_is_read_again_without_asking_anybody(full_archive, open_vision):
    end_s = NOW_S - 3 * 86_400
    first = open_vision().candles(SERIES, 300, end_s)
    full_archive.requests.clear()
    candles = CachedCandles(open_vision()).candles(SERIES, 300, end_s)
    assert (candles.digest, candles.source) == (first.digest, "vision")
    assert full_archive.requests == []
    with pytest.raises(DataError, match=r"ETHUSDT-4h from vision: .*in the archive"):
        CachedCandles(open_vision()).candles(Series("ETHUSDT", "4h"), 300, end_s)
    with pytest.raises(DataError, match=r"BTCUSDT-4h from demo: .*got none"):
        CachedCandles(DemoSource()).candles(SERIES, 300, end_s)
    assert full_archive.requests == []


def test_what_another_address_gave_is_found_on_this_machine_again(full_archive, open_vision):
    end_s = NOW_S - 3 * 86_400
    first = open_vision().candles(SERIES, 300, end_s)
    full_archive.requests.clear()
    other = open_vision(base_url=f"{full_archive.url}/elsewhere")
    with pytest.raises(DataError):
        CachedCandles(other).candles(SERIES, 300, end_s)
    _, kept = cached_views(other)  # nothing in its own place, then the other one's
    assert kept.candles(SERIES, 300, end_s).digest == first.digest
    assert full_archive.requests == []
    assert list(cached_views(DemoSource())) == []


def test_a_second_run_downloads_nothing_that_is_final(full_archive, open_vision):
    first = open_vision().candles(SERIES, 300)
    full_archive.requests.clear()
    second = open_vision().candles(SERIES, 300)
    assert second.digest == first.digest
    assert full_archive.downloads() == []
    # What may have appeared since is asked for: the month of September and the running day.
    assert full_archive.requests[0] == f"{path_of('2024-09')}.CHECKSUM"
    assert set(full_archive.requests[1:]) == {f"{path_of('2024-09-06')}.CHECKSUM"}


def test_that_something_was_absent_is_not_remembered(full_archive, open_vision, valid_frame):
    assert open_vision().candles(SERIES, 10).report.last_open == "2024-09-05T20:00:00Z"
    day = valid_frame(6, BAR_S, start_s=seconds("2024-09-06"))
    full_archive.put_rows("BTCUSDT-4h", "2024-09-06", day)
    later = open_vision(now_s=seconds("2024-09-07")).candles(SERIES, 10)
    assert later.report.last_open == "2024-09-06T20:00:00Z"


def test_an_archive_that_ended_years_ago_is_found(full_archive, open_vision, history):
    candles = open_vision(now_s=seconds("2026-11-21")).candles(SERIES, 300)
    assert candles.report.last_open == "2024-09-05T20:00:00Z"
    assert len(candles) == 300


def test_a_kept_file_that_was_damaged_on_disk_is_downloaded_again(full_archive, open_vision, tmp_path):
    first = open_vision().candles(SERIES, 300)
    kept = next(tmp_path.rglob("BTCUSDT-4h-2024-07.zip"))
    kept.write_bytes(kept.read_bytes()[:-10] + b"0123456789")
    full_archive.requests.clear()
    assert open_vision().candles(SERIES, 300).digest == first.digest
    assert labels(full_archive.downloads()) == ["2024-07"]


def test_a_home_that_is_no_folder_costs_time_and_one_line(
    full_archive, open_vision, tmp_path, monkeypatch, caplog
):
    expected = open_vision().candles(SERIES, 300)
    home = tmp_path / "a file of the user"
    home.write_text("mine")
    monkeypatch.setenv("V8_HOME", str(home))
    assert open_vision().candles(SERIES, 300).digest == expected.digest
    assert ["Nothing is kept" in record.getMessage() for record in caplog.records] == [True]
    assert home.read_text() == "mine"


def test_archives_of_other_addresses_do_not_share_a_cache(full_archive, open_vision):
    open_vision().candles(SERIES, 10)
    full_archive.requests.clear()
    open_vision(base_url=f"{full_archive.url}/").candles(SERIES, 10)
    assert full_archive.downloads() == []
    for path in list(full_archive.files):
        full_archive.files[f"/mirror{path}"] = full_archive.files[path]
    open_vision(base_url=f"{full_archive.url}/mirror").candles(SERIES, 10)
    assert len(full_archive.downloads()) > 0


def test_the_address_is_read_from_the_environment_at_each_call(full_archive, open_vision, monkeypatch):
    source = open_vision()
    monkeypatch.setenv("V8_VISION_URL", f"{full_archive.url}/elsewhere")
    with pytest.raises(DataError, match="/elsewhere/data/spot/monthly/klines/BTCUSDT/4h/"):
        source.candles(SERIES, 10)
    monkeypatch.setenv("V8_VISION_URL", full_archive.url)
    assert len(source.candles(SERIES, 10)) == 10


def test_an_end_leaves_everything_after_it_alone(full_archive, open_vision):
    candles = open_vision().candles(SERIES, 10, end_s=seconds("2024-05-10") + 1)
    assert candles.report.last_open == "2024-05-10T00:00:00Z"
    assert labels(full_archive.downloads()) == ["2024-05"]


def test_an_end_within_a_month_without_a_monthly_zip_takes_its_days(full_archive, open_vision):
    candles = open_vision().candles(SERIES, 10, end_s=seconds("2024-09-03") - 1)
    assert candles.report.last_open == "2024-09-02T20:00:00Z"
    assert "2024-09-04" not in labels(full_archive.downloads())


def test_a_month_that_is_absent_between_two_is_read_from_its_days(full_archive, open_vision, history):
    full_archive.files.pop(f"{path_of('2024-07')}.CHECKSUM")
    full_archive.files.pop(path_of("2024-07"))
    full_archive.put_rows("BTCUSDT-4h", "2024-07-30", part(history, "2024-07-30"))
    full_archive.put_rows("BTCUSDT-4h", "2024-07-31", part(history, "2024-07-31"))
    candles = open_vision().candles(SERIES, 10_000)
    # 29 days of 6 bars are missing, and the rest is there.
    assert [(gap.after, gap.num_missing) for gap in candles.report.gaps] == [("2024-06-30T20:00:00Z", 174)]
    assert len(candles) == len(history) - 174


def test_a_year_without_a_month_is_the_beginning(full_archive, open_vision, valid_frame):
    early = valid_frame(180, BAR_S, start_s=seconds("2022-04-01"))
    full_archive.put_rows("BTCUSDT-4h", "2022-04", early)
    assert open_vision().candles(SERIES, 10_000).report.first_open == "2024-03-01T00:00:00Z"


def test_a_coin_listed_this_month_is_read_from_its_days(archive, open_vision, valid_frame):
    archive.put_rows("NEWUSDT-4h", "2024-09-04", valid_frame(3, BAR_S, start_s=seconds("2024-09-04T12:00")))
    archive.put_rows("NEWUSDT-4h", "2024-09-05", valid_frame(6, BAR_S, start_s=seconds("2024-09-05")))
    candles = open_vision().candles(Series("NEWUSDT", "4h"), 100)
    assert (len(candles), candles.report.first_open) == (9, "2024-09-04T12:00:00Z")


def test_g9_a_missing_archive_is_an_error_and_never_a_random_walk(archive, open_vision):
    with pytest.raises(DataError) as caught:
        open_vision().candles(Series("NOPEUSDT", "4h"), 100)
    assert "NOPEUSDT-4h from vision: " in str(caught.value)
    assert f"{archive.url}{path_of('2024-09', 'NOPEUSDT')}" in str(caught.value)
    assert f"{path_of('2017-07', 'NOPEUSDT')}.CHECKSUM" in archive.requests
    assert f"{path_of('2017-06', 'NOPEUSDT')}.CHECKSUM" not in archive.requests


def test_failures_that_pass_change_nothing(full_archive, open_vision, history, make_fault):
    full_archive.faults[f"{path_of('2024-08')}.CHECKSUM"] = [make_fault(status=503)]
    passing = ({"cut_bytes": 100}, {"status": 500}, {"content": b"garbled"})
    full_archive.faults[path_of("2024-08")] = [make_fault(**fault) for fault in passing]
    full_archive.faults[path_of("2024-07")] = [make_fault(status=429, headers={"Retry-After": "1"})]
    candles = open_vision().candles(SERIES, 300)
    np.testing.assert_array_equal(candles.column("close"), history["close"].iloc[-300:])


def test_a_failure_that_stays_is_an_error_and_not_a_gap(full_archive, open_vision, make_fault):
    full_archive.faults[path_of("2024-07")] = [make_fault(status=503)] * 100
    with pytest.raises(DataError, match=r"2024-07.zip from .*got status 503"):
        open_vision().candles(SERIES, 300)


def test_a_zip_that_never_has_its_checksum_is_refused_and_not_kept(
    full_archive, open_vision, make_zip, tmp_path
):
    full_archive.files[path_of("2024-08")] = make_zip({"BTCUSDT-4h-2024-08.csv": "0,1"})
    with pytest.raises(DataError, match=r"2024-08.zip: .*sha256.*got another one, 3 times"):
        open_vision().candles(SERIES, 100)
    assert list(tmp_path.rglob("*2024-08.zip")) == []


@pytest.mark.parametrize("label", ["2024-07", "2024-08"])
@pytest.mark.parametrize(("content", "got"), [(b"", "another one"), (None, "no zip")])
def test_a_checksum_with_an_empty_zip_or_none_is_an_error_and_not_a_gap(
    full_archive, open_vision, label, content, got
):
    """At 4c79749 an empty zip was dropped in silence, and the newest month ended in a traceback."""
    full_archive.files[path_of(label)] = content
    with pytest.raises(DataError, match=rf"{label}\.zip: .*; got {got}, \d times"):
        open_vision().candles(SERIES, 2_000)


@pytest.mark.parametrize("label", ["2024-03", "2024-06", "2024-08", "2024-09-01", "2024-09-03", "2024-09-05"])
def test_a_zip_whose_checksum_is_absent_is_an_error_wherever_candles_would_be_missing(
    full_archive, open_vision, label
):
    """At 4c79749 it counted as absent: the oldest, a month or day between two, the newest were dropped."""
    del full_archive.files[f"{path_of(label)}.CHECKSUM"]
    with pytest.raises(DataError, match=rf"{label}\.zip\.CHECKSUM: .*; got the zip alone"):
        open_vision().candles(SERIES, 10_000)


def test_an_archive_without_any_checksum_says_what_is_missing(full_archive, open_vision):
    for path in [path for path in full_archive.files if path.endswith(".CHECKSUM")]:
        del full_archive.files[path]
    with pytest.raises(DataError, match=r"2024-08\.zip\.CHECKSUM: .*got the zip alone"):
        open_vision().candles(SERIES, 100)


def test_a_checksum_that_is_not_needed_may_be_absent(full_archive, open_vision, history):
    """The days of August are there one by one, and March is older than what is asked for."""
    for day in range(1, 32):
        full_archive.put_rows("BTCUSDT-4h", f"2024-08-{day:02}", part(history, f"2024-08-{day:02}"))
    for label in ("2024-03", "2024-08"):
        del full_archive.files[f"{path_of(label)}.CHECKSUM"]
    assert len(open_vision().candles(SERIES, 300)) == 300


def test_zips_are_asked_for_beside_the_ends_and_in_holes_only(full_archive, open_vision):
    """Six months and five days there, and nothing else that a zip could hold but what the hole needs."""
    full_archive.files.pop(f"{path_of('2024-05')}.CHECKSUM")
    full_archive.files.pop(path_of("2024-05"))
    open_vision().candles(SERIES, 10_000)
    there = [
        "2024-03",
        "2024-04",
        "2024-06",
        "2024-07",
        "2024-08",
        *(f"2024-09-0{day}" for day in range(1, 6)),
    ]
    hole = ["2024-05", *(f"2024-05-{day:02}" for day in range(1, 32))]
    # Before March lies February; the sixth of September is not over yet.
    assert labels(full_archive.downloads()) == sorted(["2024-02", *there, *hole])


def test_a_password_in_the_address_opens_the_archive_and_is_written_nowhere(
    full_archive, open_vision, monkeypatch, tmp_path
):
    """At 4c79749 it was in the cache folder's name and in every message."""
    full_archive.password = ("me@home", "s3cr:t/word")
    host = full_archive.url.removeprefix("http://")
    monkeypatch.setenv("V8_VISION_URL", f"http://me%40home:s3cr%3At%2Fword@{host}")
    assert len(open_vision().candles(SERIES, 100)) == 100
    with pytest.raises(DataError) as caught:
        open_vision().candles(Series("NOPEUSDT", "4h"), 100)
    assert f"{full_archive.url}/data" in str(caught.value)
    places = [str(path) for path in tmp_path.rglob("*")]
    assert any(host.replace(":", "_") in place for place in places)
    for text in (*places, str(caught.value), repr(caught.value)):
        assert "home" not in text.replace(str(tmp_path), "")
        assert "s3cr" not in text


@pytest.mark.parametrize(
    "address",
    [
        "file:///data",
        "ftp://host/data",
        "http://",
        "http://[::1",
        "http://host:99999",
        "http://ho st",
        "http://host/?list",
        "host/data",
        "http://me:s3cret/word@host",
        "me:s3cret@host",
        "http://me:s3cret@[",
        "http://host\n/data",
        "http://host/?token=s3cret",
        "http://host/?s3cret",
        "http://host/#s3cret",
        "http://me:s?s3cret@host",
        "http://me:#s3cret@host/x?y",
    ],
)
def test_an_address_that_is_none_is_refused_before_anything_is_read(monkeypatch, address):
    """At 4c79749 some were tracebacks, and others an error for every series."""
    monkeypatch.setenv("V8_VISION_URL", address)
    with pytest.raises(ProfileError, match=r"^V8_VISION_URL: .*a candle archive") as caught:
        open_source("vision")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"<html>sign in</html>", b"%064d  ETHUSDT-4h-2024-08.zip\n" % 0, b"12  x\n"]
)
def test_a_checksum_of_another_form_or_file_is_refused(full_archive, open_vision, content):
    full_archive.files[f"{path_of('2024-08')}.CHECKSUM"] = content
    with pytest.raises(DataError, match=r"BTCUSDT-4h-2024-08.zip.CHECKSUM: .*sha256"):
        open_vision().candles(SERIES, 100)


CSV = "BTCUSDT-4h-2024-08.csv"


def with_wrong_crc(make, rows):
    content = bytearray(make({CSV: rows}))
    content[content.index(b"PK\1\2") + 16] ^= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("pack", "got"),
    [
        (lambda make, rows: make({"ETHUSDT-4h-2024-08.csv": rows}), rf"one file {CSV}; got .*ETHUSDT-4h"),
        (lambda make, rows: make({f"../{CSV}": rows}), rf"one file {CSV}; got .*\.\./BTCUSDT"),
        (lambda make, rows: make({CSV: rows, "more.csv": rows}), rf"one file {CSV}; got .*more\.csv"),
        (lambda make, rows: make({}), rf"one file {CSV}; got \[\]\."),
        (lambda make, rows: make({CSV: b"0" * 5_000_000}), "got more"),  # 5 kB that would fill the memory
        (lambda make, rows: make({CSV: rows})[3:], "got negative seek value"),
        (with_wrong_crc, "got Bad CRC-32"),
    ],
    ids=["another file", "another folder", "two files", "no file", "bomb", "cut begin", "wrong CRC"],
)
def test_a_zip_that_is_not_as_it_should_be_is_refused_although_its_sha256_is_right(
    full_archive, open_vision, history, make_zip, make_rows, pack, got
):
    full_archive.put(path_of("2024-08"), pack(make_zip, make_rows(part(history, "2024-08"))))
    with pytest.raises(DataError, match=rf"BTCUSDT-4h-2024-08\.zip: .*{got}"):
        open_vision().candles(SERIES, 100)


def test_rows_of_another_month_are_refused(full_archive, open_vision, history):
    full_archive.put_rows("BTCUSDT-4h", "2024-08", part(history, "2024-07"))
    with pytest.raises(
        DataError, match=r"BTCUSDT-4h-2024-08.zip: .*got 186 others, the first.*2024-07-01T00:00:00Z"
    ):
        open_vision().candles(SERIES, 100)


def test_a_zip_of_text_for_prices_is_not_kept_and_a_mended_one_takes_its_place(
    full_archive, open_vision, history, tmp_path
):
    rows = part(history, "2024-08")
    full_archive.put_rows("BTCUSDT-4h", "2024-08", rows.assign(close="ten"))
    with pytest.raises(DataError, match=r"BTCUSDT-4h from vision: .*got 186 of 216, mostly values that"):
        open_vision().candles(SERIES, 100)
    assert not list(tmp_path.rglob("*2024-08.zip*"))
    full_archive.put_rows("BTCUSDT-4h", "2024-08", rows)
    assert len(open_vision().candles(SERIES, 100)) == 100


def test_a_header_and_microseconds_read_the_same(full_archive, open_vision, history):
    known = open_vision().candles(SERIES, 100).digest
    rows = part(history, "2024-08")
    rows = rows.assign(open_time=rows.open_time * 1_000)
    full_archive.put_rows("BTCUSDT-4h", "2024-08", rows, has_header=True)
    for path in list(full_archive.files):
        full_archive.files[f"/new{path}"] = full_archive.files[path]
    candles = open_vision(base_url=f"{full_archive.url}/new").candles(SERIES, 100)
    assert candles.digest == known
    assert candles.report.time_units == {"microseconds": 186, "milliseconds": 30}


def test_candles_that_have_come_since_are_counted_by_their_checksums(full_archive, open_vision):
    source = open_vision()
    for last, num_newer in (("2024-09-05 20:00", 0), ("2024-09-03 20:00", 12), ("2024-07-31 20:00", 216)):
        before = len(full_archive.downloads())
        candles = source.candles(SERIES, 50, seconds(last))
        assert candles.report.num_newer == num_newer
        assert len(full_archive.downloads()) - before <= 6
    assert source.candles(SERIES, 50).report.num_newer == 0


def test_a_symbol_that_the_exchange_cannot_have_is_refused_before_anything_is_asked(archive, open_vision):
    with pytest.raises(DataError, match=r"BRK.B-1d from vision: .*got BRK.B.*--source"):
        open_vision().candles(Series("BRK.B", "1d"), 50)
    assert archive.requests == []
