"""Makes the forecast of every series once a candle, and reads the live record, for all requests together.

A forecast is made when it is first requested after a candle closed, and cached until the next one closes. If
that candle is late, it is requested again after `RETRY_S`; so frequent requests cause no extra work. What a
reader waits for is computed first, however many other forecasts are to be renewed. Changes of the models are
looked for in a thread of its own, because a Hub that does not answer must not hold up forecasts.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from v8.annexes.live.app import answers
from v8.annexes.live.app.places import ModelSnapshot, ModelSource
from v8.annexes.live.ledger.record import LiveRecord
from v8.api.issuing import IssuedForecast
from v8.base.errors import DataError, V8Error
from v8.data.market.series import Series

RETRY_S: Final = 10.0  # what failed, or is not available yet, is tried again after so many seconds
CLOSING_S: Final = 1.0  # a candle is available so long after its close, in seconds
OVERDUE_RETRY_S: Final = 60.0  # candles more than a bar late are requested again after so many seconds
SIMULATED_S: Final = 3_600.0
"""Seconds that a forecast of the demo market is cached: it does not change, but the models may."""
REFRESH_S: Final = 15.0  # default of `refresh_s`
CHART_S: Final = 300.0  # the chart of a candle is computed again after so many seconds
RECORD_S: Final = 15.0  # the ledger is read again at most every so many seconds
PREPARE_S: Final = 1.0
"""While the page is viewed, stale forecasts of all series are looked for every so many seconds."""
Work = Callable[[], tuple[Any, float]]
"""Returns a value, and until when it is fresh, by the clock of the cache."""


@dataclass(eq=False)
class CachedResult:
    """The result of some work, or its error; fresh from `since_s` to `until_s`, and while work goes on."""

    version: str  # of what the work was done with, such as the digest of a model
    future: Future[Any] = field(default_factory=Future)
    since_s: float = -math.inf
    until_s: float = math.inf
    num_readers: int = 0
    """Readers who wait for it now."""
    requested_s: float = -math.inf
    """When the newest of them began to wait, by `time.monotonic`."""

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Say that a reader waits while the block lasts: then it goes before what nobody waits for."""
        self.requested_s = time.monotonic()
        self.num_readers += 1
        try:
            yield
        finally:
            self.num_readers -= 1


