"""The source `vision`: the exchange's public archive of monthly and daily candle zips.

A series is assembled from the newest monthly zip, the daily zips after it, and then older months until there
are enough candles. A month that is absent between two others is read from daily zips.

    {base}/data/spot/{monthly|daily}/klines/{SYM}/{TF}/{SYM}-{TF}-{YYYY-MM[-DD]}.zip   and .CHECKSUM

Whether a zip exists is checked by requesting its .CHECKSUM. If only the checksum is missing, the zip itself
would be overlooked; therefore the zip is requested wherever candles are missing: within the series, directly
before its oldest and after its newest candle, and at the newest complete month of a series without any
checksum.

A zip is valid if its sha256 is the one in its .CHECKSUM and it contains exactly one file, with the expected
name and a plausible size, whose rows lie within its month or day. Nothing is ever unpacked to disk. Valid
zips are cached by base address and never requested again. Absence is never cached, because archives grow.
The base address is `V8_VISION_URL`, read at each call; its user and password are sent with every request and
nowhere else.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import ceil
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final

import numpy as np
import pandas as pd

from v8.base import storage
from v8.base.errors import DataError, UnknownSeriesError
from v8.base.records import read_given
from v8.data.market.candles import Candles, Times, require_num_bars
from v8.data.market.checks import check_candles
from v8.data.market.frames import read_open_times
from v8.data.market.series import DAY_S, US_PER_S, Series, iso
from v8.data.market.sources import SPOT, Market, kept_places
from v8.data.market.sources.downloads import Address, Downloader, FileFetcher, OfflineFetcher, read_address
from v8.data.market.sources.tables import (
    MAX_CHECKSUM_BYTES,
    PACKING_FAULTS,
    checksum_of,
    read_csv_table,
    unzipped,
)
from v8.profile.columns import OPEN_TIME

URL_VARIABLE: Final = "V8_VISION_URL"
DEFAULT_URL: Final = "https://data.binance.vision"
MAX_ZIP_BYTES: Final = 64 << 20
MAX_CSV_BYTES: Final = 128 << 20  # a month of one-minute candles is about 6 MB of text
MAX_EXPANSION: Final = 100  # candles shrink by a factor of 3 to 6, the zeros of a decompression bomb by 1,000
_NUM_CHECKSUM_TRIES: Final = 3
Tables = dict[pd.Period, pd.DataFrame]  # rows of each month or day


FIRST_MONTH = pd.Period("2017-07", "M")  # the exchange opened in July 2017; there are no older candles


PROBES_AT_ONCE = 8


MOST_ABSENT_DAYS = 7


MOST_ABSENT_MONTHS = 12


_SHORTEST_MONTH_S = 28 * DAY_S


_MOST_MONTHS_AT_ONCE = 12


class NotArchivedError(UnknownSeriesError):
    """The archive has no candles of a series; the exchange may have some."""


@dataclass(frozen=True, eq=False, kw_only=True)
class VisionSource:
    """Candles from the exchange archive, or a mirror of it."""

    is_publishable: ClassVar = True

    market: Market = SPOT
    downloader: FileFetcher = field(default_factory=partial(Downloader, URL_VARIABLE))
    now: Callable[[], float] = time.time  # clock in seconds since the epoch
    place: str | None = None  # folder of the cache; that of the present address when None

    def __post_init__(self) -> None:
        read_archive_address()

    @property
    def name(self) -> str:
        """The name under which the source is opened."""
        return f"vision{self.market.source_suffix}"

    def require(self, series: Series) -> None:
        """Refuse a series that is not in the archive, by requesting checksums only; see `ChecksSeries`."""
        zips = self._zips(series)
        now_s = int(self.now())
        if zips.newest_month(now_s) is None and zips.newest(_recent_days(now_s)) is None:
            raise _not_archived(zips, now_s)

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the archive; see `CandleSource`."""
        require_num_bars(num_bars, series)
        zips = self._zips(series)
        now_s = int(self.now())
        last_s = now_s if end_s is None else min(end_s, now_s)
        candles = _collected(zips, num_bars, last_s, now_s).newest(num_bars, last_s)
        if end_s is None:
            return candles
        num_newer = _num_newer(zips, int(candles.open_time_s[-1]), now_s)
        return candles.with_report(num_newer=max(candles.report.num_newer, num_newer))

    def cache_places(self) -> tuple[str, ...]:
        """List the folders of the cache; see `CachesCandles`."""
        return kept_places(_cache() / read_archive_address().folder_name)

    def cached(self, series: Series, num_bars: int, end_s: int, place: str | None = None) -> Candles:
        """Return the candles of the cached zips up to a time; see `CachesCandles`."""
        return replace(self, downloader=OfflineFetcher(), place=place).candles(series, num_bars, end_s)

    def _zips(self, series: Series) -> "_SeriesZips":
        self.market.require_listed(series, self.name)
        return _SeriesZips(
            series=series,
            market=self.market,
            source=self.name,
            address=read_archive_address(),
            downloader=self.downloader,
            place=self.place,
        )


