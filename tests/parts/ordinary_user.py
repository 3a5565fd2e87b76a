"""Calls of the command line as a user who may write nowhere but where it says so.

Root may write to every folder, so tests of read-only folders that root runs show nothing. These calls drop to
the user and group `nobody`, and keep of root's powers only that of reading: the interpreter and its packages
may lie in root's own home.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

USER_ID = 65_534
"""The user `nobody`, whose home folder does not exist."""

UNKNOWN_USER_ID = 54_321
"""A user that no machine knows, as containers have; without HOME it has no home folder."""

LIMIT_S = 300.0


def _words_as(user_id: int) -> list[str]:
    power = "+dac_read_search"
    ids = [f"--reuid={user_id}", f"--regid={user_id}", "--clear-groups"]
    return ["setpriv", *ids, f"--inh-caps={power}", f"--ambient-caps={power}"]


@cache
def why_impossible() -> str | None:
    """Say why no other user can be taken on here; None if one can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "only root can take on another user"
    if shutil.which("setpriv") is None:
        return "setpriv, of the package util-linux, is not installed"
    words = [*_words_as(USER_ID), sys.executable, "-c", "import numpy"]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    return tried.stderr.strip() or "the interpreter does not start" if tried.returncode else None


def called_as_user(
    *words: str | Path, cwd: Path, env: Mapping[str, str], user_id: int = USER_ID
) -> subprocess.CompletedProcess[str]:
    """Do what `python -m v8` does with some words, as an ordinary user with this environment alone."""
    reason = why_impossible()
    if reason:
        pytest.skip(f"no other user can be taken on here: {reason}")
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "CUDA_VISIBLE_DEVICES") if name in os.environ}
    return subprocess.run(
        [*_words_as(user_id), sys.executable, "-m", "v8", *map(str, words)],
        cwd=cwd,
        env={**kept, "PYTHONDONTWRITEBYTECODE": "1", "NO_PROXY": "127.0.0.1", **env},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
