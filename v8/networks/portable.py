"""A Keras file that older Keras reads too: nothing in it but what its network computes with.

A newer Keras writes every argument of every layer, also those that came after the Keras of whoever loads
the file, and theirs refuses what it does not know. Such an argument has a default, for the sake of older
files. So whatever equals its default is left out. Initializers, regularizers and constraints go as well:
they matter to training alone, and the weights follow in the file.

Nor does it tell when it was written, so that the same network with the same weights is the same file, whose
digest says that it is. It tells whose candles it was made from, beside the description of the network, where
Keras does not look: models of one profile remain one description.
"""

from __future__ import annotations

import inspect
import json
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import keras

CONFIG_MEMBER: Final = "config.json"
"""Member of a Keras file that describes the network."""

ABOUT_MEMBER: Final = "metadata.json"
"""Member that tells which Keras wrote the file, and when."""

NO_DATE: Final = "1980-01-01@00:00:00"
"""In place of when: the first moment that a zip can tell."""

KEPT_KEYS: Final = ("module", "class_name", "config", "registered_name", "name", "inbound_nodes")
"""Of an object: what it is and what it is connected to. Models are built again by their connections."""

TRAINING_ONLY: Final = ("_initializer", "_regularizer", "_constraint")
"""Ends of the names of arguments that forecasts do not depend on."""

OPERATIONS: Final = "keras.src.ops."
"""Where operations live. Keras up to 3.10 names them itself and takes no name."""


def save_portable(model: keras.Model, file: Path, series: str | None = None) -> None:
    """Write a model of stock layers so that every Keras from 3.10 on loads it.

    Args:
        model: Built, with its weights.
        file: Ends in `.keras`; written over.
        series: Which it was made for, such as "BTCUSDT-15m"; None where the file is to name none.
    """
    model.save(file)
    with zipfile.ZipFile(file) as written:
        members = {name: written.read(name) for name in written.namelist()}
    members[CONFIG_MEMBER] = json.dumps(portable_config(json.loads(members[CONFIG_MEMBER]))).encode()
    about = (
        json.loads(members[ABOUT_MEMBER]) | {"date_saved": NO_DATE} | ({"series": series} if series else {})
    )
    members[ABOUT_MEMBER] = json.dumps(about).encode()
    with zipfile.ZipFile(file, "w") as portable:
        for name, content in members.items():
            portable.writestr(zipfile.ZipInfo(name), content)


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
    return kept | {"config": dict(_needed(node["module"], node["class_name"], kept["config"]))}


def _needed(module: str, class_name: str, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """List the arguments without which the object would be another."""
    defaults = _defaults(module, class_name)
    for name, value in config.items():
        # An argument on its way out is in no signature any more, and written while it does nothing.
        is_default = value == defaults[name] if name in defaults else value in (None, False)
        is_given_name = name == "name" and module.startswith(OPERATIONS)
        if not (is_default or is_given_name or name.endswith(TRAINING_ONLY)):
            yield name, value


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
