"""Reads the candles of a run: those of every series, before any series is trained.

Each series, a finished one too, is checked against the candles that it is pinned to. A series whose candles
are other ones, or cannot be read, fails by itself; that those of a finished series cannot be read is only
noted. So is what is to be known of the candles: holes, leaps of prices, old candles (`candle_findings`); each
finding is one sentence, however many series share it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from v8.base.errors import UnknownSeriesError, listed
from v8.base.process import reporting_waiting_to
from v8.base.wording import percent
from v8.data.features import MANY_HOLES
from v8.data.market.candles import CandleReport, Candles, pin_of, times
from v8.data.market.companions import Companions
from v8.data.market.series import Series, iso, load_universe
from v8.data.market.sources import CandleSource, CutOffSource, with_nearest
from v8.data.windows import WindowCounts, count_kept
from v8.profile.formulas import DAY_S
from v8.profile.profile import Profile, audiences, load_profile
from v8.runs.events import (
    CandleFinding,
    NewerCandles,
    Note,
    RunObserver,
    SeriesOutcome,
    StageStarted,
    Waiting,
    run_isolated,
)
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

    to_train: list[CheckedSeries] = field(default_factory=list)  # the series that are not finished
    failures: list[SeriesOutcome] = field(default_factory=list)
    newer_candles: list[NewerCandles] = field(default_factory=list)
    """Series whose source has candles after the pinned ones."""


class CandleReader:
    """Reads the candles of a plan; the observer gets what happens, and the outcomes of series that failed."""

    def __init__(self, plan: Plan, folder: RunFolder, source: CandleSource, observer: RunObserver) -> None:
        self._plan = plan
        self._folder = folder
        self._source = source
        self._observer = observer
        self._companions = Companions.of(plan.profile, folder=plan.tables)

    def read_all(self) -> CandleReading:
        """Read the candles of every series and pin the series to them; say what is to be known of them."""
        reading = CandleReading()
        for series, status in self._plan.series.items():
            self._read_into(reading, series, is_done=status == "done")
        if reading.to_train:
            self._folder.save_record()  # before anything is made of the candles: the pins
        candles = [checked.candles for checked in reading.to_train]
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
                first_s = int(candles.open_time_s[-1]) + series.bar_s
                newer = NewerCandles(series, candles.report.num_newer, first_s)
                reading.newer_candles.append(newer)
            pin = pin_of(candles)
            _, outcome = run_isolated(series, lambda: self._folder.pin(series, pin))
            if outcome.reason is None and not is_done:
                reading.to_train.append(CheckedSeries(candles, read_s))
        if outcome.reason is not None:
            reading.failures.append(self._announce_failure(outcome, is_done=is_done))

    def _read(self, series: Series) -> Candles:
        """Read the newest candles of a series, up to the newest one that it is pinned to."""
        pin = self._folder.state(series).candles
        end_s = pin.last_open_s if pin else None
        return self._companions.candles(self._source, series, self._plan.profile.newest_bars, end_s)

    def _announce_failure(self, outcome: SeriesOutcome, *, is_done: bool) -> SeriesOutcome:
        """Notify the observer how a series failed, with the name that may have been meant; return that."""
        if isinstance(outcome.error, UnknownSeriesError):
            recorded = [Series.parse(name) for name in self._folder.record.series]
            candidates = [*load_universe(), *recorded]
            error = with_nearest(outcome.error, outcome.series, self._source.name, candidates)
            outcome = replace(outcome, reason=str(error), error=error)
        if is_done:
            text = f"failed: {outcome.reason} The finished model stays as it is."
            self._observer.on_event(Note(text))
        else:
            self._observer.on_event(outcome)
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


LATE_S: Final = 7 * DAY_S  # a series whose candles end so long before those of others is no longer traded
OLD_S: Final = 30 * DAY_S  # no archive of months or days is so far behind
_FEW_BARS: Final = 2  # bars of a timeframe of weeks are longer than these


def candle_findings(
    profile: Profile, candles: Sequence[Candles], now_s: float, *, has_own_end: bool = False
) -> Iterator[str]:
    """Yield a sentence for each kind of finding.

    Args:
        profile: What is to be trained.
        candles: Those of every series to be trained.
        now_s: The current time, seconds since the epoch.
        has_own_end: Whether candles end at a time of their own: the demo market's, a fold's of a back-test.
    """
    yield from hole_findings(profile, candles)
    yield from leap_findings(candles)
    if not has_own_end:
        yield from age_findings(candles, now_s)


def hole_findings(profile: Profile, candles: Sequence[Candles]) -> Iterator[str]:
    """Yield which series keep less than half of the windows of a span, and what keeps more."""
    few: dict[Series, WindowCounts] = {}
    for of_series in candles:
        counts = count_kept(of_series.segment, profile)
        if counts is not None and counts.are_few:
            few[of_series.series] = counts
    if not few:
        return
    broken = [of_series for of_series in candles if of_series.series in few]
    has_many_holes = any(of_series.report.num_gaps >= MANY_HOLES for of_series in broken)
    longer = "" if has_many_holes else "take a longer history, "
    better = _better_profile(profile, broken)
    mend = f"Repair the candles, {longer}or train a profile with a shorter warm-up{better}."
    if len(few) == 1:
        series, counts = next(iter(few.items()))
        yield f"{series}: holes, and the warm-up after each, leave profile {profile.name} {counts}. {mend}"
    else:
        fewest_first = sorted(few.items(), key=lambda item: item[1].share)
        shares = listed([f"{series} {percent(counts.share, 0)}" for series, counts in fewest_first])
        yield (
            f"Holes, and the warm-up after each, leave profile {profile.name} less than half of the windows "
            f"of {len(few)} series: {shares}. {mend}"
        )


def _better_profile(profile: Profile, candles: Sequence[Candles]) -> str:
    """Name the shipped profile that keeps most windows of the worst series, if it keeps more."""
    shares = {profile.name: _smallest_share(profile, candles)}
    for name in audiences():
        if name not in shares:
            shares[name] = _smallest_share(load_profile(name), candles)
    best = max(shares, key=lambda name: shares[name])
    if best == profile.name or shares[best] == 0:
        return ""
    return f"; {best} keeps {percent(shares[best], 0)}{' or more' if len(candles) > 1 else ''}"


def _smallest_share(profile: Profile, candles: Sequence[Candles]) -> float:
    all_counts = [count_kept(of_series.segment, profile) for of_series in candles]
    return min(0.0 if counts is None else counts.share for counts in all_counts)


def leap_findings(candles: Sequence[Candles]) -> Iterator[str]:
    """Yield whose price leaps, and which symbols were listed again."""
    leaping = {}
    relistings = []
    for of_series in candles:
        report = of_series.report
        if report.largest_leap:
            leaping[of_series.series] = report
        if report.relisted_at and report.relisted_factor:
            price = f"{times(report.relisted_factor)} the price before"
            relistings.append(f"{of_series.series} at {report.relisted_at}, at {price}")
    if leaping:
        leaps = []
        for series, report in leaping.items():
            others = f" ({report.num_leaps} leaps in all)" if report.num_leaps > 1 else ""
            leaps.append(f"{series} to {report.largest_leap}{others}")
        yield (
            f"A price leaps: {listed(leaps)}. Another unit, a split, another coin, or an error? "
            f"{_mend_leaps([*leaping.values()])}."
        )
    if relistings:
        named = listed(relistings)
        yield f"Listed again, and trained on the candles since then, because it is another coin: {named}."


def _mend_leaps(reports: Sequence[CandleReport]) -> str:
    leap = reports[0].largest_leap
    if len(reports) == 1 and reports[0].num_leaps == 1 and leap is not None:
        newest = f"the newest {leap.num_candles_since:,} candles"
        return f"Correct the prices, or train on {newest}, those since then, only"
    return "Correct the prices, or train on the candles since then only"


@dataclass(frozen=True)
class _End:
    """When the newest candle of a series that is at the end of its source closed."""

    series: Series
    closed_s: int  # seconds since the epoch, UTC

    @property
    def day(self) -> str:
        """On which it opened, as tables of candles name it."""
        return iso(self.closed_s - self.series.bar_s)[: len("2024-09-05")]

    def is_before(self, moment_s: float, least_s: float) -> bool:
        """Whether it lies so long before a moment; bars of weeks may be unclosed for longer."""
        return moment_s - self.closed_s > max(least_s, _FEW_BARS * self.series.bar_s)


def age_findings(candles: Sequence[Candles], now_s: float) -> Iterator[str]:
    """Yield which series end long before the others, and whether all of them are old.

    Candles that a run is pinned to, and that have newer ones in their source, say nothing about a coin.
    """
    ends = []
    for of_series in candles:
        if of_series.report.num_newer == 0:
            closed_s = int(of_series.open_time_s[-1]) + of_series.series.bar_s
            ends.append(_End(of_series.series, closed_s))
    if not ends:
        return
    newest = max(ends, key=lambda end: end.closed_s)
    late = [end for end in ends if end.is_before(newest.closed_s, LATE_S)]
    if late:
        late.sort(key=lambda end: end.closed_s)
        named = listed([f"{end.series} on {end.day}" for end in late])
        yield (
            f"{_number_of(late)} long before the others, which end on {newest.day}: {named}. Renamed or "
            "delisted?"
        )
    if newest.is_before(now_s, OLD_S):
        current = [end for end in ends if end not in late]
        days = int((now_s - newest.closed_s) // DAY_S)
        subject = f"{newest.series} is" if len(current) == 1 else f"{len(current)} series is"
        yield (
            f"The newest candle of {subject} of {newest.day}, {days:,} days ago: renamed or delisted, or is "
            "the source out of date? A forecast needs candles up to now."
        )


def _number_of(ends: Sequence[_End]) -> str:
    return "1 series ends" if len(ends) == 1 else f"{len(ends)} series end"
