"""Artefacts whose model file names another series, or none as files from before it did; digests fit."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from v8.base.storage import digest_file


def name_model(folder: Path, series: str | None) -> None:
    """Let the model in a folder name another series, or none; its metadata too, where one is named."""
    file = folder / "model.keras"
    about_file = folder / "metadata.json"
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(members["metadata.json"])
    del about["series"]
    members["metadata.json"] = json.dumps(about | ({"series": series} if series else {})).encode()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    told = {"model_sha256": digest_file(file)} | ({"series": series} if series else {})
    about_file.write_text(json.dumps(json.loads(about_file.read_text()) | told))
