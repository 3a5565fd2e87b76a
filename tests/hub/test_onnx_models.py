"""A model's ONNX file is published with it, and checked on both ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx_models import tiny_model

from v8.errors import ArtifactError
from v8.hub.publish import publish
from v8.hub.pull import pull
from v8.hub.staging import stage_run
from v8.storage import digest_file

pytestmark = pytest.mark.tf

REPO, SERIES = "someone/fleet", "BTCUSDT-15m"


def run_with_onnx(make_run: Any) -> tuple[Path, Path]:
    """Return a run one of whose two models has an ONNX file, and the file."""
    run = make_run()
    file = run / SERIES / "model.onnx"
    file.write_bytes(tiny_model(SERIES).SerializeToString())
    make_run.change(run, SERIES, onnx_sha256=digest_file(file))
    return run, file


def test_it_is_published_listed_and_pulled(hub: Any, make_run: Any, tmp_path: Path) -> None:
    run, file = run_with_onnx(make_run)
    publish(stage_run(run, tmp_path / "staged", REPO), REPO, is_private=False)
    sent = {path for path in hub.files(REPO) if path.endswith(".onnx")}
    assert sent == {f"models/{SERIES}/model.onnx"}
    pulled = pull(REPO)
    assert (pulled.artifact(SERIES) / "model.onnx").read_bytes() == file.read_bytes()
    listed = [listed_file.path for listed_file in pulled.manifest.files_of(SERIES)]
    names = ["README.md", "history.csv", "metadata.json", "model.keras", "model.onnx"]
    assert listed == [f"models/{SERIES}/{name}" for name in names]


def test_a_file_that_is_missing_changed_or_no_forecaster_is_not_published(
    make_run: Any, tmp_path: Path
) -> None:
    run, file = run_with_onnx(make_run)
    model = tiny_model(SERIES)
    model.graph.node[0].domain = "com.microsoft"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match=r"model\.onnx: must be the file whose sha256"):
        stage_run(run, tmp_path / "changed", REPO)
    make_run.change(run, SERIES, onnx_sha256=digest_file(file))
    with pytest.raises(ArtifactError, match=r"must be an ONNX file .* operators Mul"):
        stage_run(run, tmp_path / "foreign", REPO)
    file.unlink()
    with pytest.raises(ArtifactError, match=r"model\.onnx: must be a file"):
        stage_run(run, tmp_path / "missing", REPO)
