"""Judgement: skill, verdicts, and a file that cannot disagree with itself."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import judging
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from v8.baselines.baselines import BASELINES, called
from v8.errors import ArtifactError
from v8.evaluation.judgement import Judgement, best_baseline

INSTALLED = [name for name, one in BASELINES.items() if one.is_installed()]


def judge(made: Any) -> Judgement:
    """Judge the model of a made series."""
    return judging.judge(made, made.model)


@pytest.fixture
def flat_span(make_candles) -> Callable[[float, float], Any]:
    """One window, one step, all four columns alike, last close 100."""
    return lambda truth, model: make_candles(np.array([[truth]]), [100.0], np.array([[model]]))


@pytest.mark.parametrize("name", INSTALLED)
def test_a_baseline_judged_as_a_model_has_a_skill_of_exactly_zero_against_itself(
    make_market_span, name: str
) -> None:
    made = make_market_span()
    judgement = judge(replace(made, model=made.forecast(name)))
    for task in made.model:
        assert judgement.against(task, name).skill == 0.0
        assert judgement.multiple(task, "rmse", name) == 1.0
        assert judgement.error(task).by_step == judgement.error(task, name).by_step


def test_naive_judged_as_a_model_equals_naive_and_neither_beats_nor_loses(make_span) -> None:
    made = make_span()
    judgement = judge(replace(made, model=made.forecast("roll_forward")))
    assert {judgement.against(task).verdict for task in made.model} == {"equals naive"}
    assert judgement.loses == []


def test_a_perfect_forecast_has_a_skill_of_one_and_every_direction_right(make_span) -> None:
    made = make_span(num_windows=60)
    judgement = judge(replace(made, model=made.test.truth))
    assert [judgement.against(task).skill for task in made.model] == [1.0, 1.0, 1.0]
    assert [step.rate for step in judgement.direction] == [1.0, 1.0, 1.0]
    assert {judgement.against(task).verdict for task in made.model} == {"beats naive"}


def test_skill_and_multiple_are_those_worked_out_by_hand(flat_span) -> None:
    # Truth 104, naive 100, model 103: errors 1 against 4, so 0.25 times naive and a skill of 0.75.
    judgement = judge(flat_span(104.0, 103.0))
    assert judgement.multiple("ohlc") == pytest.approx(0.25)
    assert judgement.against("ohlc").skill == pytest.approx(0.75)
    # Model 94 instead: error 10 against 4, so 2.5 times naive and a skill of -1.5.
    worse = judge(flat_span(104.0, 94.0))
    assert worse.against("ohlc").skill == pytest.approx(-1.5)
    # One window is too few for a test, so nothing is known of either.
    assert {one.against("ohlc").verdict for one in (judgement, worse)} == {"not yet known"}
    assert worse.loses == []


@pytest.mark.parametrize(
    ("multiple", "standard_error", "verdict"),
    [
        (0.5, 0.01, "beats naive"),
        (0.9999, 10.0, "no real difference from naive"),
        (1.0001, 10.0, "no real difference from naive"),
        (1.5, 0.01, "loses to naive"),
        (1.5, None, "not yet known"),
        (1.0, 0.01, "equals naive"),
    ],
)
def test_a_verdict_is_better_worse_or_no_real_difference_as_the_test_says(
    make_span, multiple: float, standard_error: float | None, verdict: str
) -> None:
    judgement = with_naive_test(judge(make_span(num_windows=60)), multiple, standard_error)
    assert judgement.multiple("ohlc") == pytest.approx(multiple)
    assert judgement.against("ohlc").verdict == verdict
    assert judgement.loses == (["ohlc"] if verdict.startswith("loses") else [])


def with_naive_test(judgement: Judgement, multiple: float, standard_error: float | None) -> Judgement:
    """Let the model err by a multiple of naive on candles; the standard error is in naive's errors."""
    judged = judgement.tasks["ohlc"]
    naive = judged.errors["roll_forward"].mae_return
    cells = tuple(tuple(cell * multiple for cell in row) for row in naive.cells)
    model = replace(judged.errors["model"], mae_return=replace(naive, cells=cells))
    test = replace(
        judged.significance["roll_forward"],
        mean_difference=(multiple - 1) * naive.overall,
        standard_error=standard_error and standard_error * naive.overall,
    )
    errors, significance = {**judged.errors, "model": model}, {"roll_forward": test}
    ohlc = replace(judged, errors=errors, significance={**judged.significance, **significance})
    others = {task: one for task, one in judgement.tasks.items() if task != "ohlc"}
    others = {
        task: replace(one, errors={**one.errors, "model": one.errors["roll_forward"]})
        for task, one in others.items()
    }
    return replace(judgement, tasks={"ohlc": ohlc, **others})


