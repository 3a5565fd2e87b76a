"""Which array of a weights file each variable of a model is.

Keras finds that out anew for every file, by looking at everything that every layer has: most of the time
that a small model takes to load. Of files of one description it is the same, so it is found out once, by
having Keras load a file whose arrays hold their own numbers. What is read that way is then compared with
what Keras reads.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from v8.artifacts.model_file import MAX_WEIGHT_OBJECTS, WEIGHTS_MEMBER
from v8.storage import passing_folder

Places = tuple[str | None, ...]
"""Per variable of a model, the name of its array in the weights file; None of seeds, which no file holds."""


def find_places(model: Any, file: Path) -> Places | None:
    """Find out which array of a checked file each variable is; the model holds some weights afterwards.

    Args:
        model: Of the file's description.
        file: A checked Keras file.

    Returns:
        The names, in the order of the model's variables; None where what is read by them is not what Keras
        reads, so that only Keras can read such files.
    """
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    names, members[WEIGHTS_MEMBER] = _numbered(members[WEIGHTS_MEMBER])
    with passing_folder("weights") as folder:
        with zipfile.ZipFile(folder / "numbered.keras", "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        model.load_weights(str(folder / "numbered.keras"))
    numbers = [_number_of(variable.numpy()) for variable in model.variables]
    model.load_weights(str(file))
    if sorted(number for number in numbers if number is not None) != [*range(len(names))]:
        return None
    places = tuple(None if number is None else names[number] for number in numbers)
    return places if _is_what_keras_reads(model, file, places) else None


def read_weights(model: Any, file: Path, places: Places) -> list[NDArray[Any]] | None:
    """Read the weights of a checked file of the same description.

    Returns:
        An array per variable, of its shape and type; None if the file has other arrays, or of other shapes.
    """
    with zipfile.ZipFile(file) as archive:
        content = io.BytesIO(archive.read(WEIGHTS_MEMBER))
    with h5py.File(content, "r") as weights:
        if set(_array_names(weights)) != set(places) - {None}:
            return None
        variables = zip(model.variables, places, strict=True)
        values = [
            variable.numpy() if name is None else np.asarray(weights[name][()], variable.dtype)
            for variable, name in variables
        ]
    fits = (
        value.shape == tuple(variable.shape) for variable, value in zip(model.variables, values, strict=True)
    )
    return values if all(fits) else None


def _is_what_keras_reads(model: Any, file: Path, places: Places) -> bool:
    read = read_weights(model, file, places)
    if read is None:
        return False
    pairs = zip(model.variables, read, strict=True)
    return all(variable.numpy().tobytes() == value.tobytes() for variable, value in pairs)


def _number_of(value: NDArray[Any]) -> int | None:
    """Return the number that an array is full of, -1 if it is full of none; None for seeds."""
    if not np.issubdtype(value.dtype, np.floating):
        return None
    number = value.flat[0] if value.size else -1.0
    is_full = bool((value == number).all()) and 0 <= number < MAX_WEIGHT_OBJECTS
    return int(number) if is_full and number == int(number) else -1


def _numbered(content: bytes) -> tuple[list[str], bytes]:
    """Return the names of all arrays of a weights file, and the file with each array full of its number."""
    changed = io.BytesIO(content)
    with h5py.File(changed, "r+") as weights:
        names = _array_names(weights)
        for number, name in enumerate(names):
            weights[name][...] = number
    return names, changed.getvalue()


def _array_names(weights: h5py.File) -> list[str]:
    names: list[str] = []
    weights.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names
