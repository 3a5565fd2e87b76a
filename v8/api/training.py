"""A prepared run to its results, for the command `run` and `v8.train`.

The command shows and publishes what comes of `carry_out`; `train` is what `v8.train` does in a child process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from v8.api.progress import ProgressLines, counts
from v8.base.child import send_message
from v8.base.errors import DataError, V8Error
from v8.base.process import set_exit_message, watch_interrupts
from v8.publish.report.outputs import ReportWriter, RunResults
from v8.publish.report.verdict import verdict
from v8.runs.events import ObserverGroup, RunObserver, RunSummary
from v8.runs.execution import run_plan
from v8.runs.options import PreparedRun, RunOptions
from v8.runs.run_folder import read_run
from v8.runs.trackers import followers


@dataclass(frozen=True)
class FinishedRun:
    """How a run ended, and what came of it."""

    summary: RunSummary
    results: RunResults


def carry_out(prepared: PreparedRun, observers: Sequence[RunObserver]) -> FinishedRun:
    """Carry out a run, or the rest of it, and write its report; publishing it is left to the caller.

    When it is interrupted, what was finished is saved, and the same options continue.
    """
    options = prepared.options
    trackers = followers(options.track)
    set_exit_message(f"interrupted: {prepared.plan.path} is saved. Continue with: {prepared.command}")
    report = ReportWriter()
    observer = ObserverGroup([*observers, *trackers, report])
    summary = run_plan(prepared.plan, prepared.source, prepared.engine, observer, command=prepared.command)
    return FinishedRun(summary, report.results)


@dataclass(frozen=True)
class TrainRequest:
    """What `v8.train` asks of a process of its own."""

    options: RunOptions
    command: str  # the command line that continues


@dataclass(frozen=True)
class TrainedRun:
    """What `v8.train` gets to know of the run."""

    path: Path
    refused: Mapping[str, str]  # series that could not be part of it, and why


def train(request: TrainRequest) -> TrainedRun:
    """Carry out a run for `v8.train`, in a process of its own, which sends lines about it.

    Raises:
        V8Error: If no series was trained: why the first of them failed.
    """
    watch_interrupts()
    options = request.options
    prepared = PreparedRun.from_options(options, request.command)
    path = prepared.plan.path
    if options.publish:
        from v8.publish.hub.client import HubRetryPolicy  # noqa: PLC0415 - it reads the Hub's address
        from v8.publish.hub.staging import check_publishing  # noqa: PLC0415

        retries = HubRetryPolicy(report=send_message)
        check_publishing(options.publish, prepared.source, retries)
    finished = carry_out(prepared, [ProgressLines(send_message)])
    summary = finished.summary
    sentences = verdict(finished.results.rows, finished.results.intervals)
    for line in (*sentences, counts(summary), f"Run folder: {path}"):
        send_message(line)
    recorded = read_run(path)
    is_empty = summary.exit_code == DataError.exit_code or not recorded.done
    if is_empty and summary.failures:
        first = summary.failures[0]
        rule = "must end with a trained series"
        raise first.error or V8Error(
            where="v8.train", rule=rule, got=str(first.reason), fix="Mend that and repeat"
        )
    if options.publish and summary.failures:
        send_message("Not published, because some series failed.")
    elif options.publish:
        from v8.api.forecaster import publish_folder  # noqa: PLC0415 - it reads the Hub's address

        send_message(f"Published: {publish_folder(path, options.publish, retries=retries)}")
    refused = {
        str(failure.series): str(failure.reason)
        for failure in summary.failures
        if str(failure.series) not in recorded.series
    }
    return TrainedRun(path, refused)
