"""The one loader of a saved model (G15): checked files in, forecasts in price units out.

Only the model file itself is loaded, by plain Keras in safe mode, after its digest and its form were
checked. Legacy `.h5` files and pickles are refused before anything looks into them, because loading
either can run code.

Shape legend: N windows, T lookback, F features, H horizon, C columns of a task.
"""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.artifacts.series_artifact import read_metadata, verify_model_file
from v8.columns import OPEN_TIME, TASK_COLUMNS
from v8.errors import ArtifactError, DataError
from v8.features.indicators import warmup_bars
from v8.features.table import compute_table
from v8.market.candles import Candles
from v8.market.series import Series

KERAS_MEMBERS = frozenset({"config.json", "metadata.json", "model.weights.h5"})
"""What a native Keras 3 file holds; anything beside it but `assets/` is refused."""

MAX_UNPACKED_BYTES = 4 << 30
"""A model file that claims to unpack to more is refused unread."""

FORECAST_BATCH = 256
"""Most windows a batch; bounds memory, does not change a forecast beyond rounding."""

# Every series has its own model, traced once, as it must be; TensorFlow takes the fifth for a mistake.
logging.getLogger("tensorflow").addFilter(
    lambda record: "triggered tf.function retracing" not in record.getMessage()
)


class Forecaster:
    """A trained model with everything it needs to be used.

    Args:
        metadata: The content of its `metadata.json`.
        model: Its loaded Keras model.
    """

    def __init__(self, metadata: dict[str, Any], model: Any) -> None:
        self.metadata = metadata
        self.series = Series.parse(metadata["series"])
        self.lookback_bars = int(metadata["lookback_bars"])
        self.horizon_bars = int(metadata["horizon_bars"])
        self.features = tuple(feature["name"] for feature in metadata["features"])
        self._model = model

    @classmethod
    def load(cls, folder: Path) -> Forecaster:
        """Load the artefact in `folder`.

        Raises:
            ArtifactError: If a file is missing, changed, of an unknown format or no plain Keras file.
        """
        metadata = read_metadata(folder)
        file = verify_model_file(folder, metadata)
        check_keras_file(file)
        return cls(metadata, load_keras_model(file))

    def forecast(self, windows_NTF: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Forecast raw feature windows.

        Args:
            windows_NTF: Raw features in the order of `features`, shape (N, T, F), float32.

        Returns:
            Per task, shape (N, H, C), float32, quote currency (volatility unitless).

        Raises:
            DataError: If the windows have another shape.
        """
        expected = (self.lookback_bars, len(self.features))
        if windows_NTF.ndim != 3 or windows_NTF.shape[1:] != expected or not len(windows_NTF):
            raise DataError(
                where=str(self.series),
                rule=f"windows have the shape (N, {expected[0]} bars, {expected[1]} features)",
                got=str(windows_NTF.shape),
                fix="Cut them from a FeatureTable with the columns that metadata.json lists",
            )
        return forecast_windows(self._model, windows_NTF)

    def predict(self, candles: Candles) -> pd.DataFrame:
        """Forecast the bars that follow the newest candle.

        Args:
            candles: At least lookback plus warm-up bars of this forecaster's series, unbroken at the end.

        Returns:
            One row a bar ahead, index `open_time` (UTC), one float64 column per forecast column, in
            quote currency (volatility unitless).

        Raises:
            DataError: If the candles are of another series, or too few are unbroken at the end.
        """
        self._check_candles(candles)
        table = compute_table(candles, self.features)
        window_TF = table.select(self.features)[-self.lookback_bars :]
        forecast = self.forecast(window_TF[None].astype(np.float32))
        columns = {
            name: values[0, :, number].astype(np.float64)
            for task, values in forecast.items()
            for number, name in enumerate(TASK_COLUMNS[task])
        }
        steps = np.arange(1, self.horizon_bars + 1) * self.series.bar_s
        opens = pd.to_datetime(int(candles.open_time_s[-1]) + steps, unit="s", utc=True)
        return pd.DataFrame(columns, index=pd.DatetimeIndex(opens, name=OPEN_TIME))

    def _check_candles(self, candles: Candles) -> None:
        if candles.series != self.series:
            raise DataError(
                where=str(self.series),
                rule="a forecaster reads candles of its own series",
                got=str(candles.series),
                fix="Load the forecaster of that series",
            )
        needed = self.lookback_bars + warmup_bars(self.features)
        unbroken = int(np.count_nonzero(candles.segment == candles.segment[-1])) if len(candles) else 0
        if unbroken < needed:
            raise DataError(
                where=str(self.series),
                rule=f"needs {needed} unbroken candles at the end "
                f"({self.lookback_bars} lookback + {needed - self.lookback_bars} warm-up)",
                got=str(unbroken),
                fix="Fetch a longer history",
            )


def forecast_windows(model: Any, windows_NTF: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Run a serving model over raw windows in batches, shapes as in `Forecaster.forecast`.

    The last batch is filled up with its last window: every batch of another size would make
    TensorFlow trace the whole network anew, which costs a second.
    """
    num_windows = len(windows_NTF)
    num_batches = -(-num_windows // FORECAST_BATCH)
    batch_size = -(-num_windows // num_batches)
    filled_NTF = np.concatenate(
        [windows_NTF, np.repeat(windows_NTF[-1:], num_batches * batch_size - num_windows, axis=0)]
    )
    forecast = model.predict(filled_NTF, batch_size=batch_size, verbose=0)
    return {task: values[:num_windows] for task, values in forecast.items()}


def check_keras_file(file: Path) -> None:
    """Refuse anything that is not a native Keras 3 file.

    Raises:
        ArtifactError: If it is an `.h5`, a pickle or another file under the name `.keras`.
    """
    if not zipfile.is_zipfile(file):
        raise _foreign(file, "a file of another kind")
    with zipfile.ZipFile(file) as archive:
        names = {member.filename for member in archive.infolist()}
        unpacked = sum(member.file_size for member in archive.infolist())
    strange = sorted(name for name in names - KERAS_MEMBERS if not name.startswith("assets/"))
    if strange or not names >= KERAS_MEMBERS:
        raise _foreign(file, f"an archive of {', '.join(sorted(names)[:5]) or 'nothing'}")
    if unpacked > MAX_UNPACKED_BYTES:
        raise _foreign(file, f"an archive that unpacks to {unpacked:,} bytes")


def load_keras_model(file: Path) -> Any:
    """Load a checked Keras file in safe mode; no code in it can run."""
    import keras  # noqa: PLC0415 - seconds of start-up, paid only by those who forecast

    return keras.saving.load_model(file, compile=False, safe_mode=True)


def _foreign(file: Path, got: str) -> ArtifactError:
    return ArtifactError(
        where=str(file),
        rule="must be a native Keras file (a zip of config.json, metadata.json and model.weights.h5)",
        got=got,
        fix="Load only models that v8 or plain Keras 3 saved as .keras",
    )
