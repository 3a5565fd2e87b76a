"""Files of `V8_HOME/machine` that hold something else than v8 wrote: they are measured again."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

from v8.base.storage import home
from v8.runs.machine import MEASUREMENT_OF_FORMATS, cached_measurement

FILE: Final = "measured.json"
SOUND: Final = {"float32": 1.0}


def odd_measurement(random: Random, values: tuple[Any, ...]) -> bytes:
    """Return the content of a file of the cache that no measurement left."""
    value = random.choice(values)
    found = random.choice(
        (value, {"float32": value}, {str(value)[:20]: 1.0}, [value], {"float32": 1.0, "evil": value})
    )
    text = json.dumps({"found": found}, default=str)
    depth = random.choice((10, 1_000, 100_000))
    return random.choice(
        (
            text.encode("utf-8", "replace"),
            b"[" * depth,
            b'{"found": ' * depth,
            text.encode("utf-8", "replace")[: random.randrange(len(text))],
            random.randbytes(40),
        )
    )


def use_measurement(content: bytes) -> None:
    """Put a file in the place of a measurement; what is read is one, or is measured again."""
    measured = cached_measurement(MEASUREMENT_OF_FORMATS, "fuzzed", {}, lambda: SOUND)
    (file,) = (home() / "machine").glob("fuzzed-*.json")
    file.write_bytes(content)
    found = cached_measurement(MEASUREMENT_OF_FORMATS, "fuzzed", {}, lambda: SOUND)
    file.unlink()
    if not found.keys() <= {"float32", "mixed_bfloat16", "mixed_float16"}:
        raise AssertionError(f"a format of {sorted(found)} is taken from a file")
    if any(not 0 <= speed < float("inf") for speed in (*found.values(), *measured.values())):
        raise AssertionError(f"speeds {found}")
