"""Worker processes: one series pipeline a core or a GPU, fed from one queue of series.

On a CPU the networks of this field are too small to share: two threads on one model gain little, two
models on two cores gain nearly all. So each worker is single-threaded and gets series one by one. On several
GPUs each worker sees one of them and gets fleets. Keras' distribution API would train one program on all: it
divides a batch, or a matrix, where a step of these networks is too short to wait for another GPU, and a fleet
needs no common gradient to be worth the wait.

A worker starts TensorFlow once and asks for more when it has finished what it had, so a slow series delays
nobody but its fleet. A worker that dies (killed, out of memory) is replaced, and its series are tried once
more, each alone, so that only the guilty one can fail; a checkpoint lets each go on where it was.

Workers obey the parent alone: Ctrl-C reaches all processes of a terminal, but only the parent decides,
and signals them by SIGTERM to stop after their batch. A worker whose parent is gone ends itself.

A worker sends through its pipe the most series of one program once it can begin, then events, each series'
`SeriesOutcome` last. It gets a list of `Job`s first, and another one after the last outcome of each list,
until the pipe closes.

On a machine with a GPU one process trains, and evaluating a series keeps one core busy a hundred times as
long as training it keeps the GPU. So each core gets a process without a GPU (`FinisherPool`), a worker, too.
It makes features and windows of a series again, from the store, evaluates and saves what was trained; the
artefact is the same, to the bit of its weights. What is under way when the run is killed goes on from its
checkpoint.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from v8.base.child import resource_scope
from v8.base.errors import with_parameters
from v8.base.hardware import has_gpu, num_usable_cores, process_variables
from v8.base.process import (
    children_with_safe_path,
    deferred_interrupts,
    explained_imports,
    explained_start,
    quiet_start,
    with_variables,
)
from v8.base.programs import kept_programs
from v8.base.registry import load_plugins, loaded_plugins, other_plugins
from v8.data.feature_store import FeatureStore
from v8.data.market.series import Series
from v8.profile.profile import Profile
from v8.runs.events import Event, EventCallback, Note, RunObserver, SeriesOutcome, warnings_as_notes
from v8.runs.machine import affordable_workers
from v8.runs.plan import Engine, Job, Recipe

if TYPE_CHECKING:
    from v8.runs.stages import TrainedSeries  # at run time it would import TensorFlow


TRIES: Final = 2  # a series whose worker died is given to one more; then it has failed
MOST_PROFILES: Final = 8
"""Profiles that the same workers train one after another; then new workers take their place, because
TensorFlow never frees a program."""
POLL_S: Final = 0.2  # how long a wait for events lasts before it is checked whether it was interrupted
STOP_S: Final = 2.0
"""How long processes may take to stop before they are killed; checkpoints keep their epochs."""


FEWEST_SERIES: Final = 8
"""Series from which on `FinisherPool` is worth it: it starts as long as three to five are evaluated."""
_profile_places: Final[dict[str, int]] = {}
"""Digests of the profiles that workers of this process have trained, each with how many came before it."""


class OfSeries(Protocol):
    """What a worker gets: some work of one series."""

    @property
    def series(self) -> Series:
        """Which series."""
        ...


AnyJob = TypeVar("AnyJob", bound=OfSeries)


class WorkerEngine(Engine):
    """Makes artefacts in worker processes.

    Args:
        num_workers: Processes, at least 1; no more start than there are series.
        gpus: One for each worker, as CUDA_VISIBLE_DEVICES names it; none leaves them what this process sees.
        fleet_size: Most series of one program; None lets each worker measure what suits its GPU.
    """

    def __init__(self, num_workers: int, *, gpus: Sequence[str] = (), fleet_size: int | None = 1) -> None:
        self._num_workers = num_workers
        self._gpus = tuple(gpus)
        self._fleet_size = fleet_size

    def train(self, jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        """Make the artefact of every job; yield how each series ended as soon as it is known."""
        message = "stopping the workers after their batch; once more stops immediately\n"
        key = self._pool_key(jobs[0].recipe.profile)
        with deferred_interrupts(message) as check, resource_scope() as resources:
            pool = resources.get(key, lambda: _TrainingPool(self._gpus, self._fleet_size))
            pool.take_up(jobs, observer, min(self._num_workers, len(jobs)))
            while pool.is_busy:
                check()
                yield from pool.receive()

    def _pool_key(self, profile: Profile) -> tuple[Any, ...]:
        """Return what a pool of workers must have in common with a run to be used for it.

        Workers go on with another profile, unless they have measured which fleet size suits theirs.
        """
        place = _profile_places.setdefault(profile.digest, len(_profile_places))
        generation = place // MOST_PROFILES
        size_or_profile = self._fleet_size or profile.digest
        return (size_or_profile, generation, self._gpus, os.environ.get("XLA_FLAGS"))


class WorkerPool(ABC, Generic[AnyJob]):
    """Workers, and the jobs of the run under way that are still to be given out."""

    def __init__(self) -> None:
        self._queue: JobQueue[AnyJob] = JobQueue([], RunObserver())
        self._even_share = 1

    def close(self) -> None:
        """End every worker: the idle immediately, the busy after their batch."""
        for worker, jobs in self._queue.held.items():
            worker.ask_to_stop(is_busy=bool(jobs))
        end_s = time.monotonic() + STOP_S
        for worker in self._queue.held:
            worker.end(end_s - time.monotonic())

    @property
    def is_busy(self) -> bool:
        """Whether any series is still under way."""
        return any(self._queue.held.values())

    @abstractmethod
    def _new_worker(self, gpu: str | None) -> "Worker":
        """Start a process."""

    def _start(self, gpu: str | None) -> None:
        """Start a worker for the next of the waiting series, which it gets when ready."""
        (job,) = self._queue.take(1)
        self._queue.held[self._new_worker(gpu)] = [job]

    def receive(self, timeout_s: float = POLL_S) -> list[SeriesOutcome]:
        """Pass on what workers send within a moment; return the outcomes among it."""
        talking: dict[Any, Worker] = {
            worker.pipe: worker for worker, jobs in self._queue.held.items() if jobs or not worker.is_ready
        }
        outcomes = []
        for pipe in wait(list(talking), timeout=timeout_s):
            outcomes += self._receive_from(talking[pipe])
        return outcomes

    def _receive_from(self, worker: "Worker") -> list[SeriesOutcome]:
        try:
            message: Event | int = worker.pipe.recv()
        except (EOFError, ConnectionError):
            return self._replace(worker)
        if isinstance(message, int):  # it is ready, and this is the most series of one program
            worker.is_ready = True
            worker.fleet_size = min(message, self._even_share)
            self._fill(worker)
            return []
        outcomes = self._queue.receive(worker, message)
        if not self._queue.held[worker]:
            self._fill(worker)
        return outcomes

    def _fill(self, worker: "Worker") -> None:
        """Hand over as many series as the worker takes, if there are any."""
        jobs = self._queue.take(worker.fleet_size, self._queue.held.get(worker, []))
        self._queue.held[worker] = jobs
        with suppress(ConnectionError):  # a dead worker is noticed when its pipe is next read
            if jobs:
                worker.pipe.send(jobs)

    def _replace(self, worker: "Worker") -> list[SeriesOutcome]:
        """Put a new worker in the place of a dead one and try its series again, once."""
        cause = worker.cause_of_death()
        worker.pipe.close()
        failures = self._queue.give_back(self._queue.held.pop(worker), cause)
        if self._queue:
            self._start(worker.gpu)
        return failures


class _TrainingPool(WorkerPool[Job]):
    """Workers that make artefacts, one for each GPU or core."""

    def __init__(self, gpus: Sequence[str], fleet_size: int | None) -> None:
        super().__init__()
        self._gpus = gpus
        self._fleet_size = fleet_size
        self._profile: Profile

    def take_up(self, jobs: Sequence[Job], observer: RunObserver, num_workers: int) -> None:
        """Begin a run: hand jobs to the workers of the one before, and start those that are missing."""
        idle = list(self._queue.held)
        self._profile = jobs[0].recipe.profile
        self._queue = JobQueue(jobs, observer)
        self._even_share = -(-len(jobs) // num_workers)  # rounded up
        for worker in idle:
            self._fill(worker)
        gpus = [*self._gpus, *[None] * num_workers]
        for gpu in gpus[len(idle) : num_workers]:
            if self._queue:
                self._start(gpu)

    def _new_worker(self, gpu: str | None) -> "Worker":
        variables = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        arguments = (self._profile, gpu, self._fleet_size, self._even_share)
        return Worker("v8-worker", _serve, *arguments, gpu=gpu, variables=variables)


def num_finishers(jobs: Sequence[Job]) -> int:
    """Return how many processes finish what this one trains on a GPU; 0 where it does all itself."""
    if not has_gpu() or len(jobs) < FEWEST_SERIES or jobs[0].recipe.profile.family.is_formula:
        return 0
    return affordable_workers(min(num_usable_cores(), len(jobs)))


class FinisherPool(WorkerPool["TrainedSeries"]):
    """Processes that finish what this one trains.

    Args:
        recipe: That of all series.
        store: Folder of the feature store.
    """

    def __init__(self, recipe: Recipe, store: Path) -> None:
        super().__init__()
        self._num = 0
        self._arguments = (recipe, store)

    def start(self, num: int) -> None:
        """Start the processes that are missing if there are to be at least so many."""
        self._num = max(self._num, num)
        for _ in range(num - len(self._queue.held)):
            self._queue.held[self._new_worker(None)] = []

    def _new_worker(self, gpu: str | None) -> "Worker":
        return Worker("v8-finisher", _finish_series, *self._arguments, variables=process_variables("cpu"))

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


class JobQueue(Generic[AnyJob]):
    """Jobs, each of another series, that wait for a worker, and those that workers have."""

    def __init__(self, jobs: Sequence[AnyJob], observer: RunObserver) -> None:
        self._waiting = deque(jobs)
        self._observer = observer
        self._num_deaths: Counter[Series] = Counter()
        self.held: dict[Any, list[AnyJob]] = {}
        """By worker, the jobs whose outcome has not come."""

    def __len__(self) -> int:
        """Count the jobs that wait."""
        return len(self._waiting)

    def append(self, job: AnyJob) -> None:
        """Let one more wait."""
        self._waiting.append(job)

    def take(self, most: int, held: Sequence[AnyJob] = ()) -> list[AnyJob]:
        """Hand out jobs until a worker has `most`, those among it that it has been `held` already.

        A series whose worker died goes alone.
        """
        jobs = list(held)
        while self._waiting and len(jobs) < most:
            candidates = [*jobs, self._waiting[0]]
            if jobs and any(self._num_deaths[job.series] for job in candidates):
                break
            jobs.append(self._waiting.popleft())
        return jobs

    def receive(self, worker: Any, event: Event) -> list[SeriesOutcome]:
        """Return an outcome that a worker sent, after taking note of it; pass on all other events."""
        if not isinstance(event, SeriesOutcome):
            self._observer.on_event(event)
            return []
        self.held[worker] = [job for job in self.held[worker] if job.series != event.series]
        return [event]

    def give_back(self, jobs: Sequence[AnyJob], cause: str) -> list[SeriesOutcome]:
        """Let jobs that a worker had not finished when it died wait again, before all others.

        The cause is a few words. Returns the failures of those that have no try left.
        """
        self._num_deaths.update(job.series for job in jobs)
        failed = [job for job in jobs if self._num_deaths[job.series] == TRIES]
        repeated = [job for job in jobs if job not in failed]
        self._waiting.extendleft(reversed(repeated))
        for job in repeated:
            note = Note(f"{job.series}: its worker died ({cause}); tried once more.")
            self._observer.on_event(note)
        rule = f"its worker must live until the artefact is saved; got {cause} {TRIES} times."
        fix = with_parameters("Lower param:workers if memory ran out, or look into the system's log.")
        outcomes = []
        for job in failed:
            reason = f"{job.series}: {rule} {fix}"
            outcomes.append(SeriesOutcome(job.series, reason=reason, trace=f"{reason}\n"))
        return outcomes


class Process:
    """A process that runs a function and ends with this one, and our end of its pipe.

    The function gets the other end of the pipe, and the arguments; the process gets the variables in addition
    to those of this one.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., None],
        *arguments: Any,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        # A fork would copy a parent that holds locks and a thread pool; spawn starts clean.
        context = multiprocessing.get_context("spawn")
        self.pipe, child_pipe = context.Pipe()
        packed = pickle.dumps((function, arguments))  # after the plug-ins, whose classes they may be of
        self._process = context.Process(
            target=_run_function, args=(child_pipe, loaded_plugins, packed), name=name, daemon=True
        )
        with with_variables(variables or {}), children_with_safe_path(), _interrupts_blocked():
            self._process.start()
        child_pipe.close()

    def ask_to_stop(self, *, is_busy: bool = True) -> None:
        """Close the pipe, at which it ends when idle; a busy one is sent SIGTERM, too."""
        self.pipe.close()
        if is_busy and self._process.is_alive():
            self._process.terminate()

    def end(self, within_s: float = STOP_S) -> None:
        """Wait for its end, and then kill it."""
        self._process.join(max(0.0, within_s))
        self._process.kill()
        self._process.join()

    def cause_of_death(self) -> str:
        """Wait for its end and return the signal that ended it, or its exit code."""
        self._process.join()
        code = self._process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


