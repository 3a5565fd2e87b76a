"""Simulated candles behind quantiles, and a series without a model: forecast by models of other series."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from float32_steps import assert_same_frames
from tiny_profiles import tiny_ranged_profile
from typer.testing import CliRunner, Result

import v8
from v8.api.issuing import IssuedForecast
from v8.base.errors import ArtifactError, DataError
from v8.cli.app import app
from v8.data.features import compute_table
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.data.windows import prepare_series, table_columns
from v8.forecaster.forecaster import Forecaster, checked_candles
from v8.forecaster.metadata import EVALUATED_SECTIONS, read_metadata
from v8.model.baselines.paths import drawn_paths
from v8.model.baselines.ranges import fit_formulas
from v8.publish.hub.places import open_place
from v8.publish.report.card import model_card
from v8.publish.report.series_section import series_body
from v8.runs.events import RunObserver
from v8.runs.local import InProcessEngine
from v8.runs.plan import Job, Recipe
from v8.runs.run_folder import RunFolder, RunRecord, read_run

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
TEACHER_FORCED = ("ETHUSDT-15m", "SOLUSDT-15m")
NEWCOMER = "BTCUSDT-15m"
OHLC = ["open", "high", "low", "close"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run of two series with quantiles and paths, and candles of three."""
    home = tmp_path_factory.mktemp("paths")
    profile = tiny_ranged_profile(quantiles=LEVELS, calibration="ensemble", training={"epochs": 1})
    (home / "candles").mkdir()
    for name in (*TEACHER_FORCED, NEWCOMER):
        candles = open_source("demo").candles(Series.parse(name), profile.newest_bars)
        candles.to_frame().to_csv(home / "candles" / f"{name}.csv")
    files = open_source("files", data_dir=home / "candles")
    known = {
        name: files.candles(Series.parse(name), profile.newest_bars) for name in (*TEACHER_FORCED, NEWCOMER)
    }
    run = home / "runs" / "tiny"
    record = RunRecord.begin(profile, "files", True, "python -m v8 run")
    with pytest.MonkeyPatch.context() as patch, RunFolder(run, record) as folder:
        patch.setenv("V8_HOME", str(home / "caches"))
        jobs = [
            Job(
                Recipe(profile, is_publishable=True, has_importance=name == TEACHER_FORCED[0]),
                known[name],
                7,
                run / name,
            )
            for name in TEACHER_FORCED
        ]
        for outcome in InProcessEngine().train(jobs, RunObserver()):
            assert outcome.reason is None, outcome.trace
            folder.set_state(outcome.series, status="done")
    return SimpleNamespace(run=run, candles_dir=home / "candles", known=known, profile=profile)


def call(made: SimpleNamespace, *words: str) -> Result:
    options = [str(made.run), "--source", "files", "--data-dir", str(made.candles_dir), "--allow-old"]
    return CliRunner().invoke(app, ["predict", *options, *words])


@pytest.fixture(scope="module")
def teacher_forced(made: SimpleNamespace) -> Forecaster:
    return v8.load(made.run, TEACHER_FORCED[0])


@pytest.mark.nightly
@pytest.mark.tf
def test_paths_are_true_candles_with_the_quantiles_that_are_forecast(
    made: SimpleNamespace, teacher_forced: Forecaster
) -> None:
    candles = made.known[TEACHER_FORCED[0]]
    paths = teacher_forced.paths(candles)
    forecast = teacher_forced.predict(candles)
    assert paths.index.names == ["path", "open_time"] and list(paths.columns) == OHLC
    assert (paths["low"] <= paths[["open", "close"]].min(axis=1)).all()
    assert (paths["high"] >= paths[["open", "close"]].max(axis=1)).all()
    assert (paths["low"] > 0).all()
    values = paths.to_numpy().reshape(512, 3, 4)
    assert (paths.loc[7].index == forecast.index).all() and (paths.loc[7].to_numpy() == values[7]).all()
    reach = (forecast["high_q95"] - forecast["low_q5"]).to_numpy()
    for number, name in enumerate(OHLC):
        for level in LEVELS:
            column = name if level == 0.5 else f"{name}_q{100 * level:.0f}"
            quantiles = np.quantile(values[:, :, number], level, axis=0)
            # What is stated: low and high that have to hold open and close move by little of the interval.
            assert (np.abs(quantiles - forecast[column]) <= 0.01 * reach).all(), column


