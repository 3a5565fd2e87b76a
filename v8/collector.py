"""Python's collector of garbage, off while much is made that stays.

It looks through all there is again and again as that grows: a quarter of the time in which a process imports
TensorFlow and traces a training step. Neither leaves much garbage.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """Leave garbage where it is until the block ends; a collector that is off already stays off."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
