"""The evaluation of quantiles: losses by a plain formula, a known distribution, files read again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import t
from tiny_profiles import demo_data, tiny_ranged_profile

from v8.base.errors import ArtifactError, SeriesError
from v8.data.windows import SeriesData
from v8.model.baselines.baselines import BASELINES
from v8.model.evaluation.evaluation import QuantileEvaluation, evaluate_quantiles
from v8.model.evaluation.metrics import QuantileErrors, measure_quantiles
from v8.model.evaluation.significance import diebold_mariano, min_windows
from v8.profile.columns import interval_names

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


@pytest.fixture(scope="module")
def data() -> SeriesData:
    return demo_data(tiny_ranged_profile(quantiles=LEVELS))


def made_by(name: str, data: SeriesData) -> dict[str, np.ndarray]:
    fit = BASELINES[name].fit_quantiles
    assert fit is not None
    return dict(fit(data.spans["train"], data.scaling, LEVELS)(data.spans["test"]))


@pytest.mark.parametrize("name", ["naive", "range_paths"])
def test_quantiles_of_a_baseline_ascend_about_its_point_forecast(name: str, data: SeriesData) -> None:
    point = BASELINES[name].fit(data.spans["train"], data.scaling)(data.spans["test"])
    for task, values in made_by(name, data).items():
        assert (np.diff(values, axis=2) >= 0).all()
        if name == "range_paths":
            np.testing.assert_allclose(values[:, :, 2], point[task], rtol=1e-9)


def test_errors_are_those_of_the_plain_formula(data: SeriesData) -> None:
    test = data.spans["test"]
    forecast = made_by("naive", data)["bands"]
    errors, losses = measure_quantiles(test, "bands", forecast, LEVELS)
    by_hand = []
    for place, level in enumerate(LEVELS):
        beyond = (test.actual["bands"] - forecast[:, :, place]) / test.last_close[:, None, None]
        by_hand.append(np.where(beyond > 0, level * beyond, (level - 1) * beyond))
    np.testing.assert_allclose(errors.pinball, np.mean(by_hand, axis=1))
    assert errors.crps == pytest.approx(2 * np.mean(by_hand))
    assert losses.mean() == pytest.approx(errors.crps)


def test_the_crps_of_a_forecast_without_spread_is_its_mean_absolute_error(data: SeriesData) -> None:
    test = data.spans["test"]
    errors, _ = measure_quantiles(
        test, "volatility", np.repeat(test.naive["volatility"][:, :, None], 5, 2), LEVELS
    )
    assert errors.crps == pytest.approx(np.abs(test.actual["volatility"] - test.naive["volatility"]).mean())
    assert errors.mean_width(0) == 0.0


def test_true_quantiles_hold_what_they_promise(data: SeriesData, monkeypatch: pytest.MonkeyPatch) -> None:
    test = data.spans["test"]
    rng = np.random.default_rng(3)
    spread = np.quantile(rng.standard_t(4, 100_000), LEVELS)[:, None]
    actual = {"volatility": rng.standard_t(4, (len(test), 3, 1))}
    monkeypatch.setitem(vars(test), "actual", actual)
    forecast = np.broadcast_to(spread, (len(test), 3, 5, 1))
    errors, _ = measure_quantiles(test, "volatility", forecast, LEVELS)
    assert errors.mean_coverage(0) == pytest.approx(0.9, abs=0.05)
    assert errors.mean_coverage(1) == pytest.approx(0.5, abs=0.08)


def test_an_evaluation_is_read_again_as_it_was_written(data: SeriesData) -> None:
    evaluation = evaluate_quantiles(data, made_by("range_paths", data))
    assert evaluation.tasks["ohlc"].relative_error("range_paths") == pytest.approx(1.0)
    assert evaluation.tasks["ohlc"].significance["naive"].num_windows == len(data.spans["test"])
    assert interval_names(evaluation.levels) == ["90 %", "50 %"]
    content = json.loads(json.dumps(evaluation.to_json()))
    assert QuantileEvaluation.from_json(content, where="here") == evaluation


@pytest.mark.parametrize("name", ["pinball", "width"])
@pytest.mark.parametrize("place", [(), (0,), (1, 2)], ids=str)
def test_an_evaluation_whose_losses_are_cut_short_anywhere_is_refused(
    data: SeriesData, name: str, place: tuple[int, ...]
) -> None:
    content = json.loads(json.dumps(evaluate_quantiles(data, made_by("range_paths", data)).to_json()))
    cells = content["tasks"]["ohlc"]["errors"]["model"][name]
    for number in place:
        cells = cells[number]
    cells.pop()
    with pytest.raises(ArtifactError, match="losses of another shape"):
        QuantileEvaluation.from_json(content, where="here")


def test_quantiles_of_another_shape_are_refused(data: SeriesData) -> None:
    with pytest.raises(SeriesError, match="of the shape"):
        evaluate_quantiles(data, {task: values[:, :, 1:] for task, values in made_by("naive", data).items()})


def _errors_with(open_width: float, data: SeriesData) -> tuple[QuantileErrors, np.ndarray]:
    """Errors of intervals of which that of the next open is so wide, as a share of the last close."""
    test = data.spans["test"]
    actual = test.actual["ohlc"]
    unit = test.last_close[:, None, None]
    spread = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])[:, None] * 0.1
    forecast = np.repeat(actual[:, :, None], len(LEVELS), axis=2) + spread * unit[:, :, None]
    # Nine of ten intervals hold the actual value; that of the next open never does.
    forecast[::10] += 0.3 * unit[::10, :, None]
    narrow = np.array([-0.5, -0.25, 0.0, 0.25, 0.5]) * open_width + 1e-5
    forecast[:, 0, :, 0] = actual[:, 0, :1] + narrow * test.last_close[:, None]
    errors, losses = measure_quantiles(test, "ohlc", forecast, LEVELS)
    return errors, losses


@pytest.mark.parametrize(("open_width", "is_counted"), [(0.0, False), (2.0**-22, False), (2.0**-20, True)])
def test_an_interval_without_width_is_left_out_of_coverage_and_width(
    data: SeriesData, open_width: float, is_counted: bool
) -> None:
    errors, losses = _errors_with(open_width, data)
    num_windows, horizon_bars, _ = data.spans["test"].actual["ohlc"].shape
    num_cells = 4 * horizon_bars
    share = 1 - len(range(0, num_windows, 10)) / num_windows
    if is_counted:
        assert errors.mean_coverage(0) == pytest.approx(share * (num_cells - 1) / num_cells)
        assert errors.mean_width(0) == pytest.approx((0.2 * (num_cells - 1) + open_width) / num_cells)
    else:
        assert errors.mean_coverage(0) == pytest.approx(share)
        assert errors.mean_width(0) == pytest.approx(0.2)
    # An error is an error, with width or without.
    assert losses.mean() == pytest.approx(errors.crps)
    assert np.shape(errors.coverage) == (2, horizon_bars, 4)


def test_where_no_interval_has_a_width_all_count(data: SeriesData) -> None:
    test = data.spans["test"]
    forecast = np.repeat(test.actual["ohlc"][:, :, None], len(LEVELS), axis=2)
    errors, _ = measure_quantiles(test, "ohlc", forecast, LEVELS)
    assert (errors.mean_coverage(0), errors.mean_width(0)) == (1.0, 0.0)


def test_shares_below_quantiles_and_interval_scores_are_those_of_plain_formulas(data: SeriesData) -> None:
    span = data.spans["test"]
    levels = span.profile.quantiles
    made = made_by("range_paths", data)
    errors = evaluate_quantiles(data, made).tasks["volatility"].errors["model"]
    actual = span.actual["volatility"]
    below = [(actual <= made["volatility"][:, :, place]).mean() for place in range(len(levels))]
    assert errors.below == pytest.approx(below)
    # The histogram of the probability integral transform, of all steps together: no value equals a quantile.
    flat = made["volatility"].swapaxes(2, 3).reshape(-1, len(levels))
    num_below = (flat < actual.reshape(-1, 1)).sum(axis=1)
    histogram = np.bincount(num_below, minlength=len(levels) + 1) / len(num_below)
    assert errors.between == pytest.approx(histogram)
    # The interval of a share is the one of the test that the share is its level.
    by_window = (actual <= made["volatility"][:, :, 1]).mean(axis=(1, 2))
    test = diebold_mariano(by_window - levels[1], horizon_bars=span.horizon_bars)
    margin = errors.below_margin[1]
    if len(span) < min_windows(span.horizon_bars):
        assert margin is None and test.standard_error is None
    else:
        assert margin == pytest.approx(t.ppf(0.975, test.degrees_of_freedom) * test.standard_error)
    low = made["volatility"][:, :, 0]
    high = made["volatility"][:, :, -1]
    misses = np.maximum(low - actual, 0) + np.maximum(actual - high, 0)
    share = levels[-1] - levels[0]
    assert errors.score[0] == pytest.approx((high - low + 2 / (1 - share) * misses).mean())
