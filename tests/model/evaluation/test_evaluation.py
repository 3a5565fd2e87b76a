"""Judgement: skill, verdicts, and a file that cannot disagree with itself."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import evaluating
import numpy as np
import pytest
import scipy.fft
from hypothesis import given, settings
from hypothesis import strategies as st

from v8.base.errors import ArtifactError
from v8.model.baselines.baselines import BASELINES, reference_baseline
from v8.model.evaluation.evaluation import Evaluation, best_baseline
from v8.model.evaluation.metrics import measure_errors
from v8.profile.tasks import TASKS

UNITLESS = ("volatility", "range")
INSTALLED = [name for name, one in BASELINES.items() if one.is_installed()]


def evaluate(made: Any) -> Evaluation:
    """Judge the model of a made series."""
    return evaluating.evaluate(made, made.model)


@pytest.fixture
def flat_span(make_candles) -> Callable[[float, float], Any]:
    """One window, one step, all four columns alike, last close 100."""
    return lambda actual, model: make_candles(np.array([[actual]]), [100.0], np.array([[model]]))


@pytest.mark.parametrize("name", INSTALLED)
def test_a_baseline_evaluated_as_a_model_equals_itself_exactly(make_market_span, name: str) -> None:
    span = make_market_span(num_windows=60)
    evaluation = evaluate(replace(span, model=span.forecast(name)))
    for task in span.model:
        against = evaluation.against(task, name)
        assert (against.skill, against.p_value, against.verdict) == (0.0, None, f"equals {name}")
        assert evaluation.relative_error(task, "rmse", name) == 1.0
        assert evaluation.error(task).by_step == evaluation.error(task, name).by_step


def test_a_perfect_forecast_has_a_skill_of_one_and_every_direction_right(make_span) -> None:
    span = make_span(num_windows=240)
    evaluation = evaluate(replace(span, model=span.test.actual))
    assert [evaluation.against(task).skill for task in span.model] == [1.0] * len(span.model)
    assert [step.rate for step in evaluation.direction] == [1.0, 1.0, 1.0]
    assert {evaluation.against(task).verdict for task in span.model} == {"beats naive"}


def test_skill_and_multiple_are_those_worked_out_by_hand(flat_span) -> None:
    # Truth 104, naive 100, model 103: errors 1 against 4, so 0.25 times naive and a skill of 0.75.
    evaluation = evaluate(flat_span(104.0, 103.0))
    assert evaluation.relative_error("ohlc") == pytest.approx(0.25)
    assert evaluation.against("ohlc").skill == pytest.approx(0.75)
    # Model 94 instead: error 10 against 4, so 2.5 times naive and a skill of -1.5.
    worse = evaluate(flat_span(104.0, 94.0))
    assert worse.against("ohlc").skill == pytest.approx(-1.5)
    # One window is too few for a test, so nothing is known of either.
    assert {one.against("ohlc").verdict for one in (evaluation, worse)} == {"too few windows"}


@pytest.mark.parametrize(
    ("multiple", "standard_error", "verdict"),
    [
        (0.5, 0.01, "beats naive"),
        (0.9999, 10.0, "not significantly different from naive"),
        (1.0001, 10.0, "not significantly different from naive"),
        (1.5, 0.01, "loses to naive"),
        (1.5, None, "too few windows"),
        (1.0, 0.01, "equals naive"),
    ],
)
def test_a_verdict_is_better_worse_or_no_real_difference_as_the_test_says(
    make_span, multiple: float, standard_error: float | None, verdict: str
) -> None:
    evaluation = with_naive_test(evaluate(make_span(num_windows=60)), multiple, standard_error)
    assert evaluation.relative_error("ohlc") == pytest.approx(multiple)
    assert evaluation.against("ohlc").verdict == verdict


def with_naive_test(evaluation: Evaluation, multiple: float, standard_error: float | None) -> Evaluation:
    """Let the model err by a multiple of naive on candles; the standard error is in naive's errors."""
    evaluated = evaluation.tasks["ohlc"]
    naive = evaluated.errors["naive"].mae_return
    cells = tuple(tuple(cell * multiple for cell in row) for row in naive.cells)
    model = replace(evaluated.errors["model"], mae_return=replace(naive, cells=cells))
    test = replace(
        evaluated.significance["naive"],
        mean_difference=(multiple - 1) * naive.overall,
        standard_error=standard_error and standard_error * naive.overall,
    )
    errors = {**evaluated.errors, "model": model}
    significance = {"naive": test}
    ohlc = replace(evaluated, errors=errors, significance={**evaluated.significance, **significance})
    others = {task: one for task, one in evaluation.tasks.items() if task != "ohlc"}
    others = {
        task: replace(one, errors={**one.errors, "model": one.errors["naive"]})
        for task, one in others.items()
    }
    return replace(evaluation, tasks={"ohlc": ohlc, **others})


