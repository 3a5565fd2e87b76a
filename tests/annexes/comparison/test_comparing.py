"""Profiles measured in real processes on the demo market: equal candles, fair turns; runs on a board."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from forked import called
from tiny_profiles import tiny_profile
from typer.testing import CliRunner

from v8.annexes.comparison import ComparisonOptions
from v8.annexes.comparison.comparing import check_places, make_board, profile_order
from v8.annexes.comparison.places import is_board
from v8.api.board import board_sentences, board_tables
from v8.base.errors import ArgumentError, ArtifactError, ProfileError
from v8.cli.app import app
from v8.model.evaluation.evaluation import Evaluation

REPOSITORY = Path(__file__).parents[3]
BARS = 700


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two small profiles and one whose windows are longer than the test span."""
    folder = tmp_path_factory.mktemp("comparison")
    network = {"family": "dense_newest", "dense_units": (4,), "dropout": 0.0}
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "wide": {"network": {**network, "dense_units": (8,)}},
        "long": {"lookback_bars": 300},
    }
    for name, changes in kinds.items():
        profile = tiny_profile("dense_newest", **{"network": network, **changes, "name": name})
        content = json.loads(profile.model_dump_json())
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return folder


def words(place: Path, *profiles: str, out: str = "out", bars: int = BARS) -> list[str]:
    files = [str(place / f"{name}.yaml") for name in profiles]
    market = ["--source", "demo", "--bars", str(bars), "--series", "BTCUSDT-15m", "--out", str(place / out)]
    return ["compare-profiles", "--profiles", *files, *market]


def environment(place: Path, **variables: str) -> dict[str, str]:
    return {**os.environ, "V8_HOME": str(place / "home"), "CUDA_VISIBLE_DEVICES": "-1", **variables}


