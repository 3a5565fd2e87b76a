"""Files that are either whole or absent: write aside, then rename; digests that identify content."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from v8.errors import StorageError


def home() -> Path:
    """Return the folder of v8's caches: `V8_HOME`, or `v8` in the user's cache folder."""
    chosen = os.environ.get("V8_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "v8"


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary neighbour of `path`, then rename it into place, safe from a power cut.

    The temporary name keeps the suffix of `path` because writers such as Keras choose the format by
    it. On any error the neighbour is removed and `path` stays as it was.

    Args:
        path: Final place; its parent folder is made when missing.
        write: Called with the temporary path.

    Raises:
        StorageError: If the system refuses: no space, no permission, a read-only disk, a name too long.
    """
    aside = path.with_name(f".{path.stem}.{os.getpid()}.{secrets.token_hex(4)}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(aside)
            _keep(aside)
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        if os.name == "posix":
            _keep(path.parent)
    except OSError as error:
        raise StorageError.of(path, error) from error


def _keep(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk itself."""
    number = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically."""
    write_with(path, lambda aside: aside.write_bytes(content))


def write_text(path: Path, content: str) -> None:
    """Write UTF-8 `content` to `path` atomically."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, content: Any, *, is_compact: bool = False) -> None:
    """Write `content` as JSON to `path` atomically; NaN and infinity are refused.

    Args:
        path: Final place.
        content: Plain JSON values.
        is_compact: Whether to leave out indentation, for long lists of numbers that nobody reads.
    """
    write_text(path, json.dumps(content, indent=None if is_compact else 2, allow_nan=False) + "\n")


def digest_bytes(*parts: bytes) -> str:
    """Return the sha256 of the concatenated parts as 64 hex digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def digest_git_blob(content: bytes) -> str:
    """Return the id under which git keeps a content, 40 hex digits; an identity, not a safeguard.

    >>> digest_git_blob(b"")  # git hash-object /dev/null
    'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def digest_file(path: Path) -> str:
    """Return the sha256 of a file as 64 hex digits, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_json(content: Any) -> str:
    """Return the sha256 of `content` in canonical JSON (sorted keys, no spaces)."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return digest_bytes(canonical.encode("utf-8"))
