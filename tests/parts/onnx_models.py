"""The smallest ONNX model that is accepted as a forecaster's."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from v8.forecaster.metadata import ModelShapes
from v8.model.networks.onnx_graph import FORMAT_VERSION, OPERATOR_SET

TINY_SHAPES = ModelShapes((2, 1), {"ohlc": (2, 1)})
"""What the smallest model takes and gives."""


def tiny_model(series: str) -> onnx.ModelProto:
    """Return a model that doubles a window of two bars of one feature."""
    shape: list[str | int | None] = ["windows", 2, 1]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["window", "two"], ["ohlc"])],
        "tiny",
        [helper.make_tensor_value_info("window", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("ohlc", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.array([2.0], np.float32), "two")],
    )
    version = helper.make_opsetid("", OPERATOR_SET)
    model = helper.make_model(graph, ir_version=FORMAT_VERSION, opset_imports=[version])
    model.metadata_props.add(key="series", value=series)
    return model
