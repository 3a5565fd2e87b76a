"""Models on the windows that all of them share: which remain, and with which baselines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from v8.annexes.comparison.results import share_windows
from v8.base.errors import ArtifactError
from v8.data.market.series import Series
from v8.model.evaluation.evaluation import EvaluatedTask, Evaluation
from v8.model.evaluation.fold_losses import Cell, WindowLosses

BAR_S = 900


def cell(
    first: int, num: int, *, name: str = "BTCUSDT-15m", fold: int = 1, horizon: int = 10, **losses: Any
) -> Cell:
    """Windows of consecutive bars; naive's loss of a window is its number."""
    bars = np.arange(first, first + num)
    told = {"model": 0.9 * bars, "naive": bars, "har": 0.95 * bars, **losses}
    by_name = {each: np.float32(np.broadcast_to(values, num)) for each, values in told.items()}
    evaluation = Evaluation(
        num_windows=num,
        horizon_bars=horizon,
        tasks={"ohlc": EvaluatedTask((), {}, {})},
        direction=(),
        validation_mae={"ohlc": {"naive": 1.0, "har": 0.9}},
    )
    return Cell(fold, Series.parse(name), evaluation, WindowLosses(bars * BAR_S, {"ohlc": by_name}, 1.0))


def test_means_are_over_the_windows_that_all_have_whatever_the_lookback() -> None:
    short = cell(100, 300)
    long = cell(320, 80)
    shared = share_windows({"short": [short], "long": [long]})
    assert (shared.num_shared, shared.num_own) == (80, {"short": 300, "long": 80})
    for (one,) in shared.cells.values():
        np.testing.assert_array_equal(one.losses.closes_s, long.losses.closes_s)
        assert one.losses.mean("ohlc", "naive") == pytest.approx(359.5)  # of 320 to 399
        assert one.relative_error("ohlc") == pytest.approx(0.9)
    # A model alone, and two of one profile, share all they have.
    assert share_windows({"short": [short]}).num_shared == 300
    assert share_windows({"first": [short], "second": [short]}).num_shared == 300


def test_a_fold_or_series_that_one_lacks_is_left_out_for_all() -> None:
    cells = [cell(100, 50), cell(150, 50, fold=2), cell(100, 50, name="ETHUSDT-15m")]
    shared = share_windows({"all": cells, "some": cells[:2], "late": [cells[0], cell(300, 50, fold=2)]})
    for remaining in shared.cells.values():
        assert [(one.fold, str(one.series)) for one in remaining] == [(1, "BTCUSDT-15m")]
    assert shared.num_own == {"all": 150, "some": 100, "late": 100}


def test_all_are_compared_with_the_baseline_that_was_fitted_best() -> None:
    weak = cell(100, 50)
    strong = cell(100, 50, har=0.85 * np.arange(100, 150))
    shared = share_windows({"weak": [weak], "strong": [strong]})
    ratios = [one.relative_error("ohlc", "har") for (one,) in shared.cells.values()]
    assert ratios == pytest.approx([0.9 / 0.85] * 2)


def test_each_keeps_its_own_baselines_where_they_look_differently_far_ahead() -> None:
    near = cell(100, 50, horizon=1, naive=5.0, har=4.0)
    shared = share_windows({"near": [near], "far": [cell(100, 50)]})
    assert shared.cells["near"][0].relative_error("ohlc", "naive", "har") == pytest.approx(0.8)
    assert shared.cells["far"][0].relative_error("ohlc", "naive", "har") == pytest.approx(0.95)


def test_other_candles_in_the_same_windows_are_refused() -> None:
    with pytest.raises(ArtifactError) as refused:
        share_windows({"one": [cell(100, 50)], "other": [cell(100, 50, naive=1.01 * np.arange(100, 150))]})
    assert refused.value.where == "BTCUSDT-15m"
    assert "125.7 for other and 124.5 for one in ohlc" in str(refused.value)
