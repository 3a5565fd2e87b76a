"""Reads YAML files that anybody may have written: plain values in lists and mappings, of limited size."""

import copy
import re
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml

from v8.base.errors import ProfileError, shown
from v8.base.storage import read_plain

MAX_YAML_BYTES: Final = 65_536  # the longest shipped profile has 2,000; the library reads 100,000 a second
MAX_YAML_DEPTH: Final = 8  # lists and mappings within each other; a profile has four


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
        got = type(content).__name__
        fix = "Start from a file under configs/"
        raise ProfileError(where=str(path), rule="must hold keys and values", got=got, fix=fix)
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