def test_the_multiple_is_the_sum_of_all_errors_over_the_sum_of_naive_ones(make_candles) -> None:
    # Last closes 100 and 10. Returns: naive errs by 1 % and 10 %, the model by 2 % and 1 %: 3 / 11.
    made = make_candles(np.array([[101.0], [11.0]]), [100.0, 10.0], np.array([[103.0], [10.9]]))
    assert judge(made).multiple("ohlc") == pytest.approx(3 / 11)


def test_the_test_is_about_the_losses_the_leaderboard_averages(make_market_span) -> None:
    # A hole after window 40: bars 0 to 39, then 1,000 to 1,049.
    bars = np.arange(90) + np.repeat([0, 960], [40, 50])
    made = make_market_span(num_windows=90).told(bar_numbers=bars)
    judgement = judge(made)
    for task, truth in made.test.truth.items():
        unit = 1.0 if task == "volatility" else made.test.history_close[:, -1:, None]
        ours = np.abs((made.model[task] - truth) / unit).mean(axis=(1, 2))
        for name in INSTALLED:
            theirs = np.abs((made.forecast(name)[task] - truth) / unit).mean(axis=(1, 2))
            test = judgement.tasks[task].significance[name]
            assert test.mean_difference == pytest.approx((ours - theirs).mean(), rel=1e-9)
            # 1.3 x sqrt(90) = 12.3, so pairs up to 13 bars apart count, none of them across the hole.
            assert (test.lag_bars, test.num_windows) == (13, 90)
            deviations = ours - theirs - (ours - theirs).mean()
            weights = np.maximum(0, 1 - np.abs(bars[:, None] - bars) / 14)
            error = np.sqrt(deviations @ weights @ deviations) / 90
            assert test.standard_error == pytest.approx(error, rel=1e-9)
            assert judgement.against(task, name).p_value == test.p_value


@pytest.mark.parametrize("name", INSTALLED)
def test_a_baseline_judged_as_a_model_has_no_p_value_against_itself(make_market_span, name: str) -> None:
    made = make_market_span(num_windows=60)
    judgement = judge(replace(made, model=made.forecast(name)))
    assert {judgement.against(task, name).p_value for task in made.model} == {None}
    assert Judgement.from_json(json.loads(json.dumps(judgement.to_json(), allow_nan=False))) == judgement


def test_what_follows_from_cells_counts_and_tests_stands_in_no_file(make_span) -> None:
    content = judge(make_span(num_windows=60)).to_json()
    assert list(content) == ["format", "num_windows", "horizon_bars", "tasks", "direction"]
    assert list(content["tasks"]["bands"]) == ["columns", "errors", "significance"]
    assert list(content["tasks"]["bands"]["errors"]["offset"]["mae_price"]) == ["by_step_and_column"]
    test = content["tasks"]["bands"]["significance"]["offset"]
    assert list(test) == ["mean_difference", "standard_error", "num_windows", "lag_bars"]


def test_a_judgement_of_format_2_is_read_and_what_followed_from_it_is_passed_over(make_span) -> None:
    judgement = judge(make_span(num_windows=60))
    content = {**judgement.to_json(), "format": 2, "naive": "roll_forward", "loses": []}
    section = content["tasks"]["bands"]
    section |= {"verdict": "beats naive", "multiple_of_naive": {"mae": 0.5}, "skill": {}}
    section["errors"]["model"]["mae_return"] |= {"overall": 0.0, "by_step": [0.0], "by_column": {}}
    section["significance"]["offset"] |= {"statistic": 0.0, "p_value": 1.0}
    content["direction"][0] |= {"rate": 0.0, "low_95": 0.0, "high_95": 0.0}
    assert Judgement.from_json(content) == judgement


