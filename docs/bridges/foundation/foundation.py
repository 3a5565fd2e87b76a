"""Baselines of other people's models: Chronos-2, Chronos-Bolt and TimesFM, as a plug-in of one file.

    python -m pip install torch chronos-forecasting "timesfm[torch]"
    export V8_CHRONOS=models/chronos-bolt-small V8_TIMESFM=models/timesfm-2.5-200m-pytorch
    python -m v8 run --plugin docs/bridges/foundation/foundation.py --series BTCUSDT-1h

The variables name local folders with weights; nothing is downloaded here. A variable that is not set leaves
its baseline out. Both are evaluated like every other baseline, on every window of a span.

A model is asked about two series of each window, whose newest values are those of the last known bar: the
close, as its log ratio to the last close, and the log range, log(high / low). It answers with their medians
for the coming bars; nothing is fitted. A bar opens at the close before it and is laid around its open and
close, with the forecast range, at least the distance between them. Bands and volatility are the naive
forecast's with the variance of the coming bars added, which follows from their ranges
(`v8.profile.formulas.RANGE_TO_VARIANCE`).

All windows of a span are asked in batches of equal size, the last one filled up, because other sizes of a
batch round differently. Before it begins, the plug-in says how many windows it asks about, and afterwards
what that took; more than `V8_FOUNDATION_WINDOWS` are refused.

Chronos: Ansari et al. 2024, arXiv:2403.07815, and 2025, arXiv:2510.15821. TimesFM: Das et al. 2024,
arXiv:2310.10688.

Legend: N windows, B windows of a batch, T bars of the context, H steps of the horizon.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from v8.base.arrays import FloatArray
from v8.base.errors import ProfileError, SeriesError
from v8.base.process import report_waiting
from v8.data.scaling import Scaling
from v8.data.span import Span
from v8.model.baselines.baselines import BASELINES, Baseline, FittedBaseline, TaskForecasts
from v8.profile.columns import CLOSE, HIGH, LOW, TASK_OHLC
from v8.profile.formulas import RANGE_TO_VARIANCE
from v8.profile.tasks import TASKS, future_weights

CHRONOS_VARIABLE: Final = "V8_CHRONOS"
TIMESFM_VARIABLE: Final = "V8_TIMESFM"
CONTEXT_VARIABLE: Final = "V8_FOUNDATION_CONTEXT"
WINDOWS_VARIABLE: Final = "V8_FOUNDATION_WINDOWS"
DEVICE_VARIABLE: Final = "V8_FOUNDATION_DEVICE"

CONTEXT_BARS: Final = 512  # bars of a window that a model reads, unless the variable says otherwise
LARGEST_MOVE: Final = 10.0  # of a close or a range, as a logarithm: no candle moves that far
MOST_WINDOWS: Final = 20_000  # of one span, unless the variable says otherwise
BATCH_WINDOWS: Final = 64
_PATCH_BARS: Final = 32  # TimesFM reads contexts that are multiples of it


class FoundationModel(Protocol):
    """A pretrained model of single series."""

    def medians(self, context_BT: NDArray[np.float32], horizon_bars: int) -> FloatArray:
        """Forecast the medians of the coming values of B series.

        Args:
            context_BT: Values of each series, oldest first, NaN before its first one.
            horizon_bars: H.

        Returns:
            Shape (B, H), float64, in the unit of the context.
        """


class ChronosModel:
    """Chronos-2, Chronos-Bolt or the first Chronos, behind the interface that they share.

    Args:
        pipeline: A pipeline of the package `chronos`: its `predict_quantiles` is called.
        as_tensor: Turns an array into what the pipeline reads.
    """

    def __init__(self, pipeline: Any, as_tensor: Callable[[Any], Any]) -> None:
        self._pipeline = pipeline
        self._as_tensor = as_tensor

    @classmethod
    def load(cls, folder: Path) -> "ChronosModel":
        """Load a folder as `save_pretrained` wrote it; the file `config.json` says which model it is."""
        torch = _torch()
        chronos = import_module("chronos")
        device = os.environ.get(DEVICE_VARIABLE, "cpu")
        pipeline = chronos.BaseChronosPipeline.from_pretrained(str(folder), device_map=device)
        return cls(pipeline, torch.from_numpy)

    def medians(self, context_BT: NDArray[np.float32], horizon_bars: int) -> FloatArray:
        """Forecast medians, see `FoundationModel`."""
        series = [self._as_tensor(values) for values in context_BT]
        quantiles, _ = self._pipeline.predict_quantiles(
            series, prediction_length=horizon_bars, quantile_levels=[0.5]
        )
        # One tensor (B, H, 1) of Chronos-Bolt, a list of (1, H, 1) of Chronos-2.
        rows = [np.asarray(values, np.float64).reshape(-1) for values in quantiles]
        return np.stack(rows)[:, :horizon_bars]


class TimesFmModel:
    """TimesFM 2.5, whose point forecast is the median.

    Args:
        model: A model of the package `timesfm`, compiled: its `forecast` is called.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    @classmethod
    def load(cls, folder: Path, horizon_bars: int) -> "TimesFmModel":
        """Load a folder with `model.safetensors`."""
        _torch()
        timesfm = import_module("timesfm")
        model = timesfm.TimesFM_2p5_200M_torch.from_pretrained(str(folder), torch_compile=False)
        return cls.compiled(model, timesfm, horizon_bars)

    @classmethod
    def compiled(cls, model: Any, timesfm: Any, horizon_bars: int) -> "TimesFmModel":
        """Prepare a model for contexts and horizons of one length."""
        config = timesfm.ForecastConfig(
            max_context=-(-context_bars() // _PATCH_BARS) * _PATCH_BARS,
            max_horizon=horizon_bars,
            normalize_inputs=True,
            per_core_batch_size=BATCH_WINDOWS,
        )
        model.compile(config)
        return cls(model)

    def medians(self, context_BT: NDArray[np.float32], horizon_bars: int) -> FloatArray:
        """Forecast medians, see `FoundationModel`."""
        points, _ = self._model.forecast(horizon=horizon_bars, inputs=list(context_BT))
        return np.asarray(points, np.float64)[:, :horizon_bars]


def context_bars() -> int:
    """Return the number of bars that a model reads; a `ProfileError` if the variable is no such number."""
    return _number(CONTEXT_VARIABLE, CONTEXT_BARS)


def fit_foundation(open_model: Callable[[int], FoundationModel], name: str) -> Any:
    """Return the function `fit` of a baseline; the model is opened when it forecasts for the first time."""

    def fit(train: Span, scaling: Scaling) -> FittedBaseline:
        return lambda span: forecast_span(open_model(span.horizon_bars), span, name)

    return fit


def forecast_span(model: FoundationModel, span: Span, name: str) -> TaskForecasts:
    """Forecast all windows of a span with a model that is called `name` in messages.

    Raises:
        SeriesError: If there are more windows than may be asked about, or a forecast is not finite.
    """
    most = _number(WINDOWS_VARIABLE, MOST_WINDOWS)
    if len(span) > most:
        raise SeriesError(
            where=f"{span.table.series}, baseline {name}",
            rule=f"is asked about at most {most:,} windows of a span",
            got=f"{len(span):,}",
            fix=f"Lower newest_bars in the profile, or allow more with {WINDOWS_VARIABLE}",
        )
    begun_s = time.monotonic()
    if len(span) > BATCH_WINDOWS:
        report_waiting(
            f"{name} is asked about {len(span):,} windows of {span.table.series}, two series each."
        )
    close_NT, range_NT = contexts(span, context_bars())
    log_close_NH = medians_of(model, close_NT, span.horizon_bars)
    range_NH = np.maximum(medians_of(model, range_NT, span.horizon_bars), 0.0)
    if len(span) > BATCH_WINDOWS:
        seconds = time.monotonic() - begun_s
        report_waiting(
            f"{name} took {seconds:,.0f} s for them, {1e3 * seconds / len(span):,.1f} ms a window."
        )
    if max(np.abs(log_close_NH).max(), range_NH.max()) > LARGEST_MOVE or np.isnan(log_close_NH).any():
        raise SeriesError(
            where=f"{span.table.series}, baseline {name}",
            rule=f"forecasts closes and ranges that lie a factor e^{LARGEST_MOVE:g} apart at most",
            got="others",
            fix="Check the folder of the model, or leave the baseline out",
        )
    return tasks_of(span, log_close_NH, range_NH)


def contexts(span: Span, num_bars: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return what a model reads of each window, closes and log ranges, both (N, T), NaN before a gap.

    Closes are log ratios to the last known one, so that float32 keeps their digits.
    """
    table = span.table
    rows = span.anchors[:, None] + np.arange(1 - num_bars, 1)
    source_rows = np.maximum(rows, 0)
    is_missing = (rows < 0) | (table.segment[source_rows] != table.segment[span.anchors][:, None])
    close = table.column(CLOSE).astype(np.float64)
    log_range = np.log(table.column(HIGH).astype(np.float64) / table.column(LOW).astype(np.float64))
    ratios = np.log(close[source_rows] / close[span.anchors][:, None])
    ranges = log_range[source_rows]
    ratios[is_missing] = np.nan
    ranges[is_missing] = np.nan
    return ratios.astype(np.float32), ranges.astype(np.float32)


def medians_of(model: FoundationModel, context_NT: NDArray[np.float32], horizon_bars: int) -> FloatArray:
    """Forecast N series in batches of `BATCH_WINDOWS`, the last one filled up with its first series."""
    forecasts = []
    for first in range(0, len(context_NT), BATCH_WINDOWS):
        batch = context_NT[first : first + BATCH_WINDOWS]
        filling = np.repeat(batch[:1], BATCH_WINDOWS - len(batch), axis=0)
        medians = model.medians(np.concatenate([batch, filling]), horizon_bars)
        forecasts.append(medians[: len(batch)])
    return np.concatenate(forecasts)


def tasks_of(span: Span, log_close_NH: FloatArray, range_NH: FloatArray) -> TaskForecasts:
    """Turn closes, log ratios to the last one, and log ranges into the tasks of the profile.

    Tasks that are neither candles nor of the Bollinger window are left out.
    """
    log_open_NH = np.concatenate([np.zeros_like(log_close_NH[:, :1]), log_close_NH[:, :-1]], axis=1)
    middle = (log_open_NH + log_close_NH) / 2.0
    half = np.maximum(range_NH, np.abs(log_close_NH - log_open_NH)) / 2.0
    candles_NHC = np.stack([log_open_NH, middle + half, middle - half, log_close_NH], axis=-1)
    steps = np.arange(1, span.horizon_bars + 1)
    mean_range = np.cumsum(2.0 * half, axis=1) / steps
    added = RANGE_TO_VARIANCE * mean_range**2 * future_weights(span.horizon_bars)
    naive = span.naive_deviation
    moved_NH = np.sqrt(naive**2 + added) - naive
    forecasts = {}
    for task in span.profile.tasks:
        if task == TASK_OHLC:
            forecasts[task] = np.exp(candles_NHC) * span.last_close[:, None, None]
        elif TASKS[task].has_window:
            forecasts[task] = span.moved(task, moved_NH[:, :, None] * TASKS[task].column_deviations)
    return forecasts


def _number(variable: str, usual: int) -> int:
    text = os.environ.get(variable, str(usual))
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ProfileError(where=variable, rule="is a whole number from 1", got=repr(text), fix="Correct it")
    return int(text)


def _folder(variable: str) -> Path | None:
    """Return the folder that a variable names; None if it is not set."""
    text = os.environ.get(variable)
    if not text:
        return None
    folder = Path(text).expanduser().absolute()
    if not (folder / "config.json").is_file() and not (folder / "model.safetensors").is_file():
        raise ProfileError(
            where=variable,
            rule="names a local folder with the weights of a model (config.json, model.safetensors)",
            got=f"{folder}, which has neither",
            fix="Download the model first; docs/en/how-to/foundation-models.md says how",
        )
    return folder


def _torch() -> Any:
    """Return PyTorch, with one thread: v8 runs a process on each core."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    return torch


@cache
def _chronos(folder: Path, horizon_bars: int) -> FoundationModel:
    """Load a folder once in a process."""
    return ChronosModel.load(folder)


@cache
def _timesfm(folder: Path, horizon_bars: int) -> FoundationModel:
    return TimesFmModel.load(folder, horizon_bars)


_KINDS: Final[Mapping[str, tuple[str, str, str, Callable[[Path, int], FoundationModel]]]] = {
    "chronos": (
        CHRONOS_VARIABLE,
        "Medians of the close and of the range by a pretrained Chronos, which was fitted to no candle here.",
        "Ansari et al. 2024, arXiv:2403.07815; chronos-forecasting",
        _chronos,
    ),
    "timesfm": (
        TIMESFM_VARIABLE,
        "Medians of the close and of the range by a pretrained TimesFM, which was fitted to no candle here.",
        "Das et al. 2024, arXiv:2310.10688; timesfm",
        _timesfm,
    ),
}


def register() -> None:
    """Register a baseline for each variable that is set.

    Raises:
        ProfileError: If none is set, or one names a folder without a model.
    """
    folders = {name: _folder(variable) for name, (variable, _, _, _) in _KINDS.items()}
    if not any(folders.values()):
        raise ProfileError(
            where=f"{CHRONOS_VARIABLE}, {TIMESFM_VARIABLE}",
            rule="at least one names the local folder of a model",
            got="neither",
            fix=f"Set one, for example {CHRONOS_VARIABLE}=models/chronos-bolt-small",
        )
    for name, folder in folders.items():
        if folder is not None:
            _, sentence, source, load = _KINDS[name]
            open_model = _opener(load, folder)
            BASELINES.register(Baseline(name, sentence, source, fit_foundation(open_model, name)))


def _opener(load: Callable[[Path, int], FoundationModel], folder: Path) -> Callable[[int], FoundationModel]:
    return lambda horizon_bars: load(folder, horizon_bars)


if __name__.startswith("v8_plugin_"):  # as a plug-in is loaded; a test imports the module itself
    register()
