"""What is shown of a place: its fleet, the forecast of every series once a candle, and the live record.

A forecast is worked out when it is first asked for after a candle closed, and kept until the next one closes.
Where that candle is late, it is asked for again after `RETRY_S`; so nobody who asks often makes work. The
place is looked at in a thread of its own, because a Hub that does not answer must not hold up forecasts.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Final

from v8.app.places import Fleet, Place
from v8.errors import DataError, V8Error
from v8.forecasts.issuing import Issued
from v8.ledger.record import Record
from v8.market.series import Series

RETRY_S: Final = 10.0  # what failed, or is not there yet, is tried again after so many seconds
CLOSING_S: Final = 1.0  # a candle can be had this long after its close, in seconds
OLD_S: Final = 60.0  # candles that are more than a bar late are asked for again after so many seconds
SIMULATED_S: Final = 3_600.0
"""The demo market has no present: its forecasts do not change, but the models may."""
LOOK_S: Final = 15.0  # unless told otherwise
RECORD_S: Final = 15.0  # the ledger is read again at most every so many seconds
SWEEP_S: Final = 1.0
"""While anybody looks, what is stale of all series is looked for again after so many seconds."""
Work = Callable[[], tuple[Any, float]]  # returns what it found and until when that is fresh, by the clock


@dataclass
class Promise:
    """What comes of some work with `means`, or went wrong: fresh from `since_s` to `until_s`.

    It is fresh while work goes on, too.
    """

    means: str
    answer: Future[Any] = field(default_factory=Future)
    since_s: float = -math.inf
    until_s: float = math.inf


class SharedWork:
    """Work that requests share: done once a key until it is stale, one piece at a time, in its own thread.

    However many requests come, there is at most one piece of work a key waiting or running, and keys are as
    many as the caller has series. What failed is kept for `RETRY_S`, too, so that asking again costs nothing.
    `clock` tells seconds since any moment. Set back, as one that ran ahead, it makes stale what is of later.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[Hashable, Promise] = {}
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="v8-app")

    def ask(self, key: Hashable, work: Work, means: str = "") -> Promise:
        """Return what comes of some work, begun only if nothing fresh of its key is there or on its way.

        What was begun with other `means` is no answer, and is forgotten.
        """
        with self._lock:
            kept = self._kept.get(key)
            if not kept or kept.means != means or not kept.since_s - RETRY_S <= self._clock() < kept.until_s:
                kept = self._kept[key] = Promise(means)
                kept.answer = self._worker.submit(self._do, kept, work)
            return kept

    def close(self) -> None:
        """Begin nothing any more."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _do(self, kept: Promise, work: Work) -> Any:
        until_s = self._clock() + RETRY_S
        try:
            found, until_s = work()
        finally:
            kept.since_s = self._clock()
            kept.until_s = until_s
        return found


class Desk:
    """The work behind a page: `issue` forecasts with a fleet's model, `shape` makes of that what is answered.

    `shape` takes the fleet, and what `issue` returned: a forecast and what stands beside it. The `record` of
    all series is None where there is none yet; the operator is told. Only work asks a source for the
    `present`, seconds since the epoch, UTC, for it may have to ask the exchange; until then this machine's
    time holds. Place and clock are looked at again at most every `look_s`.

    Raises:
        V8Error: If the place holds no model that can be shown.
    """

    def __init__(
        self,
        place: Place,
        shape: Callable[..., Any],
        *,
        issue: Callable[[Fleet, Series], tuple[Issued, Any]],
        record: Callable[[], Record | None],
        present: Callable[[], float],
        tell: Callable[[str], None],
        look_s: float = LOOK_S,
    ) -> None:
        self._place = place
        self._shape = shape
        self._issue = issue
        self._record = record
        self._present = present
        self._tell = tell
        self._look_s = look_s
        self._ahead_s = time.time() - time.monotonic()
        self._work, self._looking, self._sweeping = (SharedWork(self.now_s) for _ in range(3))
        self.newest: Final[dict[Series, Any]] = {}
        """What came of each series last, or what went wrong, whoever asked for it."""
        self._last_record: Record | None = None
        self._told = ""
        self._fleet = place.look()
        self._tell_refused()

    @property
    def fleet(self) -> Fleet:
        """The models that serve now; the place is looked at again now and then, without waiting for it."""
        self._looking.ask("look", self._look_again)
        return self._fleet

    def now_s(self) -> float:
        """Return the time of the source, seconds since the epoch, UTC, at once."""
        return time.monotonic() + self._ahead_s

    def forecast(self, series: Series) -> Promise:
        """Return the forecast after the newest candle of a series that the fleet has."""
        fleet = self._fleet
        # Another model is other work: nothing that was begun with the old one is taken for it.
        model = fleet.metadata[series].model_sha256 if series in fleet.metadata else ""
        return self._work.ask(series, lambda: self._issued(fleet, series), model)

    def record(self) -> Promise:
        """Return the live record of all series; None where there is none yet."""
        return self._work.ask("record", lambda: (self._record(), self.now_s() + RECORD_S))

    def overview(self) -> Record | None:
        """Make what is stale of all series while others go on; return the live record as it was read last."""
        self._sweeping.ask("sweep", self._sweep)
        return self._last_record

    def begin(self, most_s: float) -> None:
        """Make the first forecast, whatever comes of it, so that the first reader need not wait for it.

        The others follow meanwhile.
        """
        first = next(iter(self._fleet.metadata))
        wait([self.forecast(first).answer], timeout=most_s)
        self.overview()

    def close(self) -> None:
        """Begin nothing any more."""
        for work in (self._work, self._looking, self._sweeping):
            work.close()

    def _sweep(self) -> tuple[None, float]:
        """Make what is stale, one after another: whoever asks for a series waits for one more at most."""
        record = self.record().answer
        self._last_record = None if record.exception() else record.result()
        for series in self._fleet.metadata:
            self.forecast(series).answer.exception()  # only waits; whoever shows it says what went wrong
        return None, self.now_s() + SWEEP_S

    def _issued(self, fleet: Fleet, series: Series) -> tuple[Any, float]:
        try:
            if series not in fleet.metadata:
                rule = "is one of the series that are shown"
                got = "a series whose model is not there any more"
                raise DataError(where=str(series), rule=rule, got=got, fix="Choose another one")
            issued, *beside = self._issue(fleet, series)
            found = self._shape(fleet, issued, *beside)
            until_s = self._fresh_until_s(issued)
        except Exception as error:
            self.newest[series] = error
            if isinstance(error, V8Error):
                self._say(str(error))
            raise
        self.newest[series] = found
        return found, until_s

    def _fresh_until_s(self, issued: Issued) -> float:
        now_s = self._renewed_s()
        bar_s = issued.candles.series.bar_s
        if not issued.is_dated:
            return now_s + SIMULATED_S
        closing_s = issued.closed_s + bar_s + CLOSING_S
        if now_s < closing_s:
            return closing_s
        return now_s + (RETRY_S if now_s < closing_s + bar_s else OLD_S)

    def _look_again(self) -> tuple[None, float]:
        """Take over what changed; what cannot be read leaves all as it is."""
        before = self._fleet
        try:
            self._fleet = self._place.look()
        except V8Error as error:
            self._say(f"{error} The models that were read before serve on.")
        if self._fleet is not before:
            self._tell_refused()
        try:
            self._renewed_s()
        except V8Error as error:
            self._say(str(error))
        return None, self.now_s() + self._look_s

    def _renewed_s(self) -> float:
        """Ask the source, and return its time; DataError if it does not tell."""
        told_s = self._present()
        self._ahead_s = told_s - time.monotonic()
        return told_s

    def _tell_refused(self) -> None:
        for name, why in self._fleet.refused.items():
            self._say(f"{name} is not shown: {why}")

    def _say(self, text: str) -> None:
        """Tell the operator, but not the same thing twice in a row."""
        if text != self._told:
            self._told = text
            self._tell(text)
