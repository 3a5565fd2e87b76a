"""Engines are found by name, each with a sentence and modules; flags become one placement, or are refused."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tiny_profiles import tiny_profile

from v8.base.errors import ProfileError
from v8.runs.engines import choose_engine, choose_placement, local_placement
from v8.runs.options import ENGINES, Placement
from v8.runs.plan import Recipe
from v8.runs.workers import FinisherPool, Worker


def test_every_engine_says_where_it_trains_and_names_modules_that_exist() -> None:
    assert "local" in ENGINES
    for engine in ENGINES.values():
        assert engine.sentence.endswith(".")
        assert all(find_spec(name) for name in engine.source.split(", "))


def test_an_unknown_engine_names_the_nearest() -> None:
    with pytest.raises(ProfileError, match=r"engine locl: .*got .locl."):
        ENGINES.find("locl")


@pytest.mark.parametrize("missing", [("keras",), ("keras", "tensorflow")])
def test_what_trains_must_be_installed_before_anything_is_read(
    missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ProfileError) as refused:
        choose_engine("local")
    assert refused.value.fix.endswith(f"-m pip install {' '.join(missing)}")


@pytest.mark.parametrize("may_have_gpu", [False, True])
def test_several_workers_train_one_series_at_a_time(may_have_gpu: bool) -> None:
    chosen = choose_placement("3", "auto", may_have_gpu=may_have_gpu, num_cores=8)
    assert chosen == Placement(num_workers=3, fleet_size=1)


def test_one_worker_without_a_gpu_stacks_nothing_unless_told() -> None:
    assert choose_placement("1", "auto", may_have_gpu=False, num_cores=8) == Placement(1, 1)
    assert choose_placement("1", "4", may_have_gpu=False, num_cores=8) == Placement(1, 4)


def test_only_a_number_left_to_the_machine_is_measured() -> None:
    assert choose_placement("auto", "auto", may_have_gpu=False, num_cores=8).is_measured
    assert not choose_placement("8", "auto", may_have_gpu=False, num_cores=8).is_measured
    assert not choose_placement("auto", "auto", may_have_gpu=False, num_cores=1).is_measured


def test_a_fleet_and_several_workers_are_refused_together() -> None:
    with pytest.raises(ProfileError, match=r"--fleet-size: .*got 2 with --work"):
        choose_placement("3", "2", may_have_gpu=False, num_cores=8)


@pytest.mark.parametrize("text", ["0", "-1", "all", "1.5", ""])
def test_a_fleet_size_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ProfileError, match=r"--fleet-size: .*at least 1; got"):
        choose_placement("auto", text, may_have_gpu=False, num_cores=8)


def test_several_gpus_get_a_process_each_and_fleets() -> None:
    machine = {"may_have_gpu": True, "num_cores": 8, "gpus": ("0", "2", "3")}
    assert choose_placement("auto", "auto", **machine) == Placement(3, None, gpus=("0", "2", "3"))
    assert choose_placement("2", "8", **machine) == Placement(2, 8, gpus=("0", "2"))
    assert choose_placement("1", "auto", **machine) == Placement(1, None)
    assert choose_placement("4", "auto", **machine) == Placement(4, 1), "more processes than GPUs share them"
    assert choose_placement("auto", "auto", **{**machine, "gpus": ("0",)}) == Placement(1, None)


def test_one_worker_by_the_users_choice_stays_alone() -> None:
    assert local_placement("1", "auto", "cpu").is_alone
    assert not local_placement("auto", "auto", "cpu").is_alone
    assert not local_placement("2", "auto", "cpu").is_alone


def test_a_later_run_of_more_series_gets_more_finishers_and_never_fewer(tmp_path: Path) -> None:
    class PoolWithoutProcesses(FinisherPool):
        num_started = 0

        def _new_worker(self, gpu: str | None) -> Worker:
            self.num_started += 1
            unstarted: Any = object()
            return unstarted

    pool = PoolWithoutProcesses(Recipe(tiny_profile("dense_newest"), is_publishable=False), tmp_path)
    for num, num_started in ((2, 2), (3, 3), (1, 3)):
        pool.start(num)
        assert pool.num_started == num_started
