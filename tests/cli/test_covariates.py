"""Covariates on the command line: a table that lacks is one sentence, at once; features are explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from v8.base.errors import DataError
from v8.cli.app import app
from v8.profile.profile import load_profile

FUNDING = {
    "file": "funding.csv",
    "time": "time",
    "columns": ["funding_rate"],
    "available_after_s": 60,
    "max_age_s": 43_200,
}


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("V8_TABLES", raising=False)
    content = load_profile("aligned").model_dump(mode="json")
    content["features"] += ["BTCUSDT.range_20", "BTCUSDT.close", "csv.funding_rate"]
    Path("mine.yaml").write_text(yaml.safe_dump(content | {"name": "mine", "covariates": [FUNDING]}))
    return "mine.yaml"


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--profile"],
        ["run", "--dry-run", "--profile"],
        ["backtest", "--profile"],
        ["compare-profiles", "aligned"],
    ],
    ids=" ".join,
)
def test_a_table_that_lacks_is_one_sentence_before_anything_is_done(words: list[str], profile: str) -> None:
    result = CliRunner().invoke(app, [*words, profile, "--source", "demo"])
    assert (result.exit_code, result.stdout) == (DataError.exit_code, "")
    (told,) = result.stderr.splitlines()
    assert re.search(r"funding\.csv: .*; got No such file .* profile's covariates .* --tables FOLDER", told)
    assert [file.name for file in Path().iterdir()] == [profile]


def test_features_of_a_profile_are_explained_with_where_they_come_from(profile: str) -> None:
    printed = CliRunner().invoke(app, ["features", "--profile", profile]).output
    # A range over 20 bars is in multiples of one over 240, so it needs 239 candles before its first.
    assert re.search(r"BTCUSDT\.range_20 +BTCUSDT +239 +range_20 of .* BTCUSDT", printed)
    assert re.search(r"csv\.funding_rate +funding\.csv +0 +funding_rate, ", printed)
    assert re.search(r"\nclose +the series +0 +last traded price", printed)
    assert re.search("funding.csv: .* 60 s ", printed)
