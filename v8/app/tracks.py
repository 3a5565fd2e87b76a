"""The live record of a place, read from its ledger when the ledger changed.

Whoever issues forecasts writes the ledger in a process of its own (`python -m v8 forecast --every`); here it
is only read.
"""

from __future__ import annotations

from pathlib import Path

from v8.ledger.database import Ledger
from v8.ledger.record import Record, live_record


class Tracks:
    """Reads a ledger.

    Args:
        file: The ledger; it need not exist.
        place: Whose forecasts: the folder of a run, or `user/name` on the Hub.
    """

    def __init__(self, file: Path, place: Path | str) -> None:
        self._file, self._place = file, place
        self._seen: tuple[tuple[int, int], ...] = ()
        self._record: Record | None = None

    def __call__(self) -> Record | None:
        """Return the live record of all series; None while there is no forecast of the place.

        Raises:
            ArtifactError: If the file is no ledger, or what it holds cannot be trusted.
        """
        if not self._file.exists():
            return None
        seen = tuple(map(_stamp, (self._file, self._file.with_name(f"{self._file.name}-wal"))))
        if seen != self._seen:
            with Ledger.open(self._file) as ledger:
                record = live_record(ledger, self._place)
            self._record, self._seen = record if record.series else None, seen
        return self._record


def _stamp(file: Path) -> tuple[int, int]:
    """Return time and size of a file, which change when it is written."""
    try:
        about = file.stat()
    except FileNotFoundError:
        return 0, 0
    return about.st_mtime_ns, about.st_size