@pytest.mark.nightly
@pytest.mark.tf
def test_the_seed_decides_which_paths_come_first(made: SimpleNamespace, teacher_forced: Forecaster) -> None:
    candles = made.known[TEACHER_FORCED[0]]
    every = teacher_forced.paths(candles)
    some = teacher_forced.paths(candles, 20)
    pd.testing.assert_frame_equal(some, teacher_forced.paths(candles, 20))
    other = teacher_forced.paths(candles, 20, seed=3)
    assert not some.equals(other)
    rows = {tuple(one.to_numpy().ravel()) for _, one in every.groupby(level="path")}
    for drawn in (some, other):
        drawn_rows = {tuple(one.to_numpy().ravel()) for _, one in drawn.groupby(level="path")}
        assert len(drawn_rows) == 20 and drawn_rows <= rows
    with pytest.raises(DataError, match="the model has 512 paths; got 513 asked for"):
        teacher_forced.paths(candles, 513)


@pytest.mark.nightly
@pytest.mark.tf
def test_paths_are_made_of_the_train_span_and_of_known_candles_alone(
    made: SimpleNamespace, teacher_forced: Forecaster
) -> None:
    frame = made.known[TEACHER_FORCED[0]].to_frame()
    other = frame.copy()
    other.iloc[-100:, :4] *= np.linspace(1, 1.5, 100)[:, None]
    cut = [teacher_forced.paths(each.iloc[:-100]) for each in (frame, other)]
    pd.testing.assert_frame_equal(*cut)
    assert cut[0].index[0][1] == frame.index[-100]
    resampled = []
    for each in (frame, other):
        table = compute_table(
            checked_candles(each, Series.parse(TEACHER_FORCED[0])), table_columns(made.profile)
        )
        data = prepare_series(table, made.profile)
        assert data.anchors["train"][-1] + made.profile.horizon_bars < len(table) - 100
        resampled.append(fit_formulas(data.spans["train"]).resampled_PHC)
    np.testing.assert_array_equal(*resampled)


def test_quantiles_are_taken_in_the_order_of_the_paths() -> None:
    """Four paths of one step; levels 0, .5 and 1 of 0 1 2 3 are 0, 1.5 and 3."""
    close = np.log(np.array([3.0, 1.0, 0.5, 2.0]) + 10) - np.log(10)
    moved = np.repeat(close[None, None], 4, axis=1)
    wanted = np.repeat(np.array([[[100.0], [111.25], [130.0]]]), 4, axis=2)
    drawn = drawn_paths(moved, (0.0, 0.5, 1.0), wanted, 10.0)
    # Own quantiles: 10.5, 11.5 and 13. So 13 is 130, 10.5 is 100; 11 lies half of the way to 11.5, and 12 a
    # third of the way from there.
    np.testing.assert_allclose(drawn[:, 0, 3], [130, 105.625, 100, 111.25 + 18.75 / 3])
    # Beyond the outer ones as far as they are stretched: 1.5 and 0.5 off the median become 3 and 1.
    wanted = np.repeat(np.array([[[111.25]]]), 4, axis=2)
    np.testing.assert_allclose(
        drawn_paths(moved, (0.5,), wanted, 10.0)[:, 0, 3], [112.75, 110.75, 110.25, 111.75]
    )


@pytest.mark.nightly
@pytest.mark.tf
def test_a_model_without_paths_refuses_and_says_which_have_them(trained_run: Any) -> None:
    forecaster = v8.load(trained_run.folder)
    expected = (
        r"paths need `calibration: ensemble`, family `range_paths` or quantiles trained after 1.0.0; got a"
    )
    with pytest.raises(DataError, match=expected):
        forecaster.paths(trained_run.candles)
    words = ["--source", "files", "--data-dir", str(trained_run.candles_dir), "--allow-old", "--paths", "9"]
    result = CliRunner().invoke(app, ["predict", str(trained_run.folder), *words])
    assert result.exit_code == 3 and "model of tiny." in result.stderr


