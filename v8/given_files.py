"""Files that a user names: only regular ones are read, and never more of them than fits.

A name can lead to a pipe on which nobody writes, to a device without an end, or to a hundred gigabytes.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_given(path: Path, most_bytes: int) -> bytes:
    """Read a whole regular file without ever waiting for a writer.

    Args:
        path: What the user named; a link is followed.
        most_bytes: A longer file is refused before it is read.

    Raises:
        OSError: If it cannot be read, is no regular file, or is longer; `strerror` says which.
    """
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a NUL, or a letter that the file system cannot write
        raise OSError(errno.EINVAL, "a name that no file can have") from error
    try:
        size_bytes = _size_bytes(number, most_bytes)
        with os.fdopen(number, "rb", closefd=False) as stream:
            content = stream.read(size_bytes + 1)
    finally:
        os.close(number)
    if len(content) != size_bytes:
        raise OSError(errno.EBUSY, "a file whose length changes while it is read")
    return content


def _size_bytes(number: int, most_bytes: int) -> int:
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, a socket or a device"
        raise OSError(errno.EINVAL, f"{kind} in the place of a file")
    if found.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"{found.st_size:,} bytes, where at most {most_bytes:,} are read")
    return found.st_size
