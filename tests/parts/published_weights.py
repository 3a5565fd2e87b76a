"""The arrays of a published model, read without Keras."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import h5py
import numpy as np


def weights(model: Path) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(model) as archive:
        content = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(content) as file:
        file.visititems(
            lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
        )
    return arrays
