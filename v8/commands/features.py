"""`python -m v8 features`: what the feature store holds."""

from __future__ import annotations

from v8.commands.options import SeriesOption, asked_series
from v8.market.series import load_universe


def features(series: SeriesOption = None) -> None:
    """Show the feature columns kept on disk, per series, and where they lie."""
    chosen = asked_series(series) or load_universe()

    from v8.commands.printing import print_table
    from v8.features.store import FeatureStore

    folder = FeatureStore().folder
    rows = []
    for one in chosen:
        files = sorted((folder / str(one)).glob("*.parquet"))
        if files:
            rows.append((str(one), len(files), f"{sum(file.stat().st_size for file in files):,}"))
    print_table(f"Feature store {folder}", ("series", "sets of candles", "bytes"), rows)
