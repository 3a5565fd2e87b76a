"""`model.onnx` beside `model.keras`: the same forecasts without TensorFlow and Keras.

It is written only after its forecasts were compared with those of the Keras file on windows of the test span
(`v8.rounding`). Before onnxruntime loads such a file, which may come from anybody, it is checked:

1. It has the one operator set and file format that v8 writes, and only operators of `OPERATORS`, which
   compute: none of them reads a file, calls a function of another library, or holds a graph of its own.
2. All constants are plain numbers inside the file.
3. All shapes are known from the constants, and all results of one window together have at most
   `MAX_WORKED_NUMBERS` numbers.
4. It names the series that it was made for.

Windows are computed one by one, by one thread. So a window gives the same bits alone and among thousands.
Files of one profile differ in their weights alone, so a graph is loaded once, and weights are inputs of it.

This module needs the packages `onnx` and `onnxruntime` (the extra `onnx` of v8) and is imported only where
such files are used.

Shape legend: N windows, T lookback, F features, H horizon, Q levels, C columns of a task.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper, shape_inference

from v8.artifacts.model_file import MAX_UNPACKED_BYTES, MAX_WORKED_NUMBERS
from v8.artifacts.runtimes import ONNX
from v8.baselines.ranges import PATH_LAYERS
from v8.errors import ArtifactError, listed, shown
from v8.networks.onnx_graph import (
    FORMAT_VERSION,
    OPERATOR_SET,
    WEIGHT_PREFIX,
    WINDOW,
    ConversionError,
    to_onnx,
)
from v8.networks.published import forecast_windows, forecasts_apart
from v8.rounding import MAX_STEPS
from v8.storage import digest_bytes, read_given, write_with
from v8.windows.span import Span

SERIES_KEY: Final = "series"  # key of the file's properties: the series that the model was made for
COMPARED_WINDOWS: Final = 64  # windows of the test span, spread over it, on which they are compared
MAX_NODES: Final = 10_000  # the shipped profiles have 900 and fewer
_NOT_PLAIN: Final = "one whose numbers lie outside the file or are no plain numbers"
_SIMPLE: Final = (
    AttributeProto.INT,
    AttributeProto.INTS,
    AttributeProto.FLOAT,
    AttributeProto.FLOATS,
    AttributeProto.STRING,
)
"""Kinds of attributes that an operation may have."""
_TYPES: Final = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64)

OPERATORS: Final = frozenset(
    {
        "Abs",
        "Add",
        "Cast",
        "Concat",
        "CumSum",
        "Div",
        "Einsum",
        "Elu",
        "Exp",
        "GRU",
        "Gather",
        "Gelu",
        "Identity",
        "LSTM",
        "LayerNormalization",
        "Less",
        "Log",
        "MatMul",
        "Max",
        "Min",
        "Mul",
        "Neg",
        "Not",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "Relu",
        "Reshape",
        "Sigmoid",
        "Slice",
        "Softmax",
        "Softplus",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Tanh",
        "TopK",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that a file may hold; `v8.networks.onnx_graph` writes no other."""


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


def _shape(value: onnx.ValueInfoProto) -> tuple[int | None, ...]:
    """Return the shape of an input or output, with None for the number of windows."""
    axes = value.type.tensor_type.shape.dim
    return tuple(axis.dim_value if axis.HasField("dim_value") else None for axis in axes)


def load_onnx_model(file: Path, series: str, graphs: dict[str, OnnxGraph] | None = None) -> OnnxModel:
    """Load a file that is checked first.

    Args:
        file: The file.
        series: Name of the series that it must be made for.
        graphs: Graphs in memory, by the digest of all but the weights; the file's is added. A file whose
            graph is in memory already loads in a moment.

    Raises:
        ArtifactError: If it is missing, damaged, made for another series, or contains anything but
            arithmetic.
    """
    model = _read(file)
    made_for = {entry.key: entry.value for entry in model.metadata_props}.get(SERIES_KEY)
    if made_for != series:
        raise _foreign(file, f"one that was made for {shown(repr(made_for))}")
    return _opened(model, file, {} if graphs is None else graphs)


