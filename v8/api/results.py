"""From options to results: runs, back-tests and exports, for the commands and for Python.

What Python calls does the same in a process of its own, which sends lines about it.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

from v8.api.arguments import (
    RawCandles,
    call_in_child,
    checked_options,
    further_options,
    in_python,
    maybe_path,
    profile_file,
    series_list,
    source_of,
)
from v8.api.export import OpenSource, write_forecasts
from v8.base.child import send_message
from v8.base.errors import ArgumentError, ArtifactError, DataError, V8Error
from v8.base.process import command, quiet_start, set_exit_message, watch_interrupts
from v8.base.records import AtLeastOne
from v8.base.registry import advice
from v8.base.storage import FORECASTS_COLUMNS, NAIVE_ENDING
from v8.base.wording import duration, for_terminal
from v8.data.market.series import TIMEFRAME_S
from v8.data.market.sources import SOURCES, CandleSource, OpenedSource
from v8.model.baselines.baselines import NAIVE
from v8.model.evaluation.fold_losses import SeedSpread, spread_over_seeds
from v8.profile.profile import Profile, key_places, load_profile
from v8.profile.tasks import TASKS
from v8.publish.report import backtest as page
from v8.publish.report.outputs import ReportWriter, RunResults
from v8.publish.report.verdict import relative_to_naive, verdict
from v8.runs import events
from v8.runs.backtest import (
    Backtest,
    BacktestPlan,
    BacktestResults,
    hold_backtest,
    other_seeds,
    read_results,
    read_seeds,
    run_folds,
    write_seeds,
)
from v8.runs.estimate import ProgressEstimate
from v8.runs.events import ObserverGroup, RunContext, RunObserver, RunSummary
from v8.runs.execution import run_plan
from v8.runs.options import (
    BacktestOptions,
    ModelsOptions,
    NumBars,
    NumFolds,
    PreparedBacktest,
    PreparedRun,
    RunOptions,
)
from v8.runs.plan import Engine
from v8.runs.run_folder import read_run

ACTUAL_ENDING: Final = "_actual"
FOLDER: Final = "folder"
"""Key of `DataFrame.attrs` for the folder that a frame was read from, a text."""

_KEYS: Final = ("series", "open_time", "cutoff", "issued_at", "fold", "step", "column")

FEW_S: Final = 10.0  # remaining time that is too short to be written as a number, in seconds
SILENT_S: Final = 60.0  # after so many seconds without a line the next epoch is written


@dataclass(frozen=True)
class FinishedRun:
    """How a run ended, and what came of it."""

    summary: RunSummary
    results: RunResults


def carry_out(prepared: PreparedRun, observers: Sequence[RunObserver]) -> FinishedRun:
    """Carry out a run, or the rest of it, and write its report; publishing it is left to the caller.

    When it is interrupted, what was finished is saved, and the same options continue.
    """
    plan = prepared.plan
    set_exit_message(f"interrupted: {plan.path} is saved. Continue with: {plan.command}")
    report = ReportWriter()
    observer = ObserverGroup([*observers, *prepared.trackers, report])
    summary = run_plan(plan, prepared.source, prepared.engine, observer)
    return FinishedRun(summary, report.results)


@dataclass(frozen=True)
class TrainedRun:
    """What `v8.train` gets to know of the run."""

    path: Path
    refused: Mapping[str, str]  # series that could not be part of it, and why


def train_for_python(options: RunOptions) -> TrainedRun:
    """Carry out a run for `v8.train`, in a process of its own, which sends lines about it.

    Raises:
        V8Error: If no series was trained: why the first of them failed.
    """
    watch_interrupts()
    prepared = PreparedRun.from_options(options, command("run", *options.words()))
    path = prepared.plan.path
    if prepared.repo:
        from v8.publish.hub.client import HubRetryPolicy  # noqa: PLC0415 - it reads the Hub's address
        from v8.publish.hub.staging import check_publishing  # noqa: PLC0415

        retries = HubRetryPolicy(report=send_message)
        check_publishing(prepared.repo, prepared.source, retries)
    finished = carry_out(prepared, [ProgressLines(send_message)])
    summary = finished.summary
    rows = finished.results.rows
    sentences = verdict(rows, finished.results.intervals) if rows else []
    for line in (*sentences, counts(summary), f"Run folder: {path}"):
        send_message(line)
    recorded = read_run(path)
    is_empty = summary.exit_code == DataError.exit_code or not recorded.done
    if is_empty and summary.failures:
        first = summary.failures[0]
        rule = "must end with a trained series"
        raise first.error or V8Error(
            where="v8.train", rule=rule, got=str(first.reason), fix="Mend that and repeat"
        )
    if prepared.repo and summary.failures:
        send_message("Not published, because some series failed.")
    elif prepared.repo:
        from v8.api.forecaster import publish_folder  # noqa: PLC0415 - it reads the Hub's address

        send_message(f"Published: {publish_folder(path, prepared.repo, retries=retries)}")
    refused = {
        str(failure.series): str(failure.reason)
        for failure in summary.failures
        if str(failure.series) not in recorded.series
    }
    return TrainedRun(path, refused)


@dataclass(frozen=True)
class FinishedBacktest:
    """How a back-test ended, as far as this call could bring it."""

    plan: BacktestPlan
    results: BacktestResults
    files: Sequence[Path]  # that were written


def evaluate_folds(
    path: Path, backtest: Backtest, source: CandleSource, engine: Engine, observer: RunObserver
) -> FinishedBacktest:
    """Carry out a back-test in its folder, or the rest of it, and write its files."""
    with hold_backtest(path):
        set_exit_message(f"interrupted: {path} is saved. Continue with: {backtest.command}")
        finished = run_folds(path, backtest, source, engine, observer)
        results = read_results(path, finished.plan, finished.failures)
        return FinishedBacktest(finished.plan, results, page.write_backtest(path, results))


@dataclass(frozen=True)
class FinishedSeeds:
    """How a back-test ended that was repeated with other seeds."""

    spreads: Sequence[SeedSpread]  # of its headline numbers
    num_seeds: int  # the profile's own included
    file: Path  # that they were written into
    is_complete: bool  # whether every series of every fold is evaluated with every seed


def repeat_with_seeds(
    prepared: PreparedBacktest,
    results: BacktestResults,
    make_display: Callable[[], RunObserver],
    print_line: Callable[[str], object],
) -> FinishedSeeds:
    """Repeat a back-test with other seeds, and write how far its headline numbers spread.

    Args:
        prepared: The back-test.
        results: Its results with the profile's own seed.
        make_display: Makes what shows the progress of one of the others.
        print_line: Called with the headline of each.
    """
    by_seed = {prepared.backtest.profile.seed: results}
    others = other_seeds(prepared.backtest, prepared.path, prepared.num_seeds, results.plan)
    for path, other in others.items():
        observer = fold_observer(make_display())
        finished = evaluate_folds(path, other, prepared.source, prepared.engine, observer)
        by_seed[other.profile.seed] = finished.results
        print_line(f"Seed {other.profile.seed}. {page.headline(finished.results)}")
    spreads = spread_over_seeds(by_seed)
    return FinishedSeeds(
        spreads=spreads,
        num_seeds=len(by_seed),
        file=write_seeds(prepared.path, spreads),
        is_complete=not any(of_seed.failures for of_seed in by_seed.values()),
    )


def fold_observer(display: RunObserver) -> RunObserver:
    """Return what follows the folds of a back-test: each is a run, and its report is drawn at its end."""
    return ObserverGroup([display, ReportWriter(only_at_end=True)])


@dataclass(frozen=True)
class BacktestRequest:
    """A back-test that Python calls for, and the file of Parquet that its forecasts are written into."""

    options: BacktestOptions
    file: Path


def backtest_for_python(request: BacktestRequest) -> bool:
    """Carry out a back-test in a process of its own, which sends lines about it, and write its forecasts.

    Returns:
        Whether every series of every fold, and every one that was named, is in the file; there is no file if
        no fold was finished.
    """
    watch_interrupts()
    continuing = command("backtest", *request.options.words())
    prepared = PreparedBacktest.from_options(request.options, continuing)
    source = prepared.source
    observer = fold_observer(ProgressLines(send_message))
    sections_before = page.added_sections(prepared.path)
    finished = evaluate_folds(prepared.path, prepared.backtest, source, prepared.engine, observer)
    results = finished.results
    for name in sections_before:
        send_message(f"{prepared.path / page.PAGE_FILE} has no longer what the flag --{name} added.")
    send_message(page.headline(results))
    for lines in page.verdicts(results):
        for line in lines:
            send_message(line)
    for name, reason in results.plan.left_out.items():
        send_message(f"{name} is left out: {reason}")
    send_message(f"Written: {', '.join(map(str, finished.files))}")
    is_complete = results.is_complete(request.options.series)
    if prepared.num_seeds > 1:
        finished_seeds = repeat_with_seeds(
            prepared, results, lambda: ProgressLines(send_message), send_message
        )
        for spread in finished_seeds.spreads:
            send_message(page.seed_sentence(spread, finished_seeds.num_seeds))
        send_message(f"Written: {finished_seeds.file}")
        is_complete = is_complete and finished_seeds.is_complete
    if not results.cells:
        return False
    opened = OpenedSource(source, prepared.backtest.tables)
    return _write_parquet(prepared.path, request.file, lambda _: opened) and is_complete


def _write_parquet(place: Path, file: Path, open_source: OpenSource, names: Sequence[str] = ()) -> bool:
    """Write forecasts into a file, send what is to be said of them, and return whether all are in it."""
    with quiet_start():
        exported = write_forecasts(place, file, form="parquet", open_source=open_source, names=names)
    for line in exported.notes:
        send_message(line)
    for name, reason in exported.missing.items():
        send_message(f"{name}: {reason}")
    return not exported.missing


@in_python
def backtest(
    candles: RawCandles = "vision",
    profile: str | Path | Profile = "frontier",
    *,
    series: str | Sequence[str] | None = None,
    folds: NumFolds = 6,
    history: NumBars | None = None,
    bars: AtLeastOne | None = None,
    epochs: AtLeastOne | None = None,
    seeds: AtLeastOne = 1,
    column: str | None = "close",
    out: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> pd.DataFrame:
    """Evaluate a profile over many folds, fitted again for each; return every forecast of their test spans.

    It is the command `backtest` with `--forecasts`: the same call again continues an interrupted one, and
    only forecasts again when all folds are trained.

    Args:
        candles: As for `v8.train`.
        profile: As for `v8.train`.
        series: Such as "BTCUSDT-1h", or several; None for all there are.
        folds: Number of folds, spread over all history.
        history: Newest candles that the folds lie in; None for all there are.
        bars: Candles of each fold; None for the profile's.
        epochs: Most epochs of each training; None for the profile's.
        seeds: With how many seeds to repeat it, to see how far its numbers spread; the forecasts are those of
            the profile's own seed.
        column: The column that is returned, such as "close" or "volatility"; None for all.
        out: Its folder; None for backtests/PROFILE.
        progress: Whether to print lines about it.
        options: Keys of the profile, such as learning_rate, which make another profile, or options of the
            command `backtest`: universe, tables, device, workers ...

    Returns:
        The frame that `v8.export` returns; `attrs["folder"]` is the folder, of which `v8.leaderboard` reads
        the errors. Test spans of folds may overlap. With several seeds `attrs["seeds"]` is a list of how far
        each headline number spreads: `low`, `median` and `high`, for `pd.DataFrame`.

    Raises:
        V8Error: If nothing could be evaluated; the sentence says why.

    >>> import v8
    >>> table = v8.backtest("vision", "frontier", series="BTCUSDT-1h", folds=8)  # doctest: +SKIP
    >>> (table["model"] - table["y"]).abs().groupby(table["cutoff"]).mean()  # doctest: +SKIP
    """
    further = checked_options("v8.backtest", backtest, options, OPTIONS, others=key_places())
    keys = {name: value for name, value in options.items() if name not in OPTIONS}
    if keys:
        loaded_profile = Profile.of(profile) if isinstance(profile, str | Path) else profile
        profile = loaded_profile.but(**keys)
    _check_column("v8.backtest", column)
    names = series_list(series)
    source = source_of(candles, names)
    if out:
        folder = Path(out)
    else:
        loaded = profile if isinstance(profile, Profile) else load_profile(str(profile))
        folder = Path("backtests") / loaded.name
    all_options = BacktestOptions(
        profile=str(profile_file(profile)),
        series=tuple(names),
        folds=folds,
        history=history,
        bars=bars,
        epochs=epochs,
        seeds=seeds,
        out=folder,
        **further,
        **source,
    )
    with tempfile.TemporaryDirectory(prefix="v8-") as place:
        request = BacktestRequest(all_options, Path(place) / "forecasts.parquet")
        is_complete = call_in_child(backtest_for_python, request, where="v8.backtest", progress=progress)
        table = _read_forecasts(request.file, folder, column, is_complete=is_complete)
    if seeds > 1:
        table.attrs["seeds"] = read_seeds(folder)
    return table


OPTIONS: Final[Mapping[str, Any]] = further_options(BacktestOptions, backtest)
"""Other options of `backtest`; None is the default."""


@in_python
def export(
    run: str | Path,
    *,
    series: str | Sequence[str] | None = None,
    column: str | None = "close",
    source: str | None = None,
    data_dir: str | Path | None = None,
    tables: str | Path | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    """Return every forecast of the test spans of a run, of a back-test, or of pulled models.

    It is the command `export`: the models forecast again, from the candles that they were made from.

    Args:
        run: The folder, such as "runs/frontier" or "backtests/frontier".
        series: Such as "BTCUSDT-15m", or several; None for all.
        column: The column that is returned, such as "close" or "volatility"; None for all.
        source: Where the candles come from; None for the source of the run.
        data_dir: Folder of candle files; None for the run's.
        tables: Folder of the covariates' tables; None for the run's.
        progress: Whether to print lines about it.

    Returns:
        A row for each bar ahead, ordered as the models forecast:

        * `series`: text.
        * `open_time`: when the bar opens, datetime64 in UTC (the `ds` of Nixtla).
        * `cutoff`: when the newest known candle opened, datetime64 in UTC.
        * `issued_at`: when that candle closed; the forecast can be used from then on, datetime64 in UTC.
        * `fold`: of a back-test, from 1; 0 for anything else, int64.
        * `step`: bars ahead, from 1, int64.
        * `column`: what is forecast, text.
        * `y`: the actual value, float, in the unit of the column (prices: quote currency; volatility: share).
        * `model`, `naive`: the forecasts, in the same unit.
        * `model_q5` and so on: quantiles of the model in percent, where it has any.

        `attrs["folder"]` is the folder, `attrs["is_complete"]` whether every model of it is in the frame.

    Raises:
        ArtifactError: If there is no finished model, or the models have no such column.
        DataError: If the source has other candles than those that the models were made from.

    >>> import v8
    >>> table = v8.export("runs/frontier", column="volatility")  # doctest: +SKIP
    >>> nixtla = table.rename(columns={"series": "unique_id", "open_time": "ds"})  # doctest: +SKIP
    """
    _check_column("v8.export", column)
    if source is not None:
        SOURCES.find(source, where="source=")  # suggests the nearest
    options = ModelsOptions(
        run=Path(run),
        series=tuple(series_list(series)),
        source=source,
        data_dir=maybe_path(data_dir),
        tables=maybe_path(tables),
    )
    with tempfile.TemporaryDirectory(prefix="v8-") as place:
        request = ExportRequest(options, Path(place) / "forecasts.parquet")
        is_complete = call_in_child(export_for_python, request, where="v8.export", progress=progress)
        return _read_forecasts(request.file, options.run, column, is_complete=is_complete)


@dataclass(frozen=True)
class ExportRequest:
    """An export that Python calls for, and the file of Parquet that it is written into."""

    options: ModelsOptions
    file: Path


def export_for_python(request: ExportRequest) -> bool:
    """Write forecasts in a process of its own; return whether those of every model are in the file."""
    watch_interrupts()
    options = request.options
    open_source = options.source_opener(options.run)
    names = options.series_names()
    return _write_parquet(options.run, request.file, open_source, names)


def _check_column(called: str, column: str | None) -> None:
    """Refuse a column that no model forecasts, before a process is started."""
    known = [name for task in TASKS.values() for name in task.columns]
    if column is not None and column not in known:
        fix = advice(column, known, "Choose one of these")
        rule = f"is one of {', '.join(known)}"
        raise ArgumentError(where=f"{called}, column=", rule=rule, got=repr(column), fix=fix)


def _read_forecasts(file: Path, folder: Path, column: str | None, *, is_complete: bool) -> pd.DataFrame:
    """Read a table of forecasts in the layout of `export`."""
    if not file.exists():
        rule = "must end with the forecasts of one model at least"
        fix = "Call it with progress=True, which prints why"
        raise ArtifactError(where=str(folder), rule=rule, got="none", fix=fix)
    table = long_forecasts(pd.read_parquet(file), column)
    table.attrs.update({FOLDER: str(folder), "is_complete": is_complete})
    return table


def long_forecasts(table: pd.DataFrame, column: str | None) -> pd.DataFrame:
    """Lay out a table of forecasts, as the command `export` writes it, as `export` returns it.

    A row is one bar ahead of one forecast, as in the result of `cross_validation` in the libraries of Nixtla
    and of `historical_forecasts` in Darts: what was forecast is in the column of the forecaster, what came in
    `y`, and `cutoff` says which candles were known.

    Args:
        table: Columns of the file, such as `close`, `close_q5`, `close_actual` and `close_naive`.
        column: The column that is kept; None for all.

    Raises:
        ArgumentError: If the table has no such column.
    """
    available = [name.removesuffix(NAIVE_ENDING) for name in table.columns if name.endswith(NAIVE_ENDING)]
    if column is not None and column not in available:
        rule = f"is one of {', '.join(available)}"
        raise ArgumentError(where="column=", rule=rule, got=repr(column), fix="Choose one of these")
    frames = []
    for name in available if column is None else [column]:
        frame = table[list(FORECASTS_COLUMNS)].copy()
        frame["column"] = name
        frame["y"] = table[f"{name}{ACTUAL_ENDING}"]
        frame["model"] = table[name]
        frame["naive"] = table[f"{name}{NAIVE_ENDING}"]
        for quantile in table.columns[table.columns.str.fullmatch(rf"{name}_q[0-9.]+")]:
            frame[f"model{quantile.removeprefix(name)}"] = table[quantile]
        frames.append(frame)
    result = pd.concat(frames, ignore_index=True)
    for name in ("issued_at", "open_time"):
        result[name] = pd.to_datetime(result[name], utc=True)
    bar_s = result["series"].str.rpartition("-")[2].map(TIMEFRAME_S)
    result["cutoff"] = result["issued_at"] - pd.to_timedelta(bar_s, unit="s")
    others = [name for name in result.columns if name not in _KEYS]
    return result[[*_KEYS, *others]]


class ProgressLines(RunObserver):
    """Writes a line for each event of runs that is worth one; of epochs one a minute at most.

    Args:
        write: Writes a line, which has no control characters.
        is_verbose: Whether to write a line for every epoch of every series.
        clock: Returns the time, in seconds.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        is_verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._is_verbose = is_verbose
        self._clock = clock
        self._pace = ProgressEstimate(0)
        self._last_s = clock()
        """When the last line was written."""

    def on_begin(self, context: RunContext) -> None:
        """Begin to follow a plan."""
        self._pace = ProgressEstimate(len(context.plan.todo), self._clock)
        self._last_s = self._clock()

    def on_event(self, event: events.Event) -> None:
        """Write the line of an event."""
        self._pace.on_event(event)
        line = self._line_of(event)
        if line:
            self._write(for_terminal(line))
            self._last_s = self._clock()

    def _line_of(self, event: events.Event) -> str | None:
        """Return the line of an event that is worth one."""
        pace = self._pace
        num_ended = f"{pace.num_ended} of {pace.num_series} ended{still_to_come(pace)}"
        if isinstance(event, events.Note):
            return event.text
        if isinstance(event, events.SeriesStarted):
            return f"{event.series}: started ({pace.num_ended + len(pace.at_work)} of {pace.num_series})"
        if isinstance(event, events.EpochEnded):
            is_due = self._is_verbose or self._clock() - self._last_s >= SILENT_S
            return f"{event.series}: {', '.join(losses(event))} ({num_ended})" if is_due else None
        if isinstance(event, events.SeriesOutcome):
            return f"{ending(event)} ({num_ended})"
        if isinstance(event, events.Waiting):
            return f"{event.series}: {event.text}"
        return f"{event.series}: reading candles" if event.stage == "candles" else None


