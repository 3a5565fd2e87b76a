"""What `run`, `report`, `update`, `backtest` and `search` do and print, and the process of `v8.train`.

When they are interrupted, what was finished is saved and old models serve on; the same command continues.

`v8.train` starts this module as a process, sends it the options of a run as JSON, and it does what the
command line does. A process of its own starts TensorFlow with the settings of v8, whatever a notebook has
done to TensorFlow, needs no `if __name__ == "__main__"` in the notebook, and gives the same weights.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from v8.artifacts.backtest_results import BacktestResults, read_results
from v8.artifacts.nested_runs import hold_backtest
from v8.artifacts.run_folder import read_run
from v8.cli import printing
<<<<<<< HEAD
from v8.cli.printing import print_all_lines, print_lines, print_reasons, print_table, tell_error
from v8.errors import DataError, SeriesError, StorageError, V8Error
=======
from v8.cli.options import require_one_of
from v8.cli.printing import print_all_lines, print_error, print_lines, print_reasons, print_table
from v8.errors import DataError, ProfileError, SeriesError, StorageError, V8Error, listed
>>>>>>> work/clean
from v8.invocation import command
from v8.machine.interruption import set_exit_message, watch_interrupts
from v8.machine.processes import handle_request
from v8.market.sources.source import CandleSource
from v8.reports import backtest as page
from v8.reports.markup import DEMO_WARNING
from v8.reports.outputs import REPORT_FILE, ReportWriter, RunOutputs, draw_pictures
from v8.runs.backtest import BacktestOptions, run_folds
from v8.runs.events import RunSummary
from v8.runs.execution import run
from v8.runs.jobs import Engine
from v8.runs.observers import ObserverGroup, RunObserver
from v8.runs.options import PreparedRun, RunOptions
from v8.runs.trackers import check_trackers
from v8.runs.tracking import trackers


def carry_out(prepared: PreparedRun, *, opens: bool = False) -> RunSummary:
    """Carry out a run, print its results, and publish them if requested; `opens` opens its page, too."""
    path = prepared.plan.path
    repo = prepared.options.publish
    if repo:
        from v8.cli import hub

        hub.check_publishing(repo, prepared.source)
    summary = _run_and_print(prepared, opens=opens)
    if repo and summary.failures:
        publish_others = command("publish", str(path), "--repo", repo, "--partial")
        printing.print_message(
            f"not published, because some series failed. Publish the others with: {publish_others}"
        )
    elif repo:
        hub.publish_run(path, repo)
    return summary


def _run_and_print(prepared: PreparedRun, *, opens: bool) -> RunSummary:
    """Carry out the plan, and print the results and the commands that can follow, ready to be pasted."""
    options = prepared.options
    path = prepared.plan.path
    check_trackers(options.track)
    set_exit_message(f"interrupted: {path} is saved. Continue with: {options.command}")
    report = ReportWriter()
    observer = ObserverGroup([printing.RunDisplay(opens=opens), trackers(options.track), report])
    summary = run(prepared.plan, prepared.source, prepared.engine, observer, command=options.command)
    printing.print_summary(summary, path, report.rows)
    folders = []
    for flag, folder in (("--data-dir", options.data_dir), ("--tables", options.tables)):
        if folder:
            folders += [flag, str(folder)]
    update = command("update", str(path), *folders)
    printing.print_newer(summary.newer, update, fresh=f"{options.command} --fresh")
    failed = {failure.series for failure in summary.failures}
    if len(failed) < len(prepared.plan.series):
        is_default = options.source == RunOptions.model_fields["source"].default
        source_flag = [] if is_default else ["--source", options.source]
        print_lines(f"Forecast: {command('predict', str(path), *source_flag, *folders)}")
    is_complete = options.evaluate and not options.smoke and not failed
    if prepared.source.is_publishable and is_complete and not options.publish:
        print_lines(f"Publish: {command('publish', str(path), '--repo', 'USER/NAME')}")
    return summary


def train(options: RunOptions) -> Iterator[Any]:
    """Carry out a run for `v8.train`.

    Yields:
        The folder of the run, and the reasons of the series that could not be part of it, as plain values.

    Raises:
        V8Error: If no series was trained: why the first of them failed.
    """
    try:
        prepared = PreparedRun.from_options(options)
        summary = carry_out(prepared)
    except OSError as error:  # of a file that no other code of ours handles
        raise StorageError.out_of_reach(error) from error
    is_empty = summary.exit_code == DataError.exit_code or not read_run(prepared.plan.path).done
    if is_empty and summary.failures:
        first = summary.failures[0]
        rule = "must end with a trained series"
        fix = "Mend that and repeat"
        raise first.error or V8Error(where="v8.train", rule=rule, got=str(first.reason), fix=fix)
    series_of_run = read_run(prepared.plan.path).series
    failed = {str(failure.series): str(failure.reason) for failure in summary.failures}
    refused = {name: reason for name, reason in failed.items() if name not in series_of_run}
    yield {"path": str(prepared.plan.path), "refused": refused}


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
    rows = RunOutputs(run, report_error, redraws_all=True).write()
    printing.print_leaderboard(rows, run)
    try:
        if not any(isinstance(error, StorageError) for error in errors):
            pictures = draw_pictures(run, rows)
            printing.print_page(run / REPORT_FILE)
            print_all_lines(f"Picture: {path}" for path in pictures)
    except StorageError as error:
        report_error(error)
    return max((error.exit_code for error in errors), default=0)


<<<<<<< HEAD
=======
def stale_rule(when: str, max_age_days: float | None) -> StalenessRule:
    """Return the rule by which models are stale, from `--when` and `--max-age`.

    Raises `ProfileError` if one of them is wrong, or they contradict each other.
    """
    require_one_of("--when", when, STALENESS_RULES, fix="Choose one of these")
    if max_age_days is not None and (when != "age" or not math.isfinite(max_age_days)):
        rule = "is a number of days, for --when age"
        fix = "Write for example --max-age 7, or leave it out"
        raise ProfileError(where="--max-age", rule=rule, got=f"{max_age_days} with --when {when}", fix=fix)
    return StalenessRule(when, max_age_days)


def newest_source(run: Path) -> str:
    """Return the name of the source of a run, or of the one that has newer candles of the same market."""
    source = read_run(run).source
    return "live" if source == "vision" and "live" in SOURCES else source


def renew(renewal: Renewal, chosen: Sequence[Series], engine: Engine) -> bool:
    """Renew stale models; return whether every series could be examined and trained."""
    set_exit_message(f"interrupted: what served in {renewal.run} serves on. Go on with: {renewal.command}")
    with FolderLock(renewal.run):
        steps = []
        observer = ObserverGroup([printing.RunDisplay(), ReportWriter()])
        for step in renewal.renew(chosen, engine, observer):
            _print_renewal(step)
            steps.append(step)
        rows = RunOutputs(renewal.run, print_error).write()  # also after a kill between a decision and this
    if any(decision.is_replaced for step in steps for decision in step.decisions):
        printing.print_leaderboard(rows, renewal.run)
    return not any(step.failures for step in steps)


def preview_renewal(renewal: Renewal, chosen: Sequence[Series]) -> None:
    """Print what is stale and would be trained."""
    unfinished: set[Series] = set()
    for generation, undecided in renewal.unfinished_generations(chosen):
        print_lines(f"Generation {generation} was begun and would be finished first: {listed(undecided)}.")
        unfinished.update(undecided)
    left = [series for series in chosen if series not in unfinished]
    if left:
        report = renewal.check_staleness(left)
        _print_renewal(report)
        if report.stale:
            plan = renewal.plan(renewal.next_generation(report.stale), list(report.stale))
            printing.print_plan(plan, renewal.source)


def _print_renewal(step: StalenessReport | GenerationResult) -> None:
    """Print how old the models are, or which models serve after a new generation was trained."""
    if isinstance(step, StalenessReport):
        rows = [
            (model.series, model.generation, model.until, model.live, "yes" if model.is_stale else "no")
            for model in step.assessments
        ]
        header = ("series", "generation", "newest candle", "live record × naive", "stale")
        print_table(Table(header, rows, "What serves"))
        print_all_lines(f"{model.series}: {model.reason}." for model in step.assessments)
    else:
        print_decisions(step)
    if step.failures:
        reasons = [(str(failure.series), failure.reason or "") for failure in step.failures]
        print_reasons(f"{len(reasons)} series failed; what served serves on", reasons)


def print_decisions(renewed: GenerationResult) -> None:
    """Print the errors of new and old models, and which of them serve."""
    measure = "MAE relative to naive on candles that neither was trained on"
    print_table(change_table(renewed.decisions, f"Generation {renewed.generation}: {measure}"))
    for decision in renewed.decisions:
        verdict = "the challenger serves" if decision.is_replaced else "the champion stays"
        print_lines(f"{decision.series}: {verdict}; of the challenger: {decision.why}.")


NOTE: Final = (
    "Errors are relative to the naive forecast's. Profiles that look differently far back or ahead evaluate "
    "other windows, and near bars are easier: compare × best. Smaller: series and folds in which the error "
    "is the smaller one, be it by chance."
)


def compare_folds(
    backtests: Sequence[BacktestOptions], source: CandleSource, engine: Engine, out: Path
) -> None:
    """Carry out a back-test of each profile in a folder of its name, and print their pools in one table."""
    results_by_profile = {
        backtest.profile.name: evaluate_folds(out / backtest.profile.name, backtest, source, engine)
        for backtest in backtests
    }
    num_profiles = plural(len(results_by_profile), "profile")
    title = f"{num_profiles} over {plural(backtests[0].num_folds, 'fold')}"
    print_table(page.pool_table(results_by_profile, title))
    print_lines(NOTE)
    if any(results.failures for results in results_by_profile.values()):
        raise typer.Exit(SeriesError.exit_code)


>>>>>>> work/clean
def fold_observer() -> RunObserver:
    """Return what follows the folds of a back-test: each is a run, and its report is drawn at its end."""
    return ObserverGroup([printing.RunDisplay(), ReportWriter(only_at_end=True)])


def evaluate_folds(
    path: Path, options: BacktestOptions, source: CandleSource, engine: Engine
) -> BacktestResults:
    """Carry out a back-test in its folder, or the rest of it; write its files and print its tables."""
    with hold_backtest(path):
        set_exit_message(f"interrupted: {path} is saved. Continue with: {options.command}")
        finished = run_folds(path, options, source, engine, fold_observer())
        results = read_results(path, finished.plan, finished.failures)
        files = page.write_backtest(path, results)
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
    print_lines(f"Written: {', '.join(map(str, files))}")
    printing.print_page(path / page.PAGE_FILE)
    return results


if __name__ == "__main__":
    watch_interrupts()
    handle_request(RunOptions, train)
