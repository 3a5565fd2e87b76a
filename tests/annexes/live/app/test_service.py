"""Shared work is done once while it is fresh, failures for a while; the live record is that of the ledger."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_entries import ISSUER, made_entry, made_score

from v8.annexes.live import DEFAULT_LEDGER
from v8.annexes.live.app import answers, service
from v8.annexes.live.app.page import whole_record_part
from v8.annexes.live.app.service import RETRY_S, CachedResult, LedgerReader, WorkCache
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.record import live_record

PLACE = "someone/fleet"
BTC = "BTCUSDT-15m"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 30)), max_size=30))
def test_work_is_done_again_exactly_when_it_is_stale(asked: list[tuple[str, float]]) -> None:
    clock = Clock()
    counts = Counter[str]()
    expected = Counter[str]()
    fresh_until = {"a": 0.0, "b": 0.0}
    once = WorkCache(clock)

    def work(key: str) -> tuple[str, float]:
        counts[key] += 1
        return f"{key}{counts[key]}", clock.now_s + 10

    for key, pause_s in asked:
        clock.now_s += pause_s
        if clock.now_s >= fresh_until[key]:
            expected[key] += 1
            fresh_until[key] = clock.now_s + 10
        found = once.get(key, lambda key=key: work(key)).future.result(timeout=30)
        assert found == f"{key}{expected[key]}"
    once.close()
    assert counts == expected


def test_all_who_ask_meanwhile_wait_for_the_same() -> None:
    once = WorkCache(Clock())
    may_end = threading.Event()
    num_done = Counter[str]()

    def work() -> tuple[int, float]:
        num_done["work"] += 1
        may_end.wait(30)
        return 7, 200.0

    with ThreadPoolExecutor(16) as crowd:
        kept = list(crowd.map(lambda _: once.get("key", work), range(200)))
        assert len({id(each.future) for each in kept}) == 1
        assert not kept[0].future.done()
        may_end.set()
    assert kept[0].future.result(timeout=30) == 7
    assert num_done["work"] == 1
    once.close()


def test_what_failed_is_tried_again_only_after_a_while() -> None:
    clock = Clock()
    tried = Counter[str]()
    once = WorkCache(clock)

    def work() -> tuple[int, float]:
        tried["work"] += 1
        raise ValueError("broken")

    for _ in range(5):
        with pytest.raises(ValueError, match="broken"):
            once.get("key", work).future.result(timeout=30)
    assert tried["work"] == 1
    clock.now_s += RETRY_S
    with pytest.raises(ValueError, match="broken"):
        once.get("key", work).future.result(timeout=30)
    assert tried["work"] == 2
    once.close()


def test_what_is_asked_of_another_model_is_done_anew_and_what_the_old_one_found_is_forgotten() -> None:
    once = WorkCache(Clock())
    may_end = threading.Event()
    first = once.get("key", lambda: (1, 200.0), "old")
    assert first.future.result(timeout=30) == 1
    assert once.get("key", lambda: (0, 200.0), "old") is first
    going = once.get("key", lambda: (may_end.wait(30), 200.0), "new")
    assert once.get("key", lambda: (0, 200.0), "new") is going
    newest = once.get("key", lambda: (3, 200.0), "newest")
    assert not going.future.done()
    may_end.set()
    assert going.future.result(timeout=30) is True  # of whoever waits for it
    assert newest.future.result(timeout=30) == 3
    assert once.get("key", lambda: (0, 200.0), "newest") is newest
    assert [*once._results.values()] == [newest]
    once.close()


def test_what_readers_wait_for_goes_first_the_newest_request_before_older_ones() -> None:
    cache = WorkCache(Clock())
    may_begin = threading.Event()
    order = list[str]()

    def work(name: str) -> tuple[str, float]:
        if name == "first":
            assert may_begin.wait(30)
        order.append(name)
        return name, 200.0

    def get(name: str) -> CachedResult:
        return cache.get(name, lambda: work(name))

    results = [get(name) for name in ("first", *(f"background {number}" for number in range(1_000)))]
    with ExitStack() as readers:
        for name in ("reader 1", "reader 2", "background 500"):
            readers.enter_context(get(name).awaited())
        with get("gone").awaited():  # a reader who does not wait any more holds up nobody
            pass
        may_begin.set()
        wait([result.future for result in results], timeout=30)
    get("gone").future.result(timeout=30)
    assert order[:5] == ["first", "background 500", "reader 2", "reader 1", "background 0"]
    assert order[5:] == [*(f"background {number}" for number in range(1, 1_000) if number != 500), "gone"]
    cache.close()


def test_work_that_has_not_begun_when_it_closes_is_cancelled() -> None:
    cache = WorkCache(Clock())
    may_end = threading.Event()
    begun = cache.get("begun", lambda: (may_end.wait(30), 200.0))
    waiting = cache.get("waiting", lambda: (0, 200.0))
    while cache._waiting.keys() != {waiting}:
        pass
    cache.close()
    may_end.set()
    assert waiting.future.cancelled()
    assert begun.future.result(timeout=30) is True


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
        scored = "2 issued in time and scored, of 1 day."
        verdict = f"{told} (not tested: too few windows), and no baseline is better. {scored}"
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
def test_what_is_no_ledger_is_named_to_the_operator_once_and_all_else_is_shown(
    serve: Callable[..., AbstractContextManager[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RETRY_S", 0.1)
    file = tmp_path / "ledger.sqlite"
    file.write_bytes(b"no database" * 500)
    reader = LedgerReader(file, PLACE)

    def chart_with(issued: Any) -> Any:
        return answers.chart(issued, ledger=reader)

    with serve(record=reader, chart=chart_with) as page:
        for _ in range(3):
            response = page.get(f"/api/track/{BTC}")
            assert response.status == 503
            assert response.json()["error"]["where"] == "the live record"
            assert str(tmp_path) not in response.text
            time.sleep(0.2)
        assert page.get(f"/api/forecast/{BTC}").status == 200
        assert page.get(f"/api/chart/{BTC}").json()["past"] == []
        whole = page.get(f"/series/{BTC}")
        assert (whole.status, str(tmp_path) in whole.text) == (200, False)
        assert "The live record cannot be read" in whole.text
        assert page.get("/record").status == 503
    assert [line.startswith(f"{file}: ") for line in page.told].count(True) == 1


def test_the_command_of_a_page_with_a_ledger_of_its_own_names_one() -> None:
    part = str(whole_record_part(None, "run tiny", "rest", has_own_ledger=True))
    assert "forecast runs/tiny --source rest --ledger FILE --every</code>" in part
    assert LedgerReader(DEFAULT_LEDGER, "./tiny").is_default
    assert not LedgerReader(Path("other.sqlite"), "./tiny").is_default
