"""A published model as a Keras file that older Keras reads too, and how its forecasts are taken.

A newer Keras writes every argument of every layer, also those that came after the Keras of whoever loads
the file, and theirs refuses what it does not know. Such an argument has a default, for the sake of older
files. So whatever equals its default is left out. Initializers, regularizers and constraints go as well:
they matter to training alone, and the weights follow in the file.

Nor does it tell when it was written, so that the same network with the same weights is the same file, whose
digest says that it is. It tells whose candles it was made from, beside the description of the network, where
Keras does not look: models of one profile remain one description.

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

import h5py
import numpy as np
from numpy.typing import NDArray

from v8.quantile_levels import quantile_output
from v8.tasks import TASKS
from v8.windows.span import Span

CONFIG_MEMBER: Final = "config.json"  # member of a Keras file that describes the network
WEIGHTS_MEMBER: Final = "model.weights.h5"  # member of a Keras file that holds its numbers, as HDF5
ABOUT_MEMBER: Final = "metadata.json"  # member that tells which Keras wrote the file, and when
NO_DATE: Final = "1980-01-01@00:00:00"  # in place of when: the first moment that a zip can tell
KEPT_KEYS: Final = ("module", "class_name", "config", "registered_name", "name", "inbound_nodes")
"""Of an object: what it is and what it is connected to. Models are built again by their connections."""
TRAINING_ONLY: Final = ("_initializer", "_regularizer", "_constraint")
"""Ends of the names of arguments that forecasts do not depend on."""
OPERATIONS: Final = "keras.src.ops."
"""Where operations live. Keras up to 3.10 names them itself and takes no name."""


def save_portable(model: Any, file: Path, series: str | None = None) -> None:
    """Write a built model of stock layers so that every Keras from 3.10 on loads it; it may name a series.

    Keras describes a model anew whenever it saves it, which takes most of the time. So it does that once for
    each model; later weights are written into what it wrote then.
    """
    if model not in _TEMPLATES:
        _TEMPLATES[model] = _template_of(model, file)
    template = _TEMPLATES[model]
    about = dict(template.about) | ({"series": series} if series else {})
    members = dict(template.members) | {
        ABOUT_MEMBER: json.dumps(about).encode(),
        WEIGHTS_MEMBER: template.weights_file(model.get_weights()),
    }
    with zipfile.ZipFile(file, "w") as portable:
        for name, content in members.items():
            portable.writestr(zipfile.ZipInfo(name), content)


@dataclass(frozen=True, eq=False)
class _Template:
    """A model's file with other weights than its own."""

    members: Mapping[str, bytes]  # of the file, in order; the description is portable
    about: Mapping[str, Any]  # what the member of that name says
    places: Mapping[str, int]  # by the name of a data set of the weights' member, the number of the weight

    def weights_file(self, weights: Sequence[NDArray[Any]]) -> bytes:
        """Return the weights' member with these weights, in the model's order."""
        content = io.BytesIO(self.members[WEIGHTS_MEMBER])
        with h5py.File(content, "r+") as written:
            for name, number in self.places.items():
                written[name][...] = weights[number]
        return content.getvalue()


_TEMPLATES: Final = WeakKeyDictionary[Any, _Template]()
"""By Keras model, while anybody holds it."""


def _template_of(model: Any, file: Path) -> _Template:
    """Save a model, whose weights stay as they are, as a template; the file is used for it.

    Which data set holds which weight is Keras' own affair. So every weight is saved as its number, and each
    data set says whose it is.

    Raises RuntimeError if they do not.
    """
    weights = model.get_weights()
    try:
        model.set_weights([np.full_like(weight, number) for number, weight in enumerate(weights, start=1)])
        model.save(file)
    finally:
        model.set_weights(weights)
    with zipfile.ZipFile(file) as written:
        members = {name: written.read(name) for name in written.namelist()}
    config, about = (json.loads(members[name]) for name in (CONFIG_MEMBER, ABOUT_MEMBER))
    members[CONFIG_MEMBER] = json.dumps(portable_config(config)).encode()
    places = _places_of(weights, members[WEIGHTS_MEMBER])
    return _Template(members, {**about, "date_saved": NO_DATE}, places)


