"""The boosted baseline: what it learns, that it repeats itself, and that nobody misses it."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from v8.errors import SeriesError
from v8.evaluation.baselines import forecast_baseline, usable_baselines
from v8.evaluation.boosting import Boosting, boosting_terms, fit_boosted, recent_unit
from v8.evaluation.judgement import Judgement, judge
from v8.evaluation.past import Bars, Known, Lesson

SMALL = Boosting(num_trees=40, num_leaves=4, learning_rate=0.3, min_leaf=20, max_windows=10_000)


@pytest.fixture
def without_lightgbm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)  # what Python takes for: not there


@pytest.fixture
def with_lightgbm() -> None:
    pytest.importorskip("lightgbm", reason="optional: pip install v8[baselines]")


@pytest.mark.usefixtures("without_lightgbm")
def test_where_it_is_not_installed_a_judgement_is_complete_without_it(make_market_span) -> None:
    span = make_market_span()
    usable = ["last_close", "roll_forward", "offset", "drift", "scaled", "ewma", "har", "range_paths"]
    assert usable_baselines(span) == usable
    judgement = judge(span)
    for task in ("ohlc", "bands", "volatility"):
        assert list(judgement.errors[task]) == ["model", *usable]
        assert list(judgement.tasks[task].significance) == usable
    content = json.loads(json.dumps(judgement.to_json()))
    assert Judgement.from_json(content) == judgement


@pytest.mark.usefixtures("without_lightgbm")
def test_whoever_asks_for_it_where_it_is_not_installed_is_told_how_to_get_it(make_market_span) -> None:
    with pytest.raises(
        SeriesError, match=r"baseline lightgbm: needs the optional package .*pip install 'v8\[baselines\]'"
    ):
        forecast_baseline("lightgbm", make_market_span())


@pytest.mark.usefixtures("with_lightgbm")
def test_a_judgement_with_it_is_read_where_it_is_not_installed(
    make_market_span, monkeypatch: pytest.MonkeyPatch
) -> None:
    judgement = judge(make_market_span())
    assert list(judgement.errors["bands"])[-1] == "lightgbm"
    content = judgement.to_json()
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    assert Judgement.from_json(content) == judgement
    assert 0 < judgement.multiple("bands", baseline="lightgbm") < 10


@pytest.mark.usefixtures("with_lightgbm")
def test_the_same_bars_give_the_same_forecast_to_the_bit(make_market_span) -> None:
    span = make_market_span(num_train=400)
    once, again = (forecast_baseline("lightgbm", span) for _ in range(2))
    for task, values in once.items():
        np.testing.assert_array_equal(values, again[task])


@pytest.mark.usefixtures("with_lightgbm")
def test_only_highs_and_lows_leave_the_last_close(make_market_span) -> None:
    span = make_market_span(num_train=400)
    made = forecast_baseline("lightgbm", span)["ohlc"]
    last = np.repeat(span.history_close[:, -1:], 3, axis=1)
    for column in (0, 3):
        np.testing.assert_array_equal(made[:, :, column], last)
    assert (made[:, :, 1] > last).mean() > 0.95
    assert (made[:, :, 2] < last).mean() > 0.95


@pytest.mark.usefixtures("with_lightgbm")
def test_what_depends_on_the_step_alone_is_learned_to_the_digit(make_market_span) -> None:
    # Highs reach k recent ranges k steps ahead: 40 trees of rate 0.3 leave 0.7 ** 40 = 6e-7 of the way.
    past = make_market_span(num_train=200).past
    lesson = Lesson({}, past.train, {"ohlc": _stepped(past.train)})
    closes = np.lib.stride_tricks.sliding_window_view(past.train.bars.column("close"), 20)[past.rows - 19]
    asked = Known(closes, 3, past.rows, past.train.bars)
    np.testing.assert_allclose(fit_boosted([lesson], SMALL)(asked)["ohlc"], _stepped(asked), rtol=1e-7)


@pytest.mark.usefixtures("with_lightgbm")
def test_series_of_any_price_can_be_pooled(make_market_span) -> None:
    """Two copies of a market, one at a thousand times the price, teach what one of them does."""
    past = make_market_span(num_train=400).past
    bars = Bars(past.train.bars.ohlc * 1000, past.train.bars.segment)
    dear = Known(past.train.history_close * 1000, 3, past.train.rows, bars)
    alone = Lesson({}, past.train, {"ohlc": past.train_truth["ohlc"]})
    other = Lesson({}, dear, {"ohlc": past.train_truth["ohlc"] * 1000})
    twice = fit_boosted([alone, other], SMALL)
    np.testing.assert_allclose(twice(dear)["ohlc"], 1000 * twice(past.train)["ohlc"], rtol=1e-9)
    errors = [
        np.abs(made["ohlc"] - past.train_truth["ohlc"]).mean()
        for made in (twice(past.train), fit_boosted([alone], SMALL)(past.train), past.train.rolled)
    ]
    assert errors[0] == pytest.approx(errors[1], rel=0.02)
    assert errors[0] < 0.95 * errors[2]


def test_the_terms_of_a_window_are_those_worked_out_by_hand() -> None:
    # All bars range over e ** 0.01: any mean range is 0.01, its deviation 0.01 sqrt(pi / 8) = 0.0062666.
    # All closes are 100: roll-forward's middle is the last close and its deviation 0, which one step
    # ahead would grow to sqrt((1 - 1 / 20) / 19) = 0.2236 of a bar's.
    rows = np.array([250])
    ohlc = np.tile([100.0, 100 * np.exp(0.005), 100 * np.exp(-0.005), 100.0], (251, 1))
    known = Known(np.full((1, 20), 100.0), 2, rows, Bars(ohlc, np.zeros(251, np.int32)))
    assert recent_unit(known) == pytest.approx([0.0062666], rel=1e-5)
    terms = boosting_terms(known)
    assert terms.shape == (1, 2, 10)
    assert terms[0, 0] == pytest.approx([np.log(0.0062666), 0, 0, 0, 0, 0, 0, 0, 0.2236068, 1], abs=1e-5)
    assert terms[0, 1, -1] == 2


def _stepped(known: Known) -> np.ndarray:
    moves = np.zeros((len(known.rows), 3, 4))
    moves[:, :, 1] = recent_unit(known)[:, None] * np.array([1, 2, 3])
    return known.last_close[:, None, None] * (1 + moves)
