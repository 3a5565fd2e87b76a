"""What a run prints: live bars on a terminal, plain lines elsewhere, tables at the end.

Nothing but text and line ends goes to anything that is not a terminal. Texts may come from files of other
people; whatever is printed goes through `v8.safe_text.for_terminal`, so that no terminal obeys it.
"""

import json
import sys
import webbrowser
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import rich.table
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from v8.artifacts.run_folder import ERROR_FILE, read_run
from v8.errors import V8Error, listed
from v8.evaluation.leaderboard import LeaderboardRow, compared
from v8.evaluation.significance import reading_marks
from v8.market.series import Series, iso
from v8.market.sources.source import CandleSource
from v8.profile import audiences, load_profile
from v8.reports.verdict import verdict
from v8.runs import events
from v8.runs.execution import NewerCandles, Summary
from v8.runs.outputs import REPORT_FILE
from v8.runs.pace import Pace
from v8.runs.plan import Plan, count_windows, known_cost, series_seed
from v8.safe_text import for_terminal
from v8.wording import Table, duration, number, plural, spaced

_LEAST: Final = 20  # columns for prose, however wide the others are

MAX_BARS = 8
"""Series with a bar of their own on a terminal; more at work at the same time are only counted."""

FEW_S: Final = 10.0  # time left that is too short to be told as a number

COMPILING: Final = "compiling, up to a minute"
"""What a series does in the stage `train` before its first epoch ends."""

MEASURING: Final = "A run of this profile measures it; one series is enough."


def make_console() -> Console:
    """Return a console on standard output: as wide as the terminal, or as COLUMNS say, or 80 columns."""
    return Console(force_terminal=sys.stdout.isatty())


def print_table(table: Table) -> None:
    """Print a table below its title, in parts where the terminal is too narrow for all of its columns.

    Each part has the columns that tell its rows apart. Titles, headers and the last column of prose are
    broken between words; no other cell is.
    """
    console = make_console()
    columns = [for_terminal(name) for name in table.columns]
    rows = [[for_terminal(str(cell)) for cell in row] for row in table.rows]
    console.print(Text(for_terminal(table.title)))
    cells = [[*name.split(), *(row[at] for row in rows)] for at, name in enumerate(columns)]
    widths = [max(map(cell_len, column), default=0) for column in cells]
    apart = (num for num in range(1, len(cells)) if len({(*row[:num],) for row in rows}) == len(rows))
    names = [*range(next(apart, 1))]
    if table.is_prose:
        widths[-1] = max(_LEAST, console.width - _total(widths[:-1]))
    parts = [names]
    for at in range(len(names), len(cells)):
        widths[at] = min(widths[at], max(_LEAST, console.width - _total(widths[: len(names)])))
        if parts[-1] != names and _total(widths[each] for each in parts[-1]) + widths[at] > console.width:
            parts.append(names)
        parts[-1] = [*parts[-1], at]
    for part in parts:
        shown = rich.table.Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for at in part:
            is_text = at == 0 or table.is_prose
            name = Text(columns[at])
            shown.add_column(name, width=widths[at], justify="left" if is_text else "right", overflow="fold")
        for row in rows:
            shown.add_row(*(Text(row[at]) for at in part))
        console.print(shown, "")


def _total(widths: Iterable[int]) -> int:
    """Return the columns of a terminal that some columns of a table and the gaps behind them take."""
    return sum(width + 2 for width in widths)