class WorkCache:
    """Shares work among requests: once a key until its result is stale, one task at a time, in a thread.

    However many requests come, there is at most one task a key waiting or running, and there are as many keys
    as the caller has series. An error is cached for `RETRY_S`, too, so that asking again causes no work.

    What readers wait for comes first, the newest request before older ones: of more requests than can be
    answered in time, those that came last still are. All else follows in the order of the calls.

    Args:
        clock: Returns seconds since any moment. If it is set back, because it was fast, results from later
            times are stale.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._results: dict[Hashable, CachedResult] = {}
        self._waiting: dict[CachedResult, Work] = {}
        """Work that has not begun, the oldest first."""
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="v8-app")

    def get(self, key: Hashable, work: Work, version: str = "") -> CachedResult:
        """Return the result of a key; the work is started unless a fresh result exists or is under way.

        A result of another version is discarded.
        """
        with self._lock:
            now_s = self._clock()
            result = self._results.get(key)
            is_fresh = result is not None and result.since_s - RETRY_S <= now_s < result.until_s
            if result and is_fresh and result.version == version:
                return result
            result = CachedResult(version)
            self._results[key] = result
            self._waiting[result] = work
            self._executor.submit(self._run_next)
            return result

    def close(self) -> None:
        """Start no work any more; what has not begun is cancelled."""
        with self._lock:
            self._executor.shutdown(wait=False, cancel_futures=True)
            for result in self._waiting:
                result.future.cancel()
            self._waiting.clear()

    def _run_next(self) -> None:
        """Do the work that is due next; this is called once for each that waits."""
        with self._lock:
            if not self._waiting:  # closed meanwhile
                return
            result = max(self._waiting, key=_urgency)
            work = self._waiting.pop(result)
        value = None
        failure = None
        until_s = self._clock() + RETRY_S
        try:
            value, until_s = work()
        except BaseException as error:  # noqa: BLE001 - raised where the result is requested
            failure = error
        result.since_s = self._clock()
        result.until_s = until_s
        if failure:
            result.future.set_exception(failure)
        else:
            result.future.set_result(value)


def _urgency(result: CachedResult) -> float:
    """Return what is largest for the work that goes first; of equal ones the oldest goes first."""
    return result.requested_s if result.num_readers else -math.inf


class ForecastService:
    """Provides the forecasts, the models and the live record that the server shows.

    Only work asks a source for the present, because it may have to ask the exchange; before the first work
    this machine's time holds.

    Args:
        models: Where the models are.
        view: Makes what is shown of a snapshot, a forecast and the volatilities of the month before.
        issue: Issues the forecast of a series with the model of a snapshot; returns it and the volatilities.
        record: Reads the live record of all series; None if there is none yet.
        present: Asks for the present, seconds since the epoch, UTC.
        chart: Returns what the chart of a forecast shows, as JSON values.
        notify: Shows the operator a line.
        refresh_s: Models and clock are read again at most every so many seconds.

    Raises:
        V8Error: If there is no model that can be shown.
    """

    def __init__(
        self,
        models: ModelSource,
        view: Callable[..., Any],
        *,
        issue: Callable[[ModelSnapshot, Series], tuple[IssuedForecast, Any]],
        record: Callable[[], LiveRecord | None],
        present: Callable[[], float],
        notify: Callable[[str], None],
        chart: Callable[[IssuedForecast], Any] | None = None,
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._models = models
        self._view = view
        self._issue = issue
        self._record = record
        self._chart = chart or answers.chart
        self._present = present
        self._notify = notify
        self._refresh_s = refresh_s
        self._clock_offset_s = time.time() - time.monotonic()
        self._forecast_cache = WorkCache(self.now_s)
        self._refresh_cache = WorkCache(self.now_s)
        self._prepare_cache = WorkCache(self.now_s)
        self.newest: Final[dict[Series, Any]] = {}
        """The newest view of each series, or the error, whoever requested it."""
        self._last_record: LiveRecord | None = None
        self._last_notice = ""
        self._snapshot = models.refresh()
        self._notify_refused()

    @property
    def snapshot(self) -> ModelSnapshot:
        """The models that serve now; changes are looked for now and then, without waiting."""
        self._refresh_cache.get("refresh", self._refresh)
        return self._snapshot

    def now_s(self) -> float:
        """Return the time of the source, seconds since the epoch, UTC, without asking it."""
        return time.monotonic() + self._clock_offset_s

    def forecast(self, series: Series) -> CachedResult:
        """Return the view of the forecast after the newest candle of a series of the snapshot."""
        snapshot = self._snapshot
        # The version is the model, so that a forecast of the old model is not taken for one of the new.
        model = snapshot.metadata[series].model_sha256 if series in snapshot.metadata else ""
        return self._forecast_cache.get(series, lambda: self._make_forecast(snapshot, series), model)

    def chart(self, issued: IssuedForecast) -> CachedResult:
        """Return what the chart of a forecast shows, as JSON values; it is computed when it is requested."""
        series = issued.candles.series
        version = f"{issued.closed_s} {issued.forecaster.about.model_sha256}"
        return self._forecast_cache.get(
            ("chart", series), lambda: (self._chart(issued), self.now_s() + CHART_S), version
        )

    def record(self) -> CachedResult:
        """Return the live record of all series; None if there is none yet."""
        return self._forecast_cache.get("record", lambda: (self._record(), self.now_s() + RECORD_S))

    def prepare(self) -> LiveRecord | None:
        """Start to renew stale forecasts of all series; return the live record as it was read last."""
        self._prepare_cache.get("prepare", self._prepare_all)
        return self._last_record

    def start(self, max_wait_s: float) -> None:
        """Make the first forecast, so that the first reader need not wait for it; the others follow."""
        first_series = next(iter(self._snapshot.metadata))
        wait([self.forecast(first_series).future], timeout=max_wait_s)
        self.prepare()

    def close(self) -> None:
        """Start no work any more."""
        for cache in (self._forecast_cache, self._refresh_cache, self._prepare_cache):
            cache.close()

    def _prepare_all(self) -> tuple[None, float]:
        """Renew stale forecasts one after another: a request for a series waits for one of these at most."""
        record = self.record().future
        self._last_record = None if record.exception() else record.result()
        for series in self._snapshot.metadata:
            self.forecast(series).future.exception()  # only waits; whoever shows the forecast shows the error
        return None, self.now_s() + PREPARE_S

    def _make_forecast(self, snapshot: ModelSnapshot, series: Series) -> tuple[Any, float]:
        """Make the view of a forecast, and return it and until when it is fresh."""
        try:
            if series not in snapshot.metadata:
                raise DataError(
                    where=str(series),
                    rule="is one of the series that are shown",
                    got="a series whose model is not there any more",
                    fix="Choose another one",
                )
            issued, month = self._issue(snapshot, series)
            view = self._view(snapshot, issued, month)
            until_s = self._fresh_until_s(issued)
        except Exception as error:
            self.newest[series] = error
            if isinstance(error, V8Error):
                self._notify_once(str(error))
            raise
        self.newest[series] = view
        return view, until_s

    def _fresh_until_s(self, issued: IssuedForecast) -> float:
        now_s = self._update_clock()
        bar_s = issued.candles.series.bar_s
        if not issued.is_dated:
            return now_s + SIMULATED_S
        next_candle_s = issued.closed_s + bar_s + CLOSING_S
        if now_s < next_candle_s:
            return next_candle_s
        return now_s + (RETRY_S if now_s < next_candle_s + bar_s else OVERDUE_RETRY_S)

    def _refresh(self) -> tuple[None, float]:
        """Take over changed models and the clock; if they cannot be read, all stays as it is."""
        before = self._snapshot
        try:
            self._snapshot = self._models.refresh()
        except V8Error as error:
            self._notify_once(f"{error} The models that were read before serve on.")
        if self._snapshot is not before:
            self._notify_refused()
        try:
            self._update_clock()
        except V8Error as error:
            self._notify_once(str(error))
        return None, self.now_s() + self._refresh_s

    def _update_clock(self) -> float:
        """Ask the source for the present and return it; `DataError` if it does not answer."""
        present_s = self._present()
        self._clock_offset_s = present_s - time.monotonic()
        return present_s

    def _notify_refused(self) -> None:
        for name, reason in self._snapshot.refused.items():
            self._notify_once(f"{name} is not shown: {reason}")

    def _notify_once(self, text: str) -> None:
        """Notify the operator, but not of the same thing twice in a row."""
        if text != self._last_notice:
            self._last_notice = text
            self._notify(text)
