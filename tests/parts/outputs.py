"""What a run shows, drawn from its files; whatever is damaged or cannot be written is raised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from v8.base.errors import V8Error
from v8.model.evaluation.leaderboard import LeaderboardRow
from v8.publish.report.outputs import RunOutputs


def refuse(error: V8Error) -> None:
    """Raise an error that is reported."""
    raise error


def write_outputs(run: Path, report_error: Callable[[V8Error], object] = refuse) -> Sequence[LeaderboardRow]:
    """Draw all that a run shows, and return its leaderboard."""
    return RunOutputs(run, report_error).write().rows