def _cache() -> Path:
    return storage.home() / "vision"


def read_archive_address() -> Address:
    """Read the base address of the archive: that of `V8_VISION_URL`, or the exchange's own."""
    return read_address(URL_VARIABLE, DEFAULT_URL, "a candle archive")


@dataclass(frozen=True, eq=False, kw_only=True)
class ArchiveZips(ABC):
    """Zips of one kind during one call: from the cache, or else from the archive."""

    address: Address
    downloader: FileFetcher
    place: str | None = None  # folder of the cache, of `cache_places`; that of the address when None
    _checksums: dict[pd.Period, str | None] = field(default_factory=dict)  # None for an absent one

    @abstractmethod
    def path(self, period: pd.Period) -> PurePosixPath:
        """Return the path of a zip below the base address; that of its checksum ends in `.zip.CHECKSUM`."""

    @abstractmethod
    def read(self, content: bytes, period: pd.Period) -> pd.DataFrame:
        """Read the rows of a zip in memory; a `DataError` if it is not what its name says."""

    @abstractmethod
    def check(self, table: pd.DataFrame) -> None:
        """Refuse rows with faults: such a zip is not cached, because its publisher may correct it."""

    def url(self, period: pd.Period) -> str:
        """Return the address of a zip."""
        return f"{self.address.url}/{self.path(period)}"

    def newest(self, periods: Sequence[pd.Period]) -> pd.Period | None:
        """Return the newest of some months and days that exists; None if none does."""
        exist = self.downloader.map(self._exists, periods)
        return max((period for period, exists in zip(periods, exist, strict=True) if exists), default=None)

    def tables(self, periods: Sequence[pd.Period]) -> Tables:
        """Read many zips in parallel and return those that exist."""
        tables = self.downloader.map(self._table, periods)
        return {period: table for period, table in zip(periods, tables, strict=True) if table is not None}

    def absent(self) -> list[pd.Period]:
        """List the requested months and days without a checksum."""
        return [period for period, checksum in self._checksums.items() if checksum is None]

    def require_absent(self, periods: Iterable[pd.Period]) -> None:
        """Refuse an archive in which zips exist whose checksums are missing."""
        self.downloader.map(self._require_absent, periods)

    def _require_absent(self, period: pd.Period) -> None:
        url = self.url(period)
        if self._fetch(url, MAX_ZIP_BYTES) is not None:
            raise foreign_file(f"{url}.CHECKSUM", "must exist if its zip does", "the zip alone")

    def _exists(self, period: pd.Period) -> bool:
        return self._cached(period) is not None or self._checksum(period) is not None

    def _table(self, period: pd.Period) -> pd.DataFrame | None:
        """Read a zip from the cache or the archive; None if it does not exist."""
        cached = self._cached(period)
        if cached is not None:
            return self.read(cached, period)
        content = self._downloaded(period)
        if content is None:
            return None
        table = self.read(content, period)
        with suppress(DataError):
            self.check(table)
            path, checksum_path = self._cache_paths(period)
            storage.write_cache(path, content)
            storage.write_cache(checksum_path, f"{storage.digest_bytes(content)}\n".encode("ascii"))
        return table

    def _cached(self, period: pd.Period) -> bytes | None:
        """Return a zip from the cache; None if it is missing or damaged."""
        path, checksum_path = self._cache_paths(period)
        try:
            content = read_given(path, MAX_ZIP_BYTES)
            checksum = read_given(checksum_path, MAX_CHECKSUM_BYTES).decode("ascii")
        except (OSError, UnicodeDecodeError):
            return None
        return content if storage.digest_bytes(content) == checksum.strip() else None

    def _downloaded(self, period: pd.Period) -> bytes | None:
        """Download a zip and verify its checksum; None if there is no checksum."""
        url = self.url(period)
        got = "another one"
        for _ in range(_NUM_CHECKSUM_TRIES):
            checksum = self._checksum(period)
            if checksum is None:
                return None
            content = self._fetch(url, MAX_ZIP_BYTES)
            if content is not None and storage.digest_bytes(content) == checksum:
                return content
            got = "no zip" if content is None else "another one"
            # Either of the two may be outdated: request both again.
            self._checksums.pop(period, None)
        raise DataError(
            where=url,
            rule="must have the sha256 of its .CHECKSUM",
            got=f"{got}, {_NUM_CHECKSUM_TRIES} times",
            fix=f"Try again later or set {URL_VARIABLE} to another mirror",
        )

    def _checksum(self, period: pd.Period) -> str | None:
        """Return the published sha256 of a zip, requested once; None if there is none."""
        if period not in self._checksums:
            url = f"{self.url(period)}.CHECKSUM"
            path = self.path(period)
            content = self._fetch(url, MAX_CHECKSUM_BYTES)
            self._checksums[period] = None if content is None else _read_checksum(content, path, url)
        return self._checksums[period]

    def _fetch(self, url: str, max_bytes: int) -> bytes | None:
        return self.downloader.fetch(url, max_bytes=max_bytes, auth=self.address.auth)

    def _cache_paths(self, period: pd.Period) -> tuple[Path, Path]:
        """Return the paths of a cached zip and of its checksum."""
        path = _cache() / (self.place or self.address.folder_name) / self.path(period)
        return path, path.with_name(f"{path.name}.sha256")


