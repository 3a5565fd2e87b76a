"""The programs of the page on extensions are plug-ins that work, in both languages."""

from __future__ import annotations

import json
import re
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from documentation.pages import LANGUAGES
from tiny_profiles import demo_data, tiny_profile

from v8.base.errors import DataError
from v8.base.registry import load_plugins
from v8.data.features import compute_table
from v8.data.market.series import Series
from v8.data.market.sources import candles_of, open_source
from v8.data.market.sources.demo import DemoSource
from v8.model.baselines.baselines import BASELINES
from v8.model.training.trainer import Trainer
from v8.runs.local import new_trainer
from v8.runs.plan import Recipe

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("unloaded")]
REPOSITORY = Path(__file__).parents[2]


def load(word: str, language: str, folder: Path, address: str = "") -> None:
    """Load the program that has a word as a plug-in; the address of its server becomes another."""
    text = (REPOSITORY / "docs" / language / "how-to/extend.md").read_text("utf-8")
    (program,) = (block for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if word in block)
    file = folder / f"{word}.py"
    file.write_text(program.replace("http://127.0.0.1:9000", address))
    load_plugins([file])


@pytest.mark.parametrize("language", LANGUAGES)
def test_its_feature(language: str, tmp_path: Path) -> None:
    load("body_share", language, tmp_path)
    candles = DemoSource().candles(Series("BTCUSDT", "15m"), 100)
    shares = np.concatenate(compute_table(candles, ["close", "body_share"]).chunks["body_share"])
    body = candles.column("close") - candles.column("open")
    expected = body / (candles.column("high") - candles.column("low"))
    np.testing.assert_allclose(shares, expected, atol=1e-6)


@pytest.mark.parametrize("language", LANGUAGES)
def test_its_baseline(language: str, tmp_path: Path) -> None:
    load("fit_halfway", language, tmp_path)
    span = demo_data(tiny_profile("dense_newest")).spans["test"]
    forecast = BASELINES["halfway"].fit(span, None)(span)["ohlc"]
    assert forecast.shape == span.actual["ohlc"].shape
    assert (forecast[:, -1, -1] == (span.last_close + span.history_close.mean(axis=1)) / 2).all()


@pytest.mark.parametrize("language", LANGUAGES)
def test_its_source(language: str, tmp_path: Path) -> None:
    candles = DemoSource().candles(Series("BTCUSDT", "1h"), 100)
    rows = candles.to_frame().reset_index()[["open_time", "open", "high", "low", "close", "volume"]]
    rows["open_time"] = candles.open_time_s
    (tmp_path / "BTCUSDT").mkdir()
    (tmp_path / "BTCUSDT" / "1h").write_text(json.dumps(rows.to_numpy().tolist()))
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        load("OwnApi", language, tmp_path, f"http://127.0.0.1:{server.server_port}")
        source = open_source("own_api")
        newest = candles_of(source, Series("BTCUSDT", "1h"), 40, int(candles.open_time_s[-2]))
        np.testing.assert_array_equal(newest.values, candles.values[-41:-1])
        with pytest.raises(DataError, match="got status 404"):
            candles_of(source, Series("ETHUSDT", "1h"), 40)
        server.shutdown()


@pytest.mark.parametrize("language", LANGUAGES)
def test_its_family_and_its_task_are_trained_as_a_fleet(language: str, tmp_path: Path) -> None:
    load("DenseMean", language, tmp_path)
    load("bb_width", language, tmp_path)
    tasks = {name: {"weight": 1.0, "loss": "mae"} for name in ("ohlc", "width")}
    profile = tiny_profile(network={"family": "dense_mean", "units": [4, 3]}, tasks=tasks)
    assert "bb_width" in profile.features
    trainer = new_trainer(Recipe(profile, is_publishable=False))
    # 12 features to 4 units to 3: 13 x 4 + 5 x 3 = 67; 5 columns in 3 steps read 3 units: 4 x 15 = 60.
    assert isinstance(trainer, Trainer) and trainer.network.count_params() == 127
    assert not trainer.unstackable_layers
