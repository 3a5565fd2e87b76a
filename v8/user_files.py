"""Files that a user names, and those that somebody may have replaced: only regular ones are opened.

A name can lead to a pipe on which nobody writes, to a device without an end, or to a hundred gigabytes. Who
opens one through here never waits and never reads more than fits.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path


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
