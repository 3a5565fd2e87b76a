"""Trains tiny demo series as `v8.run` would, for tests that look at its processes from outside.

    python crew.py FOLDER NUM_WORKERS NAME[:FATE] ...

FATE `signed` leaves the worker's process id in `FOLDER/NAME.pid`, `deadly` kills the worker, every time;
`placed` adds a line to `FOLDER/NAME.gpu`: the process id, and the GPUs that are visible there; `early` signs
and is trained by a run of its own, of another profile, before that of the others.
Events are printed as lines; `FOLDER/outcomes.json` tells each series' reason of failure, or None.
NUM_WORKERS 0 trains in this process; `GPU,GPU:N` names a GPU for each worker, which trains in fleets of N;
`N+M` trains in this process in fleets of N, and M others evaluate and save.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import sys
from pathlib import Path

from v8.base.child import resource_scope
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.runs.events import EpochEnded, Event, EventCallback, Note, SeriesStarted, StageStarted
from v8.runs.plan import Job, Recipe
from v8.runs.workers import WorkerEngine


class SignedJob(Job):
    """A job whose worker can be found."""

    @property
    def series(self) -> Series:
        if multiprocessing.parent_process():
            self.folder.with_name(f"{self.candles.series}.pid").write_text(str(os.getpid()))
        return self.candles.series


class PlacedJob(Job):
    """A job whose worker tells what it sees."""

    @property
    def series(self) -> Series:
        if multiprocessing.parent_process():
            with self.folder.with_name(f"{self.candles.series}.gpu").open("a") as file:
                file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
        return self.candles.series


class DeadlyJob(Job):
    """A job that no worker survives."""

    @property
    def series(self) -> Series:
        if multiprocessing.parent_process():
            os.kill(os.getpid(), signal.SIGKILL)
        return self.candles.series


class EarlyJob(SignedJob):
    """A job of the run before."""


FATES = {"": Job, "signed": SignedJob, "placed": PlacedJob, "deadly": DeadlyJob, "early": EarlyJob}


def tell(event: Event) -> None:
    """Print what a test waits for."""
    if isinstance(event, Note):
        print(event.text, flush=True)
    if isinstance(event, SeriesStarted):
        print(f"{event.series} started", flush=True)
    if isinstance(event, EpochEnded):
        print(f"{event.series} epoch {event.record.epoch}", flush=True)
    if isinstance(event, StageStarted):
        print(f"{event.series} {event.stage} at {event.at_s}", flush=True)


def main(folder: Path, crew: str, names: list[str]) -> None:
    """Train, and say how it ended."""
    profile = pickle.loads((folder / "profile.pickle").read_bytes())
    jobs = []
    for number, name in enumerate(names):
        series, _, fate = name.partition(":")
        candles = DemoSource().candles(Series.parse(series), profile.newest_bars, None)
        (folder / series).mkdir(exist_ok=True)
        its = profile.with_budget(epochs=3) if fate == "early" else profile
        recipe = Recipe(its, is_publishable=False)
        jobs.append(FATES[fate](recipe, candles, number, folder / series))
    observer = EventCallback(tell)
    gpus, _, fleet_size = crew.rpartition(":")
    if "+" in crew:
        from v8.runs import local

        size, num_finishers = map(int, crew.split("+"))
        outcomes = list(local.InProcessEngine(size, num_finishers=num_finishers).train(jobs, observer))
    elif fleet_size != "0":
        if gpus:
            placed = {"gpus": gpus.split(","), "fleet_size": int(fleet_size)}
            engine = WorkerEngine(len(placed["gpus"]), **placed)
            outcomes = list(engine.train(jobs, observer))
        else:
            early = [job for job in jobs if isinstance(job, EarlyJob)]
            late = [job for job in jobs if job not in early]
            engine = WorkerEngine(int(crew))
            with resource_scope():
                runs = [list(engine.train(those, observer)) for those in (early, late) if those]
            outcomes = [outcome for run in runs for outcome in run]
        assert "tensorflow" not in sys.modules  # the parent only listens
    else:
        from v8.runs import local

        outcomes = list(local.InProcessEngine().train(jobs, observer))
    reasons = {str(outcome.series): outcome.reason for outcome in outcomes}
    (folder / "outcomes.json").write_text(json.dumps(reasons))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    except KeyboardInterrupt:
        sys.exit(130)
