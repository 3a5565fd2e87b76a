"""`model.onnx` beside `model.keras`: the same forecasts without TensorFlow and Keras.

It is written only after its forecasts were compared with those of the Keras file on windows of the test span
(`v8.base.arrays`). Windows are computed one by one, by one thread. So a window gives the same bits alone and
among thousands. Files of one profile differ in their weights alone, so a graph is loaded once, and weights
are inputs of it.

Such a file may come from anybody, and may hold nothing but the arithmetic that v8 writes, of known size.
`_read` checks it before the native code of `onnx` or `onnxruntime` sees anything of it but its bytes:

1. It is at most `MAX_ONNX_BYTES` long and has only the fields that v8 writes (`require_known_fields`).
2. It has the one operator set and file format that v8 writes, and only operators of `OPERATORS` with their
   attributes: none of them reads a file, calls a function of another library, or holds a graph of its own.
3. All constants are plain numbers inside the file. Every length is 1 or more, and whole numbers, which may be
   lengths, axes or places, are at most `MAX_WHOLE`.
4. Input and outputs have the shapes of its metadata.

Only then `_require_bounded` infers the shapes of all results: they must be known from the constants, and all
results of one window together have at most `MAX_WORKED_NUMBERS` numbers.

This module needs the packages `onnx` and `onnxruntime` (the extra `onnx` of v8) and is imported only where
such files are used.

Shape legend: N windows, T lookback, F features, H horizon, Q levels, C columns of a task.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper, shape_inference

from v8.base.errors import ArtifactError, listed, shown
from v8.base.records import read_given
from v8.base.storage import digest_bytes
from v8.data.span import Span
from v8.forecaster.metadata import ModelShapes
from v8.forecaster.model_file import MAX_WHOLE, MAX_WORKED_NUMBERS, SERIES_KEY
from v8.forecaster.shared_models import ONNX, require_same_forecasts
from v8.model.baselines.ranges import PATH_LAYERS
from v8.model.networks.onnx_graph import (
    BATCH,
    FORMAT_VERSION,
    OPERATOR_SET,
    WEIGHT_PREFIX,
    WINDOW,
    ConversionError,
    to_onnx,
)
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
    model, weights = _read(file, series, shapes)
    return _opened(model, weights, file, {} if graphs is None else graphs)


def check_onnx_file(file: Path, series: str, shapes: ModelShapes) -> None:
    """Check a file without loading it.

    Raises:
        ArtifactError: As for `load_onnx_model`.
    """
    model, _ = _read(file, series, shapes)
    _require_bounded(model, file)


def _opened(
    model: onnx.ModelProto,
    weights: Mapping[str, NDArray[np.float32]],
    file: Path,
    graphs: dict[str, OnnxGraph],
) -> OnnxModel:
    """Take a model into memory, where it shares a graph that is equal but for the weights."""
    digest = digest_bytes(model.SerializeToString(deterministic=True))
    if digest not in graphs:
        _require_bounded(model, file)
        graphs[digest] = _graph_of(model, weights, file)
    graph = graphs[digest]
    return OnnxModel(graph, weights, [name for name in graph.outputs if name not in PATH_LAYERS])


def _graph_of(model: onnx.ModelProto, weights: Mapping[str, NDArray[np.float32]], file: Path) -> OnnxGraph:
    """Load the graph of a checked model without its weights, which become inputs."""
    inputs = [Shaped(_lengths(value)) for value in model.graph.input]
    outputs = {value.name: Shaped(_lengths(value)) for value in model.graph.output}
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
        raise _foreign(file, f"one that onnxruntime refuses ({shown(str(error), 200)})") from error


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
    model_of_file = _opened(*_taken_apart(content, file, series, _shapes_of(model)), file, {})
    values, expected = (forecast_windows(one, compared_NTF) for one in (model_of_file, model))
    steps_by_output = forecasts_apart(values, expected, span.last_close[places])
    require_same_forecasts(steps_by_output, file, fix)
    return content, max(steps_by_output.values())


def _shapes_of(model: Any) -> ModelShapes:
    """Return what a Keras model takes and gives."""
    outputs = {name: tuple(output.shape[1:]) for name, output in model.output.items()}
    return ModelShapes(tuple(model.inputs[0].shape[1:]), outputs)


MAX_ONNX_BYTES: Final = 128 << 20  # the shipped profiles have 8 MB and less
MAX_NODES: Final = 10_000  # and constants; the shipped profiles have 910 and fewer
MAX_AXES: Final = 8  # of a constant, a result, or an equation; the shipped profiles have 5
_NOT_PLAIN: Final = "one whose numbers lie outside the file or are no plain numbers"
_NUMBER_BYTES: Final[Mapping[int, int]] = {TensorProto.FLOAT: 4, TensorProto.DOUBLE: 8, TensorProto.INT64: 8}
"""Bytes of a number by the type of a constant."""
_RESULT_TYPES: Final = frozenset({*_NUMBER_BYTES, TensorProto.BOOL})
_EQUATION: Final = re.compile(
    rb"(?:([a-z])(?![a-z]*\1)){1,8},(?:([a-z])(?![a-z]*\2)){1,8}->(?:([a-z])(?![a-z]*\3)){1,8}"
)
"""Two operands, so that no large result is in between; a letter once in each."""

_ATTRIBUTES: Final[Mapping[str, tuple[int, Callable[[Any], bool]]]] = {
    "axis": (AttributeProto.INT, lambda axis: abs(axis) <= MAX_AXES),
    "direction": (AttributeProto.STRING, {b"forward", b"reverse", b"bidirectional"}.__contains__),
    "epsilon": (AttributeProto.FLOAT, lambda epsilon: 0 <= epsilon < 1),
    "equation": (AttributeProto.STRING, lambda equation: _EQUATION.fullmatch(equation) is not None),
    "hidden_size": (AttributeProto.INT, lambda size: 1 <= size <= MAX_WHOLE),
    "keepdims": (AttributeProto.INT, (0, 1).__contains__),
    "largest": (AttributeProto.INT, (0, 1).__contains__),
    "linear_before_reset": (AttributeProto.INT, (0, 1).__contains__),
    "perm": (AttributeProto.INTS, lambda axes: len(axes) <= MAX_AXES),
    "to": (AttributeProto.INT, _NUMBER_BYTES.__contains__),
}
"""Attributes that an operation may have: their kind, and which values are allowed."""


@dataclass(frozen=True)
class Operator:
    """How v8 writes an operation of one kind."""

    num_inputs: Container[int]
    attributes: tuple[str, ...] = ()  # of `_ATTRIBUTES`; it has all of them


_OF_ONE: Final = Operator((1,))
_OF_TWO: Final = Operator((2,))
_REDUCTION: Final = Operator((2,), ("keepdims",))

OPERATORS: Final[Mapping[str, Operator]] = {
    "Abs": _OF_ONE,
    "Add": _OF_TWO,
    "Cast": Operator((1,), ("to",)),
    "Concat": Operator(range(1, MAX_NODES), ("axis",)),
    "CumSum": _OF_TWO,
    "Div": _OF_TWO,
    "Einsum": Operator((2,), ("equation",)),
    "Elu": _OF_ONE,
    "Exp": _OF_ONE,
    "GRU": Operator((4, 6), ("hidden_size", "direction", "linear_before_reset")),
    "Gather": Operator((2,), ("axis",)),
    "Gelu": _OF_ONE,
    "Identity": _OF_ONE,
    "LSTM": Operator((4, 7), ("hidden_size", "direction")),
    "LayerNormalization": Operator((3,), ("axis", "epsilon")),
    "Less": _OF_TWO,
    "Log": _OF_ONE,
    "MatMul": _OF_TWO,
    "Max": _OF_TWO,
    "Min": _OF_TWO,
    "Mul": _OF_TWO,
    "Neg": _OF_ONE,
    "Not": _OF_ONE,
    "ReduceMax": _REDUCTION,
    "ReduceMean": _REDUCTION,
    "ReduceMin": _REDUCTION,
    "ReduceSum": _REDUCTION,
    "Relu": _OF_ONE,
    "Reshape": _OF_TWO,
    "Sigmoid": _OF_ONE,
    "Slice": Operator((4,)),  # without steps: a negative one ends the process where a length is 0
    "Softmax": Operator((1,), ("axis",)),
    "Softplus": _OF_ONE,
    "Sqrt": _OF_ONE,
    "Squeeze": _OF_TWO,
    "Sub": _OF_TWO,
    "Tanh": _OF_ONE,
    "TopK": Operator((2,), ("axis", "largest")),
    "Transpose": Operator((1,), ("perm",)),
    "Unsqueeze": _OF_TWO,
}
"""Operators that a file may hold; `v8.model.networks.onnx_graph` writes no other."""


def _read(
    file: Path, series: str, shapes: ModelShapes
) -> tuple[onnx.ModelProto, dict[str, NDArray[np.float32]]]:
    """Read a file and check all but the sizes of its results; the result is that of `_taken_apart`."""
    try:
        content = read_given(file, MAX_ONNX_BYTES)
    except OSError as error:
        raise _foreign(file, error.strerror or "an input error") from error
    return _taken_apart(content, file, series, shapes)


def _taken_apart(
    content: bytes, file: Path, series: str, shapes: ModelShapes
) -> tuple[onnx.ModelProto, dict[str, NDArray[np.float32]]]:
    """Check the bytes of a file that must be made for a series, and be what its metadata say; errors name it.

    Returns the model without its properties and the numbers of its weights, and the weights by name.
    """
    if len(content) > MAX_ONNX_BYTES:
        raise _foreign(file, f"one of {len(content):,} bytes, where at most {MAX_ONNX_BYTES:,} are read")
    try:
        require_known_fields(content)
    except ForeignFieldError as error:
        raise _foreign(file, str(error)) from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf's errors are of another class in each of its implementations
        raise _foreign(file, DAMAGED) from error
    fault = _fault_of(model) or _fault_of_interface(model.graph, shapes)
    if fault is not None:
        raise _foreign(file, fault)
    made_for = {entry.key: entry.value for entry in model.metadata_props}.get(SERIES_KEY)
    if made_for != series:
        raise _foreign(file, f"one that was made for {shown(repr(made_for))}")
    model.ClearField("metadata_props")
    return model, _take_weights(model)


def _require_bounded(model: onnx.ModelProto, file: Path) -> None:
    """Refuse a model of `_read` whose results have shapes that are unknown, contradictory, or too large."""
    fault = _fault_of_sizes(model)
    if fault is not None:
        raise _foreign(file, fault)


def _foreign(file: Path, got: str) -> ArtifactError:
    """Return the error for a file that is not an ONNX file as v8 writes it."""
    rule = "must be an ONNX file of a forecaster as v8 writes it"
    fix = "Make it again with `v8 export RUN --models onnx`, or forecast with param:runtime keras"
    return ArtifactError(where=str(file), rule=rule, got=got, fix=fix)


def _lengths(value: onnx.ValueInfoProto) -> tuple[int | None, ...]:
    """Return the lengths of the axes of an input, output or result; None for one that is not a number."""
    axes = value.type.tensor_type.shape.dim
    return tuple(axis.dim_value if axis.HasField("dim_value") else None for axis in axes)


def _take_weights(model: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
    """Take the numbers of the weights out of a checked model; return them by name."""
    weights = {}
    for constant in model.graph.initializer:
        if constant.name.startswith(WEIGHT_PREFIX):
            weights[constant.name] = numpy_helper.to_array(constant)
            constant.ClearField("raw_data")
    return weights


def _fault_of(model: onnx.ModelProto) -> str | None:
    """Describe what of a model v8 never writes; None if there is nothing."""
    versions = [(entry.domain, entry.version) for entry in model.opset_import]
    if model.ir_version != FORMAT_VERSION or versions != [("", OPERATOR_SET)]:
        return f"one of format {model.ir_version} with the operator sets {shown(str(versions), 80)}"
    for kind, items in (("operations", model.graph.node), ("constants", model.graph.initializer)):
        if len(items) > MAX_NODES:
            return f"one of {len(items):,} {kind}"
    return _fault_of_nodes(model.graph) or _fault_of_constants(model.graph)


def _fault_of_nodes(graph: onnx.GraphProto) -> str | None:
    unknown = {node.op_type for node in graph.node} - OPERATORS.keys()
    if unknown:
        return f"one with the operators {listed(sorted(shown(name, 40) for name in unknown))}"
    for node in graph.node:
        operator = OPERATORS[node.op_type]
        if len(node.input) not in operator.num_inputs:
            return f"one with {node.op_type} of {len(node.input)} inputs"
        if sorted(attribute.name for attribute in node.attribute) != sorted(operator.attributes):
            return f"one with {node.op_type} of other attributes than v8 writes"
        for attribute in node.attribute:
            kind, is_allowed = _ATTRIBUTES[attribute.name]
            if attribute.type != kind or not is_allowed(helper.get_attribute_value(attribute)):
                return f"one with {node.op_type} of another {attribute.name} than v8 writes"
    uses = Counter(name for node in graph.node for name in node.output if name)
    uses.update(constant.name for constant in graph.initializer)
    uses.update(value.name for value in graph.input)
    twice = sorted(name for name, number in uses.items() if number > 1)
    return f"one with several results of the name {shown(twice[0], 40)}" if twice else None


def _fault_of_constants(graph: onnx.GraphProto) -> str | None:
    if not all(map(_is_plain, graph.initializer)):
        return _NOT_PLAIN
    for constant in graph.initializer:
        is_weight = constant.name.startswith(WEIGHT_PREFIX)
        if is_weight and constant.data_type != TensorProto.FLOAT:
            return _NOT_PLAIN
        if constant.data_type == TensorProto.INT64:
            numbers = numpy_helper.to_array(constant)
            if numbers.min() < -MAX_WHOLE or numbers.max() > MAX_WHOLE:
                return f"one with a constant of whole numbers from {numbers.min():,} to {numbers.max():,}"
    return None


def _is_plain(constant: onnx.TensorProto) -> bool:
    """Return whether a constant is a plain array inside the file."""
    num_bytes = _NUMBER_BYTES.get(constant.data_type)
    if num_bytes is None or len(constant.dims) > MAX_AXES or any(length < 1 for length in constant.dims):
        return False
    return len(constant.raw_data) == num_bytes * math.prod(constant.dims)


def _fault_of_interface(graph: onnx.GraphProto, shapes: ModelShapes) -> str | None:
    """Describe how input and outputs differ from those of the metadata; None if they do not."""
    if [value.name for value in graph.input] != [WINDOW] or not graph.output:
        return "one with other inputs than the window"
    for value in [*graph.input, *graph.output]:
        axes = value.type.tensor_type.shape.dim
        if value.type.tensor_type.elem_type != TensorProto.FLOAT or not 2 <= len(axes) <= MAX_AXES:
            return f"one whose {shown(value.name, 40)} is no array of float32 numbers"
        if axes[0].dim_param != BATCH:
            return "one with a fixed number of windows"
        if not all(1 <= (length or 0) <= MAX_WHOLE for length in _lengths(value)[1:]):
            return f"one whose {shown(value.name, 40)} has the lengths {shown(_lengths(value)[1:], 80)}"
    window = _lengths(graph.input[0])[1:]
    outputs = {value.name: _lengths(value)[1:] for value in graph.output if value.name not in PATH_LAYERS}
    if window != shapes.window or outputs != shapes.outputs:
        return f"{window} to {shown(outputs, 200)}, where its metadata say {shapes}"
    return None


def _fault_of_sizes(model: onnx.ModelProto) -> str | None:
    """Describe results of unknown shape, or too large ones, for one window; None if there are none."""
    of_one_window = onnx.ModelProto()
    of_one_window.CopyFrom(model)
    for value in [*of_one_window.graph.input, *of_one_window.graph.output]:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    try:
        shaped = shape_inference.infer_shapes(
            of_one_window, check_type=True, strict_mode=True, data_prop=True
        )
    except (shape_inference.InferenceError, ValueError, TypeError, RuntimeError) as error:
        return f"operations that do not fit together ({shown(str(error), 200)})"
    inferred = {value.name: value for value in [*shaped.graph.value_info, *shaped.graph.output]}
    num_worked = 0
    for name in _results(model.graph):
        if name not in inferred:
            return "one with results of unknown shape"
        shape = _lengths(inferred[name])
        if inferred[name].type.tensor_type.elem_type not in _RESULT_TYPES:
            return "one with results that are no numbers"
        if len(shape) > MAX_AXES or any(length is None or length < 1 for length in shape):
            return "one that works on a number of values that depends on them"
        num_worked += math.prod(length or 0 for length in shape)
    return f"one that works on {num_worked:,} numbers a window" if num_worked > MAX_WORKED_NUMBERS else None


def _results(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from filter(None, node.output)


MAX_FIELDS: Final = 500_000  # of a file; the shipped profiles have 10,000 and fewer
MAX_TEXT_BYTES: Final = 1_024  # of a name or an equation
MAX_FIELD_NUMBER: Final = 1 << 31
"""Largest number in a field, and its negative the smallest; lengths have a lower limit of their own."""

_WHOLE: Final = "a whole number"
_REAL: Final = "a real number"  # of four bytes
_TEXT: Final = "a text"
_NUMBERS: Final = "the numbers of a constant"

_MESSAGES: Final[Mapping[str, Mapping[int, str]]] = {
    "model": {1: _WHOLE, 2: _TEXT, 7: "graph", 8: "operator set", 14: "property"},
    "operator set": {1: _TEXT, 2: _WHOLE},
    "property": {1: _TEXT, 2: _TEXT},
    "graph": {1: "node", 2: _TEXT, 5: "constant", 11: "value", 12: "value"},
    "node": {1: _TEXT, 2: _TEXT, 4: _TEXT, 5: "attribute"},
    "attribute": {1: _TEXT, 2: _REAL, 3: _WHOLE, 4: _TEXT, 8: _WHOLE, 20: _WHOLE},
    "constant": {1: _WHOLE, 2: _WHOLE, 8: _TEXT, 9: _NUMBERS},
    "value": {1: _TEXT, 2: "type"},
    "type": {1: "tensor type"},
    "tensor type": {1: _WHOLE, 2: "shape"},
    "shape": {1: "axis"},
    "axis": {1: _WHOLE, 2: _TEXT},
}
"""What each field of a message holds, by its number: a value, or a message of this name."""

DAMAGED: Final = "a damaged file, or one of another kind"
_VARINT: Final = 0  # ways in which a field is encoded
_DELIMITED: Final = 2
_FOUR_BYTES: Final = 5
_VARINT_BYTES: Final = 10  # of a number of 64 bits, seven bits a byte


class ForeignFieldError(ValueError):
    """A file holds something else than v8 writes; its text describes what."""


def require_known_fields(content: bytes) -> None:
    """Check the fields of an ONNX file before a library reads it.

    An ONNX file is a message of Protocol Buffers, of numbered fields, and a message may hold messages. A
    library that reads it makes an object of each, so two bytes of a file can cost a hundred bytes of memory,
    and it keeps fields that it does not know. So a file of somebody else is walked through first:

    1. Every message has only the fields that v8 writes. That leaves out functions, graphs inside operations,
       shapes of results, notes, numbers in other files and fields that no version of ONNX knows.
    2. Numbers are at most `MAX_FIELD_NUMBER`, texts at most `MAX_TEXT_BYTES`, fields at most `MAX_FIELDS`.

    For the numbers of the fields see https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, for the encoding
    https://protobuf.dev/programming-guides/encoding/.

    Raises:
        ForeignFieldError: If they hold something else than the fields that v8 writes.
    """
    num_fields = 0
    pending = [("model", 0, len(content))]
    while pending:
        message, place, end = pending.pop()
        while place < end:
            num_fields += 1
            if num_fields > MAX_FIELDS:
                raise ForeignFieldError(f"one of more than {MAX_FIELDS:,} fields")
            key, place = _whole(content, place, end)
            held = _MESSAGES[message].get(key >> 3)
            if held is None:
                described = f"one whose {message} has a field that v8 does not write"
                raise ForeignFieldError(f"{described} (number {key >> 3})")
            place, inner = _value(content, place, end, held, encoding=key & 7)
            if inner is not None:
                pending.append((held, *inner))


def _value(
    content: bytes, place: int, end: int, held: str, *, encoding: int
) -> tuple[int, tuple[int, int] | None]:
    """Check the value of a field that begins at a place; return the place after it.

    The second is the first and past-the-end place of the value if it is a message, else None.
    """
    expected = {_WHOLE: _VARINT, _REAL: _FOUR_BYTES}.get(held, _DELIMITED)
    if encoding != expected:
        raise ForeignFieldError(f"one with {held} in another encoding than v8 writes")
    if held == _WHOLE:
        number, place = _whole(content, place, end)
        signed = number - (1 << 64) if number >> 63 else number
        if abs(signed) > MAX_FIELD_NUMBER:
            raise ForeignFieldError(f"one with the number {signed:,} in its structure")
        return place, None
    length = 4
    if held != _REAL:
        length, place = _whole(content, place, end)
    if length > end - place:
        raise ForeignFieldError(DAMAGED)
    if held == _TEXT and length > MAX_TEXT_BYTES:
        raise ForeignFieldError(f"one with a text of {length:,} bytes")
    inner = (place, place + length) if held in _MESSAGES else None
    return place + length, inner


def _whole(content: bytes, place: int, end: int) -> tuple[int, int]:
    """Return the number at a place, from 0 and below 2^64, and the place after it."""
    number = 0
    for index, byte in enumerate(content[place : min(end, place + _VARINT_BYTES)]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number & ((1 << 64) - 1), place + index + 1
    raise ForeignFieldError(DAMAGED)
