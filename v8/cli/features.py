"""`python -m v8 features`: what the feature store holds, or what the features of a profile are."""

from typing import Annotated

import typer

from v8.cli.options import SeriesOption
from v8.errors import ProfileError
from v8.market.series import load_universe
from v8.profile import Profile, load_profile
from v8.runs.options import asked_series
from v8.tables import Table


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
