"""What was measured about this machine, kept for the next run.

A measurement belongs to a processor, its GPUs, the versions installed and whatever else its `key` tells: with
any other key it is taken anew. The files only save time: one that is lost or damaged is measured again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from v8.hardware import identity
from v8.storage import digest_json, home, write_cache
from v8.user_files import read_given

KEPT_FORMAT: Final = 1

_MAX_BYTES: Final = 1 << 20
"""A larger file is none of ours."""

Found = TypeVar("Found")


def kept(kind: TypeAdapter[Found], name: str, key: Mapping[str, Any], measure: Callable[[], Found]) -> Found:
    """Return a measurement of this machine, from an earlier call or taken now.

    Args:
        kind: What is measured, as JSON.
        name: What it is called, fit for a file.
        key: What it depends on beside the machine, plain JSON values.
        measure: Takes it.
    """
    found = recall(kind, name, key)
    if found is None:
        found = measure()
        keep(kind, name, key, found)
    return found


def recall(kind: TypeAdapter[Found], name: str, key: Mapping[str, Any]) -> Found | None:
    """Return a measurement of an earlier call, as for `kept`; None where there is none."""
    file, _ = _place(name, key)
    # ValidationError is a ValueError: text that is no JSON, or is something else.
    with suppress(OSError, ValueError, ValidationError, KeyError, TypeError):
        return kind.validate_python(json.loads(read_given(file, _MAX_BYTES))["found"])
    return None


def keep(kind: TypeAdapter[Found], name: str, key: Mapping[str, Any], found: Found) -> None:
    """Keep a measurement for later calls, in the place of an earlier one; arguments as for `kept`."""
    file, whole_key = _place(name, key)
    content = {"key": whole_key, "found": kind.dump_python(found, mode="json")}
    write_cache(file, json.dumps(content, indent=2).encode("utf-8"))


def _place(name: str, key: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the file of a measurement, and all that it depends on."""
    whole_key = {
        "format": KEPT_FORMAT,
        **identity(),
        "backend": os.environ.get("KERAS_BACKEND", "tensorflow"),
        **key,
    }
    return home() / "machine" / f"{name}-{digest_json(whole_key)[:16]}.json", whole_key
