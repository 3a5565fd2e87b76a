"""The source `files`: a folder of CSV or Parquet tables.

A file belongs to `BTCUSDT-15m` when its name ends in `.csv` or `.parquet` and holds `BTCUSDT-15m` or
`BTCUSDT_15m` as a whole word: `BTCUSDT-15m-2024-08.csv`, `BTCUSDT_15m_binance_us.csv` and
`Binance_BTCUSDT_15m.parquet` do, `1000BTCUSDT-15m.csv` does not. Capital letters matter in the
timeframe only, where `1m` is a minute and `1M` a month. Folders inside the folder are searched too,
and the rows of all files that match are checked together. Hidden files are left alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar, Final

import pandas as pd

from v8.errors import DataError, ProfileError, listed
from v8.given_files import read_given
from v8.market.candles import Candles, check_candles
from v8.market.series import Series
from v8.market.sources.tables import read_csv_table, read_parquet_table

MAX_FILE_BYTES: Final = 2**30
"""Ten years of minutes have 600 MB as the archive writes them."""

MAX_ENTRIES: Final = 50_000
"""Files and folders that are looked through; a system's root has millions."""


@dataclass(frozen=True)
class FilesSource:
    """Candles from files of the user.

    Args:
        folder: Where the files are; folders inside are searched too.
        now: Clock in seconds since the epoch; rows of a bar that is still running are dropped.
    """

    name: ClassVar = "files"
    is_publishable: ClassVar = True

    folder: Path
    now: Callable[[], float] = time.time

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the files that match; see `CandleSource`.

        Raises:
            DataError: If no file matches, or the rows cannot be trusted.
        """
        frame = pd.concat([_table(path, series) for path in self._matching(series)], ignore_index=True)
        checked = check_candles(frame, series, source=self.name, now_s=int(self.now()))
        return checked.newest(num_bars, end_s)

    def _matching(self, series: Series) -> list[Path]:
        found = (path for path in self._everything() if path.suffix.lower() in (".csv", ".parquet"))
        # Sorted, so that the order does not depend on the file system.
        tables = sorted(path for path in found if path.is_file() and not path.name.startswith("."))
        matching = [path for path in tables if _names_series(path.stem, series)]
        if not matching:
            there = [str(path.relative_to(self.folder)) for path in tables]
            raise DataError(
                where=f"{series} from {self.name}",
                rule=f"needs a .csv or .parquet file with {series} in its name under {self.folder}",
                got=listed(there) if there else "no candle file at all",
                fix="Rename the file or choose another --data-dir",
            )
        return matching

    def _everything(self) -> list[Path]:
        there = list(islice(self.folder.rglob("*"), MAX_ENTRIES + 1))
        if len(there) > MAX_ENTRIES:
            raise DataError(
                where=f"--data-dir {self.folder}",
                rule="is the folder of the candle files",
                got=f"one with more than {MAX_ENTRIES:,} files and folders in it",
                fix="Name the folder further down that holds the candles",
            )
        return there


def open_folder(data_dir: Path | None) -> FilesSource:
    """Open the folder that `--data-dir` names.

    Raises:
        ProfileError: If none is named, or there is no such folder.
    """
    if data_dir is None or not data_dir.is_dir():
        raise ProfileError(
            where="--source files",
            rule="needs the folder that holds the candle files",
            got="no --data-dir" if data_dir is None else f"{data_dir}, which is no folder",
            fix="Add --data-dir FOLDER",
        )
    return FilesSource(data_dir)


def _names_series(stem: str, series: Series) -> bool:
    """Tell whether a file name holds the series as a whole word.

    >>> _names_series("Binance_BTCUSDT_1m-2024", Series("BTCUSDT", "1m"))
    True
    >>> _names_series("1000BTCUSDT-1m", Series("BTCUSDT", "1m"))
    False
    """
    word = rf"(?<![A-Za-z0-9])(?i:{series.symbol})[-_]{series.timeframe}(?![A-Za-z0-9])"
    return re.search(word, stem) is not None


def _table(path: Path, series: Series) -> pd.DataFrame:
    try:
        content = read_given(path, MAX_FILE_BYTES)
    except OSError as error:
        raise DataError(
            where=str(path),
            rule="must be a file that can be read",
            got=error.strerror or "an input error",
            fix="Check its permissions, and split what is longer into several files",
        ) from error
    read = read_parquet_table if path.suffix.lower() == ".parquet" else read_csv_table
    return read(content, series, str(path))
