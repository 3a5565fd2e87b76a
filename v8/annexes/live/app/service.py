"""Provides what all requests show: models, forecasts and the live record of a place, each made once for all.

A place is a run folder, or a repository on the Hub. It is read again now and then; its content at that moment
is a `ModelSnapshot`, which never changes. A run that is renewed meanwhile, or published again, gives another
snapshot at the next refresh.

A forecast is made when it is first requested after a candle closed, and cached until the next one closes. If
that candle is late, it is requested again after `RETRY_S`; so frequent requests cause no extra work. What a
reader waits for is computed first, however many other forecasts are to be renewed. Changes of the models are
looked for in a thread of its own, because a Hub that does not answer must not hold up forecasts.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.annexes.live import DEFAULT_LEDGER
from v8.annexes.live.entries import Entry
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.record import LiveRecord, live_record
from v8.api.issuing import IssuedForecast, issue_forecast
from v8.base.arrays import FloatArray
from v8.base.errors import ArtifactError, DataError, V8Error, listed
from v8.base.wording import say
from v8.data.features import compute_columns
from v8.data.market.candles import Candles
from v8.data.market.series import Series
from v8.data.market.sources import CandleSource
from v8.data.market.sources.demo import DemoSource
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import Metadata, read_metadata
from v8.forecaster.shared_models import KERAS, SharedModels
from v8.model.evaluation.leaderboard import LeaderboardRow, rank_results
from v8.profile.columns import BAND_PERIOD_BARS, CLOSE, VOLATILITY
from v8.profile.formulas import DAY_S
from v8.publish.hub.places import ModelPlace, open_place

HUB_REFRESH_S: Final = 900.0  # the Hub is asked for a newer commit at most once in so many seconds
MONTH_DAYS: Final = 30  # a volatility is compared with those of so many days
_RUN_LABEL: Final = "run "  # begins the label of a run folder, see `ModelSource`
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


@dataclass(frozen=True, eq=False)
class ModelSnapshot:
    """The models of a place at one moment."""

    label: str  # name of the place for readers; never a path
    revision: str | None  # commit of the Hub, 40 hex digits; None for a run of this machine
    folders: Mapping[Series, Path]
    metadata: Mapping[Series, Metadata]  # in the order of `folders`
    refused: Mapping[str, str]  # why some series are not shown, for the operator

    @cached_property
    def rows(self) -> list[LeaderboardRow]:
        """The leaderboard, best first."""
        return rank_results(metadata.result for metadata in self.metadata.values())

    @cached_property
    def row_of(self) -> dict[str, LeaderboardRow]:
        """The rows of the leaderboard by the name of the series."""
        return {row.series: row for row in self.rows}


@dataclass(frozen=True, eq=False)
class PastMonth:
    """What is known of the month before a day; all arrays are empty if its candles are not available."""

    volatility_percentiles: FloatArray = field(default_factory=lambda: np.empty(0))
    """Percentiles 0 to 100 of the volatility at each bar, shape (101,); empty if there are very few bars."""
    open_time_s: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Open times of the bars of the last two days, shape (N,), seconds since the epoch, UTC."""
    close: FloatArray = field(default_factory=lambda: np.empty(0))
    """Their closes, shape (N,), in quote currency."""


class ModelSource:
    """Where models are: a run folder, the folder of one series, or `user/name` on the Hub.

    Args:
        location: The folder as a path, or the repository as text.
        revision: Branch, tag or commit of the Hub; the newest commit of `main` when None.
        is_offline: Whether only what was downloaded before is used.
    """

    def __init__(
        self, location: Path | str, revision: str | None = None, *, is_offline: bool = False
    ) -> None:
        self.location = location
        self._revision = revision
        self._is_offline = is_offline
        self._snapshot: ModelSnapshot | None = None
        self._state: object = None
        self._refreshed_s = 0.0

    def refresh(self) -> ModelSnapshot:
        """Return the models as they are now, the same object while nothing changed.

        The Hub is asked at most every `HUB_REFRESH_S`.

        Raises:
            V8Error: If there is no model.
        """
        is_hub = isinstance(self.location, str)
        if self._snapshot and is_hub and time.monotonic() - self._refreshed_s < HUB_REFRESH_S:
            return self._snapshot
        place = open_place(self.location, revision=self._revision, is_offline=self._is_offline)
        state = {name: place.version_of(name) for name in place.series}
        self._refreshed_s = time.monotonic()
        if self._snapshot is None or state != self._state:
            self._snapshot = _read_snapshot(place)
            self._state = state
        return self._snapshot


