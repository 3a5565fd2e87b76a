"""What feeds the compiled step: epochs of indices by tf.data, and windows cut out of tables on the device."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from tiny_profiles import demo_data, tiny_profile

from v8.data.windows import FleetWindows, gathered
from v8.model.training.state import epoch_dataset, epoch_iterator, on_device
from v8.model.training.trainer import FleetMember, Trainer

SEEDS = [7, 8]
FIRST_EPOCHS = [3, 1]


@pytest.fixture
def windows() -> FleetWindows:
    profile = tiny_profile()
    return FleetWindows([demo_data(profile), demo_data(profile, series="ETHUSDT-1h", num_bars=500)])


@pytest.mark.tf
def test_the_elements_of_the_data_set_are_the_epochs_that_numpy_shuffles(windows: FleetWindows) -> None:
    orders = windows.epochs(SEEDS, FIRST_EPOCHS)
    dataset = epoch_dataset(orders)
    assert isinstance(dataset, tf.data.Dataset)
    assert dataset.element_spec == tf.TensorSpec(orders.shape, tf.int32)
    for ours, numpy in zip(islice(epoch_iterator(orders), 5), orders, strict=False):
        np.testing.assert_array_equal(ours, numpy)


@pytest.mark.tf
def test_windows_cut_by_a_compiled_program_have_the_bits_of_numpy_s(windows: FleetWindows) -> None:
    tables = on_device(windows)
    host = windows.tables()

    @tf.function(jit_compile=True)
    def compiled(indices_BM: tf.Tensor) -> list[tf.Tensor]:
        batch = gathered(ops, tables, indices_BM)
        return [batch.x_BMTF, batch.weight_BM, *batch.y_BMHC.values()]

    for indices_BM in windows.epochs(SEEDS, FIRST_EPOCHS).indices(1)[[0, -1]]:
        expected = gathered(np, host, indices_BM)
        arrays = [expected.x_BMTF, expected.weight_BM, *expected.y_BMHC.values()]
        for ours, numpy in zip(compiled(indices_BM), arrays, strict=True):
            np.testing.assert_array_equal(ours.numpy().view(np.int32), numpy.view(np.int32))


@pytest.mark.tf
@pytest.mark.nightly
def test_series_of_other_lengths_share_a_program_and_tables_go_with_their_fit() -> None:
    profile = tiny_profile(training={"epochs": 1})
    trainer = Trainer(profile)
    alive = []
    for num_bars in (500, 640):
        data = demo_data(profile, num_bars=num_bars)
        fit = trainer.fit_fleet([FleetMember(data, 1)])
        ((_, result),) = fit
        alive.append(weakref.ref(data.inputs_NF))
        del data, fit, result
    assert len(trainer.devices) == 1
    (step,) = [program.step for program in trainer._programs.values()]
    assert len(step._traced) == 1
    gc.collect()
    assert [reference() for reference in alive] == [None, None]


@pytest.mark.tf
def test_an_iterator_that_is_given_up_lets_its_series_go(windows: FleetWindows) -> None:
    orders = windows.epochs(SEEDS, FIRST_EPOCHS)
    reference = weakref.ref(orders)
    epochs = epoch_iterator(orders)
    next(epochs)
    del orders, epochs
    gc.collect()
    assert reference() is None


INTERRUPTED = """
import os, signal, sys, threading
sys.path[:0] = [{tests!r}, {tests!r} + "/parts"]
from tiny_profiles import demo_table, tiny_profile
from v8.base.process import deferred_interrupts
from v8.model.training.state import epoch_iterator
from v8.data.windows import FleetWindows
from v8.data.windows import prepare_series
profile = tiny_profile()
windows = FleetWindows([prepare_series(demo_table(profile), profile)])
num_caught = 0
for number in range(100):
    epochs = epoch_iterator(windows.epochs([1], [1]))
    next(epochs)
    later = threading.Timer(0.0003 * number, os.kill, (os.getpid(), signal.SIGINT))
    # As the trainer reads it. Python itself loses a KeyboardInterrupt that rises in a destructor.
    with deferred_interrupts() as check:
        later.start()
        try:
            while True:
                next(epochs)
                check()
        except KeyboardInterrupt:
            num_caught += 1
        later.join()
print(num_caught)
"""


@pytest.mark.nightly
@pytest.mark.process
def test_ctrl_c_inside_the_pipeline_is_heeded_between_epochs_and_nothing_worse() -> None:
    """With `from_generator` every second one ended in an abort; a hundred of these end as Python's do."""
    program = INTERRUPTED.format(tests=str(Path(__file__).parents[2]))
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2_000:]
    assert finished.stdout.split() == ["100"]
