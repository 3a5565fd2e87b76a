"""The live record: the errors of the forecasts that were issued before their actual values were known.

It is computed from the ledger whenever it is requested and is stored in no file, so nothing can tune it. Late
forecasts, written when the first of their bars had closed, are counted, but are part of no error.

Every task is compared with the naive forecast and with the best baseline: the one that the verdicts on the
models name (`stored_references`), so that the live forecasts do not choose it. Where none is
stored, or it was not forecast, the one with the lowest error over all series that are shown together is
taken instead, and the record says so (`LiveTask.is_best_of_run`). Differences are tested as in the
evaluation:

* Forecasts of one series overlap; the lag counts bars, so closes that were missed separate forecasts as they
  should.
* Over several series, the losses of each are divided by naive's mean loss of the series and added up close by
  close: coins that rise and fall on the same day are one observation of it. The horizon is the longest one.
* The p-values of several series are corrected together (Benjamini and Hochberg).
* Hours of the day and weekends differ, so fewer than `MIN_DAYS` days are not tested.

A run stores its verdicts in the metadata of each model. The models are in the run's folder, or in a commit of
a repository that was pulled to this machine: nothing is requested from the Hub, because a record is computed
often, and also without a network.

Coverage is how often the actual values lay in the central intervals, which a loss does not show. The
forecasts in the ledger are packed and each has to be unpacked, so only the newest ones of a series are used
(`MOST_FORECASTS`).

Legend: N closes, K forecasters.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import mean
from typing import Any, Final

import numpy as np
import pandas as pd

from v8.annexes.live import ledger_words
from v8.annexes.live.entries import (
    Coverage,
    DailyCoverage,
    ForecastCounts,
    Issuer,
    IssuerCoverages,
    ScoredForecasts,
    level_of,
    measure_daily,
    merge_coverages,
    merge_daily,
    place_of,
)
from v8.annexes.live.ledger import Ledger
from v8.base.errors import ArtifactError, V8Error, listed
from v8.base.process import command
from v8.base.wording import capitalized, say
from v8.cli.shared import place_words
from v8.data.market.series import Series, iso, series_advice
from v8.forecaster.metadata import METADATA_FILE, read_metadata
from v8.model.baselines.baselines import NAIVE, reference_baseline
from v8.model.evaluation.board import Comparison, SharedLosses, Target, comparison_rows
from v8.model.evaluation.evaluation import MODEL
from v8.model.evaluation.leaderboard import Verdict, references, with_corrected
from v8.model.evaluation.significance import BaselineComparison, Losses, best_of, is_equal
from v8.profile.formulas import DAY_S
from v8.profile.tasks import TASKS

MOST_FORECASTS: Final = 1_000  # newest scored forecasts of a series: ten days of 15m bars, six weeks of hours
MIN_DAYS: Final = 7  # days (UTC) with scored forecasts from which on a difference is tested


@dataclass(frozen=True, kw_only=True)
class LiveTask(Verdict):
    """Errors on one task of one series, of one generation of it, or of all series together.

    Errors are in returns; those of several series are multiples of naive's error of each series.
    """

    num_scored: int  # forecasts issued in time that have a score
    num_days: int  # days, UTC, on which they were issued
    errors: Mapping[str, float]  # mean absolute error of `MODEL` and keys of `BASELINES`
    is_best_of_run: bool  # whether the verdicts of a run name the best baseline, or this record chose it
    crps: float | None = None  # of the model's quantiles, in the unit of the errors; None without quantiles
    coverage: Coverage | None = None  # of the newest forecasts' intervals; None without quantiles
    daily_coverage: DailyCoverage = field(default_factory=dict)  # the same by day; empty without quantiles

    @property
    def relative_crps(self) -> float | None:
        """The CRPS relative to naive's, which is its mean absolute error; None without quantiles."""
        if self.crps is None or self.errors[NAIVE] <= 0:
            return None
        return self.crps / self.errors[NAIVE]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        content: dict[str, Any] = {
            "num_scored": self.num_scored,
            "num_days": self.num_days,
            "errors": dict(self.errors),
        }
        if self.crps is not None:
            content["crps"] = self.crps
            content["relative_crps"] = self.relative_crps
        if self.coverage is not None:
            content["coverage"] = self.coverage.shares
            content["coverage_by_day"] = {
                iso(day_s)[:10]: coverage.shares for day_s, coverage in self.daily_coverage.items()
            }
        content["naive"] = self.naive.to_json()
        content["best"] = self.best.to_json()
        content["is_best_of_run"] = self.is_best_of_run
        return content


