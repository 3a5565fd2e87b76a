"""Zips of the exchange's archive: requested, verified against their checksums, and cached.

A zip is valid if its sha256 is the one in its .CHECKSUM and it contains exactly one file, with the expected
name and a plausible size, whose rows lie within its month or day. Nothing is ever unpacked to disk. Valid
zips are cached by base address and never requested again. Absence is never cached, because archives grow.
The base address is `V8_VISION_URL`, read at each call; its user and password are sent with every request and
nowhere else.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
import pandas as pd

from v8.base import storage
from v8.base.errors import DataError
from v8.base.reading import read_given
from v8.data.market.candles import Times
from v8.data.market.series import iso
from v8.data.market.sources.downloads import Address, FileFetcher, read_address
from v8.data.market.sources.tables import MAX_CHECKSUM_BYTES, PACKING_FAULTS, checksum_of, unzipped

URL_VARIABLE: Final = "V8_VISION_URL"
DEFAULT_URL: Final = "https://data.binance.vision"
MAX_ZIP_BYTES: Final = 64 << 20
MAX_CSV_BYTES: Final = 128 << 20  # a month of one-minute candles is about 6 MB of text
MAX_EXPANSION: Final = 100  # candles shrink by a factor of 3 to 6, the zeros of a decompression bomb by 1,000
_NUM_CHECKSUM_TRIES: Final = 3
Tables = dict[pd.Period, pd.DataFrame]  # rows of each month or day


def _cache() -> Path:
    return storage.home() / "vision"


def cache_places() -> tuple[str, ...]:
    """List the folders of the cache, one for each address that was used; that of the present one first."""
    own = read_archive_address().folder_name
    others = [path.name for path in _cache().glob("*") if path.is_dir() and path.name != own]
    return (own, *sorted(others))


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
        rule = "must have the sha256 of its .CHECKSUM"
        fix = f"Try again later or set {URL_VARIABLE} to another mirror"
        raise DataError(where=url, rule=rule, got=f"{got}, {_NUM_CHECKSUM_TRIES} times", fix=fix)

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
