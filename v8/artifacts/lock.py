"""One writer per folder: a lock file that the system releases when its process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from v8.errors import ArtifactError

LOCK_NAME = ".lock"


class FolderLock:
    """Hold a folder for this process; the lock file names the process that holds it.

    Args:
        folder: The folder to hold; made when missing.

    Raises:
        ArtifactError: If another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stream = (folder / LOCK_NAME).open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = self._holder()
            self._stream.close()
            raise ArtifactError(
                where=str(folder),
                rule="one run at a time writes a run folder",
                got=f"{holder} at work in it",
                fix="Wait until it ends, or start another run beside it with --fresh",
            ) from error
        self._stream.truncate(0)
        self._stream.write(f"{os.getpid()}\n")
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let the folder go; the lock file stays, because removing it would race with a waiting process."""
        self._stream.close()

    def _holder(self) -> str:
        self._stream.seek(0)
        pid = self._stream.read().strip()
        return f"process {pid}" if pid else "another process"