def _tasks_to_json(tasks: Mapping[str, LiveTask]) -> dict[str, Any]:
    return {task: live_task.to_json() for task, live_task in tasks.items()}


def _iso_or_none(time_s: int | None) -> str | None:
    return None if time_s is None else iso(time_s)


@dataclass(frozen=True)
class LiveGeneration:
    """The errors of one model of a series."""

    issuer: Issuer  # the model
    first_s: int | None  # close of its first forecast in the errors, epoch seconds; None without any
    last_s: int | None  # likewise of its last
    tasks: Mapping[str, LiveTask]  # per task; empty before there is a score

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            **self.issuer.to_json(),
            "first": _iso_or_none(self.first_s),
            "last": _iso_or_none(self.last_s),
            "tasks": _tasks_to_json(self.tasks),
        }


@dataclass(frozen=True)
class LiveSeries:
    """The errors of the forecasts of one series."""

    series: str  # its name
    counts: ForecastCounts  # how many were issued, late, scored, void and pending
    newest_s: int | None  # close of the newest forecast, seconds since the epoch; None without any
    tasks: Mapping[str, LiveTask]  # per task, over all generations; empty before there is a score
    generations: tuple[LiveGeneration, ...]  # each model, oldest first

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "series": self.series,
            **self.counts.to_json(),
            "newest": _iso_or_none(self.newest_s),
            "tasks": _tasks_to_json(self.tasks),
            "generations": [generation.to_json() for generation in self.generations],
        }


@dataclass(frozen=True)
class LiveRecord:
    """The live record of a place."""

    place: str  # as the ledger names it
    series: tuple[LiveSeries, ...]  # in order
    tasks: Mapping[str, LiveTask]  # per task over all series; empty before there is a score

    @property
    def with_own_baseline(self) -> list[str]:
        """Names of the series of which this record, and not a run, chose a best baseline."""
        return [
            series.series
            for series in self.series
            if not all(live.is_best_of_run for live in series.tasks.values())
        ]

    @property
    def counts(self) -> ForecastCounts:
        """How many forecasts of all series were issued, late, scored and void."""
        return sum((series.counts for series in self.series), ForecastCounts())

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "place": self.place,
            **self.counts.to_json(),
            "tasks": _tasks_to_json(self.tasks),
            "series": [series.to_json() for series in self.series],
        }


@dataclass(frozen=True)
class _BestBaseline:
    """The best baseline of a task, and who chose it."""

    name: str
    is_of_run: bool  # whether the verdicts of a run name it, or the record chose it


