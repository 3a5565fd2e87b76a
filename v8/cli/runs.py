"""What `run`, `report` and `backtest` print: progress bars on a terminal, plain lines elsewhere, then tables.

When they are interrupted, what was finished is saved and old models serve on; the same command continues.
"""

import webbrowser
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from v8.api.results import (
    FinishedRun,
    ProgressLines,
    carry_out,
    counts,
    ending,
    evaluate_folds,
    fold_observer,
    losses,
    repeat_with_seeds,
    still_to_come,
)
from v8.base.errors import DataError, SeriesError, StorageError, V8Error, listed
from v8.base.process import command
from v8.base.registry import next_steps
from v8.base.terminal import (
    make_console,
    print_all_lines,
    print_error,
    print_lines,
    print_message,
    print_page,
    print_reasons,
    print_table,
)
from v8.base.wording import Table, duration, for_terminal, plural
from v8.data.market.series import Series, iso
from v8.data.market.sources import CandleSource, present_source
from v8.data.windows import windows_without_holes
from v8.forecaster.metadata import ERROR_FILE
from v8.model.baselines.baselines import NAIVE
from v8.model.evaluation.leaderboard import compared, untested
from v8.model.evaluation.significance import reading_marks
from v8.profile.columns import TASK_BANDS, TASK_VOLATILITY
from v8.profile.profile import audiences, load_profile
from v8.publish.report import backtest as page
from v8.publish.report.markup import DEMO_WARNING
from v8.publish.report.outputs import REPORT_FILE, RunOutputs, RunResults, draw_pictures
from v8.publish.report.verdict import best_baselines_in_words, titled, verdict
from v8.runs import events
from v8.runs.backtest import Backtest, BacktestResults
from v8.runs.estimate import ProgressEstimate, known_cost
from v8.runs.events import RunContext, RunObserver, RunSummary
from v8.runs.execution import new_record
from v8.runs.options import PreparedBacktest, PreparedRun, RunOptions
from v8.runs.plan import Engine, Plan, series_seed
from v8.runs.run_folder import require_startable

MOST_PROGRESS_BARS = 8
"""Series with a progress bar of their own on a terminal; further ones are only counted."""

COMPILING: Final = "compiling, up to a minute"
"""What a series does in the stage `train` before its first epoch ends."""

MEASURING: Final = "A run of this profile measures it; one series is enough."


class RunDisplay(RunObserver):
    """Shows the progress of runs: bars on a terminal, lines elsewhere.

    Args:
        opens: Whether to open the page of a run in the browser once there is one.
        is_verbose: Whether lines name every epoch of every series.
    """

    def __init__(self, *, opens: bool = False, is_verbose: bool = False) -> None:
        self._opens = opens
        self._resources = ExitStack()
        self._lines = ProgressLines(print_lines, is_verbose=is_verbose)
        self._live: _LiveDisplay | None = None

    def on_begin(self, context: RunContext) -> None:
        """Begin to show a plan."""
        self._lines.on_begin(context)
        console = make_console()
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
            progress = Progress(*columns, TimeElapsedColumn(), console=console)
            self._resources.enter_context(progress)
            self._live = _LiveDisplay(context.plan, progress)

    def on_event(self, event: events.Event) -> None:
        """Show an event; between two runs as a line."""
        if self._live:
            self._live(event)
        else:
            self._lines.on_event(event)
        if self._opens and isinstance(event, events.PageWritten):
            open_page(event.page)

    def on_end(self) -> None:
        """End the display of the run."""
        self._resources.close()
        self._live = None