def check_onnx_file(file: Path) -> None:
    """Check a file without loading it.

    Raises:
        ArtifactError: As for `load_onnx_model`.
    """
    _require_sound(_read(file), file)


def _opened(model: onnx.ModelProto, file: Path, graphs: dict[str, OnnxGraph]) -> OnnxModel:
    """Check a model and take it into memory, where it shares a graph that is equal but for the weights."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    weights = _take_weights(bare, file)
    digest = digest_bytes(bare.SerializeToString(deterministic=True))
    if digest not in graphs:
        _require_sound(model, file)
        graphs[digest] = _graph_of(bare, weights, file)
    graph = graphs[digest]
    return OnnxModel(graph, weights, [name for name in graph.outputs if name not in PATH_LAYERS])


def _take_weights(model: onnx.ModelProto, file: Path) -> dict[str, NDArray[np.float32]]:
    """Take the numbers of the weights and the properties out of a model; return the weights by name."""
    weights = {}
    for constant in model.graph.initializer:
        if not constant.name.startswith(WEIGHT_PREFIX):
            continue
        if not _is_plain(constant) or constant.data_type != TensorProto.FLOAT:
            raise _foreign(file, _NOT_PLAIN)
        weights[constant.name] = numpy_helper.to_array(constant)
        constant.ClearField("raw_data")
    model.ClearField("metadata_props")
    return weights


def _graph_of(model: onnx.ModelProto, weights: Mapping[str, NDArray[np.float32]], file: Path) -> OnnxGraph:
    """Load the graph of a model that is checked and whose weights are taken out: they become inputs."""
    inputs = [Shaped(_shape(value)) for value in model.graph.input]
    outputs = {value.name: Shaped(_shape(value)) for value in model.graph.output}
    graph = onnx.ModelProto()
    graph.CopyFrom(model)
    constants = [constant for constant in model.graph.initializer if constant.name not in weights]
    del graph.graph.initializer[:]
    graph.graph.initializer.extend(constants)
    for name, values in weights.items():
        graph.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, values.shape))
    return OnnxGraph(_session_of(graph, file), inputs, outputs)


def _session_of(model: onnx.ModelProto, file: Path) -> Any:
    """Load a model into onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # forty models would hold forty of them
    options.log_severity_level = 4
    content = model.SerializeToString()
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors are of many classes, which have only `Exception` in common
        raise _foreign(file, f"one that onnxruntime refuses ({shown(str(error), 200)})") from error


def _read(file: Path) -> onnx.ModelProto:
    """Read a file; nothing of it is checked but that it is an ONNX file."""
    try:
        content = read_given(file, MAX_UNPACKED_BYTES)
    except OSError as error:
        raise _foreign(file, error.strerror or "an input error") from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf's errors are of another class in each of its implementations
        raise _foreign(file, "a damaged file, or one of another kind") from error
    return model


def _require_sound(model: onnx.ModelProto, file: Path) -> None:
    """Raise an `ArtifactError` if a model is not as the module says."""
    fault = _fault_of(model)
    if fault is not None:
        raise _foreign(file, fault)


def _fault_of(model: onnx.ModelProto) -> str | None:
    """Describe what is wrong with a model; None if nothing is."""
    graph = model.graph
    versions = [(entry.domain, entry.version) for entry in model.opset_import]
    foreign = {node.op_type for node in graph.node if node.domain or node.op_type not in OPERATORS}
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    faults = {
        f"one of format {model.ir_version} with the operator sets {shown(str(versions), 80)}": (
            model.ir_version != FORMAT_VERSION or versions != [("", OPERATOR_SET)]
        ),
        "one with functions, sparse numbers or training steps": bool(
            model.functions
            or model.training_info
            or graph.sparse_initializer
            or graph.quantization_annotation
        ),
        f"one of {len(graph.node):,} operations": len(graph.node) > MAX_NODES,
        f"one with the operators {listed(sorted(shown(name, 40) for name in foreign))}": bool(foreign),
        "one with graphs or tensors inside its operations": any(
            attribute.type not in _SIMPLE for attribute in attributes
        ),
        _NOT_PLAIN: not all(map(_is_plain, graph.initializer)),
        "one with other inputs than the window": (
            [value.name for value in graph.input] != [WINDOW] or not graph.output
        ),
    }
    found = next((description for description, is_fault in faults.items() if is_fault), None)
    return found or _fault_of_sizes(model)


