"""What a run prints: live bars on a terminal, plain lines elsewhere, tables at the end.

Nothing but text and line ends goes to anything that is not a terminal.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import rich.table
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from v8.artifacts.run_folder import ERROR_FILE
from v8.errors import V8Error
from v8.losses.leaderboard import LeaderboardRow, compared
from v8.losses.table import ALPHA, Against
from v8.machine.starting import quiet_start
from v8.market.series import Series, iso
from v8.market.sources.source import CandleSource
from v8.runs import events
from v8.runs.execution import NewerCandles, Summary
from v8.runs.outputs import REPORT_FILE
from v8.runs.plan import ASSUMED_FLOP_PER_S_PER_CORE, Plan, RunCost, Work, estimate_work, known_cost
from v8.wording import ABSENT, Table, duration, epochs, number, percent, plural

PLAIN_WIDTH = 160
"""Columns of tables that go to a file or pipe, which has no width of its own."""

MAX_BARS = 8
"""Series with a bar of their own on a terminal; more at work at the same time are only counted."""


def make_console() -> Console:
    """Return a console on standard output: as wide as the terminal, or plain and wide."""
    if sys.stdout.isatty():
        return Console()
    return Console(width=PLAIN_WIDTH, color_system=None, force_terminal=False, highlight=False)


def print_table(table: Table) -> None:
    """Print a table below its title; of prose, only the last column is broken into lines."""
    print_lines(table.title)
    first, *others = table.columns
    columns = [Column(first, overflow="fold")]
    columns += [Column(name, justify="right", overflow="fold") for name in others]
    if table.is_prose:
        *others, last = table.columns
        columns = [*(Column(name, no_wrap=True) for name in others), Column(last, overflow="fold")]
    shown = rich.table.Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in table.rows:
        shown.add_row(*(escape(str(cell)) for cell in row))
    make_console().print(shown)


def print_reasons(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print a table of series and the reasons why they failed."""
    print_table(Table(("series", "reason"), rows, title, is_prose=True))


