"""Seasons: breaks in volatility by their rule, and the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_profiles import demo_data, tiny_profile

from v8.base.errors import ArtifactError
from v8.model.evaluation.evaluation import MODEL, evaluate_test_span
from v8.model.evaluation.fold_losses import BREAK_FACTOR, WindowLosses, volatility_shock

DAY = 24


def days(*wildness: float) -> np.ndarray:
    """Hourly log ranges: a day each, of bars that alternate around its wildness."""
    swing = np.tile([0.8, np.sqrt(2 - 0.64)], DAY // 2)  # mean square 1
    return np.concatenate([one * swing for one in wildness])


@pytest.mark.parametrize(
    ("later", "is_break"),
    [
        (days(1.0, 1.2, 1.0), False),
        (days(1.0, 1.4, 0.9), False),
        (days(1.0, 1.6, 1.0), True),  # one crash and all is calm again
        (days(0.3, 0.3, 0.3), False),  # a fall is none: who was trained in wild days knows calm ones
        (days(2.0, 2.0, 2.0), True),
    ],
)
def test_a_break_is_a_day_beyond_the_wild_days_of_training(later: np.ndarray, is_break: bool) -> None:
    trained = days(*[1.0] * 30)
    assert (volatility_shock(trained, later, DAY) > BREAK_FACTOR) is is_break


def test_what_training_has_seen_more_than_now_and_then_is_no_break() -> None:
    crash = days(3.0, *[1.0] * 24)
    assert volatility_shock(days(*[1.0] * 29, 3.0), crash, DAY) == pytest.approx(3.0)
    assert volatility_shock(days(*[1.0] * 24, *[3.0] * 6), crash, DAY) == pytest.approx(1.0)


def test_many_later_days_have_a_wilder_wildest_one_without_any_change() -> None:
    draws = np.random.default_rng(5).gamma(4.0, size=400)
    trained = days(*draws[:200])
    few = days(*draws[200:220])
    many = days(*draws[200:])
    assert volatility_shock(trained, many, DAY) < BREAK_FACTOR
    assert abs(volatility_shock(trained, many, DAY) - volatility_shock(trained, few, DAY)) < 0.5


def test_a_market_that_stands_still_has_a_shock_all_the_same() -> None:
    assert volatility_shock(np.zeros(48), np.zeros(48), DAY) == 0.0
    assert np.isfinite(volatility_shock(np.zeros(48), days(1.0), DAY))
    assert volatility_shock(days(1.0)[:5], days(2.0)[:5], DAY) == pytest.approx(
        2.0
    )  # less than a day is a day


@pytest.fixture(scope="module")
def evaluated() -> WindowLosses:
    data = demo_data(tiny_profile("dense_newest"))
    evaluation, losses = evaluate_test_span(data, data.spans["test"].naive)
    assert evaluation.validation_mae == {}  # all tasks have a reference: no baseline has to be chosen
    return WindowLosses.of(data, losses)


def test_a_fold_has_one_loss_a_window_of_everybody(evaluated: WindowLosses) -> None:
    assert (np.diff(evaluated.closes_s) > 0).all()
    for by_name in evaluated.by_task.values():
        assert {MODEL, "naive", "range_paths"} <= by_name.keys()
        assert all(losses.shape == evaluated.closes_s.shape for losses in by_name.values())


def test_a_fold_is_read_as_it_was_written(evaluated: WindowLosses, tmp_path: Path) -> None:
    evaluated.save(tmp_path / "test_losses.npz")
    again = WindowLosses.load(tmp_path / "test_losses.npz")
    np.testing.assert_array_equal(again.closes_s, evaluated.closes_s)
    assert again.shock == evaluated.shock
    for task, by_name in evaluated.by_task.items():
        for name, losses in by_name.items():
            np.testing.assert_array_equal(again.by_task[task][name], losses)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", None])
def test_a_damaged_fold_is_refused(content: bytes | None, evaluated: WindowLosses, tmp_path: Path) -> None:
    file = tmp_path / "test_losses.npz"
    evaluated.save(file)
    file.write_bytes(file.read_bytes()[:-40] if content is None else content)
    with pytest.raises(ArtifactError, match=r"test_losses\.npz: must hold"):
        WindowLosses.load(file)
    with pytest.raises(ArtifactError, match="No such file"):
        WindowLosses.load(tmp_path / "none.npz")
