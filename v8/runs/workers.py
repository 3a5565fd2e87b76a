"""Worker processes: one workshop a core or a GPU, fed from one queue of series.

On a CPU the networks of this field are too small to share: two threads on one model gain little, two
models on two cores gain nearly all. So each worker is single-threaded and gets series one by one. On several
GPUs each worker sees one of them and gets fleets. Keras' distribution API would train one program on all: it
divides a batch, or a matrix, where a step of these networks is too short to wait for another GPU, and a fleet
needs no common gradient to be worth the wait.

A worker starts TensorFlow once and asks for more when it has finished what it had, so a slow series delays
nobody but its fleet. A worker that dies (killed, out of memory) is replaced, and its series are tried once
more, each alone, so that only the guilty one can fail; a checkpoint lets each go on where it was.

Workers obey the parent alone: Ctrl-C reaches all processes of a terminal, but only the parent decides,
and tells them by SIGTERM to stop after their batch. A worker whose parent is gone ends itself.

Through the pipe go, up: the most series of one program once the worker can begin, then events, each series'
`Outcome` last; down: a list of `Job`s for the first and for the last outcome of each list, until the pipe
closes.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from v8.errors import with_parameters
from v8.hardware import has_gpu
from v8.invocation import children_with_safe_path, explained_imports, explained_start
from v8.machine.interruption import deferred_interrupts
from v8.machine.lasting import lasting, let_go
from v8.machine.starting import quiet_start
from v8.market.series import Series
from v8.plugins import load_plugins, loaded, other_plugins
from v8.profile import Profile
from v8.runs.events import Event, Listener, Note, Outcome, log_told_as_notes
from v8.runs.plan import Job
from v8.training.programs import kept_programs

TRIES: Final = 2  # a series whose worker died is given to one more; then it has failed
MOST_PROFILES: Final = 8
"""What workers train one after another until others take their place: TensorFlow lets no program go."""
POLL_S: Final = 0.2  # how long whoever waits for news waits before it looks whether it was interrupted
STOP_S: Final = 2.0
"""How long processes may take to stop before they are killed; checkpoints keep their epochs."""
_trained: Final[dict[str, int]] = {}
"""Digests of the profiles that workers of this process have trained, each with how many came before it."""


class JobQueue:
    """Jobs, each of another series, that wait for a worker, and those that workers have."""

    def __init__(self, jobs: Sequence[Job], listen: Listener) -> None:
        self._waiting = deque(jobs)
        self._listen = listen
        self._num_deaths: Counter[Series] = Counter()
        self.held: dict[Any, list[Job]] = {}
        """By worker, the jobs whose outcome has not come."""

    def __len__(self) -> int:
        """Count the jobs that wait."""
        return len(self._waiting)

    def take(self, most: int, begun: Sequence[Job] = ()) -> list[Job]:
        """Hand out jobs until a worker has `most`, those among it that it has `begun`.

        One that killed a worker goes alone.
        """
        taken = list(begun)
        while self._waiting and len(taken) < most:
            if taken and any(self._num_deaths[job.series] for job in (*taken, self._waiting[0])):
                break
            taken.append(self._waiting.popleft())
        return taken

    def heard(self, worker: Any, event: Event) -> list[Outcome]:
        """Return an outcome that a worker tells, after taking note of it; pass on all else."""
        if not isinstance(event, Outcome):
            self._listen(event)
            return []
        self.held[worker] = [job for job in self.held[worker] if job.series != event.series]
        return [event]

    def give_back(self, jobs: Sequence[Job], cause: str) -> list[Outcome]:
        """Let jobs that a worker had not finished when it died wait again, before all others.

        The cause is a few words. Returns the failures of those that have no try left.
        """
        self._num_deaths.update(job.series for job in jobs)
        lost = [job for job in jobs if self._num_deaths[job.series] == TRIES]
        again = [job for job in jobs if job not in lost]
        self._waiting.extendleft(reversed(again))
        for job in again:
            self._listen(Note(f"{job.series}: its worker died ({cause}); tried once more."))
        rule = f"its worker must live until the artefact is saved; got {cause} {TRIES} times."
        fix = with_parameters("Lower param:workers if memory ran out, or look into the system's log.")
        told = {job.series: f"{job.series}: {rule} {fix}" for job in lost}
        return [Outcome(series, reason=reason, trace=f"{reason}\n") for series, reason in told.items()]


class Process:
    """A process of ours that lives as a function and ends with this one, and our end of its pipe."""

    def __init__(self, name: str, live: Callable[..., None], *arguments: Any) -> None:
        # A fork would copy a parent that holds locks and a thread pool; spawn starts clean.
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        told = (there, loaded, pickle.dumps((live, arguments)))  # may be of classes of a plug-in
        self._process = context.Process(target=_live, args=told, name=name, daemon=True)
        with children_with_safe_path(), _deaf_to_interrupts():
            self._process.start()
        there.close()

    def tell_to_stop(self, *, is_busy: bool = True) -> None:
        """Close the pipe, at which it ends when idle, and let it stop what it does."""
        self.pipe.close()
        if is_busy and self._process.is_alive():
            self._process.terminate()

    def end(self, within_s: float = STOP_S) -> None:
        """Wait for its end, and kill it then."""
        self._process.join(max(0.0, within_s))
        self._process.kill()
        self._process.join()

    def cause_of_death(self) -> str:
        """Wait for its end and return the signal that ended it, or its exit code."""
        self._process.join()
        code = self._process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _live(pipe: Connection, plugins: Mapping[str, str], packed: bytes) -> None:
    """Be the process, with the plug-ins of the parent, until that ends, however it ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - this runs in a child only

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    with explained_start():
        load_plugins()
        fix = "Leave plug-ins as they are while they are in use, and repeat the same command"
        changed = other_plugins(plugins, where="a process of a run", fix=fix)
        if changed:
            raise changed
    with explained_imports():
        live, arguments = pickle.loads(packed)  # noqa: S301 - our parent's
        live(pipe, *arguments)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Block SIGINT for the processes started in the block, which inherit that for all their life.

    A worker that only ignored it once it runs would print a traceback when Ctrl-C comes earlier. Here
    a Ctrl-C is kept until the block ends. Windows blocks no signals: there a worker obeys Ctrl-C itself.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # `start` would start it, and that unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker(Process):
    """A process, its GPU, and the most series that it takes at a time."""

    def __init__(self, job: Job, gpu: str | None, fleet_size: int | None, num_series: int) -> None:
        self.gpu = gpu
        self.fleet_size = 1
        super().__init__("v8-worker", _serve, job.profile, gpu, fleet_size, num_series)


