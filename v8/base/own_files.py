"""Output files at paths that the user names: v8 overwrites files of its own, others only on request.

Whether v8 wrote a file can be seen from its content, so the file may be renamed or copied to another machine:

| file | mark |
|---|---|
| a picture (PNG) | its text `Software` |
| a table of forecasts (Parquet) | the key `FORECASTS_KEY` in its footer |
| a table of forecasts (CSV), a comparison (CSV) | the first and last columns of its first line |
| a page (HTML) | its `generator` |
| a comparison (JSON) | its first keys |

A table to which the user added columns has lost its mark, so it is not overwritten.
"""

import re
from pathlib import Path
from typing import Final

from v8.base.errors import ProfileError
from v8.base.reading import open_given

PICTURE_SOFTWARE: Final = "v8"
"""The text of the key `Software` in each picture."""

PAGE_GENERATOR: Final = "v8"
"""The text of the name `generator` in each page."""

FORECASTS_KEY: Final = "v8_forecasts"
"""Key of the metadata of a Parquet table of forecasts."""

FORECASTS_COLUMNS: Final = ("series", "fold", "issued_at", "step", "open_time")
"""First columns of a table of forecasts."""

NAIVE_ENDING: Final = "_naive"
"""End of the name of the last column of a table of forecasts."""

COMPARISON_COLUMNS: Final = ("profile", "figure", "unit")
"""First columns of the table of a comparison."""

_HEAD_BYTES: Final = 16_384  # longer than a first line with the columns of ten tasks and nine quantiles
_TAIL_BYTES: Final = 1 << 20  # of a Parquet file, whose metadata follow after its rows
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
    """Return whether v8 wrote a file; False if it cannot be read."""
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
    """Refuse to overwrite a file that v8 did not write, unless the user allows it.

    Args:
        flag: The parameter that names the file, such as `param:out`.
        file: The file that will be written; it need not exist.
        is_overwriting: Whether the user passed `--overwrite`.

    Raises:
        ProfileError: If there is such a file, or a broken link.
    """
    if is_overwriting or not (file.is_symlink() or file.exists()) or is_own(file):
        return
    rule = "is a new file, or one that v8 wrote"
    got = f"another file at {file}"
    fix = f"Choose another {flag}, move that file away, or add param:overwrite to replace it"
    raise ProfileError(where=flag, rule=rule, got=got, fix=fix)
