"""A model's ONNX file is published with it, checked on both ends, and compared with the Keras file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import pytest
from onnx_models import tiny_model

from v8.base.errors import ArtifactError
from v8.base.storage import digest_bytes, digest_file
from v8.data.scaling import ColumnScaling, Scaling, Transform
from v8.forecaster.metadata import Metadata, read_metadata
from v8.model.networks.onnx_graph import to_onnx
from v8.publish.hub.publish import publish
from v8.publish.hub.pull import pull
from v8.publish.hub.staging import stage_run

pytestmark = pytest.mark.tf

REPO = "someone/fleet"
SERIES = "BTCUSDT-15m"


def linear_model(metadata: Metadata) -> Any:
    """Return a network without training that takes and gives what metadata say."""
    window = keras.Input(metadata.shapes.window, name="window")
    flat = keras.layers.Reshape((math.prod(metadata.shapes.window),))(window)
    outputs = {}
    for name, shape in metadata.shapes.outputs.items():
        outputs[name] = keras.layers.Reshape(shape)(
            keras.layers.Dense(math.prod(shape), kernel_initializer="ones")(flat)
        )
    return keras.Model(window, outputs)


def run_with_onnx(make_run: Any, factor: float = 1.0) -> tuple[Path, Path]:
    """Return a run one of whose two models has an ONNX file, whose weights are a multiple, and that file."""
    run = make_run()
    folder = run / SERIES
    metadata = read_metadata(folder)
    columns = tuple(ColumnScaling(name, Transform.LEVEL, 1.0, 0.5, 0.0) for name in metadata.names)
    model = linear_model(metadata)
    model.save(folder / "model.keras")
    for weight in model.trainable_variables:
        weight.assign(factor * weight)
    converted = to_onnx(model)
    converted.metadata_props.add(key="series", value=SERIES)
    (folder / "model.onnx").write_bytes(converted.SerializeToString())
    digests = {f"{kind}_sha256": digest_file(folder / f"model.{end}") for kind, end in ENDINGS}
    make_run.change(run, SERIES, scaling=asdict(Scaling(columns, (), 100.0, 0.1)), **digests)
    return run, folder / "model.onnx"


ENDINGS = (("model", "keras"), ("onnx", "onnx"))


def test_it_is_published_listed_and_pulled(hub: Any, make_run: Any, tmp_path: Path) -> None:
    run, file = run_with_onnx(make_run)
    publish(stage_run(run, tmp_path / "staged", REPO), REPO, is_private=False)
    sent = {path for path in hub.files(REPO) if path.endswith(".onnx")}
    assert sent == {f"models/{SERIES}/model.onnx"}
    pull(REPO)
    pulled = pull(REPO)  # the two files are compared once
    assert (pulled.artifact(SERIES) / "model.onnx").read_bytes() == file.read_bytes()
    listed = [listed_file.path for listed_file in pulled.manifest.files_of(SERIES)]
    names = ["README.md", "history.csv", "metadata.json", "model.keras", "model.onnx"]
    assert listed == [f"models/{SERIES}/{name}" for name in names]


def test_a_file_of_another_model_is_not_pulled(hub: Any, make_run: Any, tmp_path: Path) -> None:
    run, file = run_with_onnx(make_run, factor=1.03)
    publish(stage_run(run, tmp_path / "staged", REPO), REPO, is_private=False)
    for _ in range(2):
        with pytest.raises(ArtifactError) as refusal:
            pull(REPO)
        assert refusal.value.where.endswith(file.name)
        assert refusal.value.got.endswith("steps apart")
    assert pull(REPO, ["ETHUSDT-1h"]).series == ("ETHUSDT-1h",)


def test_a_file_that_its_metadata_do_not_name_is_not_used(hub: Any, make_run: Any, tmp_path: Path) -> None:
    run, _ = run_with_onnx(make_run, factor=1.03)
    publish(stage_run(run, tmp_path / "staged", REPO), REPO, is_private=False)
    place = f"models/{SERIES}/metadata.json"
    metadata = json.loads(hub.files(REPO)[place])
    del metadata["onnx_sha256"]
    content = json.dumps(metadata).encode()
    manifest = json.loads(hub.files(REPO)["manifest.json"])
    for file in manifest["files"]:
        if file["path"] == place:
            file |= {"sha256": digest_bytes(content), "size_bytes": len(content)}
    hub.commit(REPO, {place: content, "manifest.json": json.dumps(manifest).encode()})
    assert SERIES in pull(REPO).series


def test_a_file_that_is_missing_changed_or_no_forecaster_is_not_published(
    make_run: Any, tmp_path: Path
) -> None:
    run, file = run_with_onnx(make_run)
    model = tiny_model(SERIES)
    model.graph.node[0].domain = "com.microsoft"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match=r"model\.onnx: .* sha256"):
        stage_run(run, tmp_path / "changed", REPO)
    make_run.change(run, SERIES, onnx_sha256=digest_file(file))
    with pytest.raises(ArtifactError, match=r"an ONNX file .* has a field"):
        stage_run(run, tmp_path / "foreign", REPO)
    file.unlink()
    with pytest.raises(ArtifactError, match=r"model\.onnx: must be a file"):
        stage_run(run, tmp_path / "missing", REPO)
