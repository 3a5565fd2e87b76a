"""Who serves: lower error over the tasks, and worse on none by more than chance; ties stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from judging import judge_arrays, rolled

from v8.baselines.baselines import NAIVE
from v8.evaluation.contest import Contest, too_few
from v8.evaluation.judgement import MODEL, Judgement
from v8.evaluation.table import Significance

TASKS = ("ohlc", "volatility")
NUM = 400


@pytest.fixture(scope="module")
def judged() -> Judgement:
    """A challenger that errs 0.75 times as much as naive on two tasks."""
    rng = np.random.default_rng(3)
    closes = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, (NUM, 20)), axis=1))
    naive = {task: values for task, values in rolled(closes, 2).items() if task in TASKS}
    truth = {task: values * np.exp(rng.normal(0, 0.02, values.shape)) for task, values in naive.items()}
    model = {task: naive[task] * (truth[task] / naive[task]) ** 0.25 for task in TASKS}
    offsets = {task: np.full(values.shape[1:], 0.001) for task, values in naive.items()}
    return judge_arrays(truth, model, closes, offsets)


def contest(judged: Judgement, *, beside: dict[str, float], surely: bool = True) -> Contest:
    """Let the champion err so many times as much as the challenger; surely, or as chance may have it."""
    ours = {task: judged.error(task, MODEL).overall for task in TASKS}
    errors = {task: ours[task] * times for task, times in beside.items()}
    differences = {task: ours[task] - errors[task] for task in TASKS}
    tests = {
        task: Significance(each, abs(each) / (9 if surely else 1) or None, judged.num_windows, 20)
        for task, each in differences.items()
    }
    return Contest(judged, errors, tests)


def test_a_lower_error_wins_even_where_it_may_be_chance(judged: Judgement) -> None:
    won = contest(judged, beside={"ohlc": 1.01, "volatility": 1.0}, surely=False)
    assert won.is_won
    assert won.why == "its error is lower: 0.750 times naive's, the champion's 0.754"


def test_an_error_that_is_not_lower_does_not(judged: Judgement) -> None:
    lost = contest(judged, beside={"ohlc": 0.99, "volatility": 1.0}, surely=False)
    assert not lost.is_won
    assert lost.why.startswith("its error is not lower: 0.750 times naive's, the champion's 0.746")


def test_a_tie_does_not_and_rounding_is_no_difference(judged: Judgement) -> None:
    assert not contest(judged, beside={"ohlc": 1.0, "volatility": 1.0}).is_won
    assert not contest(judged, beside={"ohlc": 1.0 + 1e-12, "volatility": 1.0}).is_won


def test_a_lower_error_does_not_win_where_a_task_is_worse_by_more_than_chance(judged: Judgement) -> None:
    mixed = {"ohlc": 0.95, "volatility": 1.2}
    sure = contest(judged, beside=mixed)
    assert sure.worse == ["ohlc"]
    assert not sure.is_won
    assert sure.why.endswith("but worse by more than chance on ohlc (p below 0.001)")
    assert contest(judged, beside=mixed, surely=False).is_won


def test_nothing_is_won_on_windows_that_say_nothing(judged: Judgement) -> None:
    few = contest(replace(judged, num_windows=23), beside={"ohlc": 2.0, "volatility": 2.0})
    assert not few.is_won
    assert few.why == "only 23 windows that neither has seen; a test needs 24"


def test_more_windows_than_enough_are_enough() -> None:
    for horizon_bars in (1, 2, 10, 33):
        enough = [too_few(num_windows, horizon_bars) is None for num_windows in range(500)]
        assert enough == sorted(enough)
        assert enough[-1]


def test_every_multiple_is_of_naive_s_error(judged: Judgement) -> None:
    one = contest(judged, beside={"ohlc": 2.0, "volatility": 1.0})
    naive = judged.error("ohlc", NAIVE).overall
    assert one.champion_multiples["ohlc"] == pytest.approx(2 * judged.error("ohlc", MODEL).overall / naive)
    for task, (name, multiple) in one.best_baselines.items():
        assert multiple == judged.error(task, name).overall / judged.error(task, NAIVE).overall
