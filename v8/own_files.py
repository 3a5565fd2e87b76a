"""Files at places that a user names: v8 replaces what v8 wrote, and a file of anybody else only when told to.

Whether v8 wrote a file, the file itself tells, so it may be renamed, copied and taken to another machine:

| what | where it tells |
|---|---|
| a picture (PNG) | its text `Software` |
| a table of forecasts (Parquet) | the key `FORECASTS_KEY` in its footer |
| a table of forecasts (CSV), a comparison (CSV) | its first line: these columns at its ends |
| a page (HTML) | its `generator` |
| a comparison (JSON) | its first keys |

A table to which columns were added is its user's: it tells so no more.
"""

import re
from pathlib import Path
from typing import Final

from v8.errors import ProfileError
from v8.storage import open_given

PICTURE_SOFTWARE: Final = "v8"
"""What each picture says of its origin, under the key `Software`."""

PAGE_GENERATOR: Final = "v8"
"""What each page says of its origin, under the name `generator`."""

FORECASTS_KEY: Final = "v8_forecasts"
"""Key of the metadata of a Parquet table of forecasts."""

FORECASTS_COLUMNS: Final = ("series", "fold", "issued_at", "step", "open_time")
"""Columns that a table of forecasts begins with."""

NAIVE_ENDING: Final = "_naive"
"""Ends the name of the last column of a table of forecasts."""

COMPARISON_COLUMNS: Final = ("profile", "figure", "unit")
"""Columns that the table of a comparison begins with."""

_HEAD_BYTES: Final = 16_384  # a first line with the columns of ten tasks and nine quantiles is shorter
_TAIL_BYTES: Final = 1 << 20  # of a Parquet file; its metadata by key stand behind the row groups
_PARQUET: Final = b"PAR1"

_BEGINNINGS: Final = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        rb"\x89PNG\r\n.{0,1000}tEXtSoftware\x00" + PICTURE_SOFTWARE.encode(),
        ",".join(FORECASTS_COLUMNS).encode() + rb",[^\r\n]*" + NAIVE_ENDING.encode() + rb"\r?\n",
        ",".join(COMPARISON_COLUMNS).encode() + rb",[^\r\n]*ratio_high\r?\n",
        rb'<!DOCTYPE html>\s*<html[^>]*><head>.{0,200}<meta name="generator" content="'
        + PAGE_GENERATOR.encode(),
        rb'\{\s*"format": \d+,\s*"command": ".*?",\s*"created_at": "',
    )
)


def is_own(file: Path) -> bool:
    """Tell whether v8 wrote a file, as the module says; False for what cannot be read."""
    try:
        with open_given(file) as stream:
            head = stream.read(_HEAD_BYTES)
            if not head.startswith(_PARQUET):
                return any(pattern.match(head) for pattern in _BEGINNINGS)
            num_bytes = stream.seek(0, 2)
            stream.seek(max(0, num_bytes - _TAIL_BYTES))
            return FORECASTS_KEY.encode() in stream.read()
    except OSError:
        return False


def require_own(flag: str, file: Path, *, is_overwriting: bool) -> None:
    """Refuse to replace a file that v8 did not write, unless the user wants it to be overwritten.

    Args:
        flag: What names the file, such as `param:out`.
        file: Where something will be written; it need not exist.
        is_overwriting: Whether the user gave `--overwrite`.

    Raises:
        ProfileError: If there is such a file, or a link that leads nowhere.
    """
    if is_overwriting or not (file.is_symlink() or file.exists()) or is_own(file):
        return
    rule = "is a new file, or one that v8 wrote"
    got = f"another file at {file}"
    fix = f"Choose another {flag}, move that file away, or add param:overwrite to replace it"
    raise ProfileError(where=flag, rule=rule, got=got, fix=fix)
