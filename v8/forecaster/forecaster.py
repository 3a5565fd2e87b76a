"""The loader of saved models: candles in, future candles out, in price units.

Only the model file itself is loaded, by Keras in safe mode, after its digest and its content were checked
(`v8.forecaster.model_file`). The model must match its `metadata.json`.

Every batch of a model has `FORECAST_BATCH` windows; missing ones are filled with repetitions. So the same
window is always computed by the same compiled program, alone or among thousands, when a run is evaluated, in
a forecast and in a back-test, and gives the same bits on one machine with the same versions. Other batch
sizes may round differently, by a few units in the last place of float32.

Nothing about candles is guessed. Frames of another series or timeframe are refused. A gap in the rows that a
forecast needs is never filled. The bar that has not closed yet is dropped. If the newest closed candle cannot
be used, that is an error.

Shape legend: N windows, B batch, T lookback, F features, H horizon, Q levels, C columns of a task.
"""

import logging
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.base.errors import ArtifactError, DataError, listed
from v8.base.records import Count, OpenTime, Positive
from v8.data.features import FeatureTable, compute_features, compute_table
from v8.data.market.candles import Candles, require_newest, require_one_unit
from v8.data.market.checks import check_candles
from v8.data.market.companions import Companions
from v8.data.market.frames import RawCandles, of_another_series
from v8.data.market.series import Series, iso
from v8.data.market.sources import SOURCES
from v8.data.windows import window_anchors
from v8.forecaster import model_file
from v8.forecaster.history import (
    FRAME,
    ISSUED_AT,
    LIVE,
    STEP,
    Usable,
    WindowForecasts,
    joined_to_candles,
    seconds_of,
)
from v8.forecaster.metadata import (
    METADATA_FILE,
    MODEL_FILE,
    ONNX_FILE,
    Metadata,
    contradictions_in,
    read_metadata,
    require_same_feature,
)
from v8.forecaster.shared_models import KERAS, ONNX, SharedModels
from v8.model.baselines.paths import PriceRange, drawn_paths, range_of
from v8.model.baselines.ranges import PATH_LAYERS, SEED
from v8.model.networks.published import Forecasts, forecast_windows, split_outputs
from v8.profile.columns import CLOSE, MEDIAN, OHLC, OPEN_TIME, quantile_column
from v8.profile.indicators import FeatureSet

PATH: Final = "path"  # index level of simulated candles: number of the path, from 0

_FIX: Final = "Restore the artefact's folder, or download it again"

# Every loaded model is traced once. TensorFlow counts all of them together, and would warn of retracing.
logging.getLogger("tensorflow").addFilter(
    lambda record: "triggered tf.function retracing" not in record.getMessage()
)


class SeenCandlesWarning(UserWarning):
    """A back-test includes candles that the model was trained on."""