def run_and_print(prepared: PreparedRun, display: RunDisplay) -> RunSummary:
    """Carry out a run, print its results, and publish them if requested; `display` shows its progress."""
    path = prepared.plan.path
    repo = prepared.repo
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
    plan = prepared.plan
    path = plan.path
    summary = finished.summary
    print_summary(summary, path, finished.results)
    if prepared.is_smoke and finished.results.rows:
        print_lines("A smoke run shows that all works: its errors, of one epoch, say nothing of the profile.")
    others = [
        f"{step.sentence}: {command(*step.words, str(path), *prepared.candle_words)}"
        for step in next_steps("newer_candles")
    ]
    print_newer(summary.newer_candles, others, fresh=f"{plan.command} --fresh")
    failed = {failure.series for failure in summary.failures}
    if len(failed) < len(plan.series):
        source_name = prepared.source.name
        is_default = source_name == RunOptions.model_fields["source"].default
        source_flag = [] if is_default else ["--source", present_source(source_name)]
        print_lines(f"Forecast: {command('predict', str(path), *source_flag, *prepared.candle_words)}")
    is_complete = plan.recipe.is_evaluated and not prepared.is_smoke and not failed
    if plan.recipe.is_publishable and is_complete and not prepared.repo:
        print_lines(f"Publish: {command('publish', str(path), '--repo', 'USER/NAME')}")


def preview(prepared: PreparedRun) -> int:
    """Print the plan; return the exit code that the run would have because the source lacks some series.

    Raises a `V8Error` if the run would be refused because of what its folder holds.
    """
    require_startable(prepared.plan.path, new_record(prepared.plan, prepared.source))
    print_plan(prepared.plan, prepared.source)
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
    print_leaderboard(results)
    try:
        if not any(isinstance(error, StorageError) for error in errors):
            pictures = draw_pictures(run, results.rows)
            print_page(run / REPORT_FILE)
            print_all_lines(f"Picture: {path}" for path in pictures)
    except StorageError as error:
        report_error(error)
    return max((error.exit_code for error in errors), default=0)


def repeat_and_print(prepared: PreparedBacktest, results: BacktestResults) -> bool:
    """Repeat a back-test with other seeds, and print how far its headline numbers spread.

    Returns whether every series is evaluated with every seed.
    """
    finished = repeat_with_seeds(prepared, results, RunDisplay, print_lines)
    print_table(page.seeds_table(finished.spreads, finished.num_seeds))
    print_lines(f"Written: {finished.file}")
    return finished.is_complete


def evaluate_and_print(
    path: Path, backtest: Backtest, source: CandleSource, engine: Engine
) -> BacktestResults:
    """Carry out a back-test in its folder, or the rest of it, and print its tables."""
    finished = evaluate_folds(path, backtest, source, engine, fold_observer(RunDisplay()))
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


def open_page(page: Path) -> None:
    """Open a page in the browser; where there is none, say so."""
    if not webbrowser.open(page.absolute().as_uri()):
        print_message("There is no browser to open the page with; its address opens it in any.")


def print_plan(plan: Plan, source: CandleSource) -> None:
    """Print what a run would do, and about how long it would take.

    Raises `DataError` if the profile's candles are too few.
    """
    profile = plan.profile
    audience = audiences().get(profile.name)
    num_windows = windows_without_holes(profile.newest_bars, profile)
    windows = "/".join(f"{count:,}" for count in num_windows.values())
    rows = [(series, status, series_seed(profile, series)) for series, status in plan.series.items()]
    print_table(Table(("series", "state", "seed"), rows, f"Plan of {plan.path} (nothing is done)"))
    if plan.dropped:
        print_lines(f"Taken out of the run: {listed(plan.dropped)}.")
    print_lines(f"Profile {profile.name}, digest {profile.digest[:12]}, candles from {source.name}.")
    if audience:
        print_lines(f"For {audience}.")
    print_lines(
        f"Each of {len(plan.todo)} series: {' -> '.join(events.STAGES)}.",
        f"Windows to train on, validate, test: {windows}, in {profile.newest_bars:,} candles without gaps.",
        _estimate(plan),
    )


