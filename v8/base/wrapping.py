"""Prose on terminals: lines break at spaces, and commands to paste stay in one piece.

A terminal itself breaks a line where its last column is, within words. What is no terminal gets every line
whole, so that other programs find what they look for.
"""

import re
import shutil
from typing import Final, TextIO

from rich.cells import cell_len

from v8.base.invocation import command

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
