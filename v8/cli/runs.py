"""What `run`, `report`, `update` and `backtest` do and print; and the process that `v8.train` starts.

Interrupted, what was finished is saved, old models serve on, and the same command goes on where it was.

The process of `v8.train` is asked for a run in JSON and does what the command line does. One of its own
starts TensorFlow as v8 wants it, whatever a notebook has done to it, needs no `if __name__ == "__main__"`
there, and gives the same weights.
"""

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer

from v8.artifacts.nested_runs import hold_backtest
from v8.artifacts.run_folder import read_run
from v8.cli import printing
from v8.cli.options import require_one_of
from v8.cli.printing import print_lines, print_reasons, print_table, tell_error
from v8.errors import DataError, ProfileError, SeriesError, StorageError, V8Error, listed
from v8.invocation import command
from v8.machine.interruption import set_last_words, watch_interrupts
from v8.machine.processes import serve
from v8.market.series import Series
from v8.market.sources.source import SOURCES, CandleSource
from v8.promotion.renewal import STALENESS_RULES, GenerationResult, Renewal, StalenessReport, StalenessRule
from v8.reports import backtest as page
from v8.reports.markup import DEMO_WARNING
from v8.reports.verdict import change_table
from v8.runs.execution import AskedBacktest, Summary, TrainAll, run, run_folds
from v8.runs.options import PreparedRun, RunOptions
from v8.runs.outputs import REPORT_FILE, RunOutputs, draw_pictures
from v8.search.search import FILES, START, Search
from v8.storage import FolderLock
from v8.tracking import check_trackers
from v8.wording import ABSENT, Table, plural


def carry_out(prepared: PreparedRun, *, opens: bool = False) -> Summary:
    """Do what a run is asked for, and print what came of it; on request open its page, too."""
    path = prepared.plan.path
    repo = prepared.options.publish
    if repo:
        from v8.cli import hub

        hub.check_publishing(repo, prepared.source)
    summary = _carried_out(prepared, opens=opens)
    if repo and summary.failures:
        partly = command("publish", str(path), "--repo", repo, "--partial")
        printing.tell(f"not published, because some series failed. Publish the others with: {partly}")
    elif repo:
        hub.publish_run(path, repo)
    return summary


def _carried_out(prepared: PreparedRun, *, opens: bool) -> Summary:
    """Run the plan; what can be done then is printed as commands to paste."""
    options = prepared.options
    path = prepared.plan.path
    check_trackers(options.track)
    set_last_words(f"interrupted: {path} is saved. Continue with: {options.command}")
    show = partial(printing.open_display, opens=opens)
    words = options.command
    summary = run(
        prepared.plan, prepared.source, prepared.train_all, show, command=words, trackers=options.track
    )
    printing.print_summary(summary, path, summary.rows)
    given = {"--data-dir": options.data_dir, "--tables": options.tables}
    folders = [word for flag, place in given.items() if place for word in (flag, str(place))]
    printing.print_newer(summary.newer, command("update", str(path), *folders), f"{options.command} --fresh")
    failed = {failure.series for failure in summary.failures}
    if len(failed) < len(prepared.plan.series):
        is_default = options.source == RunOptions.model_fields["source"].default
        candles = [*([] if is_default else ["--source", options.source]), *folders]
        print_lines(f"Forecast: {command('predict', str(path), *candles)}")
    is_whole = options.evaluate and not options.smoke and not failed
    if prepared.source.is_publishable and is_whole and not options.publish:
        print_lines(f"Publish: {command('publish', str(path), '--repo', 'USER/NAME')}")
    return summary


