"""Reads files that anybody may have written, or that another program may have replaced.

A file must be a regular one of bounded size: a path may lead to a pipe on which no process writes, to an
endless device, or to a hundred gigabytes. JSON is not nested deeper than files of v8 are, its numbers fit in
64 bits, and its texts become one bounded line without control characters. YAML holds plain values in lists
and mappings.
"""

import copy
import errno
import json
import math
import os
import re
import stat
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml

from v8.base.errors import ArtifactError, ProfileError, V8Error, shown

MAX_FILE_BYTES: Final = 16 << 20  # metadata of 1,000 steps have this size, other files a hundredth of it


MAX_YAML_BYTES: Final = 65_536  # the longest shipped profile has 2,000; the library reads 100,000 a second


MAX_YAML_DEPTH: Final = 8  # lists and mappings within each other; a profile has four


_MAX_DEPTH: Final = 40  # levels of nesting; files of v8 have at most 9


_MAX_LINE: Final = 10_000  # characters of a text; the longest text in files of v8 is a command line


def read_json_object(file: Path, *, fix: str) -> dict[str, Any]:
    """Read a JSON object that v8 wrote; `fix` says what the user can do if it is damaged."""
    location = str(file)
    text = read_plain(file, fix=fix)
    try:
        content = _sanitized(parse_json(text))
    except ValueError as error:
        raise ArtifactError(
            where=location, rule="must be valid JSON", got=f"damage ({error})", fix=fix
        ) from error
    if not isinstance(content, dict):
        raise ArtifactError(
            where=location, rule="must hold a JSON object", got=type(content).__name__, fix=fix
        )
    return content


def _sanitized(node: Any, depth: int = 0) -> Any:
    r"""Copy JSON values; depth and numbers must be bounded, and every text becomes one printable line.

    >>> _sanitized({"reason": "\x1b[31mtwo\nlines"})
    {'reason': '\\x1b[31mtwo lines'}
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"more than {_MAX_DEPTH} values inside each other")
    if isinstance(node, float) and math.isfinite(node):  # most of a file are numbers
        return node
    if isinstance(node, dict):
        for key in node:
            if not _is_printable(key):
                raise ValueError(f"the key {shown(repr(key))}")
        return {key: _sanitized(value, depth + 1) for key, value in node.items()}
    if isinstance(node, list):
        return [_sanitized(value, depth + 1) for value in node]
    if isinstance(node, str):
        return shown(node, _MAX_LINE)
    if not _is_bounded(node):
        raise ValueError("a number that is infinite, none, or beyond 64 bits")
    return node


@lru_cache(maxsize=4_096)
def _is_printable(key: str) -> bool:
    """Return whether a key is one printable line; the same keys come again and again."""
    return shown(key) == key


def _is_bounded(number: float | None) -> bool:
    """Return whether a number is finite and fits in 64 bits; true and null count as bounded."""
    if isinstance(number, float):
        return math.isfinite(number)
    return number is None or -(2**63) < number < 2**63


def parse_json(content: bytes | str) -> Any:
    """Parse JSON of a file.

    Raises:
        ValueError: If it is none, is no UTF-8, or is nested deeper than Python can parse.
    """
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("more values inside each other than can be read") from error


def read_plain(
    file: Path, *, fix: str, most_bytes: int = MAX_FILE_BYTES, kind: type[V8Error] = ArtifactError
) -> bytes:
    """Read a regular file of bounded size; a pipe or a device is refused.

    Args:
        file: The file.
        fix: What the user can do if it cannot be read.
        most_bytes: Most bytes that are read; a longer file is refused.
        kind: The class of the error.
    """
    try:
        return read_given(file, most_bytes)
    except OSError as error:
        raise kind(
            where=str(file),
            rule=f"must be a file that can be read, of at most {most_bytes:,} bytes",
            got=error.strerror or "an error",
            fix=fix,
        ) from error


def read_given(path: Path, most_bytes: int) -> bytes:
    """Read a regular file of at most `most_bytes` without waiting for a writer.

    Raises:
        OSError: If it cannot be read, is not a regular file, or is longer; `strerror` says which.
    """
    with open_given(path) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        if size_bytes > most_bytes:
            message = f"{size_bytes:,} bytes, where at most {most_bytes:,} are read"
            raise OSError(errno.EFBIG, message, str(path))
        content = stream.read(size_bytes + 1)
    if len(content) != size_bytes:
        raise OSError(errno.EBUSY, "a file whose length changes while it is read")
    return content


@contextmanager
def open_given(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading, without waiting for a writer.

    Raises:
        OSError: If it cannot be opened, or is not a regular file.
    """
    try:
        require_regular(path.stat(), path)  # before opening: that alone may have an effect on a device
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a NUL, or a character that the file system does not allow
        raise OSError(errno.EINVAL, "a name that no file can have") from error
    with os.fdopen(number, "rb") as stream:
        require_regular(os.fstat(number), path)
        yield stream


