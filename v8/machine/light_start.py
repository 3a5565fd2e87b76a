"""Packages that TensorFlow and Keras import only because they are there, left out of the start.

TensorFlow imports JAX for its converter to TFLite, Keras for its Orbax checkpoints; Keras imports Matplotlib
for image galleries and IPython for its file editor. Each does without where it cannot be had. v8 uses none of
these parts, and a process that starts TensorFlow saves a fifth of the time and 130 MB without them. They are
left out only while what would import them is being imported: whoever asks for them later gets them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from v8.collector import collected_later

LEFT_OUT: Final = {
    "jax": ("tensorflow", "keras.src.callbacks"),  # Keras' JAX backend is no part of either
    "matplotlib": ("keras",),
    "IPython": ("keras",),
}
"""Each package, and during whose import it is not found."""


class _LeavesOut(MetaPathFinder):
    """Finds nothing, and says of what is left out that it is not there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse a package at the wrong time; leave all else to the other finders."""
        if any(map(_is_being_imported, LEFT_OUT.get(name, ()))):
            raise ModuleNotFoundError(f"{name} is left out of the start", name=name)
        return None


@contextmanager
def light_start() -> Iterator[None]:
    """Let the block start TensorFlow and Keras without what they do not need, and collect garbage later.

    What is left out is so from now on.
    """
    if not any(isinstance(finder, _LeavesOut) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LeavesOut())
    with collected_later():
        yield


def _is_being_imported(module: str) -> bool:
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return getattr(spec, "_initializing", False) is True
