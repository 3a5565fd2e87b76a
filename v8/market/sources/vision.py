"""The source `vision`: the exchange's public archive of monthly and daily candle zips.

A series is put together from the newest month there is, the days after it, and then month by month back until
there are enough candles. A month that is absent between two others is looked for in daily zips. The base
address is `V8_VISION_URL`, read at each call; its user and password go with every request and nowhere else.

    {base}/data/spot/{monthly|daily}/klines/{SYM}/{TF}/{SYM}-{TF}-{YYYY-MM[-DD]}.zip   and .CHECKSUM

A zip is trusted when its sha256 is the one in its .CHECKSUM, and read when it holds exactly one file of the
expected name, of a plausible size, whose rows lie within its month or day; nothing is ever unpacked to disk.
It is kept under the cache folder, by base address, and never asked for again. That something is absent is
never remembered, because archives grow.

Whether a zip is there is asked by its .CHECKSUM. A checksum alone that is absent would hide its zip, so the
zip itself is asked for wherever candles are missing: within the series, right before its oldest and right
after its newest candle, and at the newest full month of a series of which nothing was found.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import ceil
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np
import pandas as pd

from v8 import storage
from v8.columns import OPEN_TIME
from v8.errors import DataError, UnknownSeriesError
from v8.market.candles import Candles, require_num_bars
from v8.market.checks import check_candles
from v8.market.frames import read_open_times
from v8.market.series import DAY_S, US_PER_S, Series, iso
from v8.market.sources.downloads import Address, Downloader, Fetching, NobodyAsked, read_address
from v8.market.sources.source import require_listed
from v8.market.sources.tables import PACKING_FAULTS, read_csv_table, unzipped

URL_VARIABLE = "V8_VISION_URL"
DEFAULT_URL = "https://data.binance.vision"
FIRST_MONTH = pd.Period("2017-07", "M")  # the exchange opened in July 2017; nothing can be older
PROBES_AT_ONCE = 8
MOST_ABSENT_DAYS = 7
MOST_ABSENT_MONTHS = 12
_SHORTEST_MONTH_S = 28 * DAY_S
_MOST_MONTHS_AT_ONCE = 12
_NUM_CHECKSUM_TRIES = 3

MAX_ZIP_BYTES = 64 << 20
MAX_CSV_BYTES = 128 << 20  # a month of one-minute candles is about 6 MB of text
MAX_EXPANSION = 100  # text of candles shrinks by a factor of 3 to 6; zeros of a bomb by 1,000
MAX_CHECKSUM_BYTES = 4_096

_CHECKSUM = re.compile(r"([0-9a-fA-F]{64})\s+\*?(\S+)\s*")
Tables = dict[pd.Period, pd.DataFrame]  # rows of each month or day that is there


class NotArchivedError(UnknownSeriesError):
    """A series of which the archive has nothing; it may be there all the same."""


@dataclass(frozen=True, eq=False, kw_only=True)
class VisionSource:
    """Candles from the exchange archive, or from a mirror of it."""

    name: ClassVar = "vision"
    is_publishable: ClassVar = True

    downloader: Fetching = field(default_factory=partial(Downloader, URL_VARIABLE))
    now: Callable[[], float] = time.time  # clock in seconds since the epoch

    def __post_init__(self) -> None:
        read_archive_address()

    def require(self, series: Series) -> None:
        """Refuse a series of which the archive has nothing, by asking for checksums; see `ChecksSeries`."""
        zips = self._zips(series)
        now_s = int(self.now())
        if zips.newest_month(now_s) is None and zips.newest(_days_of_young(now_s)) is None:
            raise _not_archived(zips, now_s)

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the archive; see `CandleSource`."""
        require_num_bars(num_bars, series)
        zips = self._zips(series)
        now_s = int(self.now())
        last_s = now_s if end_s is None else min(end_s, now_s)
        found = _collected(zips, num_bars, last_s, now_s).newest(num_bars, last_s)
        if end_s is None:
            return found
        num_newer = _num_newer(zips, int(found.open_time_s[-1]), now_s)
        return found.noting(num_newer=max(found.report.num_newer, num_newer))

    def kept(self, series: Series, num_bars: int, end_s: int) -> Candles:
        """Return the candles up to a time of the zips in the cache; see `KeepsCandles`."""
        return replace(self, downloader=NobodyAsked()).candles(series, num_bars, end_s)

    def _zips(self, series: Series) -> "_SeriesZips":
        require_listed(series, self.name)
        return _SeriesZips(series, read_archive_address(), self.downloader)


