"""The lines of a published card, copied to where v8 does not exist, forecast what v8 forecasts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from float32_steps import assert_same_frames

from v8.forecaster.forecaster import Forecaster
from v8.publish.hub.publish import publish
from v8.publish.hub.staging import stage_run

pytestmark = pytest.mark.tf

REPO = "someone/fleet"
SERIES = "BTCUSDT-1h"

WITHOUT_V8 = """
import importlib.abc
import sys


class NoV8(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "v8":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NoV8())
"""
SAVED = '\nfeatures.forecast_table(outputs, inputs).to_pickle("forecast.pickle")\n'


def frame_of_candles() -> pd.DataFrame:
    """Draw 600 hours with gaps between closes and opens."""
    rng = np.random.default_rng(1)
    close = 60_000 * np.exp(np.cumsum(rng.normal(0.0, 0.006, 600)))
    opened = np.concatenate([close[:1], close[:-1]])
    reach = rng.gamma(2.0, 0.002, (2, 600))
    return pd.DataFrame(
        {
            "open_time": pd.date_range("2024-08-01", periods=600, freq="h", tz="UTC"),
            "open": opened,
            "high": np.maximum(opened, close) * (1 + reach[0]),
            "low": np.minimum(opened, close) * (1 - reach[1]),
            "close": close,
            "volume": rng.gamma(2.0, 10.0, 600),
        }
    )


@pytest.fixture(scope="module")
def staged(frontier_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Stage a copy of a run of frontier."""
    folder = tmp_path_factory.mktemp("staged")
    run = Path(shutil.copytree(frontier_run, folder / "frontier"))
    return stage_run(run, folder / "staged", REPO)


@pytest.fixture
def card(hub: Any, staged: Any) -> str:
    """Publish it and return its card."""
    publish(staged, REPO, is_private=False)
    assert hub.files(REPO)["features.py"]
    return str(hub.files(REPO)["README.md"].decode())


def python_of(card: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


@pytest.mark.nightly
@pytest.mark.process
def test_the_first_lines_of_the_card_forecast_what_v8_forecasts(
    card: str, staged: Any, tmp_path: Path
) -> None:
    lines, _, _ = python_of(card)
    frame = frame_of_candles()
    frame.to_csv(tmp_path / f"{SERIES}.csv", index=False)
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_V8 + lines + SAVED],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    plain = pd.read_pickle(tmp_path / "forecast.pickle")
    assert_equal_to_the_product(plain, staged.folder, frame)


def test_its_lines_from_the_candles_on_forecast_what_v8_forecasts(
    staged: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    lines = python_of((staged.folder / "README.md").read_text())[0]
    frame = frame_of_candles()
    frame.to_csv(tmp_path / f"{SERIES}.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(staged.folder))
    names: dict[str, Any] = {"keras": keras, "pd": pd, "folder": staged.folder}
    exec("import features\n" + lines.partition("import features\n")[2] + SAVED, names)
    monkeypatch.delitem(sys.modules, "features")
    assert_equal_to_the_product(pd.read_pickle(tmp_path / "forecast.pickle"), staged.folder, frame)


def assert_equal_to_the_product(plain: pd.DataFrame, folder: Path, frame: pd.DataFrame) -> None:
    ours = Forecaster.load(folder / "models" / SERIES).predict(frame)
    assert_same_frames(plain, ours)


def test_the_exchange_s_lines_read_its_candles(card: str, exchange_api: Any) -> None:
    _, exchange, _ = python_of(card)
    assert "symbol=BTCUSDT&interval=1h&limit=520" in exchange
    exchange_api.put(SERIES, frame_of_candles().set_index("open_time"))
    names: dict[str, Any] = {"pd": pd}
    exec(exchange.replace("https://data-api.binance.vision", exchange_api.url), names)
    assert list(names["candles"].columns) == ["open_time", "open", "high", "low", "close", "volume"]
    assert len(names["candles"]) == 520
    assert (names["candles"]["low"] > 0).all()


def test_the_card_shows_a_forecast_and_says_where_results_come_from(card: str, hub: Any) -> None:
    assert hub.files(REPO)["forecast.png"].startswith(b"\x89PNG")
    assert "](forecast.png)" in card
    assert "onnxruntime" not in card
    assert card.index("snapshot_download") < card.index("## How good they are")
    assert "## Licence\n\nMIT" in card
