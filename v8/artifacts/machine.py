"""Where and with what something was made: library versions, processor, memory (G20).

Versions come from the installed packages' own records, so that nothing heavy is imported for them.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from v8.version import VERSION

VERSIONED_PACKAGES = ("keras", "tensorflow", "numpy", "pandas")
"""Packages that can change a result."""


def versions() -> dict[str, str]:
    """Return the versions of Python, v8 and the packages that can change a result.

    >>> sorted(versions())
    ['keras', 'numpy', 'pandas', 'python', 'tensorflow', 'v8']
    """
    found = {name: _version(name) for name in VERSIONED_PACKAGES}
    return {"python": platform.python_version(), "v8": VERSION, **found}


def describe_machine() -> dict[str, Any]:
    """Return processor, usable cores, memory in bytes (None where unknown) and platform."""
    return {
        "cpu": _cpu_model(),
        "num_cores": num_usable_cores(),
        "memory_bytes": _memory_bytes(),
        "platform": platform.platform(),
    }


def num_usable_cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Count the cores this process may run on, at least 1.

    Args:
        quota_file: Where Linux says what share a container has: microseconds per period, or "max".
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    num_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(num_cores, _quota_cores(quota_file) or num_cores)


def _quota_cores(quota_file: Path) -> int | None:
    try:
        quota, period = quota_file.read_text("ascii").split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return None


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