def train(options: RunOptions) -> Iterator[Any]:
    """Carry out a run and name its folder.

    Raises:
        V8Error: If it ends without a trained series: why the first of them failed.
    """
    try:
        prepared = options.prepared()
        summary = carry_out(prepared)
    except OSError as error:  # of a place that nothing of ours looks after
        raise StorageError.out_of_reach(error) from error
    is_empty = summary.exit_code == DataError.exit_code or not read_run(prepared.plan.path).done
    if is_empty and summary.failures:
        first = summary.failures[0]
        rule = "must end with a trained series"
        fix = "Mend that and repeat"
        raise first.error or V8Error(where="v8.train", rule=rule, got=str(first.reason), fix=fix)
    known = read_run(prepared.plan.path).series
    failed = {str(failure.series): str(failure.reason) for failure in summary.failures}
    refused = {name: reason for name, reason in failed.items() if name not in known}
    yield {"path": str(prepared.plan.path), "refused": refused}


def preview(prepared: PreparedRun) -> int:
    """Print the plan; return the exit code of the run where the source lacks series that were named."""
    printing.print_plan(prepared.plan, prepared.source)
    lacking = prepared.lacking()
    if not lacking:
        return 0
    print_reasons(f"{len(lacking)} series would fail", lacking)
    is_all = len(lacking) == len(prepared.plan.series)
    return (DataError if is_all else SeriesError).exit_code


def redraw(run: Path) -> int:
    """Write what a run shows anew from its artefacts, print it, and return the exit code."""
    errors: list[V8Error] = []

    def tell(error: V8Error) -> None:
        tell_error(error)
        errors.append(error)

    # Nobody is asked for the folder: every file is whole, and a run at work draws its own again.
    rows = RunOutputs(run, tell, is_anew=True).write()
    printing.print_leaderboard(rows, run)
    try:
        if not any(isinstance(error, StorageError) for error in errors):
            pictures = draw_pictures(run, rows)
            printing.print_page(run / REPORT_FILE)
            print_lines(*(f"Picture: {path}" for path in pictures))
    except StorageError as error:
        tell(error)
    return max((error.exit_code for error in errors), default=0)


def stale_rule(when: str, max_age_days: float | None) -> StalenessRule:
    """Return which models are stale, as `--when` and `--max-age` say.

    Raises `ProfileError` if they cannot mean anything.
    """
    require_one_of("--when", when, STALENESS_RULES, fix="Choose one of these")
    if max_age_days is not None and (when != "age" or not math.isfinite(max_age_days)):
        rule = "is a number of days, for --when age"
        fix = "Write for example --max-age 7, or leave it out"
        raise ProfileError(where="--max-age", rule=rule, got=f"{max_age_days} with --when {when}", fix=fix)
    return StalenessRule(when, max_age_days)


def newest_source(run: Path) -> str:
    """Name the source that has the newest candles of a run's own."""
    source = read_run(run).source
    return "live" if source == "vision" and "live" in SOURCES else source


def renew(renewal: Renewal, chosen: Sequence[Series], train_all: TrainAll) -> bool:
    """Renew what is stale, and say whether every series could be looked at and trained."""
    set_last_words(f"interrupted: what served in {renewal.run} serves on. Go on with: {renewal.command}")
    with FolderLock(renewal.run):
        came = []
        for one in renewal.renew(chosen, train_all, printing.open_display):
            _print(one)
            came.append(one)
        rows = RunOutputs(renewal.run, tell_error).write()  # also after a kill between a decision and this
    if any(one.is_replaced for each in came for one in each.decisions):
        printing.print_leaderboard(rows, renewal.run)
    return not any(each.failures for each in came)


def preview_renewal(renewal: Renewal, chosen: Sequence[Series]) -> None:
    """Print what is stale and would be trained."""
    begun: set[Series] = set()
    for generation, undecided in renewal.unfinished_generations(chosen):
        print_lines(f"Generation {generation} was begun and would be finished first: {listed(undecided)}.")
        begun.update(undecided)
    left = [one for one in chosen if one not in begun]
    if left:
        _print(looked := renewal.check_staleness(left))
        if looked.stale:
            plan = renewal.plan(renewal.next_generation(looked.stale), [*looked.stale])
            printing.print_plan(plan, renewal.source)


