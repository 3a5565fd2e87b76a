"""Watching a place: at each close a forecast of every series, and a score where the actual values have come.

A wake does all that is due and can be repeated at any time: what stands in the ledger is not done again, so
a process that is killed and started anew goes on where it was. A close that was missed is caught up for at
most `CATCH_UP_S`, and is late when the first of its bars has closed by then. A series begins with the newest
close; nothing is made up for the time before.

What is closed is decided by the source's time, measured anew at every wake. What cannot be done is told, once
for each reason. Trouble with candles or the place is tried again at the next wake; a close whose candles are
there but cannot be forecast is left out. The other series go on.

Beside the model stand all baselines. What these know of the past is fitted to the newest candles that had
closed by the last midnight UTC: once a day and series, and the same whenever it is asked for, so that a
process that was killed writes the same numbers as one that was not. Fit and arithmetic are those of the
evaluation (`v8.baselines.baselines`).

Legend: H steps of the horizon, C columns of a task.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from v8.artifacts.forecaster import Forecaster
from v8.artifacts.shared_models import SharedModels
from v8.baselines.baselines import BASELINES, Forecast
from v8.errors import ArtifactError, DataError, SeriesError, V8Error, listed
from v8.evaluation.evaluation import MODEL
from v8.features.formulas import DAY_S
from v8.features.indicators import warmup_bars
from v8.features.table import compute_table
from v8.hub.opening import open_place
from v8.ledger.database import Ledger
from v8.ledger.entries import Entry, Issuer, actual_bars, quantile_forecaster, score
from v8.ledger.posting import Outbox
from v8.market.candles import Candles
from v8.market.companions import Companions
from v8.market.series import Series, iso, series_advice
from v8.market.sources.source import CandleSource, PrefetchesCandles, present_of
from v8.net import with_progress
from v8.profile import Profile
from v8.quantile_levels import outer, quantile_column
from v8.storage import digest_bytes
from v8.tasks import TASKS
from v8.windows.dataset import FEWEST_FITTED_WINDOWS, table_columns, whole_span
from v8.windows.scaling import fit_scaling
from v8.windows.span import Span

_BARS_BEFORE: Final = 500
"""Bars that baselines look back on: the longest range has 240, and an average forgets within 500."""
CATCH_UP_S: Final = 2 * DAY_S  # closes that were missed for longer stay missed
WAKE_S: Final = 20.0
"""Longest sleep between two wakes, in seconds: the exchange's time may move otherwise than this machine's."""
BROUGHT_BARS: Final = 1_000  # that all series are brought up to at once: a page of the exchange's
SETTLE_S: Final = 2
MOST_JITTER_S: Final = 6  # a candle is asked for 2 to 7 s after its close, each place at its own second


def fitted_until_s(issued_for_s: int) -> int:
    """Return until when the candles closed that the baselines of a forecast are fitted to.

    >>> fitted_until_s(86_400 + 3_600)
    86400
    """
    return issued_for_s // DAY_S * DAY_S


def known_bars(profile: Profile) -> int:
    """Return how many of the newest candles the baselines of a forecast look at."""
    return warmup_bars(table_columns(profile)) + profile.lookback_bars + _BARS_BEFORE


def wanted_bars(forecaster: Forecaster) -> int:
    """Return how many of the newest candles the forecast of a close is made from."""
    return max(forecaster.needed_bars, known_bars(forecaster.about.trained_profile))


@dataclass(frozen=True, eq=False)
class FittedBaselines:
    """Every baseline that is installed, fitted to one past."""

    profile: Profile  # gives tasks and horizon
    until_s: int  # when the newest candle of that past closed, or later; seconds since the epoch, UTC
    forecasts: Mapping[str, Forecast]  # each by its name

    def forecast(self, candles: Candles) -> dict[str, dict[str, NDArray[np.float64]]]:
        """Forecast the bars after the newest candle, per baseline and task, shape (H, C), in the task's unit.

        `known_bars` candles, or all there are, are enough. Baselines that leave a task out are left out.
        """
        profile = self.profile
        table = compute_table(candles, table_columns(profile))
        unbroken = np.count_nonzero(table.segment == table.segment[-1])
        if table.open_time_s[-1] != candles.open_time_s[-1] or unbroken < profile.lookback_bars:
            rule = f"baselines need {profile.lookback_bars} unbroken rows behind the indicators' warm-up"
            got = f"{unbroken} that end at {iso(table.open_time_s[-1])}"
            fix = "Wait until the hole in the candles is behind the window"
            raise DataError(where=str(candles.series), rule=rule, got=got, fix=fix)
        newest = Span(table, profile, np.array([len(table) - 1]))
        made = {name: forecast(newest) for name, forecast in self.forecasts.items()}
        return {
            name: {task: np.asarray(values[0]) for task, values in tasks.items()}
            for name, tasks in made.items()
            if set(tasks) >= set(profile.tasks)
        }


def fit_baselines(profile: Profile, candles: Candles, until_s: int) -> FittedBaselines:
    """Fit every baseline that is installed to candles of which none may close after `until_s`.

    Raises `DataError` if there are too few windows without a hole; `SeriesError` if the close never moves.
    """
    past = whole_span(candles, profile)
    if len(past) < FEWEST_FITTED_WINDOWS:
        windows = f"{FEWEST_FITTED_WINDOWS} windows that ended by {iso(until_s)}"
        rule = f"baselines are fitted to at least {windows}"
        fix = "Wait until there are more candles of this series"
        raise DataError(where=str(candles.series), rule=rule, got=str(len(past)), fix=fix)
    scaling = fit_scaling(past, (0, len(past.table)), table_columns(profile))
    installed = {name: one.fitted(past, scaling) for name, one in BASELINES.items() if one.is_installed()}
    return FittedBaselines(profile, until_s, installed)


def make_entry(
    forecaster: Forecaster, fitted: FittedBaselines, candles: Candles, written_s: int, place: str
) -> Entry:
    """Forecast the bars after the newest candle, by the model and every baseline.

    The model is given as many candles as it needs and no more, as `predict` does, so that the same candles
    give the same numbers whatever else is known. `wanted_bars` candles are enough; the newest closes when the
    forecast bars open.

    Raises `DataError` if too few candles are unbroken, or the model has seen what it should forecast.
    """
    known = candles.newest(forecaster.needed_bars)
    profile = fitted.profile
    issued_for_s = int(known.open_time_s[-1]) + forecaster.series.bar_s
    _require_fitting(forecaster, issued_for_s)
    frame = forecaster.predict(known)
    columns = {task: TASKS[task].columns for task in profile.tasks}
    made: dict[str, Mapping[str, NDArray[np.float64]]] = {
        MODEL: {task: frame[[*names]].to_numpy() for task, names in columns.items()},
        **fitted.forecast(candles.newest(known_bars(profile))),
    }
    for level in outer(forecaster.quantiles):  # as if each were a forecaster of its own
        made[quantile_forecaster(level)] = {
            task: frame[[quantile_column(name, level) for name in names]].to_numpy()
            for task, names in columns.items()
        }
    issuer = Issuer(
        place=place,
        series=str(forecaster.series),
        model_sha256=forecaster.about.model_sha256,
        revision=forecaster.revision,
        trained_until_s=forecaster.trained_until_s,
        profile=profile.name,
        profile_digest=profile.digest,
        source=candles.source,
        bar_s=forecaster.series.bar_s,
        horizon_bars=forecaster.horizon_bars,
        tasks=columns,
        forecasters=tuple(made),
    )
    values = issuer.joined({task: np.stack([one[task] for one in made.values()]) for task in columns})
    if not np.isfinite(values).all():
        strange = [name for name, row in zip(made, values, strict=True) if not np.isfinite(row).all()]
        rule = "forecasts are finite numbers of single precision"
        got = f"others from {listed(strange)} at {iso(issued_for_s)}"
        raise SeriesError(where=issuer.series, rule=rule, got=got, fix="That close is left out")
    return Entry(issuer, issued_for_s, written_s, known.digest, values)


def _require_fitting(forecaster: Forecaster, issued_for_s: int) -> None:
    """Refuse to speak about real prices with a model of simulated ones, and of what a model has seen."""
    where = str(forecaster.series)
    seen_s = forecaster.trained_until_s
    if forecaster.about.is_demo_market:
        rule = "a ledger is of models that were trained on real candles"
        raise DataError(where=where, rule=rule, got="one of the demo market", fix="Train it on real candles")
    if seen_s > issued_for_s:
        got = f"the close at {iso(issued_for_s)}, and a model that has seen candles until {iso(seen_s)}"
        rule = "a model forecasts what it has not seen"
        fix = "That close is left out"
        raise DataError(where=where, rule=rule, got=got, fix=fix)


def jitter_s(place: str) -> int:
    """Return how long after a close a place asks for the candle, in seconds; always the same.

    >>> SETTLE_S <= jitter_s("./aligned") < SETTLE_S + MOST_JITTER_S
    True
    """
    return SETTLE_S + int(digest_bytes(place.encode())[:8], 16) % MOST_JITTER_S


class ServingModels:
    """What serves now in a run folder, or in the newest commit of a repository; opened once each.

    Args:
        source: Where it is, and `given`: as for `v8.hub.opening.open_place`.
        wanted: Names of the series that are meant; all of the place when None.
    """

    def __init__(self, source: str | Path, wanted: Sequence[str] | None = None, **given: Any) -> None:
        self._open = partial(open_place, source, models=SharedModels(), **given)
        self._wanted = wanted
        self.look()

    def look(self) -> None:
        """Look at the place anew: which series it has, and which commit is the newest."""
        place = self._open()
        found = place.series
        missing = [name for name in self._wanted or () if name not in found]
        if missing or not found:
            rule = "must have a finished model of every series that is forecast"
            got = f"none of {listed(missing) if missing else 'any series'}"
            fix = series_advice(missing[0], found, "Train it first") if missing else "Train one first"
            raise ArtifactError(where=place.name, rule=rule, got=got, fix=fix)
        self._place, self.series = place, tuple(self._wanted or found)

    def forecaster(self, series: str) -> Forecaster:
        """Return the model that serves a series."""
        return self._place.serving(series)


@dataclass
class Wake:
    """What a wake did."""

    now_s: int  # when it was, by the source's time
    num_issued: int = 0  # forecasts that were written
    num_late: int = 0  # those among them that are late
    num_scored: int = 0  # forecasts that were scored
    failures: dict[str, V8Error] = field(default_factory=dict)  # per series why something was not done


@dataclass
class _Memory:
    """What is known of a series from earlier wakes; all of it can be found out anew."""

    left_out_s: int = 0  # newest close that could not be forecast although there are candles of it
    looked_s: int = 0  # newest close at which all that was ripe has met its candles, where these have come
    scored_until_s: int = 0  # every forecast for an earlier close has its score
    fitted: FittedBaselines | None = None  # the newest baselines


@dataclass(eq=False)
class Watch:
    """Forecasts a place into a ledger."""

    models: ServingModels
    open_source: Callable[[], CandleSource]  # opens the source of candles, which then measures its time
    ledger: Ledger  # open to be written
    place: str  # as the ledger names it
    tell: Callable[[str], object] = field(kw_only=True)  # told of trouble, one line each
    settle_s: int = field(default=0, kw_only=True)  # seconds after a close from which its candle is asked for
    is_posting: bool = field(default=False, kw_only=True)  # whether what happens goes into the outbox
    _memories: dict[Series, _Memory] = field(default_factory=lambda: defaultdict(_Memory), init=False)
    _told: dict[str, str] = field(default_factory=dict, init=False)

    def keep_going(self, report: Callable[[Wake], object]) -> NoReturn:
        """Wake at each close until the process ends, at least every `WAKE_S` seconds."""
        is_first = True
        while True:
            pause_s = WAKE_S
            with self._told_of("this wake"):
                woken = self.wake()
                if is_first or woken.num_issued or woken.num_scored:
                    report(woken)
                is_first = False
                pause_s = min(WAKE_S, self.next_close_s(woken.now_s) - woken.now_s)
            time.sleep(pause_s)

    def next_close_s(self, now_s: int) -> int:
        """Return when the next candle is asked for, seconds since the epoch, after `now_s`."""
        each = map(Series.parse, self.models.series)
        return min(self._newest_close_s(series, now_s) + series.bar_s for series in each) + self.settle_s

    def wake(self) -> Wake:
        """Do all that is due. Raises `V8Error` if the source does not tell the time."""
        self._collect()  # what a process that was killed left; at first, from where on there is news
        source = self.open_source()
        woken = Wake(present_of(source))
        due = [series for series in map(Series.parse, self.models.series) if self._due(series, woken.now_s)]
        if due:
            with self._told_of("the place", woken):
                self.models.look()
            if isinstance(source, PrefetchesCandles):
                source.prefetch(due, BROUGHT_BARS)
        for name in with_progress(self.models.series, "Forecasting"):
            with self._told_of(name, woken):
                self._serve(Series.parse(name), source, woken)
        self._collect()
        return woken

    def _collect(self) -> None:
        """Put what was written since the last time into the outbox, where it is sent."""
        if self.is_posting:
            with self._told_of("the outbox"), Outbox(self.ledger.path, self.place) as outbox:
                outbox.collect(self.ledger, self.models.forecaster)

    def _serve(self, series: Series, source: CandleSource, woken: Wake) -> None:
        """Issue and score all that is due of one series, from candles that are asked for once."""
        closes = self._due(series, woken.now_s)
        memory = self._memories[series]
        newest_s = self._newest_close_s(series, woken.now_s)
        if not closes and memory.looked_s == newest_s:
            return
        forecaster = self.models.forecaster(str(series)) if closes else None
        ripe = self._ripe(series, woken).values()
        begins_s = [entry.due_s - actual_bars(entry) * series.bar_s for entry in ripe]
        if forecaster:
            begins_s.append(closes[0] - wanted_bars(forecaster) * series.bar_s)
        if begins_s:
            candles = source.candles(series, (newest_s - min(begins_s)) // series.bar_s)
            if forecaster:
                with self._told_of(str(series), woken):
                    # Anew at each wake: a table may have grown since the last close.
                    companions = Companions.of(forecaster.about.trained_profile)
                    joined = companions.joined(candles, source)
                    self._issue(closes, forecaster, joined, source, woken)
                    companions.require_up_to_date(candles, joined)
            self._score(series, candles, woken)
        memory.looked_s = newest_s

    def _ripe(self, series: Series, woken: Wake) -> dict[int, Entry]:
        """Return the forecasts without a score whose last bar has closed."""
        pending = self.ledger.pending(self.place, str(series), self._memories[series].scored_until_s)
        return {number: entry for number, entry in pending.items() if entry.due_s <= woken.now_s}

    def _score(self, series: Series, candles: Candles, woken: Wake) -> None:
        for number, entry in self._ripe(series, woken).items():
            found = score(entry, candles, woken.now_s)
            if found and self.ledger.add_score(number, found):
                woken.num_scored += found.losses is not None
        memory = self._memories[series]
        waiting = self.ledger.pending(self.place, str(series), memory.scored_until_s).values()
        memory.scored_until_s = min((entry.issued_for_s for entry in waiting), default=0)

    def _issue(
        self,
        closes: Sequence[int],
        forecaster: Forecaster,
        candles: Candles,
        source: CandleSource,
        woken: Wake,
    ) -> None:
        """Forecast closes, oldest first, up to the first whose candle has not come."""
        series, memory, name = forecaster.series, self._memories[forecaster.series], str(forecaster.series)
        for close_s in closes:
            if candles.open_time_s[-1] < close_s - series.bar_s:
                return
            past = self._past(forecaster, close_s, source)
            try:
                entry = self._entry(forecaster, candles, past, close_s)
            except V8Error as error:
                memory.left_out_s = close_s
                woken.failures[name] = error
                self._say(name, error)
                continue
            written = replace(entry, written_s=present_of(source))
            if self.ledger.add(written):
                woken.num_issued += 1
                woken.num_late += written.is_late
                self._told.pop(name, None)

    def _past(self, forecaster: Forecaster, close_s: int, source: CandleSource) -> FittedBaselines | Candles:
        """Return the baselines of a close, or the candles that they are yet to be fitted to."""
        fitted = self._memories[forecaster.series].fitted
        until_s = fitted_until_s(close_s)
        profile = forecaster.about.trained_profile
        if fitted and (fitted.until_s, fitted.profile) == (until_s, profile):
            return fitted
        companions = Companions.of(profile)
        last_s = until_s - forecaster.series.bar_s
        return companions.candles(source, forecaster.series, profile.newest_bars, last_s)

    def _entry(
        self, forecaster: Forecaster, candles: Candles, past: FittedBaselines | Candles, close_s: int
    ) -> Entry:
        """Forecast a close, as if it were written at once."""
        last_s = close_s - forecaster.series.bar_s
        if last_s not in candles.open_time_s:
            rule = f"needs the candle that closed at {iso(close_s)}"
            got = "later candles without it"
            raise DataError(where=str(forecaster.series), rule=rule, got=got, fix="That close is left out")
        if isinstance(past, Candles):
            past = fit_baselines(forecaster.about.trained_profile, past, fitted_until_s(close_s))
            self._memories[forecaster.series].fitted = past
        known = candles.newest(wanted_bars(forecaster), last_s)
        return make_entry(forecaster, past, known, close_s, self.place)

    def _due(self, series: Series, now_s: int) -> list[int]:
        """List the closes that are to be forecast, oldest first, seconds since the epoch."""
        newest_s = self._newest_close_s(series, now_s)
        done_s = max(self.ledger.newest(self.place, str(series)) or 0, self._memories[series].left_out_s)
        first_s = done_s + series.bar_s if done_s else newest_s
        oldest_s = newest_s - CATCH_UP_S // series.bar_s * series.bar_s
        return [*range(max(first_s, oldest_s), newest_s + 1, series.bar_s)]

    def _newest_close_s(self, series: Series, now_s: int) -> int:
        return series.last_closed_s(now_s - self.settle_s) + series.bar_s

    @contextmanager
    def _told_of(self, what: str, woken: Wake | None = None) -> Iterator[None]:
        """Tell an error of ours instead of ending by it, and count it where a wake does."""
        try:
            yield
        except V8Error as error:
            self._say(what, error)
            if woken:
                woken.failures[what] = error

    def _say(self, what: str, error: V8Error) -> None:
        """Tell trouble that was not told of the same last, nor of another: a table lacks for all series."""
        if str(error) not in self._told.values():
            self.tell(str(error) if str(error).startswith(what) else f"{what}: {error}")
            if self.is_posting:  # what the outbox lacks is told by who collects
                with suppress(V8Error), Outbox(self.ledger.path, self.place) as outbox:
                    outbox.put("forecast.refused", int(time.time()), {"what": what, "error": str(error)})
        self._told[what] = str(error)