def read_archive_address() -> Address:
    """Read the base address of the archive: that of `V8_VISION_URL`, or the exchange's own."""
    return read_address(URL_VARIABLE, DEFAULT_URL, "a candle archive")


@dataclass(frozen=True, eq=False)
class _SeriesZips:
    """The zips of one series during one call: on disk, or else in the archive."""

    series: Series
    address: Address
    downloader: Fetching
    _promises: dict[pd.Period, str | None] = field(default_factory=dict)

    def url(self, period: pd.Period) -> str:
        """Return the address of a zip."""
        return f"{self.address.url}/{_zip_path(self.series, period)}"

    def newest_month(self, last_s: int) -> pd.Period | None:
        """Find the newest month that is there, at or before a time."""
        months = _months_back(_period(last_s, "M"))
        while probed := list(islice(months, PROBES_AT_ONCE)):
            num_asked = next((n for n, month in enumerate(probed, 1) if self._cached(month)), len(probed))
            found = self.newest(probed[:num_asked])
            if found:
                return found
        return None

    def newest(self, periods: Sequence[pd.Period]) -> pd.Period | None:
        """Return the newest of some months and days that is there."""
        there = zip(periods, self.downloader.map(self._is_there, periods), strict=True)
        return max((period for period, is_there in there if is_there), default=None)

    def tables(self, periods: Sequence[pd.Period]) -> Tables:
        """Read many zips at once and return those that are there."""
        read = zip(periods, self.downloader.map(self._table, periods), strict=True)
        return {period: table for period, table in read if table is not None}

    def absent(self) -> list[pd.Period]:
        """List the months and days that were asked for and have no checksum."""
        return [period for period, promise in self._promises.items() if promise is None]

    def require_absent(self, periods: Iterable[pd.Period]) -> None:
        """Refuse zips that are there although their checksums are not."""
        self.downloader.map(self._require_absent, periods)

    def _require_absent(self, period: pd.Period) -> None:
        url = self.url(period)
        if self._fetch(url, MAX_ZIP_BYTES) is not None:
            raise _foreign(f"{url}.CHECKSUM", "must lie beside the zip it belongs to", "the zip alone")

    def _is_there(self, period: pd.Period) -> bool:
        return self._cached(period) is not None or self._promised(period) is not None

    def _table(self, period: pd.Period) -> pd.DataFrame | None:
        content = kept = self._cached(period)
        if content is None and (content := self._downloaded(period)) is None:
            return None
        table = _read_zip(content, self.series, period, self.url(period))
        if kept is None:
            with suppress(DataError):  # a bad zip is not kept: it may be mended by its publisher
                check_candles(table, self.series, source=VisionSource.name)
                path, beside = self._places(period)
                storage.write_cache(path, content)
                storage.write_cache(beside, f"{storage.digest_bytes(content)}\n".encode("ascii"))
        return table

    def _cached(self, period: pd.Period) -> bytes | None:
        """Return a zip from disk if it is whole; a damaged one is as good as none."""
        path, beside = self._places(period)
        try:
            content = storage.read_given(path, MAX_ZIP_BYTES)
            promise = storage.read_given(beside, MAX_CHECKSUM_BYTES).decode("ascii")
        except (OSError, UnicodeDecodeError):
            return None
        return content if storage.digest_bytes(content) == promise.strip() else None

    def _downloaded(self, period: pd.Period) -> bytes | None:
        """Return a zip as its checksum promises it; None where there is no checksum."""
        url = self.url(period)
        got = "another one"
        for _ in range(_NUM_CHECKSUM_TRIES):
            promise = self._promised(period)
            if promise is None:
                return None
            content = self._fetch(url, MAX_ZIP_BYTES)
            if content is not None and storage.digest_bytes(content) == promise:
                return content
            got = "no zip" if content is None else "another one"
            # Either half may be the stale one: ask for both again.
            self._promises.pop(period, None)
        rule = "must have the sha256 that its .CHECKSUM promises"
        fix = f"Try again later or set {URL_VARIABLE} to another mirror"
        raise DataError(where=url, rule=rule, got=f"{got}, {_NUM_CHECKSUM_TRIES} times", fix=fix)

    def _promised(self, period: pd.Period) -> str | None:
        if period not in self._promises:
            url = f"{self.url(period)}.CHECKSUM"
            path = _zip_path(self.series, period)
            content = self._fetch(url, MAX_CHECKSUM_BYTES)
            self._promises[period] = None if content is None else _read_checksum(content, path, url)
        return self._promises[period]

    def _fetch(self, url: str, max_bytes: int) -> bytes | None:
        return self.downloader.fetch(url, max_bytes=max_bytes, auth=self.address.auth)

    def _places(self, period: pd.Period) -> tuple[Path, Path]:
        cache = storage.home() / "vision" / self.address.folder_name
        path = cache / _zip_path(self.series, period)
        return path, path.with_name(f"{path.name}.sha256")


