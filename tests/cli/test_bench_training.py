"""The training benchmark: who competes, what its columns say, and how many weights PyTorch's network has."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from v8.model.networks.networks import build_network
from v8.profile.profile import load_profile

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(SCRIPTS)
    return lambda name: importlib.import_module(f"training_bench.{name}")


def test_the_table_sets_each_beside_stock_the_best_peer_and_its_share_of_the_ceiling(
    part: Callable[[str], Any],
) -> None:
    contender = part("contenders").Contender
    profile = load_profile("aligned")
    line_up = [
        contender("s", {"kind": "stock"}, "jax", rates=[90.0, 100.0], cpu_s=[20.0, 10.0]),
        contender("t1", {"kind": "torch"}, "jax", 2, True, rates=[200.0], cpu_s=[5.0]),
        contender("t2", {"kind": "torch"}, "jax", rates=[150.0], cpu_s=[4.0]),
        contender("p", {"kind": "product"}, "jax", 2, True, rates=[400.0], cpu_s=[2.0]),
        contender(
            "f1", {"kind": "fleet", "num_models": 1, "format": "float32"}, "jax", 1, True, [210.0], [4.0]
        ),
        contender(
            "f4", {"kind": "fleet", "num_models": 4, "format": "float32"}, "jax", 1, True, [420.0], [4.0]
        ),
    ]
    told = part("contenders").table(line_up, profile, {"float32": 200.0}, 2)
    rows = {row["name"]: row for row in told["rows"]}
    assert {name: row["times_stock"] for name, row in rows.items()} == {
        "s": 1.0, "t1": 2.0, "t2": 1.5, "p": 4.0, "f1": 2.1, "f4": 4.2
    }  # fmt: skip
    assert (rows["p"]["times_torch"], rows["p"]["times_torch_by_cpu"]) == (2.0, 2.0)
    assert (rows["s"]["windows_per_s_and_core"], rows["f1"]["windows_per_s_and_core"]) == (50.0, 210.0)
    # 400 windows/s of 0.127 GFLOP on both cores are 51 of 200 GFLOP/s; 210 on one of them 27 of 100.
    assert [round(rows[name]["ceiling_pct"]["float32"]) for name in ("p", "f1")] == [25, 27]
    (fleet,) = told["fleets"]
    assert (fleet["num_models"], fleet["times_one_after_another"]) == (4, 2.0)


def test_what_this_machine_cannot_do_is_said_and_the_others_go_on(
    part: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(spec: dict[str, Any]) -> None:
        raise part("turn").RefusedError(f"no LSTM in {spec['format']}")

    # PyTorch need not be installed, and most processors can.
    monkeypatch.setitem(sys.modules, "training_bench.torch_peer", SimpleNamespace(torch_turn=refuse))
    spec = {"kind": "torch", "format": "bfloat16", "is_single_threaded": False}
    part("crews").serve(spec, ["1.0"])
    (answer,) = capsys.readouterr().out.splitlines()
    contender = part("contenders").Contender
    line_up = [
        contender("product", {"kind": "product"}, "jax", rates=[300.0], cpu_s=[2.0]),
        contender("peer", {"kind": "torch"}, "jax", rates=[200.0], cpu_s=[4.0]),
        contender("half", spec, "jax", **json.loads(answer)),
    ]
    table = part("contenders").table(line_up, load_profile("aligned"), {"float32": 200.0}, 2)
    assert [row["times_torch"] for row in table["rows"]] == [1.5, 1.0]
    importlib.import_module("bench_training").show_table(table)
    assert ": no LSTM in bfloat16" in capsys.readouterr().out


@pytest.fixture
def torch() -> Iterator[Any]:
    """PyTorch, which is no part of this project: without it, its network cannot be compared."""
    return pytest.importorskip("torch", reason="needs PyTorch: pip install torch")


@pytest.mark.tf
def test_pytorchs_aligned_has_as_many_weights(part: Any, torch: Any) -> None:
    profile = load_profile("aligned")
    peer = part("torch_peer").Seq2Seq(profile, is_time_major=False)
    trained = [one for one in peer.parameters() if one.requires_grad]
    assert sum(one.numel() for one in trained) == build_network(profile, seed=0).count_params()
