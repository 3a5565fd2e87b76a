"""Places that the system itself refuses to write: a full disk, and files that may not grow."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, num_bytes: int) -> Iterator[Path]:
    """Mount a disk of a given size; skips the test where this user may not."""
    place.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount here")
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def make_read_only(disk: Path) -> None:
    """Let nobody write on a small disk any more."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


@contextmanager
def file_limit(num_bytes: int) -> Iterator[None]:
    """Let no file of this process and its children grow beyond a size, as any user may ask for."""
    resource = pytest.importorskip("resource", reason="file sizes are limited on POSIX only")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def fill(disk: Path) -> Path:
    """Fill a small disk to its last byte; remove the file that is returned to make room."""
    path = disk / "filler"
    try:
        with path.open("wb", buffering=0) as file:
            while file.write(b"\0" * 4096):
                pass
    except OSError:
        assert os.statvfs(disk).f_bavail == 0
    return path
