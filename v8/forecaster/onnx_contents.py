"""What an ONNX file may hold: the arithmetic that v8 writes, of known size. It may come from anybody.

`read_onnx` checks a file before the native code of `onnx` or `onnxruntime` sees anything of it but its bytes:

1. It is at most `MAX_ONNX_BYTES` long and has only the fields that v8 writes (`require_known_fields`).
2. It has the one operator set and file format that v8 writes, and only operators of `OPERATORS` with their
   attributes: none of them reads a file, calls a function of another library, or holds a graph of its own.
3. All constants are plain numbers inside the file. Every length is 1 or more, and whole numbers, which may be
   lengths, axes or places, are at most `MAX_WHOLE`.
4. Input and outputs have the shapes of its metadata.

Only then `require_bounded` infers the shapes of all results: they must be known from the constants, and all
results of one window together have at most `MAX_WORKED_NUMBERS` numbers.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper, shape_inference

from v8.base.errors import ArtifactError, listed, shown
from v8.base.records import read_given
from v8.forecaster.metadata import ModelShapes
from v8.forecaster.model_file import MAX_WHOLE, MAX_WORKED_NUMBERS
from v8.model.baselines.ranges import PATH_LAYERS
from v8.model.networks.onnx_graph import BATCH, FORMAT_VERSION, OPERATOR_SET, WEIGHT_PREFIX, WINDOW

MAX_ONNX_BYTES: Final = 128 << 20  # the shipped profiles have 8 MB and less
MAX_NODES: Final = 10_000  # and constants; the shipped profiles have 910 and fewer
MAX_AXES: Final = 8  # of a constant, a result, or an equation; the shipped profiles have 5
SERIES_KEY: Final = "series"  # key of the file's properties: the series that the model was made for
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


def read_onnx(
    file: Path, series: str, shapes: ModelShapes
) -> tuple[onnx.ModelProto, dict[str, NDArray[np.float32]]]:
    """Read a file and check all but the sizes of its results.

    Args:
        file: The file.
        series: Name of the series that it must be made for.
        shapes: What its metadata say that it takes and gives.

    Returns:
        The model without the numbers of its weights and its properties, and the weights by name.

    Raises:
        ArtifactError: If it is missing or damaged, of another series, or anything but arithmetic.
    """
    try:
        content = read_given(file, MAX_ONNX_BYTES)
    except OSError as error:
        raise foreign(file, error.strerror or "an input error") from error
    return take_apart(content, file, series, shapes)


def take_apart(
    content: bytes, file: Path, series: str, shapes: ModelShapes
) -> tuple[onnx.ModelProto, dict[str, NDArray[np.float32]]]:
    """Check the bytes of a file as `read_onnx` does, and return the same; errors name the file."""
    if len(content) > MAX_ONNX_BYTES:
        raise foreign(file, f"one of {len(content):,} bytes, where at most {MAX_ONNX_BYTES:,} are read")
    try:
        require_known_fields(content)
    except ForeignFieldError as error:
        raise foreign(file, str(error)) from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf's errors are of another class in each of its implementations
        raise foreign(file, DAMAGED) from error
    fault = _fault_of(model) or _fault_of_interface(model.graph, shapes)
    if fault is not None:
        raise foreign(file, fault)
    made_for = {entry.key: entry.value for entry in model.metadata_props}.get(SERIES_KEY)
    if made_for != series:
        raise foreign(file, f"one that was made for {shown(repr(made_for))}")
    model.ClearField("metadata_props")
    return model, _take_weights(model)


def require_bounded(model: onnx.ModelProto, file: Path) -> None:
    """Infer the shapes of all results of a model of `read_onnx`.

    Raises:
        ArtifactError: If they are unknown, contradict each other, or are too large.
    """
    fault = _fault_of_sizes(model)
    if fault is not None:
        raise foreign(file, fault)


def foreign(file: Path, got: str) -> ArtifactError:
    """Return the error for a file that is not an ONNX file as v8 writes it."""
    rule = "must be an ONNX file of a forecaster as v8 writes it"
    fix = "Make it again with `v8 export RUN --models onnx`, or forecast with param:runtime keras"
    return ArtifactError(where=str(file), rule=rule, got=got, fix=fix)


def lengths(value: onnx.ValueInfoProto) -> tuple[int | None, ...]:
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
        if not all(1 <= (length or 0) <= MAX_WHOLE for length in lengths(value)[1:]):
            return f"one whose {shown(value.name, 40)} has the lengths {shown(lengths(value)[1:], 80)}"
    window = lengths(graph.input[0])[1:]
    outputs = {value.name: lengths(value)[1:] for value in graph.output if value.name not in PATH_LAYERS}
    if window != shapes.window or outputs != shapes.outputs:
        return f"{window} to {shown(outputs, 200)}, where its metadata say {shapes}"
    return None


def _fault_of_sizes(model: onnx.ModelProto) -> str | None:
    """Describe results of unknown shape, or too large ones, for one window; None if there are none."""
    one = onnx.ModelProto()
    one.CopyFrom(model)
    for value in [*one.graph.input, *one.graph.output]:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    try:
        shaped = shape_inference.infer_shapes(one, check_type=True, strict_mode=True, data_prop=True)
    except (shape_inference.InferenceError, ValueError, TypeError, RuntimeError) as error:
        return f"operations that do not fit together ({shown(str(error), 200)})"
    inferred = {value.name: value for value in [*shaped.graph.value_info, *shaped.graph.output]}
    num_worked = 0
    for name in _results(model.graph):
        if name not in inferred:
            return "one with results of unknown shape"
        shape = lengths(inferred[name])
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
