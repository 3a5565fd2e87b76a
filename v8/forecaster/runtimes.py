"""What computes forecasts: onnxruntime with `model.onnx`, or Keras with `model.keras`.

`auto` takes ONNX where a model has the file and the packages are installed. Comparisons of models, such as
back-tests and updates, compute with Keras, as the evaluation of a run does.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from v8.base.errors import ArtifactError, ProfileError
from v8.base.registry import require_package
from v8.forecaster.metadata import ONNX_FILE, Metadata

AUTO: Final = "auto"
ONNX: Final = "onnx"
KERAS: Final = "keras"
RUNTIMES: Final = (AUTO, ONNX, KERAS)
PACKAGES: Final = ("onnx", "onnxruntime")
"""Packages of the extra `onnx`."""


def has_onnx_packages() -> bool:
    """Return whether the packages of the extra `onnx` are installed; none is imported."""
    return all(find_spec(package) for package in PACKAGES)


def require_onnx_packages(where: str) -> None:
    """Raise a `ProfileError` if a package of the extra `onnx` is not installed."""
    for package in PACKAGES:
        require_package(package, where=where, rule="needs the extra `onnx` of v8")


def require_runtime(name: str) -> None:
    """Raise a `ProfileError` if there is no such runtime, or its packages are not installed."""
    if name not in RUNTIMES:
        rule = f"is one of {', '.join(RUNTIMES)}"
        raise ProfileError(where="param:runtime", rule=rule, got=repr(name), fix="Choose one of these")
    if name == ONNX:
        require_onnx_packages("param:runtime onnx")


def runtime_for(requested: str, folder: Path, metadata: Metadata) -> str:
    """Return which of `ONNX` and `KERAS` computes the forecasts of a model.

    Args:
        requested: One of `RUNTIMES`.
        folder: Folder of the model.
        metadata: Its metadata.

    Raises:
        ArtifactError: If the model has no ONNX file and ONNX is requested, or Keras is not installed.
    """
    has_file = metadata.onnx_sha256 is not None and (folder / ONNX_FILE).is_file()
    if requested == ONNX or (requested == AUTO and has_file and has_onnx_packages()):
        if has_file:
            return ONNX
        fix = "Make it with `v8 export RUN --models onnx`, or take param:runtime keras"
        raise _no_runtime(folder, f"must hold {ONNX_FILE} for param:runtime onnx", "no such file", fix)
    if find_spec("keras") is None:
        rule = "needs what its forecasts are computed with"
        if requested == KERAS:
            raise _no_runtime(folder, rule, "no Keras", "Install Keras and TensorFlow")
        if has_file:
            packages = " and ".join(PACKAGES)
            raise _no_runtime(folder, rule, f"neither Keras nor {packages}", f"Install {packages}")
        fix = "Install Keras and TensorFlow, or make the file where they are: `v8 export RUN --models onnx`"
        raise _no_runtime(folder, rule, f"no Keras, and a model without {ONNX_FILE}", fix)
    return KERAS


def _no_runtime(folder: Path, rule: str, got: str, fix: str) -> ArtifactError:
    return ArtifactError(where=str(folder), rule=rule, got=got, fix=fix)
