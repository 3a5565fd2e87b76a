"""`python -m v8 publish` and `--publish`: what they print, how they exit, what they never say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from forked import called
from ledger_entries import ISSUER, made_entry
from signs import without_signs
from tiny_profiles import tiny_profile
from typer.testing import CliRunner, Result

from v8.annexes.live.ledger import Ledger
from v8.base.errors import ArtifactError
from v8.cli.app import app
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.publish.hub.staging import stage_run
from v8.runs.run_folder import SeriesState

REPO = "someone/fleet"
_BARS = ("HF_HUB_DISABLE_PROGRESS_BARS",)


def call(*words: str | Path) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def start(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "v8", *map(str, words)],
        env={name: value for name, value in {**os.environ, **env}.items() if name not in _BARS},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.tf
@pytest.mark.process
def test_a_process_publishes_and_prints_where(hub: Any, make_run: Any, tokens: Any) -> None:
    result = start("publish", make_run(), "--repo", REPO)
    assert result.returncode == 0, result.stderr
    assert without_signs(result.stderr) == ""  # no progress bars where there is no terminal
    commit = hub.commits(REPO)[0]
    lines = result.stdout.splitlines()
    assert lines[0].startswith("2 models of aligned for someone/fleet: 13 files, ")
    assert lines[2:6] == [
        "  added:   2 models, 13 files: BTCUSDT-15m, ETHUSDT-1h",
        "  changed: 0 models, 0 files",
        "  kept:    0 models, 1 file",  # .gitattributes
        "  removed: 0 models, 0 files",
    ]
    assert lines[6].startswith("Sent 13 files, ")
    assert lines[7] == f"Published: {hub.url}/{REPO}/commit/{commit.oid}"


@pytest.mark.nightly
@pytest.mark.tf
@pytest.mark.process
def test_a_client_that_is_asked_to_tell_everything_keeps_the_token(
    hub: Any, make_run: Any, tokens: Any
) -> None:
    hub.lose_answer("lfs-put")
    hub.answer("commit", 403)
    env = {**os.environ, "HF_DEBUG": "1", "HF_HUB_VERBOSITY": "debug"}
    result = called("publish", make_run(), "--repo", REPO, env=env)
    assert result.returncode == 5
    assert "Send: " in result.stderr  # the client's own record of every request
    assert tokens.write not in result.stdout + result.stderr


@pytest.mark.tf
def test_private_and_only_skilled_and_partial_arrive(hub: Any, make_run: Any) -> None:
    run = make_run(
        ["BTCUSDT-15m", "ETHUSDT-1h"],
        shares={"ETHUSDT-1h": make_run.LOSING},
        unfinished={"SOLUSDT-1h": SeriesState("pending")},
    )
    assert call("publish", run, "--repo", REPO).exit_code == 5
    result = call("publish", run, "--repo", REPO, "--private", "--only-skilled", "--partial")
    assert result.exit_code == 0, result.stderr
    assert hub.repos[REPO].is_private
    assert "ETHUSDT-1h: held back, because it loses" in result.stdout
    assert "SOLUSDT-1h: held back, because its training" in result.stdout
    assert "1 models of aligned" in result.stdout


@pytest.mark.tf
def test_a_dry_run_shows_the_difference_that_publishing_then_makes(
    hub: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch, tokens: Any
) -> None:
    call("publish", make_run(["BTCUSDT-15m", "ETHUSDT-1h", "SOLUSDT-1h"]), "--repo", REPO)
    run = make_run(["BTCUSDT-15m"], shares={"BTCUSDT-15m": make_run.SHORT})
    size = (run / "BTCUSDT-15m" / "model.keras").stat().st_size
    hub.forget()
    monkeypatch.delenv("HF_TOKEN")
    for words in ((), ("--prune",)):
        dry = call("publish", run, "--repo", REPO, "--dry-run", *words)
        assert dry.exit_code == 0, dry.stderr
        assert f"models/BTCUSDT-15m/model.keras {size:,} " in " ".join(dry.stdout.split()) + " "
    assert {request.method for request in hub.requests} <= {"GET", "HEAD"}
    assert len(hub.commits(REPO)) == 1
    monkeypatch.setenv("HF_TOKEN", tokens.write)
    result = call("publish", run, "--repo", REPO, "--prune")
    assert differences(dry.stdout) == differences(result.stdout)
    assert differences(result.stdout)[-1] == "  removed: 2 models, 8 files: ETHUSDT-1h, SOLUSDT-1h"
    again = call("publish", run, "--repo", REPO, "--dry-run")
    assert again.stdout.splitlines()[-1].startswith(f"{REPO} holds all of it already")
    again = call("publish", run, "--repo", REPO)
    assert again.stdout.splitlines()[-1].startswith("Nothing has changed since ")


@pytest.mark.tf
def test_repositories_of_several_profiles_stand_in_one_collection(hub: Any, make_run: Any) -> None:
    words = ("--collection", "Crypto forecasters")
    for name in ("fleet", "other", "fleet"):
        result = call("publish", make_run(["BTCUSDT-15m"]), "--repo", f"someone/{name}", *words)
        assert result.exit_code == 0, result.stderr
    ((slug, collection),) = hub.collections.items()
    assert result.stdout.splitlines()[-1] == f"It stands in {hub.url}/collections/{slug}"
    assert (collection.title, collection.is_private) == ("Crypto forecasters", False)
    assert collection.items == [("model", "someone/fleet"), ("model", "someone/other")]


@pytest.mark.nightly
@pytest.mark.tf
def test_a_collection_is_made_once_whatever_gets_lost_and_a_dry_run_makes_none(
    hub: Any, make_run: Any
) -> None:
    run = make_run(["BTCUSDT-15m"])
    words = ("--collection", "Mine", "--private")
    dry = call("publish", run, "--repo", REPO, "--dry-run", *words)
    assert dry.stdout.splitlines()[-1].endswith(" collection Mine.")
    assert (hub.collections, hub.repos) == ({}, {})
    hub.lose_answer("collections")
    hub.lose_answer("collection-items")
    hub.answer("collection-items", 429, retry_after="0")
    assert call("publish", run, "--repo", REPO, *words).exit_code == 0
    ((_, collection),) = hub.collections.items()
    assert (collection.items, collection.is_private) == ([("model", REPO)], True)


@pytest.mark.tf
def test_a_collection_that_the_hub_refuses_is_told_and_the_models_are_published(
    hub: Any, make_run: Any, tokens: Any
) -> None:
    result = call("publish", make_run(["BTCUSDT-15m"]), "--repo", REPO, "--collection", "x" * 61)
    assert result.exit_code == 5
    assert re.search(f"error: --collection: .*{REPO}.*; got status 400: ", result.stderr)
    assert "It is published" in result.stderr
    assert tokens.write not in result.stdout + result.stderr
    assert "models/BTCUSDT-15m/model.keras" in hub.files(REPO)


def test_track_publishes_the_record_and_prints_it_as_json_all_the_same(
    hub: Any, tmp_path: Path, tokens: Any
) -> None:
    file = tmp_path / "ledger.sqlite"
    words = ("track", "--repo", "you/models", "--ledger", file, "--publish", "someone/record")
    with Ledger.open_to_write(file) as ledger:
        ledger.add(made_entry(issuer=replace(ISSUER, place="you/models")))
    result = call(*words, "--format", "json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["num_issued"] == 1
    (commit,) = hub.commits("datasets/someone/record")
    assert f"Published: {hub.url}/datasets/someone/record/commit/{commit.oid}" in result.stderr
    assert "  added:   2 files" in result.stderr
    card = hub.files("datasets/someone/record")["README.md"].decode()
    assert f"by the models of [you/models]({hub.url}/you/models)" in card
    again = call(*words)
    assert "Nothing was sent: " in again.stderr
    assert again.stdout.startswith("Live record of you/models")
    assert tokens.write not in result.output + again.output


def test_track_publishes_all_series_or_none(hub: Any) -> None:
    result = call("track", "--repo", "you/models", "--series", "BTCUSDT-15m", "--publish", REPO)
    assert result.exit_code == 2
    assert "error: --publish: " in result.stderr
    assert hub.count() == 0


def differences(output: str) -> list[str]:
    """Return the lines of a difference."""
    starts = ("  added:", "  changed:", "  kept:", "  removed:")
    return [line for line in output.splitlines() if line.startswith(starts)]


@pytest.mark.tf
def test_a_dry_run_refuses_what_publishing_would_refuse(make_run: Any) -> None:
    demo = call("publish", make_run(source="demo"), "--repo", REPO, "--dry-run")
    assert (demo.exit_code, demo.stdout) == (5, "")
    assert "only models of real" in demo.stderr
    name = call("publish", make_run(), "--repo", "fleet", "--dry-run")
    assert name.exit_code == 5
    assert "--repo: is user/name" in name.stderr


@pytest.mark.tf
def test_a_damaged_series_is_held_back_from_what_is_partial_and_the_folder_is_not_asked_for(
    make_run: Any, tmp_path: Path
) -> None:
    run = make_run()
    (run / ".lock").unlink()
    (run / ".lock").mkdir()  # refused to everybody
    (run / "ETHUSDT-1h" / "model.keras").write_bytes(b"cut")
    with pytest.raises(ArtifactError, match=r"model\.keras: must be the file .* with --redo ETHUSDT-1h"):
        stage_run(run, tmp_path / "whole", REPO)
    staged = stage_run(run, tmp_path / "part", REPO, is_partial=True)
    assert staged.held_back == {"ETHUSDT-1h": "its files are damaged"}
    assert not (tmp_path / "part" / "models" / "ETHUSDT-1h").exists()
    assert not any("ETHUSDT-1h" in file.path for file in staged.files)
    assert str(run) not in (tmp_path / "part" / "README.md").read_text("utf-8")


def test_the_main_job_refuses_to_publish_the_demo_market_before_training(hub: Any, tmp_path: Path) -> None:
    result = call("run", "--source", "demo", "--publish", REPO, "--runs", tmp_path / "runs")
    assert result.exit_code == 5
    assert "error: --source demo: " in result.stderr
    assert not (tmp_path / "runs").exists()
    assert hub.count() == 0


def test_the_main_job_checks_the_token_before_training(
    hub: Any, tmp_path: Path, tokens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", tokens.stranger)
    files = ("--source", "files", "--data-dir", tmp_path, "--series", "BTCUSDT-15m")
    result = call("run", *files, "--publish", REPO, "--runs", tmp_path / "runs")
    assert result.exit_code == 5
    assert "; got the token of stranger." in result.stderr
    assert not (tmp_path / "runs").exists()
    assert hub.routes == ["whoami"]


@pytest.mark.process
def test_the_main_job_does_not_publish_when_a_series_failed_and_says_how_to(hub: Any, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = ["--source", "files", "--data-dir", tmp_path, "--series", "BTCUSDT-15m", "--runs", runs]
    result = called("run", *words, "--publish", REPO)
    assert result.returncode == 3  # no candles at all
    said = f": python -m v8 publish {runs / 'frontier'} --repo {REPO} --partial"
    assert result.stderr.splitlines()[-1].endswith(said)
    assert hub.routes == ["whoami"]


@pytest.mark.nightly
@pytest.mark.process
def test_the_main_job_publishes_what_it_trained(hub: Any, tmp_path: Path, tokens: Any) -> None:
    profile = tmp_path / "tiny.yaml"
    tiny = tiny_profile("dense_newest", training={"epochs": 1}, newest_bars=420)
    profile.write_text(yaml.safe_dump(tiny.model_dump(mode="json")))
    candles = open_source("demo").candles(Series.parse("BTCUSDT-15m"), 420)
    candles.to_frame().reset_index().to_csv(tmp_path / "BTCUSDT-15m.csv", index=False)
    words = ["run", "--profile", profile, "--source", "files", "--data-dir", tmp_path, "--workers", "1"]
    words += ["--series", "BTCUSDT-15m", "--runs", tmp_path / "runs", "--publish", REPO]
    result = called(*words, tf=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"Published: {hub.url}/{REPO}/commit/{hub.commits(REPO)[0].oid}" in result.stdout
    assert tokens.write not in result.stdout + result.stderr
    run = tmp_path / "runs" / "tiny"
    for name in ("model.keras", "metadata.json", "history.csv", "README.md"):
        assert hub.files(REPO)[f"models/BTCUSDT-15m/{name}"] == (run / "BTCUSDT-15m" / name).read_bytes()
    assert call("publish", run, "--repo", REPO).stdout.splitlines()[-1].startswith("Nothing has changed")
