"""Where the models, forecasts and live record of a page come from: a run folder, or a repository on the Hub.

A place is looked at now and then; what it holds at that moment is a `Fleet`, which never changes. A run that
is renewed under our feet, or published again, becomes another fleet at the next look.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Final

import numpy as np

from v8.artifacts.forecaster import Forecaster
from v8.artifacts.metadata import Metadata, read_metadata
from v8.artifacts.shared_models import SharedModels
from v8.columns import BAND_PERIOD_BARS, VOLATILITY
from v8.errors import ArtifactError, DataError, V8Error, listed, shown
from v8.evaluation.leaderboard import LeaderboardRow, rank_results
from v8.features.formulas import DAY_S, Floats
from v8.features.table import compute_columns
from v8.forecasts.issuing import Issued, issue
from v8.hub.opening import ModelPlace, open_place
from v8.ledger.database import Ledger
from v8.ledger.record import Record, live_record
from v8.market.series import Series
from v8.market.sources.source import CandleSource
from v8.storage import open_given

HUB_LOOK_S: Final = 900.0  # the Hub is asked at most once in so many seconds whether there is a newer commit
MONTH_DAYS: Final = 30  # what is calm or wild is told beside so many days
_HEADER_BYTES: Final = 96


@dataclass(frozen=True, eq=False)
class Fleet:
    """The models of a place at one moment."""

    label: str  # what readers call the place; never a path
    revision: str | None  # commit of the Hub, 40 hex digits; None for a run of this machine
    folders: Mapping[Series, Path]
    metadata: Mapping[Series, Metadata]  # in the order of `folders`
    refused: Mapping[str, str]  # why some series are not shown, for the operator

    @cached_property
    def rows(self) -> list[LeaderboardRow]:
        """The leaderboard, best first."""
        return rank_results(about.result for about in self.metadata.values())


class Place:
    """Where models are: a run folder, the folder of one series, or `user/name` on the Hub.

    There at a branch, tag or commit, or the newest of `main`.
    """

    def __init__(self, where: Path | str, revision: str | None = None, *, is_offline: bool = False) -> None:
        self.where = where
        self._revision = revision
        self._is_offline = is_offline
        self._fleet: Fleet | None = None
        self._seen: object = None
        self._looked_s = 0.0

    def look(self) -> Fleet:
        """Return what is there now, the same object while nothing changed; V8Error if there is no model.

        The Hub is asked at most every `HUB_LOOK_S`.
        """
        is_hub = isinstance(self.where, str)
        if self._fleet and is_hub and time.monotonic() - self._looked_s < HUB_LOOK_S:
            return self._fleet
        place = open_place(self.where, revision=self._revision, is_offline=self._is_offline)
        seen = {name: place.present(name) for name in place.series}
        self._looked_s = time.monotonic()
        if self._fleet is None or seen != self._seen:
            label = place.name if is_hub else shown(f"run {Path(place.name).resolve().name}")
            self._fleet = _fleet(label, place)
            self._seen = seen
        return self._fleet


class FleetForecasts:
    """Forecasts of the present from models in memory, one a series, loaded again when another serves."""

    def __init__(self, source: CandleSource) -> None:
        self._source = source
        self._models = SharedModels()
        self._month = lru_cache(maxsize=4_096)(partial(month_before, source))

    def __call__(self, fleet: Fleet, series: Series) -> tuple[Issued, Floats]:
        """Forecast the bars after the newest closed candle of a series that the fleet has.

        Beside the forecast stands the `month_before` the day of that candle, of which there is nothing where
        its candles cannot be had.

        Raises:
            DataError: If the candles cannot be had or trusted, or are too old.
            ArtifactError: If the model cannot be trusted.
        """
        load = partial(Forecaster.load, fleet.folders[series], revision=fleet.revision, models=self._models)
        forecaster = self._models.serving(str(series), fleet.metadata[series].model_sha256, load)
        issued = issue(forecaster, self._source, fleet.label)
        with suppress(DataError):
            return issued, self._month(series, issued.closed_s // DAY_S)
        return issued, np.empty(0)


def month_before(source: CandleSource, series: Series, day: int) -> Floats:
    """Return the percentiles 0 to 100 of the volatility at each bar, shape (101,); nothing of very few bars.

    They are those of the `MONTH_DAYS` before a day since the epoch, UTC.
    """
    num_bars = MONTH_DAYS * DAY_S // series.bar_s + BAND_PERIOD_BARS - 1
    candles = source.candles(series, num_bars, day * DAY_S - 1)
    (known,) = compute_columns(candles, [VOLATILITY])[VOLATILITY]
    known = known[np.isfinite(known)]
    return np.percentile(known, np.arange(101)) if len(known) >= BAND_PERIOD_BARS else np.empty(0)


class LedgerReader:
    """Reads the live record of a place from its ledger when that changed; the file need not exist.

    Whoever issues forecasts writes the ledger in a process of its own (`python -m v8 forecast --every`); here
    it is only read. The place is the folder of a run, or `user/name` on the Hub.
    """

    def __init__(self, file: Path, place: Path | str) -> None:
        self._file = file
        self._place = place
        self._seen: tuple[object, ...] = ()
        self._record: Record | None = None

    def __call__(self) -> Record | None:
        """Return the live record of all series; None while there is no forecast of the place.

        Raises:
            ArtifactError: If the file is no ledger, or what it holds cannot be trusted.
        """
        try:
            seen = _stamp(self._file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if seen != self._seen:
            with Ledger.open(self._file) as ledger:
                record = live_record(ledger, self._place)
            self._record = record if record.series else None
            self._seen = seen
        return self._record


def _fleet(label: str, place: ModelPlace) -> Fleet:
    """Read what serves in a place; an artefact that cannot be trusted is left out, and why is kept."""
    metadata: dict[Series, Metadata] = {}
    folders: dict[Series, Path] = {}
    refused = {}
    revision = None
    place.bring(place.series)
    for name in place.series:
        try:
            folder, revision = place.found(name)
            about = read_metadata(folder, series=name)
            _ = about.result  # which is shown
            series = Series.parse(name)
            folders[series], metadata[series] = folder, about
        except V8Error as error:
            refused[name] = str(error)
    if not metadata:
        rule = "a page needs at least one finished series"
        got = f"none that can be read: {listed(list(refused.values()))}" if refused else "none"
        raise ArtifactError(where=label, rule=rule, got=got, fix="Finish the run first, or name another one")
    return Fleet(label, revision, folders, metadata, refused)


def _stamp(file: Path) -> tuple[object, ...]:
    """Return what changes not later than a reader finds more in a ledger: its number, time, size, and log.

    The log's index has it: its header is written when what was added counts (https://sqlite.org/walformat.html,
    2.1). The log itself grows before, so that its time and size would stand for what is not there yet.
    """
    try:
        with open_given(file.with_name(f"{file.name}-shm")) as index:
            header = index.read(_HEADER_BYTES)
    except OSError:  # nobody has the ledger open: all is in the file; or opening the ledger will tell
        header = b""
    about = file.stat()
    return about.st_ino, about.st_mtime_ns, about.st_size, header
