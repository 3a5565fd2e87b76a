"""Published models as Keras files that older versions of Keras load too, and their forecasts.

Keras writes every argument of every layer, also arguments that an older version does not know and therefore
refuses. Such an argument has a default, so that Keras itself can load older files. So arguments that equal
their default are left out. Initializers, regularizers and constraints are left out, too: they matter for
training only, and the weights are in the file.

The time of writing is left out as well, so that the same network with the same weights is the same file with
the same digest. The name of the series is in a member of the file that Keras does not read, so that the
description of the network is the same for all models of a profile.

Shape legend: N windows, B batch, T lookback, F features, H horizon, Q levels, C columns of a task.
"""

import inspect
import io
import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from v8.base.arrays import FloatArray, steps_apart
from v8.base.hardware import backend_name, full_float32, has_gpu
from v8.base.storage import passing_folder
from v8.data.span import Span
from v8.profile.columns import quantile_output
from v8.profile.tasks import TASKS

CONFIG_MEMBER: Final = "config.json"  # member of a Keras file: the description of the network
WEIGHTS_MEMBER: Final = "model.weights.h5"  # member of a Keras file: the weights, as HDF5
ABOUT_MEMBER: Final = "metadata.json"  # member of a Keras file: the version of Keras, and the date
NO_DATE: Final = "1980-01-01@00:00:00"  # in place of the date: the earliest that a zip file can hold
OBJECT_KEYS: Final = ("module", "class_name", "config", "registered_name", "name", "inbound_nodes")
"""Keys of a described object that are kept: its class, its arguments and its connections."""
TRAINING_ONLY: Final = ("_initializer", "_regularizer", "_constraint")
"""Ends of the names of arguments that do not affect forecasts."""
OPERATIONS: Final = "keras.src.ops."
"""Module of operations. Keras up to 3.10 names them itself and refuses a name."""


def save_portable(model: Any, file: Path, series: str | None = None) -> None:
    """Write a built model of stock layers so that every Keras from 3.10 on loads it.

    Keras writes the description of a model whenever it saves it, which takes most of the time. So it saves
    each model once as a template; after that, weights are written into a copy of the template.

    Args:
        model: The Keras model.
        file: Where to write it.
        series: Name of the series, to be noted in the file.
    """
    if model not in _TEMPLATES:
        _TEMPLATES[model] = _template_of(model, file)
    template = _TEMPLATES[model]
    metadata = dict(template.metadata)
    if series:
        metadata["series"] = series
    members = dict(template.members)
    members[ABOUT_MEMBER] = json.dumps(metadata).encode()
    members[WEIGHTS_MEMBER] = template.weights_file(model.get_weights())
    with zipfile.ZipFile(file, "w") as portable:
        for name, content in members.items():
            portable.writestr(zipfile.ZipInfo(name), content)


@dataclass(frozen=True, eq=False)
class _Template:
    """The file of a model, into which weights are written."""

    members: Mapping[str, bytes]  # of the file, in order; the description is portable
    metadata: Mapping[str, Any]  # content of `ABOUT_MEMBER`
    data_sets: Sequence[str]  # of `WEIGHTS_MEMBER`, one for each weight of the model

    def weights_file(self, weights: Sequence[NDArray[Any]]) -> bytes:
        """Return the weights' member with these weights, in the model's order."""
        import h5py  # noqa: PLC0415 - forecasts with ONNX do not need it

        content = io.BytesIO(self.members[WEIGHTS_MEMBER])
        with h5py.File(content, "r+") as written:
            for name, weight in zip(self.data_sets, weights, strict=True):
                written[name][...] = weight
        return content.getvalue()


_TEMPLATES: Final = WeakKeyDictionary[Any, _Template]()
"""By Keras model, for as long as the model exists."""


def _template_of(model: Any, file: Path) -> _Template:
    """Save a model as a template, by way of the file."""
    model.save(file)
    with zipfile.ZipFile(file) as written:
        members = {name: written.read(name) for name in written.namelist()}
    config = json.loads(members[CONFIG_MEMBER])
    metadata = json.loads(members[ABOUT_MEMBER])
    members[CONFIG_MEMBER] = json.dumps(portable_config(config)).encode()
    return _Template(members, {**metadata, "date_saved": NO_DATE}, data_sets_of(model))


