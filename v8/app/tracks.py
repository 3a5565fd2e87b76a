"""The live record of a place, read from its ledger when the ledger changed.

Whoever issues forecasts writes the ledger in a process of its own (`python -m v8 forecast --every`); here it
is only read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from v8.live.database import Ledger
from v8.live.record import Record, live_record
from v8.user_files import open_given

_HEADER_BYTES: Final = 96


class Tracks:
    """Reads a ledger.

    Args:
        file: The ledger; it need not exist.
        place: Whose forecasts: the folder of a run, or `user/name` on the Hub.
    """

    def __init__(self, file: Path, place: Path | str) -> None:
        self._file, self._place = file, place
        self._seen: tuple[int | bytes, ...] = ()
        self._record: Record | None = None

    def __call__(self) -> Record | None:
        """Return the live record of all series; None while there is no forecast of the place.

        Raises:
            ArtifactError: If the file is no ledger, or what it holds cannot be trusted.
        """
        if not self._file.exists():
            return None
        seen = _stamp(self._file)
        if seen != self._seen:
            with Ledger.open(self._file) as ledger:
                record = live_record(ledger, self._place)
            self._record, self._seen = record if record.series else None, seen
        return self._record


def _stamp(file: Path) -> tuple[int | bytes, ...]:
    """Return what changes not later than a reader finds more in a ledger.

    The log's index has it: its header is written when what was added counts (https://sqlite.org/walformat.html,
    2.1). The log itself grows before, so that its time and size would stand for what is not there yet.
    """
    about = file.stat()
    try:
        with open_given(file.with_name(f"{file.name}-shm")) as index:
            header = index.read(_HEADER_BYTES)
    except OSError:  # nobody has the ledger open: all is in the file; or opening the ledger will tell
        header = b""
    return about.st_ino, about.st_mtime_ns, about.st_size, header
