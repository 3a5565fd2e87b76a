"""Days of a public ledger with random changes in its repository, and their comparison with our own."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from ledger_entries import FIRST_S, ISSUER, made_entry

from v8.annexes.live.ledger import Ledger
from v8.annexes.live.reporting import (
    OddParquetError,
    _counted_rows,
    _day_tables,
    _published_rows,
    _widened,
)
from v8.base.errors import PublishError

DAY: Final = "day.parquet"
OURS: Final = "ours.parquet"

Change = Callable[[Random, pa.Table], pa.Table]


@functools.cache
def sound_day() -> bytes:
    """Return the forecasts of a few closes, as they are published."""
    with TemporaryDirectory() as folder, Ledger.open_to_write(Path(folder) / "ledger.sqlite") as ledger:
        for number in range(6):
            ledger.add(made_entry(number))
        return _written(pa.Table.from_pandas(_forecasts(ledger), preserve_index=False))


def _forecasts(ledger: Ledger) -> pd.DataFrame:
    return _day_tables(ledger, ISSUER.place, FIRST_S)["forecasts"]


def _written(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    return stream.getvalue()


def _with_column(random: Random, table: pa.Table) -> pa.Table:
    values = random.choice(([1, 2], {"a": 1}, b"\xff", True, "x" * 100_000, 10**18, float("inf"), None))
    place = random.randrange(table.num_columns)
    return table.set_column(place, table.column_names[place], pa.array([values] * len(table)))


def _with_pandas(random: Random, table: pa.Table) -> pa.Table:
    """Replace what pandas says of the columns."""
    content = random.choice(
        (b"{zz", b"", b"\xff", b"[]", b"7", b'{"columns": 7}', b'{"index_columns": [[]]}')
    )
    return table.replace_schema_metadata({"pandas": content})


def _with_rows(random: Random, table: pa.Table) -> pa.Table:
    """Repeat a row, so that a small file holds very many."""
    row = table.slice(random.randrange(len(table)), 1)
    return pa.concat_tables([row] * random.choice((1_000, 100_000))).combine_chunks()


def _twice(random: Random, table: pa.Table) -> pa.Table:
    """Repeat some rows that the ledger holds."""
    start = random.randrange(len(table))
    return pa.concat_tables([table, table.slice(start, random.randrange(1, 40))])


CHANGES: Final[dict[str, Change]] = {
    "column": _with_column,
    "pandas": _with_pandas,
    "rows": _with_rows,
    "twice": _twice,
    "fewer": lambda random, table: table.slice(random.randrange(len(table))),
    "columns": lambda random, table: table.drop_columns(random.sample(table.column_names, 2)),
}


def changed_day(random: Random) -> tuple[str, bytes]:
    name = random.choice(list(CHANGES))
    table = pq.read_table(io.BytesIO(sound_day()))
    return name, _written(CHANGES[name](random, table))


def compare_day(name: str, ours: bytes, theirs: bytes) -> None:
    """Compare a day that stands in a repository with ours, as publishing does.

    Raises `PublishError` where it is refused, `AssertionError` where it ought to be and is not.
    """
    rows = pq.read_table(io.BytesIO(ours))
    try:
        published = _published_rows(theirs, rows)
    except OddParquetError as odd:
        raise PublishError(where=DAY, rule="is a day of a ledger", got=str(odd), fix="Replace it") from odd
    num_ours, num_theirs = _counted_rows(_widened(rows), published)
    if name == "twice" and not (num_theirs > num_ours).any():
        raise AssertionError("rows that stand there twice are not seen")
    if name == "fewer" and (num_theirs > num_ours).any():
        raise AssertionError("rows of the ledger are taken for others")
