"""How TensorFlow is started: without its chatter on the terminal, and without what only lies there.

TensorFlow imports JAX for its converter to TFLite, Keras for its Orbax checkpoints; Keras imports Matplotlib
for image galleries and IPython for its file editor. Each does without where it cannot be had. v8 uses none of
these parts, and a process that starts TensorFlow saves a fifth of the time and 130 MB without them. They are
left out only while what would import them is being imported: whoever asks for them later gets them.
"""

import atexit
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from v8.invocation import collected_later

LEFT_OUT: Final = {
    "jax": ("tensorflow", "keras.src.callbacks"),  # Keras' JAX backend is no part of either
    "matplotlib": ("keras",),
    "IPython": ("keras",),
}
"""Each package, and during whose import it is not found."""
_CHATTER: Final = re.compile(
    rb"^(WARNING: All log messages before absl::InitializeLog"
    rb"|([IW]\d{4} .* |\d{4}-\d\d-\d\d [\d:.]+: [IW] )\S+\.(cc|h):\d+\] "
    rb"|(E\d{4} .* |\d{4}-\d\d-\d\d [\d:.]+: E )"
    rb"(\S*\b(cudart_stub|cpu_feature_guard|cuda_\w+)\.cc:|\S+\.cc:\d+\] oneDNN ))"
)
"""What TensorFlow and XLA, of any supported version, say for information or as a warning, and their errors
about missing CUDA and the processor: they ignore TensorFlow's own log level, and some come late."""
_FALSE_ALARM: Final = re.compile(
    rb"^\S+ .*?(\S*\bcpu_aot_loader\.cc:"
    rb"|\S+\.cc:\d+\] Error parsing text-format tensorflow\.XlaSerializedCacheEntry)"
)
"""Of a kept program (`v8.training.programs`) XLA says that the processor lacks units that are only XLA's own
settings, and TensorFlow that it is no text. Both are untrue, and nobody shall read them."""
_LEVEL: Final = "TF_CPP_MIN_LOG_LEVEL"
_TALKATIVE: Final = ("0", "1")
"""Levels of whoever wants to read information or warnings; higher ones ask for less, and get it."""
_for_good: Final = ExitStack()
atexit.register(_for_good.close)


class _LeavesOut(MetaPathFinder):
    """Finds nothing, and says of what is left out that it is not there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse a package at the wrong time; leave all else to the other finders."""
        for module in LEFT_OUT.get(name, ()):
            spec = getattr(sys.modules.get(module), "__spec__", None)
            if getattr(spec, "_initializing", False) is True:
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


@contextmanager
def quiet_start(*, is_passing: bool = False) -> Iterator[None]:
    """Keep TensorFlow's chatter off standard error while the block imports it lightly, and from then on.

    A level of `_TALKATIVE` in the environment shows all but `_FALSE_ALARM`. A program of somebody else's is
    left as it was after the block, with `is_passing`.
    """
    keeps_chatter = os.environ.get(_LEVEL) in _TALKATIVE
    with light_start(), ExitStack() as passing:
        if _LEVEL not in os.environ:
            os.environ[_LEVEL] = "2"
            passing.callback(os.environ.pop, _LEVEL)  # it was read; a child must be quiet by itself
        with suppress(OSError):  # without a standard error there is nothing to keep quiet
            if is_passing:
                passing.enter_context(_filtered(keeps_chatter=keeps_chatter))
            else:
                _filter_for_good(keeps_chatter=keeps_chatter)
        yield


@cache
def _filter_for_good(*, keeps_chatter: bool) -> None:
    """Filter until the process ends. Python's own standard error goes past it, and loses no last words."""
    original = _for_good.enter_context(_filtered(keeps_chatter=keeps_chatter))
    if sys.stderr is sys.__stderr__:
        encoding = sys.__stderr__.encoding if sys.__stderr__ else "utf-8"
        sys.stderr = os.fdopen(os.dup(original), "w", 1, encoding, errors="backslashreplace", closefd=False)


@contextmanager
def _filtered(*, keeps_chatter: bool) -> Iterator[int]:
    """Let a thread pass on what is written to descriptor 2, but for false alarms and chatter.

    Yields another descriptor of what descriptor 2 was.
    """
    original = os.dup(2)
    there = os.dup(2)
    source, sink = os.pipe()
    os.dup2(sink, 2)
    os.close(sink)

    def pass_on() -> None:
        with os.fdopen(source, "rb") as lines, os.fdopen(there, "wb", buffering=0) as passed:
            for line in lines:
                if not _FALSE_ALARM.match(line) and (keeps_chatter or not _CHATTER.match(line)):
                    passed.write(line)

    passing = threading.Thread(target=pass_on, daemon=True)
    passing.start()
    try:
        yield original
    finally:
        os.dup2(original, 2)
        os.close(original)
        passing.join(timeout=1.0)  # children that outlive this process hold the pipe open
