"""Figures of back-tests: series share their days, folds their windows, breaks stand apart."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any

import numpy as np
import pytest
from evaluating import evaluate_arrays, rolled

from v8.data.market.series import Series
from v8.model.evaluation.evaluation import EvaluatedQuantiles, Evaluation, QuantileEvaluation
from v8.model.evaluation.fold_losses import Cell, WindowLosses, shared_differences
from v8.model.evaluation.metrics import QuantileErrors
from v8.model.evaluation.significance import Significance
from v8.profile.profile import load_profile
from v8.publish.report.backtest import QUANTILE_NOTE, backtest_page, headline, tables, verdicts
from v8.runs.backtest import BacktestPlan, Fold, results_of

NUM = 200
BAR_S = 900


def evaluation(share: float) -> Evaluation:
    """Of a model that goes a share of the way from naive to the actual values."""
    draws = np.random.default_rng(3)
    history = 100 * np.exp(0.01 * draws.normal(size=(NUM, 20)).cumsum(axis=1))
    naive = {task: values for task, values in rolled(history, 2).items() if task in ("ohlc", "volatility")}
    actual = {task: values * np.exp(0.01 * draws.normal(size=values.shape)) for task, values in naive.items()}
    actual["ohlc"] = np.stack(
        [actual["ohlc"].mean(2), actual["ohlc"].max(2), actual["ohlc"].min(2), actual["ohlc"][..., 3]], 2
    )
    model = {task: naive[task] + share * (actual[task] - naive[task]) for task in actual}
    return evaluate_arrays(
        actual, model, history, {task: np.zeros(values.shape[1:]) for task, values in actual.items()}
    )


EVALUATED = {share: evaluation(share) for share in (0.2, -0.1)}
NAMES = ("model", "last_close", "naive", "offset")


def cell(
    fold: int, name: str, *, share: float = 0.2, first: int = 0, shock: float = 1.0, **losses: Any
) -> Cell:
    made = np.random.default_rng(abs(hash((fold, first))) % 1000).gamma(2.0, size=NUM)
    told = {each: losses.get(each, made * (1.0 - share * (each == "model"))) for each in NAMES}
    those = {each: np.float32(np.broadcast_to(values, NUM)) for each, values in told.items()}
    closes_s = BAR_S * (1_000_000 + first + np.arange(NUM, dtype=np.int64))
    losses = WindowLosses(closes_s, {"ohlc": those, "volatility": those}, shock)
    return Cell(fold, Series.parse(name), EVALUATED[share], losses)


def plan(num_folds: int, names: list[str]) -> BacktestPlan:
    profile = load_profile("frontier").model_dump(mode="json")
    profile["tasks"] = {name: profile["tasks"][name] for name in ("ohlc", "volatility")}
    folds = tuple(Fold(number + 1, dict.fromkeys(names, 1_000)) for number in range(num_folds))
    return BacktestPlan(
        1, profile, "0" * 64, "demo", False, "v8", "now", tuple(names), num_folds, None, folds, {}
    )


def test_series_that_share_a_close_are_one_observation_of_it() -> None:
    up = np.arange(NUM, dtype=float)
    down = -np.arange(NUM, dtype=float)
    cells = [
        cell(1, "BTCUSDT-15m", model=up + 7, naive=7.0),
        cell(1, "ETHUSDT-15m", model=down + 7, naive=7.0),
        cell(1, "SOLUSDT-15m", first=NUM - 1, model=21.0, naive=7.0),
    ]
    closes_s, differences = shared_differences(cells, "ohlc", "naive")
    assert len(closes_s) == 2 * NUM - 1
    np.testing.assert_allclose(differences[: NUM - 1], 0.0, atol=1e-6)
    assert differences[NUM - 1] == pytest.approx(2.0 / 3)  # 14 / 7 of the third, shared by three
    np.testing.assert_allclose(differences[NUM:], 2.0)


def test_forty_copies_of_a_series_are_no_surer_than_one() -> None:
    names = [f"C{number:02}USDT-15m" for number in range(40)]
    one, many = (
        results_of(plan(1, those), [cell(1, name, share=0.2) for name in those], {})
        for those in (names[:1], names)
    )
    ours, theirs = (found.folds[0].tasks["ohlc"] for found in (one, many))
    assert ours.p_naive == pytest.approx(theirs.p_naive)
    assert (theirs.num_cells, theirs.num_better) == (40, 40)


def test_a_window_that_two_folds_evaluate_counts_once() -> None:
    cells = [
        cell(1, "BTCUSDT-15m", model=8.0, naive=7.0),
        cell(2, "BTCUSDT-15m", first=150, model=6.0, naive=7.0),
    ]
    closes_s, differences = shared_differences(cells, "ohlc", "naive")
    assert len(closes_s) == NUM + 150
    np.testing.assert_allclose(differences, [1 / 7] * NUM + [-1 / 7] * 150, rtol=1e-6)


@pytest.fixture(scope="module")
def found() -> Any:
    names = ["BTCUSDT-15m", "ETHUSDT-15m"]
    cells = [
        cell(number, name, share=share, first=300 * number, shock=shock)
        for number, share, shock in ((1, 0.2, 1.1), (2, -0.1, 2.0))
        for name in names
    ]
    return results_of(plan(2, names), cells, {"fold-1": {}, "fold-2": {"SOLUSDT-15m": "<b>no</b>"}})


def test_pools_and_series_have_the_best_baseline_of_all_folds(found: Any) -> None:
    whole, *others = found.pools
    for task in whole.tasks:
        names = {one.tasks[task].best for one in others}
        names |= {by_task[task].best for by_task in found.series.values()}
        assert names == {whole.tasks[task].best}


def test_a_fold_whose_own_best_baseline_is_another_is_compared_with_that_of_all() -> None:
    name = "BTCUSDT-15m"
    cells = [
        validated(cell(number, name, first=300 * number), best="last_close" if number == 2 else "offset")
        for number in (1, 2, 3)
    ]
    results = results_of(plan(3, [name]), cells, {})
    assert [fold.tasks["ohlc"].best for fold in results.folds] == ["offset"] * 3


def validated(one: Cell, *, best: str) -> Cell:
    """Return a cell in which a baseline has the lowest error of all on the validation span."""
    errors = {each: 0.01 if each == best else 0.02 for each in NAMES[1:]}
    evaluation = replace(one.evaluation, validation_mae={"ohlc": errors, "volatility": errors})
    return replace(one, evaluation=evaluation)


def test_breaks_stand_apart(found: Any) -> None:
    assert [(one.name, one.is_break) for one in found.folds] == [("fold 1", False), ("fold 2", True)]
    assert [one.name for one in found.pools] == ["all folds", "calm folds", "break folds"]
    whole, calm, broken = (one.tasks["volatility"] for one in found.pools)
    assert calm.model_relative_mae == pytest.approx(0.8) and broken.model_relative_mae == pytest.approx(1.1)
    assert whole.model_relative_mae == pytest.approx(0.95)  # the median of two of either
    assert (whole.num_better, whole.num_cells) == (2, 4)
    assert (whole.num_series_better, whole.num_series) == (2, 2)  # the median of a fold of 0.8 and one of 1.1
    # In a fold every window has the same ratio, and the series are alike: whatever is drawn, it is the same.
    assert (whole.interval.low, whole.interval.high) == (pytest.approx(0.95), pytest.approx(0.95))
    assert (calm.interval.low, calm.interval.high) == (pytest.approx(0.8), pytest.approx(0.8))
    assert all(fold.tasks["volatility"].interval is None for fold in found.folds)  # of the headline alone
    pooled, by_fold = tables(found)
    assert (pooled.title, by_fold.title) == ("Pooled", "By fold")
    assert [row[0] for row in pooled.rows[::2]] == ["all folds, 15m", "calm folds, 15m", "break folds, 15m"]
    calm_days = "1998-07-12, 15m"
    broken_days = "1998-07-15, 15m (break)"
    assert [row[0] for row in by_fold.rows[::2]] == [calm_days, broken_days]


def test_the_page_shows_every_number_and_nothing_of_a_stranger(found: Any) -> None:
    page = backtest_page(found)
    assert "<b>no</b>" not in page and "&lt;b&gt;no" in page
    for each in (*tables(found), *tables(found, is_short=True)):
        assert all(len(row) == len(each.columns) for row in each.rows)
    for row in (row for each in tables(found) for row in each.rows):
        assert all(str(text) in page for text in row)
    assert re.match("2 folds of 2 series, .* 8,000 candles from demo: 4 of 4", headline(found))
    assert page.count('class="plot"') == 1
    # Seasons go by their days, and open their own reports; series are named in words and in the picture.
    for fold in (1, 2):
        assert re.search(f'<a [^>]*href="fold-{fold}/report.html"[^>]*class="plain"', page)
    assert page.count("Significant: ") == 1  # one definition
    assert "<h2>The best and the worst series</h2>" in page
    assert all(f'<th scope="row">{name}</th>' in page for name in ("BTCUSDT-15m", "ETHUSDT-15m"))
    assert '"ETHUSDT-15m: ' in page


def test_the_page_opens_with_what_all_folds_come_to(found: Any) -> None:
    ((about, *sentences),) = verdicts(found)
    assert about == (
        "15m: median of 2 series in all their folds, short test periods within 1998-07-12 – 1998-07-17, each "
        "trained again."
    )
    # The medians of two of 0.8 and two of 1.1, as the pooled table has them.
    told = found.pools[0].tasks["volatility"]
    assert told.model_relative_mae == pytest.approx(0.95)
    (volatility,) = [sentence for sentence in sentences if sentence.startswith("Volatility: ")]
    assert volatility.startswith("Volatility: 5.0 % lower error")
    page = unescape(str(backtest_page(found)))
    assert page.index(about) < page.index(sentences[0]) < page.index('class="plot"') < page.index("<table")


def quantiles(crps: float, coverage: float) -> QuantileEvaluation:
    """Of two steps of one column, three levels and one interval; the baseline's CRPS is 1."""

    def errors(crps: float) -> QuantileErrors:
        return QuantileErrors(
            pinball=(((crps / 2,),) * 2,) * 3,
            coverage=(((coverage,),) * 2,),
            width=(((1.0,),) * 2,),
            below=(0.5,) * 3,
            below_margin=(0.1,) * 3,
            score=(1.0,),
        )

    evaluated = EvaluatedQuantiles(
        {"model": errors(crps), "range_paths": errors(1.0)}, {"range_paths": Significance(0.0, None, 9, 1)}
    )
    return QuantileEvaluation((0.05, 0.5, 0.95), 9, {"ohlc": evaluated})


def test_crps_and_coverage_are_told_where_there_are_quantiles(found: Any) -> None:
    names = ["BTCUSDT-15m", "ETHUSDT-15m", "SOLUSDT-15m"]
    told = zip(names, (0.9, 0.95, 1.1), (0.85, 0.91, 0.92), strict=True)
    cells = [replace(cell(1, name), quantiles=quantiles(crps, share)) for name, crps, share in told]
    results = results_of(plan(1, names), cells, {})
    evaluated = results.folds[0].tasks["ohlc"]
    assert (evaluated.crps, evaluated.coverage) == ({"range_paths": pytest.approx(0.95)}, {"90 %": 0.91})
    (row,) = (
        dict(zip(each.columns, row, strict=True))
        for each in tables(results)
        for row in each.rows
        if row[:2] == ["1998-07-09, 15m", "ohlc"]
    )
    assert (row["CRPS × range_paths"], row["in 90 %"]) == ("0.950", "91.0 %")
    assert not any("CRPS" in column for each in tables(found) for column in each.columns)
    assert QUANTILE_NOTE in unescape(str(backtest_page(results)))
    assert QUANTILE_NOTE not in unescape(str(backtest_page(found)))
