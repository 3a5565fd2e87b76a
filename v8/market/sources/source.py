"""What every source of candles can do, and the one way to open one by name.

A source serves what it has or raises an error. None of them ever falls back to another, and the demo
market opens only under its own name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from v8.errors import ProfileError
from v8.market.candles import Candles
from v8.market.series import Series
from v8.market.sources.demo import DemoSource
from v8.market.sources.files import FilesSource
from v8.market.sources.vision import VisionSource
from v8.registry import nearest

SOURCE_NAMES = ("vision", "files", "demo")


class CandleSource(Protocol):
    """Where candles come from."""

    @property
    def name(self) -> str:
        """The name the source is opened by; it marks the candles and everything made from them."""

    @property
    def is_publishable(self) -> bool:
        """Whether models trained on these candles may be published; never for the demo market."""

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of a series.

        Args:
            series: Which symbol and timeframe.
            num_bars: Most candles to return, at least 1; fewer come back when there are no more.
            end_s: Latest open time, seconds since the epoch, UTC; None for the newest there are.

        Raises:
            DataError: If there are none, or they cannot be trusted.
        """


def open_source(name: str, *, data_dir: Path | None = None) -> CandleSource:
    """Open a source by name.

    Args:
        name: One of `SOURCE_NAMES`.
        data_dir: Folder of the source "files"; None for the others.

    Raises:
        ProfileError: If the name is unknown, or the folder is missing or has no use.
    """
    if name not in SOURCE_NAMES:
        raise ProfileError(
            where=f"--source {name}",
            rule=f"a source is one of {', '.join(SOURCE_NAMES)}",
            got=repr(name),
            fix=f"Did you mean {nearest(name, SOURCE_NAMES)}",
        )
    if name == "files":
        return FilesSource(_folder(data_dir))
    if data_dir is not None:
        raise ProfileError(
            where=f"--data-dir {data_dir}",
            rule="only the source files reads a folder",
            got=f"--source {name}",
            fix="Add --source files or leave --data-dir out",
        )
    return VisionSource() if name == "vision" else DemoSource()


def _folder(data_dir: Path | None) -> Path:
    if data_dir is None or not data_dir.is_dir():
        raise ProfileError(
            where="--source files",
            rule="needs the folder that holds the candle files",
            got="no --data-dir" if data_dir is None else f"{data_dir}, which is no folder",
            fix="Add --data-dir FOLDER",
        )
    return data_dir
