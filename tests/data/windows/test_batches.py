"""Windows: the right rows, in an order fixed by seed and epoch, never materialised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_batches import span_batches, training_batches
from tiny_profiles import demo_data, demo_table, table_with, tiny_profile, tiny_ranged_profile

from v8.data.windows import (
    FleetWindows,
    batched_indices,
    epoch_order,
    num_batches,
    padded_rows,
    prepare_series,
)
from v8.model.networks.networks import build_network


def test_a_batch_holds_the_rows_its_anchors_name() -> None:
    data = demo_data(tiny_profile())
    batch = next(span_batches(FleetWindows([data]), "validation", 4))
    close = data.profile.features.index("close")
    mask = data.scaling.anchored_mask()
    for place, anchor in enumerate(data.anchors["validation"][:4]):
        rows = data.inputs_NF[anchor - 19 : anchor + 1]
        expected = rows - rows[-1, close] * mask
        np.testing.assert_array_equal(np.asarray(batch.x_BMTF)[place, 0], expected)
        np.testing.assert_array_equal(
            np.asarray(batch.y_BMHC["bands"])[place, 0], data.targets_NHC["bands"][anchor]
        )
    assert np.asarray(batch.x_BMTF)[:, 0, -1, close].tolist() == [0.0] * 4


def test_an_epoch_visits_every_window_once_and_epochs_differ() -> None:
    data = demo_data(tiny_profile())
    steps = num_batches(data.num_windows("train"), 16)
    batches = list(training_batches(FleetWindows([data]), [7], first_epochs=[1], num_epochs=2))
    assert len(batches) == 2 * steps
    epochs = []
    for part in (batches[:steps], batches[steps:]):
        seen = np.concatenate(
            [np.asarray(batch.y_BMHC["ohlc"])[np.asarray(batch.weight_BM) == 1] for batch in part]
        )
        epochs.append(seen[:, 0, 3])
    expected = data.targets_NHC["ohlc"][data.anchors["train"]][:, 0, 3]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(expected)
    assert epochs[0].tolist() != epochs[1].tolist()


def test_g12_a_later_epoch_has_the_same_order_whether_or_not_the_earlier_ones_were_run() -> None:
    data = demo_data(tiny_profile())
    steps = num_batches(data.num_windows("train"), 16)
    whole = list(training_batches(FleetWindows([data]), [7], first_epochs=[1], num_epochs=3))[2 * steps :]
    resumed = list(training_batches(FleetWindows([data]), [7], first_epochs=[3], num_epochs=1))
    for first, second in zip(whole, resumed, strict=True):
        np.testing.assert_array_equal(np.asarray(first.x_BMTF), np.asarray(second.x_BMTF))


@given(
    nums=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    size=st.integers(1, 64),
    seed=st.integers(0, 99),
    epoch=st.integers(1, 9),
)
def test_batches_are_full_and_filling_is_told_apart_from_real_windows(
    nums: list[int], size: int, seed: int, epoch: int
) -> None:
    orders = [epoch_order(np.arange(1_000, 1_000 + num), seed, epoch) for num in nums]
    indices = batched_indices(orders, size)
    assert indices.shape == (num_batches(max(nums), size), size, len(nums))
    assert indices.dtype == np.int32
    for model, order in enumerate(orders):
        flat = indices[..., model].ravel()
        assert flat[: len(order)].tolist() == order.tolist()
        filling = flat[len(order) :]
        assert (filling < 0).all()
        assert set(-1 - filling) <= set(order)


def test_a_fleet_s_batches_are_those_of_its_members_side_by_side() -> None:
    profile = tiny_profile()
    fleet = [demo_data(profile), demo_data(profile, series="ETHUSDT-1h", num_bars=500)]
    together = list(training_batches(FleetWindows(fleet), [1, 2], first_epochs=[1, 4], num_epochs=1))
    for model, (seed, first) in enumerate([(1, 1), (2, 4)]):
        alone = list(
            training_batches(FleetWindows([fleet[model]]), [seed], first_epochs=[first], num_epochs=1)
        )
        for one, other in zip(alone, together, strict=False):
            weight = np.asarray(one.weight_BM)[:, 0] == 1
            np.testing.assert_array_equal(
                np.asarray(one.x_BMTF)[weight, 0], np.asarray(other.x_BMTF)[weight, model]
            )
        rest = [np.asarray(batch.weight_BM)[:, model].sum() for batch in together[len(alone) :]]
        assert not any(rest)


def test_windows_weigh_what_their_series_says() -> None:
    profile = tiny_ranged_profile()
    fleet = [demo_data(profile), demo_data(profile, series="ETHUSDT-1h", num_bars=900)]
    indices = batched_indices([data.anchors["validation"] for data in fleet], 32)
    is_real = indices >= 0
    rows = np.where(indices < 0, -1 - indices, indices)
    expected = (
        np.stack([data.weight_N[rows[..., model]] for model, data in enumerate(fleet)], axis=-1) * is_real
    )
    assert (expected == 0).sum() == is_real.size - sum(data.num_windows("validation") for data in fleet)
    assert len(np.unique(expected)) > 50
    found = [batch.weight_BM for batch in span_batches(FleetWindows(fleet), "validation", 32)]
    np.testing.assert_array_equal(np.stack(found), expected)


def test_tables_of_about_one_length_have_one_shape_and_long_ones_are_hardly_longer() -> None:
    """The shape is part of a compiled program; memory counts where rows do."""
    assert {padded_rows(num) for num in range(4_097, 8_193, 64)} == {8_192}
    for num in (1, 1_024, 65_536, 65_537, 999_999):
        assert num <= padded_rows(num) < max(1_025, 2 * num, num + 65_536)
    assert padded_rows(1_000_000) == 16 * 65_536


def test_no_window_crosses_a_hole() -> None:
    profile = tiny_profile()
    table = demo_table(profile)
    segment = np.zeros(len(table), np.int32)
    segment[100:] = 1
    whole = prepare_series(table, profile)
    broken = prepare_series(table_with(table, segment=segment), profile)
    lost = set(whole.anchors["train"]) - set(broken.anchors["train"])
    # A window of 20 + 3 rows straddles row 100 in 22 positions.
    assert sorted(lost) == list(range(97, 119))


def measured(lookback: int) -> int:
    """Return by how many KiB a process of its own grows in an epoch."""
    program = MEMORY_PROGRAM.format(tests=str(Path(__file__).parents[2]), lookback=lookback)
    command = [sys.executable, "-c", program]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


MEMORY_PROGRAM = """
import resource, sys
import numpy as np
sys.path[:0] = [{tests!r}, {tests!r} + "/parts"]
from tiny_profiles import demo_table, tiny_profile
from v8.data.windows import prepare_series
from v8.data.windows import FleetWindows
from numpy_batches import training_batches
profile = tiny_profile(lookback_bars={lookback}, newest_bars=6000)
data = prepare_series(demo_table(profile), profile)
batches = training_batches(FleetWindows([data]), [1], first_epochs=[1], num_epochs=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = sum(float(np.asarray(batch.x_BMTF)[0, 0, 0, 0]) for batch in batches)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.nightly
@pytest.mark.process
def test_memory_does_not_grow_with_the_lookback() -> None:
    """4,000 windows of 400 rows x 12 features would be 77 MB; gathering them batch by batch is not."""
    assert measured(400) - measured(20) < 30 * 1024


def test_g7_no_window_holds_a_row_it_is_asked_for() -> None:
    """There is no teacher forcing: the window is the only input, and it ends at the anchor."""
    profile = tiny_profile()
    table = demo_table(profile)
    data = prepare_series(table, profile)
    anchor = int(data.anchors["validation"][0])
    changed = {name: table.column(name).copy() for name in table.columns}
    for column in changed.values():
        column[anchor + 1 :] *= 1.5
    other = prepare_series(table_with(table, **changed), profile)
    first, second = (next(span_batches(FleetWindows([each]), "validation", 1)) for each in (data, other))
    np.testing.assert_array_equal(np.asarray(first.x_BMTF), np.asarray(second.x_BMTF))
    assert not np.array_equal(np.asarray(first.y_BMHC["ohlc"]), np.asarray(second.y_BMHC["ohlc"]))


@pytest.mark.tf
def test_g7_a_network_s_only_input_is_the_window() -> None:
    for family in ("bilstm_seq2seq", "lstm_dense", "dense_newest"):
        network = build_network(tiny_profile(family), seed=1)
        assert [tensor.name for tensor in network.inputs] == ["window"]