@pytest.mark.tf
@pytest.mark.nightly
def test_every_form_of_predict_tells_the_paths(made: SimpleNamespace, teacher_forced: Forecaster) -> None:
    asked = ("--series", TEACHER_FORCED[0], "--bars", "940", "--paths", "512")
    paths = teacher_forced.paths(made.known[TEACHER_FORCED[0]])
    content = json.loads(call(made, *asked, "--format", "json").stdout)
    assert content["paths"]["columns"] == OHLC
    np.testing.assert_array_equal(np.array(content["paths"]["values"]).reshape(-1, 4), paths.to_numpy())
    close = made.known[TEACHER_FORCED[0]].column("close")[-1]
    rises = paths["high"].groupby("path").max()
    falls = paths["low"].groupby("path").min()
    for one in content["touch"]:
        assert one["above"] == pytest.approx(close * (1 + one["move"]))
        assert one["chance_above"] == (rises >= one["above"]).mean()
        assert one["chance_below"] == (falls <= one["below"]).mean()
    assert content["touch"][0]["chance_above"] > 0 and content["touch"][-1]["chance_above"] < 1
    process = call(made, *asked)
    assert "chance that a bar ahead" in process.stdout
    assert f"{100 * content['touch'][0]['chance_below']:.1f} %" in process.stdout
    rows = call(made, *asked, "--format", "csv").stdout.splitlines()
    assert rows[0] == "path,open_time,open,high,low,close" and len(rows) == 1 + 3 * 512
    assert rows[1].startswith("0,2025-01-01T00:00:00Z,")
    refused = call(made, *asked[:-1], "513")
    assert refused.exit_code == 3 and " (--paths)" in refused.stderr


@pytest.mark.nightly
@pytest.mark.tf
def test_a_series_without_a_model_is_forecast_by_the_median_of_the_others(made: SimpleNamespace) -> None:
    content = json.loads(call(made, "--series", NEWCOMER, "--format", "json").stdout)
    assert content["series"] == NEWCOMER and content["model"]["trained_on"] == "other series"
    assert content["model"]["quality"] == {} and "quantiles" not in content["model"]
    # Nothing that was found on the test span of another series is said of it.
    evaluated = read_metadata(made.run / TEACHER_FORCED[0]).content.keys() & EVALUATED_SECTIONS
    assert {"evaluation", "price_range"} <= evaluated
    assert not open_place(made.run).forecaster_of(NEWCOMER).about.content.keys() & EVALUATED_SECTIONS
    candles = made.known[NEWCOMER]
    members = [Forecaster.load(made.run / name) for name in TEACHER_FORCED]
    said = []
    for one in members:
        one.series = candles.series
        said.append(one.predict(candles.newest(one.needed_bars)))
    expected = pd.DataFrame(np.median(said, axis=0), said[0].index, said[0].columns)
    found = pd.DataFrame(content["forecast"], expected.index)[[*expected.columns]]
    assert_same_frames(found, expected)
    assert content["model"]["trained_until"] == max(
        json.loads(call(made, "--series", name, "--format", "json").stdout)["model"]["trained_until"]
        for name in TEACHER_FORCED
    )
    frame = pd.DataFrame(content["forecast"])
    assert (frame["low"] <= frame[["open", "close"]].min(axis=1)).all()
    own = json.loads(call(made, "--series", TEACHER_FORCED[0], "--format", "json").stdout)
    assert (
        own["model"]["trained_on"] == "this series" and own["model"]["sha256"] != content["model"]["sha256"]
    )


@pytest.mark.nightly
@pytest.mark.tf
def test_a_newcomer_is_marked_wherever_it_is_printed(made: SimpleNamespace) -> None:
    mark = "BTCUSDT-15m has no model: "
    process = call(made, "--series", NEWCOMER, "--series", TEACHER_FORCED[0])
    assert process.exit_code == 0, process.stderr
    printed = " ".join(process.stdout.split())
    assert printed.count(mark) == 1
    assert "It was not evaluated: " in printed
    assert "best baseline's" in printed
    table = call(made, "--series", NEWCOMER, "--format", "csv")
    assert mark in " ".join(table.stderr.split())
    chances = call(made, "--series", NEWCOMER, "--paths", "512")
    assert "chance that a bar ahead" in chances.stdout


