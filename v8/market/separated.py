"""Separated values, read strictly: a row is a line.

A quote that is not closed where it was opened swallows line ends up to the next one: rows are lost, and what
stands behind belongs to another time. No value of ours needs a line end, so none may hold one.
"""

from __future__ import annotations

import csv
import io

from v8.errors import DataError


def require_closed_quotes(text: str, separator: str, where: str) -> None:
    """Refuse a CSV with a quote that does not close on its line, as one around a whole value does.

    Args:
        text: The whole CSV; lines end in LF, CR LF or CR.
        separator: One character.
        where: Name of the file, for the error.

    Raises:
        DataError: If there is one, or a value too long for any number.
    """
    if '"' not in text:
        return
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if '"' in line:
            _require_closed(line, separator, number, where)


def require_no_more_values(text: str, separator: str, num_columns: int, where: str) -> None:
    """Refuse a CSV with a line that has more values than there are columns; empty ones at its end are none.

    Args:
        text: The whole CSV, whose quotes are closed.
        separator: One character.
        num_columns: Columns, unitless.
        where: Name of the file, for the error.

    Raises:
        DataError: If there is one.
    """
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if line.count(separator) >= num_columns:
            values = next(csv.reader([line.rstrip(f"{separator} \n")], delimiter=separator))
            if len(values) > num_columns:
                raise uneven(where, f"{len(values)} values in line {number:,}, and {num_columns} columns")


def uneven(where: str, got: str) -> DataError:
    """Build the error for rows that are not as long as the header."""
    return DataError(
        where=where,
        rule="must be a CSV with as many values a row as columns",
        got=got,
        fix="Mend the file",
    )


def _require_closed(line: str, separator: str, number: int, where: str) -> None:
    try:
        next(csv.reader([line], delimiter=separator, strict=True))
    except csv.Error as error:
        raise DataError(
            where=where,
            rule="must be a CSV in which a quote closes on its own line, around a whole value",
            got=f"{error} in line {number:,}",
            fix="Close or remove the quote: the rows behind it would be lost",
        ) from error
