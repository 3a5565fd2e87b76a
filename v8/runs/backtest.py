"""Back-tests: a profile is fitted again for each fold, and evaluated on what came after.

The folds are laid once, over the candles that there are, and the plan is written before anything is trained.
Then each fold is a run like every other (`v8.runs.execution`), on a source that shows nothing later than its
end. So a back-test resumes, isolates failures and locks as a run does, and its folder is read by whatever
reads runs.

With `--seeds` it is repeated with other seeds, and `spread_over_seeds` says how far its headline numbers lie
apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median, median_high, median_low
from typing import Final

from v8.base.errors import DataError
from v8.base.resources import resource_scope
from v8.base.storage import write_json
from v8.data.market.companions import Companions
from v8.data.market.series import Series, iso
from v8.data.market.sources.source import CandleSource, CutOffSource
from v8.data.windows.dataset import rows_needed, split_rows, table_columns
from v8.profile.indicators import warmup_bars
from v8.profile.profile import Profile
from v8.runs.backtest_results import (
    BACKTEST_FORMAT,
    PLAN_FILE,
    BacktestPlan,
    BacktestResults,
    Fold,
    begin_plan,
    read_plan,
    require_same,
)
from v8.runs.events import Note, RunSummary
from v8.runs.execution import run_plan
from v8.runs.jobs import Engine
from v8.runs.observers import RunObserver, observed
from v8.runs.plan import make_plan
from v8.runs.reading import read_candles
from v8.runs.run_folder import start_fields

ALL_BARS: Final = 10_000_000  # more candles than any series has


@dataclass(frozen=True)
class Backtest:
    """What a back-test is to do."""

    profile: Profile  # what is trained in each fold
    series: Sequence[Series]  # which, without repetition
    num_folds: int  # at least 1
    history_bars: int | None  # newest candles of each series that the folds lie in; None for all there are
    command: str  # the command line
    like: BacktestPlan | None = None  # whose folds are used; None lays new ones
    tables: Path | None = None  # folder of the user's tables; that of `V8_TABLES` when None

    def plan(self, source: CandleSource) -> BacktestPlan:
        """Return the plan as far as it is known before candles are read."""
        start = start_fields(self.profile, source.name, source.is_publishable, self.command, BACKTEST_FORMAT)
        return BacktestPlan(
            **start,
            series=tuple(str(series) for series in self.series),
            num_folds=self.num_folds,
            history_bars=self.history_bars,
        )


@dataclass(frozen=True)
class FinishedFolds:
    """What came of carrying out a back-test, as far as this call could."""

    plan: BacktestPlan
    failures: Mapping[str, Mapping[str, str]]  # by folder of a fold: why series failed in this call, by name


def run_folds(
    path: Path, options: Backtest, source: CandleSource, engine: Engine, observer: RunObserver
) -> FinishedFolds:
    """Finish what can be finished of a back-test whose folder this process holds.

    Nothing later than a fold's end is read for it. The observer follows the reading of all candles, and then
    each fold as a run of its own.
    """
    whole_plan = make_plan(options.profile, options.series, path)
    with observed(observer, whole_plan, source.name) as follower:
        plan = begin_or_continue(path, options, source, follower)
    failures = {}
    with resource_scope():  # all folds use the same processes and programs
        for fold in plan.folds:
            text = f"Fold {fold.number} of {len(plan.folds)}: {len(fold.newest_s)} series."
            observer.on_event(Note(text))
            summary = run_fold(path, options, fold, source, engine, observer=observer)
            failures[fold.folder] = {str(failure.series): str(failure.reason) for failure in summary.failures}
    return FinishedFolds(plan, failures)


def run_fold(
    path: Path,
    options: Backtest,
    fold: Fold,
    source: CandleSource,
    engine: Engine,
    *,
    observer: RunObserver,
) -> RunSummary:
    """Finish every series of a fold that can be finished; arguments as for `run_folds`."""
    series = [Series.parse(name) for name in fold.newest_s]
    plan = make_plan(options.profile, series, path / fold.folder, tables=options.tables)
    return run_plan(plan, CutOffSource(source, fold.newest_s), engine, observer, command=options.command)


def begin_or_continue(
    path: Path, options: Backtest, source: CandleSource, observer: RunObserver
) -> BacktestPlan:
    """Return the plan that a back-test, whose folder this process holds, was started with, or start it.

    To lay folds the whole history is read, once; the observer learns which series is. Folds of another plan
    need none of it.

    Raises:
        ArtifactError: If it was started with other options, or other files lie in the folder.
        DataError: If no series has candles, or a history is too short.
    """
    plan = options.plan(source)
    if (path / PLAN_FILE).exists():
        first_plan = read_plan(path)
        require_same(path, first_plan, plan)
        return first_plan
    if options.like:
        plan = replace(plan, folds=options.like.folds, missing=options.like.missing)
    else:
        histories = _read_histories(options, source, observer)
        if not histories.spans:
            raise _no_candles(path, histories)
        folds = lay_folds(histories.spans, options.profile, options.num_folds)
        plan = replace(plan, folds=folds, missing=histories.missing)
    begin_plan(path, plan)
    return plan


@dataclass(frozen=True)
class CandleSpan:
    """The candles that a source has of a series: open times of the first and the newest, seconds, UTC."""

    first_s: int
    newest_s: int


@dataclass
class _Histories:
    spans: dict[Series, CandleSpan] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # by name: why a series has no candles


def _read_histories(options: Backtest, source: CandleSource, observer: RunObserver) -> _Histories:
    """Read which candles there are of each series."""
    histories = _Histories()
    num_bars = options.history_bars or ALL_BARS
    companions = Companions.of(options.profile, folder=options.tables)
    for series in options.series:
        candles, outcome = read_candles(
            series,
            observer,
            lambda series=series: companions.candles(source, series, num_bars),  # type: ignore[misc]
        )
        if candles is None:
            histories.missing[str(series)] = str(outcome.reason)
            observer.on_event(Note(f"left out: {outcome.reason}"))
        else:
            first_s, newest_s = (int(open_s) for open_s in candles.open_time_s[[0, -1]])
            histories.spans[series] = CandleSpan(first_s, newest_s)
    return histories


def _no_candles(path: Path, histories: _Histories) -> DataError:
    reasons = list(histories.missing.values())
    rule = "a back-test needs the candles of one series at least"
    got = f"none of {len(reasons)}; {reasons[0]}"
    return DataError(where=str(path), rule=rule, got=got, fix="Mend that first")


def lay_folds(spans: Mapping[Series, CandleSpan], profile: Profile, num_folds: int) -> tuple[Fold, ...]:
    """Choose where the folds, at least one, end and which series take part in each.

    A series takes part in a fold when it has candles enough for a window in every span, and still trades.

    Raises:
        DataError: If a timeframe's history is too short for folds of which each evaluates mostly new candles.
    """
    timeframes = dict.fromkeys(series.timeframe for series in spans)
    ends_s = {timeframe: _fold_ends(timeframe, spans, profile, num_folds) for timeframe in timeframes}
    folds = []
    for index in range(num_folds):
        newest_s = {}
        for series, span in spans.items():
            end_s = ends_s[series.timeframe][index]
            if _takes_part(series, span, end_s, profile):
                newest_s[str(series)] = end_s
        folds.append(Fold(index + 1, newest_s))
    return tuple(folds)


def fewest_step_bars(profile: Profile) -> int:
    """Return the bars between two folds at least: half a test span, so that most of it is new."""
    num_rows = profile.newest_bars - warmup_bars(table_columns(profile))
    first, end = split_rows(num_rows, profile, location=f"folds of {profile.newest_bars:,} candles")["test"]
    return -(-(end - first) // 2)  # rounded up


def _fold_ends(
    timeframe: str, spans: Mapping[Series, CandleSpan], profile: Profile, num_folds: int
) -> list[int]:
    """Return the open time of the newest candle of each fold of one timeframe, seconds, UTC."""
    series = [name for name in spans if name.timeframe == timeframe]
    bar_s = series[0].bar_s
    fold_bars = profile.newest_bars
    # Half of the series have candles from here on, and half of them up to there.
    start_s = median_low(spans[name].first_s for name in series)
    newest_s = median_high(spans[name].newest_s for name in series)
    num_bars = (newest_s - start_s) // bar_s + 1
    needed = fold_bars + (num_folds - 1) * fewest_step_bars(profile)
    if num_bars < needed and num_folds > 1:
        raise DataError(
            where=f"{num_folds} folds of {timeframe}",
            rule=f"need {needed:,} candles of half of the series: {fold_bars:,} of the first fold, and "
            f"{fewest_step_bars(profile):,} more for each other one",
            got=f"{num_bars:,}, {iso(start_s)} to {iso(newest_s)}",
            fix="Lower param:folds or param:bars, or take a source with a longer history",
        )
    step_bars = (num_bars - fold_bars) // max(1, num_folds - 1)
    return [newest_s - steps * step_bars * bar_s for steps in reversed(range(num_folds))]


def _takes_part(series: Series, span: CandleSpan, end_s: int, profile: Profile) -> bool:
    """Say whether a series has candles enough up to the end of a fold, and still trades then."""
    fewest_bars = warmup_bars(table_columns(profile)) + rows_needed(profile)
    has_enough = end_s - span.first_s >= (fewest_bars - 1) * series.bar_s
    still_trades = span.newest_s >= end_s - profile.horizon_bars * series.bar_s
    return has_enough and still_trades


SEEDS_FILE: Final = "seeds.json"
SEEDS_FORMAT: Final = 1  # version of the keys of `seeds.json`

SEED_STEP: Final = 1_000
"""Distance of two seeds: the series of a run are seeded one after another, and none is to be seeded twice."""


@dataclass(frozen=True)
class SeedSpread:
    """A headline number of a back-test by seed, all of one pool, timeframe and task."""

    pool: str  # a key of `v8.model.evaluation.fold_losses.POOLS`
    timeframe: str
    task: str
    figure: str  # "relative_mae" (to naive) or "against_best", medians over series and folds, unitless
    by_seed: Mapping[int, float]

    @property
    def low(self) -> float:
        """The smallest."""
        return min(self.by_seed.values())

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.by_seed.values())

    @property
    def high(self) -> float:
        """The largest."""
        return max(self.by_seed.values())


def other_seeds(backtest: Backtest, path: Path, num_seeds: int, plan: BacktestPlan) -> dict[Path, Backtest]:
    """Return the back-tests with other seeds, by their folders.

    Args:
        backtest: The one with the profile's own seed.
        path: Its folder.
        num_seeds: Number of seeds, the profile's own included.
        plan: Its plan, whose folds the others use.
    """
    profile = backtest.profile
    others = {}
    for number in range(1, num_seeds):
        seed = profile.seed + SEED_STEP * number
        seeded = profile.but(seed=seed, name=profile.name)
        others[path / f"seed-{seed}"] = replace(backtest, profile=seeded, like=plan)
    return others


def spread_over_seeds(results: Mapping[int, BacktestResults]) -> list[SeedSpread]:
    """Return the headline numbers by seed, of those that every back-test has; at least one, by its seed."""
    by_key: dict[tuple[str, str, str, str], dict[int, float]] = {}
    for seed, of_seed in results.items():
        for pool in of_seed.pools:
            for task, result in pool.tasks.items():
                figures = {"relative_mae": result.model_relative_mae, "against_best": result.against_best}
                for figure, value in figures.items():
                    if value is not None:
                        by_key.setdefault((pool.name, pool.timeframe, task, figure), {})[seed] = value
    return [SeedSpread(*key, by_seed) for key, by_seed in by_key.items() if len(by_seed) == len(results)]


def write_seeds(path: Path, spreads: list[SeedSpread]) -> Path:
    """Write `seeds.json` into the folder of a back-test, atomically; return the file."""
    rows = [
        {**asdict(spread), "low": spread.low, "median": spread.middle, "high": spread.high}
        for spread in spreads
    ]
    file = path / SEEDS_FILE
    write_json(file, {"format": SEEDS_FORMAT, "figures": rows})
    return file
