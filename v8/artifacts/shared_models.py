"""Models that share a graph: to load and trace one takes over a second, to bring in weights hardly any time.

The published models of one profile are the same network with other numbers, so their files describe the same
thing to the byte. The first file of a description is loaded as it always is. Of every further one only the
weights are read, into the graph that is there, after the same checks; before each forecast the graph gets the
weights of the series that is asked. The same operations on the same numbers give the same bits as a model
that was loaded alone.

Which array of a file each variable is, Keras finds out anew for every file: most of the time that a small
model takes to load. Of files of one description it is the same, so it is found out once, by having Keras save
weights that hold their own numbers.

Shape legend: B batch, T lookback, F features.
"""

import io
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from v8.artifacts import model_file
from v8.networks.published import CONFIG_MEMBER, WEIGHTS_MEMBER
from v8.storage import digest_bytes, passing_folder

Found = TypeVar("Found")

Places = tuple[str | None, ...]
"""Per variable of a model, the name of its array in the weights file; None of seeds, which no file holds."""


class SharedModels:
    """The models in memory: those of one description share a graph, and what serves is opened once."""

    def __init__(self) -> None:
        self._serving: dict[str, tuple[str, Any]] = {}
        self._graphs: dict[str, _Graph] = {}
        self._loading = threading.Lock()

    def serving(self, series: str, mark: str, load: Callable[[], Found]) -> Found:
        """Return what `load` made for a series; it is made anew when its mark is another."""
        if series not in self._serving or self._serving[series][0] != mark:
            self._serving[series] = mark, load()
        found: Found = self._serving[series][1]
        return found

    def load(self, file: Path) -> "SharedModel":
        """Load a model of a checked file, in safe mode, as `load_keras_model` does.

        Raises:
            ArtifactError: If its layers do not fit together or to its weights, or would need too much memory.
        """
        with self._loading:
            description = digest_bytes(model_file.read_member(file, CONFIG_MEMBER))
            graph = self._graphs.get(description)
            if graph is None or (weights := graph.read(file)) is None:  # Keras reads or refuses it
                graph = _Graph(model_file.load_keras_model(file))
                self._graphs.setdefault(description, graph)
                weights = [variable.numpy().copy() for variable in graph.model.variables]
            return SharedModel(graph, weights)


class SharedModel:
    """One model in a graph that others use, too; it takes and gives what a Keras model does."""

    def __init__(self, graph: "_Graph", weights: list[NDArray[Any]], layer: str | None = None) -> None:
        self._graph = graph
        self._weights = weights
        self._layer = layer
        self.inputs = graph.model.inputs
        self.output = graph.model.output
        """The symbolic inputs, and the symbolic outputs by task."""

    def up_to(self, layers: Collection[str]) -> "SharedModel | None":
        """Return what says the output of one of some layers alone; None where it has none of them."""
        found = {layer.name for layer in self._graph.model.layers}.intersection(layers)
        return SharedModel(self._graph, self._weights, found.pop()) if found else None

    def trained(self) -> list[NDArray[np.float32]]:
        """Return what was trained of it: the weights of its network, in the network's order."""
        known = zip(self._graph.model.variables, self._weights, strict=True)
        return [value for variable, value in known if variable.trainable]

    def predict_on_batch(self, batch_BTF: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Forecast one batch of raw windows; threads wait here for each other."""
        graph = self._graph
        with graph.using:
            if graph.held is not self._weights:
                graph.held = None
                for variable, value in zip(graph.model.variables, self._weights, strict=True):
                    variable.assign(value)
                graph.held = self._weights
            return graph.program(self._layer).predict_on_batch(batch_BTF)


class _Graph:
    """A Keras model and whose weights it holds."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._programs: dict[str | None, Any] = {None: model}
        self.held: list[NDArray[Any]] | None = None
        self._places: Places | None = None
        self.using = threading.Lock()

    def program(self, layer: str | None) -> Any:
        """Return the model, or what ends at a layer of it."""
        if layer not in self._programs:
            model, output = self.model, self.model.get_layer(layer).output
            self._programs[layer] = type(model)(model.inputs, {layer: output})
        return self._programs[layer]

    def read(self, file: Path) -> list[NDArray[Any]] | None:
        """Read the weights of a file of the same description; None if it has other arrays than expected."""
        model_file.require_enough_weights(file, self.model)
        with self.using, model_file.one_fault(file, "must hold layers and weights that fit together"):
            if self._places is None:
                self.held = None
                self._places = _find_places(self.model)
            return _read_weights(self.model, file, self._places)


def _find_places(model: Any) -> Places:
    """Find out which array of its weights file each variable is; the model holds no weights afterwards."""
    for number, variable in enumerate(model.variables):
        if _is_of_file(variable):
            variable.assign(np.full(variable.shape, number, variable.dtype))
    with passing_folder("weights") as folder:
        model.save_weights(folder / "numbered.weights.h5")
        with h5py.File(folder / "numbered.weights.h5", "r") as weights:
            names = {int(weights[name][()].flat[0]): name for name in _array_names(weights)}
    return tuple(names[number] if _is_of_file(one) else None for number, one in enumerate(model.variables))


def _read_weights(model: Any, file: Path, places: Places) -> list[NDArray[Any]] | None:
    """Read an array per variable from a checked file of the same description.

    None if the file has other arrays, or of other shapes.
    """
    with h5py.File(io.BytesIO(model_file.read_member(file, WEIGHTS_MEMBER)), "r") as weights:
        if {*_array_names(weights)} != {*places} - {None}:
            return None
        values = [
            variable.numpy() if name is None else np.asarray(weights[name][()], variable.dtype)
            for variable, name in zip(model.variables, places, strict=True)
        ]
    pairs = zip(model.variables, values, strict=True)
    return values if all(value.shape == tuple(variable.shape) for variable, value in pairs) else None


def _is_of_file(variable: Any) -> bool:
    return np.issubdtype(np.dtype(variable.dtype), np.floating)


def _array_names(weights: h5py.File) -> list[str]:
    names: list[str] = []
    weights.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names
