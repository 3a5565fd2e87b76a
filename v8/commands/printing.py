"""What a run prints: live bars on a terminal, plain lines elsewhere, tables at the end.

Nothing but text and line ends goes to anything that is not a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from v8.engine.events import (
    STAGES,
    EpochEnded,
    Event,
    Listener,
    Note,
    Outcome,
    SeriesStarted,
    StageStarted,
)
from v8.engine.execution import Summary
from v8.engine.plan import ASSUMED_FLOP_PER_S_PER_CORE, Plan, estimate_work
from v8.engine.quiet import quiet_start
from v8.market.series import Series
from v8.market.sources.source import CandleSource
from v8.reports.leaderboard import LeaderboardRow, TaskScore
from v8.wording import duration

PLAIN_WIDTH = 160
"""Columns of tables that go to a file or pipe, which has no width of its own."""

MAX_BARS = 8
"""Series with a bar of their own on a terminal; more at work at the same time are only counted."""


def make_console() -> Console:
    """Return a console on standard output: as wide as the terminal, or plain and wide."""
    if sys.stdout.isatty():
        return Console()
    return Console(width=PLAIN_WIDTH, color_system=None, force_terminal=False, highlight=False)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; numbers should come as text, ready to read."""
    first, *others = header
    columns = [Column(first, overflow="fold")]
    columns += [Column(name, justify="right", overflow="fold") for name in others]
    _print_cells(title, columns, rows)