def still_to_come(pace: ProgressEstimate) -> str:
    """Return how many series still train, and about how long the rest takes, as the end of a sentence."""
    state = ""
    if pace.at_work:
        state += f", {len(pace.at_work)} still training"
    left_s = pace.left_s
    if left_s is not None:
        time_left = f"about {duration(left_s, is_estimate=True)}" if left_s >= FEW_S else "a few seconds"
        state += f", {time_left} left"
    return state


def losses(event: events.EpochEnded) -> tuple[str, str, str, str]:
    """Return texts for an epoch that has ended: its number, both losses and the speed."""
    record = event.record
    validation = f"validation {record.validation_loss:.5f}{' (best)' if record.is_best else ''}"
    speed = f"{record.windows_per_s:,.0f} windows/s"
    return f"epoch {record.epoch} of {event.num_epochs}", f"loss {record.train_loss:.5f}", validation, speed


def ending(outcome: events.SeriesOutcome) -> str:
    """Return how a series that ended compares with the naive forecast, or why it failed.

    The best baseline is known when all series of the run have ended, so none is named before.
    """
    if outcome.reason:
        return f"failed: {outcome.reason}"
    took = duration(outcome.seconds)
    for comparison in outcome.comparisons:
        if comparison.baseline == NAIVE:
            error = relative_to_naive(comparison.relative_mae)
            return f"{outcome.series}: candles: {error}, {took}"
    return f"{outcome.series}: finished, {took}"


def counts(summary: events.RunSummary) -> str:
    """Say how many series a run trained, had trained before, and could not train."""
    return (
        f"{summary.num_trained} series trained now, {summary.num_finished_before} finished before, "
        f"{len(summary.failures)} failed."
    )
