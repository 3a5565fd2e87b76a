"""A formula is a profile like the others: evaluated, shown and loaded, and it says that it is a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from v8.base.errors import ProfileError
from v8.data.windows import fewest_bars
from v8.model.evaluation.evaluation import Evaluation
from v8.model.networks.networks import build_network
from v8.profile.profile import Profile, load_profile
from v8.runs.options import SMOKE_SPARE_BARS

FORMULA = load_profile("range_paths")


@pytest.mark.tf
def test_the_formula_goes_from_its_profile_to_the_leaderboard_and_equals_itself(
    run_toy: Callable[..., Any], tmp_path: Path
) -> None:
    run = run_toy(
        FORMULA.with_budget(newest_bars=fewest_bars(FORMULA) + SMOKE_SPARE_BARS, epochs=1), tmp_path
    )
    evaluation = Evaluation.from_json(run.evaluation)
    for task in FORMULA.tasks:
        assert evaluation.against(task, "range_paths").verdict == "equals range_paths"
        assert evaluation.against(task, "range_paths").p_value is None
    (row,) = csv.DictReader(io.StringIO(run.leaderboard))
    assert row["epochs_run"] == "0"
    assert "fitted to the train" in run.page


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"training": {"epochs": 3}}, "training.epochs must be 0 with family range_paths"),
        ({"training": {"precision": "auto"}}, "training.precision must be float32"),
        ({"calibration": "ensemble"}, "calibration must be none"),
        ({"tasks": {"ohlc": {"weight": 1.0, "loss": "mse"}}}, "tasks.ohlc.loss must be mae"),
        ({"lookback_bars": 239}, "lookback_bars must be at least 240"),
    ],
)
def test_what_a_formula_cannot_do_is_refused(changed: dict[str, Any], rule: str) -> None:
    content = FORMULA.model_dump()
    for key, value in changed.items():
        content[key] = {**content[key], **value} if key == "training" else value
    with pytest.raises(ValueError, match=rule):
        Profile.model_validate(content)


def test_a_network_trains_an_epoch_at_least() -> None:
    with pytest.raises(ProfileError, match=r"training\.epochs must be at least 1 with family dense_newest"):
        load_profile("frontier").with_budget(epochs=0)


@pytest.mark.tf
def test_what_is_about_training_refuses_a_formula() -> None:
    with pytest.raises(ProfileError, match="got the formula range_paths, which is fitted"):
        build_network(FORMULA, seed=1)
