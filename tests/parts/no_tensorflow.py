"""A process in which TensorFlow is not installed, though it is."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any


class NoTensorFlow:
    """Finds that there is none."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "tensorflow":
            raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")


def hide_tensorflow() -> None:
    """Let this process, which must not have imported it, look for TensorFlow in vain."""
    sys.meta_path.insert(0, NoTensorFlow())
    search = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: (
        None if name == "tensorflow" else search(name, package)
    )
