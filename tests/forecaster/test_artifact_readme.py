"""The README of an artefact says what is true, and its code works where v8 does not exist."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from described_models import described_features
from float32_steps import assert_within_steps

from v8.base.arrays import MAX_STEPS
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import checked_metadata
from v8.forecaster.series_artifact import artifact_readme as readme_of

pytestmark = pytest.mark.tf

WITHOUT_V8 = '''
import importlib.abc
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"


class NoV8(importlib.abc.MetaPathFinder):
    """As if v8 had never been installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "v8":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NoV8())
try:
    import v8
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("v8 is here")

import numpy as np
import pandas as pd
from ta.momentum import StochasticOscillator
from ta.volatility import BollingerBands

# The features, from the sentences of the README alone.
candles = pd.read_csv(sys.argv[1])
close, high, low = candles["close"], candles["high"], candles["low"]
mean, deviation = close.rolling(20).mean(), close.rolling(20).std(ddof=1)
change = close.diff().fillna(0.0)
gain = change.clip(lower=0).ewm(alpha=1 / 14, adjust=False).mean()
loss = (-change).clip(lower=0).ewm(alpha=1 / 14, adjust=False).mean()
macd = close.ewm(span=12, adjust=False).mean() - close.ewm(span=26, adjust=False).mean()
true_range = np.maximum(high, close.shift()) - np.minimum(low, close.shift())
features = pd.DataFrame(
    {
        "volatility": deviation / mean,
        "atr": true_range.rolling(14).mean(),
        "bb_width": 4 * deviation / mean,
        "bb_lower": mean - 2 * deviation,
        "bb_upper": mean + 2 * deviation,
        "macd_signal": macd.ewm(span=9, adjust=False).mean(),
        "macd": macd,
        "rsi": 100 * gain / (gain + loss),
        "close": close,
        "low": low,
        "high": high,
        "open": candles["open"],
        "ta.stoch(window=10)": StochasticOscillator(high, low, close, window=10).stoch(),
        "ta.bollinger_lband": BollingerBands(close, window=20, window_dev=2).bollinger_lband(),
    }
)
'''

SAVED = """
np.savez(sys.argv[2], **forecast)
"""


def artifact_readme(content: dict[str, Any]) -> str:
    return readme_of(checked_metadata(content))


@pytest.fixture(scope="module")
def metadata(trained_run: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((trained_run.folder / "metadata.json").read_text())
    return content


def test_the_readme_lies_beside_the_model(trained_run: Any, metadata: dict[str, Any]) -> None:
    assert (trained_run.folder / "README.md").read_text() == artifact_readme(metadata)


@pytest.mark.nightly
@pytest.mark.process
def test_its_code_gives_the_same_forecast_in_an_environment_without_v8(
    tmp_path: Path, trained_run: Any
) -> None:
    readme = (trained_run.folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    out = tmp_path / "forecast.npz"
    file = trained_run.candles_dir / "BTCUSDT-15m.csv"
    subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_V8 + code + SAVED, str(file), str(out)],
        cwd=trained_run.folder,
        check=True,
        timeout=120,
    )
    ours = Forecaster.load(trained_run.folder).predict(trained_run.candles)
    columns = {"ohlc": ["open", "high", "low", "close"], "bands": ["bb_upper", "bb_lower"]}
    with np.load(out) as plain:
        assert sorted(plain) == ["bands", "ohlc", "volatility"]
        for task, names in {**columns, "volatility": ["volatility"]}.items():
            assert plain[task].shape == (1, 3, len(names))
            # pandas rounds its running sums otherwise.
            size = 1.0 if task == "volatility" else ours["close"].iloc[0]
            assert_within_steps(plain[task][0], ours[names], magnitude=size, steps=MAX_STEPS)


def test_it_tells_what_goes_in_and_out_and_what_was_seen(metadata: dict[str, Any]) -> None:
    readme = artifact_readme(metadata)
    assert readme.startswith("# BTCUSDT-15m\n\nForecasts the next 3 15m candles ")
    assert "700 candles from `files`, 2024-12-24T17:00:00+00:00 to 2024-12-31T23:45:00+00:00" in readme
    assert '| `forecast["ohlc"]` | (N, 3, 4) | open, high, low, close | quote currency |' in readme
    assert '| `forecast["volatility"]` | (N, 3, 1) | volatility | unitless |' in readme
    for number, feature in enumerate(metadata["features"]):
        assert f"| {number} | `{feature['name']}` |" in readme
    needed = 20 + metadata["warmup_bars"]
    assert f"at least {needed} candles, 20 of the window and {needed - 20} before it" in readme
    assert "Demo market" not in readme


def test_a_model_that_loses_is_labelled(metadata: dict[str, Any]) -> None:
    content = copy.deepcopy(metadata)
    for task, (ours, naive) in {
        "ohlc": (0.03, 0.02),
        "bands": (0.009, 0.01),
        "volatility": (0.1, 0.0),
    }.items():
        _evaluate_anew(content["evaluation"]["tasks"][task], ours, naive)
    readme = artifact_readme(content)
    assert "| ohlc | 1.500 | loses to naive |" in readme
    assert "| volatility | – | loses to naive |" in readme
    assert "**It loses to the naive forecast at: ohlc, volatility. " in readme
    # Every baseline errs as naive does, the reference too.
    assert "does better at: ohlc (log_har_clock), volatility (log_har_clock).**" in readme
    bands = content["evaluation"]["tasks"]["bands"]
    bands["errors"]["log_har_clock"]["mae_return"]["by_step_and_column"] = [[0.006] * 2] * 3
    bands["significance"]["log_har_clock"]["mean_difference"] = 0.009 - 0.006
    readme = artifact_readme(content)
    assert "| bands | 0.900 | beats naive | log_har_clock | 1.500 | loses to log_har_clock |" in readme
    assert "bands (log_har_clock), volatility (log_har_clock).**" in readme
    for section in content["evaluation"]["tasks"].values():
        _evaluate_anew(section, 0.01, 0.02)
    assert "It loses" not in artifact_readme(content)


def _evaluate_anew(section: dict[str, Any], ours: float, naive: float) -> None:
    """Let the model err alike at every step and column, and every baseline too."""
    for name, errors in section["errors"].items():
        cells = errors["mae_return"]["by_step_and_column"]
        errors["mae_return"]["by_step_and_column"] = [
            [ours if name == "model" else naive] * len(row) for row in cells
        ]
    for test in section["significance"].values():
        test["mean_difference"] = ours - naive
        test["standard_error"] = 1e-5  # the span of this small model has too few windows for a test


def test_a_model_of_the_demo_market_says_so(metadata: dict[str, Any]) -> None:
    assert "**Demo market: " in artifact_readme(metadata | {"is_demo_market": True})


def test_it_tells_what_a_model_reads_beside_its_candles(metadata: dict[str, Any]) -> None:
    table = {"file": "funding.csv", "time": "at", "columns": ["rate"], "available_after_s": 60}
    profile = metadata["profile"] | {"covariates": [table | {"max_age_s": 43_200}]}
    names = ["BTCUSDT.range_20", "csv.rate"]
    features = [*metadata["features"], *described_features(names)]
    readme = artifact_readme(metadata | {"profile": profile, "features": features})
    assert "- `BTCUSDT`: its 15m candles" in readme and "\n- `funding.csv`, " in readme
    assert re.search("times in `at`, `rate`. .* 60 s ", readme)
    assert 'forecaster.predict(candles, covariates={"BTCUSDT": ..., "funding.csv": ...})' in readme
    assert "of BTCUSDT is computed from" in readme
    assert "covariates=" not in artifact_readme(metadata)
