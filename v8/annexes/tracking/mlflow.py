"""Curves and models for MLflow: one of its runs per series, in an experiment named as the run folder.

    mlflow ui --backend-store-uri runs/aligned/mlflow

`MLFLOW_TRACKING_URI` names a server or another store; without it everything stays in the folder `mlflow` of
the run. The model of a finished series is logged as `model` in the flavour `python_function`:
`mlflow.pyfunc.load_model("runs:/RUN_ID/model").predict(candles)` returns the forecast in price units, from a
frame of closed candles. It loads without v8, by Keras and `features.py`, where v8 can write that file.

Nothing is given away but the curves, the profile, the names of series, source and run folder, and the model:
MLflow's own telemetry is off, and its client adds no user, code or machine.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Final, TypeVar

from v8.annexes.tracking.mlflow_loader import DIGESTS_FILE
from v8.base.errors import ProfileError, message_of
from v8.base.process import with_variables
from v8.base.storage import digest_file, write_json
from v8.forecaster.metadata import METADATA_FILE, MODEL_FILE, read_metadata
from v8.forecaster.standalone import FEATURES_FILE, features_file
from v8.runs.run_folder import flat_keys
from v8.runs.trackers import TrackedRun, TrackerError

MLFLOW_FOLDER: Final = "mlflow"
MODEL_NAME: Final = "model"  # of the logged model, in the artifacts of a run
URI_VARIABLE: Final = "MLFLOW_TRACKING_URI"
_TRUE_VARIABLES: Final = ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_ALLOW_FILE_STORE")
_LOADER: Final = "mlflow_loader.py"
_MOST_LETTERS: Final = 500  # of a parameter; older servers refuse longer ones

Result = TypeVar("Result")


class MlflowRuns:
    """Keeps one open run of MLflow per series at work.

    Args:
        run: What is tracked.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._open: dict[str, str] = {}  # identifiers of MLflow's runs by series
        self._experiment = ""  # identifier; empty before the first run
        self._uri = os.environ.get(URI_VARIABLE) or (run.path.absolute() / MLFLOW_FOLDER).as_uri()
        with _settings():
            self._entities = import_module("mlflow.entities")
            self._error: type[Exception] = import_module("mlflow.exceptions").MlflowException
            client_of = import_module("mlflow.tracking").MlflowClient
        self._client = self._guarded(lambda: client_of(tracking_uri=self._uri))

    def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
        """Hand numbers of a series to its run."""
        now_ms = int(time.time() * 1_000)
        metrics = [self._entities.Metric(name, value, now_ms, step) for name, value in values.items()]
        self._guarded(lambda: self._client.log_batch(self._run_of(series), metrics=metrics))

    def finish(self, series: str) -> None:
        """Log the model of a series that is finished, and end its run."""
        run_id = self._open.pop(series, None)
        if run_id is None:
            return
        folder = self._run.path / series
        is_finished = (folder / METADATA_FILE).is_file()
        if is_finished:
            self._guarded(lambda: self._log_model(run_id, folder))
        status = "FINISHED" if is_finished else "FAILED"
        self._guarded(lambda: self._client.set_terminated(run_id, status=status))

    def _run_of(self, series: str) -> str:
        """Return the run of a series; it is started at the first call."""
        if series not in self._open:
            if not self._experiment:
                self._experiment = self._experiment_id(self._run.path.name)
            run = self._client.create_run(self._experiment, run_name=series)
            facts = {"series": series, "source": self._run.source, **flat_keys(self._run.profile)}
            parameters = [
                self._entities.Param(name, str(value)[:_MOST_LETTERS]) for name, value in facts.items()
            ]
            self._client.log_batch(run.info.run_id, params=parameters)
            self._open[series] = run.info.run_id
        return self._open[series]

    def _experiment_id(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        return str(experiment.experiment_id if experiment else self._client.create_experiment(name))

    def _log_model(self, run_id: str, folder: Path) -> None:
        pyfunc = import_module("mlflow.pyfunc")
        metadata = read_metadata(folder)
        with tempfile.TemporaryDirectory() as place:
            data = Path(place, "data")
            data.mkdir()
            for name in (MODEL_FILE, METADATA_FILE):
                shutil.copyfile(folder / name, data / name)
            code = features_file(metadata)
            if code:
                (data / FEATURES_FILE).write_text(code, "utf-8")
            write_json(data / DIGESTS_FILE, {file.name: digest_file(file) for file in data.iterdir()})
            loader = Path(__file__).with_name(_LOADER)
            requirements = ["keras>=3.10", "tensorflow>=2.18", "numpy", "pandas"]
            pyfunc.save_model(
                Path(place, MODEL_NAME),
                loader_module=loader.stem,
                data_path=str(data),
                code_paths=[str(loader)],
                pip_requirements=requirements if code else [*requirements, "v8-forecasters"],
            )
            self._client.log_artifacts(run_id, str(Path(place, MODEL_NAME)), MODEL_NAME)

    def _guarded(self, work: Callable[[], Result]) -> Result:
        try:
            with _settings():
                return work()
        except self._error as error:
            raise TrackerError(_first_line(error)) from error


def check() -> None:
    """Refuse, before anything starts, the address of a store that MLflow cannot open.

    Raises:
        ProfileError: If it cannot. Whether a server answers is not asked.
    """
    uri = os.environ.get(URI_VARIABLE)
    if not uri:
        return
    with _settings():
        mlflow_error = import_module("mlflow.exceptions").MlflowException
    try:
        with _settings():
            import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)
    except (mlflow_error, OSError, ValueError, ImportError) as error:  # the last: no driver of a database
        rule = "is the address of a server, a folder or a database that MLflow can open"
        fix = f"Correct it, or unset {URI_VARIABLE} to keep everything in the run folder"
        raise ProfileError(where=URI_VARIABLE, rule=rule, got=_first_line(error), fix=fix) from None


def _settings() -> AbstractContextManager[None]:
    """Give a block what MLflow reads: when it is imported, and the second where a folder is the store."""
    return with_variables({name: os.environ.get(name, "true") for name in _TRUE_VARIABLES})


def _first_line(error: Exception) -> str:
    return next(filter(None, (line.strip() for line in message_of(error).splitlines())), type(error).__name__)
