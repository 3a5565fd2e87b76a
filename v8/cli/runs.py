"""What `run`, `report` and `backtest` print.

When they are interrupted, what was finished is saved and old models serve on; the same command continues.
"""

from pathlib import Path

from v8.api.backtests import evaluate_folds, fold_observer
from v8.api.training import FinishedRun, carry_out
from v8.base import annexes
from v8.base.errors import DataError, SeriesError, StorageError, V8Error
from v8.base.process import command
from v8.base.terminal import (
    print_all_lines,
    print_error,
    print_lines,
    print_message,
    print_page,
    print_reasons,
    print_table,
)
from v8.cli import printing
from v8.data.market.sources.source import CandleSource, present_source
from v8.publish.report import backtest as page
from v8.publish.report.markup import DEMO_WARNING
from v8.publish.report.outputs import REPORT_FILE, RunOutputs, draw_pictures
from v8.runs.backtest import Backtest, BacktestResults, other_seeds, spread_over_seeds, write_seeds
from v8.runs.events import RunSummary
from v8.runs.options import PreparedBacktest, PreparedRun, RunOptions
from v8.runs.plan import Engine


def run_and_print(prepared: PreparedRun, display: printing.RunDisplay) -> RunSummary:
    """Carry out a run, print its results, and publish them if requested; `display` shows its progress."""
    path = prepared.plan.path
    repo = prepared.options.publish
    if repo:
        from v8.cli import hub

        hub.check_publishing(repo, prepared.source)
    finished = carry_out(prepared, [display])
    summary = finished.summary
    _print_finished(prepared, finished)
    if repo and summary.failures:
        publish_others = command("publish", str(path), "--repo", repo, "--partial")
        print_message(f"not published, because some series failed. Publish the others with: {publish_others}")
    elif repo:
        hub.publish_run(path, repo)
    return summary


def _print_finished(prepared: PreparedRun, finished: FinishedRun) -> None:
    """Print the results of a run and the commands that can follow, ready to be pasted."""
    options = prepared.options
    path = prepared.plan.path
    summary = finished.summary
    printing.print_summary(summary, path, finished.results)
    if options.smoke and finished.results.rows:
        print_lines("A smoke run shows that all works: its errors, of one epoch, say nothing of the profile.")
    folders = []
    for flag, folder in (("--data-dir", options.data_dir), ("--tables", options.tables)):
        if folder:
            folders += [flag, str(folder)]
    others = [
        f"{step.sentence}: {command(*step.words, str(path), *folders)}"
        for step in annexes.next_steps("newer_candles")
    ]
    printing.print_newer(summary.newer_candles, others, fresh=f"{prepared.command} --fresh")
    failed = {failure.series for failure in summary.failures}
    if len(failed) < len(prepared.plan.series):
        is_default = options.source == RunOptions.model_fields["source"].default
        source_flag = [] if is_default else ["--source", present_source(options.source)]
        print_lines(f"Forecast: {command('predict', str(path), *source_flag, *folders)}")
    is_complete = options.evaluate and not options.smoke and not failed
    if prepared.source.is_publishable and is_complete and not options.publish:
        print_lines(f"Publish: {command('publish', str(path), '--repo', 'USER/NAME')}")


def preview(prepared: PreparedRun) -> int:
    """Print the plan; return the exit code that the run would have because the source lacks some series."""
    printing.print_plan(prepared.plan, prepared.source)
    lacking = prepared.missing_series()
    if not lacking:
        return 0
    print_reasons(f"{len(lacking)} series would fail", lacking)
    is_all = len(lacking) == len(prepared.plan.series)
    return (DataError if is_all else SeriesError).exit_code


def redraw(run: Path) -> int:
    """Write leaderboard, report and pictures of a run again from its artefacts, and return the exit code."""
    errors: list[V8Error] = []

    def report_error(error: V8Error) -> None:
        print_error(error)
        errors.append(error)

    # The folder is not locked: every file is complete, and a run at work draws its own outputs again.
    results = RunOutputs(run, report_error, redraws_all=True).write()
    printing.print_leaderboard(results)
    try:
        if not any(isinstance(error, StorageError) for error in errors):
            pictures = draw_pictures(run, results.rows)
            print_page(run / REPORT_FILE)
            print_all_lines(f"Picture: {path}" for path in pictures)
    except StorageError as error:
        report_error(error)
    return max((error.exit_code for error in errors), default=0)


def repeat_with_seeds(prepared: PreparedBacktest, results: BacktestResults) -> bool:
    """Repeat a back-test with other seeds, and print and write how far its headline numbers spread.

    Args:
        prepared: The back-test.
        results: Its results with the profile's own seed.

    Returns:
        Whether every series of every seed is evaluated.
    """
    by_seed = {prepared.backtest.profile.seed: results}
    others = other_seeds(prepared.backtest, prepared.path, prepared.num_seeds, results.plan)
    for path, backtest in others.items():
        observer = fold_observer(printing.RunDisplay())
        finished = evaluate_folds(path, backtest, prepared.source, prepared.engine, observer)
        by_seed[backtest.profile.seed] = finished.results
        print_lines(f"Seed {backtest.profile.seed}. {page.headline(finished.results)}")
    spreads = spread_over_seeds(by_seed)
    print_table(page.seeds_table(spreads, len(by_seed)))
    print_lines(f"Written: {write_seeds(prepared.path, spreads)}")
    return not any(of_seed.failures for of_seed in by_seed.values())


def evaluate_and_print(
    path: Path, backtest: Backtest, source: CandleSource, engine: Engine
) -> BacktestResults:
    """Carry out a back-test in its folder, or the rest of it, and print its tables."""
    finished = evaluate_folds(path, backtest, source, engine, fold_observer(printing.RunDisplay()))
    results = finished.results
    if not finished.plan.is_publishable:
        print_lines(DEMO_WARNING)
    print_lines(page.headline(results))
    for lines in page.verdicts(results):
        print_all_lines(lines)
    for table in page.tables(results, is_short=True):
        print_table(table)
    print_lines(page.NOTE, page.BREAK_RULE)
    for fold, reasons in results.failures.items():
        print_reasons(f"Failed or not finished in {fold}", sorted(reasons.items()))
    if finished.plan.missing:
        print_reasons("Without candles", sorted(finished.plan.missing.items()))
    print_lines(f"Written: {', '.join(map(str, finished.files))}")
    print_page(path / page.PAGE_FILE)
    return results