@dataclass(frozen=True, eq=False, kw_only=True)
class _SeriesZips(ArchiveZips):
    """The zips of one series."""

    series: Series
    market: Market
    source: str  # name of the source, for messages

    def path(self, period: pd.Period) -> PurePosixPath:
        """See `ArchiveZips`."""
        return _zip_path(self.market, self.series, period)

    def read(self, content: bytes, period: pd.Period) -> pd.DataFrame:
        """Return the columns `open_time` and `OHLCV`; the rows are in the order of the file."""
        return _read_zip(content, self.series, period, self.url(period), self.market)

    def check(self, table: pd.DataFrame) -> None:
        """See `ArchiveZips`."""
        check_candles(table, self.series, source=self.source)

    def newest_month(self, last_s: int) -> pd.Period | None:
        """Return the newest month that exists, at or before a time; None without any."""
        months = list(_months_back(_period(last_s, "M")))
        for start in range(0, len(months), PROBES_AT_ONCE):
            probed = []
            for month in months[start : start + PROBES_AT_ONCE]:
                probed.append(month)
                if self._cached(month):  # it exists: older months need not be requested
                    break
            newest = self.newest(probed)
            if newest:
                return newest
        return None


def _read_checksum(content: bytes, path: PurePosixPath, location: str) -> str:
    """Read the sha256 in the .CHECKSUM of a zip: 64 small hex digits."""
    checksum = checksum_of(content, path.name)
    if checksum is None:
        got = repr(content[:120].decode("utf-8", "replace"))
        raise foreign_file(location, f"must hold a sha256 and the name {path.name}", got)
    return checksum