def _estimate(plan: Plan) -> str:
    """Say how long a plan will take, by the time that earlier runs of its profile took on this machine."""
    cost = known_cost(plan.profile)
    if not plan.todo:
        return "Estimated time: none, for every series is done."
    estimate_s = cost.estimated_s(len(plan.todo)) if cost else None
    if cost is None or estimate_s is None:
        return f"Estimated time: not known. {MEASURING}"
    estimate = duration(estimate_s, is_estimate=True)
    took = duration(cost.seconds, is_estimate=True)
    basis = f"{cost.num_series} series took {took} here"
    about = "about"
    if cost.was_one_round and cost.own_s is not None and estimate_s != cost.seconds:
        own = duration(cost.own_s, is_estimate=True)
        order = f"{cost.num_side_by_side} in parallel" if cost.num_side_by_side > 1 else "one after another"
        each = f"each fleet of {cost.fleet_size}" if cost.fleet_size > 1 else "each of them"
        about = "at most about"  # the first of a process imports and traces, which later ones find done
        basis += f", {each} {own} without starting and compiling; taken to run {order}"
    return f"Estimated time: {about} {estimate}, evaluating and saving included: {basis}."


def print_profiles() -> None:
    """Print for whom each shipped profile is, and what 40 series of it cost on this machine."""
    rows = []
    for name, audience in audiences().items():
        cost = known_cost(load_profile(name))
        estimate_s = cost.estimated_s(40) if cost else None
        rows.append((name, duration(estimate_s, is_estimate=True), audience))
    title = "Shipped profiles, and what 40 series of each took here"
    print_table(Table(("profile", "time", "for whom"), rows, title, is_prose=True))
    print_lines(
        "Times are what runs took here, evaluating and saving included. A run of a profile measures it."
    )


def print_summary(summary: events.RunSummary, run: Path, results: RunResults) -> None:
    """Print leaderboard, failures, and where everything lies.

    Where every series of this call failed, the leaderboard would be about others; they are only named.
    """
    is_nothing_finished = summary.num_trained + summary.num_finished_before == 0
    if is_nothing_finished and results.rows:
        others = listed([row.series for row in results.rows])
        print_lines(f"Finished in this run folder, but not part of this call: {others}.")
    else:
        print_leaderboard(results)
    if summary.failures:
        title = f"{len(summary.failures)} series failed"
        if any((run / str(failure.series) / ERROR_FILE).exists() for failure in summary.failures):
            title += f"; more about it is in {ERROR_FILE} in their folders"
        reasons = [(str(failure.series), failure.reason or "") for failure in summary.failures]
        print_reasons(title, reasons)
    print_without_onnx(summary.without_onnx)
    print_lines(counts(summary))
    print_page(run / REPORT_FILE)
    print_lines(f"Run folder: {run}")


def print_without_onnx(outcomes: Sequence[events.SeriesOutcome]) -> None:
    """Print which series have no ONNX file although one was wanted, and why."""
    if outcomes:
        faults = [(str(outcome.series), outcome.onnx_fault or "") for outcome in outcomes]
        print_reasons(f"{len(outcomes)} without ONNX file", faults)


def print_newer(newer: Sequence[events.NewerCandles], others: Sequence[str], fresh: str) -> None:
    """Print that there are candles which the run does not use, and the commands that do.

    Args:
        newer: Series with newer candles.
        others: What annexes offer, each a sentence with its command.
        fresh: The command that starts a new run.
    """
    if not newer:
        return
    most = max(series.num_bars for series in newer)
    first = min(series.first_s for series in newer)
    subject = f"{newer[0].series} has" if len(newer) == 1 else f"{len(newer)} series have up to"
    print_lines(
        f"{subject} {plural(most, 'new candle')} from {iso(first)} on, which this run does not use.",
        *others,
        f"Or start over next to this run: {fresh}",
    )


