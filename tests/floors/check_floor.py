"""What must work in an environment of other versions; `scripts/test --floor` makes it and runs this there.

V8_FLOOR names the file of constraints that the environment was made with, V8_MODELS the folder that
`save_models.py` filled in the environment of the newest versions. What v8 needs is installed, and pytest; of
what a hosted notebook brings besides, `transformers` and `pip`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions, requires
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
REPO = "someone/floor"
SERIES, *OTHERS = ("BTCUSDT-15m", "ETHUSDT-15m", "SOLUSDT-1h")
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
"""The other tests set it; a user does not."""

TASKS = ["bands", "ohlc", "range", "volatility"]
PROFILES = ["aligned", "frontier", "v4_transformer", "v4_gru", "v4_lstm", "v3"]
PLAIN_KERAS = """
import sys, pathlib, keras, numpy as np
for folder in map(pathlib.Path, sys.argv[2:]):
    model = keras.saving.load_model(folder / "model.keras")
    np.savez(pathlib.Path(sys.argv[1], folder.parent.name), **model(np.load(folder / "windows.npy")))
assert "v8" not in sys.modules
"""


@pytest.fixture(scope="session")
def hub() -> Iterator[Any]:
    sys.path.append(str(REPOSITORY / "tests" / "parts"))
    spec = importlib.util.spec_from_file_location("loopback", REPOSITORY / "tests/publish/hub/loopback.py")
    loopback = importlib.util.module_from_spec(spec)
    sys.modules["loopback"] = loopback
    spec.loader.exec_module(loopback)
    with loopback.LoopbackHub() as server:
        server.token = loopback.WRITE_TOKEN
        yield server
        assert not server.mistakes, server.mistakes[0]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with candles of the user's own, as a file."""
    from v8.data.market.series import Series
    from v8.data.market.sources.demo import DemoSource

    folder = tmp_path_factory.mktemp("floor")
    (folder / "candles").mkdir()
    for name in (SERIES, *OTHERS):
        frame = DemoSource().candles(Series.parse(name), 1_500).to_frame()
        frame.to_csv(folder / "candles" / f"{name}.csv")
    return folder


def call(place: Path, hub: Any, *words: str) -> str:
    """Run a command of v8, which keeps TensorFlow's own lines off the terminal."""
    said, errors = python(place, hub, "-m", "v8", *words)
    assert not re.search(r"\.cc:\d+\]", errors), errors
    return said


def python(place: Path, hub: Any, *words: str) -> tuple[str, str]:
    variables = {
        "V8_HOME": str(place / "home"),
        "HF_HOME": str(place / "hf"),
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": hub.token,
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
    }
    process = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        env={name: value for name, value in os.environ.items() if name != LEVEL} | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "Traceback" not in process.stderr
    return process.stdout, process.stderr


def test_the_environment_has_the_versions_that_are_to_be_checked() -> None:
    lines = Path(os.environ["V8_FLOOR"]).read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    allowed = {canonicalize_name(pin.name): pin.specifier for pin in pins}
    found = {canonicalize_name(one.name): one.version for one in distributions()}
    needed = [Requirement(line) for line in requires("v8-forecasters") or () if "extra ==" not in line]
    # No hosted notebook brings `ta`.
    assert {canonicalize_name(one.name) for one in needed} - allowed.keys() <= {"ta"}
    both = sorted(allowed.keys() & found.keys())
    others = [f"{name}=={found[name]}" for name in both if not allowed[name].contains(found[name])]
    assert not others


def test_transformers_can_still_be_imported() -> None:
    if "transformers" not in {one.name for one in distributions()}:
        pytest.skip("a notebook's package, of the floor hosted only")
    importlib.import_module("transformers")


def saved(profile: str) -> Path:
    return Path(os.environ["V8_MODELS"], "runs", f"{profile}-smoke", SERIES)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Let plain Keras here say what all these models forecast, in one process."""
    folder = tmp_path_factory.mktemp("plain")
    words = [str(folder), *map(str, map(saved, PROFILES))]
    subprocess.run([sys.executable, "-I", "-c", PLAIN_KERAS, *words], check=True, cwd=folder)
    return folder


@pytest.mark.parametrize("profile", PROFILES)
def test_a_model_of_the_newest_versions_gives_the_same_prices(profile: str, plain: Path) -> None:
    import v8
    from v8.base.arrays import MAX_STEPS, steps_apart

    folder = saved(profile)
    ours = v8.load(folder).forecast(np.load(folder / "windows.npy"))
    with np.load(folder / "prices.npz") as newest, np.load(plain / f"{profile}-smoke.npz") as plain_said:
        assert set(ours) == {name for name in newest if not name.endswith("_quantiles")}
        for forecasts, names in ((plain_said, newest), (ours, ours)):
            for task in names:
                magnitude = 1.0 if task.startswith("volatility") else np.abs(newest[task])
                assert steps_apart(forecasts[task], newest[task], magnitude) <= MAX_STEPS


def test_train_publish_pull_and_predict(place: Path, hub: Any) -> None:
    candles = ["--source", "files", "--data-dir", "candles"]
    budget = ["--smoke", "--profile", "frontier", "--precision", "float32", "--workers", "1"]
    assert "3 series trained now" in call(place, hub, "run", *budget, *candles)
    call(place, hub, "publish", "runs/frontier-smoke", "--repo", REPO)
    card = hub.files(REPO)["README.md"].decode()
    loader = re.search(r"```python\n(import sys\n.*?)```", card, re.DOTALL)
    assert loader, card
    for name in (SERIES, *OTHERS):
        shutil.copy(place / "candles" / f"{name}.csv", place)
    printed, _ = python(place, hub, "-c", f"{loader[1]}\nprint(sorted(outputs))")
    assert printed.endswith(f"{sorted([*TASKS, *(f'{task}_quantiles' for task in TASKS)])}\n")
    assert "downloaded now" in call(place, hub, "pull", "--repo", REPO)
    chosen = [word for name in (SERIES, *OTHERS) for word in ("--series", name)]
    words = [*candles, *chosen, "--allow-old", "--format", "csv"]
    predicted = call(place, hub, "predict", "runs/frontier-smoke", *words)
    assert len(predicted.splitlines()) == 31  # ten bars of each below their names
    assert call(place, hub, "predict", "--repo", REPO, *words) == predicted
