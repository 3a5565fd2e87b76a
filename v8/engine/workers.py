"""Worker processes: one workshop a core, each single-threaded, fed series one by one.

On a CPU the networks of this field are too small to share: two threads on one model gain little, two
models on two cores gain nearly all. A worker starts TensorFlow once and asks for the next series when
it has finished one, so a slow series delays nobody. A worker that dies (killed, out of memory) is
replaced, and its series is tried once more: its checkpoint lets it go on where it was.

Workers obey the parent alone: Ctrl-C reaches all processes of a terminal, but only the parent decides,
and tells them by SIGTERM to stop after their batch. A worker whose parent is gone ends itself.

Through the pipe go, up: `None` once when the worker is ready for its first series, then events, each
series' `Outcome` last; down: one `Job` for the ready sign and for every outcome, until the pipe closes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, cast

from v8.engine.events import Event, Listener, Note, Outcome, log_told_as_notes
from v8.engine.interruption import deferred_interrupts
from v8.engine.plan import Job
from v8.engine.quiet import quiet_start
from v8.machine import has_gpu
from v8.market.series import Series
from v8.profile import Profile

TRIES = 2
"""A series whose worker died is given to one more; then it has failed."""

POLL_S = 0.2
"""How long the parent waits for news before it looks whether it was interrupted."""

STOP_S = 2.0
"""How long workers may take to stop before they are killed; checkpoints keep their epochs."""


class _Worker:
    """A process, the parent's end of its pipe, and the series it works on or will get when ready."""

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        # A fork would copy a parent that holds locks and a thread pool; spawn starts clean.
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(there, job.profile, job.precision), name="v8-worker", daemon=True
        )
        with _deaf_to_interrupts():
            self.process.start()
        there.close()

    def send_job(self) -> None:
        """Hand over the series, if there is one."""
        if self.job:
            with suppress(ConnectionError):  # a dead worker is noticed when its pipe is next listened to
                self.pipe.send(self.job)

    @property
    def cause_of_death(self) -> str:
        """The signal that ended the process, or its exit code."""
        code = self.process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def train_all(jobs: Sequence[Job], listen: Listener, num_workers: int) -> Iterator[Outcome]:
    """Make the artefact of every job in worker processes.

    Args:
        jobs: Series of one profile.
        listen: Told about stages and epochs, here in the parent.
        num_workers: Processes at work at the same time, at least 1.

    Yields:
        Each series' outcome as soon as it is known.
    """
    pool = _WorkerPool(jobs, listen)
    with deferred_interrupts("stopping the workers after their batch; once more stops at once\n") as check:
        try:
            pool.start(min(num_workers, len(jobs)))
            while pool.is_busy:
                check()
                yield from pool.receive()
        finally:
            pool.stop()


class _WorkerPool:
    """The workers of one run and the jobs that are still to be given out."""

    def __init__(self, jobs: Sequence[Job], listen: Listener) -> None:
        self._todo = deque(jobs)
        self._listen = listen
        self._num_deaths: Counter[Series] = Counter()
        self._workers: list[_Worker] = []

    @property
    def is_busy(self) -> bool:
        """Whether any series is still under way."""
        return any(worker.job for worker in self._workers)

    def start(self, num_workers: int) -> None:
        """Start workers, each for one of the waiting series."""
        self._workers += [_Worker(self._todo.popleft()) for _ in range(num_workers)]

    def receive(self) -> list[Outcome]:
        """Pass on what workers send within a moment; return the outcomes among it."""
        pipes: dict[Any, _Worker] = {worker.pipe: worker for worker in self._workers if worker.job}
        outcomes = [self._receive_from(pipes[pipe]) for pipe in wait(list(pipes), timeout=POLL_S)]
        return [outcome for outcome in outcomes if outcome]

    def stop(self) -> None:
        """End every worker: the idle at once, the busy after their batch."""
        for worker in self._workers:
            worker.pipe.close()
            if worker.job and worker.process.is_alive():
                worker.process.terminate()
        end_s = time.monotonic() + STOP_S
        for worker in self._workers:
            worker.process.join(max(0.0, end_s - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def _receive_from(self, worker: _Worker) -> Outcome | None:
        try:
            event: Event | None = worker.pipe.recv()
        except (EOFError, ConnectionError):
            return self._replace(worker, cast(Job, worker.job))
        if event is None:
            worker.send_job()
        elif isinstance(event, Outcome):
            worker.job = self._todo.popleft() if self._todo else None
            worker.send_job()
            return event
        else:
            self._listen(event)
        return None

    def _replace(self, worker: _Worker, job: Job) -> Outcome | None:
        """Put a new worker in the place of a dead one and try its series again, once."""
        worker.process.join()
        worker.pipe.close()
        self._workers.remove(worker)
        self._num_deaths[job.series] += 1
        is_lost = self._num_deaths[job.series] == TRIES
        if not is_lost:
            self._todo.appendleft(job)
            self._listen(Note(f"{job.series}: its worker died ({worker.cause_of_death}); tried once more."))
        self.start(min(1, len(self._todo)))
        return _lost(job, worker.cause_of_death) if is_lost else None


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


def _lost(job: Job, cause: str) -> Outcome:
    reason = (
        f"{job.series}: its worker must live until the artefact is saved; got {cause} {TRIES} times. "
        "Lower --workers if memory ran out, or look into the system's log."
    )
    return Outcome(job.series, reason=reason, trace=reason + "\n")


def _serve(pipe: Connection, profile: Profile, precision: str) -> None:
    """Live as a worker: make what comes through the pipe until it closes."""
    _end_with_parent()
    with quiet_start():
        from v8.engine.local import Workshop  # noqa: PLC0415 - the parent must not start TensorFlow

        has_gpu()
    with (
        suppress(EOFError, ConnectionError, KeyboardInterrupt),
        log_told_as_notes(pipe.send),
        deferred_interrupts("") as check,
    ):
        workshop = Workshop(profile, pipe.send, check, precision=precision)
        pipe.send(None)
        while True:
            pipe.send(workshop.make(pipe.recv()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - `_serve` runs in a child only

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
