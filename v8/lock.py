"""One writer per folder or file: a lock that the system releases when its process ends, however it ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock, Timeout

from v8.errors import ArtifactError, StorageError
from v8.user_files import read_given, require_replaceable

LOCK_NAME = ".lock"
HOLDER_NAME = ".lock-holder"
"""Names the process that holds the lock; Windows lets nobody read the locked file itself."""

_MAX_HOLDER_BYTES = 20


class _Lock:
    """Hold something for this process.

    Args:
        rule: Who may hold it, as a clause.
        fix: What a second process can do.
    """

    def __init__(self, place: Path, lock: Path, holder: Path, *, rule: str, fix: str) -> None:
        self._lock = FileLock(lock, timeout=0, thread_local=False)
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            require_replaceable(lock)
            self._lock.acquire()
            require_replaceable(holder)
            holder.write_text(f"{os.getpid()}\n", "ascii")
        except Timeout as error:
            got = f"{_named(holder)} at work in it"
            raise ArtifactError(where=str(place), rule=rule, got=got, fix=fix) from error
        except OSError as error:
            self.release()
            raise StorageError.of(error.filename or place, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let the folder go; on a Unix the file stays, because removing it would race with one who waits."""
        self._lock.release()


def _named(holder: Path) -> str:
    """Name the process that holds a lock, as far as its file can be read: it may be another user's, or go."""
    try:
        pid = read_given(holder, _MAX_HOLDER_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        pid = ""
    return f"process {pid}" if pid.isdecimal() else "another process"


class FolderLock(_Lock):
    """Hold a run folder for this process."""

    def __init__(self, folder: Path) -> None:
        rule = "one run at a time writes a run folder"
        fix = "Wait until it ends, or start another run beside it with param:fresh"
        super().__init__(folder, folder / LOCK_NAME, folder / HOLDER_NAME, rule=rule, fix=fix)


class WriterLock(_Lock):
    """Hold a file that one process at a time may write; the lock is a hidden neighbour of it.

    Args:
        file: The file to hold, which need not be there yet.
        rule: Who may write it, as a clause.
        fix: What a second process can do.
    """

    def __init__(self, file: Path, *, rule: str, fix: str) -> None:
        lock, holder = (file.with_name(f".{file.name}{ending}") for ending in (LOCK_NAME, HOLDER_NAME))
        super().__init__(file, lock, holder, rule=rule, fix=fix)


@contextmanager
def waited_lock(path: Path, most_s: float) -> Iterator[bool]:
    """Hold a lock for the time of a block, and wait for it.

    Args:
        most_s: Longest wait, in seconds.

    Yields:
        False if somebody else held it all the time. True, too, where the place cannot be written or knows no
        locks: who writes there will be told, and what is renamed into place is whole in any case.
    """
    lock = FileLock(path, timeout=most_s, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        require_replaceable(path)
        lock.acquire()
    except Timeout:
        yield False
        return
    except (OSError, NotImplementedError):
        yield True
        return
    try:
        yield True
    finally:
        lock.release()
