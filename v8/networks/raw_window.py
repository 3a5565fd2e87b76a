"""Columns of raw features inside a published model, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from v8.profile import Profile


def columns_of(rows: Any, profile: Profile, names: Sequence[str]) -> Any:
    """Take features out of raw rows, shape (..., F), in the order of the names."""
    return ops.take(rows, [profile.features.index(name) for name in names], axis=-1)
