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
from pathlib import PurePosixPath

import numpy as np
import pandas as pd

from v8.columns import OPEN_TIME
from v8.errors import DataError
from v8.market.open_times import US_PER_S, iso, read_open_times
from v8.market.series import Series
from v8.market.sources.tables import read_csv_table

URL_VARIABLE = "V8_VISION_URL"

MAX_ZIP_BYTES = 64 << 20
MAX_CSV_BYTES = 128 << 20
"""A month of one-minute candles is about 6 MB of text."""

MAX_EXPANSION = 100
"""Text of candles shrinks by a factor of 3 to 6; zeros of a bomb by 1,000."""

MAX_CHECKSUM_BYTES = 4_096

_CHECKSUM = re.compile(r"([0-9a-fA-F]{64})\s+\*?(\S+)\s*")


def zip_path(series: Series, period: pd.Period) -> PurePosixPath:
    """Return the path of a zip below the base address; `.CHECKSUM` behind it is that of its checksum.

    Args:
        series: Whose candles it holds.
        period: Which month or day.

    >>> str(zip_path(Series("BTCUSDT", "4h"), pd.Period("2024-08", "M")))
    'data/spot/monthly/klines/BTCUSDT/4h/BTCUSDT-4h-2024-08.zip'
    """
    kind = "monthly" if period.freqstr == "M" else "daily"
    folder = PurePosixPath("data/spot", kind, "klines", series.symbol, series.timeframe)
    return folder / f"{series}-{period}.zip"


def read_checksum(content: bytes, path: PurePosixPath, where: str) -> str:
    """Read the sha256 that the .CHECKSUM of a zip promises, 64 small hex digits.

    Args:
        content: The .CHECKSUM.
        path: Of the zip.
        where: Address of the .CHECKSUM, for errors.

    Raises:
        DataError: If it has another form or names another file.
    """
    match = _CHECKSUM.fullmatch(content.decode("utf-8", "replace"))
    if match is None or match[2] != path.name:
        got = repr(content[:120].decode("utf-8", "replace"))
        raise _foreign(where, f"must hold a sha256 and the name {path.name}", got)
    return match[1].lower()


def read_zip(content: bytes, series: Series, period: pd.Period, where: str) -> pd.DataFrame:
    """Read the rows of a zip in memory.

    Args:
        content: The zip.
        series: Whose candles it should hold.
        period: Of which month or day.
        where: Its address, for errors.

    Returns:
        Columns `open_time` and `OHLCV`, rows as they stand in the file.

    Raises:
        DataError: If it is no zip, holds something else than a candle table, or its rows belong to another
            period.
    """
    expected = f"{zip_path(series, period).stem}.csv"
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
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if (names := archive.namelist()) != [expected]:
                raise _foreign(where, f"must hold the one file {expected}", f"{names[:5]}")
            with archive.open(expected) as stream:
                # Read by our limit, not by the size in the header: a bomb lies there.
                text = stream.read(limit + 1)
    # RuntimeError is what zipfile raises for an encrypted member.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _foreign(where, "must be a sound zip", " ".join(str(error).split())) from error
    if len(text) > limit:
        raise _foreign(where, f"must unpack to at most {limit} bytes", "more")
    return text


def _foreign(where: str, rule: str, got: str) -> DataError:
    """Refuse a file that is not what its name in the archive says."""
    return DataError(where=where, rule=rule, got=got, fix=f"Check that {URL_VARIABLE} is a candle archive")
