"""What a run prints: live bars on a terminal, plain lines elsewhere, tables at the end.

Nothing but text and line ends goes to anything that is not a terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from v8.commands.device import quiet_start
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
from v8.market.sources.source import CandleSource
from v8.reports.leaderboard import LeaderboardRow

PLAIN_WIDTH = 160
"""Columns of tables that go to a file or pipe, which has no width of its own."""


def make_console() -> Console:
    """Return a console on standard output: as wide as the terminal, or plain and wide."""
    if sys.stdout.isatty():
        return Console()
    return Console(width=PLAIN_WIDTH, color_system=None, force_terminal=False, highlight=False)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; numbers should come as text, ready to read."""
    print_lines(title)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    make_console().print(table)


def print_reasons(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print a table of series and the reasons why they failed."""
    print_lines(title)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("series", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for name, reason in rows:
        table.add_row(escape(name), escape(reason))
    make_console().print(table)


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
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        yield _LiveDisplay(plan, progress)


def print_plan(plan: Plan, source: CandleSource) -> None:
    """Print what a run would do, and about how long it would take.

    Raises:
        DataError: If the profile's newest bars are too few.
    """
    with quiet_start():
        from v8.models.networks import num_parameters

    work = estimate_work(plan.profile)
    windows = "/".join(f"{number:,}" for number in work.num_windows.values())
    rows = [
        (
            str(one.series),
            one.status,
            str(one.seed),
            f"{work.num_rows:,}",
            windows,
            duration(0 if one.status == "done" else work.seconds),
        )
        for one in plan.series
    ]
    header = ("series", "state", "seed", "rows", "windows train/validation/test", "estimated time")
    print_table(f"Plan of {plan.path} (nothing is done)", header, rows)
    profile = plan.profile
    print_lines(
        f"Profile {profile.name}, digest {profile.digest[:12]}, candles from {source.name}.",
        f"Each of {len(plan.todo)} series: {' -> '.join(STAGES)}.",
        f"Network: {num_parameters(profile):,} parameters, "
        f"{work.flop_per_window / 1e6:,.0f} MFLOP per training window.",
        f"Rows and windows are for {work.num_bars:,} unbroken candles; gaps and young coins have fewer.",
        f"Estimated time: at most {duration(work.seconds * len(plan.todo))} for {profile.training.epochs} "
        f"epochs each, assuming {ASSUMED_FLOP_PER_S_PER_CORE / 1e9:.0f} GFLOP/s per core; "
        "early stopping often ends sooner.",
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
            *(_multiple(row.tasks[task].multiple) if task in row.tasks else "" for task in tasks),
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


def print_lines(*lines: str) -> None:
    """Print lines as they are, unwrapped."""
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


class _PlainDisplay:
    """One line per event worth one."""

    def __init__(self, plan: Plan) -> None:
        self._num_series = len(plan.todo)
        self._num_started = 0
        self._started = time.monotonic()

    def __call__(self, event: Event) -> None:
        line = self._line(event)
        if line:
            print_lines(line)

    def _line(self, event: Event) -> str:
        if isinstance(event, Note):
            return event.text
        if isinstance(event, SeriesStarted):
            self._num_started += 1
            return f"{event.series}: started ({self._num_started} of {self._num_series}{self._time_left()})"
        if isinstance(event, EpochEnded):
            return f"{event.series}: epoch {event.record.epoch} of {event.num_epochs}, {_losses(event)}"
        if isinstance(event, Outcome):
            return _ending(event)
        return f"{event.series}: reading candles" if event.stage == "candles" else ""

    def _time_left(self) -> str:
        num_ended = self._num_started - 1
        if not num_ended:
            return ""
        left_s = (time.monotonic() - self._started) / num_ended * (self._num_series - num_ended)
        return f", about {duration(left_s)} left"


class _LiveDisplay:
    """A bar over the series and one over the epochs of the current series."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._progress = progress
        self._candles = progress.add_task("candles", total=len(plan.series), told="")
        self._all = progress.add_task("series", total=len(plan.todo), told="", visible=False)
        self._one = progress.add_task("epochs", total=None, told="", visible=False)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Note):
            self._progress.console.print(escape(event.text))
        elif isinstance(event, StageStarted):
            self._show_stage(event)
        elif isinstance(event, SeriesStarted):
            self._progress.update(self._candles, visible=False)
            self._progress.update(self._all, visible=True, told=str(event.series))
            self._progress.reset(self._one, total=None, description=str(event.series), visible=True, told="")
        elif isinstance(event, EpochEnded):
            self._progress.update(
                self._one, total=event.num_epochs, completed=event.record.epoch, told=_losses(event)
            )
        else:
            self._progress.console.print(escape(_ending(event)))
            self._progress.advance(self._all)

    def _show_stage(self, event: StageStarted) -> None:
        if event.stage == "candles":
            self._progress.update(self._candles, advance=1, told=str(event.series))
        else:
            self._progress.update(self._one, description=f"{event.series} {event.stage}")


def duration(seconds: float) -> str:
    """Write a duration as people say it.

    >>> duration(7384), duration(95), duration(4.2)
    ('2 h 3 min', '2 min', '4 s')
    """
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{round(seconds / 60)} min" if seconds >= 90 else f"{round(seconds)} s"


def _multiple(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


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
