"""One writer per folder: a lock that the system releases when its process ends, however it ends."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock, Timeout

from v8.errors import ArtifactError, StorageError

LOCK_NAME = ".lock"
HOLDER_NAME = ".lock-holder"
"""Names the process that holds the lock; Windows lets nobody read the locked file itself."""


class FolderLock:
    """Hold a folder for this process.

    Args:
        folder: The folder to hold; made when missing.

    Raises:
        ArtifactError: If another process holds it.
        StorageError: If it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        holder = folder / HOLDER_NAME
        self._lock = FileLock(folder / LOCK_NAME, timeout=0, thread_local=False)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            holder.write_text(f"{os.getpid()}\n", "ascii")
        except Timeout as error:
            pid = holder.read_text("ascii").strip() if holder.exists() else ""
            raise ArtifactError(
                where=str(folder),
                rule="one run at a time writes a run folder",
                got=f"{f'process {pid}' if pid else 'another process'} at work in it",
                fix="Wait until it ends, or start another run beside it with --fresh",
            ) from error
        except OSError as error:
            self.release()
            raise StorageError.of(folder, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let the folder go; on a Unix the file stays, because removing it would race with one who waits."""
        self._lock.release()
