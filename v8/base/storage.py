"""Atomic files (written to a temporary name, then renamed), digests, locks, and files that users name.

The operating system releases a lock when its process ends, however it ends.

At a path that the user names, v8 overwrites files of its own, others only on request. Whether v8 wrote a file
can be seen from its content, so the file may be renamed or copied to another machine:

| file | mark |
|---|---|
| a picture (PNG) | its text `Software` |
| a table of forecasts (Parquet) | the key `FORECASTS_KEY` in its footer |
| a table of forecasts (CSV), a comparison (CSV) | the first and last columns of its first line |
| a page (HTML) | its `generator` |
| a comparison (JSON) | its first keys |

A table to which the user added columns has lost its mark, so it is not overwritten.
"""

import hashlib
import json
import logging
import math
import os
import platform
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Self

import psutil
import yaml
from filelock import FileLock, Timeout

from v8.base.errors import ArtifactError, ProfileError, StorageError, shown
from v8.base.records import open_given, read_given, require_regular

_MAKER: Final = r"(?P<pid>[1-9][0-9]{0,9})(-(?P<machine>[0-9a-f]{6}))?"
"""Part of a file name: the process that writes the file and its machine, since machines may share folders."""

_TEMPORARY_NAME: Final = re.compile(rf"\..+\.{_MAKER}\.[0-9a-f]{{8}}(\.[^.]+)?")  # as `aside_of` makes them
ABANDONED_S: Final = 86_400
"""After a day a temporary file counts as abandoned, even if a process has the number of its writer."""
FEW_SERIES: Final = 40
"""Up to this number of series, that of the default universe, every change is written immediately."""
LARGEST_SHARE: Final = 1 / 20
"""With more series: largest share of the run time that writing one file may take."""
LOCK_NAME: Final = ".lock"
HOLDER_NAME: Final = ".lock-holder"  # holds the process id: on Windows the locked file itself cannot be read
_MAX_HOLDER_BYTES: Final = 20
_log = logging.getLogger(__name__)
_warn_once = cache(_log.warning)
_warning_lock = threading.Lock()


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
        raise StorageError(
            where=variable,
            rule="must be below a home folder that this machine knows",
            got=f"{shown(path)} and no home folder for it",
            fix=f"Set {variable} to a folder that you may write",
        ) from error


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file next to `path`, then rename it to `path`; safe from a power cut.

    The temporary name keeps the suffix of `path`, because writers such as Keras choose the format by it. On
    any error the temporary file is removed and `path` stays as it was.

    Raises:
        StorageError: If the file cannot be written.
    """
    aside = aside_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        require_replaceable(path)
        try:
            write(aside)
            _sync(aside)
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        if os.name == "posix":
            _sync(path.parent)
    except Exception as error:
        cause: BaseException | None = error
        # Keras and zipfile wrap the error of the operating system, such as a full disk, in others.
        while cause and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if isinstance(cause, OSError):
            raise StorageError.of(path, cause) from error
        raise


def aside_of(path: Path) -> Path:
    """Return a temporary name next to `path`; `sweep` removes such files of processes that were killed."""
    return path.with_name(f".{path.stem}.{os.getpid()}-{_machine()}.{secrets.token_hex(4)}{path.suffix}")


@cache
def _machine() -> str:
    """Return six hex digits for the machine since its boot, or the container, that numbers the processes."""
    identifiers = [platform.node()]
    with suppress(OSError):  # these files exist on Linux only
        identifiers.append(Path("/proc/sys/kernel/random/boot_id").read_text("ascii"))
        identifiers.append(str(Path("/proc/self/ns/pid").readlink()))
    return digest_bytes("\n".join(identifiers).encode())[:6]


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically, unless the file already has it: then it may be read-only."""
    with suppress(OSError):  # a file that cannot be read is written again
        if read_given(path, len(content)) == content:
            return
    write_with(path, lambda aside: aside.write_bytes(content))


def write_cache(path: Path, content: bytes) -> None:
    """Write a file of a cache; if that is not possible, log one warning per process and go on."""
    try:
        sweep(path.parent)
        write_bytes(path, content)
    except StorageError as error:
        folder = home() if path.is_relative_to(home()) else path.parent
        message = f"Nothing is kept in the cache {folder}: {error.got}. All goes on without it, only slower."
        with _warning_lock:  # several threads write into a cache
            _warn_once("%s", shown(message, 300))


def sweep(folder: Path) -> None:
    """Remove the temporary files in a folder whose processes were killed, and no other files."""
    for path in _abandoned(folder, _TEMPORARY_NAME):
        if path.is_file():
            with suppress(OSError):  # the file does no harm if it stays
                path.unlink()


