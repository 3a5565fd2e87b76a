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
                self._graphs[description] = _Graph(load_keras_model(file))
                return SharedModel(self._graphs[description])
            graph = self._graphs[description]
            graph.read(file)
            return SharedModel(graph)


class SharedModel:
    """One model in a graph that others use, too; it takes what a Keras model takes and gives what it gives.

    Args:
        graph: It holds this model's weights now.
    """

    def __init__(self, graph: _Graph) -> None:
        self._graph, self._weights = graph, graph.weights()

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
        self._using = threading.Lock()

    def weights(self) -> list[NDArray[Any]]:
        """Copy the weights that it holds, and hold them by that name."""
        self._held = [variable.numpy().copy() for variable in self.model.variables]
        return self._held

    def read(self, file: Path) -> None:
        """Hold the weights of a file of the same description.

        Raises:
            ArtifactError: If they do not fit.
        """
        require_enough_weights(file, self.model)
        with self._using, one_fault(file, "must hold layers and weights that fit together"):
            self._held = None
            for variable in self.model.variables:  # so that none is left which was another model's
                if np.issubdtype(variable.numpy().dtype, np.floating):
                    variable.assign(np.full(variable.shape, np.nan, np.float32))
            self.model.load_weights(str(file))

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
