"""A prepared run to its results, for the command `run` and `v8.train`; the caller shows and publishes it."""

from collections.abc import Sequence
from dataclasses import dataclass

from v8.base.interruption import set_exit_message
from v8.model.evaluation.leaderboard import LeaderboardRow
from v8.publish.report.outputs import ReportWriter
from v8.runs.events import RunSummary
from v8.runs.execution import run
from v8.runs.observers import ObserverGroup, RunObserver
from v8.runs.options import PreparedRun
from v8.runs.trackers import check_trackers
from v8.runs.tracking import trackers


@dataclass(frozen=True)
class FinishedRun:
    """How a run ended, and its leaderboard."""

    summary: RunSummary
    rows: Sequence[LeaderboardRow]  # best first


def carry_out(prepared: PreparedRun, observers: Sequence[RunObserver]) -> FinishedRun:
    """Carry out a run, or the rest of it, and write its report; publishing it is left to the caller.

    When it is interrupted, what was finished is saved, and the same options continue.
    """
    options = prepared.options
    check_trackers(options.track)
    set_exit_message(f"interrupted: {prepared.plan.path} is saved. Continue with: {options.command}")
    report = ReportWriter()
    observer = ObserverGroup([*observers, trackers(options.track), report])
    summary = run(prepared.plan, prepared.source, prepared.engine, observer, command=options.command)
    return FinishedRun(summary, report.rows)
