"""MLflow: curves, parameters and a model that forecasts; in its own store where the package is installed."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from float32_steps import assert_same_frames

from v8.annexes.tracking import MlflowRuns, check_mlflow
from v8.annexes.tracking.mlflow_loader import _load_pyfunc
from v8.base.errors import ProfileError
from v8.base.storage import digest_file, write_json
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import read_metadata
from v8.runs.events import TrackedRun, TrackerError

SERIES = "BTCUSDT-1h"
needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")


@dataclass
class Number:
    """What MLflow calls a metric or a parameter."""

    key: str
    value: Any
    timestamp: int = 0
    step: int = 0


class RefusalError(Exception):
    """The stand-in of MLflow's error."""


class Client:
    """A stand-in of MLflow's client: keeps what it is handed."""

    def __init__(self, tracking_uri: str) -> None:
        if tracking_uri.startswith("zz:"):
            raise RefusalError(f"\n unsupported URI '{tracking_uri}'\n")
        if tracking_uri.startswith("postgresql:"):
            raise ModuleNotFoundError("No module named 'psycopg'")
        self.uri = tracking_uri
        self.telemetry_is_off = os.environ["MLFLOW_DISABLE_TELEMETRY"]
        self.metrics: list[Number] = []
        self.params: dict[str, str] = {}
        self.ended: list[str] = []
        self.files: list[str] = []

    def get_experiment_by_name(self, name: str) -> Any:
        return None

    def create_experiment(self, name: str) -> str:
        return name

    def create_run(self, experiment: str, run_name: str) -> Any:
        if run_name == "FULLUSDT-1h":
            raise RefusalError("the store is full\nand a second line")
        return SimpleNamespace(info=SimpleNamespace(run_id=f"{experiment}/{run_name}"))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self.metrics += metrics
        self.params |= {one.key: one.value for one in params}

    def log_artifacts(self, run_id: str, folder: str, name: str) -> None:
        self.files = sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*.*"))

    def set_terminated(self, run_id: str, status: str) -> None:
        self.ended.append(status)


