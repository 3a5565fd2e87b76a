"""Loads a logged model for MLflow: candles in, the forecast in price units out.

This file is copied beside each logged model (`v8.annexes.tracking`) and imported there by its own
name, where v8 need not exist.
"""

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

DIGESTS_FILE = "digests.json"
"""The sha256 of each other file, as it was when the model was logged."""


def _require_unchanged(folder: Path) -> None:
    """Raise a `ValueError` unless every file is the one that was logged; one of them is code that is run."""
    try:
        digests = json.loads((folder / DIGESTS_FILE).read_text("utf-8"))
        changed = [
            name
            for name, digest in digests.items()
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest
        ]
        changed += {file.name for file in folder.iterdir()} - {*digests, DIGESTS_FILE, "__pycache__"}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{folder}: must hold the files that were logged, with their digests in {DIGESTS_FILE}; "
            f"got {error}. Log the model again."
        ) from error
    if changed:
        raise ValueError(
            f"{folder}: must hold the files that were logged; got other content of {', '.join(changed)}. "
            "Download it again, or log the model again."
        )


class CandleForecaster:
    """What `mlflow.pyfunc.load_model` wraps: `predict` takes a frame of closed candles.

    Args:
        folder: The files of the model: `model.keras`, `metadata.json`, for most models `features.py`, and
            the digests of them.

    Raises:
        ValueError: If a file is not the one that was logged.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        _require_unchanged(self._folder)
        self._features: Any = None
        file = self._folder / "features.py"
        if file.is_file():
            spec = importlib.util.spec_from_file_location("features", file)
            if spec is None or spec.loader is None:
                raise ImportError(f"{file} cannot be loaded")
            self._features = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self._features)
        self._model = self._load()

    def _load(self) -> Any:
        if self._features is None:
            from v8.forecaster.forecaster import Forecaster  # noqa: PLC0415 - only for features of v8's own

            return Forecaster.load(self._folder)
        import keras  # noqa: PLC0415 - heavy

        return keras.saving.load_model(self._folder / "model.keras", compile=False)

    def predict(self, model_input: Any, params: Any = None) -> Any:
        """Return a row for each coming bar: prices in quote currency, index `open_time` (UTC)."""
        if self._features is None:
            return self._model.predict(model_input)
        inputs = self._features.compute(model_input)
        outputs = self._model.predict(self._features.window(inputs), verbose=0)
        return self._features.forecast_table(outputs, inputs)


def _load_pyfunc(data_path: str) -> CandleForecaster:
    """Load a model; MLflow calls this function by its name."""
    return CandleForecaster(data_path)
