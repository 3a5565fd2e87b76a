"""The models, forecasts and live record of a page: from a run folder, or a repository on the Hub.

A source of models is read again now and then; its content at that moment is a `ModelSnapshot`, which never
changes. A run that is renewed meanwhile, or published again, gives another snapshot at the next refresh.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.annexes.live.ledger.database import Ledger
from v8.annexes.live.ledger.entries import Entry
from v8.annexes.live.ledger.record import (
    LiveRecord,
    live_record,
)
from v8.api.issuing import IssuedForecast, issue_forecast
from v8.base.arrays import FloatArray
from v8.base.errors import ArtifactError, DataError, V8Error, listed
from v8.base.records import open_given
from v8.base.wording import say
from v8.data.features import compute_columns
from v8.data.market.candles import Candles
from v8.data.market.series import Series
from v8.data.market.sources import CandleSource
from v8.data.market.sources.demo import DemoSource
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import Metadata, read_metadata
from v8.forecaster.shared_models import KERAS, SharedModels
from v8.model.evaluation.leaderboard import LeaderboardRow, rank_results
from v8.profile.columns import BAND_PERIOD_BARS, CLOSE, VOLATILITY
from v8.profile.formulas import DAY_S
from v8.publish.hub.places import ModelPlace, open_place

HUB_REFRESH_S: Final = 900.0  # the Hub is asked for a newer commit at most once in so many seconds
MONTH_DAYS: Final = 30  # a volatility is compared with those of so many days
_HEADER_BYTES: Final = 96
_RUN_LABEL: Final = "run "  # begins the label of a run folder, see `ModelSource`


@dataclass(frozen=True, eq=False)
class ModelSnapshot:
    """The models of a place at one moment."""

    label: str  # name of the place for readers; never a path
    revision: str | None  # commit of the Hub, 40 hex digits; None for a run of this machine
    folders: Mapping[Series, Path]
    metadata: Mapping[Series, Metadata]  # in the order of `folders`
    refused: Mapping[str, str]  # why some series are not shown, for the operator

    @cached_property
    def rows(self) -> list[LeaderboardRow]:
        """The leaderboard, best first."""
        return rank_results(metadata.result for metadata in self.metadata.values())

    @cached_property
    def row_of(self) -> dict[str, LeaderboardRow]:
        """The rows of the leaderboard by the name of the series."""
        return {row.series: row for row in self.rows}


@dataclass(frozen=True, eq=False)
class PastMonth:
    """What is known of the month before a day; all arrays are empty if its candles are not available."""

    volatility_percentiles: FloatArray = field(default_factory=lambda: np.empty(0))
    """Percentiles 0 to 100 of the volatility at each bar, shape (101,); empty if there are very few bars."""
    open_time_s: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Open times of the bars of the last two days, shape (N,), seconds since the epoch, UTC."""
    close: FloatArray = field(default_factory=lambda: np.empty(0))
    """Their closes, shape (N,), in quote currency."""


class ModelSource:
    """Where models are: a run folder, the folder of one series, or `user/name` on the Hub.

    Args:
        location: The folder as a path, or the repository as text.
        revision: Branch, tag or commit of the Hub; the newest commit of `main` when None.
        is_offline: Whether only what was downloaded before is used.
    """

    def __init__(
        self, location: Path | str, revision: str | None = None, *, is_offline: bool = False
    ) -> None:
        self.location = location
        self._revision = revision
        self._is_offline = is_offline
        self._snapshot: ModelSnapshot | None = None
        self._state: object = None
        self._refreshed_s = 0.0

    def refresh(self) -> ModelSnapshot:
        """Return the models as they are now, the same object while nothing changed.

        The Hub is asked at most every `HUB_REFRESH_S`.

        Raises:
            V8Error: If there is no model.
        """
        is_hub = isinstance(self.location, str)
        if self._snapshot and is_hub and time.monotonic() - self._refreshed_s < HUB_REFRESH_S:
            return self._snapshot
        place = open_place(self.location, revision=self._revision, is_offline=self._is_offline)
        state = {name: place.version_of(name) for name in place.series}
        self._refreshed_s = time.monotonic()
        if self._snapshot is None or state != self._state:
            self._snapshot = _read_snapshot(place)
            self._state = state
        return self._snapshot


