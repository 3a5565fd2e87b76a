"""A series that the source has never heard of does not enter a run, and `--drop` takes one out of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from v8.base.storage import write_json
from v8.cli.app import app
from v8.runs.serving import SERVING_FORMAT, read_serving

pytestmark = pytest.mark.tf

FAILED = {"status": "failed", "reason": "BTCUSD-15m from vision: needs a zip; got none at http://127.0.0.1"}


@pytest.fixture
def place(trained_run: Any, tmp_path: Path) -> Path:
    """A folder with a copy of the trained run in `runs/tiny`, its candles and its profile."""
    shutil.copytree(trained_run.path, tmp_path / "runs" / "tiny")
    shutil.copytree(trained_run.candles_dir, tmp_path / "candles")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(trained_run.profile.model_dump(mode="json")))
    return tmp_path


def run(place: Path, *words: object) -> Result:
    common = ["--profile", place / "tiny.yaml", "--source", "files", "--data-dir", place / "candles"]
    return CliRunner().invoke(app, ["run", *map(str, (*common, "--runs", place / "runs", *words))])


@pytest.mark.parametrize("option", ["--series", "--redo"])
def test_a_run_whose_every_series_is_taken_out_is_a_contradiction(place: Path, option: str) -> None:
    before = (place / "runs/tiny/run.json").read_bytes()
    result = run(place, option, "BTCUSDT-15m", "--drop", "BTCUSDT-15m")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: --drop BTCUSDT-15m: takes ")
    assert f"got {option} BTCUSDT-15m together with it" in result.stderr
    assert (place / "runs/tiny/run.json").read_bytes() == before


def recorded(place: Path) -> dict[str, Any]:
    content = json.loads((place / "runs" / "tiny" / "run.json").read_text())
    return {name: state["status"] for name, state in content["series"].items()}


def with_failed(place: Path) -> Path:
    """Let the run hold a series that failed, as an older v8 recorded a mistyped one, with files."""
    path = place / "runs" / "tiny"
    content = json.loads((path / "run.json").read_text())
    content["series"]["BTCUSD-15m"] = FAILED
    write_json(path / "run.json", content)
    (path / "BTCUSD-15m").mkdir()
    (path / "BTCUSD-15m" / "error.txt").write_text("what went wrong")
    return path


def test_a_mistyped_series_is_refused_with_the_nearest_name_and_never_enters_the_run(place: Path) -> None:
    result = run(place, "--series", "BTCUSDT-15m", "--series", "BTCUSD-15m")
    assert result.exit_code == 4, result.output
    text = " ".join(result.stdout.split())
    assert "BTCUSD-15m from files: " in text and "Did you mean BTCUSDT-15m" in text
    assert "0 series trained now, 1 finished before, 1 failed." in text
    assert recorded(place) == {"BTCUSDT-15m": "done"}
    assert not (place / "runs" / "tiny" / "BTCUSD-15m").exists()
    assert "BTCUSD-15m" not in (place / "runs" / "tiny" / "report.html").read_text()
    preview = run(place, "--series", "BTCUSDT-15m", "--series", "BTCUSD-15m", "--dry-run")
    assert preview.exit_code == 4 and "Did you mean BTCUSDT-15m" in " ".join(preview.stdout.split())
    alone = run(place, "--series", "BTCUSD-15m")
    assert alone.exit_code == 3 and recorded(place) == {"BTCUSDT-15m": "done"}
    again = run(place, "--series", "BTCUSDT-15m")
    assert again.exit_code == 0 and "1 finished before, 0 failed." in again.stdout


@pytest.mark.parametrize("words", [("--bars", "900"), ("--source", "demo"), ("--epochs", "1")])
def test_a_dry_run_refuses_what_the_run_refuses(words: tuple[str, ...], place: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (place / "runs").rglob("*")}
    source = () if "--source" in words else ("--source", "files", "--data-dir", str(place / "candles"))
    common = ("run", "--profile", place / "tiny.yaml", "--runs", place / "runs", "--series", "BTCUSDT-15m")
    call = [*map(str, common), *source, *words]
    preview = CliRunner().invoke(app, [*call, "--dry-run"])
    assert {path: path.stat().st_mtime_ns for path in (place / "runs").rglob("*")} == before
    refused = CliRunner().invoke(app, call)
    assert refused.exit_code == (3 if "demo" in words else 2), refused.output
    assert (preview.exit_code, preview.stderr) == (refused.exit_code, refused.stderr)
    assert "Estimated time" not in preview.stdout


def test_a_dry_run_refuses_a_folder_that_is_no_run(place: Path) -> None:
    (place / "runs" / "tiny" / "run.json").unlink()
    preview = run(place, "--dry-run")
    assert preview.exit_code == 3 and "run.json" in preview.stderr


@pytest.mark.parametrize("words", [(), ("--series", "BTCUSDT-15m", "--series", "BTCUSD-15m")])
def test_drop_takes_a_series_out_of_a_run_and_keeps_its_files(words: tuple[str, ...], place: Path) -> None:
    path = with_failed(place)
    shutil.copy(place / "candles" / "BTCUSDT-15m.csv", place / "candles" / "ETHUSDT-15m.csv")
    preview = run(place, *words, "--drop", "BTCUSD-15m", "--dry-run")
    assert preview.exit_code == 0 and " the run: BTCUSD-15m." in preview.stdout
    assert recorded(place) == {"BTCUSDT-15m": "done", "BTCUSD-15m": "failed"}
    result = run(place, *words, "--drop", "BTCUSD-15m")
    assert result.exit_code == 0, result.output
    kept = path / "BTCUSD-15m.dropped-1"
    assert f" {kept}." in result.stdout
    # The rest of the run is what is gone on with, not all series of the source.
    assert "0 series trained now, 1 finished before, 0 failed." in result.stdout
    assert recorded(place) == {"BTCUSDT-15m": "done"}
    assert (kept / "error.txt").read_text() == "what went wrong"
    assert "127.0.0.1" not in (path / "report.html").read_text()
    assert "--drop" not in result.stdout


def test_a_finished_series_can_be_dropped_twice_and_nothing_of_it_is_lost(place: Path) -> None:
    path = place / "runs" / "tiny"
    folder = path / "BTCUSDT-15m"
    before = (path / "BTCUSDT-15m" / "model.keras").read_bytes()
    generation = path / "generations" / "2025-01-01"
    shutil.copytree(folder, generation / "BTCUSDT-15m")
    write_json(
        path / "serving.json",
        {"format": SERVING_FORMAT, "serving": {"BTCUSDT-15m": "2025-01-01"}, "decisions": []},
    )
    result = run(place, "--drop", "BTCUSDT-15m")
    assert result.exit_code == 0, result.output
    assert recorded(place) == {} and not folder.exists()
    assert (path / "BTCUSDT-15m.dropped-1" / "model.keras").read_bytes() == before
    assert (generation / "BTCUSDT-15m" / "model.keras").read_bytes() == before
    assert read_serving(path).generations == {}
    assert "No series is finished." in result.stdout
    # Trained or copied back in later, it can leave again.
    shutil.copytree(path / "BTCUSDT-15m.dropped-1", folder)
    content = json.loads((path / "run.json").read_text())
    write_json(path / "run.json", {**content, "series": {"BTCUSDT-15m": {"status": "done"}}})
    assert run(place, "--drop", "BTCUSDT-15m").exit_code == 0
    assert (path / "BTCUSDT-15m.dropped-2" / "model.keras").read_bytes() == before


def test_what_is_not_in_the_run_cannot_be_dropped(place: Path) -> None:
    strange = run(place, "--drop", "BTCUSD-15m")
    assert strange.exit_code == 2
    assert (
        f"--drop: takes series out of {place / 'runs' / 'tiny'}, which has BTCUSDT-15m; got BTCUSD-15m. "
        in (strange.stderr)
    )
    assert strange.stderr.endswith("Did you mean BTCUSDT-15m.\n")
    fresh = run(place, "--drop", "BTCUSDT-15m", "--fresh")
    assert fresh.exit_code == 2 and "--fresh together with it" in fresh.stderr
    nowhere = run(place, "--smoke", "--drop", "BTCUSDT-15m")
    assert nowhere.exit_code == 3 and "folder of one run" in nowhere.stderr
    assert recorded(place) == {"BTCUSDT-15m": "done"}
