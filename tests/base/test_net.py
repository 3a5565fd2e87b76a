"""Waiting for a network: tried again after pauses, until it is no use, and told to whoever listens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from v8.base.net import (
    RetryFailure,
    RetryPolicy,
    TransientError,
    asked_wait_s,
    in_thread,
    report_waiting,
    reporting_waiting_to,
)


class GaveUpError(Exception):
    def __init__(self, refused: RetryFailure) -> None:
        super().__init__(str(refused.trouble))
        self.refused = refused


def failing(times: int, wait_s: float | None = None) -> Callable[[float], str]:
    """Fail so many times, then answer."""
    troubles = [TransientError("status 503", wait_s) for _ in range(times)]

    def ask(_: float) -> str:
        if troubles:
            raise troubles.pop()
        return "answer"

    return ask


@pytest.fixture
def pauses_s() -> list[float]:
    return []


def test_pauses_double_up_to_the_longest_and_are_spread(pauses_s: list[float]) -> None:
    patience = RetryPolicy(num_tries=5, first_s=1.0, longest_s=4.0, sleep=pauses_s.append)
    assert patience.call(failing(4), GaveUpError) == "answer"
    ceilings_s = [1.0, 2.0, 4.0, 4.0]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses_s, ceilings_s, strict=True))


def test_the_pause_that_a_server_asks_for_is_kept_up_to_a_limit(pauses_s: list[float]) -> None:
    assert RetryPolicy(sleep=pauses_s.append).call(failing(1, 7.0), GaveUpError) == "answer"
    assert RetryPolicy(sleep=pauses_s.append, most_asked_s=5.0).call(failing(1, 7.0), GaveUpError) == "answer"
    assert pauses_s == [7.0, 5.0]


def test_after_the_last_try_the_refusal_tells_how_often_it_was_tried(pauses_s: list[float]) -> None:
    with pytest.raises(GaveUpError, match="status 503") as caught:
        RetryPolicy(num_tries=3, sleep=pauses_s.append).call(failing(9), GaveUpError)
    assert (caught.value.refused.num_tries, caught.value.refused.is_late, len(pauses_s)) == (3, False, 2)


def test_no_try_begins_that_could_end_too_late(pauses_s: list[float]) -> None:
    with pytest.raises(GaveUpError, match="status 503") as caught:
        RetryPolicy(most_s=10.0, try_s=4.0, sleep=pauses_s.append).call(failing(9, 7.0), GaveUpError)
    assert (caught.value.refused.is_late, caught.value.refused.pause_s, pauses_s) == (True, 7.0, [])


def test_a_try_that_moves_something_starts_the_count_anew(pauses_s: list[float]) -> None:
    moved = iter([0, 1, 1, 2, 2, 3, 3])
    patience = RetryPolicy(num_tries=2, sleep=pauses_s.append)
    assert patience.call(failing(3), GaveUpError, progress=lambda: next(moved)) == "answer"
    assert len(pauses_s) == 3


@pytest.mark.parametrize(
    "text", [None, "", "later", "-1", "7.5 s", "9" * 5_000, "Wed, 21 Oct 99999 07:28:00 GMT"]
)
def test_a_retry_after_that_means_nothing_is_none(text: str | None) -> None:
    assert asked_wait_s(text) is None


def test_what_a_thread_raises_whoever_waits_gets() -> None:
    assert in_thread(lambda: 7).result(timeout=60) == 7
    with pytest.raises(ZeroDivisionError, match="division"):
        in_thread(lambda: 1 // 0).result(timeout=60)


def test_sentences_about_waiting_go_to_the_innermost_listener_alone() -> None:
    outer: list[str] = []
    inner: list[str] = []
    report_waiting("nobody listens")
    with reporting_waiting_to(outer.append):
        with reporting_waiting_to(inner.append):
            report_waiting("for a file")
        report_waiting("for another")
    assert (outer, inner) == (["for another"], ["for a file"])