def require_regular(status: os.stat_result, path: Path) -> None:
    """Raise an `OSError` if the status is that of a pipe, a socket, a device or a folder."""
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, a socket or a device"
        raise OSError(errno.EINVAL, f"{kind} in the place of a file", str(path))


def read_yaml(path: Path, fix: str = "Check the path") -> dict[str, Any]:
    """Read a YAML mapping of plain values; see `_Loader` for what is refused. `5e-4` is a number.

    Raises:
        ProfileError: If the file cannot be read, is too long, is not such YAML, or is no mapping.
    """
    text = read_plain(path, fix=fix, most_bytes=MAX_YAML_BYTES, kind=ProfileError)
    try:
        content = copy.deepcopy(_parsed(text))
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two come from escape sequences
        got = str(error)
        if isinstance(error, yaml.MarkedYAMLError):
            got = str(error.problem or error.context)
            mark = error.problem_mark or error.context_mark
            if mark:
                got += f", line {mark.line + 1}"
        rule = "must be YAML of plain values, each key once"
        fix = "Correct the file at that line"
        if isinstance(error, UnicodeDecodeError):
            rule = "must be a text file in UTF-8"
            got = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
            fix = "Save it as UTF-8, or name the file that was meant"
        raise ProfileError(where=str(path), rule=rule, got=got, fix=fix) from error
    if not isinstance(content, dict):
        raise ProfileError(
            where=str(path),
            rule="must hold keys and values",
            got=type(content).__name__,
            fix="Start from a file under configs/",
        )
    return content


@lru_cache(maxsize=64)
def _parsed(text: bytes) -> Any:
    """Parse YAML. Shipped files are read for every series, and parsing one takes ten milliseconds."""
    # Not `safe_load`: _Loader is a SafeLoader that accepts less.
    return yaml.load(text.decode("utf-8-sig"), Loader=_Loader)  # noqa: S506


class _Loader(yaml.SafeLoader):
    """Reads texts, numbers, true, false and null in lists and mappings, as in JSON; nothing else.

    Anchors and tags are refused: an anchor may stand for a million values or contain itself, and a tag may
    make an object. Dates and octal numbers such as `010` are read as texts, which the checks of the profile
    refuse.
    """

    yaml_implicit_resolvers: ClassVar[dict[str | None, list[Any]]] = {}  # type: ignore[misc]
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _fault("anchors (&) and aliases (*) are not read: write each value where it belongs", event)
        if event.tag is not None:
            raise _fault("tags (!) are not read: write plain values", event)
        if self._depth == MAX_YAML_DEPTH:
            raise _fault(f"lists and mappings are read {MAX_YAML_DEPTH} deep", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _fault("a key must be a word", key_node)
            if key in keys:
                raise _fault(f"key {shown(repr(key))} is repeated", key_node)
            keys.add(key)
        return super().construct_mapping(node, deep)


for _kind, _pattern, _first in (
    ("null", r"^(?:~|null)?$", ["~", "n", ""]),
    ("bool", r"^(?:true|false)$", ["t", "f"]),
    ("int", r"^[-+]?(?:0|[1-9][0-9]{0,17})$", list("-+0123456789")),
    (
        "float",
        r"^[-+]?(?=[.0-9]*[.eE])[0-9]{0,40}\.?[0-9]{0,40}(?<=[.0-9])(?:[eE][-+]?[0-9]{1,4})?$",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first)


def _fault(problem: str, place: yaml.Event | yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)  # type: ignore[arg-type]