def _places_of(weights: Sequence[NDArray[Any]], content: bytes) -> dict[str, int]:
    """Map the names of the data sets in which weights lie as their numbers, from 1, to those, from 0."""
    places: dict[str, int] = {}

    def look(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        for number, weight in enumerate(weights):
            if item.shape == weight.shape and np.all(item[()] == number + 1):
                places[name] = number

    with h5py.File(io.BytesIO(content)) as written:
        written.visititems(look)
    if sorted(places.values()) != [*range(len(weights))]:
        rule = "must hold each of the model's weights in a data set of its own"
        raise RuntimeError(f"Keras file: {rule}; got {len(places)} for {len(weights)} weights")
    return places


def portable_config(node: Any) -> Any:
    """Leave out of a description, as JSON values, what older Keras may not know."""
    if isinstance(node, list):
        return [portable_config(value) for value in node]
    if not isinstance(node, dict):
        return node
    if node.get("class_name") == "DTypePolicy":
        return node["config"]["name"]
    if node.get("module") is None:
        return {key: portable_config(value) for key, value in node.items()}
    kept = {key: portable_config(node[key]) for key in KEPT_KEYS if key in node}
    module = node["module"]
    defaults = _defaults(node["module"], node["class_name"])
    needed = {}
    for name, value in kept["config"].items():
        # An argument on its way out is in no signature any more, and written while it does nothing.
        is_default = value == defaults[name] if name in defaults else value in (None, False)
        is_given_name = name == "name" and module.startswith(OPERATIONS)
        if not (is_default or is_given_name or name.endswith(TRAINING_ONLY)):
            needed[name] = value
    return kept | {"config": needed}


@cache
def _defaults(module: str, class_name: str) -> dict[str, Any]:
    """Map the arguments of a stock class, its own and inherited ones, to their defaults as JSON values."""
    found: dict[str, Any] = {}
    for base in reversed(getattr(import_module(module), class_name).__mro__):
        if "__init__" in vars(base):
            found |= {
                name: list(about.default) if isinstance(about.default, tuple) else about.default
                for name, about in inspect.signature(base.__init__).parameters.items()
            }
    return found


FORECAST_BATCH = 64
"""Windows a batch, always: one window alone costs little more than it must (0.2 s with the aligned
profile on one core), and every row of a batch is rounded alike. With 8 or 32 rows the matrix products
of TensorFlow 2.21 on a CPU treat some rows differently in the last bit; with 16, 24, 48 and 64 none."""


def forecast_windows(model: Any, windows_NTF: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Run a serving model over raw windows, (N, T, F) to (N, H, C) per task.

    The last batch is filled up with its last window: a batch of another size would round otherwise, and
    make TensorFlow trace the whole network anew, which costs a second.
    """
    num_windows = len(windows_NTF)
    batches = [windows_NTF[start : start + FORECAST_BATCH] for start in range(0, num_windows, FORECAST_BATCH)]
    num_missing = FORECAST_BATCH - len(batches[-1])
    batches[-1] = np.concatenate([batches[-1], np.repeat(windows_NTF[-1:], num_missing, axis=0)])
    # Not `predict`: it sets up a data pipeline each time, which costs more than a batch or two.
    parts = [model.predict_on_batch(batch_BTF) for batch_BTF in batches]
    return {task: np.concatenate([part[task] for part in parts])[:num_windows] for task in parts[0]}


@dataclass(frozen=True, eq=False)
class Forecasts:
    """What a model says about windows, in the units of its tasks.

    Args:
        points: Per task, shape (N, H, C), float32; the medians where there are quantiles.
        quantiles: Per task, shape (N, H, Q, C), float32, levels ascending; empty without.
    """

    points: dict[str, NDArray[np.float32]]
    quantiles: dict[str, NDArray[np.float32]] = field(default_factory=dict)


def split_outputs(outputs: Mapping[str, NDArray[np.float32]]) -> Forecasts:
    """Part the outputs of a model by what they are."""
    points = {name: values for name, values in outputs.items() if name in TASKS}
    names = {task: quantile_output(task) for task in points}
    return Forecasts(points, {task: outputs[name] for task, name in names.items() if name in outputs})


class PublishedModel(ABC):
    """A model whose graph many series may share, as it is published."""

    @property
    @abstractmethod
    def _model(self) -> Any:
        """The Keras model with this series' numbers."""

    def forecast_all(self, windows_NTF: NDArray[np.float32]) -> Forecasts:
        """Forecast raw windows, quantiles too."""
        return split_outputs(forecast_windows(self._model, windows_NTF))

    def forecast_span(self, span: Span) -> Forecasts:
        """Forecast the windows of a span, quantiles too."""
        return self.forecast_all(span.raw_windows())

    def save(self, file: Path, series: str | None = None) -> None:
        """Write the Keras file, which every Keras from 3.10 on loads, and which names the series."""
        save_portable(self._model, file, series)
