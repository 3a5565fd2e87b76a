"""Files that are either whole or absent: write aside, then rename; digests, pacing, and one writer at a time.

A lock is one that the system releases when its process ends, however it ends.

Of files that a user names, and those that somebody may have replaced, only regular ones are opened. A name
can lead to a pipe on which nobody writes, to a device without an end, or to a hundred gigabytes. Who opens
one through `read_given` or `open_given` never waits and never reads more than fits.
"""

import errno
import hashlib
import json
import logging
import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, Self

import psutil
from filelock import FileLock, Timeout

from v8.errors import ArtifactError, StorageError, shown

_MAKER: Final = r"(?P<pid>[1-9][0-9]{0,9})(-(?P<machine>[0-9a-f]{6}))?"
"""Names a process and, since folders may be shared by machines, whose process it is."""

_ASIDE: Final = re.compile(rf"\..+\.{_MAKER}\.[0-9a-f]{{8}}(\.[^.]+)?")  # what `write_with` writes
ABANDONED_S: Final = 86_400  # what a process has not finished in a day it never will, whoever has its number
FEW_SERIES: Final = 40  # up to so many series, those of the default universe, everything is written at once
LARGEST_SHARE: Final = 1 / 20  # of the time of a run of more: what writing one file may take of it
LOCK_NAME: Final = ".lock"
HOLDER_NAME: Final = ".lock-holder"  # tells the process: Windows lets nobody read the locked file itself
_MAX_HOLDER_BYTES: Final = 20
_log = logging.getLogger(__name__)
_warn_once = cache(_log.warning)
_telling = threading.Lock()


def home() -> Path:
    """Return the folder of v8's caches: `V8_HOME`, or `v8` in the user's cache folder.

    Raises `StorageError` where `V8_HOME` is not set and the user has no home folder.
    """
    return expanded(os.environ.get("V8_HOME") or "~/.cache/v8", variable="V8_HOME")


def expanded(path: str | Path, *, variable: str) -> Path:
    """Replace a `~` at the start of a path by the home folder that it stands for.

    Args:
        path: As a user wrote it.
        variable: Environment variable or parameter that names the path, for the message.

    Raises:
        StorageError: If this machine knows no such user, or this user has no home folder, as in some
            containers.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        rule = "must be below a home folder that this machine knows"
        got = f"{shown(path)} and no home folder for it"
        fix = f"Set {variable} to a folder that you may write"
        raise StorageError(where=variable, rule=rule, got=got, fix=fix) from error


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary neighbour of `path`, then rename it into place, safe from a power cut.

    The temporary name keeps the suffix of `path` because writers such as Keras choose the format by
    it. On any error the neighbour is removed and `path` stays as it was.
    """
    aside = aside_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        require_replaceable(path)
        try:
            write(aside)
            _keep(aside)
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        if os.name == "posix":
            _keep(path.parent)
    except Exception as error:
        refusal: BaseException | None = error
        # Keras and zipfile raise errors of other kinds over what the system refused, such as a full disk.
        while refusal and not isinstance(refusal, OSError):
            refusal = refusal.__cause__ or refusal.__context__
        if isinstance(refusal, OSError):
            raise StorageError.of(path, refusal) from error
        raise


def aside_of(path: Path) -> Path:
    """Return a new name beside `path` that `sweep` knows."""
    return path.with_name(f".{path.stem}.{os.getpid()}-{_machine()}.{secrets.token_hex(4)}{path.suffix}")


@cache
def _machine() -> str:
    """Name whoever numbers the processes here, a system since its start or a container, in six letters."""
    told = [platform.node()]
    with suppress(OSError):  # only Linux tells
        told.append(Path("/proc/sys/kernel/random/boot_id").read_text("ascii"))
        told.append(str(Path("/proc/self/ns/pid").readlink()))
    return digest_bytes("\n".join(told).encode())[:6]


