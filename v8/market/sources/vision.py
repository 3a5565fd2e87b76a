"""The source `vision`: the exchange's public archive of monthly and daily candle zips.

How a series is put together: find the newest month there is, add the days after it, then go back month
by month until there are enough candles. A month that is absent between two others is looked for in
daily zips. The base address is `V8_VISION_URL`, read at each call.

A zip that was downloaded and verified is final: it is kept under the cache folder, by base address,
and never asked for again. That something is absent is never remembered, because archives grow.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from math import ceil
from pathlib import Path

import pandas as pd

from v8 import storage
from v8.errors import DataError
from v8.market.candles import Candles, check_candles, require_num_bars
from v8.market.open_times import iso
from v8.market.series import Series
from v8.market.sources.archive import (
    MAX_CHECKSUM_BYTES,
    MAX_ZIP_BYTES,
    ArchiveFile,
    ForeignFileError,
    Period,
    days_between,
    read_checksum,
    read_zip,
)
from v8.market.sources.downloads import Downloader

DEFAULT_URL = "https://data.binance.vision"
URL_VARIABLE = "V8_VISION_URL"

FIRST_MONTH = Period(date(2017, 7, 1), is_month=True)
"""The exchange opened in July 2017; nothing can be older."""

PROBES_AT_ONCE = 8
MOST_ABSENT_DAYS = 7
MOST_ABSENT_MONTHS = 12
_SHORTEST_MONTH_S = 28 * 86_400
_MOST_MONTHS_AT_ONCE = 12
_NUM_CHECKSUM_TRIES = 3

Tables = dict[Period, pd.DataFrame]


class VisionSource:
    """Candles from the exchange archive, or from a mirror of it.

    Args:
        base_url: Address above `data/`; None reads `V8_VISION_URL`, or else the exchange's own.
        cache: Folder of verified zips; None for `vision` in v8's cache folder.
        downloader: What fetches; None for one with the usual limits.
        now: Clock in seconds since the epoch.
    """

    name = "vision"
    is_publishable = True

    def __init__(
        self,
        *,
        base_url: str | None = None,
        cache: Path | None = None,
        downloader: Downloader | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._base_url = base_url
        self._cache = cache
        self._downloader = downloader or Downloader(URL_VARIABLE)
        self._now = now

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the archive; see `CandleSource`.

        Raises:
            DataError: If the archive has none, cannot be reached, or holds something else.
        """
        require_num_bars(num_bars, series)
        now_s = int(self._now())
        last_s = now_s if end_s is None else min(end_s, now_s)
        base_url = (self._base_url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        # Archives must not mix, whoever runs them: each address has a cache of its own.
        address = base_url.partition("://")[2] or base_url
        cache = (self._cache or storage.home() / "vision") / re.sub(r"[^A-Za-z0-9.-]+", "_", address)
        zips = _SeriesZips(series, base_url, cache, self._downloader)
        return _collected(zips, num_bars, last_s, now_s).newest(num_bars, last_s)


class _SeriesZips:
    """The zips of one series during one call: on disk, or else in the archive."""

    def __init__(self, series: Series, base_url: str, cache: Path, downloader: Downloader) -> None:
        self.series = series
        self._base_url = base_url
        self._cache = cache
        self._downloader = downloader
        self._promises: dict[Period, str | None] = {}

    def url(self, period: Period) -> str:
        """Return the address of a zip."""
        return f"{self._base_url}/{ArchiveFile(self.series, period).path}"

    def newest(self, periods: Sequence[Period]) -> Period | None:
        """Return the first of the periods, which come newest first, that is there."""
        asked = []
        for period in periods:
            asked.append(period)
            if self._cached(period) is not None:
                break
        there = self._downloader.map(self._is_there, asked)
        return next((period for period, is_there in zip(asked, there, strict=True) if is_there), None)

    def tables(self, periods: Sequence[Period]) -> Tables:
        """Read many zips at once and return those that are there."""
        read = zip(periods, self._downloader.map(self._table, periods), strict=True)
        return {period: table for period, table in read if table is not None}

    def _table(self, period: Period) -> pd.DataFrame | None:
        if (content := self._cached(period)) is not None:
            return self._read(period, content)
        if (content := self._downloaded(period)) is None:
            return None
        table = self._read(period, content)
        # Only what could be read is final: a bad zip may be mended by its publisher.
        path, beside = self._places(period)
        storage.write_bytes(path, content)
        storage.write_text(beside, f"{storage.digest_bytes(content)}\n")
        return table

    def _read(self, period: Period, content: bytes) -> pd.DataFrame:
        url = self.url(period)
        with _refused(url):
            return read_zip(content, ArchiveFile(self.series, period), url)

    def _is_there(self, period: Period) -> bool:
        return self._cached(period) is not None or self._promised(period) is not None

    def _cached(self, period: Period) -> bytes | None:
        """Return a zip from disk if it is whole; a damaged one is as good as none."""
        path, beside = self._places(period)
        try:
            content, promise = path.read_bytes(), beside.read_text("ascii")
        except (OSError, UnicodeDecodeError):
            return None
        return content if storage.digest_bytes(content) == promise.strip() else None

    def _downloaded(self, period: Period) -> bytes | None:
        for _ in range(_NUM_CHECKSUM_TRIES):
            promise = self._promised(period)
            content = promise and self._downloader.fetch(self.url(period), max_bytes=MAX_ZIP_BYTES)
            if not promise or not content:
                return None
            if storage.digest_bytes(content) == promise:
                return content
            # Either half may be the stale one: ask for both again.
            self._promises.pop(period, None)
        raise DataError(
            where=self.url(period),
            rule="must have the sha256 that its .CHECKSUM promises",
            got=f"another one, {_NUM_CHECKSUM_TRIES} times",
            fix=f"Try again later or set {URL_VARIABLE} to another mirror",
        )

    def _promised(self, period: Period) -> str | None:
        if period not in self._promises:
            url = f"{self.url(period)}.CHECKSUM"
            content = self._downloader.fetch(url, max_bytes=MAX_CHECKSUM_BYTES)
            with _refused(url):
                file = ArchiveFile(self.series, period)
                self._promises[period] = None if content is None else read_checksum(content, file)
        return self._promises[period]

    def _places(self, period: Period) -> tuple[Path, Path]:
        path = self._cache / ArchiveFile(self.series, period).path
        return path, path.with_name(f"{path.name}.sha256")


@contextmanager
def _refused(url: str) -> Iterator[None]:
    """Turn what is wrong with a file of the archive into our error."""
    try:
        yield
    except ForeignFileError as error:
        fix = f"Check that {URL_VARIABLE} is a candle archive"
        raise DataError(where=url, rule=error.rule, got=error.got, fix=fix) from error


class _OlderMonths:
    """The months before a month, newest first, until the archive has no more."""

    def __init__(self, zips: _SeriesZips, newest: Period) -> None:
        self._zips = zips
        self._months = _months_back(newest.month_before())
        self._absent: list[Period] = []

    def tables(self, num_bars: int) -> Tables:
        """Read at least one month, and about `num_bars` rows; empty when nothing is left."""
        num_months = ceil(num_bars * self._zips.series.bar_s / _SHORTEST_MONTH_S)
        while len(self._absent) < MOST_ABSENT_MONTHS:
            months = list(islice(self._months, min(num_months, _MOST_MONTHS_AT_ONCE)))
            found = self._filled(months, self._zips.tables(months))
            if found or not months:
                return found
        return {}

    def _filled(self, months: list[Period], tables: Tables) -> Tables:
        """Look for absent months in daily zips, once an older month shows that they lie between two."""
        days: list[Period] = []
        for month in months:
            if month not in tables:
                self._absent.append(month)
            else:
                days += [day for absent in self._absent for day in absent.days()]
                self._absent = []
        return tables | self._zips.tables(days)


def _collected(zips: _SeriesZips, num_bars: int, last_s: int, now_s: int) -> Candles:
    """Gather zips, newest first, until they hold enough candles or there are no more."""
    newest = _newest_month(zips, last_s)
    if newest is None:
        return _checked(zips, _new_listing(zips, last_s), now_s)
    tables = _days_from(zips, newest.end_day, last_s) | zips.tables([newest])
    older = _OlderMonths(zips, newest)
    while True:
        found = _checked(zips, tables, now_s)
        num_missing = num_bars - int((found.open_time_s <= last_s).sum())
        # What lies before a re-listing would be dropped again.
        if num_missing <= 0 or found.report.relisted_at is not None:
            return found
        more = older.tables(num_missing)
        if not more:
            return found
        tables |= more


def _checked(zips: _SeriesZips, tables: Tables, now_s: int) -> Candles:
    frame = pd.concat([tables[period] for period in sorted(tables)], ignore_index=True)
    return check_candles(frame, zips.series, source=VisionSource.name, now_s=now_s)


def _newest_month(zips: _SeriesZips, last_s: int) -> Period | None:
    months = _months_back(Period.month_of(last_s))
    while probed := list(islice(months, PROBES_AT_ONCE)):
        if found := zips.newest(probed):
            return found
    return None


def _months_back(newest: Period) -> Iterator[Period]:
    while newest >= FIRST_MONTH:
        yield newest
        newest = newest.month_before()


def _days_from(zips: _SeriesZips, first: date, last_s: int) -> Tables:
    """Read days in time order until a week of them is absent."""
    days = days_between(first, _day_after(last_s))
    found: Tables = {}
    num_absent = 0
    for start in range(0, len(days), MOST_ABSENT_DAYS):
        week = days[start : start + MOST_ABSENT_DAYS]
        found |= zips.tables(week)
        for day in week:
            num_absent = 0 if day in found else num_absent + 1
        if num_absent >= MOST_ABSENT_DAYS:
            break
    return found


def _new_listing(zips: _SeriesZips, last_s: int) -> Tables:
    """Read the days of this month and the last: a symbol that young has no monthly zip yet."""
    month = Period.month_of(last_s)
    found = zips.tables(days_between(month.month_before().first_day, _day_after(last_s)))
    if not found:
        raise DataError(
            where=f"{zips.series} from {VisionSource.name}",
            rule=f"needs a zip in the archive at or before {iso(last_s)}",
            got=f"none at {zips.url(month)}, nor for any month since {FIRST_MONTH.label} or recent day",
            fix=f"Check the symbol, the timeframe and {URL_VARIABLE}",
        )
    return found


def _day_after(time_s: int) -> date:
    return datetime.fromtimestamp(time_s, UTC).date() + timedelta(days=1)