def _print(came: StalenessReport | GenerationResult) -> None:
    if isinstance(came, StalenessReport):
        rows = [
            (one.series, one.generation, one.until, one.live, "yes" if one.is_stale else "no")
            for one in came.assessments
        ]
        header = ("series", "generation", "newest candle", "live record × naive", "stale")
        print_table(Table(header, rows, "What serves"))
        print_lines(*(f"{one.series}: {one.reason}." for one in came.assessments))
    else:
        print_decisions(came)
    if came.failures:
        reasons = [(str(failure.series), failure.reason or "") for failure in came.failures]
        print_reasons(f"{len(reasons)} series failed; what served serves on", reasons)


def print_decisions(renewed: GenerationResult) -> None:
    """Print how good new and old models were, and which serve."""
    what = "error as a multiple of naive's on candles that neither has seen"
    print_table(change_table(renewed.decisions, f"Generation {renewed.generation}: {what}"))
    for one in renewed.decisions:
        verdict = "the challenger serves" if one.is_replaced else "the champion stays"
        print_lines(f"{one.series}: {verdict}; of the challenger: {one.why}.")


NOTE: Final = (
    "Errors are multiples of naive's. Profiles that look differently far back or ahead evaluate other windows, "
    "and near bars are easier: compare × best. Smaller: series and folds in which the error is the smaller "
    "one, be it by chance."
)


def compare_folds(
    asked: Sequence[AskedBacktest], source: CandleSource, train_all: TrainAll, out: Path
) -> None:
    """Carry out a back-test of each profile in a folder of its name, and print their pools in one table."""
    evaluated = {
        one.profile.name: evaluate_folds(out / one.profile.name, one, source, train_all) for one in asked
    }
    title = f"{plural(len(evaluated), 'profile')} over {plural(asked[0].num_folds, 'fold')}"
    print_table(page.pool_table(evaluated, title))
    print_lines(NOTE)
    if any(results.failures for results in evaluated.values()):
        raise typer.Exit(SeriesError.exit_code)


def evaluate_folds(
    path: Path, wanted: AskedBacktest, source: CandleSource, train_all: TrainAll
) -> page.BacktestResults:
    """Carry out a back-test in its folder, or what is left of it; write its files and print its tables."""
    with hold_backtest(path):
        set_last_words(f"interrupted: {path} is saved. Continue with: {wanted.command}")
        show = printing.open_display
        plan, refused = run_folds(path, wanted, source, train_all, show=show, tell=print_lines)
        results = page.read_results(path, plan, refused)
        files = page.write_backtest(path, results)
    print_lines(*([] if plan.is_publishable else [DEMO_WARNING]), page.headline(results))
    print_lines(*(line for told in page.verdicts(results) for line in told))
    for each in page.tables(results, is_short=True):
        print_table(each)
    print_lines(page.NOTE, page.BREAK_RULE)
    for fold, reasons in results.failures.items():
        print_reasons(f"Failed or not finished in {fold}", sorted(reasons.items()))
    if plan.missing:
        print_reasons("Without candles", sorted(plan.missing.items()))
    print_lines(f"Written: {', '.join(map(str, files))}")
    printing.print_page(path / page.PAGE_FILE)
    return results


def search_settings(search: Search, num_trials: int, hours: float | None) -> None:
    """Carry out a search, or what is left of it; print every trial, and the evaluation of the winner."""
    ends_s = math.inf if hours is None else time.monotonic() + 3600 * hours
    with hold_backtest(search.path / START):
        set_last_words(f"interrupted: {search.path} is saved. Continue with: {search.start.command}")
        verdict = search.run(num_trials, lambda: time.monotonic() < ends_s)
    trials = search.trials.astype(object).where(search.trials.notna(), ABSENT)
    trials = trials.map(lambda one: f"{one:.5g}" if isinstance(one, float) else one)
    title = "Trials: mean error as a multiple of the best baseline's; plateau: median of the five nearest"
    print_table(Table(("trial", *trials.columns), trials.itertuples(), title))
    print_table(page.pool_table(search.later, "The winner and the start on folds that no trial saw"))
    print_lines(NOTE, verdict, f"Written: {', '.join(str(search.path / name) for name in FILES)}")


if __name__ == "__main__":
    watch_interrupts()
    serve(RunOptions, train)
