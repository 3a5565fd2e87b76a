"""Checks of the `model.onnx` of an artefact from elsewhere, before it is used."""

from pathlib import Path

from v8.artifacts.metadata import Metadata
from v8.artifacts.runtimes import has_onnx_packages


def require_own_onnx(folder: Path, metadata: Metadata) -> None:
    """Check the ONNX file of an artefact, if it has one, without loading it.

    Where the packages are not installed, nothing here can load it, and it is not checked.

    Raises:
        ArtifactError: If it is another one than its metadata record, or holds anything but arithmetic.
    """
    if metadata.onnx_sha256 is not None and has_onnx_packages():
        from v8.artifacts.onnx_file import check_onnx_file  # noqa: PLC0415 - needs the extra `onnx`

        check_onnx_file(metadata.verified_onnx(folder), metadata.series, metadata.shapes)