class ForecastIssuer:
    """Issues forecasts of the present with models in memory, which are loaded again when another serves.

    Args:
        source: Where candles come from.
        runtime: What computes, as for `SharedModels`.
    """

    def __init__(self, source: CandleSource, runtime: str = KERAS) -> None:
        self._source = source
        self._models = SharedModels(runtime)
        self._month_before = lru_cache(maxsize=4_096)(partial(month_before, source))

    def __call__(self, snapshot: ModelSnapshot, series: Series) -> tuple[IssuedForecast, PastMonth]:
        """Forecast the bars after the newest closed candle of a series of the snapshot.

        Returns:
            The forecast, and the `month_before` the day of that candle; an empty one if the candles of the
            month are not available.

        Raises:
            DataError: If the candles are not available, cannot be trusted, or are too old.
            ArtifactError: If the model cannot be trusted.
        """
        load = partial(
            Forecaster.load, snapshot.folders[series], revision=snapshot.revision, models=self._models
        )
        forecaster = self._models.serving(str(series), snapshot.metadata[series].model_sha256, load)
        issued = issue_forecast(forecaster, self._source, snapshot.label)
        month = PastMonth()
        with suppress(DataError):
            month = self._month_before(series, issued.closed_s // DAY_S)
        return issued, month


def month_before(source: CandleSource, series: Series, day: int) -> PastMonth:
    """Return what is known of the month before a day.

    Args:
        source: Where the candles come from.
        series: The series.
        day: The first day after the `MONTH_DAYS`, counted from the epoch, UTC.
    """
    num_bars = MONTH_DAYS * DAY_S // series.bar_s + BAND_PERIOD_BARS - 1
    candles = source.candles(series, num_bars, day * DAY_S - 1)
    (volatility,) = compute_columns(candles, [VOLATILITY])[VOLATILITY]
    volatility = volatility[np.isfinite(volatility)]
    percentiles = np.empty(0)
    if len(volatility) >= BAND_PERIOD_BARS:
        percentiles = np.percentile(volatility, np.arange(101))
    num_newest = -(-2 * DAY_S // series.bar_s)
    return PastMonth(percentiles, candles.open_time_s[-num_newest:], candles.column(CLOSE)[-num_newest:])


def change_of_a_day(candles: Candles, month: PastMonth) -> float | None:
    """Return by which share the newest close differs from the one 24 hours earlier; None if that is unknown.

    Args:
        candles: The newest candles.
        month: The month before the day of the newest one.
    """
    open_time_s = int(candles.open_time_s[-1]) - DAY_S
    for times_s, closes in (
        (candles.open_time_s, candles.column(CLOSE)),
        (month.open_time_s, month.close),
    ):
        position = int(np.searchsorted(times_s, open_time_s))
        if position < len(times_s) and times_s[position] == open_time_s:
            return float(candles.column(CLOSE)[-1] / closes[position]) - 1.0
    return None


class RecordError(ArtifactError):
    """The live record cannot be read: its ledger is damaged, or this process may not read it."""


class LedgerReader:
    """Reads the live record of a place from its ledger when that changed; the file need not exist.

    Another process (`python -m v8 forecast --every`) writes the ledger; here it is only read. The place is
    the folder of a run, or `user/name` on the Hub.
    """

    def __init__(self, file: Path, place: Path | str) -> None:
        self._file = file
        self._place = place
        self.is_default = file == DEFAULT_LEDGER
        self._num_rows = (0, 0)
        self._record: LiveRecord | None = None

    def __call__(self) -> LiveRecord | None:
        """Return the live record of all series; None while there is no forecast of the place.

        Raises:
            RecordError: If the file is no ledger, or its content cannot be trusted.
        """
        if not self._file.exists():
            return None
        with self._open() as ledger:
            num_rows = ledger.num_rows  # rows are only ever added
            if num_rows != self._num_rows:
                record = live_record(ledger, self._place)
                self._record = record if record.series else None
                self._num_rows = num_rows
        return self._record

    def forecasts_since(self, series: str, since_s: int) -> list[Entry]:
        """Return the forecasts of a series for closes from a time on; none while there is no file.

        Args:
            series: Its name.
            since_s: Seconds since the epoch, UTC.

        Raises:
            RecordError: If the file is no ledger, or its content cannot be trusted.
        """
        if not self._file.exists():
            return []
        with self._open() as ledger:
            return ledger.forecasts_since(self._place, series, since_s)

    @contextmanager
    def _open(self) -> Iterator[Ledger]:
        try:
            with Ledger.open(self._file) as ledger:
                yield ledger
        except V8Error as error:
            raise RecordError(where=error.where, rule=error.rule, got=error.got, fix=error.fix) from error


def _read_snapshot(place: ModelPlace) -> ModelSnapshot:
    """Read what serves in a place; an artefact that cannot be trusted is left out, with the reason."""
    metadata: dict[Series, Metadata] = {}
    folders: dict[Series, Path] = {}
    refused = {}
    revision = None
    place.prefetch(place.series)
    for name in place.series:
        try:
            folder, revision = place.locate(name)
            series_metadata = read_metadata(folder, series=name)
            _ = series_metadata.result  # the leaderboard shows it; one that is damaged is refused here
            series = Series.parse(name)
        except V8Error as error:
            refused[name] = str(error)
        else:
            folders[series] = folder
            metadata[series] = series_metadata
    if not metadata:
        raise ArtifactError(
            where=place.label,
            rule="a page needs at least one finished series",
            got=f"none that can be read: {listed(list(refused.values()))}" if refused else "none",
            fix="Finish the run first, or name another one",
        )
    snapshot = ModelSnapshot(
        label=place.label, revision=revision, folders=folders, metadata=metadata, refused=refused
    )
    _ = snapshot.row_of  # computed here, because every request would wait for it
    return snapshot


def place_in_words(label: str) -> str:
    """Return the label of a place, see `ModelSnapshot`, in the current language."""
    run = run_name(label)
    return label if run is None else say("run {name}", name=run)


def run_name(label: str) -> str | None:
    """Return the name of the run folder that a label of a place is of; None for another place."""
    return label.removeprefix(_RUN_LABEL) if label.startswith(_RUN_LABEL) else None


def is_demo(snapshot: ModelSnapshot, source: str) -> bool:
    """Return whether a model was trained on the simulated market, or the candles come from it."""
    return source == DemoSource.name or any(
        metadata.is_demo_market for metadata in snapshot.metadata.values()
    )


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
            # What readers wait for, the newest request first; of equal ones `max` takes the oldest.
            result = max(self._waiting, key=lambda each: each.requested_s if each.num_readers else -math.inf)
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
        chart: Callable[[IssuedForecast], Any],
        present: Callable[[], float],
        notify: Callable[[str], None],
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._models = models
        self._view = view
        self._issue = issue
        self._record = record
        self._chart = chart
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
        self._notices: dict[str, str] = {}
        """What the operator was told last about each subject that is in trouble."""
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
        return self._forecast_cache.get("record", self._read_record)

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

    def _read_record(self) -> tuple[LiveRecord | None, float]:
        """Read the live record, and return it and until when it is fresh."""
        with self._notified("the live record"):
            return self._record(), self.now_s() + RECORD_S

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
                self._notify_once(str(series), str(error))
            raise
        self._notices.pop(str(series), None)
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
            self._notify_once("the models", f"{error} The models that were read before serve on.")
        else:
            self._notices.pop("the models", None)
        if self._snapshot is not before:
            self._notify_refused()
        with suppress(V8Error), self._notified("the clock"):
            self._update_clock()
        return None, self.now_s() + self._refresh_s

    def _update_clock(self) -> float:
        """Ask the source for the present and return it; `DataError` if it does not answer."""
        present_s = self._present()
        self._clock_offset_s = present_s - time.monotonic()
        return present_s

    def _notify_refused(self) -> None:
        for name, reason in self._snapshot.refused.items():
            self._notify_once(f"the model of {name}", f"{name} is not shown: {reason}")

    @contextmanager
    def _notified(self, subject: str) -> Iterator[None]:
        """Notify the operator of a `V8Error` about a subject, and note when it is over."""
        try:
            yield
        except V8Error as error:
            self._notify_once(subject, str(error))
            raise
        self._notices.pop(subject, None)

    def _notify_once(self, subject: str, text: str) -> None:
        """Notify the operator, once while the trouble lasts, also of trouble that several subjects share."""
        is_known = text in self._notices.copy().values()
        self._notices[subject] = text
        if not is_known:
            self._notify(text)
