"""The training benchmark: who competes, what its columns say, and that PyTorch's network is the same one."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from float32_steps import assert_within_steps
from tiny_profiles import tiny_profile

from v8.model.networks.networks import build_network
from v8.model.training.probe import keras_network, random_batch
from v8.profile.profile import load_profile

WEIGHTS = {"ohlc": 1e5, "bands": 8e4, "volatility": 3e4}
SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(SCRIPTS)
    return lambda name: importlib.import_module(f"training_bench.{name}")


@pytest.fixture
def ground(part: Callable[[str], Any]) -> Callable[..., Any]:
    def make(**changes: Any) -> Any:
        contenders = part("contenders")
        usual = {"backends": ["jax"], "has_gpu": False, "has_torch": True, "num_workers": 2}
        usual |= {"kinds": contenders.KINDS, "formats": ["float32"], "fleet_sizes": [1]}
        return contenders.Ground(**usual | changes)

    return make


def test_on_a_cpu_peers_have_a_process_a_core_and_one_on_all_threads(ground: Callable[..., Any]) -> None:
    shown = [(each.name, each.num_processes, each.is_single_threaded) for each in ground().line_up()]
    assert shown == [
        ("stock fit, JAX, 2 processes", 2, True),
        ("stock fit, JAX, all threads", 1, False),
        *(
            (f"PyTorch {form}, {major}-major, {how}", num_processes, is_single)
            for how, num_processes, is_single in (("2 processes", 2, True), ("all threads", 1, False))
            for form in ("float32", "bfloat16")
            for major in ("batch", "time")
        ),
        ("product float32, JAX, 2 processes", 2, True),
        ("fleet of 1 float32, JAX", 1, True),
    ]


def test_on_a_gpu_each_is_one_process_of_as_many_threads_as_it_likes(ground: Callable[..., Any]) -> None:
    formats = ["float32", "mixed_bfloat16"]
    on_gpu = ground(has_gpu=True, num_workers=1, formats=formats, fleet_sizes=[1, 40])
    line_up = list(on_gpu.line_up())
    assert {(each.num_processes, each.is_single_threaded) for each in line_up} == {(1, False)}
    fleets = [(each.spec["format"], each.spec["num_models"]) for each in line_up if each.kind == "fleet"]
    assert fleets == [(form, size) for form in formats for size in (1, 40)]
    assert {each.spec["num_threads"] for each in line_up if each.kind == "torch"} == {None}


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
    told = part("figures").table(line_up, profile, {"float32": 200.0}, 2)
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
    part("measuring").serve(spec, ["1.0"])
    (answer,) = capsys.readouterr().out.splitlines()
    contender = part("contenders").Contender
    line_up = [
        contender("product", {"kind": "product"}, "jax", rates=[300.0], cpu_s=[2.0]),
        contender("peer", {"kind": "torch"}, "jax", rates=[200.0], cpu_s=[4.0]),
        contender("half", spec, "jax", **json.loads(answer)),
    ]
    table = part("figures").table(line_up, load_profile("aligned"), {"float32": 200.0}, 2)
    assert [row["times_torch"] for row in table["rows"]] == [1.5, 1.0]
    part("showing").show_table(table)
    assert ": no LSTM in bfloat16" in capsys.readouterr().out


def copy_weights(network: keras.Model, peer: Any) -> None:
    """Give PyTorch's network the weights of one of Keras."""
    torch = importlib.import_module("torch")
    arrays = {weight.path: keras.ops.convert_to_numpy(weight) for weight in network.weights}

    def put(parameter: Any, path: str) -> None:
        array = arrays.pop(path)
        is_turned = "kernel" in path and "head" not in path  # PyTorch's layers multiply from the other side
        with torch.no_grad():
            parameter.copy_(torch.tensor(array.T if is_turned else array).reshape(parameter.shape))

    def put_lstm(lstm: Any, cell: str, suffix: str) -> None:
        parts = (("weight_ih", "kernel"), ("weight_hh", "recurrent_kernel"), ("bias_ih", "bias"))
        for theirs, ours in parts:
            put(getattr(lstm, f"{theirs}_l0{suffix}"), f"{cell}/lstm_cell/{ours}")

    for stage in filter(lambda name: hasattr(peer, name), ("encoder", "decoder")):
        module = getattr(peer, stage)
        for number, (lstm, norm) in enumerate(zip(module.lstms, module.norms, strict=True), 1):
            layer = f"{stage}_{number}"
            if lstm.bidirectional:
                put_lstm(lstm, f"{layer}/forward_{layer}_forward", "")
                put_lstm(lstm, f"{layer}/{layer}_backward", "_reverse")
            else:
                put_lstm(lstm, layer, "")
            put(norm.weight, f"{layer}_norm/gamma")
            put(norm.bias, f"{layer}_norm/beta")
    for number, dense in enumerate(getattr(peer, "dense", ()), 1):
        put(dense.weight, f"dense_{number}/kernel")
        put(dense.bias, f"dense_{number}/bias")
    for task, head in peer.heads.items():
        put(head.kernel, f"head_{task}/kernel")
        put(head.bias, f"head_{task}/bias")
    assert not [path for path in arrays if "seed" not in path]


