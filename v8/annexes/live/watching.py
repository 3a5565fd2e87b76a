"""Watches a place: at each close it forecasts every series, and scores forecasts that have actual values.

An update does everything that is due and can be repeated at any time: what is in the ledger is not done
again, so a process that is killed and started again continues where it was. A close that was missed is
forecast later, for at most `CATCH_UP_S`; its forecast is late if the first of its bars has closed by then.
The first forecast of a series is that of the newest close.

The source's time, read again at every update, decides what has closed, and dates messages. An error is
reported once until it is over, also where what was got changes from close to close. Trouble with candles or
the place is tried again at the next update; a close whose candles are available but cannot be forecast is
left out. The other series continue.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from v8.annexes.live import Limit, ledger_words
from v8.annexes.live.entries import Entry
from v8.annexes.live.issuing import (
    FittedBaselines,
    fit_baselines,
    fitted_until_s,
    forecast_bars,
    make_entry,
    score,
    scoring_bars,
)
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.posting import (
    MessageReceiver,
    Outbox,
    Wishes,
    keep_sending,
    send_messages,
    trouble_key,
)
from v8.base.errors import ArtifactError, DataError, ProfileError, SeriesError, V8Error, listed
from v8.base.http_client import in_thread
from v8.base.process import command, quiet_start, set_exit_message, with_progress
from v8.base.storage import digest_bytes
from v8.base.terminal import print_lines, print_message
from v8.base.wording import plural
from v8.cli.shared import place_words, settle_process
from v8.data.market.candles import Candles
from v8.data.market.companions import Companions
from v8.data.market.series import Series, iso, series_advice
from v8.data.market.sources import CandleSource, PrefetchesCandles, present_of
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.shared_models import KERAS, SharedModels
from v8.profile.formulas import DAY_S
from v8.publish.hub.places import open_place

CATCH_UP_S: Final = 2 * DAY_S  # closes that were missed longer ago are not forecast any more, in seconds
MAX_PAUSE_S: Final = 20.0
"""Longest pause between two updates, in seconds: the exchange's clock may not run like this machine's."""
LATE_CANDLE_S: Final = 900  # after its close a candle is late, one of a shorter bar after a bar, in seconds
BATCH_BARS: Final = 1_000  # newest bars that all series are brought up to together: a page of the exchange
MIN_DELAY_S: Final = 2
MAX_JITTER_S: Final = 6  # a candle is requested 2 to 7 s after its close, by each place at its own second


def request_delay_s(place: str) -> int:
    """Return how long after a close a place requests the candle, in seconds; always the same for a place.

    >>> MIN_DELAY_S <= request_delay_s("./aligned") < MIN_DELAY_S + MAX_JITTER_S
    True
    """
    return MIN_DELAY_S + int(digest_bytes(place.encode())[:8], 16) % MAX_JITTER_S


class ServingModels:
    """The models that serve in a run folder, or in the newest commit of a repository; opened once each.

    Args:
        source: The run folder, or `user/name` on the Hub.
        names: Names of the series; all of the place when None.
        revision: As for `v8.publish.hub.places.open_place`.
        is_offline: Likewise.
        runtime: What computes, as for `SharedModels`.
    """

    def __init__(
        self,
        source: str | Path,
        names: Sequence[str] | None = None,
        *,
        revision: str | None = None,
        is_offline: bool = False,
        runtime: str = KERAS,
    ) -> None:
        self._open_place = partial(
            open_place, source, models=SharedModels(runtime), revision=revision, is_offline=is_offline
        )
        self._names = names
        self.refresh()

    def refresh(self) -> None:
        """Read again which series the place has, and which commit is the newest.

        Raises:
            ArtifactError: If a series has no finished model, or there is none at all.
        """
        place = self._open_place()
        available = place.series
        missing = [name for name in self._names or () if name not in available]
        rule = "must have a finished model of every series that is forecast"
        if missing:
            raise ArtifactError(
                where=place.name,
                rule=rule,
                got=f"none of {listed(missing)}",
                fix=series_advice(missing[0], available, "Train it first"),
            )
        if not available:
            raise ArtifactError(where=place.name, rule=rule, got="none of any series", fix="Train one first")
        self._place = place
        self.series = tuple(self._names or available)

    def forecaster(self, series: str) -> Forecaster:
        """Return the model that serves a series."""
        return self._place.serving(series)


@dataclass
class UpdateResult:
    """What an update did."""

    now_s: int  # when it was, by the source's time, seconds since the epoch, UTC
    num_issued: int = 0  # forecasts that were written
    num_late: int = 0  # late ones among them
    num_scored: int = 0  # forecasts that were scored
    failures: dict[str, V8Error] = field(default_factory=dict)  # by series, or "the place"


@dataclass
class _SeriesState:
    """State of a series between updates; it saves work, and all of it can be computed again."""

    left_out_s: int = 0  # newest close that could not be forecast although its candles are available
    checked_s: int = 0  # newest close at which all that was due was done
    scored_until_s: int = 0  # every forecast for an earlier close has its score
    fitted: FittedBaselines | None = None  # the newest baselines


@dataclass(eq=False)
class LedgerUpdater:
    """Writes the forecasts of a place, and their scores, into a ledger."""

    models: ServingModels
    open_source: Callable[[], CandleSource]  # opens the source of candles, which then reads its time
    ledger: Ledger  # open to be written
    place: str  # as the ledger names it
    notify: Callable[[str], object] = field(kw_only=True)  # gets the text of errors, one line each
    delay_s: int = field(default=0, kw_only=True)  # after a close, from which on its candle is requested
    wishes: Wishes | None = field(default=None, kw_only=True)  # what goes into the outbox; None: nothing
    _states: dict[Series, _SeriesState] = field(default_factory=lambda: defaultdict(_SeriesState), init=False)
    _open_errors: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict), init=False)
    """Texts of the errors about each subject that are not over, by trouble."""
    _is_repeated: bool = field(default=False, init=False)  # whether another update follows within seconds
    _clock_ahead_s: float = field(default=0.0, init=False)  # the source's time less this machine's

    def run_forever(self, report: Callable[[UpdateResult], object]) -> NoReturn:
        """Update at each close until the process ends, at least every `MAX_PAUSE_S` seconds.

        `report` gets the result of the first update, and of each that issued or scored a forecast.
        """
        self._is_repeated = True
        is_first = True
        while True:
            pause_s = MAX_PAUSE_S
            with self._errors_reported("this update"):
                result = self.update()
                if is_first or result.num_issued or result.num_scored:
                    report(result)
                is_first = False
                pause_s = min(MAX_PAUSE_S, self.next_close_s(result.now_s) - result.now_s)
            time.sleep(pause_s)

    def next_close_s(self, now_s: int) -> int:
        """Return when the next candle is requested, seconds since the epoch, after `now_s`."""
        next_closes_s = []
        for name in self.models.series:
            series = Series.parse(name)
            next_closes_s.append(self._newest_close_s(series, now_s) + series.bar_s)
        return min(next_closes_s) + self.delay_s

    def update(self) -> UpdateResult:
        """Do everything that is due.

        Raises:
            V8Error: If the source does not answer with its time.
        """
        self._fill_outbox()  # with what an interrupted process left; at first it only notes the position
        source = self.open_source()
        result = UpdateResult(present_of(source))
        self._clock_ahead_s = result.now_s - time.time()
        all_series = [Series.parse(name) for name in self.models.series]
        due = [series for series in all_series if self._due_closes(series, result.now_s)]
        if due:
            with self._errors_reported("the place", result):
                self.models.refresh()
            if isinstance(source, PrefetchesCandles):
                source.prefetch(due, BATCH_BARS)
        for name in with_progress(self.models.series, "Forecasting"):
            with self._errors_reported(name, result):
                self._update_series(Series.parse(name), source, result)
        self._fill_outbox()
        self.ledger.checkpoint()  # so that the file itself holds all between two closes, whoever copies it
        return result

    def _fill_outbox(self) -> None:
        """Put messages about new forecasts into the outbox, from which they are sent."""
        if self.wishes:
            with self._errors_reported("the outbox"), Outbox(self.ledger.path, self.place) as outbox:
                outbox.collect(self.ledger, self.models.forecaster, self.wishes)

    def _tell_outbox(self, write: Callable[..., None], *values: Any) -> None:
        """Call a method of the outbox, if there is one; errors of the outbox are reported by its filling."""
        if self.wishes:
            with suppress(V8Error), Outbox(self.ledger.path, self.place) as outbox:
                write(outbox, *values)

    def _update_series(self, series: Series, source: CandleSource, result: UpdateResult) -> None:
        """Issue and score all that is due of one series, from candles that are requested once."""
        closes_s = self._due_closes(series, result.now_s)
        state = self._states[series]
        newest_s = self._newest_close_s(series, result.now_s)
        if not closes_s and state.checked_s == newest_s:
            return
        forecaster = self.models.forecaster(str(series)) if closes_s else None
        unscored = self._unscored(series, result).values()
        first_opens_s = [entry.due_s - scoring_bars(entry) * series.bar_s for entry in unscored]
        if forecaster:
            first_opens_s.append(closes_s[0] - forecast_bars(forecaster) * series.bar_s)
        if first_opens_s:
            candles = source.candles(series, (newest_s - min(first_opens_s)) // series.bar_s)
            if forecaster:
                with self._errors_reported(str(series), result):
                    # Read again at each update: a table of covariates may have grown since the last close.
                    companions = Companions.of(forecaster.about.trained_profile)
                    joined = companions.joined(candles, source)
                    self._issue(closes_s, forecaster, joined, source, result)
                    if self._must_have_come(joined, newest_s, source):
                        companions.joined(candles, source, needs_newest=True)  # raises what covariates lack
                        self._report_missing(candles, source, result)
            self._score(series, candles, result)
        state.checked_s = newest_s

    def _unscored(self, series: Series, result: UpdateResult) -> dict[int, Entry]:
        """Return the forecasts without a score whose last bar has closed, by number."""
        pending = self.ledger.pending(self.place, str(series), self._states[series].scored_until_s)
        return {number: entry for number, entry in pending.items() if entry.due_s <= result.now_s}

    def _score(self, series: Series, candles: Candles, result: UpdateResult) -> None:
        for number, entry in self._unscored(series, result).items():
            entry_score = score(entry, candles, result.now_s)
            if entry_score and self.ledger.add_score(number, entry_score):
                result.num_scored += entry_score.losses is not None
        state = self._states[series]
        pending = self.ledger.pending(self.place, str(series), state.scored_until_s).values()
        state.scored_until_s = min((entry.issued_for_s for entry in pending), default=0)

    def _issue(
        self,
        closes_s: Sequence[int],
        forecaster: Forecaster,
        candles: Candles,
        source: CandleSource,
        result: UpdateResult,
    ) -> None:
        """Forecast closes, oldest first, up to the first whose candle is not available yet.

        Of several that cannot be forecast, the error of the newest is reported.
        """
        series = forecaster.series
        name = str(series)
        refused: V8Error | None = None
        for close_s in closes_s:
            if candles.open_time_s[-1] < close_s - series.bar_s:
                break
            baselines = self._baselines_or_candles(forecaster, close_s, source)
            try:
                entry = self._make_entry(forecaster, candles, baselines, close_s)
            except V8Error as error:
                self._states[series].left_out_s = close_s
                refused = error
                continue
            entry = replace(entry, written_s=present_of(source))
            self._tell_outbox(Outbox.keep_range, entry)
            if self.ledger.add(entry):
                result.num_issued += 1
                result.num_late += entry.is_late
                self._end_errors(name)
        if refused:
            result.failures[name] = refused
            self._report(name, refused)

    def _must_have_come(self, candles: Candles, newest_s: int, source: CandleSource) -> bool:
        """Return whether a candle up to the newest close is missing that is not waited for any more."""
        missing_s = _missing_close_s(candles)
        is_waited_for = self._is_repeated and not _is_late(missing_s, candles.series, present_of(source))
        return missing_s <= newest_s and not is_waited_for

    def _report_missing(self, candles: Candles, source: CandleSource, result: UpdateResult) -> None:
        """Report the first candle that has not come, and send a message if it is late."""
        name = str(candles.series)
        missing_s = _missing_close_s(candles)
        now_s = present_of(source)
        if _is_late(missing_s, candles.series, now_s):
            self._tell_outbox(Outbox.put_late, name, missing_s, now_s)
        error = DataError(
            where=name,
            rule="a close is forecast when its candle has come",
            got=f"none yet of the one that closed at {iso(missing_s)}",
            fix="A later update forecasts it if its candle comes within two days",
        )
        result.failures[name] = error
        self._notify_once(name, error)

    def _baselines_or_candles(
        self, forecaster: Forecaster, close_s: int, source: CandleSource
    ) -> FittedBaselines | Candles:
        """Return the fitted baselines of a close, or the candles that they are yet to be fitted to."""
        fitted = self._states[forecaster.series].fitted
        until_s = fitted_until_s(close_s)
        profile = forecaster.about.trained_profile
        if fitted and fitted.until_s == until_s and fitted.profile == profile:
            return fitted
        companions = Companions.of(profile)
        last_open_s = until_s - forecaster.series.bar_s
        return companions.candles(source, forecaster.series, profile.newest_bars, last_open_s)

    def _make_entry(
        self, forecaster: Forecaster, candles: Candles, baselines: FittedBaselines | Candles, close_s: int
    ) -> Entry:
        """Make the forecast of a close; its time of writing is yet to be replaced.

        Baselines that are given as candles are fitted to them first.
        """
        series = forecaster.series
        last_open_s = close_s - series.bar_s
        if last_open_s not in candles.open_time_s:
            raise DataError(
                where=str(series),
                rule="needs the candle of every close",
                got=f"later candles without the one that closed at {iso(close_s)}",
                fix="That close is left out",
            )
        if isinstance(baselines, Candles):
            profile = forecaster.about.trained_profile
            baselines = fit_baselines(profile, baselines, fitted_until_s(close_s))
            self._states[series].fitted = baselines
        newest = candles.newest(forecast_bars(forecaster), last_open_s)
        has_range = self.wishes is not None
        return make_entry(forecaster, baselines, newest, close_s, self.place, has_range=has_range)

    def _due_closes(self, series: Series, now_s: int) -> list[int]:
        """List the closes that are to be forecast, oldest first, seconds since the epoch."""
        newest_s = self._newest_close_s(series, now_s)
        newest_issued_s = self.ledger.newest(self.place, str(series)) or 0
        finished_s = max(newest_issued_s, self._states[series].left_out_s)
        first_s = finished_s + series.bar_s if finished_s else newest_s
        oldest_s = newest_s - CATCH_UP_S // series.bar_s * series.bar_s
        return list(range(max(first_s, oldest_s), newest_s + 1, series.bar_s))

    def _newest_close_s(self, series: Series, now_s: int) -> int:
        return series.last_closed_s(now_s - self.delay_s) + series.bar_s

    @contextmanager
    def _errors_reported(self, subject: str, result: UpdateResult | None = None) -> Iterator[None]:
        """Report a `V8Error` instead of raising it, and add it to the failures of a result."""
        try:
            yield
        except V8Error as error:
            self._report(subject, error)
            if result:
                result.failures[subject] = error
        else:
            if subject not in self.models.series:  # of which an error is over when it is forecast
                self._end_errors(subject)

    def _report(self, subject: str, error: V8Error) -> None:
        """Report an error once, and put a message about it into the outbox."""
        if self._notify_once(subject, error):
            at_s = int(time.time() + self._clock_ahead_s)
            self._tell_outbox(Outbox.put_refused, subject, error, at_s)

    def _notify_once(self, subject: str, error: V8Error) -> bool:
        """Print an error and return True, unless it is known from an update before or from another subject.

        An error that all series share, such as a missing table, is reported once.
        """
        text = str(error)
        trouble = trouble_key(error)
        is_known = trouble in self._open_errors[subject]
        is_known |= any(text in errors.values() for errors in self._open_errors.values())
        if not is_known:
            self.notify(text if text.startswith(subject) else f"{subject}: {error}")
        self._open_errors[subject][trouble] = text
        return not is_known

    def _end_errors(self, subject: str) -> None:
        """Note that all errors about a subject are over, so that the next one is reported."""
        self._open_errors.pop(subject, None)
        self._tell_outbox(Outbox.end_refusals, subject)


def _missing_close_s(candles: Candles) -> int:
    """Return when the first bar after the newest candle closes, seconds since the epoch, UTC."""
    return int(candles.open_time_s[-1]) + 2 * candles.series.bar_s


def _is_late(close_s: int, series: Series, now_s: int) -> bool:
    return now_s >= close_s + min(series.bar_s, LATE_CANDLE_S)


def forecast_into_ledger(
    place: Path | str,
    find_models: Callable[[], ServingModels],
    ledger_file: Path,
    open_candles: Callable[[], CandleSource],
    *,
    receiver: MessageReceiver | None,
    wishes: Wishes | None,
    is_for_ever: bool,
    continue_command: str,
) -> int:
    """Write the forecasts of a place's models into a ledger, print a summary, and return the exit code.

    Args:
        place: The place of the models.
        find_models: Opens the models.
        ledger_file: Path of the ledger.
        open_candles: Opens the source of candles.
        receiver: Gets messages about what happens; None without one.
        wishes: What it gets of the forecasts; None without one.
        is_for_ever: Whether to continue at every close until the process ends.
        continue_command: What the user is told to call after an interruption.
    """
    set_exit_message(f"interrupted: {ledger_file} is whole. Continue with: {continue_command}")
    settle_process()
    with quiet_start():
        models = find_models()  # first: no file is made if there are no models
    if wishes:
        require_forecast(wishes.limits, models.series)
    with Ledger.open_to_write(ledger_file) as ledger:
        ledger.require_intact()
        _open_models(models)
        ledger_place = ledger.place(place)
        places = ledger.places()
        if places and ledger_place not in places:
            print_message(
                f"{ledger_file} has forecasts of {listed(places)}, none of {ledger_place}: a second record "
                "begins. Paths are as seen from the ledger's folder; a run that was moved or renamed "
                "continues its record at its old path."
            )
        updater = LedgerUpdater(
            models,
            open_candles,
            ledger,
            ledger_place,
            notify=print_message,
            delay_s=request_delay_s(ledger_place) if is_for_ever else 0,
            wishes=wishes,
        )
        if receiver and is_for_ever:
            in_thread(partial(keep_sending, ledger_file, ledger_place, receiver, print_message))
        if is_for_ever:

            def report(result: UpdateResult) -> None:
                next_close = iso(updater.next_close_s(result.now_s))
                print_lines(f"{_summary(result)}; next at {next_close}")

            updater.run_forever(report)
        result = updater.update()
        track = command("track", *place_words(place), *ledger_words(ledger_file))
        print_lines(f"{_summary(result)}.", f"Ledger: {ledger_file}. Its record: {track}")
        if receiver:
            send_messages(ledger_file, ledger_place, receiver)
    if not result.failures:
        return 0
    if result.num_issued:
        return SeriesError.exit_code
    return next(iter(result.failures.values())).exit_code


def _open_models(models: ServingModels) -> None:
    """Open all models, and print what users should know of them."""
    lines: list[str] = []
    with quiet_start():  # opening them starts TensorFlow, which prints
        for name in with_progress(models.series, "Opening models"):
            with suppress(V8Error):  # the first update reports it
                lines += models.forecaster(name).origin_lines
    for line in lines:
        print_message(line)


def require_forecast(limits: Sequence[Limit], available: Sequence[str]) -> None:
    """Raise a `ProfileError` for a limit of a series that is not forecast: it would never be passed."""
    for limit in limits:
        if limit.series and limit.series not in available:
            raise ProfileError(
                where=f"param:alert {limit}",
                rule="is for all series, or for one that is forecast",
                got=f"{limit.series}, and forecasts of {listed(available)}",
                fix=series_advice(limit.series, available, "Name one of these, or none for all"),
            )


def _summary(result: UpdateResult) -> str:
    late = f" ({result.num_late} late)" if result.num_late else ""
    failed = f", {len(result.failures)} series failed" if result.failures else ""
    issued = plural(result.num_issued, "forecast")
    return f"{iso(result.now_s)}: {issued} issued{late}, {result.num_scored} scored{failed}"
