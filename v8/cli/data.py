"""What `data` and `features` print: candles checked or brought up to date, features kept or explained."""

from collections.abc import Sequence
from typing import Final

from v8.cli.printing import print_lines, print_table
from v8.columns import USER, parted
from v8.errors import DataError
from v8.features.indicators import FEATURES, warmup_bars
from v8.features.store import FeatureStore
from v8.market.series import Series, iso
from v8.market.sources.live import LiveSource
from v8.market.sources.source import CandleSource
from v8.profile import Profile
from v8.wording import Table, duration

MOST_SKEW_S: Final = 5.0
"""A clock that is wrong by less is not worth a line."""


def check_candles(source: CandleSource, chosen: Sequence[Series], bars: int) -> list[tuple[str, str]]:
    """Print what each series has, and return the reasons of those that have nothing."""
    failures = []
    for one in chosen:
        try:
            print_lines(f"{one}: {source.candles(one, bars).report.summary()}")
        except DataError as error:
            failures.append((str(one), str(error)))
    return failures


def update_store(
    source: LiveSource, chosen: Sequence[Series], bars: int, *, accepts: bool
) -> list[tuple[str, str]]:
    """Print what was done for each series, and return the reasons of those that are not up to date.

    Raises `StorageError` if the store cannot be written: other commands need no store, this one fills it.
    """
    source.store.require_writable()
    updated = source.update(chosen, bars, accepts=accepts)
    rows = []
    failures = []
    for one in updated:
        if isinstance(one.found, DataError):
            failures.append((str(one.series), str(one.found)))
            continue
        found, history = one.found, one.found.history
        counts = (one.num_added, one.num_revised, len(found.revisions), history.num_missing)
        newest = iso(history.last_s)
        rows.append((one.series, f"{len(history):,}", newest, *(f"{count:,}" for count in counts)))
    if rows:
        header = ("series", "candles", "newest", "fetched", "revised now", "in all", "holes")
        print_table(Table(header, rows, f"Candles in {source.store.folder}"))
    print_lines(*(f"{one.series}: {one.note}" for one in updated if one.note))
    ahead_s = source.rest.clock.ahead_s
    if abs(ahead_s) > MOST_SKEW_S:
        word = "ahead of" if ahead_s > 0 else "behind"
        print_lines(f"This machine's clock is {duration(abs(ahead_s))} {word} the exchange's, which is used.")
    return failures


def print_store(chosen: Sequence[Series]) -> None:
    """Print which series have feature columns on disk, and how many bytes."""
    folder = FeatureStore().folder
    found = {
        str(one): [file.stat().st_size for file in (folder / str(one)).glob("*.parquet")] for one in chosen
    }
    rows = ((name, len(sizes), f"{sum(sizes):,}") for name, sizes in found.items() if sizes)
    print_table(Table(("series", "sets of candles", "bytes"), rows, f"Feature store {folder}"))


def print_features(profile: Profile) -> None:
    """Print where each feature comes from, the candles before its first value, and what it is."""
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
