"""From the run that trained a model to the user who pulled it: the same numbers, to the bit."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from forked import called
from outputs import write_outputs
from typer.testing import CliRunner

import v8
from v8.base.errors import ArtifactError, PullError
from v8.cli.app import app
from v8.forecaster.forecaster import Forecaster
from v8.publish.hub.staging import stage_run

pytestmark = pytest.mark.tf

REPO = "someone/tiny"
SERIES = "BTCUSDT-15m"


def newest(hub: Any) -> str:
    return str(hub.commits(REPO)[-1].oid)


@pytest.mark.process
def test_pull_then_predict_gives_the_run_s_numbers_in_another_process(
    published_tiny: Any, trained_run: Any, tmp_path: Path, tokens: Any
) -> None:
    pulled = CliRunner().invoke(app, ["pull", "--repo", REPO, "--series", SERIES])
    assert pulled.exit_code == 0, pulled.stderr
    assert f"{REPO} at {newest(published_tiny)}, profile tiny" in pulled.stdout
    assert re.search("4 files .* sha256; 4 .*downloaded", pulled.stdout)
    assert f'v8.load("{REPO}", "{SERIES}", revision="{newest(published_tiny)}")' in pulled.stdout

    published_tiny.stop()
    files = ["--source", "files", "--data-dir", str(trained_run.candles_dir), "--bars", "700", "--allow-old"]
    words = ("predict", "--repo", REPO, "--series", SERIES, *files, "--format", "json")
    predicted = called(*words, cwd=tmp_path, env={**os.environ, "HF_HUB_OFFLINE": "1"}, tf=True)
    assert predicted.returncode == 0, predicted.stderr
    printed = json.loads(predicted.stdout)
    assert printed["model"]["revision"] == newest(published_tiny)
    ours = Forecaster.load(trained_run.folder).predict(trained_run.candles)
    theirs = pd.DataFrame(printed["forecast"]).set_index("open_time")
    assert list(theirs.index) == [f"2025-01-01T00:{minute}:00Z" for minute in ("00", "15", "30")]
    np.testing.assert_array_equal(theirs[list(ours.columns)].to_numpy(), ours.to_numpy())

    everything = pulled.stdout + pulled.stderr + predicted.stdout + predicted.stderr
    everything += "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert tokens.write not in everything


def test_a_run_folder_is_loaded_by_the_same_call(trained_run: Any) -> None:
    alone = v8.load(trained_run.folder)
    named = v8.load(str(trained_run.path), SERIES)
    assert (alone.revision, str(alone.series), str(named.series)) == (None, SERIES, SERIES)
    assert str(v8.load(trained_run.path).series) == SERIES


def test_a_run_s_folder_with_the_model_of_another_series_is_refused(trained_run: Any, tmp_path: Path) -> None:
    """At 4c79749 it gave one coin's forecast, and a line of the leaderboard, under another's name."""
    run = tmp_path / "run"
    shutil.copytree(trained_run.path, run)
    (run / SERIES).rename(run / "SOLUSDT-15m")
    record = json.loads((run / "run.json").read_text())
    record["series"]["SOLUSDT-15m"] = record["series"].pop(SERIES)
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(ArtifactError, match=r"model of SOLUSDT-15m; got .* BTCUSDT-15m"):
        v8.load(run, "SOLUSDT-15m")
    for use in (write_outputs, lambda path: stage_run(path, tmp_path / "staged", REPO)):
        with pytest.raises(ArtifactError, match=r"must be of SOLUSDT-15m, .*; got 'BTCUSDT"):
            use(run)


@pytest.mark.parametrize(
    ("source", "series", "revision", "match"),
    [
        (".", "BTCUSDT-1h", None, r"got 'BTCUSDT-1h' of BTCUSDT-15m\. Did you"),
        (SERIES, "ETHUSDT-1h", None, r"model of ETHUSDT-1h; got .* BTCUSDT-15m"),
        (".", SERIES, "main", r"a revision belongs .*; got the revision 'main'"),
        ("../../candles", SERIES, None, r"run\.json; got a folder without"),
        ("nowhere/at/all", SERIES, None, r"got no such folder"),
    ],
)
def test_a_folder_that_does_not_hold_the_series_is_refused(
    source: str, series: str, revision: str | None, match: str, trained_run: Any
) -> None:
    with pytest.raises(ArtifactError, match=match):
        v8.load(trained_run.path / source, series, revision=revision)


def test_a_name_that_is_no_folder_is_looked_for_on_the_hub(published_tiny: Any) -> None:
    with pytest.raises(PullError, match=r"you/aligned: .*if a folder"):
        v8.load("you/aligned", SERIES)


def test_a_run_that_is_not_there_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError) as caught:
        v8.load("runs/nothing", SERIES)
    assert (caught.value.where, caught.value.got) == ("runs/nothing", "no such folder")