class LeftOutWarning(UserWarning):
    """Windows of a back-test were left out, because a price would not be above zero."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """A forecast, and what else is computed from the same inputs."""

    forecast: pd.DataFrame  # result of `Forecaster.predict`
    price_range: PriceRange | None
    """The range that all bars ahead stay within with the probability `RANGE_SHARE`, from the simulated paths
    (`range_of`); None for a model without quantiles or paths. On the test spans of forty real series 91.2 %
    of the windows at 15m and 89.9 % of those at 1h stayed inside (docs/en/explanation/figures.md)."""
    out_of_range: dict[str, float] | None  # result of `Forecaster.out_of_range_features`


class Forecaster:
    """A trained model with everything that is needed to use it.

    Args:
        metadata: Its `metadata.json`.
        model: Its loaded Keras model, a `SharedModel`, or an `OnnxModel`.
        metadata_file: File of the metadata, for errors.
        revision: Commit of the Hub that it was downloaded from, 40 hex digits; None for a local one.

    Raises:
        ArtifactError: If this version of v8 computes a feature in another way than the one that trained it.
    """

    trained_on = "this series"  # the candles that it was trained on
    origin_lines: tuple[str, ...] = ()  # messages for users if it is another model than they may think
    _stacklevel = 3  # of warnings: they name the line that called `forecast_history`

    def __init__(
        self,
        metadata: Metadata,
        model: Any,
        *,
        metadata_file: str = METADATA_FILE,
        revision: str | None = None,
    ) -> None:
        for feature in metadata.features:
            require_same_feature(feature, metadata_file)
        self.about = metadata
        self.revision = revision
        self.model = model
        self.series = Series.parse(metadata.series)
        self.features = tuple(metadata.names)
        self._feature_set = FeatureSet.of(self.features)
        self.runtime: str = getattr(model, "runtime", KERAS)
        """What computes its forecasts, `onnx` or `keras`."""
        model_name = ONNX_FILE if self.runtime == ONNX else MODEL_FILE
        self._model_file = str(Path(metadata_file).with_name(model_name))
        self.lookback_bars = metadata.lookback_bars
        self.horizon_bars = metadata.horizon_bars
        self.needed_bars = metadata.needed_bars
        """Fewest candles without a gap that `predict` needs: lookback and warm-up."""
        self.warmup_bars = self.needed_bars - self.lookback_bars
        """Candles before the window that the indicators need."""
        self.trained_until_s = metadata.trained_until_s
        """When the last candle closed that training or early stopping used, seconds since the epoch."""
        self.quantiles = metadata.profile.quantiles
        """Quantile levels of its forecasts; empty if it forecasts no quantiles."""
        self.folder: Path | None = None
        """Folder of its files; None if it was not loaded from a folder."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The content of its `metadata.json`, as JSON values."""
        return dict(self.about.content)

    @classmethod
    def load(
        cls, folder: Path | str, *, revision: str | None = None, models: SharedModels | None = None
    ) -> Self:
        """Load the artefact of a series, from its folder in a run or in a downloaded repository.

        Args:
            folder: The folder of the files.
            revision: Commit of the Hub that they were downloaded at.
            models: Models in memory; forecasters of one profile that share them load and start faster.

        Raises:
            ArtifactError: If a file is missing, changed, has an unknown format or is no plain Keras or ONNX
                file.
        """
        folder = Path(folder)
        metadata = read_metadata(folder)
        model, file = (models or SharedModels()).open(folder, metadata)
        forecaster = cls(metadata, model, metadata_file=str(folder / METADATA_FILE), revision=revision)
        forecaster._require_fit(str(file))
        if forecaster.runtime == KERAS:  # an ONNX file was asked when it was read
            model_file.require_made_for(file, str(forecaster.series))
        forecaster.folder = folder
        return forecaster

    def forecast(self, windows_NTF: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Forecast raw feature windows.

        Args:
            windows_NTF: Raw features in the order of `features`, shape (N, T, F), float32.

        Returns:
            Per task, shape (N, H, C), float32, quote currency (volatility unitless).

        Raises:
            DataError: If the windows have another shape.
            ArtifactError: If the model fails, or forecasts a number that is not finite.
        """
        return self.forecast_all(windows_NTF).points

    def forecast_all(self, windows_NTF: NDArray[np.float32]) -> Forecasts:
        """Forecast raw feature windows as `forecast` does, and quantiles if the model has some."""
        expected = (self.lookback_bars, len(self.features))
        if windows_NTF.ndim != 3 or windows_NTF.shape[1:] != expected or not len(windows_NTF):
            raise self._refusal(
                f"windows have the shape (N, {expected[0]} bars, {expected[1]} features)",
                str(windows_NTF.shape),
                "Cut them from a FeatureTable with the columns that metadata.json lists",
            )
        with model_file.keras_errors_translated(
            self._model_file, "must forecast from windows of the shape that it names"
        ):
            outputs = forecast_windows(self.model, windows_NTF)
            forecasts = split_outputs(outputs)
            num_bad = {task: np.count_nonzero(~np.isfinite(values)) for task, values in outputs.items()}
        if any(num_bad.values()):
            rule = "must forecast finite numbers from finite candles"
            got = ", ".join(f"{num} of {outputs[task].size} of {task} not" for task, num in num_bad.items())
            fix = "Do not use this model; train the series again, or ask whoever published it"
            raise ArtifactError(where=self._model_file, rule=rule, got=got, fix=fix)
        return forecasts

    def predict(
        self,
        candles: Candles | RawCandles,
        *,
        covariates: Mapping[str, Any] | None = None,
        now_s: OpenTime | None = None,
        max_age_bars: Count | None = None,
    ) -> pd.DataFrame:
        """Forecast the bars that follow the newest candle.

        Exponential averages are computed from all candles that are passed. From `needed_bars` candles they
        differ from those of a long history by a share of 1e-6. For exactly the numbers of a back-test, pass
        the same candles.

        Args:
            candles: At least `needed_bars` candles of this forecaster's series, without a gap at the end: a
                frame of raw ones with `open_time` (column or index) and open, high, low, close, volume,
                or checked `Candles`. For the checks see `checked_candles`.
            covariates: Covariates of the model: candles by symbol, tables by the name of their file;
                tables that are left out are read from the folder that `V8_TABLES` names.
            now_s: The current time, seconds since the epoch, UTC; None for this machine's clock. The last bar
                of a frame is dropped if it has not closed by then.
            max_age_bars: Most bars that may have closed after the newest candle. None, the default, accepts
                candles of any age, because most forecasts in Python are of the past; the command line sets
                it.

        Returns:
            One row per bar ahead, index `open_time` (UTC), one float64 column per forecast column, in
            quote currency (volatility unitless); then one for each quantile of it, such as `close_q5`.

        Raises:
            DataError: If the candles are of another series or timeframe, too old, too few, or have a gap at
                the end; or a price or band would not be above zero.
        """
        joined = self.joined(candles, covariates, now_s)
        self._require_age(joined, now_s, max_age_bars)
        return self.predict_joined(joined)

    def predict_joined(self, candles: Candles) -> pd.DataFrame:
        """Forecast as `predict` does from candles of `joined`: checked, with the covariates of the model.

        Raises:
            DataError: If the candles are too few, have a gap at the end, or the newest one was dropped; or a
                price or band would not be above zero.
        """
        return self._forecast_newest(candles)[0]

    def outlook(
        self, candles: Candles, *, now_s: OpenTime | None = None, max_age_bars: Count | None = None
    ) -> Outlook:
        """Forecast as `predict` does, with the range of prices, and the inputs that are out of range.

        All of them are computed from one table of features.
        """
        joined = self.joined(candles, now_s=now_s)
        self._require_age(joined, now_s, max_age_bars)
        return self.outlook_joined(joined)

    def outlook_joined(self, candles: Candles) -> Outlook:
        """Forecast as `outlook` does from candles of `joined`."""
        forecast, table = self._forecast_newest(candles)
        ahead = None
        if self.quantiles and self.model.up_to(PATH_LAYERS) is not None:
            ahead = range_of(self._all_paths(candles, forecast, table))
        return Outlook(forecast, ahead, self._distances(table))

    def _require_age(self, joined: Candles, now_s: OpenTime | None, max_age_bars: Count | None) -> None:
        """Refuse candles that are too old; a gap at their end is the better reason than their age."""
        if max_age_bars is not None:
            self._require_unbroken(joined)
            self._require_recent(joined, max_age_bars, now_s)

    def _forecast_newest(self, candles: Candles) -> tuple[pd.DataFrame, FeatureTable]:
        """Return the forecast after candles of `joined`, as `predict` does, and its inputs."""
        require_newest(candles)
        self._require_unbroken(candles)
        table = compute_features(candles, self._feature_set)
        usable = self.forecast_usable(table, np.array([len(table) - 1]))
        return usable.required(candles.source).droplevel([ISSUED_AT, STEP]), table

    def paths(
        self,
        candles: Candles | RawCandles,
        num_paths: Positive | None = None,
        *,
        seed: Count = SEED,
        covariates: Mapping[str, Any] | None = None,
        now_s: OpenTime | None = None,
    ) -> pd.DataFrame:
        """Return simulated candles that may follow the newest one: the paths behind the quantiles.

        Each path is made of the bars that followed a window of the train span, or of their mirror image,
        scaled to the ranges that are forecast now. At each step the quantiles of the paths equal, column by
        column, the quantiles that `predict` returns; for models without quantiles the median. So the share of
        paths with a property is the probability of the property.

        Args:
            candles: As for `predict`; likewise `covariates` and `now_s`.
            num_paths: Number of paths; None for all of the model's, 512 in shipped profiles.
            seed: Seed of their random order. The same seed, candles and model give the same paths.

        Returns:
            Open, high, low and close, float64, quote currency; index `path`, from 0, and `open_time` (UTC),
            path by path: as an array of shape (P, H, 4), `.to_numpy().reshape(-1, horizon_bars, 4)`.

        Raises:
            DataError: As for `predict`, and if the model has no paths, or fewer.
        """
        joined = self.joined(candles, covariates, now_s)
        forecast, table = self._forecast_newest(joined)
        paths_PHC = self._all_paths(joined, forecast, table)
        if num_paths is not None and num_paths > len(paths_PHC):
            rule = f"the model has {len(paths_PHC)} paths"
            fix = "Ask for as many or fewer (param:paths)"
            raise self._refusal(rule, f"{num_paths} asked for", fix)
        chosen_PHC = np.random.default_rng(seed).permutation(paths_PHC)[:num_paths]
        index = pd.MultiIndex.from_product([range(len(chosen_PHC)), forecast.index], names=[PATH, OPEN_TIME])
        return pd.DataFrame(chosen_PHC.reshape(-1, len(OHLC)), index=index, columns=list(OHLC))

    def _all_paths(self, joined: Candles, forecast: pd.DataFrame, table: FeatureTable) -> NDArray[np.float64]:
        """Simulate all paths after candles, (P, H, C) in the order of `OHLC`, with the quantiles forecast.

        `table` has the features of the candles.
        """
        levels = self.quantiles or (MEDIAN,)
        bars = table.select(self.features)
        columns = [
            name if level == MEDIAN else quantile_column(name, level) for level in levels for name in OHLC
        ]
        quantiles_HQC = forecast[columns].to_numpy().reshape(len(forecast), len(levels), len(OHLC))
        path_bars_HCP = self._path_bars(bars[None, -self.lookback_bars :])
        return drawn_paths(path_bars_HCP, levels, quantiles_HQC, float(joined.column(CLOSE)[-1]))

    def _path_bars(self, window_1TF: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the bars of each path, log ratios to the close before, shape (H, C, P)."""
        layer = self.model.up_to(PATH_LAYERS)
        if layer is None:
            rule = "paths need `calibration: ensemble`, family `range_paths` or quantiles trained after 1.0.0"
            got = f"a model of {self.about.profile.name}"
            fix = "Use a model of frontier, or another of these"
            raise self._refusal(rule, got, fix)
        (output,) = forecast_windows(layer, window_1TF).values()
        return output[0].astype(np.float64)

    def out_of_range_features(self, candles: Candles) -> dict[str, float] | None:
        """Return the features after candles of `joined` that are out of the range of the training data.

        Features in quote currency are left out, because models read them relative to the newest close.

        Returns:
            Per feature its distance from the range, divided by the width of the range, unitless; None if the
            model reads prices alone.
        """
        names = tuple(self.about.value_ranges)
        return self._distances(compute_table(candles, names)) if names else None

    def _distances(self, table: FeatureTable) -> dict[str, float] | None:
        """Return `out_of_range_features` of the newest row of a table with at least these features."""
        ranges = self.about.value_ranges
        if not ranges:
            return None
        names = tuple(ranges)
        values = table.select(names)[-1].tolist()
        distances = {}
        for name, value in zip(names, values, strict=True):
            low, high = ranges[name]
            distance = max(low - value, value - high) / ((high - low) or 1.0)
            if distance > 0:
                distances[name] = distance
        return distances

    def forecast_history(
        self,
        candles: Candles | RawCandles,
        *,
        covariates: Mapping[str, Any] | None = None,
        stride: Positive = 1,
        start: str | datetime | None = None,
        end: str | datetime | None = None,
        now_s: OpenTime | None = None,
        as_frame: bool = False,
    ) -> pd.DataFrame:
        """Forecast from every candle of a history, for a back-test; each forecast uses only its past.

        Every block of equal `issued_at` equals, to the bit, the result of `predict` for the same candles up
        to that time. Windows with a gap are left out. Windows with a jump of prices, in which a price or
        band, read or forecast, would not be above zero, are left out, too, and a `LeftOutWarning` counts
        them.

        Args:
            candles: As for `predict`; likewise `covariates` and `now_s`. Gaps are allowed.
            stride: Use every `stride`-th window, at least 1.
            start: Leave out forecasts issued before this time; without a zone it is UTC.
            end: Leave out forecasts issued after this time.
            as_frame: Join the forecasts to the candles, one row per candle, as programs for the test of
                strategies need it.

        Returns: One row per forecast and bar ahead, index (`issued_at`, `step`, `open_time`), columns as
            `predict` returns them. As a frame: every candle, index `open_time`; `usable_from`, the time of
            its close, before which the row is not known; the forecasts that were issued then, such as
            `close_ahead_1` for the bar that opens at `usable_from`, NaN if none was issued.

        Raises:
            DataError: If the candles cannot be used, no window fits, or none of them can be forecast.
        """
        if stride < 1:
            rule = "a stride is at least 1 window"
            fix = "Leave it out to take every window"
            raise self._refusal(rule, str(stride), fix)
        joined = self.joined(candles, covariates, now_s, reaches=False)
        table = compute_features(joined, self._feature_set)
        anchors = window_anchors(table.segment, (0, len(table)), self.lookback_bars, 0)
        issued_s = table.open_time_s[anchors] + self.series.bar_s
        start_s = seconds_of(start, 0)
        end_s = seconds_of(end, np.iinfo(np.int64).max)
        anchors = anchors[(issued_s >= start_s) & (issued_s <= end_s)][::stride]
        if not len(anchors):
            got = f"{len(table)} candles after the warm-up, none of them with {self.lookback_bars} unbroken"
            if len(issued_s):
                got = f"forecasts issued from {iso(issued_s[0])} to {iso(issued_s[-1])} only"
            rule = (
                f"a back-test needs a window of {self.lookback_bars} unbroken candles after the warm-up "
                f"of {self.warmup_bars}, between start and end"
            )
            raise self._refusal(rule, got, "Fetch a longer history, or widen the span")
        self._warn_of_train_candles(table.open_time_s[anchors])
        usable = self.forecast_usable(table, anchors)
        history = usable.required(joined.source)
        if len(usable.left_out):
            warnings.warn(usable.sentence(table), LeftOutWarning, stacklevel=self._stacklevel - 1)
        return joined_to_candles(joined, history) if as_frame else history

    def companions(self, covariates: Mapping[str, Any] | None = None) -> Companions:
        """Return the covariates of the model: other series and tables, if it reads any.

        Args:
            covariates: As for `predict`.

        Raises:
            ProfileError: If the metadata describe invalid tables.
        """
        return Companions(self._feature_set.covariate_inputs, self.about.tables, covariates)

    def joined(
        self,
        candles: Candles | RawCandles,
        covariates: Mapping[str, Any] | None = None,
        now_s: OpenTime | None = None,
        *,
        reaches: bool = True,
    ) -> Candles:
        """Check candles, and join the covariates of the model to them, unless that has been done.

        Args:
            candles: As for `predict`; likewise `covariates` and `now_s`.
            reaches: Whether the covariates must reach the newest candle.

        Raises:
            DataError: If the candles cannot be used, or covariates are missing.
        """
        own = checked_candles(candles, self.series, now_s)
        companions = self.companions(covariates)
        if own.covariates or not companions:
            return own
        return companions.joined(own, needs_newest=reaches)

    def forecast_after(self, table: FeatureTable, anchors: NDArray[np.int64]) -> pd.DataFrame:
        """Forecast from the windows that end at some rows; the result is as of `forecast_history`.

        Raises:
            DataError: If a price or band, read or forecast, would not be above zero in one of them.
        """
        usable = self.forecast_usable(table, anchors)
        if usable.frame is None or len(usable.left_out):
            raise usable.refusal()
        return usable.frame

    def forecast_usable(self, table: FeatureTable, anchors: NDArray[np.int64]) -> Usable:
        """Forecast from the windows that end at some rows, and leave out windows with a jump of prices.

        In those a price or band, read or forecast, would not be above zero.

        Args:
            table: A table with at least the features of the model.
            anchors: Last row of each window, shape (N,), at least one.
        """
        windows = WindowForecasts(
            series=self.series,
            features=self.features,
            lookback_bars=self.lookback_bars,
            horizon_bars=self.horizon_bars,
            quantiles=self.quantiles,
            forecast_all=self.forecast_all,
        )
        return windows.usable(table, anchors)

    def _warn_of_train_candles(self, open_time_s: NDArray[np.int64]) -> None:
        """Warn if forecasts are issued before the end of the training data."""
        num_in_training = int(np.count_nonzero(open_time_s + self.series.bar_s < self.trained_until_s))
        if num_in_training:
            warnings.warn(
                f"{self.series}: {num_in_training:,} of {len(open_time_s):,} forecasts are issued before "
                f"{iso(self.trained_until_s)}, in candles of the training; "
                "their errors say nothing about new candles",
                SeenCandlesWarning,
                stacklevel=self._stacklevel,
            )

    def _require_unbroken(self, candles: Candles) -> None:
        """Raise a `DataError` if too few candles at the end have no gap for a window and its warm-up."""
        unbroken = int(np.count_nonzero(candles.segment == candles.segment[-1]))
        if unbroken < self.needed_bars:
            hole = f" after the hole that ends at {iso(candles.open_time_s[-unbroken])}"
            raise self._refusal(
                f"needs {self.needed_bars} unbroken candles at the end ({self.lookback_bars} lookback + "
                f"{self.warmup_bars} warm-up)",
                f"{unbroken}{hole if unbroken < len(candles) else ''}",
                "Fetch the missing candles, or a longer history",
            )

    def _require_recent(self, candles: Candles, max_age_bars: int, now_s: int | None) -> None:
        """Raise a `DataError` if too many bars have closed after the newest candle."""
        now_s = int(time.time()) if now_s is None else now_s
        closed_s = int(candles.open_time_s[-1]) + self.series.bar_s
        age_bars = (now_s - closed_s) // self.series.bar_s
        if age_bars > max_age_bars:
            kind = SOURCES.get(self.about.candles.source)
            newer = (kind.present if kind else None) or LIVE
            raise self._refusal(
                f"at most {max_age_bars} bars may have closed after the newest candle",
                f"{age_bars:,} bars between its close at {iso(closed_s)} and now, {iso(now_s)}",
                f"Take newer ones (param:source {newer}), or allow old (param:allow_old; "
                "in Python max_age_bars=None)",
            )

    def _refusal(self, rule: str, got: str, fix: str) -> DataError:
        return DataError(where=str(self.series), rule=rule, got=got, fix=fix)

    def _require_fit(self, file: str) -> None:
        """Raise an `ArtifactError` if the model's shapes or its metadata contradict each other."""
        outputs = self.model.output if isinstance(self.model.output, dict) else {}
        output_shapes = {task: tuple(output.shape[1:]) for task, output in outputs.items()}
        input_shapes = [tuple(model_input.shape[1:]) for model_input in self.model.inputs]
        expected = self.about.shapes
        if input_shapes != [expected.window] or output_shapes != expected.outputs or not output_shapes:
            rule = f"must take and give what {METADATA_FILE} says: {expected}"
            got = f"{', '.join(map(str, input_shapes))} to {output_shapes}"
            raise ArtifactError(where=file, rule=rule, got=got, fix=_FIX)
        contradictions = contradictions_in(self.about)
        if contradictions:
            rule = f"must be what {METADATA_FILE} says in all of its keys"
            got = f"a contradiction in {listed(contradictions)}"
            raise ArtifactError(where=file, rule=rule, got=got, fix=_FIX)


def checked_candles(candles: Candles | RawCandles, series: Series, now_s: int | None = None) -> Candles:
    """Return checked candles of a series.

    Args:
        candles: Checked candles, or a table of raw ones as `v8.data.market.frames` reads it: a frame, rows of
            an exchange library, columns by name; times in any of its units (without a zone: UTC), any row
            order. Columns and attributes that name the symbol, timeframe or series must match.
        series: The series that they must be of.
        now_s: The current time, seconds since the epoch, UTC; None for this machine's clock. The last row of
            a table is dropped if it has not closed by then.

    Raises:
        DataError: If they are of another series or timeframe, cannot be repaired without guessing, or the
            newest row that has closed cannot be used.
    """
    if not isinstance(candles, Candles):
        now_s = int(time.time()) if now_s is None else now_s
        candles = check_candles(candles, series, source=FRAME, now_s=now_s)
        require_one_unit(candles)
    elif candles.series != series:
        raise of_another_series(series, str(candles.series))
    require_newest(candles)
    return candles
