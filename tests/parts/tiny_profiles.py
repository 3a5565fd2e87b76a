"""Small profiles that train in a moment, and tables of the demo market for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from v8.data.features import FeatureTable, compute_table
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.data.windows import SeriesData, prepare_series, table_columns
from v8.profile.families import FAMILIES
from v8.profile.family import TeacherForcingSettings
from v8.profile.profile import Profile, load_profile, profile_names

TINY_NETWORKS: dict[str, dict[str, Any]] = {
    "bilstm_seq2seq": {"encoder_units": (6, 4), "decoder_units": (4,)},
    "lstm_dense": {"encoder_units": (6, 4), "dense_units": (4,)},
    "dense_newest": {"dense_units": (6, 4)},
    "transformer": {"width": 8, "num_heads": 2, "encoder_units": (6,), "decoder_units": (6,)},
    "gru_attention": {"recurrent_units": (6, 4)},
    "lstm_attention": {"recurrent_units": (6, 4), "num_heads": 2, "dense_units": (5,)},
    "lstm_close": {"encoder_units": (6, 4)},
}
RANGED_FEATURES = (
    *("open", "high", "low", "close", "range_1", "recent_range", "move_5", "day_sin_1"),
    *("rolled_middle_1", "rolled_deviation_3"),
)


def network_profiles() -> list[str]:
    """Name the shipped profiles that have a network; those of a formula are fitted."""
    return [name for name in profile_names() if not load_profile(name).family.is_formula]


def tiny_profile(
    family: str = "bilstm_seq2seq",
    *,
    dropout: float = 0.0,
    teacher_forcing: float = 0.0,
    training: dict[str, Any] | None = None,
    **changes: Any,
) -> Profile:
    """Return the aligned profile shrunk to a network that trains in a moment."""
    content = load_profile("aligned").model_dump()
    content |= {"name": "tiny", "newest_bars": 700, "lookback_bars": 20, "horizon_bars": 3}
    content["calibration"] = "none"
    content["network"] = {"family": family, "dropout": dropout, **TINY_NETWORKS[family]}
    if issubclass(FAMILIES[family].settings, TeacherForcingSettings):
        content["network"]["teacher_forcing"] = teacher_forcing
    content["training"] |= {"epochs": 3, "learning_rate": 5e-3, "precision": "float32"} | (training or {})
    return Profile.model_validate(content | changes)


def tiny_ranged_profile(family: str = "dense_newest", **changes: Any) -> Profile:
    """Return a tiny profile whose targets are measured by the recent range; 239 of its bars warm up."""
    return tiny_profile(
        family, **{"scaling": "ranged", "features": RANGED_FEATURES, "newest_bars": 940, **changes}
    )


def demo_table(profile: Profile, *, series: str = "BTCUSDT-15m", num_bars: int | None = None) -> FeatureTable:
    candles = open_source("demo").candles(Series.parse(series), num_bars or profile.newest_bars)
    return compute_table(candles, table_columns(profile))


def table_with(table: FeatureTable, **arrays: np.ndarray) -> FeatureTable:
    """Return a table with some columns (or `segment`) replaced."""
    segment = arrays.pop("segment", table.segment)
    changed = {**table.chunks, **{name: (array.astype(np.float32),) for name, array in arrays.items()}}
    digest = f"{hash(b''.join(run.tobytes() for runs in changed.values() for run in runs)):x}"
    return FeatureTable(table.series, table.open_time_s, changed, segment, digest)


def demo_data(profile: Profile, **options: Any) -> SeriesData:
    return prepare_series(demo_table(profile, **options), profile)