def save_model(path: Path, *, data_path: str, code_paths: list[str], **options: Any) -> None:
    """Stand in for `mlflow.pyfunc.save_model`."""
    path.mkdir()
    for file in [*Path(data_path).iterdir(), *map(Path, code_paths)]:
        (path / file.name).write_bytes(file.read_bytes())
    (path / "requirements.txt").write_text("\n".join(options["pip_requirements"]))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the tracker over a stand-in of the package."""
    contents: dict[str, dict[str, Any]] = {
        "mlflow": {},
        "mlflow.entities": {"Metric": Number, "Param": Number},
        "mlflow.exceptions": {"MlflowException": RefusalError},
        "mlflow.tracking": {"MlflowClient": Client},
        "mlflow.pyfunc": {"save_model": save_model},
    }
    for name, content in contents.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for variable in ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_ALLOW_FILE_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    return MlflowRuns


@pytest.fixture
def run(frontier_run: Path, tmp_path: Path) -> TrackedRun:
    """Copy a run of frontier."""
    path = Path(shutil.copytree(frontier_run, tmp_path / "frontier"))
    return TrackedRun(path, {"name": "frontier", "training": {"epochs": 3}}, "live")


def hours() -> pd.DataFrame:
    """Return 400 hourly candles."""
    return open_source("demo").candles(Series.parse(SERIES), 400).to_frame()


@pytest.mark.tf
def test_curves_parameters_and_the_model_are_handed_over(stand_in: Any, run: TrackedRun) -> None:
    tracker = stand_in(run)
    client = tracker._client
    assert client.uri == (run.path.absolute() / "mlflow").as_uri()
    assert client.telemetry_is_off == "true"
    assert "MLFLOW_DISABLE_TELEMETRY" not in os.environ  # a program that imports v8 keeps its own settings
    tracker.log(SERIES, 1, {"loss/train": 0.5})
    tracker.log(SERIES, 2, {"loss/train": 0.25})
    tracker.finish(SERIES)
    tracker.finish(SERIES)  # there is nothing open any more
    assert [(one.key, one.value, one.step) for one in client.metrics] == [
        ("loss/train", 0.5, 1),
        ("loss/train", 0.25, 2),
    ]
    expected = {"series": SERIES, "source": "live", "name": "frontier", "training.epochs": "3"}
    assert client.params == expected
    assert client.files == [
        *("digests.json", "features.py", "metadata.json", "mlflow_loader.py", "model.keras"),
        "requirements.txt",
    ]
    assert client.ended == ["FINISHED"]


@pytest.mark.tf
def test_a_series_that_failed_has_no_model_and_a_refusal_is_one_line(stand_in: Any, run: TrackedRun) -> None:
    tracker = stand_in(run)
    tracker.log("ETHUSDT-1h", 1, {"loss/train": 0.5})
    tracker.finish("ETHUSDT-1h")
    assert (tracker._client.ended, tracker._client.files) == (["FAILED"], [])
    with pytest.raises(TrackerError, match=r"^the store is full$"):
        tracker.log("FULLUSDT-1h", 1, {"loss/train": 0.5})


@pytest.mark.parametrize(
    ("uri", "got"),
    [
        ("zz://me:s3cret@x", "unsupported URI 'zz://***@x'"),
        ("postgresql://me:s3cret@x/y", "No module named 'psycopg'"),
    ],
)
def test_an_address_that_is_no_store_is_refused_before_anything_starts(
    stand_in: Any, monkeypatch: pytest.MonkeyPatch, uri: str, got: str
) -> None:
    check_mlflow()  # without an address everything stays in the run folder
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(ProfileError) as caught:
        check_mlflow()
    assert (caught.value.where, caught.value.got) == ("MLFLOW_TRACKING_URI", got)


def with_digests(folder: Path) -> Path:
    """Write the digests of all files, as `MlflowRuns` does."""
    write_json(folder / "digests.json", {file.name: digest_file(file) for file in folder.iterdir()})
    return folder


def another(file: Path) -> None:
    file.write_text("raise SystemExit('this was run')")


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda folder: another(folder / "features.py"), "other content of features.py"),
        (lambda folder: another(folder / "metadata.json"), "other content of metadata.json"),
        (lambda folder: another(folder / "keras.py"), "other content of keras.py"),
        (lambda folder: (folder / "features.py").unlink(), "No such file"),
        (lambda folder: (folder / "digests.json").unlink(), "No such file"),
        (lambda folder: (folder / "digests.json").write_text("[" * 100_000), "recursion"),
        (lambda folder: (folder / "digests.json").write_text("[]"), "items"),
        (lambda folder: (folder / "digests.json").write_text("{}"), "other content of"),
    ],
)
def test_the_loader_runs_no_code_but_what_was_logged(
    tmp_path: Path, change: Callable[[Path], Any], got: str
) -> None:
    for name in ("features.py", "metadata.json", "model.keras"):
        (tmp_path / name).write_text("1")
    change(with_digests(tmp_path))
    with pytest.raises(
        ValueError, match=rf"^{re.escape(str(tmp_path))}: must hold the files .*; got .*{got}"
    ):
        _load_pyfunc(str(tmp_path))


@pytest.mark.nightly
@pytest.mark.tf
def test_the_loader_forecasts_what_v8_forecasts(run: TrackedRun, trained_run: Any) -> None:
    from v8.forecaster.standalone import features_file

    folder = run.path / SERIES
    (folder / "features.py").write_text(features_file(read_metadata(folder)))
    with_digests(folder)
    forecast = _load_pyfunc(str(folder)).predict(hours())
    ours = Forecaster.load(folder).predict(hours())
    assert_same_frames(forecast, ours)
    # A model with features of the package ta has no features.py: v8 itself loads it.
    frame = trained_run.candles.to_frame()
    of_package = _load_pyfunc(str(with_digests(Path(shutil.copytree(trained_run.folder, run.path / "ta")))))
    of_package = of_package.predict(frame)
    pd.testing.assert_frame_equal(of_package, Forecaster.load(trained_run.folder).predict(frame))


@needs_mlflow
@pytest.mark.tf
@pytest.mark.filterwarnings("ignore")
def test_in_its_own_store_the_model_loads_and_forecasts(run: TrackedRun) -> None:
    from mlflow import pyfunc, set_tracking_uri

    tracker = MlflowRuns(run)
    tracker.log(SERIES, 1, {"loss/train": 0.5, "test/ohlc/skill": 0.01})
    run_id = tracker._open[SERIES]
    tracker.finish(SERIES)
    stored = tracker._client.get_run(run_id)
    assert (stored.data.metrics, stored.info.status) == (
        {"loss/train": 0.5, "test/ohlc/skill": 0.01},
        "FINISHED",
    )
    assert stored.data.params["training.epochs"] == "3"
    assert set(stored.data.tags) <= {"mlflow.runName"}  # no user, no code, no machine
    set_tracking_uri(tracker._uri)
    forecast = pyfunc.load_model(f"runs:/{run_id}/model").predict(hours())
    ours = Forecaster.load(run.path / SERIES).predict(hours())
    assert_same_frames(forecast, ours)