@contextmanager
def open_display(plan: Plan) -> Iterator[events.Listener]:
    """Show the progress of a plan until the block ends."""
    console = make_console()
    if not console.is_terminal:
        yield partial(_print_event, _Tally(len(plan.todo)))
        return
    told = TextColumn("{task.fields[told]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), told, TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield _LiveDisplay(plan, progress)


def print_plan(plan: Plan, source: CandleSource) -> None:
    """Print what a run would do, and about how long it would take; DataError if its bars are too few."""
    profile, work = plan.profile, estimate_work(plan.profile)
    cost = known_cost(profile)
    with quiet_start():
        from v8.networks.networks import build_network, num_parameters
        from v8.training.formula import num_fitted

        is_formula = profile.family.is_formula
        parameters = num_fitted(profile) if is_formula else num_parameters(build_network(profile, seed=0))
    windows = "/".join(f"{number:,}" for number in work.num_windows.values())
    rows = []
    for one in plan.series:
        about = duration(cost.series_s, is_estimate=True) if cost else ABSENT
        takes = duration(0, is_estimate=True) if one.status == "done" else about
        rows.append((one.series, one.status, one.seed, f"{work.num_rows:,}", windows, takes))
    header = ("series", "state", "seed", "rows", "windows train/validation/test", "estimated time")
    print_table(Table(header, rows, f"Plan of {plan.path} (nothing is done)"))
    print_lines(
        f"Profile {profile.name}, digest {profile.digest[:12]}, candles from {source.name}.",
        f"Each of {len(plan.todo)} series: {' -> '.join(events.STAGES)}.",
        f"Network: {parameters:,} parameters, {work.flop_per_window / 1e6:,.0f} MFLOP per training window.",
        f"Rows and windows are for {work.num_bars:,} unbroken candles; gaps and young coins have fewer.",
        _estimate(plan, work, cost),
    )


def _estimate(plan: Plan, work: Work, cost: RunCost | None) -> str:
    """Say how long a plan takes, from what runs of its profile took here; without one, what is not known."""
    num, each = len(plan.todo), plural(plan.profile.training.epochs, "epoch")
    if cost:
        whole = duration(cost.series_s * num, is_estimate=True)
        took = f"{plural(cost.num_series, 'model')} took {duration(cost.seconds, is_estimate=True)} here"
        return f"Estimated time: about {whole}, judging and saving included: {took}, of at most {each} each."
    training = duration(work.training_s * num, is_estimate=True)
    return (
        f"Estimated time: not known. Training itself takes at most {training} for {each} each, assuming "
        f"{ASSUMED_FLOP_PER_S_PER_CORE / 1e9:.0f} GFLOP/s per core. Compiling, features, judging (every "
        "baseline is fitted for each series) and saving come on top, often longer than that; the first run "
        "of this profile on this machine measures them."
    )


def print_summary(summary: Summary, run: Path, rows: Sequence[LeaderboardRow]) -> None:
    """Print leaderboard, failures, and where everything lies."""
    print_leaderboard(rows)
    if summary.failures:
        title = f"{len(summary.failures)} series failed"
        if any((run / str(failure.series) / ERROR_FILE).exists() for failure in summary.failures):
            title += f"; more about it is in {ERROR_FILE} in their folders"
        reasons = [(str(failure.series), failure.reason or "") for failure in summary.failures]
        print_reasons(title, reasons)
    print_lines(
        f"{summary.num_trained} series trained now, {summary.num_finished_before} finished before, "
        f"{len(summary.failures)} failed."
    )
    if (run / REPORT_FILE).exists():
        print_lines(f"Report: {run / REPORT_FILE}")
    print_lines(f"Run folder: {run}")


def print_newer(newer: Sequence[NewerCandles], update: str, fresh: str) -> None:
    """Print that there are candles which the run does not use, and the commands that do.

    `update` trains a new generation and lets the better one serve, `fresh` starts a new run.
    """
    if not newer:
        return
    most, first = max(each.num_bars for each in newer), min(each.first_s for each in newer)
    count = f"{most:,} new {'candle' if most == 1 else 'candles'}"
    of = f"{newer[0].series} has {count}" if len(newer) == 1 else f"{len(newer)} series have up to {count}"
    print_lines(
        f"{of} from {iso(first)} on, which this run does not use.",
        f"Train on them; the old models are kept and serve on where they are better: {update}",
        f"Or start over beside this run: {fresh}",
    )


def print_leaderboard(rows: Sequence[LeaderboardRow]) -> None:
    """Print errors as multiples of the naive forecast's and the best baseline's: below 1 is less."""
    if not rows:
        print_lines("No series is finished.")
        return
    every = compared(rows)
    header = ("series", *(f"{task} × {name}" for task, name in every), "direction", "best epoch", "seconds")
    cells = []
    for row in rows:
        multiples = (_multiple(row.compared[key]) if key in row.compared else "" for key in every)
        about = "" if row.hit_rate is None else percent(row.hit_rate), epochs(row.best_epoch, row.epochs_run)
        cells.append([row.series, *multiples, *about, f"{row.total_seconds:.1f}"])
    demo = " - DEMO MARKET, simulated, not a real coin" if any(row.source == "demo" for row in rows) else ""
    title = f"Leaderboard: mean absolute error as a multiple of a forecast without a network{demo}"
    print_table(Table(header, cells, title))
    title = "Beside the naive forecast and the best baseline of each task over these series"
    header = ("task", "beside", "series", "median", "beat it", "lose to it", "no real difference")
    wins = (
        [
            *(task, name, one.num_series, f"× {number(one.median_multiple)}"),
            *(one.num_beating, one.num_losing, one.num_undecided),
        ]
        for (task, name), one in every.items()
    )
    print_table(Table(header, wins, title))
    if any(score.naive.p_value is not None for row in rows for score in row.tasks.values()):
        print_lines(f"{reading_marks(len(rows))} (Benjamini-Hochberg).")
    else:
        why = "the test spans hold too few windows to test."
        print_lines(f"Below 1 the model errs less. Nothing is known yet: {why}")


def reading_marks(num_series: int) -> str:
    """Say how multiples and their marks are read, as a sentence without its stop."""
    return (
        "Below 1 the model errs less. * differs by more than chance: Diebold-Mariano test, p < "
        f"{ALPHA:g}, corrected for {num_series} series at once"
    )


def print_lines(*lines: str) -> None:
    """Print lines as they are, unwrapped."""
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def tell(text: str) -> None:
    """Print a line that is no result to standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def tell_error(error: V8Error) -> None:
    """Print an error that does not end the command."""
    tell(f"error: {error}")


@dataclass
class _Tally:
    """Which of `num_series` series are at work, how many have ended, and how long the others may take."""

    num_series: int
    num_ended: int = 0
    num_side_by_side: int = 1
    started: set[Series] = field(default_factory=set)
    at_work: set[Series] = field(default_factory=set)
    finished_s: list[float] = field(default_factory=list)

    def start(self, series: Series) -> None:
        """Count a series in; again, when its worker died and another one starts it."""
        self.started.add(series)
        self.at_work.add(series)
        self.num_side_by_side = max(self.num_side_by_side, len(self.at_work))

    def end(self, outcome: events.Outcome) -> None:
        """Count a series out; only a finished one tells how long series take."""
        self.at_work.discard(outcome.series)
        self.num_ended += 1
        if outcome.reason is None:
            self.finished_s.append(outcome.seconds)

    def state(self) -> list[str]:
        """Say how many still train, and about how long the rest takes; nothing when nothing is left."""
        num_left = self.num_series - self.num_ended
        said = [f"{len(self.at_work)} still training"] if self.at_work else []
        if self.finished_s and num_left:
            # Those at work count as half done: some have just begun, some have almost ended.
            one_s = sum(self.finished_s) / len(self.finished_s)
            num_whole = num_left - len(self.at_work) / 2
            left_s = one_s * num_whole / min(self.num_side_by_side, num_left)
            said.append(f"about {duration(left_s, is_estimate=True)} left")
        return said


def _print_event(tally: _Tally, event: events.Event) -> None:
    """Print one line for an event worth one."""
    if isinstance(event, events.Note):
        print_lines(event.text)
    elif isinstance(event, events.SeriesStarted):
        tally.start(event.series)
        print_lines(f"{event.series}: started ({len(tally.started)} of {tally.num_series})")
    elif isinstance(event, events.EpochEnded):
        epoch = f"epoch {event.record.epoch} of {event.num_epochs}"
        print_lines(f"{event.series}: {epoch}, {_losses(event)}")
    elif isinstance(event, events.Outcome):
        tally.end(event)
        state = [f"{tally.num_ended} of {tally.num_series} ended", *tally.state()]
        print_lines(f"{_ending(event)} ({', '.join(state)})")
    elif isinstance(event, events.Waiting):
        print_lines(f"{event.series}: {event.text}")
    elif event.stage == "candles":
        print_lines(f"{event.series}: reading candles")


COMPILING: Final = "compiling, up to a minute"
"""What a series does in the stage `train` before its first epoch ends."""


class _LiveDisplay:
    """A bar over all series, and one over the epochs of each series at work."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._progress = progress
        self._tally = _Tally(len(plan.todo))
        self._candles = progress.add_task("candles", total=len(plan.series), told="")
        self._all = progress.add_task("series", total=len(plan.todo), told="", visible=False)
        self._bars: dict[Series, TaskID] = {}

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Note):
            self._progress.console.print(escape(event.text))
        elif isinstance(event, events.SeriesStarted):
            self._start(event.series)
        elif isinstance(event, events.Outcome):
            self._end(event)
        elif isinstance(event, events.StageStarted) and event.stage == "candles":
            self._progress.update(self._candles, advance=1, told=str(event.series))
        elif isinstance(event, events.Waiting):
            self._progress.update(self._candles, told=escape(f"{event.series}: {event.text}"))
        elif event.series in self._bars:
            bar = self._bars[event.series]
            if isinstance(event, events.StageStarted):
                told = COMPILING if event.stage == "train" else ""
                self._progress.update(bar, description=f"{event.series} {event.stage}", told=told)
            else:
                done = event.record.epoch
                self._progress.update(bar, total=event.num_epochs, completed=done, told=_losses(event))

    def _start(self, series: Series) -> None:
        self._tally.start(series)
        self._progress.update(self._candles, visible=False)
        self._progress.update(self._all, visible=True, told=", ".join(self._tally.state()))
        if series not in self._bars and len(self._bars) < MAX_BARS:
            self._bars[series] = self._progress.add_task(str(series), total=None, told="")

    def _end(self, outcome: events.Outcome) -> None:
        self._tally.end(outcome)
        if outcome.series in self._bars:
            self._progress.remove_task(self._bars.pop(outcome.series))
        self._progress.update(self._all, advance=1, told=", ".join(self._tally.state()))
        # Last, so that no bar of an ended series is drawn below the line that says so.
        self._progress.console.print(escape(_ending(outcome)))


def _multiple(against: Against) -> str:
    # The blank keeps the points of numbers with and without a mark below each other.
    mark = "*" if against.is_significant else " "
    return f"- {mark}" if against.multiple is None else f"{against.multiple:.3f}{mark}"


def _losses(event: events.EpochEnded) -> str:
    record = event.record
    return (
        f"loss {record.train_loss:.5f}, validation {record.validation_loss:.5f}"
        f"{' (best)' if record.is_best else ''}, {record.windows_per_s:,.0f} windows/s"
    )


def _ending(outcome: events.Outcome) -> str:
    done = f"{outcome.series}: done in {outcome.seconds:.1f} s"
    return f"failed: {outcome.reason}" if outcome.reason else done