def _collected(zips: _SeriesZips, num_bars: int, last_s: int, now_s: int) -> Candles:
    """Gather zips, newest first, until they hold enough candles or there are no more."""
    newest = zips.newest_month(last_s)
    if newest is None:  # a symbol that is young has no monthly zip yet
        tables = zips.tables(_days_of_young(last_s))
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
        found = check_candles(frame, zips.series, source=VisionSource.name, now_s=now_s)
        num_missing = num_bars - int((found.open_time_s <= last_s).sum())
        # What lies before a re-listing would be dropped again.
        is_enough = num_missing <= 0 or found.report.relisted_at is not None
        more = {} if is_enough else _older(zips, older, absent, num_missing)
        if not more:
            hidden = [period for period in zips.absent() if _is_missed(period, found, last_s)]
            zips.require_absent(period for period in hidden if (period + 1).start_time.timestamp() <= now_s)
            return found
        tables |= more


def _num_newer(zips: _SeriesZips, last_open_s: int, now_s: int) -> int:
    """Count the bars after a candle up to the newest zip, by asking for checksums only; usually for one."""
    next_s = last_open_s + zips.series.bar_s
    if next_s + DAY_S > now_s or not any(zips.newest([_period(next_s, freq)]) for freq in ("D", "M")):
        return 0
    today = _period(now_s, "D")
    recent = [today - back for back in range(MOST_ABSENT_DAYS + 1) if today - back >= _period(next_s, "D")]
    newest = zips.newest(recent) or zips.newest_month(now_s) or _period(next_s, "D")
    ends = ((period + 1).start_time.timestamp() for period in (newest, _period(next_s, "D")))
    return int(min(max(ends), now_s) - next_s) // zips.series.bar_s


def _is_missed(period: pd.Period, found: Candles, last_s: int) -> bool:
    """Tell whether candles of a month or day are missing up to `last_s`: within the series, or beside it."""
    bar_s = found.series.bar_s
    times_s = found.open_time_s
    begin_s, end_s = (int(each.start_time.timestamp()) for each in (period, period + 1))
    first_s = max(begin_s, int(times_s[0]) - bar_s)
    behind_s = min(end_s, int(times_s[-1]) + 2 * bar_s, last_s + 1)
    num_found = int(((times_s >= first_s) & (times_s < behind_s)).sum())
    return num_found < len(range(first_s, behind_s, bar_s))


def _older(zips: _SeriesZips, months: Iterator[pd.Period], absent: list[pd.Period], num_bars: int) -> Tables:
    """Read at least one of `months`, and about `num_bars` rows; empty when the archive has no more.

    Months `absent` since the last that was found are looked for in daily zips once an older one shows that
    they lie between two.
    """
    num_months = min(ceil(num_bars * zips.series.bar_s / _SHORTEST_MONTH_S), _MOST_MONTHS_AT_ONCE)
    found: Tables = {}
    while not found and len(absent) < MOST_ABSENT_MONTHS and (asked := list(islice(months, num_months))):
        found = zips.tables(asked)
        days: list[pd.Period] = []
        for month in asked:
            absent.append(month)
            if month in found:
                days += [day for gone in absent[:-1] for day in _days(gone, gone)]
                absent.clear()
        found |= zips.tables(days)
    return found


def _months_back(newest: pd.Period) -> Iterator[pd.Period]:
    return iter(pd.period_range(FIRST_MONTH, newest, freq="M")[::-1])