def test_the_multiple_is_the_sum_of_all_errors_over_the_sum_of_naive_ones(make_candles) -> None:
    # Last closes 100 and 10. Returns: naive errs by 1 % and 10 %, the model by 2 % and 1 %: 3 / 11.
    candles = make_candles(np.array([[101.0], [11.0]]), [100.0, 10.0], np.array([[103.0], [10.9]]))
    assert evaluate(candles).relative_error("ohlc") == pytest.approx(3 / 11)


def test_the_test_is_about_the_losses_the_leaderboard_averages(make_market_span) -> None:
    span = make_market_span(num_windows=240)
    evaluation = evaluate(span)
    for task, actual in span.test.actual.items():
        unit = 1.0 if task in UNITLESS else span.test.history_close[:, -1:, None]
        ours = np.abs((span.model[task] - actual) / unit).mean(axis=(1, 2))
        for name in INSTALLED:
            theirs = np.abs((span.forecast(name)[task] - actual) / unit).mean(axis=(1, 2))
            test = evaluation.tasks[task].significance[name]
            assert test.mean_difference == pytest.approx((ours - theirs).mean(), rel=1e-9)
            # 0.3 x sqrt(240) = 4.6, so the first four waves count.
            assert (test.degrees_of_freedom, test.num_windows) == (4, 240)
            waves = scipy.fft.dct(ours - theirs, type=2, norm="ortho")[1:5]
            error = np.sqrt(np.mean(waves**2) / 240)
            assert test.standard_error == pytest.approx(error, rel=1e-9)
            assert evaluation.against(task, name).p_value == test.p_value


def test_what_follows_from_cells_counts_and_tests_stands_in_no_file(make_span) -> None:
    content = evaluate(make_span(num_windows=60)).to_json()
    assert list(content) == ["format", "num_windows", "horizon_bars", "tasks", "direction", "validation_mae"]
    parts = ["columns", "errors", "significance", "confidence_set", "lines"]
    assert list(content["tasks"]["bands"]) == parts
    assert list(content["tasks"]["bands"]["errors"]["offset"]["mae_price"]) == ["by_step_and_column"]
    test = content["tasks"]["bands"]["significance"]["offset"]
    assert list(test) == ["mean_difference", "standard_error", "num_windows", "degrees_of_freedom"]


def test_a_test_of_other_errors_is_refused_however_sound_it_is(make_span) -> None:
    content = evaluate(make_span(num_windows=60)).to_json()
    tests = content["tasks"]["bands"]["significance"]
    assert tests["offset"] != tests["naive"]
    tests["offset"] = tests["naive"]
    with pytest.raises(ArtifactError, match=r"the evaluation: .*got bands with tests"):
        Evaluation.from_json(content)


def test_a_baseline_whose_name_is_no_word_is_refused_because_cards_and_pages_show_it(make_span) -> None:
    content = evaluate(make_span(num_windows=60)).to_json()
    section = content["tasks"]["bands"]
    for part in ("errors", "significance"):
        section[part]["**x** <b>"] = section[part].pop("offset")
    with pytest.raises(ArtifactError, match="evaluation of format 7"):
        Evaluation.from_json(content)


def test_the_best_baseline_of_a_task_is_its_reference_whatever_errs_least(make_span) -> None:
    evaluation = evaluate(make_span(num_windows=240))
    best = {task: evaluation.best_baseline(task) for task in evaluation.tasks}
    assert best == {task: reference_baseline(task) for task in evaluation.tasks}
    assert set(best.values()) == {"log_har_clock"}
    assert any(evaluation.relative_error(task, forecaster=name) > 1.0 for task, name in best.items())


def test_every_task_has_a_reference_that_is_always_installed() -> None:
    for task in TASKS:
        reference = BASELINES[reference_baseline(task)]
        assert reference.name not in {"garch", "lightgbm"}  # which need a package
    assert reference_baseline("of_a_plugin") is None


def test_without_a_reference_the_best_baseline_is_the_one_that_errs_least_and_ties_go_to_naive(
    make_span,
) -> None:
    whole = evaluate(make_span(num_windows=240))
    others = {}
    for task, evaluated in whole.tasks.items():
        reference = reference_baseline(task)
        tests = {name: test for name, test in evaluated.significance.items() if name != reference}
        others[task] = replace(evaluated, significance=tests)
    evaluation = replace(whole, tasks=others)
    for task, evaluated in evaluation.tasks.items():
        errors = {name: evaluation.error(task, name).overall for name in evaluated.significance}
        best = evaluation.best_baseline(task)
        assert errors[best] == pytest.approx(min(errors.values()), rel=1e-8)
        assert best_baseline([evaluation, evaluation], task) == best
        expected = "beats" if evaluation.error(task).overall < errors[best] else "loses to"
        if evaluation.against(task, best).p_value >= 0.05:
            expected = "not significantly different from"
        assert evaluation.against(task, best).verdict == f"{expected} {best}"