@pytest.fixture
def torch() -> Iterator[Any]:
    """PyTorch, which is no part of this project: without it, its network cannot be compared."""
    return pytest.importorskip("torch", reason="needs PyTorch: pip install torch")


@pytest.mark.tf
@pytest.mark.parametrize("is_time_major", [False, True])
@pytest.mark.parametrize("family", ["bilstm_seq2seq", "lstm_dense"])
def test_pytorchs_network_forecasts_and_learns_what_keras_does(
    family: str, is_time_major: bool, part: Any, torch: Any
) -> None:
    # Large losses, because epsilon, which the two add to different roots, must not count beside gradients.
    training = {"clip_norm": 1e4, "batch_size": 5}
    tasks = {task: {"weight": weight, "loss": "mae"} for task, weight in WEIGHTS.items()}
    peers = part("torch_peer")
    profile = tiny_profile(family, training=training, tasks=tasks)
    network = keras_network(profile, "float32")
    draws = np.random.default_rng(0)
    for weight in network.trainable_variables:  # heads start at zero, which would hide the rest
        weight.assign(draws.normal(0, 0.3, weight.shape))
    peer = peers.build_peer(profile, is_time_major=is_time_major)
    copy_weights(network, peer)
    x_BMTF, y_BMHC = random_batch(profile, 1)
    x_BTF = x_BMTF[:, 0]
    y = {task: values[:, 0] for task, values in y_BMHC.items()}
    forecast = peer(torch.from_numpy(x_BTF))
    for task, ours in network(x_BTF).items():
        assert_within_steps(forecast[task].detach().numpy(), ours, steps=32)

    optimiser = peers.adam(peer, profile.training)
    for _ in range(3):
        network.train_on_batch(x_BTF, y)
        optimiser.zero_grad()
        actual = {task: torch.from_numpy(values) for task, values in y.items()}
        peers.total_loss(profile, peer(torch.from_numpy(x_BTF)), actual).backward()
        peers.bound_gradients(peer, profile.training)
        gradients = [one.grad.flatten() for one in peer.parameters() if one.grad is not None]
        assert float(torch.cat(gradients).norm()) == pytest.approx(1e4, rel=1e-4)  # Adam forgets the scale
        optimiser.step()
    learned = peers.build_peer(profile, is_time_major=is_time_major)
    copy_weights(network, learned)
    for (name, theirs), ours in zip(peer.named_parameters(), learned.parameters(), strict=True):
        np.testing.assert_allclose(theirs.detach(), ours.detach(), rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.tf
def test_pytorchs_aligned_has_as_many_weights(part: Any, torch: Any) -> None:
    profile = load_profile("aligned")
    peer = part("torch_peer").build_peer(profile, is_time_major=False)
    trained = [one for one in peer.parameters() if one.requires_grad]
    assert sum(one.numel() for one in trained) == build_network(profile, seed=0).count_params()
