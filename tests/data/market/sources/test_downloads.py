from contextlib import closing
from dataclasses import replace

import pytest

from v8.base.errors import DataError
from v8.data.market.sources.downloads import PATIENCE, Downloader


@pytest.fixture
def waits():
    return []


@pytest.fixture
def downloader(waits):
    """Ask four times at most, and note the waits instead of waiting."""
    patience = replace(PATIENCE, num_tries=4, sleep=waits.append)
    with closing(Downloader("V8_VISION_URL", num_workers=3, patience=patience)) as opened:
        yield opened


def test_a_file_is_fetched_whole(archive, downloader, waits):
    archive.files["/a"] = bytes(range(256)) * 1_000
    assert downloader.fetch(f"{archive.url}/a", max_bytes=256_000) == archive.files["/a"]
    assert waits == []


def test_404_means_absent_and_is_not_tried_again(archive, downloader):
    assert downloader.fetch(f"{archive.url}/a", max_bytes=10) is None
    assert archive.requests == ["/a"]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_passing_failure_is_tried_again_after_a_delay(archive, downloader, waits, make_fault, status):
    archive.files["/a"] = b"candles"
    archive.faults["/a"] = [make_fault(status=status)]
    assert downloader.fetch(f"{archive.url}/a", max_bytes=10) == b"candles"
    assert len(waits) == 1
    assert 0.25 <= waits[0] <= 0.5


def test_a_connection_cut_within_the_body_is_tried_again(archive, downloader, waits, make_fault):
    archive.files["/a"] = b"x" * 100_000
    archive.faults["/a"] = [make_fault(cut_bytes=50_000), make_fault(cut_bytes=1)]
    assert downloader.fetch(f"{archive.url}/a", max_bytes=100_000) == archive.files["/a"]
    assert len(waits) == 2


def test_after_the_last_try_the_error_names_the_address_and_the_reason(
    archive, downloader, waits, make_fault
):
    archive.files["/a"] = b"candles"
    archive.faults["/a"] = [make_fault(status=503)] * 4
    with pytest.raises(DataError, match=r"a from 127\.0\.0\.1:\d+: .* 4 tries; got status 503"):
        downloader.fetch(f"{archive.url}/a", max_bytes=10)
    assert (len(waits), len(archive.requests)) == (3, 4)


def test_a_server_that_is_not_there_is_an_error_after_the_last_try(downloader, waits, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # Port 9 (discard) is below 1024 and served nowhere in a test.
    with pytest.raises(DataError, match=r"got a broken connection \(ConnectionError\)"):
        downloader.fetch("http://127.0.0.1:9/a", max_bytes=10)
    assert len(waits) == 3


def test_a_server_that_has_failed_is_tried_less_often_until_it_answers(
    archive, downloader, waits, make_fault
):
    archive.files |= {"/a": b"candles", "/b": b"candles"}
    archive.faults |= {"/a": [make_fault(status=503)] * 6, "/b": [make_fault(status=503)] * 10}

    def num_tries(path):
        before = len(waits)
        with pytest.raises(DataError):
            downloader.fetch(f"{archive.url}{path}", max_bytes=10)
        return len(waits) - before + 1

    assert [num_tries("/b"), num_tries("/b")] == [4, 3]
    downloader.fetch(f"{archive.url}/absent", max_bytes=10)
    assert [num_tries("/a")] == [4]
    assert downloader.fetch(f"{archive.url}/a", max_bytes=10) == b"candles"


@pytest.mark.parametrize("status", [403, 451])
def test_a_refusal_is_an_error_at_once(archive, downloader, waits, make_fault, status):
    archive.files["/a"] = b""
    archive.faults["/a"] = [make_fault(status=status)]
    with pytest.raises(DataError, match=f"got status {status} .*V8_VISION_URL to a mirror"):
        downloader.fetch(f"{archive.url}/a", max_bytes=10)
    assert waits == []


def test_a_file_larger_than_expected_is_not_read_to_its_end(archive, downloader):
    archive.files["/a"] = b"x" * 200_000
    with pytest.raises(DataError, match="at most 100000 bytes; got more"):
        downloader.fetch(f"{archive.url}/a", max_bytes=100_000)


def test_an_address_that_is_none_is_an_error(downloader):
    with pytest.raises(DataError, match="an address that can"):
        downloader.fetch("archive/a", max_bytes=10)


def test_never_more_requests_are_in_flight_than_there_are_workers(slow_archive, downloader):
    paths = [f"/{number}" for number in range(12)]
    slow_archive.files |= {path: path.encode() for path in paths}
    fetched = downloader.map(lambda path: downloader.fetch(slow_archive.url + path, max_bytes=9), paths)
    assert fetched == [path.encode() for path in paths]
    assert slow_archive.most_at_once == 3


def test_an_error_in_the_pool_cancels_what_has_not_begun(slow_archive, downloader, make_fault):
    paths = [f"/{number}" for number in range(40)]
    slow_archive.files |= dict.fromkeys(paths, b"")
    slow_archive.faults["/0"] = [make_fault(status=403)]
    with pytest.raises(DataError, match="got status 403"):
        downloader.map(lambda path: downloader.fetch(slow_archive.url + path, max_bytes=9), paths)
    downloader.close()
    assert len(slow_archive.requests) < 20


def test_the_last_reference_may_be_dropped_by_one_of_its_threads() -> None:
    """At 4c79749 such a thread waited for itself: RuntimeError, cannot join current thread."""
    holder = [Downloader("V8_VISION_URL")]

    def drop(_: int) -> None:
        holder.pop().close()

    pool = holder[0]._pool
    assert pool.submit(drop, 0).exception() is None
