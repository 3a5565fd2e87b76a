"""A baseline of one's own is one file: this one, from the evaluation to the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_profiles import tiny_profile

from v8.data.scaling import Scaling
from v8.data.span import PastSpan, Span
from v8.model.baselines.baselines import BASELINES, Baseline, FittedBaseline
from v8.profile.columns import TASK_OHLC

pytestmark = pytest.mark.tf


def fit_halfway(train: Span, scaling: Scaling) -> FittedBaseline:
    """The close goes half of the way back to the mean of the twenty known ones; nothing on other tasks."""

    def forecast(span: PastSpan) -> dict[str, np.ndarray]:
        halfway = (span.last_close + span.history_close.mean(axis=1)) / 2
        return {TASK_OHLC: np.broadcast_to(halfway[:, None, None], span.target_shape(TASK_OHLC))}

    return forecast


@pytest.fixture
def registered() -> Iterator[None]:
    BASELINES.register(
        Baseline(
            "halfway", "The close goes half of the way back to its mean.", "a toy of this test", fit_halfway
        )
    )
    yield
    BASELINES.pop("halfway")


@pytest.mark.nightly
@pytest.mark.usefixtures("registered")
def test_a_baseline_of_one_file_goes_all_the_way(run_toy: Callable[..., Any], tmp_path: Path) -> None:
    run = run_toy(tiny_profile("dense_newest", training={"epochs": 1}), tmp_path)
    assert list(run.evaluation["tasks"]["ohlc"]["errors"])[-1] == "halfway"
    assert run.evaluation["tasks"]["ohlc"]["significance"]["halfway"]["num_windows"] > 0
    assert "halfway" not in run.evaluation["tasks"]["bands"]["errors"]
    assert "halfway" in run.page
