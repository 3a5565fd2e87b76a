"""Trains tiny demo series as `v8.run` would, for tests that look at its processes from outside.

    python crew.py FOLDER NUM_WORKERS NAME[:FATE] ...

FATE `signed` leaves the worker's process id in `FOLDER/NAME.pid`, `deadly` kills the worker, every time.
Events are printed as lines; `FOLDER/outcomes.json` tells each series' reason of failure, or None.
NUM_WORKERS 0 trains in this process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import sys
from pathlib import Path

from v8.engine import workers
from v8.engine.events import EpochEnded, Event, Note, SeriesStarted
from v8.engine.plan import Job
from v8.market.series import Series
from v8.market.sources.demo import DemoSource


class SignedJob(Job):
    """A job whose worker can be found."""

    @property
    def series(self) -> Series:
        if multiprocessing.parent_process():
            self.folder.with_name(f"{self.candles.series}.pid").write_text(str(os.getpid()))
        return self.candles.series


class DeadlyJob(Job):
    """A job that no worker survives."""

    @property
    def series(self) -> Series:
        if multiprocessing.parent_process():
            os.kill(os.getpid(), signal.SIGKILL)
        return self.candles.series


FATES = {"": Job, "signed": SignedJob, "deadly": DeadlyJob}


def tell(event: Event) -> None:
    """Print what a test waits for."""
    if isinstance(event, Note):
        print(event.text, flush=True)
    if isinstance(event, SeriesStarted):
        print(f"{event.series} started", flush=True)
    if isinstance(event, EpochEnded):
        print(f"{event.series} epoch {event.record.epoch}", flush=True)


def main(folder: Path, num_workers: int, names: list[str]) -> None:
    """Train, and say how it ended."""
    profile = pickle.loads((folder / "profile.pickle").read_bytes())
    jobs = []
    for number, name in enumerate(names):
        series, _, fate = name.partition(":")
        candles = DemoSource().candles(Series.parse(series), profile.newest_bars, None)
        (folder / series).mkdir()
        jobs.append(FATES[fate](candles, profile, number, folder / series, False, 0.0))
    if num_workers:
        outcomes = list(workers.train_all(jobs, tell, num_workers))
        assert "tensorflow" not in sys.modules  # the parent only listens
    else:
        from v8.engine import local

        outcomes = list(local.train_all(jobs, tell))
    reasons = {str(outcome.series): outcome.reason for outcome in outcomes}
    (folder / "outcomes.json").write_text(json.dumps(reasons))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    except KeyboardInterrupt:
        sys.exit(130)