def test_a_test_of_other_errors_is_refused_however_sound_it_is(make_span) -> None:
    content = judge(make_span(num_windows=60)).to_json()
    tests = content["tasks"]["bands"]["significance"]
    assert tests["offset"] != tests["roll_forward"]
    tests["offset"] = tests["roll_forward"]
    with pytest.raises(ArtifactError, match="do not follow from the errors beside them"):
        Judgement.from_json(content)


def test_a_baseline_whose_name_is_no_word_is_refused_because_cards_and_pages_show_it(make_span) -> None:
    content = judge(make_span(num_windows=60)).to_json()
    section = content["tasks"]["bands"]
    for part in ("errors", "significance"):
        section[part]["**x** <b>"] = section[part].pop("offset")
    with pytest.raises(ArtifactError, match="judgement of format 3"):
        Judgement.from_json(content)


def test_the_best_baseline_is_the_one_that_errs_least_and_ties_go_to_naive(make_span) -> None:
    judgement = judge(make_span(num_windows=60))
    for task, judged in judgement.tasks.items():
        errors = {name: judgement.error(task, name).overall for name in judged.significance}
        best = judgement.best_baseline(task)
        assert errors[best] == pytest.approx(min(errors.values()), rel=1e-8)
        assert best_baseline([judgement, judgement], task) == best
        expected = "beats" if judgement.error(task).overall < errors[best] else "loses to"
        if judgement.against(task, best).p_value >= 0.05:
            expected = "no real difference from"
        assert judgement.against(task, best).verdict == f"{expected} {called(best)}"
        assert (task in judgement.beaten_by) == (expected == "loses to" and best != "roll_forward")


def test_where_naive_makes_no_error_there_is_no_skill_and_no_infinity(flat_span) -> None:
    judgement = judge(flat_span(100.0, 101.0))
    assert judgement.against("ohlc").skill is None
    assert judgement.multiple("ohlc", "rmse") is None
    assert judgement.error("ohlc", "roll_forward").by_step == (0.0,)
    assert judgement.against("ohlc").verdict == "not yet known"
    text = json.dumps(judgement.to_json(), allow_nan=False)
    assert Judgement.from_json(json.loads(text)) == judgement


