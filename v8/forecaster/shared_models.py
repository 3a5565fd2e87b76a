"""Models in memory: what computes their forecasts, what they share, and whether two files are one model.

Forecasts are computed by onnxruntime with `model.onnx`, or by Keras with `model.keras`. `auto` takes ONNX
where a model has the file and the packages are installed. Comparisons of models, such as back-tests and
updates, compute with Keras, as the evaluation of a run does.

Models share a graph, because loading and tracing one takes over a second, reading weights hardly any time.

The published models of one profile are the same network with other weights, so the descriptions in their
files are equal. The first file of a description is loaded normally. Of every further file only the weights
are read, after the same checks. Before a forecast the graph gets the weights of the requested series. The
same operations on the same numbers give the same bits as a model that was loaded alone.

For every file Keras would search which array belongs to which variable, which takes most of the time of
loading a small model. Files of one description have the same assignment, so it is found once: every variable
is filled with its own number, and Keras saves the weights.

Both files of an artefact from elsewhere belong to one model, but nothing in them proves it: somebody may
publish the ONNX file of another model. So where both can be computed, both forecast the same windows before
either is used (`ModelComparison`).

Shape legend: N windows, B batch, T lookback, F features.
"""

import io
import threading
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from v8.base.arrays import MAX_STEPS, FloatArray, steps_apart
from v8.base.errors import ArtifactError, ProfileError
from v8.base.registry import require_package
from v8.base.storage import digest_bytes
from v8.data.scaling import SILENT_SCALE, ColumnScaling, Scaling, Transform
from v8.forecaster import model_file
from v8.forecaster.metadata import MODEL_FILE, ONNX_FILE, Metadata
from v8.forecaster.model_file import keras_errors_translated
from v8.model.baselines.ranges import PATH_LAYERS
from v8.model.networks.published import (
    CONFIG_MEMBER,
    WEIGHTS_MEMBER,
    data_sets_of,
    forecast_windows,
    forecasts_apart,
    list_data_sets,
)
from v8.profile.columns import CLOSE, split_origin, with_origin

AUTO: Final = "auto"
ONNX: Final = "onnx"
KERAS: Final = "keras"
RUNTIMES: Final = (AUTO, ONNX, KERAS)
PACKAGES: Final = ("onnx", "onnxruntime")
"""Packages of the extra `onnx`."""

Loaded = TypeVar("Loaded")

ArrayNames: TypeAlias = tuple[str | None, ...]
"""Name of the array in the weights file for each variable of a model; None for seeds, which are not saved."""


class SharedModels:
    """The models in memory. Models of one description share a graph, and each is loaded once.

    Models of ONNX files share theirs, too, see `v8.forecaster.onnx_file`.

    Args:
        runtime: What computes, one of `RUNTIMES`.

    Raises:
        ProfileError: If there is no such runtime, or its packages are not installed.
    """

    def __init__(self, runtime: str = KERAS) -> None:
        require_runtime(runtime)
        self._runtime = runtime
        self._serving: dict[str, tuple[str, Any]] = {}
        self._graphs: dict[str, _Graph] = {}
        self._onnx_graphs: dict[str, Any] = {}
        self._loading = threading.Lock()

    def serving(self, series: str, version: str, load: Callable[[], Loaded]) -> Loaded:
        """Return the result of `load` for a series; it is called again when the version has changed."""
        if series not in self._serving or self._serving[series][0] != version:
            self._serving[series] = version, load()
        loaded: Loaded = self._serving[series][1]
        return loaded

    def open(self, folder: Path, metadata: Metadata) -> tuple[Any, Path]:
        """Load the model of an artefact with the runtime; return it and its file, which are checked.

        Raises:
            ArtifactError: If a file is missing, changed, or anything else than v8 writes; or the runtime has
                no file.
        """
        if runtime_for(self._runtime, folder, metadata) == ONNX:
            from v8.forecaster.onnx_file import load_onnx_model  # noqa: PLC0415 - needs the extra `onnx`

            file = metadata.verified_onnx(folder)
            with self._loading:
                model = load_onnx_model(file, metadata.series, metadata.shapes, self._onnx_graphs)
            return model, file
        file = metadata.verified_model(folder)
        model_file.check_keras_file(file)
        return self.load(file), file

    def load(self, file: Path) -> "SharedModel":
        """Load a model of a checked file, in safe mode, as `load_keras_model` does.

        Raises:
            ArtifactError: If its layers do not match each other or the weights, or would need too much
                memory.
        """
        with self._loading:
            description = digest_bytes(model_file.read_member(file, CONFIG_MEMBER))
            graph = self._graphs.get(description)
            weights = graph.read(file) if graph is not None else None
            if graph is None or weights is None:  # a new or unexpected file: Keras loads or refuses it
                graph = _Graph(model_file.load_keras_model(file))
                self._graphs.setdefault(description, graph)
                weights = [variable.numpy().copy() for variable in graph.model.variables]
            return SharedModel(graph, weights)