class ForecastIssuer:
    """Issues forecasts of the present with models in memory, which are loaded again when another serves.

    Args:
        source: Where candles come from.
        runtime: What computes, as for `SharedModels`.
    """

    def __init__(self, source: CandleSource, runtime: str = KERAS) -> None:
        self._source = source
        self._models = SharedModels(runtime)
        self._month_before = lru_cache(maxsize=4_096)(partial(month_before, source))

    def __call__(self, snapshot: ModelSnapshot, series: Series) -> tuple[IssuedForecast, PastMonth]:
        """Forecast the bars after the newest closed candle of a series of the snapshot.

        Returns:
            The forecast, and the `month_before` the day of that candle; an empty one if the candles of the
            month are not available.

        Raises:
            DataError: If the candles are not available, cannot be trusted, or are too old.
            ArtifactError: If the model cannot be trusted.
        """
        load = partial(
            Forecaster.load, snapshot.folders[series], revision=snapshot.revision, models=self._models
        )
        forecaster = self._models.serving(str(series), snapshot.metadata[series].model_sha256, load)
        issued = issue_forecast(forecaster, self._source, snapshot.label)
        month = PastMonth()
        with suppress(DataError):
            month = self._month_before(series, issued.closed_s // DAY_S)
        return issued, month


def month_before(source: CandleSource, series: Series, day: int) -> PastMonth:
    """Return what is known of the month before a day.

    Args:
        source: Where the candles come from.
        series: The series.
        day: The first day after the `MONTH_DAYS`, counted from the epoch, UTC.
    """
    num_bars = MONTH_DAYS * DAY_S // series.bar_s + BAND_PERIOD_BARS - 1
    candles = source.candles(series, num_bars, day * DAY_S - 1)
    (volatility,) = compute_columns(candles, [VOLATILITY])[VOLATILITY]
    volatility = volatility[np.isfinite(volatility)]
    percentiles = np.empty(0)
    if len(volatility) >= BAND_PERIOD_BARS:
        percentiles = np.percentile(volatility, np.arange(101))
    num_newest = -(-2 * DAY_S // series.bar_s)
    return PastMonth(percentiles, candles.open_time_s[-num_newest:], candles.column(CLOSE)[-num_newest:])


def change_of_a_day(candles: Candles, month: PastMonth) -> float | None:
    """Return by which share the newest close differs from the one 24 hours earlier; None if that is unknown.

    Args:
        candles: The newest candles.
        month: The month before the day of the newest one.
    """
    open_time_s = int(candles.open_time_s[-1]) - DAY_S
    for times_s, closes in (
        (candles.open_time_s, candles.column(CLOSE)),
        (month.open_time_s, month.close),
    ):
        position = int(np.searchsorted(times_s, open_time_s))
        if position < len(times_s) and times_s[position] == open_time_s:
            return float(candles.column(CLOSE)[-1] / closes[position]) - 1.0
    return None


class LedgerReader:
    """Reads the live record of a place from its ledger when that changed; the file need not exist.

    Another process (`python -m v8 forecast --every`) writes the ledger; here it is only read. The place is
    the folder of a run, or `user/name` on the Hub.
    """

    def __init__(self, file: Path, place: Path | str) -> None:
        self._file = file
        self._place = place
        self._state: tuple[object, ...] = ()
        self._record: LiveRecord | None = None

    def __call__(self) -> LiveRecord | None:
        """Return the live record of all series; None while there is no forecast of the place.

        Raises:
            ArtifactError: If the file is no ledger, or its content cannot be trusted.
        """
        try:
            state = _file_state(self._file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if state != self._state:
            with Ledger.open(self._file) as ledger:
                record = live_record(ledger, self._place)
            self._record = record if record.series else None
            self._state = state
        return self._record

    def forecasts_since(self, series: str, since_s: int) -> list[Entry]:
        """Return the forecasts of a series for closes from a time on; none while there is no file.

        Args:
            series: Its name.
            since_s: Seconds since the epoch, UTC.

        Raises:
            ArtifactError: If the file is no ledger, or its content cannot be trusted.
        """
        if not self._file.exists():
            return []
        with Ledger.open(self._file) as ledger:
            return ledger.forecasts_since(self._place, series, since_s)


def _read_snapshot(place: ModelPlace) -> ModelSnapshot:
    """Read what serves in a place; an artefact that cannot be trusted is left out, with the reason."""
    metadata: dict[Series, Metadata] = {}
    folders: dict[Series, Path] = {}
    refused = {}
    revision = None
    place.prefetch(place.series)
    for name in place.series:
        try:
            folder, revision = place.locate(name)
            series_metadata = read_metadata(folder, series=name)
            _ = series_metadata.result  # the leaderboard shows it; one that is damaged is refused here
            series = Series.parse(name)
        except V8Error as error:
            refused[name] = str(error)
        else:
            folders[series] = folder
            metadata[series] = series_metadata
    if not metadata:
        raise ArtifactError(
            where=place.label,
            rule="a page needs at least one finished series",
            got=f"none that can be read: {listed(list(refused.values()))}" if refused else "none",
            fix="Finish the run first, or name another one",
        )
    snapshot = ModelSnapshot(
        label=place.label, revision=revision, folders=folders, metadata=metadata, refused=refused
    )
    _ = snapshot.row_of  # computed here, because every request would wait for it
    return snapshot


def _file_state(file: Path) -> tuple[object, ...]:
    """Return what changes when a reader finds more in a ledger: inode, time, size, and state of its log.

    The state of the log is in its index: the header is written when added rows become visible
    (https://sqlite.org/walformat.html, 2.1). The log itself grows earlier, so its time and size would stand
    for rows that cannot be read yet.
    """
    try:
        with open_given(file.with_name(f"{file.name}-shm")) as index:
            header = index.read(_HEADER_BYTES)
    except OSError:  # either no process has the ledger open, so all is in the file; or opening it will fail
        header = b""
    status = file.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size, header


def place_in_words(label: str) -> str:
    """Return the label of a place, see `ModelSnapshot`, in the current language."""
    run = run_name(label)
    return label if run is None else say("run {name}", name=run)


def run_name(label: str) -> str | None:
    """Return the name of the run folder that a label of a place is of; None for another place."""
    return label.removeprefix(_RUN_LABEL) if label.startswith(_RUN_LABEL) else None


def is_demo(snapshot: ModelSnapshot, source: str) -> bool:
    """Return whether a model was trained on the simulated market, or the candles come from it."""
    return source == DemoSource.name or any(
        metadata.is_demo_market for metadata in snapshot.metadata.values()
    )
