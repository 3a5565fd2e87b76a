"""What Keras 3.10.0 knows of the classes that our models are made of, read off its constructors.

Recorded with `inspect.signature` on 2026-11-21, initializers, regularizers and constraints left out: our
files hold none. A class that is not here is one more to look up.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LAYER = {"name", "dtype", "trainable", "activity_regularizer", "autocast"}
ARGUMENTS = {
    "AdditiveAttention": "dropout use_scale",
    "Bidirectional": "backward_layer layer merge_mode",
    "Cropping1D": "cropping",
    "Dense": "activation units use_bias",
    "Dropout": "noise_shape rate seed",
    "EinsumDense": "activation bias_axes equation output_shape",
    "Embedding": "input_dim mask_zero output_dim",
    "GRU": "activation dropout go_backwards recurrent_activation recurrent_dropout reset_after "
    "return_sequences return_state seed stateful units unroll use_bias zero_output_for_mask",
    "GRUCell": "activation dropout recurrent_activation recurrent_dropout reset_after seed units use_bias",
    "GlobalMaxPooling1D": "data_format keepdims",
    "InputLayer": "batch_shape batch_size optional ragged sparse shape",
    "LSTM": "activation dropout go_backwards recurrent_activation recurrent_dropout return_sequences "
    "return_state seed stateful unit_forget_bias units unroll use_bias zero_output_for_mask",
    "LSTMCell": "activation dropout recurrent_activation recurrent_dropout seed unit_forget_bias units "
    "use_bias",
    "LayerNormalization": "axis center epsilon rms_scaling scale",
    "LeakyReLU": "negative_slope",
    "RepeatVector": "n",
    "Reshape": "target_shape",
}
OPERATIONS = {
    **dict.fromkeys(("Abs", "Add", "Exp", "Log", "Maximum", "Minimum", "Multiply", "Sqrt", "Square"), ""),
    **dict.fromkeys(("Expm1", "Log1p", "Subtract", "TrueDivide", "ZerosLike", "Matmul", "OnesLike"), ""),
    **dict.fromkeys(
        ("Concatenate", "Cumsum", "ExpandDims", "Flip", "Softmax", "Sort", "Squeeze", "Stack", "Take"), "axis"
    ),
    **dict.fromkeys(("Max", "Min"), "axis initial keepdims"),
    **dict.fromkeys(("Mean", "Median", "Std", "Sum"), "axis keepdims"),
    "Clip": "x_max x_min",
    "Repeat": "axis repeats",
    "Transpose": "axes",
}
FUNCTIONAL = {"name", "trainable", "layers", "input_layers", "output_layers"}
KEYS = {"module", "class_name", "config", "registered_name", "name", "inbound_nodes"}


def unknown_keys(file: Path) -> list[str]:
    """List what a Keras file says beyond what Keras 3.10 understands; none is as it should be."""
    with zipfile.ZipFile(file) as archive:
        config = json.loads(archive.read("config.json"))
    return sorted({unknown for node in _objects(config) for unknown in _unknown(node)})


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict) and node.get("module"):
        yield node
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _objects(inner)


def _unknown(node: dict[str, Any]) -> Iterator[str]:
    name = node["class_name"]
    if node["module"] == "keras.layers":
        known = LAYER | set(ARGUMENTS.get(name, "").split())
    elif node["module"].startswith("keras.src.ops.") and name in OPERATIONS:
        known = {"dtype", *OPERATIONS[name].split()}
    else:
        known = FUNCTIONAL if name == "Functional" else set()
    yield from (f"{name} {key}" for key in node["config"].keys() - known)
    yield from (f"object {name} {key}" for key in node.keys() - KEYS)
