"""`v8 worth` of a trained run: what it prints and writes, and that forecasts of the future are refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from v8.annexes.trading.rules import NAIVE, PERFECT_FORESIGHT, TRADING_RULES
from v8.annexes.trading.worth import FORMULAS, ForecastCandles, forecasts_of, require_causal, trading_case_of
from v8.base.errors import ArtifactError
from v8.cli.app import app
from v8.data.features import compute_table
from v8.data.market.checks import check_candles
from v8.data.span import Span
from v8.data.windows import SeriesData, prepare_series, table_columns
from v8.forecaster.forecaster import Forecaster
from v8.model.evaluation.evaluation import MODEL

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def data(trained_run: Any) -> SeriesData:
    table = compute_table(trained_run.candles, table_columns(trained_run.profile))
    return prepare_series(table, trained_run.profile)


@pytest.fixture(scope="module")
def told(trained_run: Any, data: SeriesData) -> Any:
    return forecasts_of(data, Forecaster.load(trained_run.folder))


def test_model_naive_and_formulas_speak_of_every_window_once(
    trained_run: Any, data: SeriesData, told: Any
) -> None:
    study = trading_case_of(data, trained_run.candles, told)
    assert study is not None
    assert list(study.forecasts) == [MODEL, NAIVE, *FORMULAS]
    assert len(study.market.last_close_N) == len(data.spans["test"])
    newest = int(study.market.bar_numbers[-1])
    assert trading_case_of(data, trained_run.candles, told, after=newest) is None
    later = trading_case_of(data, trained_run.candles, told, after=newest - 3)
    assert later is not None
    assert later.market.bar_numbers.tolist() == [newest - 2, newest - 1, newest]


def test_forecasts_shifted_one_bar_into_the_future_are_refused(
    trained_run: Any, data: SeriesData, told: Any
) -> None:
    def ahead(span: Span) -> Any:
        newest = len(span.table) - 1
        return told[MODEL](Span(span.table, span.profile, np.minimum(span.anchors + 1, newest)))

    rule = r"forecast of model at .*: .*; got a last close"
    with pytest.raises(ArtifactError, match=rule):
        trading_case_of(data, trained_run.candles, {**told, MODEL: ahead})


def test_a_difference_counts_however_cheap_the_coin_is(trained_run: Any) -> None:
    frame = trained_run.candles.to_frame()
    frame[["open", "high", "low", "close"]] *= 1e-9  # a coin of a ten thousandth
    candles = check_candles(frame, trained_run.candles.series, source="files")
    profile = trained_run.profile
    span = prepare_series(compute_table(candles, table_columns(profile)), profile).spans["test"]
    last_close = float(span.last_close[0])
    assert last_close < 1e-3
    same = np.full((1, 10, 4), last_close)
    forecast = ForecastCandles(same, ranges_NH=np.full((1, 10), 0.01))
    require_causal(MODEL, lambda span: forecast, forecast, {0: span})
    wider = ForecastCandles(same, ranges_NH=np.full((1, 10), 0.0105))
    with pytest.raises(ArtifactError, match=r"got .* 0\.0105 instead of 0\.01\b"):
        require_causal(MODEL, lambda span: forecast, wider, {0: span})
    with pytest.raises(ArtifactError, match=rf"got .* {1.0005 * last_close:.7g} instead of"):
        require_causal(MODEL, lambda span: forecast, ForecastCandles(1.0005 * same), {0: span})


def test_the_command_prints_and_writes_what_it_found(trained_run: Any, tmp_path: Path) -> None:
    words = ["worth", str(trained_run.path), "--data-dir", str(trained_run.candles_dir), "--fee-bps", "7"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    try:
        assert done.exit_code == 0, done.output
        first, *_ = done.stdout.splitlines()
        assert first.startswith("In money, after costs: too few days ")
        assert " fee of 7 bps." in done.stdout
        assert all(rule.title in done.stdout for rule in TRADING_RULES.values())
        content = json.loads((trained_run.path / "worth.json").read_text())
        assert content["terms"] == {"fee": 0.0007, "spread": 0.0002, "target": 0.4, "max_leverage": 2.0}
        with (trained_run.path / "worth.csv").open() as lines:
            rows = list(csv.DictReader(lines))
        assert [(row["rule"], row["series"]) for row in rows] == [
            *((rule, "") for rule in TRADING_RULES),
            *((rule, "BTCUSDT-15m") for rule in TRADING_RULES),
        ]
        key = PERFECT_FORESIGHT
        bounds = [(result["rule"], result["series"], result[key]) for result in content["results"]]
        assert bounds == [(row["rule"], row["series"], pytest.approx(float(row[key]))) for row in rows]
        assert first in (trained_run.path / "worth.html").read_text()
    finally:  # the run is that of other tests, too
        for kind in ("json", "csv", "html"):
            (trained_run.path / f"worth.{kind}").unlink(missing_ok=True)
    nobody = CliRunner().invoke(app, ["worth", str(trained_run.path), "--series", "ETHUSDT-15m"])
    assert nobody.exit_code == 3
    assert "; got none of ETHUSDT-15m" in nobody.stderr
