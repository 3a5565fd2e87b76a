"""Quantiles from a profile's key to the ledger: trained once, read wherever a forecast is read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from ledger_entries import said
from outputs import write_outputs
from tiny_profiles import tiny_ranged_profile

import v8
from v8.annexes.live.app import answers
from v8.annexes.live.app.answers import newest_apart, past_forecast
from v8.annexes.live.app.forecast_view import ForecastView
from v8.annexes.live.app.page import record_part, whole_record_part
from v8.annexes.live.app.service import LedgerReader, ModelSource, PastMonth
from v8.annexes.live.issuing import fit_baselines, make_entry, score
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.promotion import Promotions, decide_promotion, open_decision, read_promotions
from v8.annexes.live.record import live_record
from v8.annexes.live.renewal import GenerationResult, print_decisions
from v8.annexes.live.reporting import RECORD_PRINTERS
from v8.api.export import forecast_test_span
from v8.api.issuing import IssuedForecast
from v8.base.errors import ArtifactError
from v8.base.wording import moment, percent
from v8.cli.forecasts import PRINTERS, print_tables
from v8.data.market.candles import Candles
from v8.data.market.series import Series, iso
from v8.data.market.sources import open_source
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import METADATA_FILE, read_metadata
from v8.model.baselines.paths import PriceRange, RangeCoverage
from v8.model.evaluation import significance
from v8.profile.profile import recorded_profile
from v8.profile.tasks import TASKS
from v8.publish.report.card import model_card
from v8.publish.report.pictures import draw_forecast
from v8.runs.events import RunObserver
from v8.runs.local import InProcessEngine
from v8.runs.plan import Job, Recipe
from v8.runs.run_folder import RunFolder, RunRecord, read_run

pytestmark = [pytest.mark.nightly, pytest.mark.tf]

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
LATER = 6
"""Candles that come after the forecasts."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run of one series with quantiles, and candles before and after its forecasts."""
    home = tmp_path_factory.mktemp("quantiles")
    series = Series.parse("BTCUSDT-15m")
    profile = tiny_ranged_profile(quantiles=LEVELS, training={"epochs": 1})
    every = open_source("demo").candles(series, profile.newest_bars + LATER)
    (home / "candles").mkdir()
    every.to_frame()[:-LATER].to_csv(home / "candles" / f"{series}.csv")
    candles = open_source("files", data_dir=home / "candles").candles(series, profile.newest_bars)
    run = home / "runs" / "tiny"
    record = RunRecord.begin(profile, "files", True, "python -m v8 run")
    with pytest.MonkeyPatch.context() as patch, RunFolder(run, record) as folder:
        patch.setenv("V8_HOME", str(home / "caches"))
        (outcome,) = InProcessEngine().train(
            [Job(Recipe(profile, is_publishable=True), candles, 7, run / str(series))],
            RunObserver(),
        )
        assert outcome.reason is None, outcome.trace
        folder.set_state(series, status="done")
    write_outputs(run)
    forecaster = Forecaster.load(run / str(series))
    return SimpleNamespace(
        run=run, folder=run / str(series), every=every, candles=candles, forecaster=forecaster
    )


@pytest.fixture
def issued(made: SimpleNamespace) -> IssuedForecast:
    frame = made.forecaster.predict(made.candles)
    return IssuedForecast(
        made.forecaster, made.candles, frame, "here", int(made.candles.open_time_s[-1]), True
    )


def test_a_forecast_has_a_column_for_each_quantile(made: SimpleNamespace) -> None:
    frame = made.forecaster.predict(made.candles)
    names = [name for task in TASKS.values() if task.is_of_bars for name in task.columns]
    assert list(frame.columns) == [*names, *(f"{name}_q{q}" for name in names for q in (5, 25, 75, 95))]


def test_an_export_holds_the_quantiles_that_were_evaluated(made: SimpleNamespace) -> None:
    table, _ = forecast_test_span(made.forecaster, made.candles)
    evaluated = made.forecaster.about.quantiles.tasks["ohlc"].errors["model"]
    within = []
    for name in ("open", "high", "low", "close"):
        low, high, actual = (table[f"{name}_{kind}"] for kind in ("q5", "q95", "actual"))
        # The next open is the last close but for rounding: its interval has no width, and counts nowhere.
        has_width = ((high - low) / actual).groupby(table["step"]).transform("mean") > 1e-6
        within.append(((low <= actual) & (actual <= high))[has_width])
    assert sum(map(len, within)) == len(table) * 4 - (table["step"] == 1).sum()
    assert np.mean(np.concatenate(within)) == pytest.approx(evaluated.mean_coverage(0), abs=1e-12)