@pytest.mark.nightly
@pytest.mark.tf
def test_what_nobody_can_forecast_is_one_error(made: SimpleNamespace, tmp_path: Path) -> None:
    refused = call(made, "--series", "BTCUSDT-1h")
    assert refused.exit_code != 0
    assert re.search("BTCUSDT-1h: .*at 1h; got models of ETHUSDT-15m", " ".join(refused.stderr.split()))
    assert len([line for line in refused.stderr.splitlines() if "error:" in line]) == 1
    with pytest.raises(ArtifactError, match="other series at 1h"):
        open_place(made.run).forecaster_of("BTCUSDT-1h")
    short = made.known[NEWCOMER].to_frame().tail(200)
    short.to_csv(tmp_path / f"{NEWCOMER}.csv")
    words = [str(made.run), "--source", "files", "--data-dir", str(tmp_path), "--allow-old"]
    result = CliRunner().invoke(app, ["predict", *words, "--series", NEWCOMER])
    assert result.exit_code == 3 and "BTCUSDT-15m" in result.stderr
    assert "(20 lookback + 239 warm-up); got 200" in result.stderr


@pytest.mark.nightly
@pytest.mark.tf
def test_inputs_outside_of_what_training_saw_are_named(
    made: SimpleNamespace, teacher_forced: Forecaster
) -> None:
    candles = made.known[TEACHER_FORCED[0]]
    data = prepare_series(compute_table(candles, table_columns(made.profile)), made.profile)
    train = data.spans["train"]
    assert set(teacher_forced.about.value_ranges) == {*made.profile.features} - set(OHLC)
    for name, (least, most) in teacher_forced.about.value_ranges.items():
        values = data.table.column(name)[train.anchors]
        assert (least, most) == (values.min(), values.max())
    # At the end of the train span all of it was seen; a last bar over a fifth of its price was not.
    end_s = int(data.table.open_time_s[train.anchors[-1]])
    newest = candles.newest(700, end_s=end_s)
    assert teacher_forced.out_of_range_features(newest) == {}
    frame = newest.to_frame()
    frame.iloc[-1, frame.columns.get_loc("low")] *= 0.8
    wild = checked_candles(frame, candles.series)
    found = teacher_forced.out_of_range_features(wild)
    assert found is not None
    value = compute_table(wild, ("range_1",)).column("range_1")[-1]
    least, most = teacher_forced.about.value_ranges["range_1"]
    assert found["range_1"] == pytest.approx((value - most) / (most - least)) and value > most
    for outside, is_familiar in ((found, False), ({}, True)):
        told = IssuedForecast(
            teacher_forced, wild, teacher_forced.predict(wild), "here", end_s, True, None, outside
        )
        assert (told.to_json()["is_in_range"], told.to_json()["out_of_range_features"]) == (
            is_familiar,
            outside,
        )
        marked = [
            line for line in told.summary_lines() if line.startswith("Out of range of the training data: ")
        ]
        assert bool(marked) != is_familiar and all("range_1" in line for line in marked)
    told_now = json.loads(call(made, "--series", TEACHER_FORCED[0], "--format", "json").stdout)
    newest = candles.newest(teacher_forced.needed_bars)
    assert told_now["out_of_range_features"] == teacher_forced.out_of_range_features(newest) and told_now[
        "is_in_range"
    ] == (not told_now["out_of_range_features"])


@pytest.mark.nightly
@pytest.mark.tf
def test_what_inputs_are_worth_stands_in_metadata_report_and_card(made: SimpleNamespace) -> None:
    metadata = [read_metadata(made.run / name) for name in TEACHER_FORCED]
    asked, unasked = (one.result.importance for one in metadata)
    assert unasked is None and asked is not None
    assert list(asked) == ["candles", "ranges", "moves", "clock", "bands"]
    assert asked["candles"]["volatility"] > 1.1  # the naive forecast lives on the closes of the window
    shown, hidden = (series_body(one.result, (), None) for one in metadata)
    assert "inputs are worth" in shown and f"{asked['clock']['bands']:.3f}" in shown
    assert "inputs are worth" not in hidden
    card = model_card("you/models", read_run(made.run), metadata, {})
    assert "## What their inputs" in card and f"{asked['bands']['ohlc']:.3f}" in card
    assert "inputs are worth" not in model_card("you/models", read_run(made.run), metadata[1:], {})