@contextmanager
def passing_folder(purpose: str, within: Path | None = None) -> Iterator[Path]:
    """Make an empty temporary folder that is removed when the block ends.

    Folders of the same purpose whose processes were killed are removed before.

    Args:
        purpose: Beginning of the name of the folder.
        within: Folder in which it is made; None for the system's folder for temporary files.

    Raises:
        OSError: If it cannot be made.
    """
    within = within or Path(tempfile.gettempdir())
    pattern = re.compile(rf"{re.escape(purpose)}-{_MAKER}-[a-z0-9_]{{8}}")
    for path in _abandoned(within, pattern):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # a folder of another user cannot be removed
    with tempfile.TemporaryDirectory(prefix=f"{purpose}-{os.getpid()}-{_machine()}-", dir=within) as folder:
        yield Path(folder)


def _abandoned(folder: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    """List files and folders whose name matches a pattern and whose process has ended, or that are a day old.

    Whether a process of another machine has ended is not known, so its files must be a day old.
    """
    with suppress(OSError):  # the folder does not exist, or was removed meanwhile
        for entry in list(os.scandir(folder)):
            match = pattern.fullmatch(entry.name)
            if not match or entry.is_symlink():
                continue
            is_old = time.time() - entry.stat().st_mtime > ABANDONED_S
            is_of_this_machine = match["machine"] in (None, _machine())
            if is_old or (is_of_this_machine and not psutil.pid_exists(int(match["pid"]))):
                yield Path(entry.path)


def packaged(package: str, name: str) -> str:
    """Return the text of a data file of a package."""
    return (files(package) / name).read_text("utf-8")


def packaged_yaml(package: str, name: str) -> Any:
    """Read a YAML file of a package."""
    return parse_own_yaml(packaged(package, name))


def parse_own_yaml(text: str) -> Any:
    """Parse YAML that this project wrote; for other files see `v8.base.records`.

    Every command reads a dozen such files, and LibYAML, where there is one, reads them ten times as fast.
    """
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe


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
    """Return the id of a content in git, 40 hex digits; it identifies the content, but is no protection.

    >>> digest_git_blob(b"")  # git hash-object /dev/null
    'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def digest_file(path: Path) -> str:
    """Return the sha256 of a file as 64 hex digits; the file is read in pieces."""
    with open_given(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_json(content: Any) -> str:
    """Return the sha256 of `content` in canonical JSON (sorted keys, no spaces)."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return digest_bytes(canonical.encode("utf-8"))


class Pace:
    """Decides when to write a file again whose size grows with the number of series.

    A file of 40 series is written in a hundredth of a second, after every event. A file of 4,000 takes a
    hundred times as long, and there are a hundred times as many events. Where the file must be up to date, it
    is written without asking.

    Args:
        clock: Returns seconds that never go back.
        least_s: Seconds that pass at least between two writings, however small the file is.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, least_s: float = 0.0) -> None:
        self._clock = clock
        self._least_s = least_s
        self._least_next_s = -math.inf
        self._next_s = -math.inf

    def is_due(self, num_series: int) -> bool:
        """Return whether writing a file of this many series now keeps to its share of the time."""
        now_s = self._clock()
        return now_s >= self._least_next_s and (num_series <= FEW_SERIES or now_s >= self._next_s)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the time of the block that writes the file; it decides when the next writing is due."""
        started_s = self._clock()
        try:
            yield
        finally:
            ended_s = self._clock()
            self._least_next_s = ended_s + self._least_s
            self._next_s = ended_s + (ended_s - started_s) / LARGEST_SHARE


class WriterLock:
    """A lock on a file or folder that only this process may write; the lock is a hidden file next to it.

    Args:
        place: The file or folder, which need not exist yet.
        rule: Who may hold the lock, as a clause for the error.
        fix: What a second process can do.
        prefix: Beginning of the paths of the lock's files; None for `place` with a dot before its name.

    Raises:
        ArtifactError: If another process holds the lock.
        StorageError: If the lock cannot be written.
    """

    def __init__(self, place: Path, *, rule: str, fix: str, prefix: str | None = None) -> None:
        if prefix is None:
            prefix = str(place.with_name(f".{place.name}"))
        lock = Path(prefix + LOCK_NAME)
        holder = Path(prefix + HOLDER_NAME)
        self._lock = FileLock(lock, timeout=0, thread_local=False)
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            require_replaceable(lock)
            self._lock.acquire()
            require_replaceable(holder)
            holder.write_text(f"{os.getpid()}\n", "ascii")
        except Timeout as error:
            raise ArtifactError(
                where=str(place), rule=rule, got=f"{_holder_name(holder)} at work in it", fix=fix
            ) from error
        except OSError as error:
            self.release()
            raise StorageError.of(error.filename or place, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock. On Unix its file stays: another process may be waiting for it."""
        self._lock.release()


def _holder_name(holder: Path) -> str:
    """Return the name of the process that holds a lock, if the file that names it can be read."""
    with suppress(OSError, UnicodeDecodeError):
        pid = read_given(holder, _MAX_HOLDER_BYTES).decode("ascii").strip()
        if pid.isdecimal():
            return f"process {pid}"
    return "another process"


class FolderLock(WriterLock):
    """A lock on a run folder.

    Where the command that takes it can start another run, messages offer the parameter `starts_another`.
    """

    def __init__(self, folder: Path, starts_another: str | None = None) -> None:
        rule = "one run at a time writes a run folder"
        fix = "Wait until it ends"
        if starts_another:
            fix += f", or start another run with {starts_another}"
        super().__init__(folder, rule=rule, fix=fix, prefix=f"{folder}{os.sep}")


@contextmanager
def waited_lock(path: Path, most_s: float) -> Iterator[bool]:
    """Hold a lock while the block runs, after waiting for it for at most `most_s` seconds.

    It yields False if another process held the lock all the time. It also yields True where the lock cannot
    be written, or the file system has no locks: writing will then raise its own error, and files that are
    renamed into place are complete in any case.
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


def require_replaceable(path: Path) -> None:
    """Raise an `OSError` if a path is a pipe, a socket, a device or a folder, which must not be replaced."""
    with suppress(FileNotFoundError):
        require_regular(path.stat(), path)


PICTURE_SOFTWARE: Final = "v8"
"""The text of the key `Software` in each picture."""

PAGE_GENERATOR: Final = "v8"
"""The text of the name `generator` in each page."""

FORECASTS_KEY: Final = "v8_forecasts"
"""Key of the metadata of a Parquet table of forecasts."""

FORECASTS_COLUMNS: Final = ("series", "fold", "issued_at", "step", "open_time")
"""First columns of a table of forecasts."""

NAIVE_ENDING: Final = "_naive"
"""End of the name of the last column of a table of forecasts."""

COMPARISON_COLUMNS: Final = ("profile", "figure", "unit")
"""First columns of the table of a comparison."""

_HEAD_BYTES: Final = 16_384  # longer than a first line with the columns of ten tasks and nine quantiles
_TAIL_BYTES: Final = 1 << 20  # of a Parquet file, whose metadata follow after its rows
_PARQUET: Final = b"PAR1"

_BEGINNINGS: Final = (
    rb"\x89PNG\r\n.{0,1000}tEXtSoftware\x00" + PICTURE_SOFTWARE.encode(),
    ",".join(FORECASTS_COLUMNS).encode() + rb",[^\r\n]*" + NAIVE_ENDING.encode() + rb"\r?\n",
    ",".join(COMPARISON_COLUMNS).encode() + rb",[^\r\n]*ratio_high\r?\n",
    rb'<!DOCTYPE html>\s*<html[^>]*><head>.{0,200}<meta name="generator" content="' + PAGE_GENERATOR.encode(),
    rb'\{\s*"format": \d+,\s*"command": ".*?",\s*"created_at": "',
)


def is_own(file: Path) -> bool:
    """Return whether v8 wrote a file; False if it cannot be read."""
    try:
        with open_given(file) as stream:
            head = stream.read(_HEAD_BYTES)
            if not head.startswith(_PARQUET):
                return any(re.match(pattern, head, re.DOTALL) for pattern in _BEGINNINGS)
            num_bytes = stream.seek(0, 2)
            stream.seek(max(0, num_bytes - _TAIL_BYTES))
            return FORECASTS_KEY.encode() in stream.read()
    except OSError:
        return False


def require_own(flag: str, file: Path, *, is_overwriting: bool) -> None:
    """Refuse to overwrite a file that v8 did not write, unless the user allows it.

    Args:
        flag: The parameter that names the file, such as `param:out`.
        file: The file that will be written; it need not exist.
        is_overwriting: Whether the user passed `--overwrite`.

    Raises:
        ProfileError: If there is such a file, or a broken link.
    """
    if is_overwriting or not (file.is_symlink() or file.exists()) or is_own(file):
        return
    raise ProfileError(
        where=flag,
        rule="is a new file, or one that v8 wrote",
        got=f"another file at {file}",
        fix=f"Choose another {flag}, move that file away, or add param:overwrite to replace it",
    )
