"""Programs that are run to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from typing import Any


def run_program(words: Iterable[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Return what a program printed and how it ended; options are those of `subprocess.run`."""
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, **options)