def print_reasons(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print a table of series and the reasons why they failed."""
    print_table(Table(("series", "reason"), rows, title, is_prose=True))


@contextmanager
def open_display(plan: Plan, *, opens: bool = False) -> Iterator[events.Listener]:
    """Show the progress of a plan until the block ends; on request open its page, too, once there is one."""
    console = make_console()
    pace = Pace(len(plan.todo))
    with ExitStack() as shown:
        if console.is_terminal:
            told = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
            progress = shown.enter_context(Progress(*told, TimeElapsedColumn(), console=console))
            display: events.Listener = _LiveDisplay(plan, pace, progress)
        else:
            display = partial(_print_event, pace)

        def show(event: events.Event) -> None:
            pace(event)
            display(event)
            if opens and isinstance(event, events.PageWritten):
                open_page(event.page)

        yield show


def print_page(page: Path) -> None:
    """Print the address of a page, which terminals open on a click, where it was written."""
    if page.is_file():
        print_lines(f"Report: {page.absolute().as_uri()}")


def open_page(page: Path) -> None:
    """Open a page in the browser; where there is none, say so."""
    if not webbrowser.open(page.absolute().as_uri()):
        tell("There is no browser to open the page with; its address opens it in any.")


def print_plan(plan: Plan, source: CandleSource) -> None:
    """Print what a run would do, and about how long it would take; DataError if its bars are too few."""
    profile, whom = plan.profile, audiences().get(plan.profile.name)
    windows = "/".join(f"{number:,}" for number in count_windows(profile).values())
    rows = [(one, status, series_seed(profile, one)) for one, status in plan.series.items()]
    print_table(Table(("series", "state", "seed"), rows, f"Plan of {plan.path} (nothing is done)"))
    dropped = [f"Taken out of the run: {listed(plan.dropped)}."] if plan.dropped else []
    print_lines(
        *dropped,
        f"Profile {profile.name}, digest {profile.digest[:12]}, candles from {source.name}.",
        *([f"For {whom}."] if whom else []),
        f"Each of {len(plan.todo)} series: {' -> '.join(events.STAGES)}.",
        f"Windows to train on, validate, test: {windows}, in {profile.newest_bars:,} candles without gaps.",
        _estimate(plan),
    )


def _estimate(plan: Plan) -> str:
    """Say how long a plan takes, from what runs of its profile took here; without one, what is not known."""
    cost = known_cost(plan.profile)
    if not plan.todo:
        return "Estimated time: none, for every series is done."
    if cost is None or (told_s := cost.told_s(len(plan.todo))) is None:
        return f"Estimated time: not known. {MEASURING}"
    estimate = duration(told_s, is_estimate=True)
    took = duration(cost.seconds, is_estimate=True)
    basis = f"{cost.num_series} series took {took} here"
    if cost.was_all_at_once and cost.own_s is not None and len(plan.todo) > cost.num_series:
        own = duration(cost.own_s, is_estimate=True)
        at_once = f"{cost.num_side_by_side} at once" if cost.num_side_by_side > 1 else "one after another"
        basis += f", each of them {own} without starting and compiling; taken to run {at_once}"
    return f"Estimated time: about {estimate}, evaluating and saving included: {basis}."


def print_profiles() -> None:
    """Print for whom each shipped profile is, and what 40 series of it cost on this machine."""
    rows = []
    for name, whom in audiences().items():
        cost = known_cost(load_profile(name))
        rows.append((name, duration(cost.told_s(40) if cost else None, is_estimate=True), whom))
    title = "Shipped profiles, and what 40 series of each took here"
    print_table(Table(("profile", "time", "for whom"), rows, title, is_prose=True))
    print_lines(
        "Times are what runs took here, evaluating and saving included. A run of a profile measures it."
    )


def print_summary(summary: Summary, run: Path, rows: Sequence[LeaderboardRow]) -> None:
    """Print leaderboard, failures, and where everything lies."""
    print_leaderboard(rows, run)
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
    print_page(run / REPORT_FILE)
    print_lines(f"Run folder: {run}")


def print_newer(newer: Sequence[NewerCandles], update: str, fresh: str) -> None:
    """Print that there are candles which the run does not use, and the commands that do.

    `update` trains a new generation and lets the better one serve, `fresh` starts a new run.
    """
    if not newer:
        return
    most = max(each.num_bars for each in newer)
    first = min(each.first_s for each in newer)
    of = f"{newer[0].series} has" if len(newer) == 1 else f"{len(newer)} series have up to"
    print_lines(
        f"{of} {plural(most, 'new candle')} from {iso(first)} on, which this run does not use.",
        f"Train on them; the old models are kept and serve on where they are better: {update}",
        f"Or start over beside this run: {fresh}",
    )


def print_leaderboard(rows: Sequence[LeaderboardRow], run: Path) -> None:
    """Print errors as multiples of the naive forecast's and the best baseline's: below 1 is less."""
    if not rows:
        is_evaluated = read_run(run).is_evaluated
        print_lines(
            "No series is finished." if is_evaluated else "Not evaluated: nothing is known of its errors."
        )
        return
    print_lines(*verdict(rows))
    every = compared(rows)
    cells = [
        [row.series, *(one.marked if (one := those.get(row.series)) else "" for those in every.values())]
        for row in rows
    ]
    demo = " - DEMO MARKET, simulated, not a real coin" if any(row.source == "demo" for row in rows) else ""
    title = f"Leaderboard: mean absolute error as a multiple of a forecast without a network{demo}"
    print_table(Table(("series", *(f"{task} × {spaced(name)}" for task, name in every)), cells, title))
    if any(score.naive.p_value is not None for row in rows for score in row.tasks.values()):
        print_lines(f"{reading_marks(len(rows))} (Benjamini-Hochberg).")
    else:
        why = "the test spans hold too few windows to test."
        print_lines(f"Below 1 the model errs less. Nothing is known yet: {why}")


def print_lines(*lines: str) -> None:
    """Print each text as one line, unwrapped; a line end within a text is printed as its escape."""
    sys.stdout.writelines(f"{for_terminal(line)}\n" for line in lines)
    sys.stdout.flush()


def print_json(content: Any) -> None:
    """Print one JSON document; JSON itself escapes all that is not ASCII."""
    sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def tell(text: str) -> None:
    """Print a text that is no result as one line to standard error."""
    sys.stderr.write(f"{for_terminal(text)}\n")
    sys.stderr.flush()


def tell_error(error: V8Error) -> None:
    """Print an error that does not end the command."""
    tell(f"error: {error}")


def _print_event(pace: Pace, event: events.Event) -> None:
    """Print one line for an event worth one."""
    if isinstance(event, events.Note):
        print_lines(event.text)
    elif isinstance(event, events.SeriesStarted):
        place = f"{pace.num_ended + len(pace.at_work)} of {pace.num_series}"
        print_lines(f"{event.series}: started ({place})")
    elif isinstance(event, events.EpochEnded):
        print_lines(f"{event.series}: {', '.join(_losses(event))}")
    elif isinstance(event, events.Outcome):
        state = f"{pace.num_ended} of {pace.num_series} ended{_state(pace)}"
        print_lines(f"{_ending(event)} ({state})")
    elif isinstance(event, events.Waiting):
        print_lines(f"{event.series}: {event.text}")
    elif event.stage == "candles":
        print_lines(f"{event.series}: reading candles")


def _state(pace: Pace) -> str:
    """Say, after other words, how many still train, and about how long the rest takes."""
    said = [f"{len(pace.at_work)} still training"] if pace.at_work else []
    left_s = pace.left_s
    if left_s is not None:
        about = f"about {duration(left_s, is_estimate=True)}" if left_s >= FEW_S else "a few seconds"
        said.append(f"{about} left")
    return "".join(f", {one}" for one in said)


class _LiveDisplay:
    """A bar over all series, and one over the epochs of each series at work.

    Before the first series is begun, one moves over what is done once: a full bar would tell that nothing is.
    """

    def __init__(self, plan: Plan, pace: Pace, progress: Progress) -> None:
        self._pace = pace
        self._progress = progress
        self._num_read = 0
        self._num_series = len(plan.series)
        self._all = progress.add_task("candles", total=self._num_series, told="")
        self._bars: dict[Series, TaskID] = {}

    def __str__(self) -> str:
        """Say how far all is; asked for whenever the screen is drawn, for time goes on between events."""
        return f"{self._pace.num_ended} of {self._pace.num_series}{_state(self._pace)}"

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.GettingReady):
            self._progress.remove_task(self._all)
            self._all = self._progress.add_task("getting ready", total=None, told="")
        elif isinstance(event, events.Note):
            self._progress.console.print(escape(for_terminal(event.text)))
        elif isinstance(event, events.SeriesStarted):
            self._start(event.series)
        elif isinstance(event, events.Outcome):
            self._end(event)
        elif isinstance(event, events.StageStarted) and event.stage == "candles":
            self._num_read += 1
            told = f"{self._num_read} of {self._num_series}: {event.series}"
            self._progress.update(self._all, completed=self._num_read - 1, told=told)
        elif isinstance(event, events.Waiting):
            text = escape(for_terminal(f"{event.series}: {event.text}"))
            self._progress.update(self._all, told=text)
        elif event.series in self._bars:
            bar = self._bars[event.series]
            if isinstance(event, events.EpochEnded):
                epoch, _, validation, _ = _losses(event)
                told = f"{epoch}, {validation}"
                done = event.record.epoch
                self._progress.update(bar, total=event.num_epochs, completed=done, told=told)
            else:
                told = COMPILING if event.stage == "train" else ""  # and the bar is empty: epochs are over
                self._progress.reset(bar, description=f"{event.series} {event.stage}", told=told)

    def _start(self, series: Series) -> None:
        self._progress.update(self._all, description="series", total=self._pace.num_series, told=self)
        if series not in self._bars and len(self._bars) < MAX_BARS:
            self._bars[series] = self._progress.add_task(str(series), total=None, told="")

    def _end(self, outcome: events.Outcome) -> None:
        if outcome.series in self._bars:
            self._progress.remove_task(self._bars.pop(outcome.series))
        self._progress.update(self._all, completed=self._pace.num_ended, refresh=True)
        # Last, so that no bar of an ended series is drawn below the line that says so.
        self._progress.console.print(escape(for_terminal(_ending(outcome))))


def _losses(event: events.EpochEnded) -> tuple[str, str, str, str]:
    """Say which epoch has ended, both losses, and how fast it was."""
    record = event.record
    validation = f"validation {record.validation_loss:.5f}{' (best)' if record.is_best else ''}"
    speed = f"{record.windows_per_s:,.0f} windows/s"
    return f"epoch {record.epoch} of {event.num_epochs}", f"loss {record.train_loss:.5f}", validation, speed


def _ending(outcome: events.Outcome) -> str:
    """Say what a series that ended is worth, or why it failed."""
    worth = [f"{number(against.multiple)} of {against.name}" for against in outcome.worth]
    done = f"{outcome.series} {', '.join([*worth, duration(outcome.seconds)])}"
    return f"failed: {outcome.reason}" if outcome.reason else done
