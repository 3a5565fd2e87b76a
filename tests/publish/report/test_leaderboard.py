"""Leaderboard: honest words, a stated order, one CSV for every profile; what it reads and refuses."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from evaluating import let_baselines_err
from hypothesis import given, settings
from hypothesis import strategies as st

from v8.base.errors import ArtifactError
from v8.model.evaluation.leaderboard import (
    LeaderboardRow,
    Verdict,
    compared,
    median,
    rank_results,
    read_history,
    read_result,
    write_leaderboard_csv,
)
from v8.model.evaluation.significance import BaselineComparison
from v8.runs.run_folder import read_run


def leaderboard(metadata: list[dict[str, Any]]) -> list[LeaderboardRow]:
    return rank_results(map(read_result, metadata))


def outcomes(rows: list[LeaderboardRow], task: str, name: str) -> Counter[str]:
    return Counter(one.outcome for one in compared(rows)[task, name].values())


def median_multiple(rows: list[LeaderboardRow], task: str, name: str) -> float | None:
    return median(one.relative_mae for one in compared(rows)[task, name].values())


def test_a_row_says_how_the_errors_compare_with_naive(make_metadata) -> None:
    # A quarter of the way from naive to actual values leaves three quarters of the naive error, for every
    # task.
    (row,) = leaderboard([make_metadata(share=0.25)])
    for score in row.tasks.values():
        assert score.naive.relative_mae == pytest.approx(0.75)
        assert score.naive.skill == pytest.approx(0.25)
        # Six windows are too few to tell more than that.
        assert score.naive.verdict == "too few windows"
        for against in (score.naive, score.best):
            assert (against.p_value, against.corrected_p_value, against.is_significant) == (None, None, False)
    assert list(row.tasks) == ["ohlc", "bands", "volatility"]
    assert (row.best_epoch, row.epochs_run, row.total_seconds) == (4, 9, 62.0)
    assert row.hit_rate == 1.0  # towards the actual values in every window


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.5, "beats naive"), (0.0, "equals naive"), (-0.1, "loses to naive")]
)
def test_verdicts_are_honest_words(make_metadata, share: float, verdict: str) -> None:
    (row,) = leaderboard([make_metadata(share=share, num_windows=240)])
    assert row.tasks["ohlc"].naive.verdict == verdict


@pytest.mark.parametrize("ours", [0.9, 1.1])
def test_what_many_looks_may_have_found_by_chance_is_no_real_difference(ours: float) -> None:
    alone = BaselineComparison("har", ours, 1.0, 0.04, 0.04)
    among_many = BaselineComparison("har", ours, 1.0, 0.04, 0.06)
    assert alone.verdict == ("beats har" if ours < 1 else "loses to har")
    assert among_many.verdict.startswith("not significantly")
    assert (alone.is_significant, among_many.is_significant) == (True, False)
    assert Verdict(among_many, among_many).lost_to == []


@given(order=st.permutations([("A", 0.1), ("B", 0.9), ("C", -0.5), ("D", 0.1)]))
@settings(max_examples=24, deadline=None)
def test_the_smallest_error_comes_first_and_ties_go_by_name(make_metadata, order: list) -> None:
    rows = leaderboard([make_metadata(f"{name}USDT-1h", share=share) for name, share in order])
    assert [row.series[0] for row in rows] == ["B", "A", "D", "C"]


def test_p_values_are_corrected_per_task_over_all_series_of_the_leaderboard(make_metadata) -> None:
    shares = {"A": 0.1, "B": -0.1, "C": 0.002, "D": 0.0}
    tasks = {name: ("ohlc",) if name == "B" else ("ohlc", "bands") for name in shares}
    rows = leaderboard(
        [
            make_metadata(f"{name}USDT-1h", share=share, tasks=tasks[name], num_windows=240, seed=number)
            for number, (name, share) in enumerate(shares.items())
        ]
    )
    for task, num_tests in (("ohlc", 3), ("bands", 2)):  # D repeats naive, which is no test
        scores = [row.tasks[task] for row in rows if task in row.tasks]
        known = [score.naive for score in scores if score.naive.p_value is not None]
        assert len(known) == num_tests
        expected = scipy.stats.false_discovery_control([score.p_value for score in known])
        assert [score.corrected_p_value for score in known] == pytest.approx(list(expected), rel=1e-12)
    by_name = {row.series[0]: row.tasks["ohlc"].naive for row in rows}
    assert by_name["A"].p_value < by_name["A"].corrected_p_value  # 3 tests for one
    assert by_name["A"].is_significant
    assert by_name["B"].is_significant  # significantly worse, as its verdict says
    assert by_name["B"].verdict == "loses to naive"
    assert by_name["D"].corrected_p_value is None
    assert outcomes(rows, "ohlc", "naive") == {"beats": 2, "loses to": 1, "equals": 1}


def test_every_score_stands_beside_naive_and_the_best_baseline(make_metadata) -> None:
    # Errors over naive's per series, a: 0.9, 0.7, 0.7 and b: 0.6, 0.8, 0.8. The medians choose a for all.
    metadata = [make_metadata(f"{name}USDT-1h", share=0.25, num_windows=240) for name in "ABC"]
    for content, a, b in zip(metadata, (0.9, 0.7, 0.7), (0.6, 0.8, 0.8), strict=True):
        let_baselines_err(content, {"last_close": a, "offset": b})
    rows = leaderboard(metadata)
    scores = [row.tasks["bands"] for row in rows]
    assert [score.best.name for score in scores] == ["last_close"] * 3
    assert [score.naive.relative_mae for score in scores] == pytest.approx([0.75] * 3)
    assert [score.best.relative_mae for score in scores] == pytest.approx(
        [0.75 / 0.9, 0.75 / 0.7, 0.75 / 0.7]
    )
    real = [score.best.is_significant for score in scores]
    words = [
        one if is_real else "not significantly different from"
        for one, is_real in zip(("beats", "loses to", "loses to"), real, strict=True)
    ]
    assert [score.best.verdict for score in scores] == [f"{one} last_close" for one in words]
    assert [score.lost_to for score in scores] == [
        ["last_close"] if one == "loses to" else [] for one in words
    ]
    assert [name for task, name in compared(rows) if task == "bands"] == ["naive", "last_close"]
    assert outcomes(rows, "bands", "naive") == {"beats": 3}
    assert outcomes(rows, "bands", "last_close") == Counter(words)
    assert median_multiple(rows, "bands", "last_close") == pytest.approx(0.75 / 0.7)


def test_where_no_baseline_is_better_than_naive_it_alone_is_shown(make_metadata) -> None:
    content = make_metadata(share=0.25)
    let_baselines_err(content, {"last_close": 1.0, "offset": 1.2})  # a tie goes to naive
    (row,) = leaderboard([content])
    assert row.tasks["bands"].best.baseline == "naive"
    assert [one.name for one in row.tasks["bands"].comparisons] == ["naive"]


def test_a_baseline_that_some_series_lack_is_not_the_best_of_all(make_metadata) -> None:
    metadata = [make_metadata("AUSDT-1h"), make_metadata("BUSDT-1h")]
    for content in metadata:
        let_baselines_err(content, {"last_close": 0.9, "offset": 0.5})
    for section in metadata[1]["evaluation"]["tasks"].values():
        del section["errors"]["offset"], section["significance"]["offset"]
    assert [row.tasks["bands"].best.name for row in leaderboard(metadata)] == ["last_close"] * 2


def test_the_csv_has_one_line_per_series_and_names_its_columns(make_metadata, tmp_path: Path) -> None:
    path = tmp_path / "leaderboard.csv"
    write_leaderboard_csv(
        path, leaderboard([make_metadata("AUSDT-1h", share=0.25, source="demo", num_windows=240)])
    )
    (line,) = csv.DictReader(path.read_text("utf-8").splitlines())
    tasks = ("range", "ohlc", "bands", "volatility")
    naive = ("relative_mae", "mae_skill", "verdict", "mae_p_value", "mae_corrected_p_value")
    best = (
        *("best_baseline", "relative_mae_to_best", "mae_skill_against_best", "verdict_against_best"),
        *("mae_p_value_against_best", "mae_corrected_p_value_against_best"),
    )
    assert list(line) == [
        *("series", "source"),
        *(f"{task}_{name}" for task in tasks for name in naive),
        *("direction_hit_rate_step_1", "direction_low_95", "direction_high_95"),
        *("best_epoch", "epochs_run", "seconds"),
        *(f"{task}_{name}" for task in tasks for name in best),
    ]
    assert (line["series"], line["source"], line["seconds"]) == ("AUSDT-1h", "demo", "62.0")
    assert float(line["ohlc_relative_mae"]) == pytest.approx(0.75)
    assert line["volatility_verdict"] == "beats naive"


def test_tasks_and_numbers_that_do_not_exist_are_empty_cells(make_metadata, tmp_path: Path) -> None:
    path = tmp_path / "leaderboard.csv"
    write_leaderboard_csv(path, leaderboard([make_metadata(share=0.0, tasks=("ohlc",))]))
    (line,) = csv.DictReader(path.read_text("utf-8").splitlines())
    assert (line["bands_verdict"], line["volatility_mae_skill"], line["direction_hit_rate_step_1"]) == (
        "",
        "",
        "",
    )
    assert line["ohlc_verdict"] == "equals naive"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("is_demo_market", "boolean"),
        ("candles.report", "dictionary"),
        ("training.best_epoch", "integer"),
        ("seconds", "dictionary"),
    ],
)
@pytest.mark.parametrize("is_missing", [True, False])
def test_a_key_that_is_missing_or_of_another_kind_is_named(
    make_metadata, path: str, kind: str, is_missing: bool
) -> None:
    content = make_metadata("ETHUSDT-1h")
    *parents, last = path.split(".")
    section = content
    for parent in parents:
        section = section[parent]
    if is_missing:
        del section[last]
    else:
        section[last] = 0.5
    said = "field required; got no such key" if is_missing else rf"must be a valid {kind}; got 0\.5"
    pattern = rf"metadata of ETHUSDT-1h, key {path}: {said}\."
    with pytest.raises(ArtifactError, match=pattern):
        read_result(content)


def test_metadata_without_an_evaluation_are_refused_and_so_is_what_is_none(make_metadata) -> None:
    content = make_metadata("ETHUSDT-1h")
    content["evaluation"] = 0.5
    with pytest.raises(ArtifactError, match=r"metadata of ETHUSDT-1h, key evaluation: .*; got format None\."):
        read_result(content)
    del content["evaluation"]
    with pytest.raises(ArtifactError, match=r"ETHUSDT-1h, key evaluation: .*got no such key"):
        read_result(content)


def test_an_evaluation_that_disagrees_with_itself_is_refused_by_the_name_of_its_series(make_metadata) -> None:
    content = make_metadata("ETHUSDT-1h")
    content["evaluation"]["tasks"]["ohlc"]["significance"]["offset"]["mean_difference"] = 0.5
    with pytest.raises(ArtifactError, match=r"metadata of ETHUSDT-1h, key evaluation: .*do not follow"):
        read_result(content)


def test_a_failed_series_without_a_reason_is_refused(make_run, tmp_path: Path) -> None:
    run = make_run()
    run["series"]["LUNAUSDT-1h"] = {"status": "failed", "reason": None}
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(ArtifactError, match=r"run\.json, key series\.LUNAUSDT-1h: .*have a reason"):
        read_run(tmp_path)


def test_a_history_is_read_as_numbers(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    file.write_text("epoch,train_loss,validation_loss,is_best\n1,0.5,0.6,True\n2,0.4,0.55,True\n")
    assert read_history(file) == [
        {"epoch": 1.0, "train_loss": 0.5, "validation_loss": 0.6},
        {"epoch": 2.0, "train_loss": 0.4, "validation_loss": 0.55},
    ]


@pytest.mark.parametrize(
    ("content", "got"),
    [
        ("epoch,train_loss\n1,0.5\n", "KeyError: 'validation_loss'"),
        ("epoch,train_loss,validation_loss\n1,0.5,nan\n", "a number .* finite"),
        ("epoch,train_loss,validation_loss\n1,0.5\n", "TypeError"),
        ("epoch,train_loss,validation_loss\n1,0.5,low\n", "ValueError"),
    ],
)
def test_a_damaged_history_is_refused(tmp_path: Path, content: str, got: str) -> None:
    file = tmp_path / "history.csv"
    file.write_text(content)
    with pytest.raises(ArtifactError, match=rf"history\.csv: .*got {got}"):
        read_history(file)
