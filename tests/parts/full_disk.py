"""Files that may not grow, as the system itself refuses them; the drills have whole disks that are full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


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
