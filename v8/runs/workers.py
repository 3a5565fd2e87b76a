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

Through the pipe go, up: `Ready` once when the worker can begin, then events, each series' `Outcome` last;
down: a list of `Job`s for the ready sign and for the last outcome of each list, until the pipe closes.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from v8.errors import with_parameters
from v8.hardware import has_gpu
from v8.machine.interruption import deferred_interrupts
from v8.machine.starting import quiet_start
from v8.market.series import Series
from v8.profile import Profile
from v8.runs.events import Event, Listener, Note, Outcome, log_told_as_notes
from v8.runs.plan import Job
from v8.training.programs import kept_programs

TRIES = 2
"""A series whose worker died is given to one more; then it has failed."""


class JobQueue:
    """Jobs that wait for a worker.

    Args:
        jobs: All of them, each of another series.
        listen: Told what is tried again.
    """

    def __init__(self, jobs: Sequence[Job], listen: Listener) -> None:
        self._waiting, self._listen = deque(jobs), listen
        self._num_deaths: Counter[Series] = Counter()

    def __len__(self) -> int:
        """Count the jobs that wait."""
        return len(self._waiting)

    def take(self, most: int, begun: Sequence[Job] = ()) -> list[Job]:
        """Hand out jobs for one worker; one that killed a worker, alone.

        Args:
            most: How many the worker takes at a time, at least 1.
            begun: Those it has; they are among the result.
        """
        taken = list(begun)
        while self._waiting and len(taken) < most:
            if taken and any(self._num_deaths[job.series] for job in (*taken, self._waiting[0])):
                break
            taken.append(self._waiting.popleft())
        return taken

    def give_back(self, jobs: Sequence[Job], cause: str) -> list[Outcome]:
        """Let jobs whose worker died wait again, before all others.

        Args:
            jobs: What it had not finished.
            cause: What it died of, a few words.

        Returns:
            The failures of those that have no try left.
        """
        self._num_deaths.update(job.series for job in jobs)
        lost = [job for job in jobs if self._num_deaths[job.series] == TRIES]
        again = [job for job in jobs if job not in lost]
        self._waiting.extendleft(reversed(again))
        for job in again:
            self._listen(Note(f"{job.series}: its worker died ({cause}); tried once more."))
        return [_lost(job, cause) for job in lost]


def _lost(job: Job, cause: str) -> Outcome:
    reason = (
        f"{job.series}: its worker must live until the artefact is saved; got {cause} {TRIES} times. "
        "Lower param:workers if memory ran out, or look into the system's log."
    )
    return Outcome(job.series, reason=with_parameters(reason), trace=reason + "\n")


POLL_S = 0.2
"""How long the parent waits for news before it looks whether it was interrupted."""

STOP_S = 2.0
"""How long workers may take to stop before they are killed; checkpoints keep their epochs."""


@dataclass(frozen=True)
class Ready:
    """A worker can begin.

    Args:
        fleet_size: Most series of one program, at least 1.
    """

    fleet_size: int


class _Worker:
    """A process, the parent's end of its pipe, and the series it works on or will get when ready.

    Args:
        job: The first of them.
        gpu: The GPU that it sees, as CUDA_VISIBLE_DEVICES names it; None: as this process.
        fleet_size: Most series of one program; None lets it measure.
        num_series: Most series that it will have.
    """

    def __init__(self, job: Job, gpu: str | None, fleet_size: int | None, num_series: int) -> None:
        self.jobs, self.gpu, self.fleet_size = [job], gpu, 1
        # A fork would copy a parent that holds locks and a thread pool; spawn starts clean.
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(
            target=_serve,
            args=(there, job.profile, job.settled, gpu, fleet_size, num_series),
            name="v8-worker",
            daemon=True,
        )
        with deaf_to_interrupts():
            self.process.start()
        there.close()

    def send_jobs(self) -> None:
        """Hand over the series, if there are any."""
        if self.jobs:
            with suppress(ConnectionError):  # a dead worker is noticed when its pipe is next listened to
                self.pipe.send(self.jobs)

    @property
    def cause_of_death(self) -> str:
        """The signal that ended the process, or its exit code."""
        code = self.process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def train_all(
    jobs: Sequence[Job],
    listen: Listener,
    num_workers: int,
    *,
    gpus: Sequence[str] = (),
    fleet_size: int | None = 1,
) -> Iterator[Outcome]:
    """Make the artefact of every job in worker processes.

    Args:
        jobs: Series of one profile.
        listen: Told about stages and epochs, here in the parent.
        num_workers: Processes at work at the same time, at least 1.
        gpus: One for each of them, as CUDA_VISIBLE_DEVICES names it; none leaves them what this process sees.
        fleet_size: Most series of one program; None lets each worker measure what suits its GPU.

    Yields:
        Each series' outcome as soon as it is known.
    """
    num_workers = min(num_workers, len(jobs))
    pool = _WorkerPool(jobs, listen, fleet_size, num_workers)
    with deferred_interrupts("stopping the workers after their batch; once more stops at once\n") as check:
        try:
            for gpu in (*gpus, *[None] * num_workers)[:num_workers]:
                pool.start(gpu)
            while pool.is_busy:
                check()
                yield from pool.receive()
        finally:
            pool.stop()


