"""Runs, baselines and files of forecasts on a board: which names make one, and what is on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from v8.annexes.comparison import ComparisonOptions
from v8.annexes.comparison.comparing import is_board, make_board
from v8.api.board import board_sentences, board_tables
from v8.base.errors import ArgumentError, ProfileError


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
