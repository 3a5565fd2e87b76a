"""Loads a logged model for MLflow: candles in, the forecast in price units out.

This file is copied beside each logged model (`v8.tracking.mlflow`) and imported there by its own name, where
v8 need not exist.
"""

import importlib.util
from pathlib import Path
from typing import Any


class CandleForecaster:
    """What `mlflow.pyfunc.load_model` wraps: `predict` takes a frame of closed candles.

    Args:
        folder: The files of the model: `model.keras`, `metadata.json` and, for most models, `features.py`.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
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
            from v8.artifacts.forecaster import Forecaster  # noqa: PLC0415 - only for features of v8's own

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