def print_reasons(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print a table of series and the reasons why they failed."""
    _print_cells(title, [Column("series", no_wrap=True), Column("reason", overflow="fold")], rows)


@contextmanager
def open_display(plan: Plan) -> Iterator[Listener]:
    """Show the progress of a plan until the block ends."""
    console = make_console()
    if not console.is_terminal:
        yield _PlainDisplay(plan)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        yield _LiveDisplay(plan, progress)


def print_plan(plan: Plan, source: CandleSource) -> None:
    """Print what a run would do, and about how long it would take.

    Raises:
        DataError: If the profile's newest bars are too few.
    """
    profile, work = plan.profile, estimate_work(plan.profile)
    with quiet_start():
        from v8.models.networks import build_network, num_parameters

        parameters = num_parameters(build_network(profile, seed=0))
    windows = "/".join(f"{number:,}" for number in work.num_windows.values())
    rows = [
        (
            str(one.series),
            one.status,
            str(one.seed),
            f"{work.num_rows:,}",
            windows,
            duration(0 if one.status == "done" else work.seconds, is_estimate=True),
        )
        for one in plan.series
    ]
    header = ("series", "state", "seed", "rows", "windows train/validation/test", "estimated time")
    print_table(f"Plan of {plan.path} (nothing is done)", header, rows)
    print_lines(
        f"Profile {profile.name}, digest {profile.digest[:12]}, candles from {source.name}.",
        f"Each of {len(plan.todo)} series: {' -> '.join(STAGES)}.",
        f"Network: {parameters:,} parameters, {work.flop_per_window / 1e6:,.0f} MFLOP per training window.",
        f"Rows and windows are for {work.num_bars:,} unbroken candles; gaps and young coins have fewer.",
        f"Estimated time: at most {duration(work.seconds * len(plan.todo), is_estimate=True)} for "
        f"{profile.training.epochs} epochs each, assuming {ASSUMED_FLOP_PER_S_PER_CORE / 1e9:.0f} GFLOP/s "
        "per core; early stopping often ends sooner.",
    )


def print_summary(summary: Summary, run: Path, rows: Sequence[LeaderboardRow]) -> None:
    """Print leaderboard, failures and where everything lies."""
    print_leaderboard(rows)
    if summary.failures:
        title = f"{len(summary.failures)} series failed; the full reasons are in error.txt in their folders"
        reasons = [(str(failure.series), failure.reason or "") for failure in summary.failures]
        print_reasons(title, reasons)
    print_lines(
        f"{summary.num_trained} series trained now, {summary.num_finished_before} finished before, "
        f"{len(summary.failures)} failed. Run folder: {run}"
    )


def print_leaderboard(rows: Sequence[LeaderboardRow]) -> None:
    """Print errors as multiples of the naive forecast's: below 1 is better than naive."""
    tasks = list(dict.fromkeys(task for row in rows for task in row.tasks))
    header = ("series", *(f"{task} / naive" for task in tasks), "direction", "best epoch", "seconds")
    cells = [
        (
            row.series,
            *(_multiple(row.tasks[task]) if task in row.tasks else "" for task in tasks),
            "" if row.hit_rate is None else f"{100 * row.hit_rate:.1f} %",
            f"{row.best_epoch} of {row.epochs_run}",
            f"{row.seconds:.1f}",
        )
        for row in rows
    ]
    if not cells:
        print_lines("No series is finished.")
        return
    demo = " - DEMO MARKET, simulated, not a real coin" if any(row.source == "demo" for row in rows) else ""
    print_table(
        f"Leaderboard: mean absolute error / naive forecast's, below 1 is better{demo}", header, cells
    )
    print_lines(_legend(rows))


def print_lines(*lines: str) -> None:
    """Print lines as they are, unwrapped."""
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


class _Tally:
    """Which series are at work, how many have ended, and how long the others may take.

    Args:
        num_series: Series to be made.
    """

    def __init__(self, num_series: int) -> None:
        self._num_series = num_series
        self._started: set[Series] = set()
        self._at_work: set[Series] = set()
        self._num_ended = 0
        self._num_side_by_side = 1
        self._finished_s: list[float] = []

    def start(self, series: Series) -> None:
        """Count a series in; again, when its worker died and another one starts it."""
        self._started.add(series)
        self._at_work.add(series)
        self._num_side_by_side = max(self._num_side_by_side, len(self._at_work))

    def end(self, outcome: Outcome) -> None:
        """Count a series out; only a finished one tells how long series take."""
        self._at_work.discard(outcome.series)
        self._num_ended += 1
        if outcome.reason is None:
            self._finished_s.append(outcome.seconds)

    @property
    def started(self) -> str:
        """Say which of all series this is, by start."""
        return f"{len(self._started)} of {self._num_series}"

    @property
    def ended(self) -> str:
        """Say how many of all series have ended."""
        return f"{self._num_ended} of {self._num_series} ended"

    @property
    def state(self) -> list[str]:
        """Say how many still train, and about how long the rest takes; nothing when nothing is left."""
        num_left = self._num_series - self._num_ended
        said = [f"{len(self._at_work)} still training"] if self._at_work else []
        if self._finished_s and num_left:
            said.append(f"about {duration(self._left_s(num_left), is_estimate=True)} left")
        return said

    def _left_s(self, num_left: int) -> float:
        """Take those at work as half done: some have just begun, some have almost ended."""
        one_s = sum(self._finished_s) / len(self._finished_s)
        num_whole = num_left - len(self._at_work) / 2
        return one_s * num_whole / min(self._num_side_by_side, num_left)


class _PlainDisplay:
    """One line per event worth one."""

    def __init__(self, plan: Plan) -> None:
        self._tally = _Tally(len(plan.todo))

    def __call__(self, event: Event) -> None:
        line = self._line(event)
        if line:
            print_lines(line)

    def _line(self, event: Event) -> str:
        if isinstance(event, Note):
            return event.text
        if isinstance(event, SeriesStarted):
            self._tally.start(event.series)
            return f"{event.series}: started ({self._tally.started})"
        if isinstance(event, EpochEnded):
            return f"{event.series}: epoch {event.record.epoch} of {event.num_epochs}, {_losses(event)}"
        if isinstance(event, Outcome):
            self._tally.end(event)
            return f"{_ending(event)} ({', '.join([self._tally.ended, *self._tally.state])})"
        return f"{event.series}: reading candles" if event.stage == "candles" else ""


class _LiveDisplay:
    """A bar over all series, and one over the epochs of each series at work."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._progress = progress
        self._tally = _Tally(len(plan.todo))
        self._candles = progress.add_task("candles", total=len(plan.series), told="")
        self._all = progress.add_task("series", total=len(plan.todo), told="", visible=False)
        self._bars: dict[Series, TaskID] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Note):
            self._progress.console.print(escape(event.text))
        elif isinstance(event, StageStarted):
            self._show_stage(event)
        elif isinstance(event, SeriesStarted):
            self._start(event.series)
        elif isinstance(event, EpochEnded):
            self._update(
                event.series, total=event.num_epochs, completed=event.record.epoch, told=_losses(event)
            )
        else:
            self._end(event)

    def _start(self, series: Series) -> None:
        self._tally.start(series)
        self._progress.update(self._candles, visible=False)
        self._progress.update(self._all, visible=True, told=", ".join(self._tally.state))
        if series not in self._bars and len(self._bars) < MAX_BARS:
            self._bars[series] = self._progress.add_task(str(series), total=None, told="")

    def _end(self, outcome: Outcome) -> None:
        self._tally.end(outcome)
        if outcome.series in self._bars:
            self._progress.remove_task(self._bars.pop(outcome.series))
        self._progress.update(self._all, advance=1, told=", ".join(self._tally.state))
        # Last, so that no bar of an ended series is drawn below the line that says so.
        self._progress.console.print(escape(_ending(outcome)))

    def _show_stage(self, event: StageStarted) -> None:
        if event.stage == "candles":
            self._progress.update(self._candles, advance=1, told=str(event.series))
        else:
            self._update(event.series, description=f"{event.series} {event.stage}")

    def _update(self, series: Series, **changes: Any) -> None:
        if series in self._bars:
            self._progress.update(self._bars[series], **changes)


def _print_cells(title: str, columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    print_lines(title)
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    make_console().print(table)


def _multiple(score: TaskScore) -> str:
    # The blank keeps the points of numbers with and without a mark below each other.
    mark = "*" if score.is_significant else " "
    return f"- {mark}" if score.multiple is None else f"{score.multiple:.3f}{mark}"


def _legend(rows: Sequence[LeaderboardRow]) -> str:
    if any(score.p_value is not None for row in rows for score in row.tasks.values()):
        return (
            "* differs from the naive forecast by more than chance: Diebold-Mariano test, p < 0.05, "
            f"corrected for {len(rows)} series at once (Benjamini-Hochberg)."
        )
    return "No significance: the test spans hold too few windows."


def _losses(event: EpochEnded) -> str:
    record = event.record
    return (
        f"loss {record.train_loss:.5f}, validation {record.validation_loss:.5f}"
        f"{' (best)' if record.is_best else ''}, {record.windows_per_s:,.0f} windows/s"
    )


def _ending(outcome: Outcome) -> str:
    if outcome.reason:
        return f"failed: {outcome.reason}"
    return f"{outcome.series}: done in {outcome.seconds:.1f} s"
