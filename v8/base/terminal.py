"""Printing: lines, tables and JSON on standard output, messages on standard error.

If the output is not a terminal, it gets nothing but text and line ends. Texts may come from files of other
people; whatever is printed goes through `v8.base.wording.for_terminal`, so that no terminal obeys it.

A terminal itself breaks a line where its last column is, within words. So lines of prose break at spaces, and
commands to paste stay in one piece. What is no terminal gets every line whole, so that other programs find
what they look for.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from rich.cells import cell_len

from v8.base.errors import V8Error
from v8.base.process import command
from v8.base.wording import Table, for_terminal

if TYPE_CHECKING:  # rich is imported where something is printed with it: `--help` and errors do without
    import rich.table
    from rich.console import Console

_GAP: Final = 2  # between the columns of a table, in columns of the terminal
_MIN_PROSE_WIDTH: Final = 20  # columns for prose, however wide the other columns of a table are


def make_console() -> "Console":
    """Return a console on standard output, as wide as the terminal, as COLUMNS says, or 80 columns."""
    from rich.console import Console  # noqa: PLC0415 - see above

    return Console(force_terminal=sys.stdout.isatty())


def print_table(table: Table) -> None:
    """Print a table below its title, in parts where the terminal is too narrow for all columns.

    Each part begins with the columns that identify a row. Titles, headers and the last column of prose are
    broken between words; no other cell is.
    """
    from rich.text import Text  # noqa: PLC0415 - see above

    console = make_console()
    names_of_columns = [for_terminal(name) for name in table.columns]
    rows = [[for_terminal(str(cell)) for cell in row] for row in table.rows]
    console.print(Text(for_terminal(table.title)))
    num_columns = len(table.columns)
    num_names = _num_identifying_columns(rows, num_columns)
    widths = [  # of the widest cell, or of the longest word of the name
        max((cell_len(text) for text in [*name.split(), *(row[column] for row in rows)]), default=0)
        for column, name in enumerate(names_of_columns)
    ]
    if table.is_prose:
        widths[-1] = max(_MIN_PROSE_WIDTH, console.width - _total_width(widths[:-1]))
    column_width = max(_MIN_PROSE_WIDTH, console.width - _total_width(widths[:num_names]))
    for column in range(num_names, num_columns):
        widths[column] = min(widths[column], column_width)
    gap = _GAP
    parts = _parts(widths, num_names, console.width, gap)
    closer = _parts(widths, num_names, console.width, 1)
    if len(closer) < len(parts):  # columns move together before the table is divided
        gap = 1
        parts = closer
    for part in parts:
        console.print(_rich_table(table, rows, part, widths, gap), "")


def _num_identifying_columns(rows: Sequence[Sequence[str]], num_columns: int) -> int:
    """Return how many of the first columns it takes to distinguish all rows; 1 if all columns do not."""
    for num in range(1, num_columns):
        if len({tuple(row[:num]) for row in rows}) == len(rows):
            return num
    return 1


def _parts(widths: Sequence[int], num_names: int, console_width: int, gap: int) -> list[list[int]]:
    """Divide the columns of a table into parts that fit the terminal.

    Args:
        widths: Of all columns.
        num_names: The first columns, which every part repeats.
        console_width: In columns of the terminal.
        gap: Between two columns, in columns of the terminal.

    Returns:
        The numbers of each part's columns.
    """
    names = list(range(num_names))
    parts = [names]
    for column in range(num_names, len(widths)):
        width = _total_width([widths[number] for number in parts[-1]], gap=gap) + widths[column]
        if parts[-1] != names and width > console_width:
            parts.append(names)
        parts[-1] = [*parts[-1], column]
    return parts


def _rich_table(
    table: Table, rows: Sequence[Sequence[str]], part: Sequence[int], widths: Sequence[int], gap: int
) -> "rich.table.Table":
    """Lay out one part of a table; `part` has the numbers of its columns."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - see above
    from rich.table import Table as RichTable  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415 - see above

    padding = (0, gap - 1, 0, 0)  # and the line between columns, which is blank
    layout = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding)
    for column in part:
        is_text = column == 0 or table.is_prose
        layout.add_column(
            Text(for_terminal(table.columns[column])),
            width=widths[column],
            justify="left" if is_text else "right",
            overflow="fold",
        )
    for row in rows:
        layout.add_row(*(Text(row[column]) for column in part))
    return layout


def _total_width(widths: Iterable[int], *, gap: int = _GAP) -> int:
    """Return the width of some columns of a table, with the gap behind each of them."""
    return sum(width + gap for width in widths)


def print_reasons(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print a table of series and the reasons why they failed."""
    print_table(Table(("series", "reason"), rows, title, is_prose=True))


def print_page(page: Path) -> None:
    """Print the address of a page if it was written; terminals open it on a click."""
    if page.is_file():
        print_lines(f"Report: {page.absolute().as_uri()}")


def print_lines(*lines: str) -> None:
    """Print lines; on a terminal they break at spaces, elsewhere they stay whole."""
    print_all_lines(lines)


def print_all_lines(lines: Iterable[str]) -> None:
    """Print lines that are already together in a list, as `print_lines` does."""
    sys.stdout.writelines(f"{for_stream(for_terminal(line), sys.stdout)}\n" for line in lines)
    sys.stdout.flush()


def print_json(content: Any) -> None:
    """Print one JSON document; JSON itself escapes all that is not ASCII."""
    sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_message(text: str) -> None:
    """Print a message, which is no result, to standard error."""
    sys.stderr.write(f"{for_stream(for_terminal(text), sys.stderr)}\n")
    sys.stderr.flush()


def print_error(error: V8Error) -> None:
    """Print an error that does not end the command."""
    print_message(f"error: {error}")


_LEAST_WIDTH: Final = 20  # columns; a terminal that claims fewer does not know its width
_QUOTED: Final = r"`[^`]*`\S*"  # a command within a sentence
_PASTED: Final = r"(?:(?<=: )|(?<=example ))%s (?:(?!: ).)*$"  # a command up to the end of the line


def for_stream(text: str, stream: TextIO) -> str:
    """Return one line of prose as a stream shows it: broken at spaces if it is a terminal."""
    return wrapped(text, shutil.get_terminal_size().columns) if stream.isatty() else text


def wrapped(text: str, width: int) -> str:
    r"""Break a line of prose at spaces.

    Args:
        text: One line. Commands in it are not broken: a terminal that copies them joins their lines itself.
        width: Columns of the terminal. A word that is longer gets a line of its own.

    >>> wrapped("a lower error than naive", 20)
    'a lower error than\nnaive'
    >>> wrapped("Forecast it: python -m v8 predict runs/frontier --source demo", 24)
    'Forecast it:\npython -m v8 predict runs/frontier --source demo'
    >>> wrapped("error: python -m v8 run: takes options only; got also 'x'", 30)  # no command to paste
    "error: python -m v8 run: takes\noptions only; got also 'x'"
    """
    if cell_len(text) <= width:
        return text
    width = max(width, _LEAST_WIDTH)
    pattern = f"{_QUOTED}|{_PASTED % re.escape(command())}|\\S+"
    lines = [""]
    for token in re.findall(pattern, text):
        line = f"{lines[-1]} {token}" if lines[-1] else token
        if lines[-1] and cell_len(line) > width:
            lines.append(token)
        else:
            lines[-1] = line
    return "\n".join(lines)