def zip_member(content: bytes, expected: str, location: str) -> bytes:
    """Return the only file of a zip, which must have the expected name and a plausible size."""
    limit = min(MAX_CSV_BYTES, MAX_EXPANSION * len(content))
    try:
        names, text = unzipped(content, limit)
    except PACKING_FAULTS as error:
        raise foreign_file(location, "must be an intact zip", " ".join(str(error).split())) from error
    if names != [expected]:
        raise foreign_file(location, f"must hold the one file {expected}", f"{names[:5]}")
    if len(text) > limit:
        raise foreign_file(location, f"must unpack to at most {limit} bytes", "more")
    return text


def require_within(open_s: Times, period: pd.Period, location: str) -> None:
    """Refuse rows that do not open within their month or day.

    Args:
        open_s: Open times, seconds since the epoch, shape (N,).
        period: The month or day.
        location: The file, for messages.
    """
    opened = open_s.astype("datetime64[s]")
    first = period.start_time.to_datetime64()
    end = (period + 1).start_time.to_datetime64()
    is_outside = (opened < first) | (opened >= end)
    if is_outside.any():
        others = f"{int(is_outside.sum())} others, the first at {iso(int(open_s[np.argmax(is_outside)]))}"
        raise foreign_file(location, f"rows must open within {period}", others)


def foreign_file(location: str, rule: str, got: str) -> DataError:
    """Return the error for a file that is not what its name in the archive says."""
    return DataError(where=location, rule=rule, got=got, fix=f"Check that {URL_VARIABLE} is a candle archive")


def _collected(zips: _SeriesZips, num_bars: int, last_s: int, now_s: int) -> Candles:
    """Read zips, newest first, until they hold enough candles or the archive has no more."""
    newest = zips.newest_month(last_s)
    if newest is None:  # a newly listed symbol has no monthly zip yet
        tables = zips.tables(_recent_days(last_s))
        older = _months_back(FIRST_MONTH - 1)
        if not tables:
            zips.require_absent([_period(last_s, "M") - 1])
            raise _not_archived(zips, last_s)
    else:
        tables = _days_from(zips, (newest + 1).asfreq("D", "start"), last_s) | zips.tables([newest])
        older = _months_back(newest - 1)
    absent: list[pd.Period] = []
    while True:
        ordered = sorted(tables, key=lambda period: period.start_time)
        frame = pd.concat([tables[period] for period in ordered], ignore_index=True)
        candles = check_candles(frame, zips.series, source=zips.source, now_s=now_s)
        num_missing = num_bars - int((candles.open_time_s <= last_s).sum())
        # Candles from before a re-listing would be dropped again.
        is_enough = num_missing <= 0 or candles.report.relisted_at is not None
        more = {} if is_enough else _older(zips, older, absent, num_missing)
        if not more:
            missed = [period for period in zips.absent() if _is_missed(period, candles, last_s)]
            complete = [period for period in missed if (period + 1).start_time.timestamp() <= now_s]
            zips.require_absent(complete)
            return candles
        tables |= more


def _num_newer(zips: _SeriesZips, last_open_s: int, now_s: int) -> int:
    """Count the bars after a candle up to the newest zip, by requesting checksums only, usually one."""
    next_s = last_open_s + zips.series.bar_s
    if next_s + DAY_S > now_s or not any(zips.newest([_period(next_s, freq)]) for freq in ("D", "M")):
        return 0
    today = _period(now_s, "D")
    recent = [today - back for back in range(MOST_ABSENT_DAYS + 1) if today - back >= _period(next_s, "D")]
    newest = zips.newest(recent) or zips.newest_month(now_s) or _period(next_s, "D")
    ends = ((period + 1).start_time.timestamp() for period in (newest, _period(next_s, "D")))
    return int(min(max(ends), now_s) - next_s) // zips.series.bar_s


def _is_missed(period: pd.Period, candles: Candles, last_s: int) -> bool:
    """Return whether candles of a month or day are missing within the series, or directly before or after it.

    Only bars up to `last_s` count.
    """
    bar_s = candles.series.bar_s
    times_s = candles.open_time_s
    begin_s = int(period.start_time.timestamp())
    end_s = int((period + 1).start_time.timestamp())
    first_s = max(begin_s, int(times_s[0]) - bar_s)
    stop_s = min(end_s, int(times_s[-1]) + 2 * bar_s, last_s + 1)
    num_present = int(((times_s >= first_s) & (times_s < stop_s)).sum())
    return num_present < len(range(first_s, stop_s, bar_s))