def call(place: Path, arguments: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return called(*arguments, cwd=REPOSITORY, env=environment(place, **variables), tf=not variables)


@pytest.fixture(scope="module")
def done(place: Path) -> subprocess.CompletedProcess[str]:
    return call(place, words(place, "plain", "long", "wide"))


@pytest.fixture(scope="module")
def content(place: Path, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return json.loads((place / "out" / "compare.json").read_text("utf-8"))


@pytest.mark.nightly
@pytest.mark.process
def test_a_profile_that_fails_is_named_and_the_others_finish(
    done: subprocess.CompletedProcess[str], content: dict[str, Any]
) -> None:
    assert done.returncode == 4, done.stderr
    assert list(content["failures"]) == ["long"]
    assert content["failures"]["long"].startswith("BTCUSDT-15m: ")
    assert "Failed profiles" in done.stdout
    assert list(content["figures"]) == ["plain", "wide"]
    assert "error" not in done.stderr


@pytest.mark.nightly
@pytest.mark.process
def test_the_baseline_is_the_last_profile_and_the_budget_is_said(
    done: subprocess.CompletedProcess[str], content: dict[str, Any]
) -> None:
    assert content["baseline"] == "wide"
    assert content["ratios"]["wide"]["epoch_s"]["median"] == 1.0
    # One layer of 8 instead of 4 units, and heads of as many inputs: more parameters.
    assert content["ratios"]["plain"]["num_parameters"]["median"] < 1
    assert "Budget: at most 1 epoch on 1 series (BTCUSDT-15m), 700 newest candles each." in done.stdout
    assert "Simulated market" in done.stdout
    assert "BTCUSDT-15m: 700 candles, read in " in done.stdout
    assert list(content["download_s"]) == content["series"] == ["BTCUSDT-15m"]


@pytest.mark.nightly
@pytest.mark.process
def test_a_measurement_leaves_a_run_like_any_other(place: Path, content: dict[str, Any]) -> None:
    for one in content["measurements"]:
        run = place / "out" / "runs" / one["profile"]
        metadata = json.loads((run / "BTCUSDT-15m" / "metadata.json").read_text("utf-8"))
        for task, multiple in one["models"][0]["relative_mae"].items():
            evaluation = Evaluation.from_json(metadata["evaluation"])
            # Losses of windows are kept in single precision.
            assert multiple == pytest.approx(evaluation.relative_error(task), rel=1e-6)
            of_best = evaluation.relative_error(task, baseline=evaluation.best_baseline(task))
            assert one["models"][0]["relative_mae_to_best"][task] == pytest.approx(of_best, rel=1e-6)
            assert one["models"][0]["best_baseline"][task] == evaluation.best_baseline(task)
            assert one["models"][0]["num_windows"] == evaluation.num_windows
            assert one["models"][0]["num_shared_windows"] == evaluation.num_windows
        assert metadata["num_parameters"] == one["num_parameters"]
    runs = [
        json.loads((place / "out" / "runs" / name / "run.json").read_text()) for name in ("plain", "wide")
    ]
    digests = {run["series"]["BTCUSDT-15m"]["candles"]["digest"] for run in runs}
    assert len(digests) == 1  # the same candles


@pytest.mark.nightly
@pytest.mark.process
def test_runs_that_are_there_are_compared_by_what_their_folders_tell(
    place: Path, content: dict[str, Any]
) -> None:
    runs = [str(place / "out" / "runs" / name) for name in ("plain", "wide")]
    program = ["compare-profiles"]
    again = call(place, [*program, *runs, "--out", str(place / "again")])
    assert again.returncode == 0, again.stderr
    found = json.loads((place / "again" / "compare.json").read_text("utf-8"))
    assert (found["series"], found["baseline"], found["failures"]) == (["BTCUSDT-15m"], "wide", {})
    # What a process measured beside its run is in no folder: a dash, never a guess.
    lost = dict.fromkeys(("import_s", "features_warm_s", "ceiling_pct", "projected_40_s"))
    for name, figures in content["figures"].items():
        assert {**figures, **lost} == {**found["figures"][name], **lost}
    mixed = call(place, [*program, runs[0], "aligned", "--out", str(place / "mixed")])
    assert mixed.returncode == 2
    assert "got aligned among 2 names" in mixed.stderr
    board = call(place, [*program, runs[0], "ewma", "--out", str(place / "board")])
    assert board.returncode == 0, board.stderr
    with (place / "board" / "table.csv").open(encoding="utf-8", newline="") as file:
        methods = {row["method"] for row in csv.DictReader(file)}
    assert {runs[0], "ewma", "naive"} <= methods
    again = call(place, [*program, runs[0], "ewma", "--epochs", "2", "--out", str(place / "board")])
    assert again.returncode == 2 and "--epochs" in again.stderr
    twin = shutil.copytree(runs[0], place / "twin")
    twins = call(place, [*program, runs[0], str(twin), "--out", str(place / "twins")])
    assert twins.returncode == 0, twins.stderr
    found = json.loads((place / "twins" / "compare.json").read_text("utf-8"))
    assert list(found["figures"]) == [runs[0], str(twin)]
    assert found["figures"][runs[0]] == found["figures"][str(twin)]
    same = call(place, [*program, runs[0], runs[0], "--out", str(place / "same")])
    assert same.returncode == 2
    assert "compares different runs" in same.stderr
    other = str(place / "out" / "runs" / "long")
    nothing = call(place, [*program, runs[0], other, "--out", str(place / "nothing")])
    assert nothing.returncode == 3, nothing.stderr
    assert "finished the same series" in nothing.stderr


@pytest.mark.process
def test_a_process_that_dies_is_named_with_its_last_words(place: Path) -> None:
    dead = call(place, words(place, "plain", out="dead"), KERAS_BACKEND="nonsense")
    assert dead.returncode == 4
    failures = json.loads((place / "dead" / "compare.json").read_text("utf-8"))["failures"]
    assert failures["plain"].partition("; ")[0].endswith("exit code 1")
    assert "nonsense" in failures["plain"]


@pytest.mark.process
def test_ctrl_c_ends_the_measuring_process_too(place: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "v8", *words(place, "plain", out="stopped")],
        cwd=REPOSITORY,
        env=environment(place),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    while not process.stdout.readline().startswith("repeat 1"):
        assert process.poll() is None
    while not (children := children_of(process.pid)) or not has_begun(*children):
        assert process.poll() is None
        time.sleep(0.05)
    (child,) = children
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not Path(f"/proc/{child}").exists()
    assert not (place / "stopped" / "compare.json").exists()


def has_begun(child: int) -> bool:
    """Whether the process has come so far that it starts TensorFlow."""
    return "tensorflow" in Path(f"/proc/{child}/maps").read_text()


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        (["--full", "--epochs", "3"], "error: --full: .*; got --epochs 3 "),
        (["--baseline-profile", "v7"], r"error: --baseline-profile: .*\(plain\)"),
        (["--epochs", "0"], "--epochs: .* at least 1"),
        (["--device", "tpu"], "--device: .*auto, cpu, gpu"),
    ],
)
def test_a_usage_error_is_one_line_and_exits_2(place: Path, flags: list[str], match: str) -> None:
    wrong = CliRunner().invoke(app, [*words(place, "plain", out="wrong"), *flags])
    assert wrong.exit_code == 2
    assert re.search(match, wrong.stderr)
    assert len(wrong.stderr.splitlines()) == 1
    assert not (place / "wrong").exists()


