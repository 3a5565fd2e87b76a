"""A small ONNX file whose structure is changed, and what loads it and forecasts with it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuzzing.cases import Case
from v8.forecaster.metadata import ModelShapes
from v8.forecaster.model_file import SERIES_KEY, keras_errors_translated
from v8.forecaster.onnx_file import OPERATORS, load_onnx_model
from v8.model.networks.onnx_graph import BATCH, FORMAT_VERSION, OPERATOR_SET

GRAPH: Final = "model.onnx"
SERIES: Final = "BTCUSDT-15m"
SHAPES: Final = ModelShapes((6, 3), {"ohlc": (2, 4)})
_WHOLES: Final = (-(2**62), -(10**15), -131_073, -5, -1, 0, 1, 2, 7, 9, 512, 65_536, 2**31, 2**62)


@functools.cache
def _sound() -> onnx.ModelProto:
    """Return a model with the operators that read shapes, axes and places from constants."""
    node = helper.make_node
    nodes = [
        node("Transpose", ["window"], ["steps"], perm=[1, 0, 2]),
        node("LSTM", ["steps", "weight0", "weight1", "weight2"], ["y", "h", "c"], hidden_size=4,
             direction="forward"),
        node("Squeeze", ["h", "zero"], ["last"]),
        node("Einsum", ["last", "weight3"], ["mixed"], equation="bh,hsc->bsc"),
        node("Slice", ["window", "four", "six", "one"], ["newest"]),
        node("ReduceMax", ["newest", "two"], ["highest"], keepdims=1),
        node("TopK", ["mixed", "four"], ["sorted", "places"], axis=-1, largest=0),
        node("Gather", ["sorted", "backwards"], ["turned"], axis=2),
        node("CumSum", ["turned", "axis"], ["summed"]),
        node("Concat", ["summed", "highest"], ["wide"], axis=2),
        node("Slice", ["wide", "zero", "four", "two"], ["cut"]),
        node("Reshape", ["cut", "shape"], ["ohlc"]),
    ]  # fmt: skip
    whole = {"zero": [0], "one": [1], "two": [2], "four": [4], "six": [6], "backwards": [3, 2, 1, 0]}
    constants = {name: np.array(values) for name, values in whole.items()}
    constants |= {"axis": np.array(1), "shape": np.array([0, 2, 4])}
    shapes = {"weight0": (1, 16, 3), "weight1": (1, 16, 4), "weight2": (1, 32), "weight3": (4, 2, 4)}
    constants |= {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, *shape])
        for name, shape in (("window", SHAPES.window), ("ohlc", SHAPES.outputs["ohlc"]))
    ]
    arrays = [numpy_helper.from_array(values, name) for name, values in constants.items()]
    graph = helper.make_graph(nodes, "fuzzed", ends[:1], ends[1:], arrays)
    versions = [helper.make_opsetid("", OPERATOR_SET)]
    model = helper.make_model(graph, ir_version=FORMAT_VERSION, opset_imports=versions)
    model.metadata_props.add(key=SERIES_KEY, value=SERIES)
    return model


def _change_length(random: Random, graph: onnx.GraphProto) -> None:
    value = random.choice([*graph.input, *graph.output])
    random.choice(value.type.tensor_type.shape.dim).dim_value = random.choice(_WHOLES)


def _change_constant(random: Random, graph: onnx.GraphProto) -> None:
    constant = random.choice([each for each in graph.initializer if each.data_type == TensorProto.INT64])
    numbers = [random.choice(_WHOLES) for _ in range(random.choice((1, 1, 2, 3, 9)))]
    constant.CopyFrom(numpy_helper.from_array(np.array(numbers), constant.name))


def _change_dims(random: Random, graph: onnx.GraphProto) -> None:
    dims = random.choice(graph.initializer).dims
    if random.random() < 0.5:
        dims.extend([1] * random.choice((1, 5, 5_000)))
    else:
        dims.insert(0, random.choice(_WHOLES))


def _change_attribute(random: Random, graph: onnx.GraphProto) -> None:
    attribute = random.choice([each for node in graph.node for each in node.attribute])
    values: Any = (random.choice(_WHOLES), "ab,bc,c,a->", "reverse", [random.choice(_WHOLES)] * 3)
    attribute.CopyFrom(helper.make_attribute(attribute.name, random.choice(values)))


def _change_operator(random: Random, graph: onnx.GraphProto) -> None:
    random.choice(graph.node).op_type = random.choice([*OPERATORS, "Loop", "Expand"])


def _change_input(random: Random, graph: onnx.GraphProto) -> None:
    inputs = random.choice(graph.node).input
    names = [name for node in graph.node for name in node.output] + [each.name for each in graph.initializer]
    inputs[random.randrange(len(inputs))] = random.choice([*names, "", "window"])


def _add_value(random: Random, graph: onnx.GraphProto) -> None:
    value = helper.make_tensor_value_info("unused", TensorProto.FLOAT, [random.choice(_WHOLES)])
    graph.value_info.append(value)


def _add_text(random: Random, graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("Cast", ["ohlc"], ["text"], to=random.choice(range(20))))
    graph.doc_string = "x" * random.choice((0, 10_000_000))


_CHANGES: Final[tuple[Callable[[Random, onnx.GraphProto], None], ...]] = (
    _change_length,
    _change_constant,
    _change_dims,
    _change_attribute,
    _change_operator,
    _change_input,
    _add_value,
    _add_text,
)


def graph_case(random: Random) -> Case:
    """Change one to three things of the model; the case is named after the first."""
    model = onnx.ModelProto()
    model.CopyFrom(_sound())
    changes = [random.choice(_CHANGES) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    for change in changes:
        change(random, model.graph)
    return Case(changes[0].__name__.strip("_"), {GRAPH: model.SerializeToString()})


def use_graph(file: Path) -> None:
    """Load the file, and forecast two windows with it as v8 does."""
    model = load_onnx_model(file, SERIES, SHAPES)
    with keras_errors_translated(file, "must forecast"):
        model.forecast_windows(np.ones((2, *SHAPES.window), np.float32))
