"""Trying again: when, how often, and when to stop with everything as it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from v8.errors import PublishError

Found = TypeVar("Found")


class PassingTroubleError(Exception):
    """The Hub did not answer, or asked to come back later. What it did meanwhile has to be looked at.

    Args:
        text: What happened, as a clause without secrets.
        wait_s: How long the Hub asks to wait, in seconds; None when it did not say.
    """

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.text, self.wait_s = text, wait_s


class UnreachableError(PublishError):
    """The trouble did not pass. Publishing ends with it; pulling looks into the cache."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a Hub that has trouble.

    Args:
        timeout_s: Longest silence of one request, in seconds.
        waits_s: Pauses between tries when the Hub does not say how long, in seconds; as many as there
            are, so often is tried again. A try that moved something starts the count anew.
        longest_wait_s: The Hub may ask for a pause up to this, in seconds.
        sleep: What waits, in seconds.
        tell: What is told about each pause.
    """

    timeout_s: float = 120.0
    waits_s: tuple[float, ...] = (2.0, 4.0, 8.0, 16.0)
    longest_wait_s: float = 300.0
    sleep: Callable[[float], None] = time.sleep
    tell: Callable[[str], None] = lambda text: None

    def insist(self, where: str, ask: Callable[[], Found], progress: Callable[[], int] = lambda: 0) -> Found:
        """Call `ask` until it returns.

        Args:
            where: The repository or host, for messages.
            ask: What to try; a `PassingTroubleError` of it means trying again.
            progress: Counts what was moved for good so far.

        Raises:
            UnreachableError: If the trouble does not pass, or the Hub asks for a longer pause than ours.
        """
        num_failed, moved = 0, progress()
        while True:
            try:
                return ask()
            except PassingTroubleError as error:
                trouble = error
            if progress() > moved:
                num_failed, moved = 0, progress()
            wait_s = self._next_wait_s(where, trouble, num_failed)
            num_failed += 1
            self.tell(f"{where}: {trouble.text}; trying again in {wait_s:g} s")
            self.sleep(wait_s)

    def _next_wait_s(self, where: str, trouble: PassingTroubleError, num_failed: int) -> float:
        if num_failed >= len(self.waits_s):
            raise UnreachableError(
                where=where,
                rule="the Hub must answer",
                got=f"{trouble.text}, {num_failed + 1} times in a row",
                fix="Nothing is lost; repeat the same command later, it sends only what is missing",
            )
        wait_s = self.waits_s[num_failed] if trouble.wait_s is None else trouble.wait_s
        if wait_s > self.longest_wait_s:
            raise UnreachableError(
                where=where,
                rule=f"waits at most {self.longest_wait_s:g} s for the Hub",
                got=f"{trouble.text} and the request to wait {wait_s:g} s",
                fix="Nothing is lost; repeat the same command after that time, it sends only what is missing",
            )
        return wait_s