def test_where_naive_makes_no_error_there_is_no_skill_and_no_infinity(flat_span) -> None:
    evaluation = evaluate(flat_span(100.0, 101.0))
    assert evaluation.against("ohlc").skill is None
    assert evaluation.relative_error("ohlc", "rmse") is None
    assert evaluation.error("ohlc", "naive").by_step == (0.0,)
    assert evaluation.against("ohlc").verdict == "too few windows"
    text = json.dumps(evaluation.to_json(), allow_nan=False)
    assert Evaluation.from_json(json.loads(text)) == evaluation


def test_g8_every_error_stands_per_step_beside_every_baseline(make_span) -> None:
    content = evaluate(make_span()).to_json()
    assert set(content["tasks"]) == {"ohlc", "bands", "volatility", "range"}
    for task, section in content["tasks"].items():
        is_price = task in ("ohlc", "bands")
        assert set(section["errors"]) == set(section["confidence_set"]) == {"model", *INSTALLED}
        assert len(section["lines"]) == (0 if is_price else 3)
        assert set(section["significance"]) == set(INSTALLED)
        for errors in section["errors"].values():
            assert set(errors) == {"mae_price", "rmse_price", "mae_return", "rmse_return", "qlike"}
            assert (errors["qlike"] is None) == is_price
            if is_price:
                del errors["qlike"]
            assert {len(grid["by_step_and_column"]) for grid in errors.values()} == {3}
    assert "mape" not in json.dumps(content).lower()


@given(seed=st.integers(0, 1_000), num_windows=st.sampled_from([1, 2, 5, 60]), horizon_bars=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_an_evaluation_survives_its_file_bit_for_bit(
    make_span, seed: int, num_windows: int, horizon_bars: int
) -> None:
    evaluation = evaluate(make_span(seed=seed, num_windows=num_windows, horizon_bars=horizon_bars))
    text = json.dumps(evaluation.to_json(), allow_nan=False)
    assert Evaluation.from_json(json.loads(text)) == evaluation


def test_float32_forecasts_as_models_give_them_are_evaluated(make_span) -> None:
    span = make_span()
    narrow = replace(span, model={task: values.astype(np.float32) for task, values in span.model.items()})
    assert evaluate(narrow).against("bands").skill == pytest.approx(
        evaluate(span).against("bands").skill, abs=1e-4
    )


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
        (("direction", 0, "num_flat_actual"), 1),
        (("tasks", "bands", "significance", "naive", "mean_difference"), -0.001),
        (("tasks", "bands", "significance", "naive", "mean_difference"), None),
        (("tasks", "bands", "significance", "naive", "standard_error"), -1.0),
        (("tasks", "bands", "significance", "naive", "degrees_of_freedom"), 60),
        (("tasks", "bands", "significance", "naive", "num_windows"), 99),
        (("tasks", "bands", "significance"), {}),
        (("direction", 0, "num_effective"), 99.0),
        (("direction", 0, "num_effective"), -1.0),
        (("tasks", "ohlc", "errors", "offset", "mae_price", "by_step_and_column", 0, 0), float("inf")),
    ],
)
def test_a_file_that_disagrees_with_its_own_errors_is_refused(make_span, path: tuple, value: object) -> None:
    section = content = copy.deepcopy(evaluate(make_span(num_windows=60)).to_json())
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    with pytest.raises(ArtifactError, match=r"metadata of X, key evaluation.*: .*of format 7"):
        Evaluation.from_json(content, where="metadata of X, key evaluation")


@pytest.mark.parametrize("content", [None, [], "text", {}, {"tasks": {}, "direction": [], "num_windows": 1}])
def test_something_that_is_no_evaluation_is_refused(content: object) -> None:
    with pytest.raises(
        ArtifactError, match="the evaluation: this v8 reads evaluation format 7; got format None"
    ):
        Evaluation.from_json(content)


def test_a_task_of_sizes_has_the_loss_of_its_squares_and_lines_and_a_set_of_the_best(
    make_market_span,
) -> None:
    series = make_market_span(num_windows=60)
    evaluated = evaluate(series).tasks["range"]
    actual = series.test.actual["range"][:, 1, 1]
    forecast = series.model["range"][:, 1, 1]
    ratio = (actual / forecast) ** 2
    expected = (ratio - np.log(ratio) - 1).mean()
    assert evaluated.errors["model"].qlike.cells[1][1] == pytest.approx(expected, rel=1e-9)
    line = evaluated.lines[1][1]
    slope, intercept = np.polyfit(forecast, actual, 1)
    assert (line.slope, line.intercept) == pytest.approx((slope, intercept), rel=1e-6)
    # The model is the actual values moved by a thousandth: nothing comes near it.
    assert evaluated.best_forecasters == ["model"]
    assert evaluated.confidence_set["model"] == 1.0


def test_qlike_of_a_market_that_stands_still_is_not_defined(make_market_span) -> None:
    still = make_market_span().recut(lambda column, values: np.full_like(values, 50.0))
    zeros = np.zeros(still.test.target_shape("range"))
    errors, _ = measure_errors(still.test, "range", zeros)
    assert errors.qlike.cells == ((None, None),) * 3
    assert errors.qlike.overall is None