class _WorkerPool:
    """The workers of one run and the jobs that are still to be given out."""

    def __init__(
        self, jobs: Sequence[Job], listen: Listener, fleet_size: int | None, num_workers: int
    ) -> None:
        self._queue, self._listen = JobQueue(jobs, listen), listen
        self._fleet_size, self._even_share = fleet_size, -(-len(jobs) // num_workers)
        self._workers: list[_Worker] = []

    @property
    def is_busy(self) -> bool:
        """Whether any series is still under way."""
        return any(worker.jobs for worker in self._workers)

    def start(self, gpu: str | None) -> None:
        """Start a worker for the next of the waiting series."""
        (job,) = self._queue.take(1)
        self._workers.append(_Worker(job, gpu, self._fleet_size, self._even_share))

    def receive(self) -> list[Outcome]:
        """Pass on what workers send within a moment; return the outcomes among it."""
        pipes: dict[Any, _Worker] = {worker.pipe: worker for worker in self._workers if worker.jobs}
        ready = wait(list(pipes), timeout=POLL_S)
        return [outcome for pipe in ready for outcome in self._receive_from(pipes[pipe])]

    def stop(self) -> None:
        """End every worker: the idle at once, the busy after their batch."""
        for worker in self._workers:
            worker.pipe.close()
            if worker.jobs and worker.process.is_alive():
                worker.process.terminate()
        end_s = time.monotonic() + STOP_S
        for worker in self._workers:
            worker.process.join(max(0.0, end_s - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def _receive_from(self, worker: _Worker) -> list[Outcome]:
        try:
            event: Event | Ready = worker.pipe.recv()
        except (EOFError, ConnectionError):
            return self._replace(worker)
        if isinstance(event, Ready):
            worker.fleet_size = min(event.fleet_size, self._even_share)
            self._fill(worker)
        elif isinstance(event, Outcome):
            worker.jobs = [job for job in worker.jobs if job.series != event.series]
            if not worker.jobs:
                self._fill(worker)
            return [event]
        else:
            self._listen(event)
        return []

    def _fill(self, worker: _Worker) -> None:
        """Hand over as many series as the worker takes."""
        worker.jobs = self._queue.take(worker.fleet_size, worker.jobs)
        worker.send_jobs()

    def _replace(self, worker: _Worker) -> list[Outcome]:
        """Put a new worker in the place of a dead one and try its series again, once."""
        worker.process.join()
        worker.pipe.close()
        self._workers.remove(worker)
        lost = self._queue.give_back(worker.jobs, worker.cause_of_death)
        if self._queue:
            self.start(worker.gpu)
        return lost


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
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


@kept_programs()
def _serve(  # noqa: PLR0917 - called by `Process` with its arguments in a row
    pipe: Connection,
    profile: Profile,
    settled: dict[str, Any],
    gpu: str | None,
    fleet_size: int | None,
    num_series: int,
) -> None:
    """Live as a worker: make what comes through the pipe until it closes."""
    end_with_parent()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # before the backend looks for GPUs
    with quiet_start():
        from v8.runs.local import Workshop  # noqa: PLC0415 - the parent must not start TensorFlow
        from v8.training.probe import measured_fleet_size  # noqa: PLC0415

        is_on_gpu = has_gpu()
    with (
        suppress(EOFError, ConnectionError, KeyboardInterrupt),
        log_told_as_notes(pipe.send),
        deferred_interrupts("") as check,
    ):
        workshop = Workshop(profile, pipe.send, check, **settled)
        size = fleet_size or (measured_fleet_size(profile, num_series) if is_on_gpu else 1)
        if gpu is not None:
            pipe.send(Note(f"Process {os.getpid()} trains on GPU {gpu}, in fleets of at most {size}."))
        pipe.send(Ready(size))
        while True:
            for outcome in workshop.make_all(pipe.recv(), size):
                pipe.send(outcome)


def end_with_parent() -> None:
    """Let a process that `multiprocessing` started end when its parent has ended, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - `_serve` runs in a child only

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