def train_all(
    jobs: Sequence[Job],
    listen: Listener,
    num_workers: int,
    *,
    gpus: Sequence[str] = (),
    fleet_size: int | None = 1,
) -> Iterator[Outcome]:
    """Make the artefact of every job in worker processes; yield each series' outcome as soon as it is known.

    Args:
        listen: Told about stages and epochs, here in the parent.
        gpus: One for each worker, as CUDA_VISIBLE_DEVICES names it; none leaves them what this process sees.
        fleet_size: Most series of one program; None lets each worker measure what suits its GPU.
    """
    num_before = _trained.setdefault(digest := jobs[0].profile.digest, len(_trained))
    # Workers take up another profile, but where they have measured what suits theirs.
    key = fleet_size or digest, num_before // MOST_PROFILES, *gpus, os.environ.get("XLA_FLAGS")
    with (
        deferred_interrupts("stopping the workers after their batch; once more stops at once\n") as check,
        lasting() as kept,
    ):
        if key not in kept:
            let_go(kept)
            kept[key] = _WorkerPool(gpus, fleet_size)
        pool = kept[key]
        pool.take_up(jobs, listen, min(num_workers, len(jobs)))
        while pool.is_busy:
            check()
            yield from pool.receive()


class _WorkerPool:
    """Workers, and the jobs of the run under way that are still to be given out."""

    def __init__(self, gpus: Sequence[str], fleet_size: int | None) -> None:
        self._queue = JobQueue([], lambda event: None)
        self._gpus = gpus
        self._fleet_size = fleet_size

    def close(self) -> None:
        """End every worker: the idle at once, the busy after their batch."""
        for worker, jobs in self._queue.held.items():
            worker.tell_to_stop(is_busy=bool(jobs))
        end_s = time.monotonic() + STOP_S
        for worker in self._queue.held:
            worker.end(end_s - time.monotonic())

    @property
    def is_busy(self) -> bool:
        """Whether any series is still under way."""
        return any(self._queue.held.values())

    def take_up(self, jobs: Sequence[Job], listen: Listener, num_workers: int) -> None:
        """Begin a run: hand jobs to the workers of the one before, and start those that are missing."""
        idle = [*self._queue.held]
        self._queue = JobQueue(jobs, listen)
        self._even_share = -(-len(jobs) // num_workers)
        for worker in idle:
            self._fill(worker)
        for gpu in (*self._gpus, *[None] * num_workers)[len(idle) : num_workers]:
            if self._queue:
                self._start(gpu)

    def _start(self, gpu: str | None) -> None:
        """Start a worker for the next of the waiting series, which it gets when ready."""
        (job,) = self._queue.take(1)
        self._queue.held[_Worker(job, gpu, self._fleet_size, self._even_share)] = [job]

    def receive(self) -> list[Outcome]:
        """Pass on what workers send within a moment; return the outcomes among it."""
        pipes: dict[Any, _Worker] = {worker.pipe: worker for worker, jobs in self._queue.held.items() if jobs}
        ready = wait(list(pipes), timeout=POLL_S)
        return [outcome for pipe in ready for outcome in self._receive_from(pipes[pipe])]

    def _receive_from(self, worker: _Worker) -> list[Outcome]:
        try:
            told: Event | int = worker.pipe.recv()
        except (EOFError, ConnectionError):
            return self._replace(worker)
        outcomes = [] if isinstance(told, int) else self._queue.heard(worker, told)
        if isinstance(told, int):
            worker.fleet_size = min(told, self._even_share)
        if isinstance(told, int) or not self._queue.held[worker]:
            self._fill(worker)
        return outcomes

    def _fill(self, worker: _Worker) -> None:
        """Hand over as many series as the worker takes, if there are any."""
        begun = self._queue.held.get(worker, [])
        self._queue.held[worker] = jobs = self._queue.take(worker.fleet_size, begun)
        with suppress(ConnectionError):  # a dead worker is noticed when its pipe is next listened to
            if jobs:
                worker.pipe.send(jobs)

    def _replace(self, worker: _Worker) -> list[Outcome]:
        """Put a new worker in the place of a dead one and try its series again, once."""
        cause = worker.cause_of_death()
        worker.pipe.close()
        lost = self._queue.give_back(self._queue.held.pop(worker), cause)
        if self._queue:
            self._start(worker.gpu)
        return lost


@kept_programs()
def _serve(pipe: Connection, profile: Profile, gpu: str | None, size: int | None, num_series: int) -> None:
    """Live as a worker: make what comes through the pipe until it closes, of at most so many series."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # before the backend looks for GPUs
    with quiet_start():
        from v8.runs import local  # noqa: PLC0415 - the parent starts no TensorFlow

        has_gpu()
    with (
        suppress(EOFError, ConnectionError, KeyboardInterrupt),
        log_told_as_notes(pipe.send),
        deferred_interrupts("") as check,
        lasting(),
    ):
        size = size or local.suited_fleet_size(profile, num_series)
        if gpu is not None:
            pipe.send(Note(f"Process {os.getpid()} trains on GPU {gpu}, in fleets of at most {size}."))
        pipe.send(size)
        while True:
            for outcome in local.train_all(pipe.recv(), pipe.send, size, check=check):
                pipe.send(outcome)
