"""Models that share a graph: to load and trace one takes over a second, to bring in weights hardly any time.

The published models of one profile are the same network with other numbers, so their files describe the same
thing to the byte. The first file of a description is loaded as it always is. Of every further one only the
weights are read, into the graph that is there, after the same checks; before each forecast the graph gets the
weights of the series that is asked. The same operations on the same numbers give the same bits as a model
that was loaded alone.

Shape legend: B batch, T lookback, F features.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.artifacts.model_file import load_keras_model, one_fault, read_description, require_enough_weights
from v8.artifacts.weight_places import Places, find_places, read_weights
from v8.storage import digest_bytes


class SharedModels:
    """Loads models of checked Keras files; those of one description share a graph as long as this lives."""

    def __init__(self) -> None:
        self._graphs: dict[str, _Graph] = {}
        self._loading = threading.Lock()

    def load(self, file: Path) -> SharedModel:
        """Load a model of a checked file, in safe mode, as `load_keras_model` does.

        Raises:
            ArtifactError: If its layers do not fit together or to its weights, or would need too much memory.
        """
        with self._loading:
            description = digest_bytes(read_description(file))
            if description not in self._graphs:
                graph = self._graphs[description] = _Graph(load_keras_model(file))
                return SharedModel(graph, graph.weights())
            graph = self._graphs[description]
            return SharedModel(graph, graph.read(file))


class SharedModel:
    """One model in a graph that others use, too; it takes what a Keras model takes and gives what it gives.

    Args:
        graph: What computes.
        weights: This model's, in the order of the graph's variables.
    """

    def __init__(self, graph: _Graph, weights: list[NDArray[Any]]) -> None:
        self._graph, self._weights = graph, weights

    @property
    def inputs(self) -> Any:
        """The symbolic inputs."""
        return self._graph.model.inputs

    @property
    def output(self) -> Any:
        """The symbolic outputs by task."""
        return self._graph.model.output

    def predict_on_batch(self, batch_BTF: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Forecast one batch of raw windows; threads wait here for each other."""
        return self._graph.predict_on_batch(batch_BTF, self._weights)


class _Graph:
    """A Keras model and whose weights it holds."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._held: list[NDArray[Any]] | None = None
        self._places: Places | None = None
        self._is_searched = False
        self._using = threading.Lock()

    def weights(self) -> list[NDArray[Any]]:
        """Copy the weights that it holds."""
        return [variable.numpy().copy() for variable in self.model.variables]

    def read(self, file: Path) -> list[NDArray[Any]]:
        """Read the weights of a file of the same description.

        Raises:
            ArtifactError: If they do not fit.
        """
        require_enough_weights(file, self.model)
        with self._using, one_fault(file, "must hold layers and weights that fit together"):
            if not self._is_searched:
                self._held = None
                self._places, self._is_searched = find_places(self.model, file), True
            weights = read_weights(self.model, file, self._places) if self._places else None
            return self._read_by_keras(file) if weights is None else weights

    def _read_by_keras(self, file: Path) -> list[NDArray[Any]]:
        """Have Keras read a file that is another way to write the same weights, or refuse it."""
        self._held = None
        for variable in self.model.variables:  # so that none is left which was another model's
            if np.issubdtype(np.dtype(variable.dtype), np.floating):
                variable.assign(np.full(variable.shape, np.nan, variable.dtype))
        self.model.load_weights(str(file))
        return self.weights()

    def predict_on_batch(
        self, batch_BTF: NDArray[np.float32], weights: list[NDArray[Any]]
    ) -> dict[str, NDArray[np.float32]]:
        with self._using:
            if self._held is not weights:
                self._held = None
                for variable, value in zip(self.model.variables, weights, strict=True):
                    variable.assign(value)
                self._held = weights
            return self.model.predict_on_batch(batch_BTF)
