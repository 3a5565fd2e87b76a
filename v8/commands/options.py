"""Flags that several commands share, and how their words become our nouns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from v8.errors import ProfileError
from v8.market.series import Series, load_universe
from v8.market.sources.source import SOURCES

MAX_BARS: Final = 10_000_000
"""Candles per series that can be asked for; as many as a profile may use."""

SeriesOption = Annotated[
    list[str] | None,
    typer.Option("--series", metavar="BTCUSDT-15m", help="One series; repeat for more. Default: all 40."),
]
SourceOption = Annotated[
    str, typer.Option("--source", metavar="|".join(SOURCES), help="Where candles come from.")
]
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Folder of CSV or Parquet files, with --source files."),
]
DeviceOption = Annotated[
    str,
    typer.Option("--device", metavar="auto|cpu|gpu", help="What computes; gpu refuses to run elsewhere."),
]
FleetSizeOption = Annotated[
    str, typer.Option("--fleet-size", metavar="auto|N", help="Series that train as one program.")
]
RevisionOption = Annotated[
    str | None,
    typer.Option(
        "--revision", metavar="SHA", help="Commit, branch or tag of the repository. Default: newest."
    ),
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Use only what is in the cache, as HF_HUB_OFFLINE=1 does.")
]


def chosen_series(names: Sequence[str] | None) -> tuple[Series, ...]:
    """Return the named series, or the default universe.

    Raises:
        ProfileError: If a name is malformed or given twice.
    """
    if not names:
        return load_universe()
    chosen = tuple(Series.parse(name) for name in names)
    for series, count in Counter(chosen).items():
        if count > 1:
            raise ProfileError(
                where="--series",
                rule="each series is given once",
                got=f"{series} {count} times",
                fix="Remove the repetition",
            )
    return chosen
