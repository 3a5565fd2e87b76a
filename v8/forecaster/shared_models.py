"""Models that share a graph: loading and tracing one takes over a second, reading weights hardly any time.

The published models of one profile are the same network with other weights, so the descriptions in their
files are equal. The first file of a description is loaded normally. Of every further file only the weights
are read, after the same checks. Before a forecast the graph gets the weights of the requested series. The
same operations on the same numbers give the same bits as a model that was loaded alone.

For every file Keras would search which array belongs to which variable, which takes most of the time of
loading a small model. Files of one description have the same assignment, so it is found once: every variable
is filled with its own number, and Keras saves the weights.

Shape legend: B batch, T lookback, F features.
"""

import io
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from v8.base.storage import digest_bytes, passing_folder
from v8.forecaster import model_file
from v8.forecaster.metadata import Metadata
from v8.forecaster.runtimes import KERAS, ONNX, require_runtime, runtime_for
from v8.model.networks.published import CONFIG_MEMBER, WEIGHTS_MEMBER

Loaded = TypeVar("Loaded")

ArrayNames: TypeAlias = tuple[str | None, ...]
"""Name of the array in the weights file for each variable of a model; None for seeds, which are not saved."""


class SharedModels:
    """The models in memory. Models of one description share a graph, and each is loaded once.

    Models of ONNX files share theirs, too, see `v8.forecaster.onnx_file`.

    Args:
        runtime: What computes, one of `v8.forecaster.runtimes.RUNTIMES`.

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
                self.current_weights = None
                self._array_names = _find_array_names(self.model)
            return _read_weights(self.model, file, self._array_names)


def _find_array_names(model: Any) -> ArrayNames:
    """Find the name of each variable's array in a weights file; this overwrites the weights of the model."""
    import h5py  # noqa: PLC0415 - forecasts with ONNX do not need it

    for number, variable in enumerate(model.variables):
        if _is_saved(variable):
            variable.assign(np.full(variable.shape, number, variable.dtype))
    with passing_folder("weights") as folder:
        model.save_weights(folder / "numbered.weights.h5")
        with h5py.File(folder / "numbered.weights.h5", "r") as weights:
            names = {int(weights[name][()].flat[0]): name for name in _list_arrays(weights)}
    return tuple(
        names[number] if _is_saved(variable) else None for number, variable in enumerate(model.variables)
    )


def _read_weights(model: Any, file: Path, array_names: ArrayNames) -> list[NDArray[Any]] | None:
    """Read an array per variable from a checked file of the same description.

    Returns:
        The arrays; None if the file has other arrays, or arrays of other shapes.
    """
    import h5py  # noqa: PLC0415 - forecasts with ONNX do not need it

    values = []
    with h5py.File(io.BytesIO(model_file.read_member(file, WEIGHTS_MEMBER)), "r") as weights:
        if {*_list_arrays(weights)} != {*array_names} - {None}:
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


def _is_saved(variable: Any) -> bool:
    """Return whether a variable is in the weights file: a weight, not the state of a seed."""
    return np.issubdtype(np.dtype(variable.dtype), np.floating)


def _list_arrays(weights: Any) -> list[str]:
    """Return the names of all arrays of a weights file."""
    import h5py  # noqa: PLC0415 - forecasts with ONNX do not need it

    names: list[str] = []
    weights.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names