def test_two_profiles_of_one_name_are_refused(place: Path) -> None:
    wrong = CliRunner().invoke(app, words(place, "plain", "plain", out="wrong"))
    assert wrong.exit_code == 2
    assert "; got plain 2 times" in wrong.stderr


def test_without_names_nothing_is_compared() -> None:
    for options in (ComparisonOptions(), ComparisonOptions(folds=2)):
        with pytest.raises(ProfileError) as error:
            check_places(options)
        assert (error.value.where, error.value.got) == ("param:profiles", "none")


def test_each_repeat_starts_with_another_profile() -> None:
    profiles = [tiny_profile(name=name) for name in "abc"]
    orders = ["".join(profile.name for profile in profile_order(profiles, repeat)) for repeat in (1, 2, 3, 4)]
    assert orders == ["abc", "bca", "cab", "abc"]


@pytest.mark.nightly
@pytest.mark.process
def test_profiles_are_compared_over_folds_on_the_windows_that_all_share(place: Path) -> None:
    folds = [*words(place, "plain", "wide", out="folds"), "--epochs", "1", "--folds", "2"]
    compared = called(*folds, cwd=REPOSITORY, env=environment(place, COLUMNS="200"), tf=True)
    assert compared.returncode == 0, compared.stderr
    table = compared.stdout.split("2 profiles over 2 folds")[1]
    for name in ("plain", "wide"):
        pools = [line for line in table.splitlines() if line.startswith(f"{name} ") and "all folds" in line]
        assert len(pools) == 3  # a line a task, each with the interval or a dash
        assert (place / "folds" / name / "backtest.html").is_file()
    assert "windows that all share" in compared.stdout


def test_profiles_alone_and_runs_alone_make_no_board(tmp_path: Path) -> None:
    run = str(tmp_path)
    (tmp_path / "run.json").touch()
    file = tmp_path / "theirs.csv"
    file.write_text("unique_id,ds,cutoff,mine\n")
    assert not is_board([]) and not is_board([run]) and not is_board([run, run])
    assert not is_board(["frontier", "range_paths"]) and not is_board(["mine.yaml"])
    assert is_board([run, "range_paths"]) and is_board(["ewma", "har"]) and is_board([str(file)])
    for names in ([run, "aligned"], ["ewma", "frontier"]):
        with pytest.raises(ProfileError) as refused:
            is_board(names)
        assert refused.value.got == f"{names[1]} among 2 names"
    # v8.compare: at 420b5d5b it left out what is no run, and compared the run with itself.
    for other, got in (("aligned", "aligned among 2 names"), ("frontierr", "'frontierr'")):
        with pytest.raises(ProfileError) as refused:
            check_places(ComparisonOptions(profiles=(run, other), out=tmp_path / "out"))
        assert got in refused.value.got
    (tmp_path / "folds" / "fold-1").mkdir(parents=True)
    (tmp_path / "folds" / "fold-1" / "run.json").touch()
    for folder, met in (("folds", "fold-1"), ("gone", "no such folder")):
        for named in ([run, str(tmp_path / folder)], [str(tmp_path / folder)]):
            for check in (is_board, lambda names: check_places(ComparisonOptions(profiles=tuple(names)))):
                with pytest.raises(ArtifactError) as no_run:
                    check(named)
                assert met in no_run.value.got
    with pytest.raises(ProfileError) as missing:
        is_board([run, str(tmp_path / "gone.csv")])
    assert missing.value.got.endswith("gone.csv")


@pytest.mark.tf
def test_a_run_a_baseline_and_a_file_are_put_on_one_board(trained_run: Any, tmp_path: Path) -> None:
    run = str(trained_run.path)
    options = ComparisonOptions(
        profiles=(run, "ewma"), data_dir=trained_run.candles_dir, out=tmp_path / "first"
    )
    board = make_board(options)
    file = tmp_path / "theirs.csv"
    theirs = board.forecasts[["unique_id", "ds", "cutoff", "column", "ewma"]]
    theirs.to_csv(file, index=False)
    both = make_board(options.model_copy(update={"profiles": (run, str(file)), "out": tmp_path / "second"}))
    ratios = both.table.set_index(["task", "method"])["relative_mae"]
    for task, ratio in board.table[board.table["method"] == "ewma"].set_index("task")["relative_mae"].items():
        assert ratios[task, str(file)] == pytest.approx(ratio)
    shown = list(board_tables(both.table))
    assert len(shown) == len(list(board_sentences(both.table))) == len(trained_run.profile.tasks)
    assert {str(row[0]).removesuffix(" ●") for row in shown[0].rows} >= {run, str(file)}
    with pytest.raises(ProfileError):
        make_board(options.model_copy(update={"epochs": 2}))
    with pytest.raises(ArgumentError):
        make_board(options.model_copy(update={"out": tmp_path}))