def test_g8_prices_a_thousand_times_higher_change_price_errors_only(make_span) -> None:
    made = make_span()

    def dear(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {task: values if task == "volatility" else values * 1000 for task, values in arrays.items()}

    dearer = made.told(truth=dear(made.test.truth), history_close=made.test.history_close * 1000)
    before, after = judge(made), judge(replace(dearer, model=dear(made.model)))
    for task in ("ohlc", "bands"):
        cheap, costly = before.errors[task]["model"], after.errors[task]["model"]
        assert costly.mae_price.overall == pytest.approx(cheap.mae_price.overall * 1000)
        assert costly.mae_return.overall == pytest.approx(cheap.mae_return.overall)
        assert after.against(task).skill == pytest.approx(before.against(task).skill)
    assert after.against("volatility").skill == pytest.approx(before.against("volatility").skill)
    assert after.direction == before.direction


def test_g8_every_error_stands_per_step_beside_every_baseline(make_span) -> None:
    content = judge(make_span()).to_json()
    assert set(content["tasks"]) == {"ohlc", "bands", "volatility"}
    for section in content["tasks"].values():
        assert set(section["errors"]) == {"model", *INSTALLED}
        assert set(section["significance"]) == set(INSTALLED)
        for errors in section["errors"].values():
            assert set(errors) == {"mae_price", "rmse_price", "mae_return", "rmse_return"}
            assert {len(grid["by_step_and_column"]) for grid in errors.values()} == {3}
    assert "mape" not in json.dumps(content).lower()


@given(
    seed=st.integers(0, 1_000),
    num_windows=st.sampled_from([1, 2, 5, 60]),
    horizon_bars=st.integers(1, 4),
)
@settings(max_examples=20, deadline=None)
def test_a_judgement_survives_its_file_bit_for_bit(
    make_span, seed: int, num_windows: int, horizon_bars: int
) -> None:
    judgement = judge(make_span(seed=seed, num_windows=num_windows, horizon_bars=horizon_bars))
    text = json.dumps(judgement.to_json(), allow_nan=False)
    assert Judgement.from_json(json.loads(text)) == judgement


def test_a_span_of_a_market_is_judged_beside_every_baseline_and_survives_its_file(make_market_span) -> None:
    judgement = judge(make_market_span(num_windows=60))
    for task in ("ohlc", "bands", "volatility"):
        assert set(judgement.errors[task]) == {"model", *INSTALLED}
        assert set(judgement.tasks[task].significance) == set(INSTALLED)
    assert Judgement.from_json(json.loads(json.dumps(judgement.to_json(), allow_nan=False))) == judgement


def test_a_profile_with_candles_only_is_judged_on_candles_only(make_span) -> None:
    judgement = judge(make_span(tasks=("ohlc",)))
    assert list(judgement.tasks) == ["ohlc"]
    assert Judgement.from_json(judgement.to_json()) == judgement


def test_float32_forecasts_as_models_give_them_are_judged(make_span) -> None:
    made = make_span()
    narrow = replace(made, model={task: values.astype(np.float32) for task, values in made.model.items()})
    assert judge(narrow).against("bands").skill == pytest.approx(judge(made).against("bands").skill, abs=1e-4)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("tasks", "ohlc", "columns"), ["open"]),
        (("tasks", "ohlc", "errors", "model", "mae_return", "by_step_and_column"), [[0.1]]),
        (("tasks", "ohlc", "errors", "model", "mae_return", "by_step_and_column"), [["x"]]),
        (("tasks", "ohlc", "errors", "model", "mae_return", "by_step_and_column", 0, 0), "0.1"),
        (("tasks", "ohlc", "errors", "model", "mae_return", "by_step_and_column", 0, 0), -0.1),
        (("tasks", "ohlc", "errors", "model", "mae_return", "by_step_and_column", 0, 0), 1e100),
        (("tasks", "ohlc", "errors", "model", "mae_return", "by_step_and_column", 0, 0), float("nan")),
        (("tasks", "ohlc", "errors", "model"), {}),
        (("tasks", "ohlc", "errors"), {}),
        (("tasks", "volume"), {"errors": {}}),
        (("tasks", "volume"), {"columns": ["volume"], "errors": {}, "significance": {}}),
        (("tasks",), {}),
        (("tasks",), None),
        (("direction",), []),
        (("direction", 0, "num_hits"), 99),
        (("direction", 0, "num_hits"), True),
        (("direction", 0, "num_flat_truth"), 1),
        (("tasks", "bands", "significance", "roll_forward", "mean_difference"), -0.001),
        (("tasks", "bands", "significance", "roll_forward", "mean_difference"), None),
        (("tasks", "bands", "significance", "roll_forward", "standard_error"), -1.0),
        (("tasks", "bands", "significance", "roll_forward", "lag_bars"), 60),
        (("tasks", "bands", "significance", "roll_forward", "num_windows"), 99),
        (("tasks", "bands", "significance"), {}),
        (("direction", 0, "num_effective"), 99.0),
        (("direction", 0, "num_effective"), -1.0),
    ],
)
def test_a_file_that_disagrees_with_its_own_errors_is_refused(make_span, path: tuple, value: object) -> None:
    section = content = copy.deepcopy(judge(make_span(num_windows=60)).to_json())
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    with pytest.raises(
        ArtifactError, match=r"metadata of X, key judgement.*: must be a judgement of format 3"
    ):
        Judgement.from_json(content, where="metadata of X, key judgement")


@pytest.mark.parametrize("content", [None, [], "text", {}, {"tasks": {}, "direction": [], "num_windows": 1}])
def test_something_that_is_no_judgement_is_refused(content: object) -> None:
    with pytest.raises(
        ArtifactError, match="the judgement: this v8 reads judgement format 3; got format None"
    ):
        Judgement.from_json(content)


def test_a_judgement_of_the_first_format_is_refused(make_span) -> None:
    content = {**judge(make_span()).to_json(), "format": 1}
    with pytest.raises(ArtifactError, match="the judgement: this v8 reads judgement format 3; got format 1"):
        Judgement.from_json(content)


def test_infinite_errors_in_a_file_are_refused(make_span) -> None:
    text = json.dumps(judge(make_span()).to_json())
    content = json.loads(text)
    content["tasks"]["ohlc"]["errors"]["offset"]["mae_price"]["by_step_and_column"][0][0] = float("inf")
    with pytest.raises(
        ArtifactError,
        match=r"key tasks\.ohlc\.errors\.offset\.mae_price\.by_step_and_column\.0\.0: .*; got inf ",
    ):
        Judgement.from_json(content)
