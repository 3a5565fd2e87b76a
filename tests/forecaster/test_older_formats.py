"""What an older version wrote is refused in one sentence, and stays as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from v8.base.errors import ArtifactError
from v8.base.storage import write_json
from v8.forecaster.metadata import ARTIFACT_FORMAT, checked_metadata, read_metadata
from v8.forecaster.series_artifact import SAMPLE_FORMAT, read_sample
from v8.runs.run_folder import RUN_FORMAT, read_run
from v8.runs.serving import SERVING_FORMAT, read_serving

pytestmark = pytest.mark.tf

SERIES = "BTCUSDT-1h"


@pytest.fixture
def run(frontier_run: Path, tmp_path: Path) -> Path:
    """A copy of a run, with a `serving.json`."""
    path = Path(shutil.copytree(frontier_run, tmp_path / "frontier"))
    write_json(path / "serving.json", {"format": SERVING_FORMAT, "serving": {}, "decisions": []})
    return path


@pytest.mark.parametrize(
    ("name", "newest", "read"),
    [
        ("run.json", RUN_FORMAT, read_run),
        ("serving.json", SERVING_FORMAT, read_serving),
        (f"{SERIES}/metadata.json", ARTIFACT_FORMAT, lambda run: read_metadata(run / SERIES)),
        (f"{SERIES}/forecasts.json", SAMPLE_FORMAT, lambda run: read_sample(run / SERIES / "forecasts.json")),
    ],
)
def test_only_the_newest_format_is_read(
    run: Path, name: str, newest: int, read: Callable[[Path], Any]
) -> None:
    file = run / name
    read(run)
    content = json.loads(file.read_text())
    assert content["format"] == newest
    for version in range(1, newest):
        write_json(file, content | {"format": version})
        older = file.read_bytes()
        with pytest.raises(ArtifactError) as refusal:
            read(run)
        assert refusal.value.where == str(file)
        assert refusal.value.got.startswith(f"format {version}, ")
        assert refusal.value.fix
        assert file.read_bytes() == older


@pytest.mark.parametrize(("key", "newest"), [("evaluation", 7), ("quantiles", 5)])
def test_only_evaluations_of_the_newest_format_are_read(run: Path, key: str, newest: int) -> None:
    content = json.loads((run / SERIES / "metadata.json").read_text())
    assert content[key]["format"] == newest
    content[key]["format"] = newest - 1
    with pytest.raises(ArtifactError) as refusal:
        getattr(checked_metadata(content), key)
    assert refusal.value.got.startswith(f"format {newest - 1}, ")
    assert "Train this series again" in refusal.value.fix


@pytest.mark.parametrize("key", ["judgement", "note"])
def test_keys_that_v8_does_not_write_are_refused(run: Path, key: str) -> None:
    content = json.loads((run / SERIES / "metadata.json").read_text())
    with pytest.raises(ArtifactError) as refusal:
        checked_metadata({**content, key: content.pop("evaluation")})
    assert refusal.value.got == f"the unknown keys {key}"
    for place in (content["features"][0], content["training"], content["tasks"]["ohlc"]):
        place[key] = 1
        with pytest.raises(ArtifactError, match=f"the unknown key '{key}'"):
            checked_metadata(content)
        del place[key]
