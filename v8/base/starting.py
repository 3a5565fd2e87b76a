"""Starts TensorFlow without its log messages on the terminal, and without packages that v8 does not use.

TensorFlow imports JAX for its converter to TFLite, and Keras for its Orbax checkpoints; Keras imports
Matplotlib for image galleries and IPython for its file editor. Each works without them. v8 uses none of these
parts, and a process that starts TensorFlow saves a fifth of the time and 130 MB without them. They are hidden
only while TensorFlow or Keras is being imported: whoever imports them later gets them.
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

from v8.base.invocation import collected_later
from v8.base.variables import with_variables

HIDDEN: Final = {
    "jax": ("tensorflow", "keras.src.callbacks"),  # Keras' JAX backend is no part of either
    "matplotlib": ("keras",),
    "IPython": ("keras",),
}
"""Each hidden package, and the modules during whose import it is not found."""
_LOG_MESSAGE: Final = re.compile(
    rb"^(WARNING: All log messages before absl::InitializeLog"
    rb"|([IW]\d{4} .* |\d{4}-\d\d-\d\d [\d:.]+: [IW] )\S+\.(cc|h):\d+\] "
    rb"|(E\d{4} .* |\d{4}-\d\d-\d\d [\d:.]+: E )"
    rb"(\S*\b(cudart_stub|cpu_feature_guard|cuda_\w+)\.cc:|\S+\.cc:\d+\] oneDNN ))"
)
"""Information and warnings of TensorFlow and XLA, of any supported version, and their errors about missing
CUDA and the processor. They ignore TensorFlow's own log level, and some come late."""
_FALSE_ALARM: Final = re.compile(
    rb"^\S+ .*?(\S*\bcpu_aot_loader\.cc:"
    rb"|\S+\.cc:\d+\] Error parsing text-format tensorflow\.XlaSerializedCacheEntry)"
)
"""Errors about a cached program (`v8.model.networks.programs`) that are not true: XLA reports that the
processor lacks features that are only XLA's own settings, and TensorFlow that the program is no text."""
_LEVEL: Final = "TF_CPP_MIN_LOG_LEVEL"
_VERBOSE_LEVELS: Final = ("0", "1")
"""Log levels that show information or warnings; TensorFlow obeys higher ones by itself."""
_until_exit: Final = ExitStack()
"""Closed when the process ends."""
atexit.register(_until_exit.close)


class _HidingFinder(MetaPathFinder):
    """Finds no module, and raises `ModuleNotFoundError` for a hidden package."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse a package while it is hidden; leave everything else to the other finders."""
        for module in HIDDEN.get(name, ()):
            spec = getattr(sys.modules.get(module), "__spec__", None)
            if getattr(spec, "_initializing", False) is True:
                raise ModuleNotFoundError(f"{name} is left out of the start", name=name)
        return None


@contextmanager
def light_start() -> Iterator[None]:
    """Let the block import TensorFlow and Keras without the hidden packages, and collect garbage later.

    From then on these packages stay hidden from TensorFlow and Keras in this process.
    """
    if not any(isinstance(finder, _HidingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _HidingFinder())
    with collected_later():
        yield


@contextmanager
def quiet_start(*, is_temporary: bool = False) -> Iterator[None]:
    """Filter TensorFlow's log messages out of standard error while the block imports it, and from then on.

    With a log level of `_VERBOSE_LEVELS` in the environment only `_FALSE_ALARM` is filtered out.

    Args:
        is_temporary: Stop filtering after the block, in a program that is not ours.
    """
    is_verbose = os.environ.get(_LEVEL) in _VERBOSE_LEVELS
    with light_start(), ExitStack() as until_block_ends:
        if _LEVEL not in os.environ:
            until_block_ends.enter_context(with_variables({_LEVEL: "2"}))
        with suppress(OSError):  # without a standard error there is nothing to keep quiet
            if is_temporary:
                until_block_ends.enter_context(_filtered(is_verbose=is_verbose))
            else:
                _filter_until_exit(is_verbose=is_verbose)
        yield


@cache
def _filter_until_exit(*, is_verbose: bool) -> None:
    """Filter until the process ends. Python's own standard error bypasses the filter and loses nothing."""
    original = _until_exit.enter_context(_filtered(is_verbose=is_verbose))
    if sys.stderr is sys.__stderr__:
        encoding = sys.__stderr__.encoding if sys.__stderr__ else "utf-8"
        sys.stderr = os.fdopen(os.dup(original), "w", 1, encoding, errors="backslashreplace", closefd=False)


@contextmanager
def _filtered(*, is_verbose: bool) -> Iterator[int]:
    """Let a thread pass on the lines written to descriptor 2, except false alarms and log messages.

    Yields:
        A descriptor of the file that descriptor 2 was before.
    """
    original = os.dup(2)
    target = os.dup(2)
    source, sink = os.pipe()
    os.dup2(sink, 2)
    os.close(sink)

    def pass_on() -> None:
        with os.fdopen(source, "rb") as lines, os.fdopen(target, "wb", buffering=0) as output:
            for line in lines:
                if not _FALSE_ALARM.match(line) and (is_verbose or not _LOG_MESSAGE.match(line)):
                    output.write(line)

    thread = threading.Thread(target=pass_on, daemon=True)
    thread.start()
    try:
        yield original
    finally:
        os.dup2(original, 2)
        os.close(original)
        thread.join(timeout=1.0)  # children that outlive this process hold the pipe open
