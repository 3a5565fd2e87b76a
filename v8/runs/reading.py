"""Reads the candles of a run: those of every series, before any series is trained.

Each series, a finished one too, is checked against the candles that it is pinned to. A series whose candles
are other ones, or cannot be read, fails by itself; that those of a finished series cannot be read is only
noted.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from v8.base.errors import UnknownSeriesError
from v8.base.net import reporting_waiting_to
from v8.data.market.candles import Candles, pin_of
from v8.data.market.companions import Companions
from v8.data.market.series import Series, load_universe
from v8.data.market.sources.source import CandleSource, CutOffSource, with_nearest
from v8.runs.candle_findings import candle_findings
from v8.runs.events import (
    CandleFinding,
    NewerCandles,
    Note,
    SeriesOutcome,
    StageStarted,
    Waiting,
    run_isolated,
    with_error,
)
from v8.runs.observers import RunObserver
from v8.runs.plan import Plan
from v8.runs.run_folder import RunFolder

Result = TypeVar("Result")


@dataclass(frozen=True)
class CheckedSeries:
    """A series to be trained; its candles are those that the run is pinned to."""

    candles: Candles
    read_s: float  # how long reading them took


@dataclass
class CandleReading:
    """What came of reading the candles of a run."""

    ready: list[CheckedSeries] = field(default_factory=list)  # unfinished series
    failures: list[SeriesOutcome] = field(default_factory=list)
    newer_candles: list[NewerCandles] = field(default_factory=list)
    """Series whose source has candles after the pinned ones."""


class CandleReader:
    """Reads the candles of a plan.

    Args:
        observer: Gets what happens, but the outcome of a series that failed.
        recorder: Gets such an outcome, and records it.
    """

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        source: CandleSource,
        *,
        observer: RunObserver,
        recorder: RunObserver,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._source = source
        self._observer = observer
        self._recorder = recorder
        self._companions = Companions.of(plan.profile, folder=plan.tables)

    def read_all(self) -> CandleReading:
        """Read the candles of every series and pin the series to them; say what is to be known of them."""
        reading = CandleReading()
        for series, status in self._plan.series.items():
            self._read_into(reading, series, is_done=status == "done")
        if reading.ready:
            self._folder.save_record()  # before anything is made of the candles: the pins
        candles = [checked.candles for checked in reading.ready]
        has_own_end = isinstance(self._source, CutOffSource) or not self._source.is_publishable
        for finding in candle_findings(self._plan.profile, candles, time.time(), has_own_end=has_own_end):
            self._observer.on_event(CandleFinding(finding))
        return reading

    def _read_into(self, reading: CandleReading, series: Series, *, is_done: bool) -> None:
        candles, outcome = read_candles(series, self._observer, lambda: self._read(series))
        if candles is None and is_done:
            text = f"{series}: finished; its candles could not be read again: {outcome.reason}"
            self._observer.on_event(Note(text))
            return
        if candles is not None:
            read_s = outcome.seconds
            if candles.report.num_newer:
                reading.newer_candles.append(_newer_candles(candles))
            pin = pin_of(candles)
            _, outcome = run_isolated(series, lambda: self._folder.pin(series, pin))
            if outcome.reason is None and not is_done:
                reading.ready.append(CheckedSeries(candles, read_s))
        if outcome.reason is not None:
            reading.failures.append(self._announce_failure(outcome, is_done=is_done))

    def _read(self, series: Series) -> Candles:
        """Read the newest candles of a series, up to the newest one that it is pinned to."""
        pin = self._folder.state(series).candles
        end_s = pin.last_open_s if pin else None
        return self._companions.candles(self._source, series, self._plan.profile.newest_bars, end_s)

    def _announce_failure(self, outcome: SeriesOutcome, *, is_done: bool) -> SeriesOutcome:
        """Notify the observer, and record where it is to be recorded, how a series failed; return that."""
        series = outcome.series
        is_unknown = isinstance(outcome.error, UnknownSeriesError)
        if isinstance(outcome.error, UnknownSeriesError):
            recorded = [Series.parse(name) for name in self._folder.record.series]
            candidates = [*load_universe(), *recorded]
            error = with_nearest(outcome.error, series, self._source.name, candidates)
            outcome = with_error(outcome, error)
        if is_done:
            text = f"failed: {outcome.reason} The finished model stays as it is."
            self._observer.on_event(Note(text))
        elif is_unknown and str(series) not in self._folder.record.series:
            self._observer.on_event(outcome)  # a mistyped name must not stay in the record as a failure
        else:
            self._recorder.on_event(outcome)
        return outcome


def read_candles(
    series: Series, observer: RunObserver, read: Callable[[], Result]
) -> tuple[Result | None, SeriesOutcome]:
    """Read the candles of one series as its first stage; waiting for a server is an event, too.

    Returns what `read` does, or None, and how it ended.
    """
    observer.on_event(StageStarted(series, "candles"))
    with reporting_waiting_to(lambda text: observer.on_event(Waiting(series, text))):
        return run_isolated(series, read)


def _newer_candles(candles: Candles) -> NewerCandles:
    first_s = int(candles.open_time_s[-1]) + candles.series.bar_s
    return NewerCandles(candles.series, candles.report.num_newer, first_s)
