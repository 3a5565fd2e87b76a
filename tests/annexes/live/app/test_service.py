"""Shared work is done once while it is fresh, whoever asks, and failures are kept for a while, too."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v8.annexes.live.app.service import RETRY_S, CachedResult, WorkCache


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
