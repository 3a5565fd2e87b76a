"""Processes that finish what this one has trained: they evaluate and save series while it trains the next.

On a machine with a GPU one process trains, and evaluating a series keeps one core busy a hundred times as
long as training it keeps the GPU. So each core gets a process without a GPU. It makes features and windows of
a series again, from the store, and does the rest that `v8.runs.stages` does; the artefact is the same, to the
bit of its weights.

They are workers as those of `v8.runs.workers`: one that dies is replaced, its series is tried once more, and
what is under way when the run is killed goes on from its checkpoint.
"""

from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from v8.base.hardware import has_gpu, num_usable_cores, process_variables
from v8.base.starting import quiet_start
from v8.data.features.store import FeatureStore
from v8.model.networks.programs import kept_programs
from v8.profile.profile import Profile
from v8.runs.jobs import DeviceSettings, Job
from v8.runs.machine.choices import affordable_workers
from v8.runs.observers import RunObserver
from v8.runs.workers import JobQueue, Worker, WorkerPool, obeying_parent

if TYPE_CHECKING:
    from v8.runs.stages import TrainedSeries  # at run time it would import TensorFlow

FEWEST_SERIES: Final = 8
"""Series from which on such processes are started: it takes as long as evaluating three to five series."""


def num_finishers(jobs: Sequence[Job]) -> int:
    """Return how many processes finish what this one trains on a GPU; 0 where it does all itself."""
    if not has_gpu() or len(jobs) < FEWEST_SERIES or jobs[0].profile.family.is_formula:
        return 0
    return affordable_workers(min(num_usable_cores(), len(jobs)))


class FinisherPool(WorkerPool["TrainedSeries"]):
    """Such processes, which start when the pool is made.

    Args:
        num: How many, at least 1.
        profile: That of all series.
        device_settings: Those of the process that trains them.
        store: Folder of the feature store.
    """

    def __init__(self, num: int, profile: Profile, device_settings: DeviceSettings, store: Path) -> None:
        super().__init__()
        self._num = num
        self._arguments = (profile, device_settings, store)
        for _ in range(num):
            self._queue.held[self._new_worker(None)] = []

    def _new_worker(self, gpu: str | None) -> Worker:
        return Worker("v8-finisher", _serve, *self._arguments, variables=process_variables("cpu"))

    def report_to(self, observer: RunObserver) -> None:
        """Begin a run: pass on to its observer what happens from now on."""
        workers = self._queue.held
        self._queue = JobQueue([], observer)
        self._queue.held = workers

    @property
    def is_busy(self) -> bool:
        """Whether a series waits or is under way."""
        return bool(self._queue) or super().is_busy

    def add(self, trained: "TrainedSeries") -> None:
        """Let one more series be finished, as soon as a process is free."""
        self._queue.append(trained)
        for worker, jobs in self._queue.held.items():
            if worker.is_ready and not jobs:
                self._fill(worker)
                return
        if len(self._queue.held) < self._num:  # one has died, when nothing waited
            self._start(None)


@kept_programs()
def _serve(pipe: Connection, profile: Profile, device_settings: DeviceSettings, folder: Path) -> None:
    """Be such a process: finish what comes through the pipe until it closes, one series at a time."""
    with quiet_start():
        from v8.runs import local, stages  # noqa: PLC0415 - the module of a pool starts no TensorFlow

    with obeying_parent(pipe) as (observer, check):
        trainer = local.new_trainer(profile, device_settings)
        store = FeatureStore(folder)
        pipe.send(1)
        while True:
            for trained in pipe.recv():
                check()
                pipe.send(stages.finish_trained(trained, trainer, store, observer))
