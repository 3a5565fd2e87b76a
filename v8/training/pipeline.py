"""What feeds the compiled step: tables that lie on its device, and indices of one epoch after another.

On TensorFlow the indices come from `tf.data`: one data set of epochs, counted from the next one. Each
element is the indices of a whole epoch, some kilobytes, and is ready before the epoch in front of it ends.
One iterator serves all epochs. The data set holds no windows: cut out there they doubled the processor time
of a training; cut out in the compiled step they cost less than with NumPy (docs/research/training.md).

The order is NumPy's, `epoch_order`, and not a shuffle of TensorFlow: another order would give other weights,
and one seed has to give one order on both backends. So the data set calls Python with `tf.numpy_function`,
once an epoch, in a thread that no signal of Python reaches. `v8.machine.interruption` says what happened
where Ctrl-C met `from_generator`, which also makes the C library return freed memory at once; this does not.

Shape legend: S batches, B batch, M model.
"""

from collections.abc import Iterator
from typing import Any
from weakref import WeakMethod

import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.hardware import backend, backend_name
from v8.windows.batches import EpochOrders, FleetWindows, Indices, Tables


def on_device(windows: FleetWindows) -> Tables:
    """Copy the tables of a fleet to where the backend computes, as its tensors."""
    return windows.tables(ops.convert_to_tensor)


def epoch_iterator(orders: EpochOrders) -> Iterator[Indices]:
    """Iterate over the indices (S, B, M), int32, of one epoch after another, without end."""
    if backend_name() == "jax":
        yield from orders
    else:
        for indices_SBM in epoch_dataset(orders):
            yield indices_SBM.numpy()


def epoch_dataset(orders: EpochOrders) -> Any:
    """Return the `tf.data.Dataset` of epochs: elements are indices (S, B, M), int32, on the host.

    Whoever reads it keeps the orders: the data set does not.
    """
    tensorflow = backend()
    shape = orders.shape
    # TensorFlow keeps what it is to call until the process ends, and anchors of long series are megabytes.
    indices_of = WeakMethod(orders.indices)

    def numbered(epoch: NDArray[np.int64]) -> Indices:
        indices = indices_of()
        if indices is None:
            raise RuntimeError("the orders of a data set of epochs must live as long as it is read")
        return indices(int(epoch))

    def ordered(epoch: Any) -> Any:
        indices_SBM = tensorflow.numpy_function(numbered, [epoch], tensorflow.int32)
        return tensorflow.ensure_shape(indices_SBM, shape)

    options = tensorflow.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 1
    # There is nothing to tune, and the end of a pass would wait until the tuner wakes: up to two seconds.
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    # Nothing here is for AutoGraph, which would leave files that it compiles among the passing ones.
    plain = tensorflow.autograph.experimental.do_not_convert(ordered)
    with tensorflow.device("CPU:0"):
        counted = tensorflow.data.Dataset.counter(np.int64(orders.start))
        return counted.map(plain).prefetch(1).with_options(options)