@dataclass(frozen=True, eq=False)
class _TaskLosses:
    """Losses on one task of a series, or of several series as multiples of naive's mean loss of each."""

    task: str
    losses: pd.DataFrame  # mean at each close, seconds, ascending, shape (N, K), by forecaster
    num_scored: int  # forecasts behind the losses
    bar_s: int  # seconds of the shortest bar
    horizon_bars: int  # such bars in the longest horizon
    daily_coverage: DailyCoverage  # of the model's intervals, if it has some

    @cached_property
    def means(self) -> dict[str, float]:
        """Mean loss of each forecaster."""
        return {str(name): float(losses.to_numpy().mean()) for name, losses in self.losses.items()}

    @property
    def point_means(self) -> dict[str, float]:
        """Mean loss of the point forecasters: of the model and of baselines, not of quantiles."""
        return {name: loss for name, loss in self.means.items() if level_of(name) is None}

    def compare(self, best: _BestBaseline) -> LiveTask:
        """Compare the model with naive and with a baseline, or with naive twice if that has no losses."""
        point_means = self.point_means
        # The CRPS is the mean over the levels of twice the pinball loss, which at the median is the error.
        quantile_means = [loss for name, loss in self.means.items() if name not in point_means]
        return LiveTask(
            num_scored=self.num_scored,
            num_days=self._num_days,
            errors=point_means,
            crps=mean([self.means[MODEL], *quantile_means]) if quantile_means else None,
            coverage=merge_coverages(self.daily_coverage.values()) if quantile_means else None,
            daily_coverage=self.daily_coverage if quantile_means else {},
            naive=self._against(NAIVE),
            best=self._against(best.name if best.name in point_means else NAIVE),
            is_best_of_run=best.is_of_run and best.name in point_means,
        )

    @property
    def _num_days(self) -> int:
        return len(np.unique(self.losses.index.to_numpy() // DAY_S))

    def _against(self, baseline: str) -> BaselineComparison:
        model_mean = self.means[MODEL]
        baseline_mean = self.means[baseline]
        p_value = None
        if not is_equal(model_mean, baseline_mean) and self._num_days >= MIN_DAYS:
            by_forecaster = {name: self.losses[name].to_numpy() for name in self.means}
            bar_numbers = self.losses.index.to_numpy() // self.bar_s
            losses = Losses({self.task: by_forecaster}, bar_numbers, self.horizon_bars)
            p_value = losses.test(self.task, MODEL, baseline).p_value
        return BaselineComparison(baseline, model_mean, baseline_mean, p_value, p_value)


def live_record(ledger: Ledger, place: Path | str, series: Sequence[str] | None = None) -> LiveRecord:
    """Compute the live record of a place.

    Args:
        ledger: The ledger, open.
        place: A run's folder, `user/name` on the Hub, or the ledger's name of the place.
        series: Names of the series; all that have forecasts when None.
    """
    names = ledger.series(place) if series is None else series
    scored: dict[str, list[ScoredForecasts]] = {}
    coverages: dict[str, IssuerCoverages] = {}
    for name in names:
        scored[name] = [forecasts.in_time() for forecasts in ledger.scored(place, name)]
        coverages[name] = [
            (actual_values.issuer, measure_daily(actual_values))
            for actual_values in ledger.newest_actual_values(place, name, MOST_FORECASTS)
        ]
    stored = stored_references(place, {name: _newest_commit(scored[name]) for name in names})
    best: dict[str, dict[str, _BestBaseline]] = {name: {} for name in names}
    task_totals: dict[str, LiveTask] = {}
    series_tasks: dict[str, dict[str, LiveTask]] = {name: {} for name in names}
    for task in TASKS:
        losses_by_series = _losses_by_series(scored, coverages, task)
        if not losses_by_series:
            continue
        of_record = _BestBaseline(_best_baseline(losses_by_series.values()), is_of_run=False)
        for name, losses in losses_by_series.items():
            best_of_run = stored[name].get(task, "")
            is_forecast = best_of_run in losses.point_means
            best[name][task] = _BestBaseline(best_of_run, is_of_run=True) if is_forecast else of_record
        compared = [losses.compare(best[name][task]) for name, losses in losses_by_series.items()]
        for name, live_task in zip(losses_by_series, with_corrected(compared), strict=True):
            series_tasks[name][task] = live_task
        # The timeframes of a run may have different ones: over all series the most frequent one counts.
        ((most_frequent, _),) = Counter(best[name][task] for name in losses_by_series).most_common(1)
        task_totals[task] = _pool_series(list(losses_by_series.values())).compare(most_frequent)
    live_series = []
    for name in names:
        generations = [_generation(forecasts, best[name], coverages[name]) for forecasts in scored[name]]
        live_series.append(
            LiveSeries(
                series=name,
                counts=ledger.count_forecasts(place, name),
                newest_s=ledger.newest(place, name),
                tasks=series_tasks[name],
                generations=tuple(generations),
            )
        )
    return LiveRecord(ledger.place(place), tuple(live_series), task_totals)


def live_board(ledger: Ledger, place: Path | str) -> pd.DataFrame:
    """Return the table of a board (`v8.Board.table`) of the scored forecasts of a place; empty without any.

    A task is left out where the series of a timeframe have no forecaster in common.
    """
    names = ledger.series(place)
    scored = {name: [forecasts.in_time() for forecasts in ledger.scored(place, name)] for name in names}
    coverages: dict[str, IssuerCoverages] = dict.fromkeys(names, ())
    comparisons = []
    for task in TASKS:
        by_series = _losses_by_series(scored, coverages, task)
        if not by_series:
            continue
        points = [set(losses.point_means) for losses in by_series.values()]
        methods = [
            name for name in next(iter(by_series.values())).losses if name in set.intersection(*points)
        ]
        best = reference_baseline(task)
        shared = []
        for name, losses in by_series.items():
            by_method = {method: losses.losses[method].to_numpy() for method in methods}
            shared.append(SharedLosses(Series.parse(name), losses.losses.index.to_numpy(), by_method))
        num_steps = max(losses.horizon_bars for losses in by_series.values())
        target = Target(task, task, TASKS[task].columns)
        comparisons.append(Comparison(target, best if best in methods else NAIVE, num_steps, shared))
    return comparison_rows(comparisons) if comparisons else pd.DataFrame()


def _newest_commit(by_issuer: Sequence[ScoredForecasts]) -> str | None:
    """Return the commit on the Hub of the model with the newest forecast; None if it has none."""
    with_forecasts = [forecasts for forecasts in by_issuer if len(forecasts.issued_for_s)]
    if not with_forecasts:
        return None
    return max(with_forecasts, key=lambda forecasts: int(forecasts.issued_for_s[-1])).issuer.revision


def _best_baseline(task_losses: Iterable[_TaskLosses]) -> str:
    """Choose the best baseline over all series."""
    means = []
    for losses in task_losses:
        means.append({name: loss for name, loss in losses.point_means.items() if name != MODEL})
    return best_of(means)


def _losses_by_series(
    scored: Mapping[str, Sequence[ScoredForecasts]], coverages: Mapping[str, IssuerCoverages], task: str
) -> dict[str, _TaskLosses]:
    """Return the losses on a task for every series that has any."""
    by_series = {}
    for name, by_issuer in scored.items():
        with_task = [
            forecasts
            for forecasts in by_issuer
            if task in forecasts.issuer.tasks and len(forecasts.issued_for_s)
        ]
        if with_task:
            by_series[name] = _join_issuers(with_task, task, coverages[name])
    return by_series


def _join_issuers(by_issuer: Sequence[ScoredForecasts], task: str, coverages: IssuerCoverages) -> _TaskLosses:
    """Join the losses of one series' issuers, for the forecasters that all of them have."""
    issuers = [forecasts.issuer for forecasts in by_issuer]
    tables = []
    for forecasts in by_issuer:
        columns = {name: forecasts.losses_of(task, name) for name in forecasts.issuer.forecasters}
        tables.append(pd.DataFrame(columns, forecasts.issued_for_s))
    losses = pd.concat(tables, join="inner").sort_index(kind="stable")
    daily_coverages = [by_task.get(task, {}) for issuer, by_task in coverages if issuer in issuers]
    return _TaskLosses(
        task=task,
        losses=losses,
        num_scored=len(losses),
        bar_s=issuers[0].bar_s,
        horizon_bars=max(issuer.horizon_bars for issuer in issuers),
        daily_coverage=merge_daily(daily_coverages),
    )


def _pool_series(by_series: Sequence[_TaskLosses]) -> _TaskLosses:
    """Add up several series' losses close by close, each as a multiple of naive's mean loss of the series.

    A series whose naive loss is 0, because the market stood still, counts as 0.
    """
    if len(by_series) == 1:
        return by_series[0]
    bar_s = min(losses.bar_s for losses in by_series)
    horizon_s = max(losses.horizon_bars * losses.bar_s for losses in by_series)
    tables = []
    for series_losses in by_series:
        naive_mean = series_losses.means[NAIVE]
        relative = series_losses.losses * (1 / naive_mean if naive_mean > 0 else 0.0)
        tables.append(relative.set_axis(relative.index // bar_s * bar_s))
    all_losses = pd.concat(tables, join="inner")
    sums = all_losses.groupby(level=0).sum()
    return _TaskLosses(
        task=by_series[0].task,
        # Scaled so that the mean over the closes is the mean over all forecasts.
        losses=sums * (len(sums) / len(all_losses)),
        num_scored=len(all_losses),
        bar_s=bar_s,
        horizon_bars=horizon_s // bar_s,
        daily_coverage=merge_daily(losses.daily_coverage for losses in by_series),
    )


def _generation(
    forecasts: ScoredForecasts, best: Mapping[str, _BestBaseline], coverages: IssuerCoverages
) -> LiveGeneration:
    issuer = forecasts.issuer
    times_s = forecasts.issued_for_s
    if not len(times_s):
        return LiveGeneration(issuer, first_s=None, last_s=None, tasks={})
    tasks = {}
    for task in TASKS:
        if task in issuer.tasks:
            tasks[task] = _join_issuers([forecasts], task, coverages).compare(best[task])
    return LiveGeneration(issuer, first_s=int(times_s[0]), last_s=int(times_s[-1]), tasks=tasks)


def own_baseline_sentence() -> str:
    """Say that a record chose a best baseline itself, in the language of the page."""
    return say(
        "The best baseline is the one with the lowest error in this record: no verdict of the run "
        "was found, or it names a baseline that was not forecast."
    )


def live_losses(
    ledger: Ledger | None, place: Path | str, series: Series, model_sha256: str, start_s: int
) -> Losses | None:
    """Return the losses of the forecasts that one model issued in time; None if it issued none.

    Args:
        ledger: Holds the live record; None without one.
        place: Where the models are, see `v8.annexes.live.entries.place_name`.
        series: The series.
        model_sha256: Digest of the model file.
        start_s: Only forecasts issued for closes from then on, seconds since the epoch, UTC.
    """
    scored_by_issuer = ledger.scored(place, str(series)) if ledger else []
    of_model = [scored for scored in scored_by_issuer if scored.issuer.model_sha256 == model_sha256]
    if not of_model:
        return None
    # Issuers may share a model file, for example with and without a commit of the Hub: the largest counts.
    scored = max(of_model, key=lambda scored: len(scored.issued_for_s)).in_time(start_s)
    issuer = scored.issuer
    by_task = {}
    for task in issuer.tasks:
        by_task[task] = {name: scored.losses_of(task, name) for name in issuer.forecasters}
    # The newest bar that a forecast knows closed at the time that the forecast was issued for.
    bar_numbers = scored.issued_for_s // issuer.bar_s - 1
    return Losses(by_task, bar_numbers, issuer.horizon_bars, "of the live record")


def stored_references(place: Path | str, commits: Mapping[str, str | None]) -> dict[str, dict[str, str]]:
    """Return the best baselines that stored verdicts name, by series and task.

    Empty for a series whose model is not on this machine or cannot be read, and for one whose metadata stores
    no verdict: that of a run that goes on, or of format 1.

    Args:
        place: A run's folder, or `user/name` on the Hub.
        commits: By series the commit of its newest model on the Hub; None for a model that has none.
    """
    from v8.publish.hub.places import open_place  # noqa: PLC0415 - most commands of the ledger open no models

    by_series: dict[str, dict[str, str]] = {series: {} for series in commits}
    if not isinstance(place, Path):
        for series, commit in commits.items():
            if commit is not None:
                with suppress(OSError, V8Error):
                    by_series[series] = _references_of_commit(place, commit, series)
        return by_series
    with suppress(OSError, V8Error):  # the folder may be gone
        models = open_place(place)
        for series in commits:
            with suppress(OSError, V8Error):
                folder, _ = models.locate(series)
                by_series[series] = _references_in(folder, (folder / METADATA_FILE).stat().st_mtime_ns)
    return by_series


@lru_cache(maxsize=10_000)
def _references_of_commit(repo: str, commit: str, series: str) -> dict[str, str]:
    """Return the best baselines that the model of a commit names; raises if it is not in the cache."""
    from v8.publish.hub.places import open_place  # noqa: PLC0415 - as above

    folder, _ = open_place(repo, revision=commit, is_offline=True).locate(series)
    return _references_in(folder, 0)


@lru_cache(maxsize=10_000)
def _references_in(folder: Path, _written_ns: int) -> dict[str, str]:
    """Return the best baselines that the metadata in a folder names, as long as the file is the same."""
    stored = read_metadata(folder).result.verdict
    return {} if stored is None else references(stored)


def require_record(ledger: Ledger, place: Path | str, names: Sequence[str]) -> None:
    """Require that a ledger holds forecasts of a place, and of each of some series of it.

    Raises:
        ArtifactError: If it holds none.
    """
    available = ledger.series(place)
    if not available:
        raise _no_record_error(ledger, place)
    missing = [name for name in names if name not in available]
    if missing:
        raise _no_series_error(ledger, place, missing, available)


def _no_record_error(ledger: Ledger, place: Path | str) -> ArtifactError:
    """Return the error for a place of which a ledger has no forecast; another may be the same, moved."""
    places = ledger.places()
    begin = f"begin its record with `{_live_command('forecast', place, ledger)}`"
    if places:
        folder_name = ledger.place(place).rpartition("/")[2]
        same = [name for name in places if name.rpartition("/")[2] == folder_name]
        nearest = place_of((same or places)[0], ledger.path)
        read = f"`{_live_command('track', nearest, ledger)}`"
        fix = (
            f"Paths are as seen from the ledger's folder. Read that record, also without its run, with {read}"
        )
        if isinstance(nearest, Path):
            fix += f"; a run at {nearest} continues it"
        if not same and _is_there(place):
            fix += f". If this is another run, {begin}"
    elif _is_there(place):
        fix = capitalized(begin)
    else:
        from v8.runs.run_folder import folder_advice  # noqa: PLC0415 - as above

        fix = folder_advice(Path(place), "Check the path of the run")
    return ArtifactError(
        where=str(ledger.path),
        rule="must hold forecasts of what is asked for",
        got=f"none of {ledger.place(place)}, but of {listed(places) or 'no place'}",
        fix=fix,
    )


def _no_series_error(
    ledger: Ledger, place: Path | str, missing: Sequence[str], available: Sequence[str]
) -> ArtifactError:
    """Return the error for series of which the record of a place has no forecast."""
    name = missing[0]
    fix = series_advice(name, available, "Choose one of these with param:series")
    models: Sequence[str] = missing  # a repository is not asked
    if isinstance(place, Path):
        from v8.publish.hub.places import open_place  # noqa: PLC0415 - as above

        models = []
        with suppress(V8Error):
            models = open_place(place).series
    if name in models:
        fix = f"Issue some: `{_live_command('forecast', place, ledger, '--series', name)}`"
    return ArtifactError(
        where=str(ledger.path),
        rule="must hold forecasts of what is asked for",
        got=f"none of {listed(missing)}, but of {listed(available)}",
        fix=fix,
    )


def _is_there(place: Path | str) -> bool:
    return isinstance(place, str) or place.is_dir()


def _live_command(name: str, place: Path | str, ledger: Ledger, *words: str) -> str:
    return command(name, *place_words(place), *words, *ledger_words(ledger.path))
