"""Measurements of this machine: formulas by hand, real steps on a small network."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tiny_profiles import tiny_profile

from v8.model.training import probe
from v8.profile.profile import Profile
from v8.runs.machine import ceiling_pct


@pytest.fixture(scope="module")
def small() -> Profile:
    network = {"family": "lstm_dense", "encoder_units": (4,), "dense_units": (4,), "dropout": 0.1}
    return tiny_profile("lstm_dense", network=network, tasks={"ohlc": {"weight": 1.0, "loss": "mae"}})


def test_percent_of_the_ceiling_follows_from_the_formula(small: Profile) -> None:
    # 20 steps x 8 x 4 units x (12 features + 4 units) = 10,240 forward, three times that in training.
    assert small.training_flop_per_window == 30_720
    # 1,000,000 windows/s of 30,720 operations are 30.72 GFLOP/s, of 100 possible ones.
    assert ceiling_pct(1e6, small.training_flop_per_window, 100.0) == pytest.approx(30.72)


@pytest.mark.tf
def test_a_matmul_tells_its_rate_its_time_and_where_its_result_lies() -> None:
    speed = probe.matmul_speed(0.05, size=64)
    assert speed["size"] == 64
    # 2 x 64^3 operations in the time of one product are the rate.
    assert speed["gflop_per_s"] == pytest.approx(524_288 / (speed["milliseconds"] * 1e6))
    assert speed["device"].partition(":")[0] in {"CPU", "GPU"}


@pytest.mark.tf
@pytest.mark.nightly
def test_stock_and_our_step_are_measured_on_the_same_network_and_batch(small: Profile) -> None:
    stock = probe.step_speed("stock", small, "float32", 0.05)
    ours = probe.step_speed("ours", small, "float32", 0.05, num_models=2)
    assert (stock["path"], stock["num_models"]) == ("stock", 1)
    assert (ours["path"], ours["num_models"]) == ("ours", 2)
    assert "1 StackedLSTM" in ours["how"]
    for speed in (stock, ours):
        assert speed["gflop_per_s"] == pytest.approx(speed["windows_per_s"] * 30_720 / 1e9)
        assert json.loads(json.dumps(speed))["precision"] == "float32"
    assert ours["device"] == stock["device"]


@pytest.mark.tf
def test_a_network_that_is_its_own_short_one_is_compiled_once() -> None:
    network = {"family": "dense_newest", "dense_units": (4,), "dropout": 0.0}
    small = tiny_profile("dense_newest", network=network, tasks={"ohlc": {"weight": 1.0, "loss": "mae"}})
    assert probe.shortened(small) is small
    whole = probe.step_speed("ours", small, "float32", 0.05)
    (compiled,) = probe._newest_steps.values()
    short = probe.step_speed("ours", small, "float32", 0.05, is_short=True)
    assert [*probe._newest_steps.values()] == [compiled]
    assert (whole["is_short"], short["is_short"]) == (False, True)
    assert short["compile_s"] == whole["compile_s"] == compiled.seconds
    assert short["windows_per_s"] > 0
    probe.step_speed("ours", small, "mixed_bfloat16", 0.05, is_short=True)
    assert [key[2] for key in probe._newest_steps] == ["mixed_bfloat16"]  # the one before is let go of


@pytest.mark.tf
def test_the_rate_counts_repetitions_and_leaves_out_a_slow_moment() -> None:
    # Three stretches of one repetition take 0.5, 2.0 and 0.5 s: median 2 a second, mean 1.5.
    durations = iter([0.5, 2.0, 0.5])
    now = [0.0]

    def work(num_repetitions: int) -> None:
        now[0] += num_repetitions * next(durations)

    assert probe.median_rate(work, 2.9, clock=lambda: now[0]) == 2.0


@pytest.mark.tf
def test_repetitions_too_short_to_time_are_gathered_into_longer_stretches() -> None:
    asked = []
    now = [0.0]

    def work(num_repetitions: int) -> None:
        asked.append(num_repetitions)
        now[0] += num_repetitions * 0.01

    assert probe.median_rate(work, 0.8, clock=lambda: now[0]) == pytest.approx(100.0)
    # A stretch lasts at least an eighth of 0.8 s, so ten repetitions; 16 is the first double above.
    assert asked[:6] == [1, 2, 4, 8, 16, 16]


@pytest.mark.tf
def test_the_first_units_are_those_of_the_layer_that_reads_the_window() -> None:
    families = ("bilstm_seq2seq", "lstm_dense", "dense_newest")
    assert [tiny_profile(family).network.first_units for family in families] == [6, 6, 6]
    short: Any = probe.shortened(tiny_profile("bilstm_seq2seq")).network
    assert (short.family, short.encoder_units, short.dense_units) == ("lstm_dense", (6,), (6,))
    light = tiny_profile("dense_newest")
    assert probe.shortened(light) is light


@pytest.mark.tf
@pytest.mark.parametrize(("saturation", "expected"), [(1, 1), (8, 8), (30, 32), (1000, 40)])
def test_a_fleet_is_as_large_as_still_pays(saturation: int, expected: int, small: Profile) -> None:
    """A device that does `saturation` products at once gains nothing from more models."""

    def speed(num_models: int) -> float:
        return float(min(num_models, saturation))

    assert probe.measured_fleet_size(small, 40, speed_of=speed) == expected
