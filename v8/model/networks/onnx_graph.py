"""A published Keras model written as an ONNX graph of the same operations.

The graph of Keras is walked from inputs to outputs, and every layer or operation becomes nodes of the default
ONNX operator set. No other tool is needed, and every shape but the number of windows is a constant of the
file, so that whoever loads it can tell its memory beforehand. A layer or operation that is not listed here is
an error with its name.

Some operations of Keras have no counterpart with the same precision: `log1p` and `expm1` are computed in
float64, because in float32 1 + x loses the digits of the small range of a bar.

Gates of recurrent layers are ordered otherwise in ONNX: i, o, f, c (LSTM) and z, r, h (GRU), in Keras i, f,
c, o and z, r, h. See https://onnx.ai/onnx/operators/ and `keras.layers.LSTM`, `keras.layers.GRU`.

Shape legend: B batch, T steps, D channels, U units.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPERATOR_SET: Final = 20  # version of the operators: onnxruntime has known it since 1.17
FORMAT_VERSION: Final = 9  # version of the file format that came with it
WINDOW: Final = "window"  # name of the input
BATCH: Final = "windows"  # name of the first axis of input and outputs, whose length is free
PRODUCER: Final = "v8"
WEIGHT_PREFIX: Final = "weight"
"""Beginning of the names of weights. Other constants are the same for all models of a profile."""

Emit = Callable[["GraphWriter", Any, Any], Any]
"""Writes the nodes of one call of a layer: from the writer, the layer and the call's arguments, with tensors
replaced by their names in the file, to the name or names of the results."""


class ConversionError(ValueError):
    """A layer or operation of a model has no counterpart in the ONNX graph."""


def to_onnx(model: Any, extra: Collection[str] = ()) -> onnx.ModelProto:
    """Write a Keras model with one input as an ONNX model.

    Args:
        model: A functional model from (B, T, F) to a dict of outputs, (B, ...), float32.
        extra: Names of layers whose output becomes an output of the file, too, named like the layer; those
            that the model lacks are left out.

    Raises:
        ConversionError: If it has a layer or an argument without a counterpart.
    """
    writer = GraphWriter()
    (window,) = model.inputs
    named = dict(model.output)
    for layer in model.layers:
        if layer.name in extra:
            named[layer.name] = layer.output
    writer.names[id(window)] = WINDOW
    writer.walk(model)
    outputs = []
    for name, tensor in named.items():
        writer.node("Identity", [writer.names[id(tensor)]], output=name)
        outputs.append(_value(name, tensor.shape))
    graph = helper.make_graph(
        writer.nodes, model.name, [_value(WINDOW, window.shape)], outputs, writer.constants
    )
    return helper.make_model(
        graph,
        producer_name=PRODUCER,
        ir_version=FORMAT_VERSION,
        opset_imports=[helper.make_opsetid("", OPERATOR_SET)],
    )


def _value(name: str, shape: Sequence[int | None]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, *shape[1:]])


class GraphWriter:
    """Collects the nodes and constants of a graph; every result has a name of its own."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.names: dict[int, str] = {}
        """Names of results by the identity of the Keras tensor."""
        self._stored: dict[tuple[Any, ...], str] = {}
        self._num_results = 0

    def walk(self, model: Any) -> None:
        """Write all calls of a functional model whose inputs have names."""
        depths = sorted(model._nodes_by_depth, reverse=True)
        for depth in depths:
            for call in model._nodes_by_depth[depth]:
                if not call.is_input:
                    self._call(call)

    def node(self, kind: str, inputs: Sequence[str], *, output: str = "", **attributes: Any) -> str:
        """Append a node with one result and return its name."""
        name = output or self._new_name()
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def results(self, kind: str, inputs: Sequence[str], num_results: int, **attributes: Any) -> list[str]:
        """Append a node with several results and return their names."""
        names = [self._new_name() for _ in range(num_results)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        """Store an array that is the same for all models of a profile and return its name."""
        array = np.array(values, dtype, order="C")
        key = array.dtype.str, array.shape, array.tobytes()
        return self._store(key, array, "constant")

    def weight(self, owner: Any, role: str, values: NDArray[np.float32]) -> str:
        """Store a weight of a layer and return its name; each is stored once, however often it is used."""
        array = np.array(values, np.float32, order="C")
        return self._store((id(owner), role), array, WEIGHT_PREFIX)

    def _store(self, key: tuple[Any, ...], array: NDArray[Any], prefix: str) -> str:
        if key not in self._stored:
            name = f"{prefix}{len(self.constants)}"
            self.constants.append(numpy_helper.from_array(array, name))
            self._stored[key] = name
        return self._stored[key]

    def integers(self, values: Any) -> str:
        """Store integers, such as axes or places, and return their name."""
        return self.constant(values, np.int64)

    def value(self, argument: Any) -> str:
        """Return the name of an argument: of a result, or of a number or array, which is stored."""
        return argument if isinstance(argument, str) else self.constant(argument)

    def _new_name(self) -> str:
        self._num_results += 1
        return f"r{self._num_results}"

    def _call(self, call: Any) -> None:
        """Write one call of a layer or operation."""
        layer = call.operation
        if hasattr(layer, "_nodes_by_depth"):
            self._inner_model(layer, call)
            return
        kind = type(layer).__name__
        if kind not in EMITTERS:
            raise ConversionError(f"{layer.name}: {kind} has no counterpart in the ONNX graph")
        arguments = Arguments(self._named(call.arguments.args), self._named(call.arguments.kwargs), call)
        results = EMITTERS[kind](self, layer, arguments)
        names = [results] if isinstance(results, str) else results
        for tensor, name in zip(call.output_tensors, names, strict=True):
            self.names[id(tensor)] = name

    def _inner_model(self, model: Any, call: Any) -> None:
        for inner, outer in zip(model.inputs, call.input_tensors, strict=True):
            self.names[id(inner)] = self.names[id(outer)]
        self.walk(model)
        for outer, inner in zip(call.output_tensors, model.outputs, strict=True):
            self.names[id(outer)] = self.names[id(inner)]

    def _named(self, argument: Any) -> Any:
        """Replace the tensors in arguments of a call by their names."""
        if id(argument) in self.names:
            return self.names[id(argument)]
        if isinstance(argument, list | tuple):
            return [self._named(value) for value in argument]
        if isinstance(argument, Mapping):
            return {key: self._named(value) for key, value in argument.items()}
        return argument


class Arguments:
    """The arguments of a call: tensors are names of results, other values are as they were passed."""

    def __init__(self, positional: Sequence[Any], named: Mapping[str, Any], call: Any) -> None:
        self.positional = positional
        self.named = {name: value for name, value in named.items() if value is not None}
        self.shape = tuple(call.input_tensors[0].shape)  # of the first tensor; the first axis may be None
        self.output_shape = tuple(call.output_tensors[0].shape)

    @property
    def first(self) -> Any:
        """The first argument."""
        return self.positional[0] if self.positional else next(iter(self.named.values()))

    def get(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument that is passed by position or by name."""
        if place < len(self.positional):
            return self.positional[place]
        return self.named.get(name, default)


# Operations of `keras.ops`.


def _elementwise(kind: str) -> Emit:
    """Return the writer of an operation of one or two arguments."""

    def emit(writer: GraphWriter, operation: Any, call: Arguments) -> str:
        arguments = [*call.positional, *call.named.values()]
        return writer.node(kind, [writer.value(argument) for argument in arguments])

    return emit


def _in_float64(kind: str, *, has_one_before: bool) -> Emit:
    """Return the writer of log(x + 1) or exp(x) - 1, in float64."""

    def emit(writer: GraphWriter, operation: Any, call: Arguments) -> str:
        one = writer.constant(1.0, np.float64)
        x = writer.node("Cast", [call.first], to=TensorProto.DOUBLE)
        if has_one_before:
            x = writer.node(kind, [writer.node("Add", [x, one])])
        else:
            x = writer.node("Sub", [writer.node(kind, [x]), one])
        return writer.node("Cast", [x], to=TensorProto.FLOAT)

    return emit


def _reduced(kind: str) -> Emit:
    """Return the writer of a sum, mean, maximum or minimum along axes."""

    def emit(writer: GraphWriter, operation: Any, call: Arguments) -> str:
        axes = _axes(operation.axis, len(call.shape))
        return writer.node(kind, [call.first, writer.integers(axes)], keepdims=int(bool(operation.keepdims)))

    return emit


def _axes(axis: Any, num_axes: int) -> list[int]:
    """Return the axes that an operation names, counted from the first; all but none is named."""
    if axis is None:
        return list(range(num_axes))
    axes = axis if isinstance(axis, list | tuple) else [axis]
    return [number % num_axes for number in axes]


def _take(writer: GraphWriter, operation: Any, call: Arguments) -> str:
    places = writer.integers(call.get(1, "indices"))
    return writer.node("Gather", [call.first, places], axis=operation.axis)


def _concatenate(writer: GraphWriter, operation: Any, call: Arguments) -> str:
    pieces = [writer.value(piece) for piece in call.first]
    return writer.node("Concat", pieces, axis=operation.axis)


def _stack(writer: GraphWriter, operation: Any, call: Arguments) -> str:
    axis = operation.axis % len(call.output_shape)
    pieces = [writer.node("Unsqueeze", [piece, writer.integers([axis])]) for piece in call.first]
    return writer.node("Concat", pieces, axis=axis)


def _expand(writer: GraphWriter, operation: Any, call: Arguments) -> str:
    axes = _axes(operation.axis, len(call.output_shape))
    return writer.node("Unsqueeze", [call.first, writer.integers(axes)])


def _squeeze(writer: GraphWriter, operation: Any, call: Arguments) -> str:
    axes = _axes(operation.axis, len(call.shape))
    return writer.node("Squeeze", [call.first, writer.integers(axes)])


def _repeat(writer: GraphWriter, operation: Any, call: Arguments) -> str:
    places = np.repeat(np.arange(call.shape[operation.axis]), operation.repeats)
    return writer.node("Gather", [call.first, writer.integers(places)], axis=operation.axis)


def _flip(writer: GraphWriter, operation: Any, call: Arguments) -> str:
    x = call.first
    for axis in _axes(operation.axis, len(call.shape)):
        x = writer.node("Gather", [x, writer.integers(np.arange(call.shape[axis])[::-1])], axis=axis)
    return x


def _transpose(writer: GraphWriter, operation: Any, call: Arguments) -> str:
    axes = operation.axes or tuple(reversed(range(len(call.shape))))
    return writer.node("Transpose", [call.first], perm=list(axes))


def _cumsum(writer: GraphWriter, operation: Any, call: Arguments) -> str:
    return writer.node("CumSum", [call.first, writer.constant(operation.axis, np.int64)])


def _sort(writer: GraphWriter, operation: Any, call: Arguments) -> str:
    num_values = writer.integers([call.shape[operation.axis]])
    outputs = writer.results("TopK", [call.first, num_values], 2, axis=operation.axis, largest=0)
    return outputs[0]


def _square(writer: GraphWriter, operation: Any, call: Arguments) -> str:
    return writer.node("Mul", [call.first, call.first])


def _softmax(writer: GraphWriter, operation: Any, call: Arguments) -> str:
    return writer.node("Softmax", [call.first], axis=operation.axis)


def _filled(is_one: bool) -> Emit:
    """Return the writer of zeros or ones of the shape of a tensor, without reading its shape at run time."""

    def emit(writer: GraphWriter, operation: Any, call: Arguments) -> str:
        is_less = writer.node("Less", [call.first, call.first])  # false for every number
        value = writer.node("Not", [is_less]) if is_one else is_less
        is_integer = "int" in str(operation.dtype)
        return writer.node("Cast", [value], to=TensorProto.INT64 if is_integer else TensorProto.FLOAT)

    return emit


# Layers.


def _weights(variable: Any) -> NDArray[np.float32]:
    return np.asarray(variable.value if hasattr(variable, "value") else variable, np.float32)


def _weight(writer: GraphWriter, layer: Any, role: str) -> str:
    """Store the weight of a layer that is an attribute of this name."""
    return writer.weight(layer, role, _weights(getattr(layer, role)))


def _activated(writer: GraphWriter, activation: Any, x: str) -> str:
    name = getattr(activation, "__name__", str(activation))
    if name == "linear":
        return x
    if name not in ACTIVATIONS:
        raise ConversionError(f"the activation {name} has no counterpart in the ONNX graph")
    return writer.node(ACTIVATIONS[name], [x])


ACTIVATIONS: Final = {
    "elu": "Elu",
    "gelu": "Gelu",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "tanh": "Tanh",
}
"""Operators by the name of the activation; each with the defaults of Keras."""


def _activation(writer: GraphWriter, layer: Any, call: Arguments) -> str:
    return _activated(writer, layer.activation, call.first)


def _identity(writer: GraphWriter, layer: Any, call: Arguments) -> str:
    return str(call.first)


def _dense(writer: GraphWriter, layer: Any, call: Arguments) -> str:
    x = writer.node("MatMul", [call.first, _weight(writer, layer, "kernel")])
    if layer.bias is not None:
        x = writer.node("Add", [x, _weight(writer, layer, "bias")])
    return _activated(writer, layer.activation, x)


def _einsum_dense(writer: GraphWriter, layer: Any, call: Arguments) -> str:
    x = writer.node("Einsum", [call.first, _weight(writer, layer, "kernel")], equation=layer.equation)
    if layer.bias is not None:
        x = writer.node("Add", [x, _weight(writer, layer, "bias")])
    return _activated(writer, layer.activation, x)


def _embedding(writer: GraphWriter, layer: Any, call: Arguments) -> str:
    return writer.node("Gather", [_weight(writer, layer, "embeddings"), call.first], axis=0)


def _layer_normalization(writer: GraphWriter, layer: Any, call: Arguments) -> str:
    if _axes(layer.axis, len(call.shape)) != [len(call.shape) - 1] or not (layer.scale and layer.center):
        raise ConversionError(f"{layer.name}: a normalization is converted along the last axis only")
    parts = [_weight(writer, layer, role) for role in ("gamma", "beta")]
    return writer.node("LayerNormalization", [call.first, *parts], axis=-1, epsilon=float(layer.epsilon))


def _cropping(writer: GraphWriter, layer: Any, call: Arguments) -> str:
    first, last = layer.cropping
    ends = [writer.integers([number]) for number in (first, call.shape[1] - last, 1)]
    return writer.node("Slice", [call.first, *ends])


def _repeat_vector(writer: GraphWriter, layer: Any, call: Arguments) -> str:
    x = writer.node("Unsqueeze", [call.first, writer.integers([1])])
    return writer.node("Gather", [x, writer.integers([0] * layer.n)], axis=1)


def _reshape(writer: GraphWriter, layer: Any, call: Arguments) -> str:
    # 0 keeps the first axis, the windows.
    return writer.node("Reshape", [call.first, writer.integers([0, *call.output_shape[1:]])])


def _additive_attention(writer: GraphWriter, layer: Any, call: Arguments) -> str:
    """Write softmax(sum(scale * tanh(query + key))) @ value, as `keras.layers.AdditiveAttention` computes."""
    query, value, *rest = call.first
    key = rest[0] if rest else value
    query = writer.node("Unsqueeze", [query, writer.integers([2])])
    key = writer.node("Unsqueeze", [key, writer.integers([1])])
    x = writer.node("Tanh", [writer.node("Add", [query, key])])
    if layer.use_scale:
        x = writer.node("Mul", [x, _weight(writer, layer, "scale")])
    scores = writer.node("ReduceSum", [x, writer.integers([-1])], keepdims=0)
    return writer.node("MatMul", [writer.node("Softmax", [scores], axis=-1), value])


# Recurrent layers.


def _recurrent(writer: GraphWriter, layer: Any, call: Arguments) -> Any:
    """Write a layer `LSTM` or `GRU`: its result, then its last states where it returns them."""
    states = call.get(1, "initial_state") or []
    if not isinstance(states, list):
        states = [states]
    steps, last = _loop(writer, [layer.cell], call.first, states, is_backward=layer.go_backwards)
    x = last[0]
    if layer.return_sequences:
        x = writer.node("Squeeze", [steps, writer.integers([1])])
        x = writer.node("Transpose", [x], perm=[1, 0, 2])
        if layer.go_backwards:
            x = _reversed(writer, x, call.shape[1])
    return [x, *last] if layer.return_state else x


def _reversed(writer: GraphWriter, x: str, num_steps: int) -> str:
    places = writer.integers(np.arange(num_steps)[::-1])
    return writer.node("Gather", [x, places], axis=1)


def _bidirectional(writer: GraphWriter, layer: Any, call: Arguments) -> str:
    """Write both directions as one node; their results are concatenated."""
    forward = layer.forward_layer
    if layer.merge_mode != "concat" or forward.return_state or call.get(1, "initial_state"):
        raise ConversionError(f"{layer.name}: only directions without states are converted, concatenated")
    steps, last = _loop(writer, [forward.cell, layer.backward_layer.cell], call.first, [])
    if forward.return_sequences:
        x = writer.node("Transpose", [steps], perm=[2, 0, 1, 3])
        return writer.node("Reshape", [x, writer.integers([0, *call.output_shape[1:]])])
    return last[0]


def _cell(writer: GraphWriter, cell: Any, call: Arguments) -> list[str]:
    """Write one step of an `LSTMCell` or `GRUCell`: its result, and the new states."""
    states = call.get(1, "states")
    x = writer.node("Unsqueeze", [call.first, writer.integers([1])])
    _, last = _loop(writer, [cell], x, states if isinstance(states, list) else [states])
    return [last[0], *last]


def _loop(
    writer: GraphWriter,
    cells: Sequence[Any],
    x_BTD: str,
    states: Sequence[str],
    *,
    is_backward: bool = False,
) -> tuple[str, list[str]]:
    """Write a loop over the steps with one cell, or with one for each direction.

    Returns:
        All results, (T, directions, B, U), and the last states, (B, directions * U) each.
    """
    kind = _kind_of(cells[0])
    parts = [_gate_weights(cell) for cell in cells]
    inputs = [writer.node("Transpose", [x_BTD], perm=[1, 0, 2])]
    roles = ("kernels", "recurrent kernels", "biases")
    for role, arrays in zip(roles, zip(*parts, strict=True), strict=True):
        inputs.append(writer.weight(cells[0], role, np.stack(arrays)))
    if states:
        axes = writer.integers([0])
        inputs += ["", *(writer.node("Unsqueeze", [state, axes]) for state in states)]
    direction = "bidirectional" if len(cells) > 1 else "reverse" if is_backward else "forward"
    options: dict[str, Any] = {"hidden_size": cells[0].units, "direction": direction}
    if kind == "GRU":
        options["linear_before_reset"] = 1
    num_states = 2 if kind == "LSTM" else 1
    steps, *last = writer.results(kind, inputs, 1 + num_states, **options)
    flat = []
    for state in last:
        if len(cells) == 1:
            flat.append(writer.node("Squeeze", [state, writer.integers([0])]))
        else:
            x = writer.node("Transpose", [state], perm=[1, 0, 2])
            flat.append(writer.node("Reshape", [x, writer.integers([0, len(cells) * cells[0].units])]))
    return steps, flat


def _kind_of(cell: Any) -> str:
    """Return "LSTM" or "GRU"; raise for settings that the operator has not."""
    kind = type(cell).__name__.removesuffix("Cell")
    activations = [getattr(cell, name).__name__ for name in ("recurrent_activation", "activation")]
    is_usual = activations == ["sigmoid", "tanh"] and getattr(cell, "reset_after", True)
    if kind not in ("LSTM", "GRU") or not is_usual:
        raise ConversionError(f"{cell.name}: only LSTM, and GRU with reset_after, are converted")
    return kind


def _gate_weights(cell: Any) -> tuple[NDArray[np.float32], ...]:
    """Return the kernels, (4 or 3 U, D) and (4 or 3 U, U), and the biases of both, with the gates of ONNX."""
    is_lstm = type(cell).__name__ == "LSTMCell"
    kernels = [_in_order(_weights(cell.kernel), is_lstm), _in_order(_weights(cell.recurrent_kernel), is_lstm)]
    if cell.bias is None:
        biases = np.zeros((2, kernels[0].shape[-1]), np.float32)
    else:
        biases = np.atleast_2d(_in_order(_weights(cell.bias), is_lstm))
    if is_lstm and cell.bias is not None:
        biases = np.concatenate([biases, np.zeros_like(biases)])
    return kernels[0].T, kernels[1].T, biases.ravel()


def _in_order(weights: NDArray[np.float32], is_lstm: bool) -> NDArray[np.float32]:
    """Bring the gates of an LSTM, along the last axis, from the order i, f, c, o to i, o, f, c."""
    if not is_lstm:
        return weights
    gates = np.split(weights, 4, axis=-1)
    return np.concatenate([gates[0], gates[3], gates[1], gates[2]], axis=-1)


EMITTERS: Final[Mapping[str, Emit]] = {
    "Absolute": _elementwise("Abs"),
    "Activation": _activation,
    "Add": _elementwise("Add"),
    "AdditiveAttention": _additive_attention,
    "Bidirectional": _bidirectional,
    "Concatenate": _concatenate,
    "Cropping1D": _cropping,
    "Cumsum": _cumsum,
    "Dense": _dense,
    "Divide": _elementwise("Div"),
    "Dropout": _identity,
    "EinsumDense": _einsum_dense,
    "Embedding": _embedding,
    "Exp": _elementwise("Exp"),
    "ExpandDims": _expand,
    "Expm1": _in_float64("Exp", has_one_before=False),
    "Flip": _flip,
    "GRU": _recurrent,
    "GRUCell": _cell,
    "Identity": _identity,
    "LSTM": _recurrent,
    "LSTMCell": _cell,
    "LayerNormalization": _layer_normalization,
    "Log": _elementwise("Log"),
    "Log1p": _in_float64("Log", has_one_before=True),
    "Matmul": _elementwise("MatMul"),
    "Max": _reduced("ReduceMax"),
    "Maximum": _elementwise("Max"),
    "Mean": _reduced("ReduceMean"),
    "Min": _reduced("ReduceMin"),
    "Minimum": _elementwise("Min"),
    "Multiply": _elementwise("Mul"),
    "Negative": _elementwise("Neg"),
    "OnesLike": _filled(is_one=True),
    "Relu": _elementwise("Relu"),
    "Repeat": _repeat,
    "RepeatVector": _repeat_vector,
    "Reshape": _reshape,
    "Sigmoid": _elementwise("Sigmoid"),
    "Softmax": _softmax,
    "Sort": _sort,
    "SpatialDropout1D": _identity,
    "Sqrt": _elementwise("Sqrt"),
    "Square": _square,
    "Squeeze": _squeeze,
    "Stack": _stack,
    "Subtract": _elementwise("Sub"),
    "Sum": _reduced("ReduceSum"),
    "Take": _take,
    "Tanh": _elementwise("Tanh"),
    "Transpose": _transpose,
    "TrueDivide": _elementwise("Div"),
    "ZerosLike": _filled(is_one=False),
}
"""Writers by the class of the layer or operation."""
