"""What is told while a run works, and errors of one series, of whatever kind."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from v8.data.market.series import Series
from v8.runs.events import run_isolated

SERIES = Series("BTCUSDT", "15m")


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class OwnKindOfError(BaseException):
    pass


def leave() -> None:
    sys.exit(0)


def raise_unspeakable() -> None:
    raise UnspeakableError


def raise_own_kind() -> None:
    raise OwnKindOfError("of its own kind")


def lower_the_recursion_limit() -> None:
    depth = 0
    frame = sys._getframe()
    while frame is not None:
        depth = depth + 1
        frame = frame.f_back  # type: ignore[assignment]
    sys.setrecursionlimit(depth + 5)

    def fall(number: int) -> int:
        return fall(number + 1)

    fall(0)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (leave, "BTCUSDT-15m: unexpected SystemExit: 0."),
        (raise_unspeakable, "BTCUSDT-15m: unexpected UnspeakableError: "),
        (raise_own_kind, "BTCUSDT-15m: unexpected OwnKindOfError: of its own kind"),
        (lower_the_recursion_limit, "BTCUSDT-15m: unexpected RecursionError: "),
    ],
)
def test_whatever_is_raised_fails_that_series_with_its_traceback(
    work: Callable[[], None], words: str
) -> None:
    limit = sys.getrecursionlimit()
    made, outcome = run_isolated(SERIES, work)
    assert made is None
    assert str(outcome.reason).startswith(words)
    assert f"in {work.__name__}" in outcome.trace
    assert sys.getrecursionlimit() == limit


def test_a_lower_recursion_limit_does_not_outlast_the_work() -> None:
    limit = sys.getrecursionlimit()
    made, outcome = run_isolated(SERIES, lambda: sys.setrecursionlimit(limit - 100) or 7)
    assert (made, outcome.reason, sys.getrecursionlimit()) == (7, None, limit)


def test_ctrl_c_is_obeyed() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_isolated(SERIES, interrupt)