def _days_from(zips: _SeriesZips, first: pd.Period, last_s: int) -> Tables:
    """Read days in time order until a week of them is absent."""
    days = _days(first, _period(last_s, "D"))
    found: Tables = {}
    for start in range(0, len(days), MOST_ABSENT_DAYS):
        week = zips.tables(days[start : start + MOST_ABSENT_DAYS])
        found |= week
        if not week:
            break
    return found


def _days_of_young(last_s: int) -> list[pd.Period]:
    """List the days of this month and the last."""
    return _days(_period(last_s, "M") - 1, _period(last_s, "D"))


def _not_archived(zips: _SeriesZips, last_s: int) -> NotArchivedError:
    rule = f"needs a zip in the archive at or before {iso(last_s)}"
    got = f"none at {zips.url(_period(last_s, 'M'))}, nor for any month since {FIRST_MONTH} or recent day"
    fix = f"Check the symbol, the timeframe and {URL_VARIABLE}"
    return NotArchivedError(where=f"{zips.series} from {VisionSource.name}", rule=rule, got=got, fix=fix)


def _days(first: pd.Period, last: pd.Period) -> list[pd.Period]:
    """List the days from the begin of a month or day to the end of another, oldest first."""
    return list(pd.period_range(first.asfreq("D", "start"), last.asfreq("D", "end"), freq="D"))


def _period(time_s: int, freq: str) -> pd.Period:
    return pd.Period(pd.Timestamp(time_s, unit="s"), freq)


def _zip_path(series: Series, period: pd.Period) -> PurePosixPath:
    """Return the path of a zip below the base address; `.CHECKSUM` behind it is that of its checksum.

    >>> str(_zip_path(Series("BTCUSDT", "4h"), pd.Period("2024-08", "M")))
    'data/spot/monthly/klines/BTCUSDT/4h/BTCUSDT-4h-2024-08.zip'
    """
    kind = "monthly" if period.freqstr == "M" else "daily"
    folder = PurePosixPath("data/spot", kind, "klines", series.symbol, series.timeframe)
    return folder / f"{series}-{period}.zip"


def _read_checksum(content: bytes, path: PurePosixPath, where: str) -> str:
    """Read the sha256 that the .CHECKSUM of a zip promises, 64 small hex digits."""
    match = _CHECKSUM.fullmatch(content.decode("utf-8", "replace"))
    if match is None or match[2] != path.name:
        got = repr(content[:120].decode("utf-8", "replace"))
        raise _foreign(where, f"must hold a sha256 and the name {path.name}", got)
    return match[1].lower()


def _read_zip(content: bytes, series: Series, period: pd.Period, where: str) -> pd.DataFrame:
    """Read the columns `open_time` and `OHLCV` of a zip in memory, rows as they stand in the file."""
    expected = f"{_zip_path(series, period).stem}.csv"
    frame = read_csv_table(_member(content, expected, where), series, where)
    if frame.empty:
        raise _foreign(where, "must hold at least one row", "a header only")
    open_s = read_open_times(frame[OPEN_TIME]).open_us // US_PER_S
    opened = open_s.astype("datetime64[s]")
    first, end = (each.start_time.to_datetime64() for each in (period, period + 1))
    is_outside = (opened < first) | (opened >= end)
    if is_outside.any():
        others = f"{int(is_outside.sum())} others, the first at {iso(int(open_s[np.argmax(is_outside)]))}"
        raise _foreign(where, f"rows must open within {period}", others)
    return frame


def _member(content: bytes, expected: str, where: str) -> bytes:
    limit = min(MAX_CSV_BYTES, MAX_EXPANSION * len(content))
    try:
        names, text = unzipped(content, limit)
    except PACKING_FAULTS as error:
        raise _foreign(where, "must be a sound zip", " ".join(str(error).split())) from error
    if names != [expected]:
        raise _foreign(where, f"must hold the one file {expected}", f"{names[:5]}")
    if len(text) > limit:
        raise _foreign(where, f"must unpack to at most {limit} bytes", "more")
    return text


def _foreign(where: str, rule: str, got: str) -> DataError:
    """Refuse a file that is not what its name in the archive says."""
    return DataError(where=where, rule=rule, got=got, fix=f"Check that {URL_VARIABLE} is a candle archive")
