"""Input of the compiled step: tables on its device, and the indices of one epoch after another.

On TensorFlow the indices come from `tf.data`: one data set of epochs, counted from the next one. Each element
is the indices of a complete epoch, some kilobytes, and is ready before the previous epoch ends. One iterator
serves all epochs. The data set holds no windows: cutting them in the pipeline doubled the processor time of a
training; cutting them in the compiled step costs less than with NumPy (docs/research/training.md).

The order is NumPy's, `epoch_order`, not a shuffle of TensorFlow: a seed has to give the same order on both
backends, and another order gives other weights. So the data set calls Python with `tf.numpy_function`, once
an epoch, in a thread that no signal of Python reaches. `v8.base.interruption` says what happened when
Ctrl-C interrupted `from_generator`, which also makes the C library return freed memory immediately; this does
not.

Shape legend: S batches, B batch, M model.
"""

import atexit
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, Final
from weakref import WeakMethod, WeakSet

import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.base.hardware import backend, backend_name
from v8.data.windows.batches import EpochOrders, FleetWindows, Indices, Tables


def on_device(windows: FleetWindows) -> Tables:
    """Copy the tables of a fleet to the device, as tensors of the backend."""
    return windows.tables(ops.convert_to_tensor)


_LIVE_ITERATORS: Final[WeakSet[Generator[Indices, None, None]]] = WeakSet()
"""Iterators that may still have a thread which calls Python."""


def epoch_iterator(orders: EpochOrders) -> Iterator[Indices]:
    """Iterate over the indices (S, B, M), int32, of one epoch after another, without end."""
    iterator = _epochs(orders)
    _LIVE_ITERATORS.add(iterator)
    return iterator


def _epochs(orders: EpochOrders) -> Generator[Indices, None, None]:
    if backend_name() == "jax":
        yield from orders
    else:
        for indices_SBM in epoch_dataset(orders):
            yield indices_SBM.numpy()


@atexit.register
def _close_iterators() -> None:
    """End the threads of iterators that are left when Python exits.

    One that asks for the next epoch while Python is being torn down never gets an answer, and the process
    would wait for it for ever.
    """
    for iterator in list(_LIVE_ITERATORS):
        with suppress(ValueError):  # it is running, in a thread that is left behind
            iterator.close()


def epoch_dataset(orders: EpochOrders) -> Any:
    """Return the `tf.data.Dataset` of epochs: elements are indices (S, B, M), int32, on the host.

    The caller must keep `orders` as long as it reads the data set, which does not.
    """
    tensorflow = backend()
    shape = orders.shape
    # TensorFlow keeps the function until the process ends, and the window indices of long series take
    # megabytes.
    indices_of = WeakMethod(orders.indices)

    def indices_of_epoch(epoch: NDArray[np.int64]) -> Indices:
        indices = indices_of()
        if indices is None:
            raise RuntimeError("the orders of a data set of epochs must live as long as it is read")
        return indices(int(epoch))

    def indices_tensor(epoch: Any) -> Any:
        indices_SBM = tensorflow.numpy_function(indices_of_epoch, [epoch], tensorflow.int32)
        return tensorflow.ensure_shape(indices_SBM, shape)

    options = tensorflow.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 1
    # There is nothing to tune, and the end of a pass would wait for the tuner's thread, up to two seconds.
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    # AutoGraph has nothing to convert here, and would leave compiled files in the temporary folder.
    plain = tensorflow.autograph.experimental.do_not_convert(indices_tensor)
    with tensorflow.device("CPU:0"):
        counted = tensorflow.data.Dataset.counter(np.int64(orders.start))
        return counted.map(plain).prefetch(1).with_options(options)
