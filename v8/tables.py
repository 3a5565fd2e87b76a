"""Tables as values, which everything that shows or writes a table goes through.

Markdown and CSV are written here; HTML in `v8.views.markup`, which escapes whatever is no markup, and lines
of a terminal in `v8.cli.printing`. What v8 writes as JSON is nested by task and no table.
"""

import csv
import io
from collections.abc import Iterable


class Table:
    """Rows of cells below columns, whose names hold their units; the first column names the rows.

    Cells are text that is ready to be read, or numbers for a CSV, where None is an empty cell. Text stands on
    the left where a table is prose; else all columns but the first hold numbers, which stand on the right.

    >>> table = Table(("a", "b"), [("1", "x|y"), ("2", None)], "How it went")
    >>> print(table.csv(), end="")
    a,b
    1,x|y
    2,
    """

    def __init__(
        self,
        columns: Iterable[str],
        rows: Iterable[Iterable[object]],
        title: str = "",
        *,
        is_prose: bool = False,
    ) -> None:
        self.columns = list(columns)
        self.rows = [list(row) for row in rows]
        self.title, self.is_prose = title, is_prose

    def markdown(self) -> str:
        r"""Write it in Markdown, without its title; bars within cells are escaped.

        >>> print(Table(("a", "b"), [("1", "x|y")]).markdown())
        | a | b |
        | --- | --- |
        | 1 | x\|y |
        """
        lines: list[list[object]] = [[*self.columns], ["---"] * len(self.columns), *self.rows]
        written = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
        return "\n".join(f"| {' | '.join(line)} |" for line in written)

    def csv(self) -> str:
        """Write it as CSV, numbers with all their digits."""
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows([self.columns, *self.rows])
        return stream.getvalue()
