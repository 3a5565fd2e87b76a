"""The training data of all contenders: demo candles of a profile."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.data.features import compute_table
from v8.data.market.series import load_universe
from v8.data.market.sources.demo import DemoSource
from v8.data.windows.dataset import SeriesData, prepare_series, table_columns
from v8.profile.profile import Profile, load_profile


def load_sized_profile(spec: dict[str, Any]) -> Profile:
    """Load the profile that `spec` names, with its `batch_size` if that is not None."""
    profile = load_profile(spec["profile"])
    return profile if spec["batch_size"] is None else with_batch(profile, spec["batch_size"])


def with_batch(profile: Profile, batch_size: int) -> Profile:
    """Return the profile with another number of windows a step, on every device."""
    changed = {"batch_size": batch_size, "cpu_batch_size": None}
    content = profile.model_dump()
    content["training"] |= changed
    return Profile.model_validate(content)


def demo_series(profile: Profile, num_bars: int, num_series: int) -> list[SeriesData]:
    """Return the prepared data of some series of the demo market."""
    source = DemoSource()
    universe = load_universe()
    chosen = [universe[number % len(universe)] for number in range(num_series)]
    candles = [source.candles(series, num_bars) for series in chosen]
    return [prepare_series(compute_table(own, table_columns(profile)), profile) for own in candles]


def arrays_of(data: SeriesData) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
    """Copy all train windows out of the tables, which is what `fit` on arrays needs.

    Returns:
        Inputs (N, T, F) and targets, task to (N, H, C), scaled, float32.
    """
    rows = data.anchors["train"]
    x_NTF = data.inputs_NF[rows[:, None] + np.arange(1 - data.profile.lookback_bars, 1)]
    close = data.profile.features.index("close")
    x_NTF = x_NTF - x_NTF[:, -1:, close : close + 1] * data.scaling.anchored_mask()
    return x_NTF, {task: target[rows] for task, target in data.targets_NHC.items()}
