"""Results: what reports need of metadata, run records and histories, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from v8.base.errors import ArtifactError
from v8.model.evaluation.leaderboard import read_history, read_result
from v8.runs.run_folder import RunRecord, read_run


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("is_demo_market", "boolean"),
        ("candles.source", "string"),
        ("candles.report", "dictionary"),
        ("split", "dictionary"),
        ("training.best_epoch", "integer"),
        ("training.epochs_run", "integer"),
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


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "1", None, True])
def test_a_stage_that_took_no_number_of_seconds_is_refused(make_metadata, bad: object) -> None:
    content = make_metadata()
    content["seconds"]["training"] = bad
    rule = r"must be (a valid number|a finite number|greater than or equal to 0)"
    with pytest.raises(ArtifactError, match=rf"key seconds\.training: {rule}; got {bad!r}\."):
        read_result(content)


def test_an_evaluation_that_disagrees_with_itself_is_refused_by_the_name_of_its_series(make_metadata) -> None:
    content = make_metadata("ETHUSDT-1h")
    content["evaluation"]["tasks"]["ohlc"]["significance"]["offset"]["mean_difference"] = 0.5
    with pytest.raises(ArtifactError, match=r"metadata of ETHUSDT-1h, key evaluation: .*do not follow"):
        read_result(content)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[dict[str, Any]], RunRecord]:
    def read(run: dict[str, Any]) -> RunRecord:
        (tmp_path / "run.json").write_text(json.dumps(run))
        return read_run(tmp_path)

    return read


@pytest.mark.parametrize(
    "key", ["profile", "profile_digest", "source", "is_publishable", "series", "versions"]
)
def test_a_run_without_a_key_is_refused(make_run, read, key: str) -> None:
    run = make_run()
    del run[key]
    with pytest.raises(ArtifactError, match=rf"run\.json, key {key}.*got no such key"):
        read(run)


def test_a_failed_series_without_a_reason_is_refused(make_run, read) -> None:
    run = make_run()
    run["series"]["LUNAUSDT-1h"] = {"status": "failed", "reason": None}
    with pytest.raises(ArtifactError, match=r"run\.json, key series\.LUNAUSDT-1h: .*have a reason"):
        read(run)


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
