"""Sections of series in files of their own, `report/series/BTCUSDT-15m.js`, for the pages of large runs.

A section with its charts is 50 to 100 kB, so a page of a thousand would be 80 MB. Beyond `MOST_IN_ONE_FILE`
series the page holds a line each, and a section comes from its file when its line is opened. A page that was
opened from a disk may not read files, but it may run one that its own script names: so each file is a call of
that script's `v8Section` with the name and the markup as two texts, and says nothing else.

The first line tells what the section was drawn from; one that is up to date is not drawn again.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from v8.artifacts.metadata import HISTORY_FILE, METADATA_FILE
from v8.artifacts.series_artifact import FORECASTS_FILE
from v8.records import MAX_FILE_BYTES
from v8.storage import digest_bytes, write_text
from v8.user_files import open_given, read_given
from v8.version import VERSION
from v8.views.markup import Html

SECTIONS_FOLDER: Final = "report/series"
"""Beside `report.html`."""

MOST_IN_ONE_FILE: Final = 40
"""A page of so many series, those of the default universe, is one file that can be sent as it is."""

_MAX_STAMP: Final = 200
"""Letters of the first line, and more."""


def section_file(series: str) -> str:
    """Return where the section of a series lies, beside the page.

    >>> section_file("BTCUSDT-15m")
    'report/series/BTCUSDT-15m.js'
    """
    return f"{SECTIONS_FOLDER}/{series}.js"


def section_address(series: str) -> str:
    """Return the same as an address relative to the page."""
    return quote(section_file(series))


def write_section(run: Path, series: str, served: Path, draw: Callable[[], Html], *, is_anew: bool) -> None:
    """Write the section of a series beside the page of a run, atomically.

    It is drawn anew if asked, or if it was drawn from other files than lie in `served`, the model shown.
    """
    file, stamp = run / section_file(series), _stamp(served)
    if is_anew or not _is_stamped(file, stamp):
        write_text(file, f"{stamp}\nv8Section({_text(series)}, {_text(draw())});\n")


def _stamp(served: Path) -> str:
    parts = [VERSION.encode("ascii")]
    for name in (METADATA_FILE, HISTORY_FILE, FORECASTS_FILE):
        with suppress(FileNotFoundError):  # older models have no forecasts beside them
            parts.append(read_given(served / name, MAX_FILE_BYTES))
    return f"// drawn from {digest_bytes(*parts)}"


def _is_stamped(file: Path, stamp: str) -> bool:
    with suppress(OSError), open_given(file) as stream:
        return stream.readline(_MAX_STAMP) == f"{stamp}\n".encode()
    return False


def _text(text: str) -> str:
    """Write a text for a script: ASCII only, and nothing in it that ends a script."""
    return json.dumps(text).replace("<", "\\u003c")
