"""`python -m v8 data`: download or open candles, check them, and say what was found.

`python -m v8 data update` brings the store of the source `live` up to date instead, all series at once.
`python -m v8 features` tells what the feature store holds, or what the features of a profile are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from v8.cli.options import MAX_BARS, DataDirOption, SeriesOption, SourceOption, UniverseOption
from v8.errors import DataError, ProfileError
from v8.invocation import command
from v8.market.series import Series, load_universe
from v8.profile import Profile, load_profile
from v8.runs.options import asked_series, served_series
from v8.tables import Table
from v8.wording import duration

if TYPE_CHECKING:
    from pathlib import Path

    from v8.market.sources.live import LiveSource, Updated
    from v8.market.sources.source import CandleSource

DEFAULT_BARS = 8_000
"""Newest candles per series, as in every shipped profile."""

UPDATE: Final = "update"
DEFAULT_SOURCE: Final = "vision"

MOST_SKEW_S: Final = 5.0
"""A clock that is wrong by less is not worth a line."""


def data(
    action: Annotated[
        str | None,
        typer.Argument(metavar="[update]", help="Bring the store of --source live up to date."),
    ] = None,
    series: SeriesOption = None,
    universe: UniverseOption = None,
    source: SourceOption = DEFAULT_SOURCE,
    data_dir: DataDirOption = None,
    bars: Annotated[
        int, typer.Option("--bars", metavar="N", min=1, max=MAX_BARS, help="Newest candles per series.")
    ] = DEFAULT_BARS,
    accept_revision: Annotated[
        bool,
        typer.Option(
            "--accept-revision",
            help="Update, and take what the API says now of candles instead of what it said first.",
        ),
    ] = False,
) -> None:
    """Download and check candles; print what was found, repaired and dropped."""
    action = UPDATE if accept_revision and action is None else action
    asked = asked_series(series, universe)
    if action is not None:
        _require_update(action, source, data_dir)
        source = "live"

    from v8.market.sources.live import LiveSource
    from v8.market.sources.source import open_source

    candle_source = open_source(source, data_dir=data_dir)
    chosen = asked or served_series(candle_source)
    if action and isinstance(candle_source, LiveSource):
        failures = _update(candle_source, chosen, bars, accepts=accept_revision)
    else:
        failures = _check(candle_source, chosen, bars)
    if failures:
        from v8.cli.printing import print_reasons

        print_reasons(f"{len(failures)} of {len(chosen)} series have no usable candles", failures)
        raise typer.Exit(DataError.exit_code)


def _require_update(action: str, source: str, data_dir: Path | None) -> None:
    if action != UPDATE:
        raise ProfileError(
            where=command("data"),
            rule=f"takes the word {UPDATE}, or none",
            got=repr(action),
            fix="Name series with --series",
        )
    if source not in {DEFAULT_SOURCE, "live"} or data_dir:
        raise ProfileError(
            where=command(f"data {UPDATE}"),
            rule="brings the store of --source live up to date",
            got=f"--source {source}" if source != DEFAULT_SOURCE else "--data-dir",
            fix="Leave it out",
        )


def _check(source: CandleSource, chosen: Sequence[Series], bars: int) -> list[tuple[str, str]]:
    """Print what each series has, and return the reasons of those that have nothing."""
    failures = []
    for one in chosen:
        try:
            candles = source.candles(one, bars)
        except DataError as error:
            failures.append((str(one), str(error)))
            continue
        typer.echo(f"{one}: {candles.report.summary()}")
    return failures


def _update(
    source: LiveSource, chosen: Sequence[Series], bars: int, *, accepts: bool
) -> list[tuple[str, str]]:
    """Print what was done for each series, and return the reasons of those that are not up to date."""
    from v8.cli.printing import print_lines, print_table

    updated = source.update(chosen, bars, accepts=accepts)
    rows = [row for one in updated if (row := _row(one))]
    if rows:
        header = ("series", "candles", "newest", "fetched", "revised now", "in all", "holes")
        print_table(Table(header, rows, f"Candles in {source.store.folder}"))
    print_lines(*(f"{one.series}: {one.note}" for one in updated if one.note))
    ahead_s = source.rest.clock.ahead_s
    if abs(ahead_s) > MOST_SKEW_S:
        word = "ahead of" if ahead_s > 0 else "behind"
        print_lines(f"This machine's clock is {duration(abs(ahead_s))} {word} the exchange's, which is used.")
    return [(str(one.series), str(one.found)) for one in updated if isinstance(one.found, DataError)]


def _row(one: Updated) -> tuple[str, ...] | None:
    """Describe a series that is up to date: candles, newest, what came, revisions, bars without candles."""
    if isinstance(one.found, DataError):
        return None

    from v8.market.series import iso

    found, history = one.found, one.found.history
    counts = (found.num_added, found.num_revised, len(found.revisions), history.num_missing)
    return str(one.series), f"{len(history):,}", iso(history.last_s), *(f"{count:,}" for count in counts)


def features(
    series: SeriesOption = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="NAME|FILE", help="Explain the features of a profile instead, one by one."
        ),
    ] = None,
) -> None:
    """Show the feature columns kept on disk, per series, and where they lie; or explain a profile's."""
    if profile is None:
        _print_store(series)
    elif series is None:
        _print_features(load_profile(profile))
    else:
        raise ProfileError(
            where="--profile",
            rule="explains features, which are the same for every series",
            got="--series beside it",
            fix="Leave one of them out",
        )


def _print_store(series: list[str] | None) -> None:
    chosen = asked_series(series) or load_universe()

    from v8.cli.printing import print_table
    from v8.features.store import FeatureStore

    folder = FeatureStore().folder
    rows = []
    for one in chosen:
        files = sorted((folder / str(one)).glob("*.parquet"))
        if files:
            rows.append((str(one), len(files), f"{sum(file.stat().st_size for file in files):,}"))
    print_table(Table(("series", "sets of candles", "bytes"), rows, f"Feature store {folder}"))


def _print_features(profile: Profile) -> None:
    """Print where each feature comes from, the candles before its first value, and what it is."""
    from v8.cli.printing import print_lines, print_table
    from v8.columns import USER, parted
    from v8.features.indicators import FEATURES, warmup_bars

    files = {column: table.file for table in profile.covariates for column in table.columns}
    rows = []
    for name in profile.features:
        origin, plain = parted(name)
        comes_from = files[plain] if origin == USER else origin or "the series"
        rows.append((name, comes_from, warmup_bars([name]), FEATURES[name].sentence))
    header = ("feature", "of", "bars before the first", "what it is")
    print_table(Table(header, rows, f"Features of profile {profile.name}", is_prose=True))
    for table in profile.covariates:
        print_lines(
            f"{table.file}: a row counts from its {table.time} plus {table.available_after_s:,} s until a "
            f"newer one does, at most until its {table.time} plus {table.max_age_s:,} s. --tables names its "
            "folder."
        )
