"""Commands called from Python: each runs in a process of its own, and its results are read into a frame."""

import re
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from v8.base.errors import PARTS, V8Error, as_flag
from v8.runs.machine.processes import CommandRequest, run_processes

_FLAG = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)(?![\w=])")


def run_command(called: str, words: Sequence[str], *, progress: bool) -> int:
    """Carry out a command of v8 in a process of its own and return its exit code.

    Ctrl-C here stops it there after its current batch; the same call continues.

    Args:
        called: What was called in Python, such as "v8.backtest", for errors.
        words: Of the command line, the name of the command first.
        progress: Whether to print what the command prints.

    Raises:
        V8Error: If the command fails as a whole; options are named as arguments.
    """
    (answer,) = run_processes(
        [CommandRequest(words=tuple(words))],
        program="v8.cli.calls",
        on_message=print if progress else _ignored,
    )
    if answer.error:
        parts: dict[str, Any] = {name: _as_arguments(getattr(answer.error, name)) for name in PARTS}
        raise type(answer.error)(**parts) from answer.error
    if not answer.measured:
        last_line = answer.errors.strip().rpartition("\n")[2]  # of a traceback: the error itself
        got = last_line or f"exit code {answer.exit_code}"
        raise V8Error(where=called, rule="must come to its end", got=got, fix="Mend that and repeat")
    return int(answer.measured[0]["exit_code"])


def _ignored(line: str) -> None:
    """Drop a line that a command prints."""


def _as_arguments(text: str) -> str:
    """Write flags as arguments.

    >>> _as_arguments("Name where these are: --data-dir, --source files"), _as_arguments("`v8 run --help`")
    ('Name where these are: data_dir=, source= files', '`v8 run --help`')
    """
    parts = re.split(r"(`[^`]*`)", text)
    plain = [part if part.startswith("`") else _FLAG.sub(_as_argument, part) for part in parts]
    return "".join(plain)


def _as_argument(match: re.Match[str]) -> str:
    return f"{match[1].replace('-', '_')}="


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Write options as words of a command line; those that are None or False are left out.

    Args:
        options: By the names of their arguments: texts, numbers, paths, True, or sequences of these.

    >>> option_words({"data_dir": "candles", "folds": 6, "overwrite": True, "out": None})
    ['--data-dir', 'candles', '--folds', '6', '--overwrite']
    >>> option_words({"series": ["A-1h", "B-1h"]})
    ['--series', 'A-1h', '--series', 'B-1h']
    """
    words = []
    for name, value in options.items():
        is_one = isinstance(value, str | PathLike) or not isinstance(value, Sequence)
        for item in [value] if is_one else value:
            if item is None or item is False:
                continue
            words.append(as_flag(name))
            if item is not True:
                words.append(str(item))
    return words


def series_list(series: str | Sequence[str] | None) -> list[str]:
    """Return the names of series that an argument holds: one, several, or none."""
    return [series] if isinstance(series, str) else list(series or ())
