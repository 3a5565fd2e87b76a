"""What happens in a run, in lines: for Python, and for the command line where it writes no terminal."""

import time
from collections.abc import Callable
from typing import Final

from v8.base.safe_text import for_terminal
from v8.base.wording import duration
from v8.model.baselines.baselines import NAIVE
from v8.publish.report.verdict import relative_to_naive
from v8.runs import events
from v8.runs.estimate import ProgressEstimate
from v8.runs.events import RunContext, RunObserver

FEW_S: Final = 10.0  # remaining time that is too short to be written as a number, in seconds
SILENT_S: Final = 60.0  # after so many seconds without a line the next epoch is written


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
