"""A family with a layer without a stacked twin: trained one series after another, with a note."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from demo_jobs import demo_jobs
from tiny_profiles import demo_table, tiny_profile

import v8
from v8.data.windows import prepare_series
from v8.profile.families import FAMILIES
from v8.profile.family import Family, Layers, NetworkSettings, NetworkShape, Units, dense_flop
from v8.runs.events import Event, EventCallback, Note
from v8.runs.local import InProcessEngine

pytestmark = pytest.mark.tf

NAMES = ("BTCUSDT-15m", "ETHUSDT-15m")


class FlatNetwork(NetworkSettings):
    """Sizes of the dense layers."""

    units: Units
    """Units of each dense layer, first to last."""


def outputs(network: FlatNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    x_BD = keras.layers.Flatten(dtype=layers.precision, name="flat")(window_BTF)
    for number, units in enumerate(network.units, 1):
        kernel = keras.initializers.GlorotUniform(seed=next(layers.seeds))
        x_BD = keras.layers.Dense(units, "relu", kernel_initializer=kernel, name=f"dense_{number}")(x_BD)
    return layers.heads(x_BD, "bd,dhc->bhc")


def forward_flop(network: FlatNetwork, shape: NetworkShape) -> float:
    return dense_flop(shape.num_features * shape.lookback_bars, *network.units)


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    FAMILIES.register(
        Family(
            name="dense_flat",
            sentence="Dense layers over the whole window.",
            source="this test",
            settings=FlatNetwork,
            outputs=outputs,
            forward_flop=forward_flop,
        )
    )
    yield
    FAMILIES.pop("dense_flat")


@pytest.mark.nightly
def test_series_are_trained_one_by_one_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    network = {"family": "dense_flat", "units": (5,)}
    profile = tiny_profile("lstm_dense", network=network, training={"epochs": 2})
    events: list[Event] = []
    outcomes = list(
        InProcessEngine(fleet_size=2).train(
            demo_jobs(profile, NAMES, tmp_path / "run"), EventCallback(events.append)
        )
    )
    assert [outcome.reason for outcome in outcomes] == [None, None]
    notes = [event.text for event in events if isinstance(event, Note)]
    assert [note.partition(": ")[2].partition(" has ")[0] for note in notes] == ["flat (Flatten)"]
    for name in NAMES:
        forecaster = v8.load(tmp_path / "run" / name)
        assert forecaster.about.content["training"]["fleet_size"] == 1
        data = prepare_series(demo_table(profile, series=name), profile)
        said = forecaster.forecast(data.spans["test"].raw_windows()[:3])
        assert said["ohlc"].shape == (3, 3, 4) and np.isfinite(said["ohlc"]).all()
