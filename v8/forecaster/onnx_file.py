"""`model.onnx` beside `model.keras`: the same forecasts without TensorFlow and Keras.

It is written only after its forecasts were compared with those of the Keras file on windows of the test span
(`v8.base.arrays`). Before onnxruntime loads such a file, which may come from anybody, it is checked
(`v8.forecaster.onnx_contents`).

Windows are computed one by one, by one thread. So a window gives the same bits alone and among thousands.
Files of one profile differ in their weights alone, so a graph is loaded once, and weights are inputs of it.

This module needs the packages `onnx` and `onnxruntime` (the extra `onnx` of v8) and is imported only where
such files are used.

Shape legend: N windows, T lookback, F features, H horizon, Q levels, C columns of a task.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from v8.base.arrays import MAX_STEPS
from v8.base.errors import ArtifactError, shown
from v8.base.storage import digest_bytes, write_bytes
from v8.data.span import Span
from v8.forecaster.metadata import ModelShapes
from v8.forecaster.onnx_contents import (
    SERIES_KEY,
    foreign,
    lengths,
    read_onnx,
    require_bounded,
    take_apart,
)
from v8.forecaster.shared_models import ONNX
from v8.model.baselines.ranges import PATH_LAYERS
from v8.model.networks.onnx_graph import WINDOW, ConversionError, to_onnx
from v8.model.networks.published import forecast_windows, forecasts_apart

COMPARED_WINDOWS: Final = 64  # windows of the test span, spread over it, on which they are compared


@dataclass(frozen=True)
class Shaped:
    """An input or output of a model, described as Keras does; the first axis, the windows, is None."""

    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class OnnxGraph:
    """A checked graph in memory, without weights: models of one profile share it."""

    session: Any  # of onnxruntime
    inputs: Sequence[Shaped]
    outputs: Mapping[str, Shaped]  # all of the file


class OnnxModel:
    """A model of a checked ONNX file, with the interface of a Keras model as far as forecasts need it."""

    runtime: Final = ONNX

    def __init__(
        self, graph: OnnxGraph, weights: Mapping[str, NDArray[np.float32]], names: Collection[str]
    ) -> None:
        self._graph = graph
        self._weights = weights
        self.inputs = graph.inputs
        self.output = {name: shaped for name, shaped in graph.outputs.items() if name in names}
        """Outputs by task."""

    def up_to(self, layers: Collection[str]) -> "OnnxModel | None":
        """Return the model with the output of one of some layers; None if the file has none of them."""
        for name in self._graph.outputs:
            if name in layers:
                return OnnxModel(self._graph, self._weights, [name])
        return None

    def forecast_windows(self, windows_NTF: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Forecast raw windows one by one: by output, shape (N, ...)."""
        names = list(self.output)
        run = self._graph.session.run
        rows = [run(names, {WINDOW: window_TF[None], **self._weights}) for window_TF in windows_NTF]
        return {name: np.concatenate([row[place] for row in rows]) for place, name in enumerate(names)}


def load_onnx_model(
    file: Path, series: str, shapes: ModelShapes, graphs: dict[str, OnnxGraph] | None = None
) -> OnnxModel:
    """Load a file that is checked first.

    Args:
        file: The file.
        series: Name of the series that it must be made for.
        shapes: What its metadata say that it takes and gives.
        graphs: Graphs in memory, by the digest of all but the weights; the file's is added. A file whose
            graph is in memory already loads in a moment.

    Raises:
        ArtifactError: If it is missing, damaged, made for another series, or contains anything but
            arithmetic.
    """
    model, weights = read_onnx(file, series, shapes)
    return _opened(model, weights, file, {} if graphs is None else graphs)


def check_onnx_file(file: Path, series: str, shapes: ModelShapes) -> None:
    """Check a file without loading it.

    Raises:
        ArtifactError: As for `load_onnx_model`.
    """
    model, _ = read_onnx(file, series, shapes)
    require_bounded(model, file)