class SharedModel:
    """One model in a shared graph, with the interface of a Keras model as far as forecasts need it."""

    runtime: Final = KERAS

    def __init__(self, graph: "_Graph", weights: list[NDArray[Any]], layer: str | None = None) -> None:
        self._graph = graph
        self._weights = weights
        self._layer = layer
        self.inputs = graph.model.inputs
        self.output = graph.model.output
        """Symbolic outputs by task; `inputs` are the symbolic inputs."""

    def up_to(self, layers: Collection[str]) -> "SharedModel | None":
        """Return the model up to that one of some layers that it has; None if it has none of them."""
        for layer in self._graph.model.layers:
            if layer.name in layers:
                return SharedModel(self._graph, self._weights, layer.name)
        return None

    def trained(self) -> list[NDArray[np.float32]]:
        """Return the trainable weights of its network, in the network's order."""
        variables = self._graph.model.variables
        return [value for variable, value in zip(variables, self._weights, strict=True) if variable.trainable]

    def predict_on_batch(self, batch_BTF: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Forecast one batch of raw windows, shape (B, T, F); threads wait here for each other."""
        with self._graph.lock:
            self._take_graph()
            return self._graph.program(self._layer).predict_on_batch(batch_BTF)

    def keras_model(self) -> Any:
        """Return the Keras model of the graph with these weights; another model's forecast replaces them."""
        with self._graph.lock:
            self._take_graph()
            return self._graph.model

    def _take_graph(self) -> None:
        """Load the weights into the graph if others are there."""
        graph = self._graph
        if graph.current_weights is self._weights:
            return
        graph.current_weights = None  # stays None if an assignment fails
        for variable, value in zip(graph.model.variables, self._weights, strict=True):
            variable.assign(value)
        graph.current_weights = self._weights


class _Graph:
    """A Keras model, and the weights that are in it at present."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.lock = threading.Lock()
        self.current_weights: list[NDArray[Any]] | None = None
        self._programs: dict[str | None, Any] = {None: model}  # by the layer that they end at
        self._array_names: ArrayNames | None = None

    def program(self, layer: str | None) -> Any:
        """Return the model, or the part of it that ends at a layer."""
        if layer not in self._programs:
            output = self.model.get_layer(layer).output
            self._programs[layer] = type(self.model)(self.model.inputs, {layer: output})
        return self._programs[layer]

    def read(self, file: Path) -> list[NDArray[Any]] | None:
        """Read the weights of a file of the same description; None if it has other arrays than expected."""
        model_file.require_enough_weights(file, self.model)
        rule = "must hold layers and weights that fit together"
        with self.lock, model_file.keras_errors_translated(file, rule):
            if self._array_names is None:
                names = dict(zip(map(id, self.model.weights), data_sets_of(self.model), strict=True))
                self._array_names = tuple(names.get(id(variable)) for variable in self.model.variables)
            return _read_weights(self.model, file, self._array_names)


def _read_weights(model: Any, file: Path, array_names: ArrayNames) -> list[NDArray[Any]] | None:
    """Read an array per variable from a checked file of the same description.

    Returns:
        The arrays; None if the file has other arrays, or arrays of other shapes.
    """
    import h5py  # noqa: PLC0415 - forecasts with ONNX do not need it

    values = []
    with h5py.File(io.BytesIO(model_file.read_member(file, WEIGHTS_MEMBER)), "r") as weights:
        if {*list_data_sets(weights)} != {*array_names} - {None}:
            return None
        for variable, name in zip(model.variables, array_names, strict=True):
            if name is None:
                values.append(variable.numpy())
            else:
                values.append(np.asarray(weights[name][()], variable.dtype))
    for variable, value in zip(model.variables, values, strict=True):
        if value.shape != tuple(variable.shape):
            return None
    return values


def has_onnx_packages() -> bool:
    """Return whether the packages of the extra `onnx` are installed; none is imported."""
    return all(find_spec(package) for package in PACKAGES)


def require_onnx_packages(where: str) -> None:
    """Raise a `ProfileError` if a package of the extra `onnx` is not installed."""
    for package in PACKAGES:
        require_package(package, where=where, rule="needs the extra `onnx` of v8")


def require_runtime(name: str) -> None:
    """Raise a `ProfileError` if there is no such runtime, or its packages are not installed."""
    if name not in RUNTIMES:
        raise ProfileError(
            where="param:runtime",
            rule=f"is one of {', '.join(RUNTIMES)}",
            got=repr(name),
            fix="Choose one of these",
        )
    if name == ONNX:
        require_onnx_packages("param:runtime onnx")


def runtime_for(requested: str, folder: Path, metadata: Metadata) -> str:
    """Return which of `ONNX` and `KERAS` computes the forecasts of a model.

    Args:
        requested: One of `RUNTIMES`.
        folder: Folder of the model.
        metadata: Its metadata.

    Raises:
        ArtifactError: If the model has no ONNX file and ONNX is requested, or Keras is not installed.
    """
    has_file = metadata.onnx_sha256 is not None and (folder / ONNX_FILE).is_file()
    if requested == ONNX or (requested == AUTO and has_file and has_onnx_packages()):
        if has_file:
            return ONNX
        fix = "Make it with `v8 export RUN --models onnx`, or take param:runtime keras"
        raise _no_runtime(folder, f"must hold {ONNX_FILE} for param:runtime onnx", "no such file", fix)
    if find_spec("keras") is None:
        rule = "needs what its forecasts are computed with"
        if requested == KERAS:
            raise _no_runtime(folder, rule, "no Keras", "Install Keras and TensorFlow")
        if has_file:
            packages = " and ".join(PACKAGES)
            raise _no_runtime(folder, rule, f"neither Keras nor {packages}", f"Install {packages}")
        fix = "Install Keras and TensorFlow, or make the file where they are: `v8 export RUN --models onnx`"
        raise _no_runtime(folder, rule, f"no Keras, and a model without {ONNX_FILE}", fix)
    return KERAS


def _no_runtime(folder: Path, rule: str, got: str, fix: str) -> ArtifactError:
    return ArtifactError(where=str(folder), rule=rule, got=got, fix=fix)


TRIAL_WINDOWS: Final = 16  # that both files of a model forecast
TRIAL_SEED: Final = 1999  # of their random numbers


def require_own_onnx(folder: Path, metadata: Metadata) -> None:
    """Check the ONNX file of an artefact, if it has one, without loading it.

    Where the packages are not installed, nothing here can load it, and it is not checked.

    Raises:
        ArtifactError: If it is another one than its metadata record, or holds anything but arithmetic.
    """
    if metadata.onnx_sha256 is not None and has_onnx_packages():
        from v8.forecaster.onnx_file import check_onnx_file  # noqa: PLC0415 - needs the extra `onnx`

        check_onnx_file(metadata.verified_onnx(folder), metadata.series, metadata.shapes)


def can_compare() -> bool:
    """Return whether both kinds of files can be computed here."""
    return has_onnx_packages() and find_spec("keras") is not None


class ModelComparison:
    """Compares the two files of artefacts; those of one profile share their graphs."""

    def __init__(self) -> None:
        self._models = {runtime: SharedModels(runtime) for runtime in (ONNX, KERAS)}

    def require_same_model(self, folder: Path, metadata: Metadata) -> None:
        """Let both files of an artefact forecast the same windows.

        Raises:
            ArtifactError: If a forecast or a simulated path differs, or a file cannot be loaded.
        """
        onnx, keras = (models.open(folder, metadata)[0] for models in self._models.values())
        file = folder / ONNX_FILE
        fix = "Do not use this model, or ask whoever published it to write the file again"
        with keras_errors_translated(file, f"must compute what {MODEL_FILE} does"):
            steps_by_output = steps_apart_on_trials(onnx, keras, metadata.scaling, metadata.lookback_bars)
        require_same_forecasts(steps_by_output, file, fix)


def require_same_forecasts(steps_by_output: Mapping[str, float], file: Path, fix: str) -> None:
    """Raise an `ArtifactError` if an ONNX file computes something else than its Keras file.

    Args:
        steps_by_output: By how many steps of single precision outputs differ (`v8.base.arrays`).
        file: The ONNX file.
        fix: What the user can do.
    """
    output = max(steps_by_output, key=steps_by_output.__getitem__)
    steps = steps_by_output[output]
    if not steps <= MAX_STEPS:
        raise ArtifactError(
            where=str(file),
            rule=f"forecasts as the Keras file does, within {MAX_STEPS} steps of single precision",
            got=f"{output} that is {steps:,.0f} steps apart",
            fix=fix,
        )


def steps_apart_on_trials(onnx: Any, keras: Any, scaling: Scaling, lookback_bars: int) -> dict[str, float]:
    """Return by how many steps of single precision two models differ at most, by output, paths included.

    Args:
        onnx: A model of an ONNX file.
        keras: A model of a Keras file.
        scaling: The scaling of both.
        lookback_bars: Bars of their windows.
    """
    windows_NTF = trial_windows(scaling, lookback_bars)
    names = [column.name for column in scaling.columns]
    last_close_N = windows_NTF[:, -1, names.index(CLOSE)].astype(np.float64)
    values, expected = (forecast_windows(model, windows_NTF) for model in (onnx, keras))
    steps = forecasts_apart(values, expected, last_close_N)
    parts = [model.up_to(PATH_LAYERS) for model in (onnx, keras)]
    if any(part is not None for part in parts):
        values, expected = (forecast_windows(part, windows_NTF) for part in parts)
        for name in expected:  # log ratios of closes, which are near 1
            steps[name] = steps_apart(values[name], expected[name], magnitude=1.0)
    return steps


def trial_windows(scaling: Scaling, lookback_bars: int) -> NDArray[np.float32]:
    """Make raw windows that a model of this scaling may read, shape (N, T, F); they are always the same.

    Every input is drawn between the centre of its training data and one scale above it. They show a file of
    another model, not one that was made to differ elsewhere only.
    """
    shares_NTF = np.random.default_rng(TRIAL_SEED).random(
        (TRIAL_WINDOWS, lookback_bars, len(scaling.columns))
    )
    scaled = {}
    with np.errstate(all="ignore"):  # the scaling may come from anybody; the forecasts then are not finite
        for place, column in enumerate(scaling.columns):
            scale = 0.0 if column.scale >= SILENT_SCALE else column.scale
            scaled[column.name] = column.center + scale * shares_NTF[..., place]
        columns = [_raw(column, scaled, scaling) for column in scaling.columns]
        return np.stack(columns, axis=-1).astype(np.float32)


def _raw(column: ColumnScaling, scaled: Mapping[str, FloatArray], scaling: Scaling) -> FloatArray:
    """Return raw values of a column, (N, T), from those of all before they are centred and divided."""
    values_NT = scaled[column.name]
    origin, _ = split_origin(column.name)
    price = 1.0 if origin else scaling.reference_price
    if column.transform is Transform.ANCHORED:
        return price * np.exp(values_NT)
    if column.transform is Transform.LOGGED:
        return np.exp(values_NT)
    if column.transform is Transform.RELATIVE:
        close_NT = scaled.get(with_origin(origin, CLOSE), np.zeros_like(values_NT))
        return price * np.exp(close_NT) * values_NT
    return values_NT
