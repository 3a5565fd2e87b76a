"""The task of ranges goes all the way: from the profile to the published model, the table and the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from v8.model.baselines.baselines import BASELINES
from v8.profile.profile import Profile


@pytest.mark.nightly
@pytest.mark.tf
@pytest.mark.parametrize("way", ["anchored", "ranged"])
def test_ranges_go_all_the_way(
    make_profile: Callable[..., Profile],
    make_ranged_profile: Callable[..., Profile],
    run_toy: Callable[..., Any],
    tmp_path: Path,
    way: str,
) -> None:
    make = make_ranged_profile if way == "ranged" else make_profile
    tasks = {name: {"weight": 1.0, "loss": "mae"} for name in ("ohlc", "range")}
    profile = make("dense_newest", tasks=tasks, calibration="ensemble", training={"epochs": 1})
    run = run_toy(profile, tmp_path)
    installed = {name for name, one in BASELINES.items() if one.is_installed()}
    assert set(run.evaluation["tasks"]["range"]["errors"]) == {"model", *installed}
    assert "range_relative_mae" in run.leaderboard.splitlines()[0]
    ranges = run.plain["range"]
    assert ranges.shape == (1, 3, 2)
    assert (ranges > 0).all()
    assert (ranges[:, :, 1] >= ranges[:, :, 0]).all()
