"""`python -m v8 data`: download or open candles, check them, and say what was found."""

from __future__ import annotations

from typing import Annotated

import typer

from v8.commands.options import (
    MAX_BARS,
    DataDirOption,
    SeriesOption,
    SourceOption,
    UniverseOption,
    asked_series,
    served_series,
)
from v8.errors import DataError

DEFAULT_BARS = 8_000
"""Newest candles per series, as in every shipped profile."""


def data(
    series: SeriesOption = None,
    universe: UniverseOption = None,
    source: SourceOption = "vision",
    data_dir: DataDirOption = None,
    bars: Annotated[
        int, typer.Option("--bars", metavar="N", min=1, max=MAX_BARS, help="Newest candles per series.")
    ] = DEFAULT_BARS,
) -> None:
    """Download and check candles; print what was found, repaired and dropped."""
    asked = asked_series(series, universe)

    from v8.commands.printing import print_reasons
    from v8.market.sources.source import open_source

    candle_source = open_source(source, data_dir=data_dir)
    chosen = asked or served_series(candle_source)
    failures = []
    for one in chosen:
        try:
            candles = candle_source.candles(one, bars)
        except DataError as error:
            failures.append((str(one), str(error)))
            continue
        typer.echo(f"{one}: {candles.report.summary()}")
    if failures:
        print_reasons(f"{len(failures)} of {len(chosen)} series have no usable candles", failures)
        raise typer.Exit(DataError.exit_code)
