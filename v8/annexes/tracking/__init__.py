"""Trackers of experiments: event files for TensorBoard, runs at Weights & Biases and in MLflow.

Each is a `Tracker` (`v8.runs.events`) that imports its package, an extra, when it is made.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

from v8.annexes.tracking.mlflow_loader import DIGESTS_FILE
from v8.base.errors import ProfileError, message_of
from v8.base.process import with_variables
from v8.base.storage import digest_file, write_json
from v8.forecaster.metadata import METADATA_FILE, MODEL_FILE, read_metadata
from v8.forecaster.standalone import FEATURES_FILE, features_file
from v8.runs.events import TrackedRun, TrackerError
from v8.runs.run_folder import flat_keys

TENSORBOARD_FOLDER: Final = "tensorboard"
WANDB_PROJECT: Final = "v8"  # unless `WANDB_PROJECT` names another
MLFLOW_FOLDER: Final = "mlflow"
MODEL_NAME: Final = "model"  # of the logged model, in the artifacts of a run
URI_VARIABLE: Final = "MLFLOW_TRACKING_URI"
_FILE_VERSION: Final = "brain.Event:2"  # first record of an event file; TensorBoard refuses others
_TRUE_VARIABLES: Final = ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_ALLOW_FILE_STORE")
_LOADER: Final = "mlflow_loader.py"
_MOST_LETTERS: Final = 500  # of a parameter; older servers refuse longer ones

Result = TypeVar("Result")


class EventFiles:
    """Curves for TensorBoard: writes an event file per series and call into the folder `tensorboard`.

        tensorboard --logdir runs/aligned/tensorboard

    Events are written by the `tensorboard` package, record by record: its own file writer would start
    TensorFlow only to open a file, and this process may have none.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._folder = run.path / TENSORBOARD_FOLDER
        self._writers: dict[str, Any] = {}
        self._event: Any = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary: Any = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._record_writer: Any = import_module("tensorboard.summary.writer.record_writer").RecordWriter

    def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
        """Write numbers of a series; they can be read immediately."""
        summary_values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        summary = self._summary(value=summary_values)
        if series not in self._writers:
            self._writers[series] = self._open(series)
        event = self._event(wall_time=time.time(), step=step, summary=summary)
        self._writers[series].write(event.SerializeToString())
        self._writers[series].flush()

    def finish(self, series: str) -> None:
        """Close the file of a series."""
        writer = self._writers.pop(series, None)
        if writer:
            writer.close()

    def _open(self, series: str) -> Any:
        folder = self._folder / series
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard finds files by this name; a call that continues the run writes a further one.
        now_s = time.time()
        stream = (folder / f"events.out.tfevents.{now_s:.6f}.{os.getpid()}").open("xb")
        writer = self._record_writer(stream)
        header = self._event(wall_time=now_s, file_version=_FILE_VERSION)
        writer.write(header.SerializeToString())
        return writer


class WandbRuns:
    """Curves for Weights & Biases: keeps one of its runs open per series at work, grouped by run folder.

    `WANDB_MODE=offline` keeps everything in the folder `wandb` of the run, to be sent later with `wandb
    sync`. Only the curves, the profile, the names of series, source and run folder, and the versions of
    Python and wandb are given away: no code, no console output, no list of packages, no name or load of the
    machine.

    Args:
        run: What is tracked.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._open: dict[str, Any] = {}
        self._wandb = import_module("wandb")

    def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
        """Hand numbers of a series to its run."""
        if series not in self._open:
            self._open[series] = self._guarded(lambda: self._start(series))
        # Results come with the step of the last epoch: wandb adds them to that row.
        self._guarded(lambda: self._open[series].log(dict(values), step=step))

    def finish(self, series: str) -> None:
        """Finish the run of a series."""
        started = self._open.pop(series, None)
        if started:
            self._guarded(started.finish)

    def _start(self, series: str) -> Any:
        return self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", WANDB_PROJECT),
            dir=self._run.path,
            group=self._run.path.name,
            name=series,
            config={"series": series, "source": self._run.source, "profile": dict(self._run.profile)},
            reinit="create_new",
            settings=self._wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_save_requirements=False,
            ),
        )

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except self._wandb.Error as error:
            raise TrackerError(str(error)) from error


def check_wandb() -> None:
    """Refuse what would ask for a login in the middle of a run.

    Raises:
        ProfileError: If wandb is online and nobody is logged in.
    """
    is_online = os.environ.get("WANDB_MODE", "online") not in {"offline", "disabled", "dryrun"}
    if is_online and not import_module("wandb").login(prompt=False):
        raise ProfileError(
            where="param:track wandb",
            rule="needs a login, or WANDB_MODE=offline to keep everything on this machine",
            got="neither",
            fix="Run: wandb login",
        )


class MlflowRuns:
    """Curves and models for MLflow: one of its runs per series, in an experiment named as the run folder.

        mlflow ui --backend-store-uri runs/aligned/mlflow

    `MLFLOW_TRACKING_URI` names a server or another store; without it everything stays in the folder `mlflow`
    of the run. The model of a finished series is logged as `model` in the flavour `python_function`:
    `mlflow.pyfunc.load_model("runs:/RUN_ID/model").predict(candles)` returns the forecast in price units,
    from a frame of closed candles. It loads without v8, by Keras and `features.py`, where v8 can write that
    file.

    Nothing is given away but the curves, the profile, the names of series, source and run folder, and the
    model: MLflow's own telemetry is off, and its client adds no user, code or machine.

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
                name = self._run.path.name
                experiment = self._client.get_experiment_by_name(name)
                self._experiment = (
                    experiment.experiment_id if experiment else self._client.create_experiment(name)
                )
            run = self._client.create_run(self._experiment, run_name=series)
            facts = {"series": series, "source": self._run.source, **flat_keys(self._run.profile)}
            parameters = [
                self._entities.Param(name, str(value)[:_MOST_LETTERS]) for name, value in facts.items()
            ]
            self._client.log_batch(run.info.run_id, params=parameters)
            self._open[series] = run.info.run_id
        return self._open[series]

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


def check_mlflow() -> None:
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
        raise ProfileError(
            where=URI_VARIABLE,
            rule="is the address of a server, a folder or a database that MLflow can open",
            got=_first_line(error),
            fix=f"Correct it, or unset {URI_VARIABLE} to keep everything in the run folder",
        ) from None


def _settings() -> AbstractContextManager[None]:
    """Give a block what MLflow reads: when it is imported, and the second where a folder is the store."""
    return with_variables({name: os.environ.get(name, "true") for name in _TRUE_VARIABLES})


def _first_line(error: Exception) -> str:
    return next(filter(None, (line.strip() for line in message_of(error).splitlines())), type(error).__name__)
