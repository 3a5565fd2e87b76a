"""What `data` and `features` print: candles checked or updated, features stored or explained."""

import time
from collections.abc import Sequence
from typing import Final

from v8.base.errors import DataError, UnknownSeriesError
from v8.base.terminal import print_all_lines, print_lines, print_table
from v8.base.wording import Table, duration
from v8.data.feature_store import FeatureStore
from v8.data.market.series import Series, iso, load_universe
from v8.data.market.sources.live import LiveSource
from v8.data.market.sources.source import CandleSource, with_nearest
from v8.profile.columns import USER, split_origin
from v8.profile.indicators import FEATURES, warmup_bars
from v8.profile.profile import Profile, load_profile
from v8.runs.options import RunOptions
from v8.runs.reading import candle_findings

MOST_SKEW_S: Final = 5.0
"""Largest error of the clock, in seconds, that is not reported."""


def check_candles(source: CandleSource, chosen: Sequence[Series], bars: int) -> list[tuple[str, str]]:
    """Print a summary of the candles of each series; return the series without usable candles and why.

    What a run of the default profile would say of them follows: few windows, leaps of prices, old candles.
    """
    failures = []
    usable = []
    for series in chosen:
        try:
            candles = source.candles(series, bars)
            print_lines(f"{series}: {candles.report.summary()}")
            usable.append(candles)
        except UnknownSeriesError as error:
            advised = with_nearest(error, series, source.name, load_universe())
            failures.append((str(series), str(advised)))
        except DataError as error:
            failures.append((str(series), str(error)))
    profile = load_profile(RunOptions.model_fields["profile"].default)
    is_demo = not source.is_publishable
    print_all_lines(candle_findings(profile, usable, time.time(), has_own_end=is_demo))
    return failures


def update_store(
    source: LiveSource, chosen: Sequence[Series], bars: int, *, accept_revisions: bool
) -> list[tuple[str, str]]:
    """Update the store and print what was done; return the series that are not up to date and why.

    `accept_revisions` takes revised candles over, see `LiveSource.update`.

    Raises:
        StorageError: If the store cannot be written: other commands need no store, this one fills it.
    """
    source.store.require_writable()
    updates = source.update(chosen, bars, accept_revisions=accept_revisions)
    rows = []
    failures = []
    for update in updates:
        if isinstance(update.result, DataError):
            failures.append((str(update.series), str(update.result)))
            continue
        history = update.result.candles
        row = (
            update.series,
            f"{len(history):,}",
            iso(history.last_s),
            f"{update.num_added:,}",
            f"{update.num_revised:,}",
            f"{len(update.result.revisions):,}",
            f"{history.num_missing:,}",
        )
        rows.append(row)
    if rows:
        header = ("series", "candles", "newest", "fetched", "revised now", "in all", "holes")
        print_table(Table(header, rows, f"Candles in {source.store.folder}"))
    print_all_lines(f"{update.series}: {update.note}" for update in updates if update.note)
    ahead_s = source.rest.clock.ahead_s
    if abs(ahead_s) > MOST_SKEW_S:
        word = "ahead of" if ahead_s > 0 else "behind"
        print_lines(f"This machine's clock is {duration(abs(ahead_s))} {word} the exchange's, which is used.")
    return failures


def print_store(chosen: Sequence[Series]) -> None:
    """Print which series have feature columns on disk, and how many bytes."""
    folder = FeatureStore().folder
    rows = []
    for series in chosen:
        sizes = [file.stat().st_size for file in (folder / str(series)).glob("*.parquet")]
        if sizes:
            rows.append((str(series), len(sizes), f"{sum(sizes):,}"))
    print_table(Table(("series", "sets of candles", "bytes"), rows, f"Feature store {folder}"))


def print_features(profile: Profile) -> None:
    """Print of which series each feature is computed, the candles before its first value, and what it is."""
    files = {column: table.file for table in profile.covariates for column in table.columns}
    rows = []
    for name in profile.features:
        origin, column = split_origin(name)
        source = files[column] if origin == USER else origin or "the series"
        rows.append((name, source, warmup_bars([name]), FEATURES[name].sentence))
    header = ("feature", "of", "bars before the first", "what it is")
    print_table(Table(header, rows, f"Features of profile {profile.name}", is_prose=True))
    for table in profile.covariates:
        place = "The source of the candles has it." if table.is_of_source else "--tables names its folder."
        print_lines(
            f"{table.file}: a row counts from its {table.time} plus {table.available_after_s:,} s until a "
            f"newer one does, at most until its {table.time} plus {table.max_age_s:,} s. {place}"
        )
