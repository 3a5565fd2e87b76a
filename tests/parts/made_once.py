"""What takes long to make and is only looked at: made by one test process, read by all of them."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from filelock import FileLock

Made = TypeVar("Made")


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a call of pytest, the same for all of its processes."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Made]) -> tuple[Path, Made]:
    """Let the first process that asks fill a folder; the others wait for it and find it filled.

    Args:
        factory: Of this process; the folder lies beside the folders of all processes of the call.
        name: Of the folder.
        make: Fills it and returns what pickle can keep of it.
    """
    root = shared_folder(factory)
    folder = root / name
    kept = root / f"{name}.pickle"
    with FileLock(root / f"{name}.lock"):
        if not kept.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
            folder.mkdir()
            content = pickle.dumps(make(folder))
            kept.write_bytes(content)
    return folder, pickle.loads(kept.read_bytes())