def _opened(
    model: onnx.ModelProto,
    weights: Mapping[str, NDArray[np.float32]],
    file: Path,
    graphs: dict[str, OnnxGraph],
) -> OnnxModel:
    """Take a model into memory, where it shares a graph that is equal but for the weights."""
    digest = digest_bytes(model.SerializeToString(deterministic=True))
    if digest not in graphs:
        require_bounded(model, file)
        graphs[digest] = _graph_of(model, weights, file)
    graph = graphs[digest]
    return OnnxModel(graph, weights, [name for name in graph.outputs if name not in PATH_LAYERS])


def _graph_of(model: onnx.ModelProto, weights: Mapping[str, NDArray[np.float32]], file: Path) -> OnnxGraph:
    """Load the graph of a checked model without its weights, which become inputs."""
    inputs = [Shaped(lengths(value)) for value in model.graph.input]
    outputs = {value.name: Shaped(lengths(value)) for value in model.graph.output}
    graph = onnx.ModelProto()
    graph.CopyFrom(model)
    constants = [constant for constant in model.graph.initializer if constant.name not in weights]
    del graph.graph.initializer[:]
    graph.graph.initializer.extend(constants)
    for name, values in weights.items():
        graph.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, values.shape))
    return OnnxGraph(_session_of(graph, file), inputs, outputs)


def _session_of(model: onnx.ModelProto, file: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # forty models would hold forty of them
    options.log_severity_level = 4
    content = model.SerializeToString()
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors are of many classes, which have only `Exception` in common
        raise foreign(file, f"one that onnxruntime refuses ({shown(str(error), 200)})") from error


def save_onnx_model(model: Any, file: Path, series: str, span: Span) -> float:
    """Write a Keras model as ONNX file if both forecast the same; arguments and errors as `converted_onnx`.

    Returns:
        By how many steps of single precision the forecasts differ at most (`v8.base.arrays`).
    """
    content, steps = converted_onnx(model, file, series, span)
    write_bytes(file, content)
    return steps


def converted_onnx(model: Any, file: Path, series: str, span: Span) -> tuple[bytes, float]:
    """Convert a Keras model, and compare what both forecast; nothing is written.

    Args:
        model: The published Keras model with this series' numbers.
        file: Where the content will be written, for errors.
        series: Name of the series, which is noted in the file.
        span: Windows of the test span, of which `COMPARED_WINDOWS` are compared.

    Returns:
        The content of the file, and by how many steps of single precision the forecasts differ at most
        (`v8.base.arrays`).

    Raises:
        ArtifactError: If the model has a layer without counterpart, or a forecast differs by more than
            `MAX_STEPS`.
    """
    where = str(file)
    fix = "Forecast with the Keras file, which stays as it is"
    try:
        converted = to_onnx(model, PATH_LAYERS)
    except ConversionError as error:
        raise ArtifactError(
            where=where, rule="holds layers that ONNX can compute, too", got=str(error), fix=fix
        ) from error
    converted.metadata_props.add(key=SERIES_KEY, value=series)
    content = converted.SerializeToString(deterministic=True)
    places = np.unique(np.linspace(0, len(span) - 1, COMPARED_WINDOWS).round().astype(np.int64))
    compared_NTF = span.raw_windows()[places]
    model_of_file = _opened(*take_apart(content, file, series, _shapes_of(model)), file, {})
    values, expected = (forecast_windows(one, compared_NTF) for one in (model_of_file, model))
    steps_by_output = forecasts_apart(values, expected, span.last_close[places])
    require_same_forecasts(steps_by_output, file, fix)
    return content, max(steps_by_output.values())


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


def _shapes_of(model: Any) -> ModelShapes:
    """Return what a Keras model takes and gives."""
    outputs = {name: tuple(output.shape[1:]) for name, output in model.output.items()}
    return ModelShapes(tuple(model.inputs[0].shape[1:]), outputs)