def _older(zips: _SeriesZips, months: Iterator[pd.Period], absent: list[pd.Period], num_bars: int) -> Tables:
    """Read at least one older month, and about `num_bars` rows; empty if the archive has no more.

    Args:
        zips: The zips of the series.
        months: Months that have not been read, newest first.
        absent: Absent months since the last one that was read; updated. Once an older month exists, they lie
            between two months and are read from daily zips.
        num_bars: Number of missing candles.
    """
    num_months = min(ceil(num_bars * zips.series.bar_s / _SHORTEST_MONTH_S), _MOST_MONTHS_AT_ONCE)
    tables: Tables = {}
    while not tables and len(absent) < MOST_ABSENT_MONTHS:
        batch = list(islice(months, num_months))
        if not batch:
            break
        tables = zips.tables(batch)
        days: list[pd.Period] = []
        for month in batch:
            absent.append(month)
            if month in tables:
                for absent_month in absent[:-1]:
                    days += _days(absent_month, absent_month)
                absent.clear()
        tables |= zips.tables(days)
    return tables


def _months_back(newest: pd.Period) -> Iterator[pd.Period]:
    return iter(pd.period_range(FIRST_MONTH, newest, freq="M")[::-1])


def _days_from(zips: _SeriesZips, first: pd.Period, last_s: int) -> Tables:
    """Read days in time order until all days of a week are absent."""
    days = _days(first, _period(last_s, "D"))
    tables: Tables = {}
    for start in range(0, len(days), MOST_ABSENT_DAYS):
        week = zips.tables(days[start : start + MOST_ABSENT_DAYS])
        tables |= week
        if not week:
            break
    return tables


def _recent_days(last_s: int) -> list[pd.Period]:
    return _days(_period(last_s, "M") - 1, _period(last_s, "D"))


def _not_archived(zips: _SeriesZips, last_s: int) -> NotArchivedError:
    return NotArchivedError(
        where=f"{zips.series} from {zips.source}",
        rule=f"needs a zip in the archive at or before {iso(last_s)}",
        got=f"none at {zips.url(_period(last_s, 'M'))}, nor for any month since {FIRST_MONTH} or recent day",
        fix=zips.market.advice(zips.series, f"Check the symbol, the timeframe and {URL_VARIABLE}"),
    )


def _days(first: pd.Period, last: pd.Period) -> list[pd.Period]:
    """List the days from the start of a month or day to the end of another, oldest first."""
    return list(pd.period_range(first.asfreq("D", "start"), last.asfreq("D", "end"), freq="D"))


def _period(time_s: int, freq: str) -> pd.Period:
    return pd.Period(pd.Timestamp(time_s, unit="s"), freq)


def _zip_path(market: Market, series: Series, period: pd.Period) -> PurePosixPath:
    """Return the path of a zip below the base address.

    >>> str(_zip_path(SPOT, Series("BTCUSDT", "4h"), pd.Period("2024-08", "M")))
    'data/spot/monthly/klines/BTCUSDT/4h/BTCUSDT-4h-2024-08.zip'
    """
    kind = "monthly" if period.freqstr == "M" else "daily"
    symbol = market.symbol_of(series)
    folder = PurePosixPath(market.archive_folder, kind, "klines", symbol, series.timeframe)
    return folder / f"{symbol}-{series.timeframe}-{period}.zip"


def _read_zip(
    content: bytes, series: Series, period: pd.Period, location: str, market: Market = SPOT
) -> pd.DataFrame:
    """Read the columns `open_time` and `OHLCV` of a zip in memory; the rows are in the order of the file."""
    expected = f"{_zip_path(market, series, period).stem}.csv"
    frame = read_csv_table(zip_member(content, expected, location), series, location)
    if frame.empty:
        raise foreign_file(location, "must hold at least one row", "a header only")
    require_within(read_open_times(frame[OPEN_TIME]).open_us // US_PER_S, period, location)
    return frame
