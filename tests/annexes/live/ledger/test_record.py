"""The live record: means by hand, nothing late in them, tests that know days, overlap and company."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledger_entries import ISSUER, made_entry, made_score

from v8.annexes.live.entries import Coverage, Score
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.record import MIN_DAYS, LiveRecord, live_board, live_record, require_record
from v8.annexes.live.reporting import record_sentences
from v8.base.errors import ArtifactError
from v8.model.evaluation.significance import diebold_mariano

PLACE = "./tiny"


@pytest.fixture
def fill(ledger: Ledger) -> Callable[..., None]:
    """Write scored forecasts of a series: losses of shape (N, K, T), closes by their number of bars."""

    def write(losses: np.ndarray, numbers: Any = None, delay_s: int = 5, **about: Any) -> None:
        numbers = range(len(losses)) if numbers is None else numbers
        for number, one in zip(numbers, losses, strict=True):
            entry = made_entry(int(number), replace(ISSUER, **about), delay_s=delay_s)
            assert ledger.add(entry)
            pending = ledger.pending(PLACE, entry.issuer.series, entry.issued_for_s)
            ((key, _),) = pending.items()
            ledger.add_score(key, made_score(one, entry))

    return write


def drawn(num: int, *levels: float, seed: int = 1, num_tasks: int = 2) -> np.ndarray:
    """Losses around a level for each forecaster, shape (N, K, T)."""
    noise = np.random.default_rng(seed).uniform(0.5, 1.5, (num, len(levels), num_tasks))
    return noise * np.array(levels)[:, None]


def test_errors_are_means_and_multiples_of_naive_and_of_the_best_baseline(
    ledger: Ledger, fill: Callable[..., None]
) -> None:
    fill(np.array([[[1.0, 4.0], [2.0, 2.0], [4.0, 1.0]], [[2.0, 4.0], [4.0, 2.0], [4.0, 1.0]]]))
    record = live_record(ledger, PLACE)
    (one,) = record.series
    ohlc = one.tasks["ohlc"]
    volatility = one.tasks["volatility"]
    assert ohlc.errors == {"model": 1.5, "naive": 3.0, "har": 4.0}
    assert (ohlc.naive.relative_mae, ohlc.naive.outcome) == (0.5, "too few windows")
    assert (ohlc.best.baseline, ohlc.comparisons) == ("naive", (ohlc.naive,))
    assert (volatility.best.baseline, volatility.best.relative_mae) == ("har", 4.0)
    assert (ohlc.num_scored, ohlc.num_days, one.counts.num_scored) == (2, 1, 2)


def test_all_forecasters_stand_on_the_board_of_the_evaluation(
    ledger: Ledger, fill: Callable[..., None]
) -> None:
    losses = drawn(600, 0.5, 1.0, 2.0)
    fill(losses)
    fill(drawn(600, 1.2, 1.0, 2.0, seed=2), series="ETHUSDT-15m")
    board = live_board(ledger, PLACE).set_index(["task", "method"])
    assert list(board.loc["volatility"].index) == ["model", "naive", "har"]
    model = board.loc[("volatility", "model")]
    # The median over two series, of about .5 and 1.2 of naive's error.
    of_series = [one.tasks["volatility"].naive.relative_mae for one in live_record(ledger, PLACE).series]
    assert model["relative_mae"] == pytest.approx(np.mean(of_series))
    assert (model["num_series"], model["num_windows"], model["win_rate"]) == (2, 1_200, 0.5)
    assert model["low_95"] < model["relative_mae"] < model["high_95"]
    assert list(live_board(ledger, "nowhere")) == []


def test_coverage_is_counted_over_steps_and_columns_of_what_was_in_time(ledger: Ledger) -> None:
    levels = ("model_q5", "model_q25", "model_q75", "model_q97-5", "model_q95")
    issuer = replace(ISSUER, forecasters=("model", "naive", *levels))
    # Eight values of candles and two of volatility; the actual values are 0 to 9 around a model that says
    # 4.5.
    actual = np.arange(10, dtype=np.float32)
    says = dict(zip(issuer.forecasters, (4.5, 4.5, 1, 3, 6, 99, 9), strict=True))
    values = np.repeat(np.array([*says.values()], np.float32)[:, None], 10, axis=1)
    for number, delay_s in ((0, 5), (1, 5), (2, 900)):
        entry = replace(made_entry(number, issuer, delay_s=delay_s), values=values - (delay_s == 900) * 50)
        ledger.add(entry)
        ((key, _),) = ledger.pending(PLACE, issuer.series, entry.issued_for_s).items()
        ledger.add_score(key, Score(entry.due_s, "3" * 64, actual, np.full((7, 2), 0.5)))
    record = live_record(ledger, PLACE)
    # Candles: 1 to 7 of 0 to 7 lie within 1 to 9, and 3 to 6 within 3 to 6; volatility: 8 and 9, and none.
    assert record.tasks["ohlc"].to_json()["coverage"] == {"90 %": 7 / 8, "50 %": 4 / 8}
    assert record.series[0].tasks["volatility"].to_json()["coverage"] == {"90 %": 1.0, "50 %": 0.0}
    assert record.tasks["ohlc"].coverage == Coverage({"90 %": 14, "50 %": 8}, 16)  # the late one is left out
    assert record.series[0].generations[0].tasks["ohlc"].coverage == record.tasks["ohlc"].coverage
    assert record.tasks["ohlc"].relative_crps == 1.0


def test_what_was_written_late_is_counted_apart_and_in_no_error(
    ledger: Ledger, fill: Callable[..., None]
) -> None:
    fill(np.full((3, 3, 2), 1.0))
    fill(np.full((2, 3, 2), 99.0), numbers=[3, 4], delay_s=900)
    record = live_record(ledger, PLACE)
    assert record.series[0].tasks["ohlc"].errors["model"] == 1.0
    assert record.series[0].tasks["ohlc"].num_scored == 3
    assert (record.counts.num_issued, record.counts.num_late, record.counts.num_scored) == (5, 2, 5)
    assert record.counts.num_scored_late == 2
    assert " 5 scored (2 of them late), 2 late " in record_sentences(record)[-1]


def test_fewer_than_a_week_of_days_is_not_yet_known(ledger: Ledger, fill: Callable[..., None]) -> None:
    num_before = (MIN_DAYS - 1) * 96
    fill(drawn(num_before, 1.0, 2.0, 3.0))
    against = live_record(ledger, PLACE).series[0].tasks["ohlc"].naive
    assert (against.p_value, against.is_significant, against.verdict) == (None, False, "too few windows")
    fill(drawn(1, 1.0, 2.0, 3.0), numbers=[num_before])
    against = live_record(ledger, PLACE).series[0].tasks["ohlc"].naive
    assert against.is_significant and against.verdict == "beats naive"


def test_the_test_is_that_of_the_evaluation_with_missed_closes_left_out(
    ledger: Ledger, fill: Callable[..., None]
) -> None:
    numbers = np.flatnonzero(np.random.default_rng(5).uniform(size=900) < 0.9)
    losses = drawn(len(numbers), 1.0, 1.02, 1.5)
    fill(losses, numbers)
    live = live_record(ledger, PLACE).series[0].tasks["ohlc"]
    differences = losses[:, 0, 0] - losses[:, 1, 0]
    expected = diebold_mariano(differences, horizon_bars=2)
    assert live.naive.p_value == pytest.approx(expected.p_value, rel=1e-9)


def test_series_that_share_their_days_are_one_observation_of_them(
    ledger: Ledger, fill: Callable[..., None]
) -> None:
    """Twenty copies of a series say no more than one of them."""
    losses = drawn(8 * 96, 1.0, 1.01, 1.5)
    names = ["BTCUSDT-15m", "ETHUSDT-15m", "SOLUSDT-15m"]
    for scale, name in enumerate(names, start=1):
        fill(scale * losses, series=name)
    record = live_record(ledger, PLACE)
    together = record.tasks["ohlc"]
    alone = record.series[0].tasks["ohlc"]
    assert together.num_scored == 3 * alone.num_scored
    assert together.naive.relative_mae == pytest.approx(alone.naive.relative_mae)
    assert together.naive.p_value == pytest.approx(alone.naive.p_value, rel=1e-6)
    one = live_record(ledger, PLACE, names[2:3])
    assert [each.series for each in one.series] == [names[2]]
    assert one.tasks["ohlc"].naive.p_value == pytest.approx(alone.naive.p_value, rel=1e-6)


def test_timeframes_meet_at_the_closes_they_share(ledger: Ledger, fill: Callable[..., None]) -> None:
    fill(np.full((8, 3, 2), [[1.0], [2.0], [2.0]]), series="BTCUSDT-15m")
    fill(np.full((2, 3, 2), [[30.0], [20.0], [20.0]]), series="BTCUSDT-1h", bar_s=3_600)
    together = live_record(ledger, PLACE).tasks["ohlc"]
    # 8 forecasts at 0.5 of naive and 2 at 1.5 of it.
    assert together.naive.relative_mae == pytest.approx((8 * 0.5 + 2 * 1.5) / 10)
    assert together.num_scored == 10


def test_generations_are_told_apart_and_joined_by_the_baselines_that_all_had(
    ledger: Ledger, fill: Callable[..., None]
) -> None:
    fill(np.full((2, 3, 2), [[1.0], [2.0], [0.5]]))
    newer = {"model_sha256": "5" * 64, "trained_until_s": 1_695_000_000}
    fill(np.full((2, 2, 2), [[3.0], [2.0]]), [2, 3], forecasters=("model", "naive"), **newer)
    (one,) = live_record(ledger, PLACE).series
    assert [each.tasks["ohlc"].naive.model_error for each in one.generations] == [1.0, 3.0]
    assert one.generations[1].issuer.generation == "2023-09-18T01:20:00Z 555555555555"
    assert one.tasks["ohlc"].errors == {"model": 2.0, "naive": 2.0}
    assert one.tasks["ohlc"].naive.outcome == "equals"


def test_a_ledger_without_actual_values_has_a_record_that_says_so(ledger: Ledger) -> None:
    assert live_record(ledger, PLACE) == LiveRecord(PLACE, (), {})
    ledger.add(made_entry())
    record = live_record(ledger, PLACE)
    assert (record.tasks, record.counts.num_pending, record.series[0].tasks) == ({}, 1, {})
    assert record.series[0].newest_s == made_entry().issued_for_s


def test_errors_below_zero_are_nobody_s(ledger: Ledger, fill: Callable[..., None]) -> None:
    fill(np.full((1, 3, 2), -1.0))
    with pytest.raises(ArtifactError, match=r"ledger.sqlite: .*got scores with errors"):
        live_record(ledger, PLACE)


def test_a_market_that_stood_still_has_no_multiple(ledger: Ledger, fill: Callable[..., None]) -> None:
    fill(np.zeros((3, 3, 2)), series="BTCUSDT-15m")
    fill(np.ones((3, 3, 2)), series="ETHUSDT-15m")
    record = live_record(ledger, PLACE)
    assert record.series[0].tasks["ohlc"].naive.relative_mae is None
    assert json.loads(json.dumps(record.to_json(), allow_nan=False))["num_scored"] == 6


def test_live_coverage_leaves_out_what_has_no_width(ledger: Ledger) -> None:
    issuer = replace(ISSUER, forecasters=("model", "naive", "model_q5", "model_q95"))
    actual = np.full(10, 85_825.0, np.float32)
    values = np.repeat(actual[None], 4, axis=0)
    values[2] -= 1.0
    values[3] += 1.0
    # Of the eight values of candles two have an interval of two steps of float32 beside the actual value,
    # and one of the other six has one that does not hold it. Both of volatility have no width at all.
    values[2:, :2] = [[85_825.0625], [85_825.078125]]
    values[2:, 2] += 5.0
    values[2:, 8:] = actual[8:]
    entry = replace(made_entry(0, issuer, delay_s=5), values=values)
    ledger.add(entry)
    ((key, _),) = ledger.pending(PLACE, issuer.series, entry.issued_for_s).items()
    ledger.add_score(key, Score(entry.due_s, "3" * 64, actual, np.full((4, 2), 0.5)))
    tasks = live_record(ledger, PLACE).tasks
    assert tasks["ohlc"].coverage == Coverage({"90 %": 5}, 6)
    assert tasks["volatility"].coverage is None


def test_a_ledger_without_the_place_says_which_it_has_and_how_to_read_them(
    ledger: Ledger, tmp_path: Path
) -> None:
    run = tmp_path / "renamed"
    with pytest.raises(ArtifactError) as empty:
        require_record(ledger, run, ())
    assert empty.value.got == "none of ./renamed, but of no place"
    assert "forecast" not in empty.value.fix  # there is no such folder
    ledger.add(made_entry())
    for folder in (run, tmp_path / "elsewhere" / "tiny"):
        with pytest.raises(ArtifactError) as moved:
            require_record(ledger, folder, ())
        assert moved.value.got.endswith("but of ./tiny")
        assert f"track {tmp_path / 'tiny'} --ledger {ledger.path}`" in moved.value.fix
        assert "forecast" not in moved.value.fix
    run.mkdir()
    with pytest.raises(ArtifactError) as other_run:
        require_record(ledger, run, ())
    assert f"forecast {run} --ledger {ledger.path}`" in other_run.value.fix


def test_a_series_without_forecasts_is_not_to_be_forecast_where_no_model_is(
    ledger: Ledger, tmp_path: Path
) -> None:
    ledger.add(made_entry())
    require_record(ledger, tmp_path / "tiny", ["BTCUSDT-15m"])
    with pytest.raises(ArtifactError) as caught:
        require_record(ledger, tmp_path / "tiny", ["SOLUSDT-15m"])
    assert caught.value.got == "none of SOLUSDT-15m, but of BTCUSDT-15m"
    assert "forecast" not in caught.value.fix