def _is_plain(constant: onnx.TensorProto) -> bool:
    """Return whether a constant is a plain array inside the file."""
    if constant.data_type not in _TYPES or constant.data_location != TensorProto.DEFAULT:
        return False
    size = 4 if constant.data_type == TensorProto.FLOAT else 8
    is_complete = len(constant.raw_data) == size * math.prod(constant.dims)
    return is_complete and not constant.external_data and not constant.segment.end


def _fault_of_sizes(model: onnx.ModelProto) -> str | None:
    """Describe results of unknown shape, or too large ones, for one window; None if there are none."""
    one = onnx.ModelProto()
    one.CopyFrom(model)
    for value in [*one.graph.input, *one.graph.output]:
        axes = value.type.tensor_type.shape.dim
        if not axes or axes[0].HasField("dim_value"):
            return "one with a fixed number of windows"
        axes[0].dim_value = 1
    try:
        shaped = shape_inference.infer_shapes(one, check_type=True, strict_mode=True, data_prop=True)
    except (shape_inference.InferenceError, ValueError, TypeError, RuntimeError) as error:
        return f"operations that do not fit together ({shown(str(error), 200)})"
    sizes = {}
    for value in [*shaped.graph.value_info, *shaped.graph.output]:
        shape = _shape(value)
        if None in shape:
            return "one that works on a number of values that depends on them"
        sizes[value.name] = math.prod(length or 0 for length in shape)
    results = {name for node in model.graph.node for name in node.output if name}
    if not results <= sizes.keys():
        return "one with results of unknown shape"
    num_worked = sum(sizes.values())
    return f"one that works on {num_worked:,} numbers a window" if num_worked > MAX_WORKED_NUMBERS else None


def save_onnx_model(model: Any, file: Path, series: str, span: Span) -> float:
    """Write a Keras model as ONNX file if both forecast the same.

    Args:
        model: The published Keras model with this series' numbers.
        file: Where to write.
        series: Name of the series, which is noted in the file.
        span: Windows of the test span, of which `COMPARED_WINDOWS` are compared.

    Returns:
        By how many steps of single precision the forecasts differ at most (`v8.rounding`).

    Raises:
        ArtifactError: If the model has a layer without counterpart, or a forecast differs by more than
            `MAX_STEPS`.
    """
    where = str(file)
    fix = "Forecast with the Keras file, which stays as it is"
    try:
        converted = to_onnx(model, PATH_LAYERS)
    except ConversionError as error:
        rule = "holds layers that ONNX can compute, too"
        raise ArtifactError(where=where, rule=rule, got=str(error), fix=fix) from error
    converted.metadata_props.add(key=SERIES_KEY, value=series)
    content = converted.SerializeToString(deterministic=True)
    places = np.unique(np.linspace(0, len(span) - 1, COMPARED_WINDOWS).round().astype(np.int64))
    compared_NTF = span.raw_windows()[places]
    steps_by_output = forecasts_apart(
        forecast_windows(_opened(converted, file, {}), compared_NTF),
        forecast_windows(model, compared_NTF),
        span.last_close[places],
    )
    output = max(steps_by_output, key=steps_by_output.__getitem__)
    steps = steps_by_output[output]
    if not steps <= MAX_STEPS:
        rule = f"forecasts as the Keras file does, within {MAX_STEPS} steps of single precision"
        raise ArtifactError(where=where, rule=rule, got=f"{output} that is {steps:.0f} steps apart", fix=fix)
    write_with(file, lambda aside: aside.write_bytes(content))
    return steps


def _foreign(file: Path, got: str) -> ArtifactError:
    """Return the error for a file that is not an ONNX file as v8 writes it."""
    rule = "must be an ONNX file of a forecaster as v8 writes it"
    fix = "Make it again with `v8 export RUN --models onnx`, or forecast with param:runtime keras"
    return ArtifactError(where=str(file), rule=rule, got=got, fix=fix)