def _keep(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk itself."""
    number = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically; what is there already is left, so that it may be read-only."""
    with suppress(OSError):  # what cannot be read is written anew
        if read_given(path, len(content)) == content:
            return
    write_with(path, lambda aside: aside.write_bytes(content))


def write_cache(path: Path, content: bytes) -> None:
    """Write what only saves time; a place that takes it not is told to the log, once a process."""
    try:
        sweep(path.parent)
        write_bytes(path, content)
    except StorageError as error:
        place = home() if path.is_relative_to(home()) else path.parent
        told = f"Nothing is kept in the cache {place}: {error.got}. All goes on without it, only slower."
        with _telling:  # many threads fill a cache
            _warn_once("%s", shown(told, 300))


def sweep(folder: Path) -> None:
    """Remove what killed processes were writing aside in a folder, and nothing else."""
    for path in _abandoned(folder, _ASIDE):
        if path.is_file():
            with suppress(OSError):  # it is in nobody's way
                path.unlink()


@contextmanager
def passing_folder(purpose: str, within: Path | None = None) -> Iterator[Path]:
    """Make an empty folder in another, or the system's place for such, until the block ends.

    Those that killed processes made there for the same purpose go first. What cannot be made is an `OSError`.
    """
    within = within or Path(tempfile.gettempdir())
    left = re.compile(rf"{re.escape(purpose)}-{_MAKER}-[a-z0-9_]{{8}}")
    for path in _abandoned(within, left):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # another user's stays
    with tempfile.TemporaryDirectory(prefix=f"{purpose}-{os.getpid()}-{_machine()}-", dir=within) as folder:
        yield Path(folder)


def _abandoned(folder: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    """List what has a name of a pattern and belongs to a process that is no more, or is a day old.

    Whether a process of another machine is still there cannot be known here.
    """
    with suppress(OSError):  # of a folder that is not there, or went meanwhile
        for entry in list(os.scandir(folder)):
            found = pattern.fullmatch(entry.name)
            if found and not entry.is_symlink():
                is_old = time.time() - entry.stat().st_mtime > ABANDONED_S
                is_here = found["machine"] in (None, _machine())
                if is_old or (is_here and not psutil.pid_exists(int(found["pid"]))):
                    yield Path(entry.path)


def packaged(package: str, name: str) -> str:
    """Return the text of a file that lies in a package."""
    return (files(package) / name).read_text("utf-8")


def write_text(path: Path, content: str) -> None:
    """Write UTF-8 `content` to `path` atomically."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, content: Any, *, is_compact: bool = False) -> None:
    """Write `content` as JSON to `path` atomically, without indentation if compact; NaN is refused."""
    write_text(path, json.dumps(content, indent=None if is_compact else 2, allow_nan=False) + "\n")


def digest_bytes(*parts: bytes) -> str:
    """Return the sha256 of the concatenated parts as 64 hex digits."""
    return hashlib.sha256(b"".join(parts)).hexdigest()


def digest_git_blob(content: bytes) -> str:
    """Return the id under which git keeps a content, 40 hex digits; an identity, not a safeguard.

    >>> digest_git_blob(b"")  # git hash-object /dev/null
    'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def digest_file(path: Path) -> str:
    """Return the sha256 of a file as 64 hex digits, read in pieces."""
    with open_given(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_json(content: Any) -> str:
    """Return the sha256 of `content` in canonical JSON (sorted keys, no spaces)."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return digest_bytes(canonical.encode("utf-8"))


class Pace:
    """Tells whether it is time to write a record again that grows with the number of series.

    One of 40 is written in a hundredth of a second, after each thing that happens; one of 4,000 takes a
    hundred times as long, a hundred times as often. Who needs it whole at some moment says so.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s = -1.0

    def is_due(self, num_series: int) -> bool:
        """Tell whether writing now, of so many series, keeps to its share of the time."""
        return num_series <= FEW_SERIES or self._clock() >= self._next_s

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time a writing, which decides when the next one is due."""
        started_s = self._clock()
        try:
            yield
        finally:
            ended_s = self._clock()
            self._next_s = ended_s + (ended_s - started_s) / LARGEST_SHARE


class WriterLock:
    """Hold a file or folder for this process, which alone may write it; the lock is a hidden neighbour.

    Args:
        place: What to hold, which need not be there yet.
        rule: Who may hold it, as a clause; `fix` says what a second process can do.
        beside: What the names of the lock's files begin with, by default those of the place and a dot.
    """

    def __init__(self, place: Path, *, rule: str, fix: str, beside: str | None = None) -> None:
        beside = str(place.with_name(f".{place.name}")) if beside is None else beside
        lock = Path(beside + LOCK_NAME)
        holder = Path(beside + HOLDER_NAME)
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

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let it go; on a Unix the lock's file stays, because removing it would race with one who waits."""
        self._lock.release()


def _named(holder: Path) -> str:
    """Name the process that holds a lock, as far as its file can be read: it may be another user's, or go."""
    with suppress(OSError, UnicodeDecodeError):
        pid = read_given(holder, _MAX_HOLDER_BYTES).decode("ascii").strip()
        if pid.isdecimal():
            return f"process {pid}"
    return "another process"


class FolderLock(WriterLock):
    """Hold a run folder for this process."""

    def __init__(self, folder: Path) -> None:
        rule = "one run at a time writes a run folder"
        fix = "Wait until it ends, or start another run beside it with param:fresh"
        super().__init__(folder, rule=rule, fix=fix, beside=f"{folder}{os.sep}")


@contextmanager
def waited_lock(path: Path, most_s: float) -> Iterator[bool]:
    """Hold a lock for the time of a block, and wait for it, so many seconds at most.

    It yields False if somebody else held it all the time. True, too, where the place cannot be written or
    knows no locks: who writes there will be told, and what is renamed into place is whole in any case.
    """
    lock = FileLock(path, timeout=most_s, thread_local=False)
    is_free = True
    with suppress(OSError, NotImplementedError):
        path.parent.mkdir(parents=True, exist_ok=True)
        require_replaceable(path)
        try:
            lock.acquire()
        except Timeout:
            is_free = False
    try:
        yield is_free
    finally:
        lock.release()


def read_given(path: Path, most_bytes: int) -> bytes:
    """Read a whole regular file without ever waiting for a writer; a longer one is refused before.

    An OSError tells by `strerror` that it cannot be read, is no regular file, or is longer.
    """
    with open_given(path) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        if size_bytes > most_bytes:
            told = f"{size_bytes:,} bytes, where at most {most_bytes:,} are read"
            raise OSError(errno.EFBIG, told, str(path))
        content = stream.read(size_bytes + 1)
    if len(content) != size_bytes:
        raise OSError(errno.EBUSY, "a file whose length changes while it is read")
    return content


@contextmanager
def open_given(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file to read it, never waiting for a writer; an OSError tells why it cannot be."""
    try:
        _require_regular(path.stat(), path)  # opening a device may move it
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a NUL, or a letter that the file system cannot write
        raise OSError(errno.EINVAL, "a name that no file can have") from error
    with os.fdopen(number, "rb") as stream:
        _require_regular(os.fstat(number), path)
        yield stream


def require_replaceable(path: Path) -> None:
    """Refuse by an OSError to put a file in the place of a pipe, a socket, a device or a folder."""
    with suppress(FileNotFoundError):
        _require_regular(path.stat(), path)


def _require_regular(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, a socket or a device"
        raise OSError(errno.EINVAL, f"{kind} in the place of a file", str(path))
