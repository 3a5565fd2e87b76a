"""The jobs of a run that nobody works on yet, and what becomes of those whose worker died.

They are given out in order. A job whose worker died is tried once more, alone, so that of several that
were together only the guilty one can fail.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from v8.runs.events import Listener, Note, Outcome
from v8.runs.plan import Job
from v8.market.series import Series

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
        "Lower --workers if memory ran out, or look into the system's log."
    )
    return Outcome(job.series, reason=reason, trace=reason + "\n")
