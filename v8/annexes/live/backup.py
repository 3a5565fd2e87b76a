"""Copies a ledger whole: what `track --backup` writes, and what it does not replace."""

import os
from pathlib import Path

from v8.annexes.live.ledger import Ledger
from v8.base.errors import ArtifactError, StorageError, V8Error
from v8.base.storage import write_with


def back_up(ledger: Ledger, copy: Path) -> None:
    """Write a whole copy of a ledger, also while another process writes it.

    A file that is replaced must be an earlier copy of this ledger.

    Raises:
        ArtifactError: If the file is another one, or the ledger is damaged.
        StorageError: If it cannot be written.
    """
    if os.path.lexists(copy):
        _require_earlier_copy(ledger, copy)
    log = copy.with_name(f"{copy.name}-wal")
    if log.exists():  # SQLite would put it into the new copy
        raise ArtifactError(
            where=str(copy),
            rule="is a file that nobody has open",
            got=f"{log.name} next to it",
            fix="End the program that has the copy open, or name another file",
        )
    ledger.require_intact()

    def write(path: Path) -> None:
        path.touch()  # SQLite does not say why it cannot make a file
        ledger.copy_into(path)

    try:
        write_with(copy, write)
    except StorageError as error:
        fix = "Free some space, or name a file that can be written with param:backup"
        raise StorageError(where=str(copy), rule="must be written", got=error.got, fix=fix) from error


def _require_earlier_copy(ledger: Ledger, copy: Path) -> None:
    """Raise `ArtifactError` unless a file is another ledger whose newest forecast this one has, too."""
    if copy.exists() and copy.samefile(ledger.path):
        raise _no_copy(copy, "the ledger itself")
    if not copy.is_file():
        raise _no_copy(copy, "a folder, a pipe, a device or a broken link")
    try:
        with Ledger.open(copy) as other:
            number = other.last_number
            has_other_forecasts = other.identity_of(number) != ledger.identity_of(number)
    except ArtifactError as error:
        raise _no_copy(copy, error.got) from error
    if has_other_forecasts:
        raise _no_copy(copy, "a ledger with other forecasts")


def _no_copy(path: Path, got: str) -> V8Error:
    rule = "is a new file, or an earlier copy of the ledger"
    return ArtifactError(where=str(path), rule=rule, got=got, fix="Name another file")