def data_sets_of(model: Any) -> list[str]:
    """Find the data set of each weight of a Keras model in its files of weights.

    Which data set holds which weight is an internal matter of Keras. So every weight is filled with its
    number before saving, and each data set then shows which weight it holds. Afterwards the weights are as
    they were.

    Raises:
        RuntimeError: If a weight has no data set of its own.
    """
    import h5py  # noqa: PLC0415 - forecasts with ONNX do not need it

    weights = model.get_weights()
    with passing_folder("weights") as folder:
        file = folder / "numbered.weights.h5"
        try:
            model.set_weights([np.full_like(weight, number) for number, weight in enumerate(weights)])
            model.save_weights(file)
        finally:
            model.set_weights(weights)
        with h5py.File(file, "r") as written:
            names = {int(written[name][()].flat[0]): name for name in list_data_sets(written)}
    if sorted(names) != [*range(len(weights))]:
        rule = "must hold each of the model's weights in a data set of its own"
        raise RuntimeError(f"Keras file: {rule}; got {len(names)} for {len(weights)} weights")
    return [names[number] for number in range(len(weights))]


def list_data_sets(weights: Any) -> list[str]:
    """Return the names of all data sets of an open file of weights."""
    import h5py  # noqa: PLC0415 - forecasts with ONNX do not need it

    names: list[str] = []
    weights.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


def portable_config(node: Any) -> Any:
    """Remove from a description, as JSON values, what older versions of Keras may not know."""
    if isinstance(node, list):
        return [portable_config(value) for value in node]
    if not isinstance(node, dict):
        return node
    if node.get("class_name") == "DTypePolicy":
        return node["config"]["name"]
    if node.get("module") is None:
        return {key: portable_config(value) for key, value in node.items()}
    description = {key: portable_config(node[key]) for key in OBJECT_KEYS if key in node}
    module = node["module"]
    defaults = _defaults(module, node["class_name"])
    config = {}
    for name, value in description["config"].items():
        # A deprecated argument is in no signature any more; it has no effect while it is None or False.
        is_default = value == defaults[name] if name in defaults else value in (None, False)
        is_operation_name = name == "name" and module.startswith(OPERATIONS)
        if not (is_default or is_operation_name or name.endswith(TRAINING_ONLY)):
            config[name] = value
    return description | {"config": config}


@cache
def _defaults(module: str, class_name: str) -> dict[str, Any]:
    """Map the arguments of a stock class, its own and inherited ones, to their defaults as JSON values."""
    defaults: dict[str, Any] = {}
    for base in reversed(getattr(import_module(module), class_name).__mro__):
        if "__init__" in vars(base):
            for name, parameter in inspect.signature(base.__init__).parameters.items():
                default = parameter.default
                defaults[name] = list(default) if isinstance(default, tuple) else default
    return defaults


FORECAST_BATCH = 16
"""Windows in every batch. Every row of such a batch is rounded in the same way; with 8 or 32 rows the matrix
products of TensorFlow 2.21 on a CPU round some rows differently in the last bit. With 64, as before, a single
window takes three times as long (`frontier` 0.14 instead of 0.05 s, `aligned` 0.21 instead of 0.05), and many
windows take 0.7 to 1 times as long."""


def without_cudnn(layer: Any) -> None:
    """Let a model's recurrent layers forecast without cuDNN, where JAX computes on a GPU.

    With cuDNN the forecasts of two programs with the same weights were up to 6e-3 apart on an H200, although
    `full_float32` was set, and the published graphs of 4 of 8 `aligned` models were refused. Without it they
    are at most 4e-6 apart.
    """
    if not (has_gpu() and backend_name() == "jax"):
        return
    if hasattr(layer, "use_cudnn"):
        layer.use_cudnn = False
    parts = [getattr(layer, name, None) for name in ("forward_layer", "backward_layer")]
    for part in [*getattr(layer, "layers", ()), *parts]:
        if part is not None:
            without_cudnn(part)