class Worker(Process):
    """A process, its GPU, and the most series that it takes at a time."""

    def __init__(
        self,
        name: str,
        function: Callable[..., None],
        *arguments: Any,
        gpu: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.gpu = gpu
        self.is_ready = False  # whether it has begun to listen
        self.fleet_size = 1
        super().__init__(name, function, *arguments, variables=variables)


@contextmanager
def obeying_parent(pipe: Connection) -> Iterator[tuple[RunObserver, Callable[[], None]]]:
    """Run the block until the parent closes the pipe, or stops this process.

    Gives what sends events and warnings to the parent, and a check that raises where it is to stop.
    """
    observer = EventCallback(pipe.send)
    with (
        suppress(EOFError, ConnectionError, KeyboardInterrupt),
        warnings_as_notes(observer),
        deferred_interrupts("") as check,
        resource_scope(),
    ):
        yield observer, check


@kept_programs()
def _serve(pipe: Connection, profile: Profile, gpu: str | None, size: int | None, num_series: int) -> None:
    """Be a worker: make what comes through the pipe until it closes, of at most so many series."""
    with quiet_start():
        from v8.runs import local  # noqa: PLC0415 - the parent starts no TensorFlow

        has_gpu()
    with obeying_parent(pipe) as (observer, check):
        fleet_size = size or local.suited_fleet_size(profile, num_series)
        if gpu is not None:
            text = f"Process {os.getpid()} trains on GPU {gpu}, in fleets of at most {fleet_size}."
            observer.on_event(Note(text))
        pipe.send(fleet_size)
        engine = local.InProcessEngine(fleet_size, check_interrupt=check)
        while True:
            for outcome in engine.train(pipe.recv(), observer):
                pipe.send(outcome)


@kept_programs()
def _finish_series(pipe: Connection, recipe: Recipe, folder: Path) -> None:
    """Be a process of `FinisherPool`: finish series that come through the pipe, one at a time."""
    with quiet_start():
        from v8.runs import local, stages  # noqa: PLC0415 - the module of a pool starts no TensorFlow

    with obeying_parent(pipe) as (observer, check):
        trainer = local.new_trainer(recipe)
        store = FeatureStore(folder)
        pipe.send(1)
        while True:
            for trained in pipe.recv():
                check()
                pipe.send(stages.finish_trained(trained, trainer, store, observer))


def _run_function(pipe: Connection, plugins: Mapping[str, str], packed: bytes) -> None:
    """Run a function in the new process, with the plug-ins of the parent, until the parent ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - this runs in a child only

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    with explained_start():
        load_plugins()
        fix = "Leave plug-ins as they are while they are in use, and repeat the same command"
        changed = other_plugins(plugins, where="a process of a run", fix=fix)
        if changed:
            raise changed
    with explained_imports():
        function, arguments = pickle.loads(packed)  # noqa: S301 - our parent's
        function(pipe, *arguments)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT for the processes started in the block, which inherit that for all their life.

    A worker that only ignored it once it runs would print a traceback when Ctrl-C comes earlier. Here
    a Ctrl-C is kept until the block ends. Windows blocks no signals: there a worker obeys Ctrl-C itself.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # `start` would start it, and that unblocks SIGINT
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