def test_the_range_of_prices_was_evaluated_on_the_test_span(made: SimpleNamespace) -> None:
    metadata = read_metadata(made.folder)
    coverage = metadata.result.price_range
    num_windows = metadata.split.test.num_windows
    assert coverage.num_windows == len(
        range(0, num_windows, max(metadata.horizon_bars, -(-num_windows // 60)))
    )
    assert coverage.share > 0.5  # nothing but an order of magnitude: few windows, one epoch
    page = (made.run / "report.html").read_text("utf-8")
    sentence = f"it did in {percent(coverage.share)} of {coverage.num_windows} windows of the test span"
    assert sentence in page


def test_metadata_that_promises_other_quantiles_than_the_model_has_is_refused(
    made: SimpleNamespace, tmp_path: Path
) -> None:
    for file in made.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = json.loads((tmp_path / METADATA_FILE).read_text())
    content["profile"]["quantiles"] = [0.1, 0.5, 0.9]
    (tmp_path / METADATA_FILE).write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match="what metadata"):
        Forecaster.load(tmp_path)


def test_every_form_of_predict_prints_them(
    issued: IssuedForecast, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    printed = {}
    for name, printer in PRINTERS.items():
        printer([issued], False)
        printed[name] = capsys.readouterr().out
    content = json.loads(printed["json"])
    assert content["forecast"][0]["close_q5"] == issued.forecast["close_q5"].iloc[0]
    assert content["model"]["quantiles"]["levels"] == list(LEVELS)
    assert set(content["model"]["quantiles"]["tasks"]["ohlc"]["coverage"]) == {"90 %", "50 %"}
    assert "volatility_q95" in printed["csv"].splitlines()[0]
    # One range, of all bars, and one table, which is not wrapped.
    (title,) = [line for line in printed["table"].splitlines() if line.startswith("opens, UTC")]
    assert "low" not in title and "50 %" not in title
    for name in ("close", "90 % close", "volatility", "90 % volatility"):
        assert name in title
    for _, row in issued.forecast.iterrows():
        low, close, high = (issued.written_price(row[name]) for name in ("close_q5", "close", "close_q95"))
        assert f"{close}  {low} – {high}" in printed["table"]
        ends = (100 * row[f"volatility_{each}"] for each in ("q5", "q95"))
        assert "{:.2f} % – {:.2f} %".format(*ends) in printed["table"]
    draw_forecast(issued.candles, issued.forecast, tmp_path / "one.png", notes=[])
    assert (tmp_path / "one.png").stat().st_size > 10_000


def test_a_range_of_late_candles_begins_with_them_and_says_how_much_is_over(
    made: SimpleNamespace, issued: IssuedForecast, capsys: pytest.CaptureFixture[str]
) -> None:
    bar_s = issued.candles.series.bar_s
    num_bars = len(issued.forecast)
    with_range = replace(issued, price_range=PriceRange(1.0, 2.0), is_dated=True, issued_at_s=issued.closed_s)
    late = replace(with_range, issued_at_s=issued.closed_s + 2 * bar_s + 60)
    assert (with_range.num_closed_bars, late.num_closed_bars) == (0, 2)
    assert replace(late, issued_at_s=issued.closed_s + 1_000 * bar_s).num_closed_bars == num_bars
    assert replace(late, is_dated=False).num_closed_bars == 0  # the demo market ends in the past
    closed = iso(issued.closed_s)
    assert closed not in with_range.range_line() and closed in late.range_line()
    print_tables([with_range])
    assert f"of {num_bars} bars" not in capsys.readouterr().out
    print_tables([late])
    assert f"(2 of {num_bars} bars, from {closed} on)" in " ".join(capsys.readouterr().out.split())
    snapshot = ModelSource(made.run).refresh()
    view, late_view = (ForecastView(snapshot, each, PastMonth()).part for each in (with_range, late))
    text = f"from {moment(closed)} UTC on; 2 of {num_bars} bars have closed already."
    assert text in late_view and text not in view


def test_report_card_and_page_show_intervals(made: SimpleNamespace, issued: IssuedForecast) -> None:
    report = (made.run / "report.html").read_text("utf-8")
    assert "Quantiles and intervals" in report and "close, 90 % interval" in report
    assert "no interval" not in report
    card = model_card("someone/models", read_run(made.run), [read_metadata(made.folder)], {})
    assert "How sure they are" in card and "without an interval" not in card
    snapshot = ModelSource(made.run).refresh()
    (row,) = snapshot.rows
    part = ForecastView(snapshot, issued, PastMonth()).part
    tested = row.price_range
    assert tested is not None
    # The windows of the tiny run are too few to say how often the range held.
    assert not tested.has_enough_windows
    on_test = f"How often it held on test candles is not known: only {tested.num_windows} checks."
    assert (on_test in part) == (issued.price_range is not None)
    # The close comes first: a telephone shows the first columns.
    heads = ["opens, UTC", "close", *(f"{name}, 90 % interval" for name in ("close", "low", "high"))]
    assert "".join(f'<th scope="col">{head}</th>' for head in heads) in part
    with_range = replace(issued, price_range=PriceRange(1.0, 2.0))
    assert on_test in ForecastView(snapshot, with_range, PastMonth()).part
    assert on_test in with_range.range_line()  # `predict` says what the page says
    figures = re.findall("<strong>(.*?)</strong>", ForecastView(snapshot, with_range, PastMonth()).part)
    assert with_range.written_price(1.0) + " – " + with_range.written_price(2.0) in figures
    assert "not known" in figures
    snapshot.row_of[row.series] = replace(row, price_range=RangeCoverage(60, 54))
    on_test = "In 60 checks on test candles it held 54 times (90.0 %)."
    assert on_test in ForecastView(snapshot, with_range, PastMonth()).part
    assert "<strong>90.0 %</strong>" in ForecastView(snapshot, with_range, PastMonth()).part
    assert "Dotted frame: 9 of 10 times" in ForecastView(snapshot, with_range, PastMonth()).part
    assert answers.chart(with_range)["range"] == {"share": 0.9, "low": 1.0, "high": 2.0}
    chart = answers.chart(issued)
    assert [shaded["name"] for shaded in chart["intervals"]] == ["90 %", "50 %"]
    for name in ("close", "volatility"):
        low_name, high_name = chart["intervals"][0]["columns"][name]
        assert chart["forecast"][low_name] == pytest.approx([*issued.forecast[f"{name}_q5"]], rel=1e-6)
        assert chart["forecast"][high_name] == pytest.approx([*issued.forecast[f"{name}_q95"]], rel=1e-6)
    assert "intervals of the close (90 % / 50 %)" in part
    low = issued.forecast["close_q5"].iloc[0]
    high = issued.forecast["close_q95"].iloc[0]
    caption = "The median forecast of the close, then 90 % intervals"
    assert f"<caption><span>{caption}</span></caption>" in part and "50 % intervals" not in part
    shown = next(text for text in part.split("<td>")[1:] if " – " in text).partition("<")[0]
    assert [float(end.replace(",", "")) for end in shown.split(" – ")] == pytest.approx([low, high], rel=1e-5)


def test_the_ledger_scores_each_level_and_tells_crps_and_coverage(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = recorded_profile(made.forecaster.metadata["profile"], where="test")
    every = made.every
    closed_s = int(made.candles.open_time_s[-1]) + made.candles.series.bar_s
    fitted = fit_baselines(profile, made.candles, closed_s)
    entry = make_entry(made.forecaster, fitted, made.candles, closed_s + 1, "./runs/tiny")
    with_range = make_entry(
        made.forecaster, fitted, made.candles, closed_s + 1, "./runs/tiny", has_range=True
    )
    low = with_range.price_range.low
    high = with_range.price_range.high
    assert low < last_close(made.candles) < high and entry.price_range is None
    assert (with_range.values == entry.values).all() and "range" in with_range.to_json()
    assert entry.issuer.forecasters[-4:] == ("model_q5", "model_q25", "model_q75", "model_q95")
    scored = score(entry, every, entry.due_s)
    assert scored is not None and scored.losses is not None and scored.actual is not None
    losses = dict(zip(entry.issuer.forecasters, scored.losses[:, 0], strict=True))
    actual = entry.issuer.split(scored.actual.astype(np.float64))["ohlc"]
    beyond = (actual - said(entry, "model_q5")["ohlc"]) / last_close(made.candles)
    by_hand = 2 * np.where(beyond > 0, 0.05 * beyond, -0.95 * beyond).mean()
    assert losses["model_q5"] == pytest.approx(by_hand, rel=1e-4)
    with Ledger.open_to_write(tmp_path / "ledger.sqlite") as ledger:
        ledger.add(entry)
        (number,) = ledger.pending(entry.issuer.place, entry.issuer.series)
        ledger.add_score(number, scored)
        (kept,) = ledger.scored(entry.issuer.place, entry.issuer.series)
        assert kept.losses.shape == (1, len(entry.issuer.forecasters), 3)
        record = live_record(ledger, entry.issuer.place)
    live = record.tasks["ohlc"]
    low, high = (said(entry, name)["ohlc"] for name in ("model_q5", "model_q95"))
    has_width = high - low > 1e-6 * actual  # not the next open, which is the last close but for rounding
    assert has_width.sum() == actual.size - 1
    share = float(((low <= actual) & (actual <= high))[has_width].mean())
    assert live.coverage is not None and live.coverage.shares["90 %"] == share
    for name, shown in RECORD_PRINTERS.items():
        shown(record)
        printed = capsys.readouterr().out
        sure = f"ohlc: CRPS {live.relative_crps:.3f} of naive's error; actual values of the newest "
        held = f": {percent(share)} in the 90 % interval, "
        assert {"table": sure, "json": '"coverage"', "csv": ",crps,within_90,within_50"}[name] in printed
        assert name != "table" or held in printed
    page = str(record_part(record, made.candles.series))
    assert f"Within 90 %: {percent(share)}." in page
    day_s = entry.issued_for_s // 86_400 * 86_400
    assert {day: each.shares["90 %"] for day, each in live.daily_coverage.items()} == {day_s: share}
    day = f"{pd.Timestamp(day_s, unit='s'):%Y-%m-%d}"
    assert live.to_json()["coverage_by_day"][day]["90 %"] == share
    whole = str(whole_record_part(record))
    assert f'data-time="{day_s}">{day}</th><td data-value="{share:.5f}">{percent(share)}</td>' in whole
    # The chart of the page shows the forecast once its bars have closed, with its widest interval.
    reader = LedgerReader(tmp_path / "ledger.sqlite", "./runs/tiny")
    last_s = entry.issued_for_s + entry.issuer.horizon_bars * entry.issuer.bar_s
    (kept_entry,) = newest_apart(reader.forecasts_since(entry.issuer.series, 0), last_s)
    past = past_forecast(kept_entry)
    assert past["close"] == pytest.approx(said(entry, "model")["ohlc"][:, 3])
    assert past["low"] == pytest.approx(said(entry, "model_q5")["ohlc"][:, 3])
    assert past["high"] == pytest.approx(said(entry, "model_q95")["ohlc"][:, 3])
    assert reader.forecasts_since(entry.issuer.series, entry.issued_for_s + 1) == []
    names = ("model", *entry.issuer.forecasters[-4:])
    assert live.crps == pytest.approx(np.mean([losses[name] for name in names]))
    assert not any(name.startswith("model_q") for name in (*live.errors, live.best.baseline))


def test_a_contest_tells_how_sure_both_models_were(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = recorded_profile(made.forecaster.metadata["profile"], where="test")
    # The tiny run has too few windows for a test of significance, which the ruling would wait for.
    monkeypatch.setattr(significance, "MIN_WINDOWS", 30)
    serving = Promotions(made.run, {}, ())
    asked = open_decision(made.forecaster.series, serving, "2026-01-01", "asked")
    decision = decide_promotion(asked, made.folder, made.folder, made.candles, profile)
    assert decision.num_windows > 0 and not decision.is_replaced  # a tie
    evaluated = made.forecaster.metadata["quantiles"]["tasks"]["ohlc"]["errors"]["model"]
    told = decision.champion.quantiles["ohlc"]
    assert decision.challenger.quantiles["ohlc"] == told and [*told.coverage] == ["90 %", "50 %"]
    # The windows of the contest are those of the test span an embargo behind validation, so most of them.
    assert told.coverage["90 %"] == pytest.approx(np.mean(evaluated["coverage"][0]), abs=0.1)
    Promotions(tmp_path, {}, (decision,)).save()
    assert read_promotions(tmp_path).decisions == (decision,)
    print_decisions(GenerationResult("2026-01-01", (decision,), ()))
    printed = capsys.readouterr().out
    assert "BTCUSDT-15m: the champion stays; " in printed


def test_a_notebook_shows_how_sure_models_are(made: SimpleNamespace) -> None:
    shown = v8.load(made.run, "BTCUSDT-15m")._repr_html_()
    assert "CRPS / range_paths" in shown and "within 90 %" in shown
    run = v8.Run(made.run)
    assert run.quantiles.loc[("BTCUSDT-15m", "within 50 %"), "bands"] >= 0
    assert "within 90 %" in run._repr_html_()


def last_close(candles: Candles) -> float:
    return float(candles.column("close")[-1])
