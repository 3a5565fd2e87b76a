"""Back-tests and exports: what the commands `backtest` and `export` and their functions in Python do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from v8.api.export import Exported, write_forecasts
from v8.api.progress import ProgressLines
from v8.base.child import send_message
from v8.base.process import quiet_start, set_exit_message, watch_interrupts
from v8.data.market.sources.source import CandleSource, OpenedSource
from v8.publish.report import backtest as page
from v8.publish.report.outputs import ReportWriter
from v8.runs.backtest import Backtest, BacktestPlan, BacktestResults, hold_backtest, read_results, run_folds
from v8.runs.events import ObserverGroup, RunObserver
from v8.runs.options import BacktestOptions, ModelsOptions, PreparedBacktest
from v8.runs.plan import Engine


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


def fold_observer(display: RunObserver) -> RunObserver:
    """Return what follows the folds of a back-test: each is a run, and its report is drawn at its end."""
    return ObserverGroup([display, ReportWriter(only_at_end=True)])


def export(
    place: Path,
    file: Path,
    *,
    form: str,
    open_source: Callable[[str], OpenedSource],
    names: Sequence[str] = (),
) -> Exported:
    """Write every forecast of the test spans of a place, see `write_forecasts`."""
    with quiet_start():
        return write_forecasts(place, file, form=form, open_source=open_source, names=names)


@dataclass(frozen=True)
class BacktestRequest:
    """A back-test that Python calls for, and the file of Parquet that its forecasts are written into."""

    options: BacktestOptions
    command: str  # the command line that continues
    file: Path


def backtest_for_python(request: BacktestRequest) -> bool:
    """Carry out a back-test in a process of its own, which sends lines about it, and write its forecasts.

    Returns:
        Whether every series of every fold is in the file; there is no file if no fold was finished.
    """
    watch_interrupts()
    prepared = PreparedBacktest.from_options(request.options, request.command)
    source = prepared.source
    observer = fold_observer(ProgressLines(send_message))
    finished = evaluate_folds(prepared.path, prepared.backtest, source, prepared.engine, observer)
    results = finished.results
    send_message(page.headline(results))
    for lines in page.verdicts(results):
        for line in lines:
            send_message(line)
    send_message(f"Written: {', '.join(map(str, finished.files))}")
    if not results.cells:
        return False
    opened = OpenedSource(source, prepared.backtest.tables)
    exported = export(prepared.path, request.file, form="parquet", open_source=lambda _: opened)
    _send_notes(exported)
    return not results.failures and not exported.missing


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
    exported = export(options.run, request.file, form="parquet", open_source=open_source, names=names)
    _send_notes(exported)
    return not exported.missing


def _send_notes(exported: Exported) -> None:
    for line in exported.notes:
        send_message(line)
    for name, reason in exported.missing.items():
        send_message(f"{name}: {reason}")
