"""Who serves: lower error over the tasks, and significantly worse on none; ties stay."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from evaluating import evaluate_arrays, rolled

from v8.annexes.live.promotion import ChampionTest
from v8.model.baselines.baselines import NAIVE
from v8.model.evaluation.evaluation import MODEL, Evaluation
from v8.model.evaluation.significance import Significance

TASKS = ("ohlc", "volatility")
NUM = 400


@pytest.fixture(scope="module")
def evaluated() -> Evaluation:
    """A challenger that errs 0.75 times as much as naive on two tasks."""
    rng = np.random.default_rng(3)
    closes = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, (NUM, 20)), axis=1))
    naive = {task: values for task, values in rolled(closes, 2).items() if task in TASKS}
    actual = {task: values * np.exp(rng.normal(0, 0.02, values.shape)) for task, values in naive.items()}
    model = {task: naive[task] * (actual[task] / naive[task]) ** 0.25 for task in TASKS}
    offsets = {task: np.full(values.shape[1:], 0.001) for task, values in naive.items()}
    return evaluate_arrays(actual, model, closes, offsets)


def contest(evaluated: Evaluation, *, beside: dict[str, float], surely: bool = True) -> ChampionTest:
    """Let the champion err so many times as much as the challenger; surely, or as chance may have it."""
    ours = {task: evaluated.error(task, MODEL).overall for task in TASKS}
    errors = {task: ours[task] * times for task, times in beside.items()}
    differences = {task: ours[task] - errors[task] for task in TASKS}
    tests = {
        task: Significance(each, abs(each) / (9 if surely else 1) or None, evaluated.num_windows, 20)
        for task, each in differences.items()
    }
    return ChampionTest(evaluated, errors, tests)


def test_a_lower_error_wins_even_where_it_may_be_chance(evaluated: Evaluation) -> None:
    won = contest(evaluated, beside={"ohlc": 1.01, "volatility": 1.0}, surely=False)
    assert won.challenger_wins
    assert re.search("is lower: 0.750 .* 0.754$", won.reason)


def test_an_error_that_is_not_lower_does_not(evaluated: Evaluation) -> None:
    lost = contest(evaluated, beside={"ohlc": 0.99, "volatility": 1.0}, surely=False)
    assert not lost.challenger_wins
    assert re.search("is not lower: 0.750 .* 0.746", lost.reason)


def test_a_tie_does_not_and_rounding_is_no_difference(evaluated: Evaluation) -> None:
    assert not contest(evaluated, beside={"ohlc": 1.0, "volatility": 1.0}).challenger_wins
    assert not contest(evaluated, beside={"ohlc": 1.0 + 1e-12, "volatility": 1.0}).challenger_wins


def test_a_lower_error_does_not_win_where_a_task_is_worse_by_more_than_chance(evaluated: Evaluation) -> None:
    mixed = {"ohlc": 0.95, "volatility": 1.2}
    sure = contest(evaluated, beside=mixed)
    assert sure.worse_tasks == ["ohlc"]
    assert not sure.challenger_wins
    assert sure.reason.endswith(" worse on ohlc (p below 0.001)")
    assert contest(evaluated, beside=mixed, surely=False).challenger_wins


def test_the_best_baseline_is_that_of_the_champions_run(evaluated: Evaluation) -> None:
    beside = {"ohlc": 1.0, "volatility": 1.0}
    own = contest(evaluated, beside=beside).best_baselines
    named = replace(contest(evaluated, beside=beside), references={"ohlc": "offset", "volatility": "absent"})
    multiple = evaluated.error("ohlc", "offset").overall / evaluated.error("ohlc", NAIVE).overall
    assert named.best_baselines["ohlc"] == ("offset", pytest.approx(multiple))
    assert named.best_baselines["volatility"] == own["volatility"]


def test_nothing_is_won_on_windows_that_say_nothing(evaluated: Evaluation) -> None:
    few = contest(replace(evaluated, num_windows=199), beside={"ohlc": 2.0, "volatility": 2.0})
    assert not few.challenger_wins
    assert re.fullmatch("only 199 windows .* 200", few.reason)


def test_every_multiple_is_of_naive_s_error(evaluated: Evaluation) -> None:
    one = contest(evaluated, beside={"ohlc": 2.0, "volatility": 1.0})
    naive = evaluated.error("ohlc", NAIVE).overall
    assert one.champion_multiples["ohlc"] == pytest.approx(2 * evaluated.error("ohlc", MODEL).overall / naive)
    for task, (name, multiple) in one.best_baselines.items():
        assert multiple == evaluated.error(task, name).overall / evaluated.error(task, NAIVE).overall
