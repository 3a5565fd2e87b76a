"""What `v8.train` does in a process of its own: a run from its options, with lines about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from v8.api.forecaster import publish_folder
from v8.api.progress import ProgressLines, counts
from v8.api.training import carry_out
from v8.base.child import send_message
from v8.base.errors import DataError, V8Error
from v8.base.interruption import watch_interrupts
from v8.publish.hub.client import HubRetryPolicy
from v8.publish.hub.staging import check_publishing
from v8.publish.report.verdict import headline_intervals, verdict
from v8.runs.finished_series import read_test_losses
from v8.runs.options import PreparedRun, RunOptions
from v8.runs.run_folder import read_run


@dataclass(frozen=True)
class TrainedRun:
    """What `v8.train` gets to know of the run."""

    path: Path
    refused: Mapping[str, str]  # series that could not be part of it, and why


def train(options: RunOptions) -> TrainedRun:
    """Carry out a run for `v8.train`, in a process of its own, which sends lines about it.

    Raises:
        V8Error: If no series was trained: why the first of them failed.
    """
    watch_interrupts()
    prepared = PreparedRun.from_options(options)
    path = prepared.plan.path
    retries = HubRetryPolicy(report=send_message)
    if options.publish:
        check_publishing(options.publish, prepared.source, retries)
    finished = carry_out(prepared, [ProgressLines(send_message)])
    summary = finished.summary
    losses = read_test_losses(path, [row.series for row in finished.rows])
    sentences = verdict(finished.rows, headline_intervals(finished.rows, losses))
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
        send_message(f"Published: {publish_folder(path, options.publish, retries=retries)}")
    refused = {
        str(failure.series): str(failure.reason)
        for failure in summary.failures
        if str(failure.series) not in recorded.series
    }
    return TrainedRun(path, refused)
