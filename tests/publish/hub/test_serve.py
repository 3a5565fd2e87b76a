"""Forecasts where no TensorFlow and no Keras is: the wheel and the packages of requirements-serve.txt."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from bare import REPOSITORY, BareEnvironment, build, checkout_at, files_of
from float32_steps import assert_same_frames
from typer.testing import CliRunner

from v8.cli.app import app
from v8.forecaster.forecaster import Forecaster
from v8.publish.hub.publish import publish
from v8.publish.hub.staging import stage_run

REPO = "someone/tiny"
SERIES = "BTCUSDT-15m"
REQUIREMENTS = REPOSITORY / "requirements-serve.txt"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> BareEnvironment:
    folder = tmp_path_factory.mktemp("serving")
    checkout_at(folder / "checkout")
    _, wheel = build(folder / "checkout", folder / "dist")
    bare = BareEnvironment.at(folder, files_of(REQUIREMENTS) | {"pip"})
    installed = bare.call("-m", "pip", "install", "--no-index", "--no-deps", wheel)
    assert installed.returncode == 0, installed.stderr
    return bare


def test_the_list_names_neither_tensorflow_nor_keras() -> None:
    names = files_of(REQUIREMENTS)
    assert {"numpy", "onnxruntime", "pandas", "starlette"} <= names
    assert not {"jax", "keras", "ray", "tensorflow", "torch"} & names


@pytest.mark.tf
@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.skipif(os.name != "posix", reason="an environment is made of links")
def test_a_repository_is_forecast_and_served_without_keras(
    serving: BareEnvironment, hub: Any, trained_run: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run.path, run)
    words = ["export", str(run), "--models", "onnx", "--data-dir", str(trained_run.candles_dir)]
    exported = CliRunner().invoke(app, words)
    assert exported.exit_code == 0, exported.output
    publish(stage_run(run, tmp_path / "staged", REPO), REPO, is_private=True)
    assert "No module named 'keras'" in serving.call("-c", "import keras").stderr
    files = ("--source", "files", "--data-dir", trained_run.candles_dir)
    options = (*files, "--bars", "700", "--allow-old", "--format", "json")
    predicted = serving.call("-m", "v8", "predict", "--repo", REPO, "--series", SERIES, *options)
    assert predicted.returncode == 0, predicted.stderr
    answer = json.loads(predicted.stdout)
    assert answer["model"]["runtime"] == "onnx"
    expected = Forecaster.load(trained_run.folder).predict(trained_run.candles)
    rows = pd.DataFrame(answer["forecast"], index=expected.index)[[*expected.columns]]
    assert_same_frames(rows, expected)
    refused = serving.call("-m", "v8", "predict", trained_run.folder, *options)
    assert refused.returncode == 3
    assert "; got no Keras, " in refused.stderr
    _require_served(serving, run, trained_run.candles_dir)


def _require_served(serving: BareEnvironment, run: Path, candles_dir: Path) -> None:
    """Start the page of a run, and read its health."""
    words = ["app", str(run), "--source", "files", "--data-dir", str(candles_dir), "--port", "0"]
    command = [serving.python, "-u", "-m", "v8", *words]
    env = {**serving.env, "NO_PROXY": "127.0.0.1"}
    with subprocess.Popen(
        command, cwd=serving.elsewhere, env=env, stderr=subprocess.PIPE, text=True
    ) as served:
        try:
            assert served.stderr is not None
            matches = (re.search(r"(http://\S+)/ ", line) for line in served.stderr)
            url = next(match[1] for match in matches if match)
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"{url}/api/leaderboard", timeout=60) as response:
                assert SERIES in response.read().decode()
        finally:
            served.terminate()
            served.communicate()
    assert served.returncode == 130