def print_leaderboard(results: RunResults) -> None:
    """Print errors relative to those of the naive forecast and of the best baseline; below 1 is better."""
    rows = results.rows
    if not rows and results.is_evaluated:
        print_lines("No series is finished.")
        return
    if not rows:
        print_lines("Not evaluated: nothing is known of its errors.")
        return
    print_all_lines(verdict(rows, results.intervals))
    comparisons = compared(rows)
    cells = []
    for row in rows:
        line = [str(row.series)]
        for by_series in comparisons.values():
            comparison = by_series.get(row.series)
            line.append(comparison.marked if comparison else "")
        cells.append(line)
    demo = " - DEMO MARKET, simulated, not a real coin" if any(row.source == "demo" for row in rows) else ""
    title = f"Leaderboard: the model's mean absolute error as a multiple (×) of another forecast's{demo}"
    columns = ["series"]
    for task, name in comparisons:
        columns.append(f"{_brief_title(task)} × {NAIVE if name == NAIVE else 'best'}")
    print_table(Table(columns, cells, title))
    if any(name != NAIVE for _, name in comparisons):
        print_lines(f"Best baselines (× best): {best_baselines_in_words(rows)}.")
    if any(score.naive.p_value is not None for row in rows for score in row.tasks.values()):
        print_lines(f"{reading_marks(len(rows))} (Benjamini-Hochberg).")
        without_test = untested(rows)
        if without_test:
            print_lines(f"Not tested, too few windows: {listed(without_test)}.")
    else:
        why = "the test spans hold too few windows to test."
        print_lines(f"Below 1 the model has the lower error. Nothing is known yet: {why}")


def _brief_title(task: str) -> str:
    """Return the title of a task in a column's head: so that eight columns fit in 80 letters."""
    return {TASK_BANDS: "Bands", TASK_VOLATILITY: "Vol"}.get(task, titled(task))


class _LiveDisplay:
    """A bar over all series, and one over the epochs of each series at work.

    Before the first series starts, the first bar moves without an end: a full bar would look finished.
    """

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._pace = ProgressEstimate(len(plan.todo))
        self._progress = progress
        self._num_read = 0
        self._num_series = len(plan.series)
        self._all = progress.add_task("candles", total=self._num_series, state="")
        self._bars: dict[Series, TaskID] = {}

    def __str__(self) -> str:
        """Return how many series have ended. Rich calls it whenever it draws: time passes between events."""
        return f"{self._pace.num_ended} of {self._pace.num_series}{still_to_come(self._pace)}"

    def __call__(self, event: events.Event) -> None:
        self._pace.on_event(event)
        if isinstance(event, events.GettingReady):
            self._progress.remove_task(self._all)
            self._all = self._progress.add_task("getting ready", total=None, state="")
        elif isinstance(event, events.Note):
            self._progress.console.print(escape(for_terminal(event.text)))
        elif isinstance(event, events.SeriesStarted):
            self._start(event.series)
        elif isinstance(event, events.SeriesOutcome):
            self._end(event)
        elif isinstance(event, events.StageStarted) and event.stage == "candles":
            self._num_read += 1
            state = f"{self._num_read} of {self._num_series}: {event.series}"
            self._progress.update(self._all, completed=self._num_read - 1, state=state)
        elif isinstance(event, events.Waiting):
            self._progress.update(self._all, state=escape(for_terminal(f"{event.series}: {event.text}")))
        elif event.series in self._bars:
            self._update_bar(self._bars[event.series], event)

    def _update_bar(self, bar: TaskID, event: events.EpochEnded | events.StageStarted) -> None:
        """Show in the bar of a series that an epoch has ended or a stage starts."""
        if isinstance(event, events.EpochEnded):
            epoch, _, validation, _ = losses(event)
            state = f"{epoch}, {validation}"
            self._progress.update(bar, total=event.num_epochs, completed=event.record.epoch, state=state)
        else:
            state = COMPILING if event.stage == "train" else ""
            # The bar starts again at zero: what follows is no epoch.
            self._progress.reset(bar, description=f"{event.series} {event.stage}", state=state)

    def _start(self, series: Series) -> None:
        self._progress.update(self._all, description="series", total=self._pace.num_series, state=self)
        if series not in self._bars and len(self._bars) < MOST_PROGRESS_BARS:
            self._bars[series] = self._progress.add_task(str(series), total=None, state="")

    def _end(self, outcome: events.SeriesOutcome) -> None:
        if outcome.series in self._bars:
            self._progress.remove_task(self._bars.pop(outcome.series))
        self._progress.update(self._all, completed=self._pace.num_ended, refresh=True)
        # Last, so that no bar of an ended series is drawn below the line that says so.
        self._progress.console.print(escape(for_terminal(ending(outcome))))