def forecast_windows(
    model: Any, windows_NTF: NDArray[np.float32], batch: int = FORECAST_BATCH
) -> dict[str, NDArray[np.float32]]:
    """Run a serving model over raw windows, so many at a time, (N, T, F) to (N, H, C) per task.

    The last batch is filled up with its last window: a batch of another size would be rounded differently,
    and TensorFlow would trace the network again, which takes a second.
    """
    if hasattr(model, "forecast_windows"):  # another runtime than Keras
        forecasts: dict[str, NDArray[np.float32]] = model.forecast_windows(windows_NTF)
        return forecasts
    num_windows = len(windows_NTF)
    batches = [windows_NTF[start : start + batch] for start in range(0, num_windows, batch)]
    num_missing = batch - len(batches[-1])
    batches[-1] = np.concatenate([batches[-1], np.repeat(windows_NTF[-1:], num_missing, axis=0)])
    # Not `predict`: it sets up a data pipeline at each call, which costs more than a batch or two.
    with full_float32():
        parts = [model.predict_on_batch(batch_BTF) for batch_BTF in batches]
    return {task: np.concatenate([part[task] for part in parts])[:num_windows] for task in parts[0]}


@dataclass(frozen=True, eq=False)
class Forecasts:
    """The forecasts of a model for some windows, in the units of its tasks.

    Args:
        points: Per task, shape (N, H, C), float32; the medians where there are quantiles.
        quantiles: Per task, shape (N, H, Q, C), float32, levels ascending; empty without.
    """

    points: dict[str, NDArray[np.float32]]
    quantiles: dict[str, NDArray[np.float32]] = field(default_factory=dict)


def split_outputs(outputs: Mapping[str, NDArray[np.float32]]) -> Forecasts:
    """Divide the outputs of a model into points and quantiles."""
    points = {name: values for name, values in outputs.items() if name in TASKS}
    names = {task: quantile_output(task) for task in points}
    return Forecasts(points, {task: outputs[name] for task, name in names.items() if name in outputs})


def forecasts_apart(
    values: Mapping[str, NDArray[np.float32]],
    expected: Mapping[str, NDArray[np.float32]],
    last_close_N: FloatArray,
) -> dict[str, float]:
    """Return by how many steps of float32 the forecasts of two programs differ at most, by output.

    Args:
        values: Outputs of one program, (N, ...).
        expected: Those of the other; those of tasks and of their quantiles are compared.
        last_close_N: Last known close of each window, quote currency.
    """
    steps = {}
    for task in TASKS.values():
        for name in (task.name, quantile_output(task.name)):
            if name not in expected:
                continue
            last_close = last_close_N.reshape(-1, *[1] * (expected[name].ndim - 1))
            magnitude = task.magnitude(last_close, expected[name].astype(np.float64))
            steps[name] = steps_apart(values[name], expected[name], magnitude)
    return steps


class PublishedModel(ABC):
    """A model as it is published; its graph may be shared by many series."""

    @property
    @abstractmethod
    def keras_model(self) -> Any:
        """The Keras model with this series' numbers."""

    def forecast_all(self, windows_NTF: NDArray[np.float32]) -> Forecasts:
        """Forecast raw windows, quantiles too."""
        return split_outputs(forecast_windows(self.keras_model, windows_NTF))

    def forecast_span(self, span: Span) -> Forecasts:
        """Forecast the windows of a span, quantiles too."""
        return self.forecast_all(span.raw_windows())

    def path_bars(self, _span: Span) -> NDArray[Any] | None:
        """Return the bars of each simulated path, log ratios to the close before, (N, H, C, P).

        None for a model whose paths are only in its graph, or that has none.
        """
        return None

    def save(self, file: Path, series: str | None = None) -> None:
        """Write the Keras file, which every Keras from 3.10 on loads; `series` is noted in it."""
        save_portable(self.keras_model, file, series)
