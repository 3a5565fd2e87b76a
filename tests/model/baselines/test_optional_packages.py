"""Baselines that need a package: boosted trees, and GARCH(1,1), equal to that of `arch`."""

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
from v8.model.baselines.baselines import BASELINES, Garch, boosting_terms, fit_garch, log_returns, recent_unit
from v8.model.evaluation.evaluation import Evaluation
from v8.profile.profile import Profile


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("lightgbm", "arch"):
        monkeypatch.setitem(sys.modules, package, None)  # what Python takes for: not there


@pytest.fixture
def with_lightgbm() -> None:
    pytest.importorskip("lightgbm", reason="optional: pip install lightgbm")


@pytest.mark.usefixtures("without_packages")
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


@pytest.mark.usefixtures("without_packages")
@pytest.mark.parametrize(("name", "package"), [("lightgbm", "lightgbm"), ("garch", "arch")])
def test_whoever_asks_for_one_without_its_package_is_told_how_to_get_it(
    name: str, package: str, make_market_span
) -> None:
    with pytest.raises(SeriesError) as raised:
        make_market_span().forecast(name)
    assert raised.value.where == f"baseline {name}"
    assert raised.value.fix.startswith(f"Run: pip install {package}")


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
    # Highs reach 1, 2 and 3 recent ranges: from their median 20 trees of rate 0.15 go all but 0.85 ** 20.
    series = make_market_span(num_train=1_200, tasks=("ohlc",))
    learned = series.learned(actual={"ohlc": _stepped(series.train, np.array([1, 2, 3]))})
    expected = 2 + (1 - 0.85**20) * np.array([-1, 0, 1])
    np.testing.assert_allclose(
        learned.forecast("lightgbm")["ohlc"], _stepped(series.test, expected), rtol=1e-7
    )


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


@pytest.fixture
def arch() -> object:
    return pytest.importorskip("arch", reason="optional: pip install arch")


def test_a_variance_ahead_is_the_one_worked_out_by_hand(make_market_span) -> None:
    span = make_market_span(horizon_bars=3).test
    garch = Garch(constant=1e-6, of_square=0.1, of_variance=0.8)
    variance = 0.0
    for square in log_returns(span)[: int(span.anchors[0]) + 1] ** 2:
        variance = 1e-6 + 0.1 * square + 0.8 * variance
    second = 1e-6 + 0.9 * variance
    third = 1e-6 + 0.9 * second
    means = [variance, (variance + second) / 2, (variance + second + third) / 3]
    np.testing.assert_allclose(garch.variances(span)[0], means, rtol=1e-12)


def test_a_return_across_a_gap_is_none(make_market_span) -> None:
    span = make_market_span().test
    returns = log_returns(span)
    assert returns[0] == 0.0
    closes = span.table.column("close").astype(np.float64)
    np.testing.assert_allclose(returns[1:], np.diff(np.log(closes)), rtol=1e-12)


def test_forecast_variances_are_those_of_arch(make_market_span, arch) -> None:
    train = make_market_span(num_train=1_500, horizon_bars=5).train
    garch = fit_garch(train)
    returns = log_returns(train)[int(train.anchors[0]) : int(train.anchors[-1]) + 1]
    scale = returns.std()
    fitted = arch.arch_model(returns / scale, mean="Zero", vol="GARCH", p=1, q=1, rescale=False).fit(
        disp="off"
    )
    theirs = fitted.forecast(horizon=5, reindex=False).variance.to_numpy()[0] * scale**2
    means = np.cumsum(theirs) / np.arange(1, 6)
    np.testing.assert_allclose(garch.variances(train)[-1], means, rtol=1e-4)


def _stepped(span: Span, highs: np.ndarray) -> np.ndarray:
    """Let highs be so many recent ranges above the last close, by step."""
    moves = np.zeros((len(span), 3, 4))
    moves[:, :, 1] = recent_unit(span)[:, None] * highs
    return span.last_close[:, None, None] * (1 + moves)
