"""Environment variables that a block has: the only place, but for the command line, that writes `os.environ`.

TensorFlow, XLA, Ray and MLflow read settings from the environment of their process when they start, and the
processes that multiprocessing starts get no other environment than that of their parent. Whoever starts one
of these gives it variables for as long as that takes; nothing stays for the next call.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def with_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Let the block, and the processes that it starts, have these variables; then all is as it was before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
