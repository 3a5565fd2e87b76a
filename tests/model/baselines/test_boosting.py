"""The boosted baseline: what it learns, that it repeats itself, and that nobody misses it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np
import pytest
from evaluating import evaluate

from v8.base.errors import SeriesError
from v8.data.features import FeatureTable
from v8.data.span import Span
from v8.model.baselines.baselines import BASELINES, Boosting, boosting_terms, fit_boosted, recent_unit
from v8.model.evaluation.evaluation import Evaluation
from v8.profile.profile import Profile

SMALL = Boosting(num_trees=40, num_leaves=4, learning_rate=0.3, min_leaf=20, max_windows=10_000)


@pytest.fixture
def without_lightgbm(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("lightgbm", "arch"):
        monkeypatch.setitem(sys.modules, package, None)  # what Python takes for: not there


@pytest.fixture
def with_lightgbm() -> None:
    pytest.importorskip("lightgbm", reason="optional: pip install lightgbm")


@pytest.mark.usefixtures("without_lightgbm")
def test_where_it_is_not_installed_an_evaluation_is_complete_without_it(make_market_span) -> None:
    series = make_market_span()
    usable = [
        "last_close",
        "naive",
        "offset",
        "drift",
        "scaled",
        "ewma",
        "har",
        "range_paths",
        "log_har_clock",
    ]
    assert [name for name, one in BASELINES.items() if one.is_installed()] == usable
    evaluation = evaluate(series, series.model)
    for task in ("ohlc", "bands", "volatility"):
        assert list(evaluation.errors[task]) == ["model", *usable]
        assert list(evaluation.tasks[task].significance) == usable
    content = json.loads(json.dumps(evaluation.to_json()))
    assert Evaluation.from_json(content) == evaluation


@pytest.mark.usefixtures("without_lightgbm")
def test_whoever_asks_for_it_where_it_is_not_installed_is_told_how_to_get_it(make_market_span) -> None:
    with pytest.raises(
        SeriesError, match=r"baseline lightgbm: needs .* the optional package .*pip install lightgbm"
    ):
        make_market_span().forecast("lightgbm")


@pytest.mark.usefixtures("with_lightgbm")
def test_an_evaluation_with_it_is_read_where_it_is_not_installed(
    make_market_span, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = make_market_span()
    evaluation = evaluate(series, series.model)
    assert list(evaluation.errors["bands"])[-1] == "lightgbm"
    content = evaluation.to_json()
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    assert Evaluation.from_json(content) == evaluation
    assert 0 < evaluation.relative_error("bands", baseline="lightgbm") < 10


@pytest.mark.usefixtures("with_lightgbm")
def test_the_same_bars_give_the_same_forecast_to_the_bit(make_market_span) -> None:
    series = make_market_span(num_train=400)
    once, again = (series.forecast("lightgbm") for _ in range(2))
    for task, values in once.items():
        np.testing.assert_array_equal(values, again[task])


@pytest.mark.usefixtures("with_lightgbm")
def test_only_highs_and_lows_leave_the_last_close(make_market_span) -> None:
    series = make_market_span(num_train=400)
    forecast = series.forecast("lightgbm")["ohlc"]
    last = np.repeat(series.test.history_close[:, -1:], 3, axis=1)
    for column in (0, 3):
        np.testing.assert_array_equal(forecast[:, :, column], last)
    assert (forecast[:, :, 1] > last).mean() > 0.95
    assert (forecast[:, :, 2] < last).mean() > 0.95


@pytest.mark.usefixtures("with_lightgbm")
def test_what_depends_on_the_step_alone_is_learned_to_the_digit(make_market_span) -> None:
    # Highs reach k recent ranges k steps ahead: 40 trees of rate 0.3 leave 0.7 ** 40 = 6e-7 of the way.
    series = make_market_span(num_train=200, tasks=("ohlc",))
    teacher_forced = series.learned(actual={"ohlc": _stepped(series.train)}).train
    forecast = fit_boosted([teacher_forced], SMALL)(series.test)["ohlc"]
    np.testing.assert_allclose(forecast, _stepped(series.test), rtol=1e-7)


@pytest.mark.usefixtures("with_lightgbm")
def test_series_of_any_price_can_be_pooled(make_market_span) -> None:
    """Two copies of a market, one at a thousand times the price, teach what one of them does."""
    series = make_market_span(num_train=400, tasks=("ohlc",))
    train = series.train
    dear = series.recut(lambda column, values: values * 1000).train
    twice = fit_boosted([train, dear], SMALL)
    np.testing.assert_allclose(twice(dear)["ohlc"], 1000 * twice(train)["ohlc"], rtol=1e-9)
    errors = [
        np.abs(made["ohlc"] - train.actual["ohlc"]).mean()
        for made in (twice(train), fit_boosted([train], SMALL)(train), train.naive)
    ]
    assert errors[0] == pytest.approx(errors[1], rel=0.02)
    assert errors[0] < 0.95 * errors[2]


def test_the_terms_of_a_window_are_those_worked_out_by_hand(
    table_of: Callable[..., FeatureTable], profile_of: Callable[..., Profile]
) -> None:
    # All bars range over e ** 0.01: any mean range is 0.01, its deviation 0.01 sqrt(pi / 8) = 0.0062666.
    # All closes are 100: the naive forecast's middle is the last close and its deviation 0, which one step
    # ahead would grow to sqrt((1 - 1 / 20) / 19) = 0.2236 of a bar's.
    ohlc = np.tile([100.0, 100 * np.exp(0.005), 100 * np.exp(-0.005), 100.0], (251, 1))
    span = Span(table_of(ohlc), profile_of(("ohlc",), 2), np.array([250]))
    assert recent_unit(span) == pytest.approx([0.0062666], rel=1e-5)
    terms = boosting_terms(span)
    assert terms.shape == (1, 2, 10)
    assert terms[0, 0] == pytest.approx([np.log(0.0062666), 0, 0, 0, 0, 0, 0, 0, 0.2236068, 1], abs=1e-5)
    assert terms[0, 1, -1] == 2


def _stepped(span: Span) -> np.ndarray:
    moves = np.zeros((len(span), 3, 4))
    moves[:, :, 1] = recent_unit(span)[:, None] * np.array([1, 2, 3])
    return span.last_close[:, None, None] * (1 + moves)
