"""Files of the exchange archive: their names, their checksums and what may be inside.

    {base}/data/spot/{monthly|daily}/klines/{SYM}/{TF}/{SYM}-{TF}-{YYYY-MM[-DD]}.zip   and .CHECKSUM

A zip is trusted when its sha256 is the one in its .CHECKSUM, and read when it holds exactly one file
of the expected name, of a plausible size, whose rows lie within its month or day. Nothing is ever
unpacked to disk.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pandas as pd

from v8.columns import OPEN_TIME
from v8.market.open_times import US_PER_S, iso, read_open_times
from v8.market.series import Series
from v8.market.sources.tables import read_csv_table

MAX_ZIP_BYTES = 64 << 20
MAX_CSV_BYTES = 128 << 20
"""A month of one-minute candles is about 6 MB of text."""

MAX_EXPANSION = 100
"""Text of candles shrinks by a factor of 3 to 6; zeros of a bomb by 1,000."""

MAX_CHECKSUM_BYTES = 4_096

_CHECKSUM = re.compile(r"([0-9a-fA-F]{64})\s+\*?(\S+)\s*")


class ForeignFileError(Exception):
    """A file that is not what its name in the archive says.

    Args:
        rule: What must hold, as a clause.
        got: What was found instead.
    """

    def __init__(self, rule: str, got: str) -> None:
        super().__init__(rule, got)
        self.rule, self.got = rule, got


@dataclass(frozen=True, order=True)
class Period:
    """A month or a day of the archive.

    Args:
        first_day: Its first day, UTC.
        is_month: Whether it is the whole month; else it is that day.
    """

    first_day: date
    is_month: bool

    @classmethod
    def month_of(cls, time_s: int) -> Period:
        """Return the month that a time lies in, seconds since the epoch."""
        return cls(datetime.fromtimestamp(time_s, UTC).date().replace(day=1), is_month=True)

    @property
    def label(self) -> str:
        """The period as file names write it.

        >>> Period(date(2024, 8, 1), is_month=True).label, Period(date(2024, 8, 1), is_month=False).label
        ('2024-08', '2024-08-01')
        """
        return f"{self.first_day:%Y-%m}" if self.is_month else f"{self.first_day:%Y-%m-%d}"

    @property
    def end_day(self) -> date:
        """First day after the period."""
        if not self.is_month:
            return self.first_day + timedelta(days=1)
        return (self.first_day + timedelta(days=31)).replace(day=1)

    def month_before(self) -> Period:
        """Return the month before the one this period lies in."""
        return Period((self.first_day.replace(day=1) - timedelta(days=1)).replace(day=1), is_month=True)

    def days(self) -> list[Period]:
        """List the days of the period, oldest first."""
        return days_between(self.first_day, self.end_day)


@dataclass(frozen=True)
class ArchiveFile:
    """One zip of one series.

    Args:
        series: Whose candles it holds.
        period: Which month or day.
    """

    series: Series
    period: Period

    @property
    def stem(self) -> str:
        """File name without its ending."""
        return f"{self.series}-{self.period.label}"

    @property
    def path(self) -> str:
        """Path below the base address; with `.CHECKSUM` behind it, the path of its checksum."""
        kind = "monthly" if self.period.is_month else "daily"
        return f"data/spot/{kind}/klines/{self.series.symbol}/{self.series.timeframe}/{self.stem}.zip"


def days_between(first: date, end: date) -> list[Period]:
    """List the days from `first` up to but not including `end`, oldest first."""
    return [Period(first + timedelta(days=n), is_month=False) for n in range((end - first).days)]


def read_checksum(content: bytes, file: ArchiveFile) -> str:
    """Read the sha256 that a .CHECKSUM promises, 64 small hex digits.

    Raises:
        ForeignFileError: If it has another form or names another file.
    """
    match = _CHECKSUM.fullmatch(content.decode("utf-8", "replace"))
    if match is None or match[2] != f"{file.stem}.zip":
        raise ForeignFileError(
            f"must hold a sha256 and the name {file.stem}.zip", repr(content[:120].decode("utf-8", "replace"))
        )
    return match[1].lower()


def read_zip(content: bytes, file: ArchiveFile, where: str) -> pd.DataFrame:
    """Read the rows of a zip in memory.

    Args:
        content: The zip.
        file: What it should hold.
        where: Its address, for errors.

    Returns:
        Columns `open_time` and `OHLCV`, rows as they stand in the file.

    Raises:
        ForeignFileError: If it is no zip, holds something else, or its rows belong to another period.
        DataError: If what it holds is no candle table.
    """
    frame = read_csv_table(_member(content, file), file.series, where)
    if frame.empty:
        raise ForeignFileError("must hold at least one row", "a header only")
    _require_period(frame, file.period)
    return frame


def _member(content: bytes, file: ArchiveFile) -> bytes:
    expected = f"{file.stem}.csv"
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            if names != [expected]:
                raise ForeignFileError(f"must hold the one file {expected}", f"{names[:5]}")
            limit = min(MAX_CSV_BYTES, MAX_EXPANSION * len(content))
            with archive.open(members[0]) as stream:
                # Read by our limit, not by the size in the header: a bomb lies there.
                text = stream.read(limit + 1)
            if len(text) > limit:
                raise ForeignFileError(f"must unpack to at most {limit} bytes", "more")
            return text
    # RuntimeError is what zipfile raises for an encrypted member.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ForeignFileError("must be a sound zip", " ".join(str(error).split())) from error


def _require_period(frame: pd.DataFrame, period: Period) -> None:
    open_s = read_open_times(frame[OPEN_TIME]).open_us // US_PER_S
    opened = open_s.astype("datetime64[s]")
    is_outside = (opened < np.datetime64(period.first_day)) | (opened >= np.datetime64(period.end_day))
    if is_outside.any():
        raise ForeignFileError(
            f"rows must open within {period.label}",
            f"{int(is_outside.sum())} others, the first at {iso(int(open_s[np.argmax(is_outside)]))}",
        )
