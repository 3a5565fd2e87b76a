"""`forecast --every` in a process, through closes of an exchange whose clock is moved, killed on the way."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from exchange_api import ExchangeApi
from later_candles import BEGIN_S

from v8.annexes.live.ledger import Ledger
from v8.data.market.series import Series

MOVED_CLOCK = Path(__file__).with_name("moved_clock.py")
"""The command line that follows the exchange's clock at once."""

AFTER_CLOSE_S = 10
"""Where the clock stands behind a close: every place has asked for its candle by then."""

LIMIT_S = 180.0
"""A close takes at most so long, start and compilation included, on a machine with other work."""


def ledger_rows(path: Path) -> dict[str, list[Any]]:
    """Return every row of a ledger in the order of its keys, with who issued it instead of a number."""
    queries = {
        "forecasts": "SELECT place, series, issued_for_s, written_s, about, candles_digest, forecasts "
        "FROM forecasts JOIN tracks ON tracks.id = forecasts.track JOIN issuers ON issuers.id = issuer",
        "scores": "SELECT place, series, issued_for_s, scored_s, actual_digest, losses, actual "
        "FROM scores JOIN forecasts ON forecasts.id = forecast JOIN tracks ON tracks.id = track",
    }
    with sqlite3.connect(path) as opened:
        found = {
            name: opened.execute(f"{query} ORDER BY place, series, issued_for_s").fetchall()
            for name, query in queries.items()
        }
    opened.close()
    return found


class WatchedReplay:
    """A replay of closes.

    Args:
        exchange: What the process asks.
        ledger: The file it writes.
        place: The place it forecasts, as the ledger names it.
        start: Starts the process.
    """

    def __init__(
        self,
        exchange: ExchangeApi,
        ledger: Path,
        place: str,
        start: Callable[[], subprocess.Popen[Any]],
    ) -> None:
        self.exchange = exchange
        self.ledger = ledger
        self.place = place
        self.start = start
        self.process = start()

    def go(
        self,
        names: Sequence[str],
        num_closes: int,
        kills: Mapping[int, float],
        at_close: Callable[[int], object] = lambda number: None,
    ) -> None:
        """Move the clock from close to close, each when all of the one before stands in the ledger.

        Args:
            names: The series.
            num_closes: Closes of the shortest bars.
            kills: By the number of a close, how many seconds after it the process is killed and started anew.
            at_close: Called with the number of each close when all of it stands in the ledger.
        """
        bar_s = min(Series.parse(name).bar_s for name in names)
        for number in range(num_closes):
            self.exchange.now_s = BEGIN_S + number * bar_s + AFTER_CLOSE_S
            if number in kills:
                time.sleep(kills[number])
                self.kill()
                self.process = self.start()
            self._wait(names)
            at_close(number)

    def kill(self) -> None:
        """Kill the process as a machine does that loses power."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def _wait(self, names: Sequence[str]) -> None:
        end = time.monotonic() + LIMIT_S
        while not all(map(self._is_done, names)):
            if time.monotonic() > end or self.process.poll() is not None:
                raise TimeoutError(f"not done: {self.exchange.now_s}, process {self.process.poll()}")
            time.sleep(0.05)

    def _is_done(self, name: str) -> bool:
        if not self.ledger.exists():
            return False
        bar_s = Series.parse(name).bar_s
        newest_s = int(self.exchange.now_s) // bar_s * bar_s
        with Ledger.open(self.ledger) as ledger:
            waiting = [entry.due_s for entry in ledger.pending(self.place, name).values()]
            return ledger.newest(self.place, name) == newest_s and min(waiting) > newest_s
