"""Checks of the `model.onnx` of an artefact from elsewhere: alone, and compared with its `model.keras`.

Both files belong to one model, but nothing in the files proves it: somebody may publish the ONNX file of
another model. `auto` forecasts with the ONNX file, exports and back-tests compute with the Keras file. So
where both can be computed, both forecast the same windows before either is used (`ModelComparison`).

The windows are made from the scaling of the model: every input is drawn between the centre of its training
data and one scale above it, by a generator with a fixed seed. They show a file of another model, not one that
was made to differ elsewhere only.

Shape legend: N windows, T lookback, F features.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.base.arrays import FloatArray, steps_apart
from v8.data.windows.scaling import SILENT_SCALE, ColumnScaling, Scaling, Transform
from v8.forecaster.metadata import MODEL_FILE, ONNX_FILE, Metadata
from v8.forecaster.model_file import keras_errors_translated
from v8.forecaster.runtimes import KERAS, ONNX, has_onnx_packages
from v8.forecaster.shared_models import SharedModels
from v8.model.baselines.ranges import PATH_LAYERS
from v8.model.networks.published import forecast_windows, forecasts_apart
from v8.profile.columns import CLOSE, split_origin, with_origin

NUM_WINDOWS: Final = 16  # that both files forecast
SEED: Final = 1999  # of their random numbers


def require_own_onnx(folder: Path, metadata: Metadata) -> None:
    """Check the ONNX file of an artefact, if it has one, without loading it.

    Where the packages are not installed, nothing here can load it, and it is not checked.

    Raises:
        ArtifactError: If it is another one than its metadata record, or holds anything but arithmetic.
    """
    if metadata.onnx_sha256 is not None and has_onnx_packages():
        from v8.forecaster.onnx_file import check_onnx_file  # noqa: PLC0415 - needs the extra `onnx`

        check_onnx_file(metadata.verified_onnx(folder), metadata.series, metadata.shapes)


def can_compare() -> bool:
    """Return whether both kinds of files can be computed here."""
    return has_onnx_packages() and find_spec("keras") is not None


class ModelComparison:
    """Compares the two files of artefacts; those of one profile share their graphs."""

    def __init__(self) -> None:
        self._models = {runtime: SharedModels(runtime) for runtime in (ONNX, KERAS)}

    def require_same_model(self, folder: Path, metadata: Metadata) -> None:
        """Let both files of an artefact forecast the same windows.

        Raises:
            ArtifactError: If a forecast or a simulated path differs, or a file cannot be loaded.
        """
        from v8.forecaster.onnx_file import require_same_forecasts  # noqa: PLC0415 - as above

        onnx, keras = (models.open(folder, metadata)[0] for models in self._models.values())
        file = folder / ONNX_FILE
        fix = "Do not use this model, or ask whoever published it to write the file again"
        with keras_errors_translated(file, f"must compute what {MODEL_FILE} does"):
            steps_by_output = steps_apart_on_trials(onnx, keras, metadata.scaling, metadata.lookback_bars)
        require_same_forecasts(steps_by_output, file, fix)


def steps_apart_on_trials(onnx: Any, keras: Any, scaling: Scaling, lookback_bars: int) -> dict[str, float]:
    """Return by how many steps of single precision two models differ at most, by output, paths included.

    Args:
        onnx: A model of an ONNX file.
        keras: A model of a Keras file.
        scaling: The scaling of both.
        lookback_bars: Bars of their windows.
    """
    windows_NTF = trial_windows(scaling, lookback_bars)
    names = [column.name for column in scaling.columns]
    last_close_N = windows_NTF[:, -1, names.index(CLOSE)].astype(np.float64)
    values, expected = (forecast_windows(model, windows_NTF) for model in (onnx, keras))
    steps = forecasts_apart(values, expected, last_close_N)
    parts = [model.up_to(PATH_LAYERS) for model in (onnx, keras)]
    if any(part is not None for part in parts):
        values, expected = (forecast_windows(part, windows_NTF) for part in parts)
        for name in expected:  # log ratios of closes, which are near 1
            steps[name] = steps_apart(values[name], expected[name], magnitude=1.0)
    return steps


def trial_windows(scaling: Scaling, lookback_bars: int) -> NDArray[np.float32]:
    """Make raw windows that a model of this scaling may read, shape (N, T, F); they are always the same."""
    shares_NTF = np.random.default_rng(SEED).random((NUM_WINDOWS, lookback_bars, len(scaling.columns)))
    scaled = {}
    with np.errstate(all="ignore"):  # the scaling may come from anybody; the forecasts then are not finite
        for place, column in enumerate(scaling.columns):
            scale = 0.0 if column.scale >= SILENT_SCALE else column.scale
            scaled[column.name] = column.center + scale * shares_NTF[..., place]
        columns = [_raw(column, scaled, scaling) for column in scaling.columns]
        return np.stack(columns, axis=-1).astype(np.float32)


def _raw(column: ColumnScaling, scaled: Mapping[str, FloatArray], scaling: Scaling) -> FloatArray:
    """Return raw values of a column, (N, T), from those of all before they are centred and divided."""
    values_NT = scaled[column.name]
    origin, _ = split_origin(column.name)
    price = 1.0 if origin else scaling.reference_price
    if column.transform is Transform.ANCHORED:
        return price * np.exp(values_NT)
    if column.transform is Transform.LOGGED:
        return np.exp(values_NT)
    if column.transform is Transform.RELATIVE:
        close_NT = scaled.get(with_origin(origin, CLOSE), np.zeros_like(values_NT))
        return price * np.exp(close_NT) * values_NT
    return values_NT
