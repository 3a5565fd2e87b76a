"""The one loader of a saved model (G15): candles in, future candles out, in price units.

Only the model file itself is loaded, by plain Keras in safe mode, after its digest and its form were
checked (`v8.artifacts.model_file`). What `metadata.json` says about it must fit it.

Every batch that reaches a model has `FORECAST_BATCH` windows, filled up with repetitions. The same
window therefore meets the same compiled program, alone or among thousands, when a run is evaluated, when a
user forecasts and in a back-test, and gives the same numbers to the bit: on one machine, with the same
versions. Other batch sizes may round differently, by a few units in the last place of float32.

Nothing about candles is guessed: a frame that says or shows that it is of another series or timeframe is
refused, a hole in the rows that a forecast needs is never filled in, the bar that is still running is
dropped, and a newest candle that has closed and cannot be used is not left out in silence.

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

from v8.artifacts import model_file
from v8.artifacts.metadata import METADATA_FILE, MODEL_FILE, FeatureAbout, Metadata, read_metadata
from v8.artifacts.shared_models import SharedModels
from v8.baselines.ranges import PATH_LAYERS, SEED, drawn_paths
from v8.columns import CLOSE, OHLC, OPEN_TIME
from v8.errors import ArtifactError, DataError, listed
from v8.features import indicators
from v8.features.table import FeatureTable, compute_table
from v8.invocation import command
from v8.market.candles import Candles, require_newest, require_one_unit
from v8.market.checks import check_candles
from v8.market.companions import Companions
from v8.market.frames import RawCandles, of_another_series
from v8.market.series import Series, iso
from v8.networks.published import FORECAST_BATCH, Forecasts, forecast_windows, split_outputs
from v8.quantile_levels import MEDIAN, fault_of, quantile_column, quantile_output
from v8.records import Count, OpenTime, Positive
from v8.tasks import TASKS
from v8.windows.dataset import window_anchors

FRAME: Final = "a frame"  # name of the source of candles that were given as a table in memory
FILES: Final = "files"  # name of the source of candles that lie in files of the user
LIVE: Final = "live"  # name of the source whose store can ask the exchange again

ISSUED_AT = "issued_at"
"""Index of a back-test: when the last known candle closed, which is when the first forecast bar opens."""

USABLE_FROM: Final = "usable_from"
"""Column of forecasts beside candles: when the candle closed, before which nobody knows the row."""

PATH: Final = "path"  # index of simulated candles: which path, from 0
STEP = "step"  # index of a back-test: bars ahead, from 1

_CHUNK_WINDOWS = 128 * FORECAST_BATCH  # windows of a back-test that are in memory at the same time

_FIX: Final = "Restore the artefact's folder, or download it again"

# Every loaded file is its own model, traced once, as it must be; TensorFlow takes the fifth for a mistake.
logging.getLogger("tensorflow").addFilter(
    lambda record: "triggered tf.function retracing" not in record.getMessage()
)


class SeenCandlesWarning(UserWarning):
    """A back-test over candles that the model was trained on."""


class LeftOutWarning(UserWarning):
    """Windows of a back-test that could not be forecast, because a price would not be above zero."""


@dataclass(frozen=True)
class Usable:
    """What a model forecasts of some windows, without those in which a price would not be above zero."""

    series: Series
    frame: pd.DataFrame | None  # as `forecast_history` returns it; None where no window is left
    anchors: NDArray[np.int64]  # rows of the table at which its windows end, shape (N,)
    left_out: NDArray[np.int64]  # those of the windows that are left out, shape (L,)
    fault: str = ""  # one of the prices that are not above zero, and its bar; empty without

    def required(self, source: str) -> pd.DataFrame:
        """Return what is forecast of candles from a source; a `DataError` where no window is left."""
        if self.frame is None:
            raise self.refusal(source)
        return self.frame

    def refusal(self, source: str = "") -> DataError:
        """Build the error for windows across a leap of candles; it tells how to mend those of a source."""
        fix = "Look for a leap in the candles before it"
        if source == LIVE:
            again = command("data", "update", "--accept-revision")
            fix = f"{fix}; what the exchange's API told wrongly, `{again}` asks for again"
        elif source in (FILES, FRAME):
            fix = f"{fix}: write all prices in one unit, or give only the candles after it"
        rule = "prices and bands lie above zero, those that are read and those that are forecast"
        return DataError(where=str(self.series), rule=rule, got=self.fault, fix=fix)

    def sentence(self, table: FeatureTable) -> str:
        """Say how many windows of a table are left out, at least one, and when they would be issued."""
        num_windows = len(self.left_out) + len(self.anchors)
        first_s, last_s = table.open_time_s[self.left_out[[0, -1]]] + table.series.bar_s
        span = f"issued from {iso(first_s)} to {iso(last_s)}"
        return (
            f"{table.series}: {len(self.left_out):,} of {num_windows:,} windows, {span}, lie across a leap "
            f"of the candles and are left out: {self.fault}"
        )


class Forecaster:
    """A trained model with everything it needs to be used.

    Args:
        about: Its `metadata.json`.
        model: Its loaded Keras model, or one that shares a graph.
        where: Where the metadata came from, for errors.
        revision: Commit of the Hub it was downloaded from, 40 hex digits; None for a local one.

    Raises `ArtifactError` if the metadata is not as v8 wrote it, or is of features that this v8 computes
    otherwise.
    """

    trained_on = "this series"  # whose candles it was trained on
    origin_lines: tuple[str, ...] = ()  # what readers are told where those are not of this series
    _stacklevel = 3  # of warnings: where `forecast_history` was called

    def __init__(
        self, about: Metadata, model: Any, *, where: str = METADATA_FILE, revision: str | None = None
    ) -> None:
        for feature in about.features:
            _require_same(feature, where)
        self.about = about
        self.revision = revision
        self.model = model
        self.series = Series.parse(about.series)
        self.features = tuple(about.names)
        self._where = str(Path(where).with_name(MODEL_FILE))
        self.lookback_bars = about.lookback_bars
        self.horizon_bars = about.horizon_bars
        self.needed_bars = about.needed_bars
        """Fewest unbroken candles that `predict` reads: lookback and warm-up."""
        self.warmup_bars = self.needed_bars - self.lookback_bars
        """Candles before the window that the indicators need."""
        self.trained_until_s = about.trained_until_s
        """When the last candle closed that training or early stopping has seen, seconds since the epoch."""
        self.quantiles = about.profile.quantiles
        """Levels that it forecasts beside the point forecast, their median; none where it has none."""
        self.folder: Path | None = None
        """Where its files lie; None for one that was made of its parts."""

    @property
    def metadata(self) -> dict[str, Any]:
        """All that its `metadata.json` holds, as JSON values."""
        return dict(self.about.content)

    @classmethod
    def load(
        cls, folder: Path | str, *, revision: str | None = None, models: SharedModels | None = None
    ) -> Self:
        """Load the artefact in `folder`: a series' folder of a run, or of one downloaded at a `revision`.

        Args:
            folder: Where its files lie.
            revision: Commit of the Hub that they are of.
            models: What loads the model; forecasters of one profile that share it load and start faster.

        Raises:
            ArtifactError: If a file is missing, changed, of an unknown format or no plain Keras file.
        """
        folder = Path(folder)
        about = read_metadata(folder)
        file = about.verified_model(folder)
        model_file.check_keras_file(file)
        model = (models or SharedModels()).load(file)
        forecaster = cls(about, model, where=str(folder / METADATA_FILE), revision=revision)
        forecaster._require_fit(str(file))
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
            ArtifactError: If the model cannot work on them, or what it says is no finite number.
        """
        return self.forecast_all(windows_NTF).points

    def forecast_all(self, windows_NTF: NDArray[np.float32]) -> Forecasts:
        """Forecast raw feature windows as `forecast` does, with the quantiles that the model has."""
        expected = (self.lookback_bars, len(self.features))
        if windows_NTF.ndim != 3 or windows_NTF.shape[1:] != expected or not len(windows_NTF):
            raise self._refusal(
                f"windows have the shape (N, {expected[0]} bars, {expected[1]} features)",
                str(windows_NTF.shape),
                "Cut them from a FeatureTable with the columns that metadata.json lists",
            )
        with model_file.one_fault(self._where, "must forecast from windows of the shape that it names"):
            forecasts = forecast_windows(self.model, windows_NTF)
            made = split_outputs(forecasts)
            bad = {task: np.count_nonzero(~np.isfinite(values)) for task, values in forecasts.items()}
        if any(bad.values()):
            rule = "must forecast finite numbers from finite candles"
            got = ", ".join(f"{num} of {forecasts[task].size} of {task} not" for task, num in bad.items())
            fix = "Do not use this model; train the series again, or ask whoever published it"
            raise ArtifactError(where=self._where, rule=rule, got=got, fix=fix)
        return made

    def predict(
        self,
        candles: Candles | RawCandles,
        *,
        covariates: Mapping[str, Any] | None = None,
        now_s: OpenTime | None = None,
        max_age_bars: Count | None = None,
    ) -> pd.DataFrame:
        """Forecast the bars that follow the newest candle.

        Exponential averages see all candles that are given. From `needed_bars` candles they are what all
        history would make of them but for a share of 1e-6, so for the very numbers of a back-test give
        the same candles.

        Args:
            candles: At least `needed_bars` candles of this forecaster's series, unbroken at the end: a
                frame of raw ones with `open_time` (column or index) and open, high, low, close, volume,
                or checked `Candles`. `checked_candles` says what is checked.
            covariates: What the model reads beside them: candles by symbol, tables by the name of their file;
                tables that are left out are read from the folder that `V8_TABLES` names.
            now_s: The present, seconds since the epoch, UTC; None for this machine's clock. A frame's
                running bar is dropped by it.
            max_age_bars: Most bars that may have closed after the newest candle. None, the default, takes
                candles of any age, because the past is what most forecasts in Python are tried on; the
                command line, which is asked about the future, sets it.

        Returns:
            One row a bar ahead, index `open_time` (UTC), one float64 column per forecast column, in
            quote currency (volatility unitless); then one for each quantile of it, such as `close_q5`.

        Raises `DataError` if the candles are of another series or timeframe, too old, or too few of
        them are unbroken at the end; or a price or band would not be above zero.
        """
        known = self.joined(candles, covariates, now_s)
        self._require_unbroken(known)
        if max_age_bars is not None:
            self._require_recent(known, max_age_bars, now_s)
        table = compute_table(known, self.features)
        usable = self.forecast_usable(table, np.array([len(table) - 1]))
        return usable.required(known.source).droplevel([ISSUED_AT, STEP])

    def paths(
        self,
        candles: Candles | RawCandles,
        num_paths: Positive | None = None,
        *,
        seed: Count = SEED,
        covariates: Mapping[str, Any] | None = None,
        now_s: OpenTime | None = None,
    ) -> pd.DataFrame:
        """Return candles that may follow the newest one: the simulated paths behind the quantiles.

        Each path is what followed a window of the train span, or its mirror image, in the ranges that are
        forecast now. At each step the paths have, column by column, the quantiles that `predict` returns; of
        models without quantiles the median. So the share of paths that do something is its chance.

        Args:
            candles: As for `predict`, and so are `covariates` and `now_s`.
            num_paths: How many of the model's paths; None for all, 512 in shipped profiles.
            seed: Of the lot that orders them. The same seed, candles and model give the same paths.

        Returns:
            Open, high, low and close, float64, quote currency; index `path`, from 0, and `open_time` (UTC),
            path by path: as an array of shape (P, H, 4), `.to_numpy().reshape(-1, horizon_bars, 4)`.

        Raises `DataError` as `predict` does, and if the model has no paths, or not so many.
        """
        known = self.joined(candles, covariates, now_s)
        forecast = self.predict(known, now_s=now_s)
        levels = self.quantiles or (MEDIAN,)
        bars = compute_table(known, self.features).select(self.features)
        wanted = [name if q == MEDIAN else quantile_column(name, q) for q in levels for name in OHLC]
        quantiles_HQC = forecast[wanted].to_numpy().reshape(len(forecast), len(levels), len(OHLC))
        moved_HCP = self._moved(bars[None, -self.lookback_bars :])
        paths_PHC = drawn_paths(moved_HCP, levels, quantiles_HQC, float(known.column(CLOSE)[-1]))
        if num_paths is not None and num_paths > len(paths_PHC):
            rule = f"the model has {len(paths_PHC)} paths"
            fix = "Ask for as many or fewer (param:paths)"
            raise self._refusal(rule, f"{num_paths} asked for", fix)
        chosen_PHC = np.random.default_rng(seed).permutation(paths_PHC)[:num_paths]
        index = pd.MultiIndex.from_product([range(len(chosen_PHC)), forecast.index], names=[PATH, OPEN_TIME])
        return pd.DataFrame(chosen_PHC.reshape(-1, len(OHLC)), index=index, columns=list(OHLC))

    def _moved(self, window_1TF: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the bars of each path, log ratios to the close before, shape (H, C, P)."""
        layer = self.model.up_to(PATH_LAYERS)
        if layer is None:
            rule = "paths need `calibration: ensemble`, family `range_paths` or quantiles trained after 1.0.0"
            got = f"a model of {self.about.profile.name}"
            fix = "Use a model of frontier, or another of these"
            raise self._refusal(rule, got, fix)
        return next(iter(forecast_windows(layer, window_1TF).values()))[0].astype(np.float64)

    def outside(self, candles: Candles) -> dict[str, float] | None:
        """Say which inputs after candles of `joined` lie outside what training saw, and how far.

        That is from the nearest value that it saw, as a share of the width of all that it saw. Inputs in
        quote currency are left out: models measure them from the newest close. None where a model of an older
        v8 does not tell.
        """
        seen = self.about.seen
        if not seen:
            return None
        values = compute_table(candles, tuple(seen)).select(tuple(seen))[-1].tolist()
        beyond = {
            name: max(least - value, value - most) / ((most - least) or 1.0)
            for (name, (least, most)), value in zip(seen.items(), values, strict=True)
        }
        return {name: distance for name, distance in beyond.items() if distance > 0}

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
        """Forecast from every candle of a history, for a back-test; each sees only its past.

        Every block of equal `issued_at` is, to the bit, what `predict` returns for the same candles cut
        off at that time. Windows across a hole are left out, and so are those across a leap of the candles:
        those in which a price or band, read or forecast, would not be above zero. A `LeftOutWarning` counts
        the latter.

        Args:
            candles: As for `predict`, and so are `covariates` and `now_s`; holes are allowed.
            stride: Take every so-manieth window, at least 1.
            start: Leave out forecasts issued before this time; without a zone it is UTC.
            end: Leave out forecasts issued after this time.
            as_frame: Join them to the candles, one row a candle, as programs that test strategies take it.

        Returns:
            One row per forecast and bar ahead, index (`issued_at`, `step`, `open_time`), columns as
            `predict` gives them. As a frame: every candle, index `open_time`; `usable_from`, its close,
            before which nobody knows the row; the forecasts that were issued then, such as `close_ahead_1`
            for the bar that opens at `usable_from`, NaN where none was.

        Raises:
            DataError: If the candles cannot be used, no window fits, or none of them can be forecast.
        """
        if stride < 1:
            rule = "a stride is at least 1 window"
            fix = "Leave it out to take every window"
            raise self._refusal(rule, str(stride), fix)
        known = self.joined(candles, covariates, now_s, reaches=False)
        table = compute_table(known, self.features)
        anchors = window_anchors(table.segment, (0, len(table)), self.lookback_bars, 0)
        issued_s = table.open_time_s[anchors] + self.series.bar_s
        is_wanted = (issued_s >= seconds_of(start, 0)) & (issued_s <= seconds_of(end, np.iinfo(np.int64).max))
        anchors = anchors[is_wanted][::stride]
        if not len(anchors):
            got = f"{len(table)} candles after the warm-up, none of them with {self.lookback_bars} unbroken"
            if len(issued_s):
                got = f"forecasts issued from {iso(issued_s[0])} to {iso(issued_s[-1])} only"
            rule = (
                f"a back-test needs a window of {self.lookback_bars} unbroken candles after the warm-up "
                f"of {self.warmup_bars}, between start and end"
            )
            raise self._refusal(rule, got, "Fetch a longer history, or widen the span")
        self._warn_of_seen(table.open_time_s[anchors])
        usable = self.forecast_usable(table, anchors)
        history = usable.required(known.source)
        if len(usable.left_out):
            warnings.warn(usable.sentence(table), LeftOutWarning, stacklevel=self._stacklevel - 1)
        return _beside_candles(known, history) if as_frame else history

    def companions(self, given: Mapping[str, Any] | None = None) -> Companions:
        """Return what lies beside its candles: other series and tables, if it reads any.

        Args:
            given: As the covariates of `predict`.

        Raises `ProfileError` if the metadata tell of tables that cannot be.
        """
        return Companions(indicators.covariate_inputs(self.features), self.about.tables, given)

    def joined(
        self,
        candles: Candles | RawCandles,
        covariates: Mapping[str, Any] | None = None,
        now_s: OpenTime | None = None,
        *,
        reaches: bool = True,
    ) -> Candles:
        """Check candles, and put beside them what the model reads there, unless that has been done.

        Args:
            candles: As for `predict`, and so are `covariates` and `now_s`.
            reaches: Whether nothing may lack beside the newest candle.

        Raises `DataError` if they cannot be used, or something lacks.
        """
        own = checked_candles(candles, self.series, now_s)
        companions = self.companions(covariates)
        if own.covariates or not companions:
            return own
        found = companions.joined(own)
        return companions.require_up_to_date(own, found) if reaches else found

    def forecast_after(self, table: FeatureTable, anchors: NDArray[np.int64]) -> pd.DataFrame:
        """Forecast from windows that end at some rows, as `forecast_history` returns it.

        Raises `DataError` if a price or band, read or forecast, would not be above zero in one of them.
        """
        usable = self.forecast_usable(table, anchors)
        if usable.frame is None or len(usable.left_out):
            raise usable.refusal()
        return usable.frame

    def forecast_usable(self, table: FeatureTable, anchors: NDArray[np.int64]) -> Usable:
        """Forecast from windows that end at some rows, and leave out those that cannot be forecast.

        That is where a price or band, read or forecast, is not above zero: leaps of candles lead there.

        Args:
            table: Features of the model, at least.
            anchors: Last row of each window, shape (N,), at least one.
        """
        chunks: list[dict[str, NDArray[np.float32]]] = []
        kept: list[NDArray[np.int64]] = []
        faults: list[str] = []
        for first in range(0, len(anchors), _CHUNK_WINDOWS):
            chosen = anchors[first : first + _CHUNK_WINDOWS]
            rows = chosen[:, None] + np.arange(1 - self.lookback_bars, 1)
            windows_NTF = table.select(self.features)[rows]
            read = dict(zip(self.features, np.moveaxis(windows_NTF, -1, 0), strict=True))
            is_read = self._above_zero(read, table.open_time_s[rows], faults)
            if not is_read.any():
                continue
            made = self._by_column(self.forecast_all(windows_NTF[is_read]))
            opens_s = self._opens_s(table, chosen[is_read])
            is_sound = self._above_zero(made, opens_s, faults)
            chunks.append({name: values[is_sound] for name, values in made.items()})
            kept.append(chosen[is_read][is_sound])
        usable = np.concatenate([*kept, anchors[:0]])
        left_out = np.setdiff1d(anchors, usable)
        fault = next(iter(faults), "")
        if not len(usable):
            return Usable(self.series, None, usable, left_out, fault)
        columns = {
            name: np.concatenate([chunk[name] for chunk in chunks]).astype(np.float64).ravel()
            for name in chunks[0]
        }
        opens = pd.to_datetime(self._opens_s(table, usable).ravel(), unit="s", utc=True)
        issued = opens[:: self.horizon_bars].repeat(self.horizon_bars)
        steps = np.tile(np.arange(1, self.horizon_bars + 1), len(usable))
        index = pd.MultiIndex.from_arrays([issued, steps, opens], names=[ISSUED_AT, STEP, OPEN_TIME])
        return Usable(self.series, pd.DataFrame(columns, index=index), usable, left_out, fault)

    def _opens_s(self, table: FeatureTable, anchors: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when the bars ahead of windows open, seconds since the epoch, shape (N, H)."""
        steps = np.arange(1, self.horizon_bars + 1)
        opens_s: NDArray[np.int64] = table.open_time_s[anchors][:, None] + steps * self.series.bar_s
        return opens_s

    def _above_zero(
        self, columns: Mapping[str, NDArray[Any]], open_time_s: NDArray[np.int64], faults: list[str]
    ) -> NDArray[np.bool_]:
        """Tell in which windows all prices and bands are above zero, shape (N,); add the others' first fault.

        Columns and the open times of their bars are of the shape (N, bars).
        """
        is_sound = np.ones(len(open_time_s), np.bool_)
        prices = [name for task in TASKS.values() if task.is_price for name in task.columns]
        for name, values in columns.items():
            is_price = any(name == each or name.startswith(f"{each}_q") for each in prices)
            if is_price and (values <= 0).any():
                row = np.unravel_index(np.argmin(values), values.shape)
                faults.append(f"{name} {values[row]:.7g} for the bar at {iso(int(open_time_s[row]))}")
                is_sound &= (values > 0).all(axis=1)
        return is_sound

    def _by_column(self, forecasts: Forecasts) -> dict[str, NDArray[np.float32]]:
        """Return what a frame shows by the names of its columns, each (N, H): points, then quantiles."""
        shown = {
            name: values[:, :, number]
            for task, values in forecasts.points.items()
            for number, name in enumerate(TASKS[task].columns)
        }
        return shown | {
            quantile_column(name, level): values[:, :, place, number]
            for task, values in forecasts.quantiles.items()
            for number, name in enumerate(TASKS[task].columns)
            for place, level in enumerate(self.quantiles)
            if level != MEDIAN  # which is the point forecast
        }

    def _warn_of_seen(self, open_time_s: NDArray[np.int64]) -> None:
        num_seen = int(np.count_nonzero(open_time_s + self.series.bar_s < self.trained_until_s))
        if num_seen:
            warnings.warn(
                f"{self.series}: {num_seen:,} of {len(open_time_s):,} forecasts are issued before "
                f"{iso(self.trained_until_s)}, in candles that training has seen; their errors promise nothing",
                SeenCandlesWarning,
                stacklevel=self._stacklevel,
            )

    def _require_unbroken(self, candles: Candles) -> None:
        """Refuse candles that break off before a window and its warm-up are complete."""
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
        """Refuse candles after which too many bars have closed."""
        now_s = _present_s(now_s)
        closed_s = int(candles.open_time_s[-1]) + self.series.bar_s
        age_bars = (now_s - closed_s) // self.series.bar_s
        if age_bars > max_age_bars:
            raise self._refusal(
                f"at most {max_age_bars} bars may have closed after the newest candle",
                f"{age_bars:,} bars between its close at {iso(closed_s)} and now, {iso(now_s)}",
                "Take newer ones (param:source live), or allow old (param:allow_old; "
                "in Python max_age_bars=None)",
            )

    def _refusal(self, rule: str, got: str, fix: str) -> DataError:
        return DataError(where=str(self.series), rule=rule, got=got, fix=fix)

    def _require_fit(self, where: str) -> None:
        """Refuse a model whose shapes are not those that its metadata promises."""
        expected: dict[str, tuple[int, ...]] = {
            task: (self.horizon_bars, len(TASKS[task].columns)) for task in self.about.tasks if task in TASKS
        }
        if self.quantiles:
            num_levels = len(self.quantiles)
            expected |= {
                quantile_output(task): (shape[0], num_levels, shape[1]) for task, shape in expected.items()
            }
        outputs = self.model.output if isinstance(self.model.output, dict) else {}
        found = {task: tuple(output.shape[1:]) for task, output in outputs.items()}
        window = [tuple(model_input.shape[1:]) for model_input in self.model.inputs]
        if window != [(self.lookback_bars, len(self.features))] or found != expected or not found:
            rule = f"must take and give what {METADATA_FILE} says: "
            rule += f"({self.lookback_bars}, {len(self.features)}) to {expected}"
            got = f"{', '.join(map(str, window))} to {found}"
            raise ArtifactError(where=where, rule=rule, got=got, fix=_FIX)
        wrong = _contradictions(self.about)
        if wrong:
            rule = f"must be what {METADATA_FILE} says in all of its keys"
            raise ArtifactError(where=where, rule=rule, got=f"a contradiction in {listed(wrong)}", fix=_FIX)


def _beside_candles(known: Candles, history: pd.DataFrame) -> pd.DataFrame:
    """Join a history of forecasts to the newest candle that each of them knew."""
    ahead = pd.DataFrame(history.droplevel(OPEN_TIME).unstack(STEP))
    ahead.columns = ahead.columns.map("{0[0]}_ahead_{0[1]}".format)
    frame = known.to_frame()
    frame[USABLE_FROM] = pd.to_datetime(known.open_time_s + known.series.bar_s, unit="s", utc=True)
    return frame.join(ahead, on=USABLE_FROM)


def checked_candles(candles: Candles | RawCandles, series: Series, now_s: int | None = None) -> Candles:
    """Return checked candles of a series.

    Args:
        candles: Checked candles, or a table of raw ones as `v8.market.frames` reads it: a frame, rows of an
            exchange library, columns by name; open times in any unit that `v8.market.frames` reads
            (without a zone: UTC), any row order. What names symbol, timeframe or series must agree.
        series: What they must be of.
        now_s: The present, seconds since the epoch, UTC; None for this machine's clock. Only a frame's
            running bar depends on it.

    Raises `DataError` if they are of another series or timeframe, cannot be repaired without guessing, or
    their newest row that has closed cannot be used.
    """
    if not isinstance(candles, Candles):
        candles = check_candles(candles, series, source=FRAME, now_s=_present_s(now_s))
        require_one_unit(candles)
    elif candles.series != series:
        raise of_another_series(series, str(candles.series))
    require_newest(candles)
    return candles


def _present_s(now_s: int | None) -> int:
    return int(time.time()) if now_s is None else now_s


def seconds_of(moment: str | datetime | None, default: int) -> int:
    """Return a moment in seconds since the epoch; without a zone it is UTC.

    Raises `DataError` if it is none, or before 1678 or after 2261.
    """
    if moment is None:
        return default
    try:
        return int(pd.to_datetime(moment, utc=True).timestamp())
    except (ValueError, OverflowError, TypeError) as error:  # NaT has no timestamp
        rule = "is a time, such as 2024-08-01 or 2024-08-01T12:00+02:00"
        fix = "Write it in ISO 8601; without a zone it is UTC"
        raise DataError(where="start or end", rule=rule, got=repr(moment), fix=fix) from error


def _require_same(feature: FeatureAbout, where: str) -> None:
    """Refuse a feature that is not computed as it was when the model was trained.

    The digest decides; artefacts from before there was one are evaluated by their sentence.
    """
    name, digest = feature.name, indicators.ancestry(feature.name).digest
    ours = indicators.definitions([name])[name]
    if feature.digest != digest and (feature.digest is not None or feature.definition != ours):
        of_package = ", and the version of ta that it names" if indicators.is_of_package(name) else ""
        rule = f"this v8 computes it as {ours!r}"
        got = f"another formula, {feature.definition!r}"
        fix = f"Use the v8 that trained the model{of_package}"
        raise ArtifactError(where=f"{where}, feature {name}", rule=rule, got=got, fix=fix)


def _contradictions(about: Metadata) -> list[str]:
    """Name the keys that say otherwise than the others, or than the series."""
    profile = about.profile
    agrees = {
        "bar_s": about.bar_s == Series.parse(about.series).bar_s,
        "profile.lookback_bars": profile.lookback_bars in (None, about.lookback_bars),
        "profile.horizon_bars": profile.horizon_bars in (None, about.horizon_bars),
        "profile.features": profile.features in (None, tuple(about.names)),
        "profile.quantiles": not profile.quantiles or fault_of(profile.quantiles) is None,
        **{
            f"tasks.{task}": task in TASKS and one.columns == TASKS[task].columns
            for task, one in about.tasks.items()
        },
    }
    return [key for key, is_so in agrees.items() if not is_so]
