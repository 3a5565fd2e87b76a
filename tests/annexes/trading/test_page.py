"""The page of what forecasts are worth: what its first sentences say, and where a back-test shows it."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from wandering import wandering

from v8.annexes.trading.page import (
    sentences,
    trading_page,
    trading_section,
    write_trading_results,
)
from v8.annexes.trading.rules import (
    NAIVE,
    PERFECT_FORESIGHT,
    TRADING_RULES,
    TradingResults,
    TradingTerms,
    evaluate_trading,
)
from v8.base.wording import column
from v8.model.evaluation.evaluation import MODEL
from v8.publish.report.markup import DEMO_WARNING

FREE = TradingTerms(fee=0.0, spread=0.0)


@pytest.fixture(scope="module")
def known() -> TradingResults:
    return evaluate_trading([wandering(60)], FREE)


def test_the_first_sentence_says_what_is_significant(known: TradingResults) -> None:
    money, worse, scores, _, limits, _, _, costs = sentences(known)
    best = "significantly better than the best alternative"
    assert money == f"In money, after costs: {best}: position by volatility."
    assert worse.endswith(": limit orders at low and high.")
    assert scores.endswith(f": {best}: 90 % range of the close, variance.")
    by_rule = {result.rule: result for result in known.pooled}
    model, without = column(by_rule["limits"].gains[name] for name in (MODEL, "market order"))
    assert re.fullmatch(f"Model, limit orders .*: {model} bps an order .*: {without} bps.", limits)
    assert re.match("A trade .* fee of 0 bps. .* spread of 0 bps: 0 bps.", costs)


def test_what_is_not_known_is_worth_nothing_and_what_is_worse_is_told() -> None:
    study = wandering(60)
    late = replace(study, forecasts={MODEL: study.forecasts[NAIVE], NAIVE: study.forecasts[MODEL]})
    money, worse, scores, *_ = sentences(evaluate_trading([late], FREE))
    assert money.startswith("In money, after costs: nothing ")
    assert ": position by volatility" in worse
    assert ": nothing is significantly better" in scores


def test_few_days_are_said_to_tell_nothing() -> None:
    money, scores, *_, costs = sentences(evaluate_trading([wandering(5)], TradingTerms(fee=0.0005)))
    assert money.startswith("In money, after costs: too few days ")
    assert ": too few days " in scores
    assert re.match("A trade .* fee of 5 bps. .* spread of 2 bps: 1 bps.", costs)


@pytest.mark.parametrize(("gain", "has_rate"), [(36.5, True), (-99.0, True), (-188.0, False)])
def test_no_rate_of_a_year_loses_more_than_all(known: TradingResults, gain: float, has_rate: bool) -> None:
    pooled = []
    for result in known.pooled:
        gains = {**result.gains, MODEL: gain} if result.rule == "direction" else result.gains
        pooled.append(replace(result, gains=gains, num_days=180))
    (direction,) = [
        sentence
        for sentence in sentences(replace(known, pooled=pooled))
        if sentence.startswith("Model, direction of the close: earned ")
    ]
    assert ("a year" in direction) == has_rate


def test_the_files_hold_what_the_page_says(known: TradingResults, tmp_path: Path) -> None:
    written = write_trading_results(tmp_path, replace(known, is_demo=True))
    assert [file.name for file in written] == ["worth.json", "worth.csv", "worth.html"]
    content = json.loads(written[0].read_text())
    assert (content["format"], content["is_demo"]) == (4, True)
    assert list(content["figures"]) == list(TRADING_RULES)
    assert [(one["rule"], one["series"]) for one in content["results"][: len(TRADING_RULES)]] == [
        (rule, "") for rule in TRADING_RULES
    ]
    assert set(content["curves"]) == {"volatility", "direction"}  # what is held
    days, earned = (content["curves"]["volatility"][name] for name in ("day", MODEL))
    assert len(days) == len(earned) == known.pooled[0].num_days
    with written[1].open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["outcome"] for row in rows] == [one["outcome"] for one in content["results"]]
    bounds = [pytest.approx(result[PERFECT_FORESIGHT]) for result in content["results"]]
    assert [float(row[PERFECT_FORESIGHT]) for row in rows] == bounds
    page = written[2].read_text()
    assert DEMO_WARNING in page
    assert DEMO_WARNING not in trading_page(known)
    assert all(sentence in page for sentence in sentences(known))
    section = "".join(trading_section(known))  # of a back-test, too
    assert "Perfect foresight " in section


def test_a_curve_breaks_where_days_are_missing_between_test_spans(known: TradingResults) -> None:
    days = [10, 11, 12, 700, 701]
    earned = known.curves["direction"].iloc[: len(days)].set_axis(days)
    page = trading_page(replace(known, curves=dict.fromkeys(known.curves, earned)))
    drawn, _ = re.findall(r'<script type="application/json">(.*?)</script>', page)
    chart = json.loads(drawn)
    for line in chart["data"]:
        assert line["y"][3] is None and None not in line["y"][:3] + line["y"][4:]
    assert [rule["x0"] for rule in chart["layout"]["shapes"]] == [3]
    assert chart["layout"]["xaxis"]["tickvals"] == [0, 4]
    assert "5 days in all. A dotted line" in page
    assert "A dotted line" not in trading_page(known)  # its days follow one another
