"""Annexes: packages of v8 that add to its core, and may be absent.

An annex is a folder of this package with a file `annex.yaml`, which says what it adds:

    sentence: what it is for
    commands:    # every command that it adds: in which group of `--help`, and its function
      track: {group: Evaluate, call: v8.annexes.live.ledger.commands:track}
    python: {worth: v8.annexes.trading.python:worth}    # every function that it adds to `import v8`
    sources: [{name: yfinance, ...}]    # entries of a registry, as in the core's own YAML files
    hooks: {backtest_section: v8.annexes.trading.printing:backtest_section}    # functions that the core
    looks for

The core imports no annex: it reads these files and imports what they name when it is asked for. So removing
the folder of an annex removes what it adds, and nothing else.
"""

import pkgutil
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

import yaml

FOLDER: Final = "annexes"  # of the package `v8`; it may be absent
FILE: Final = "annex.yaml"
_PLACE: Final = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")


@cache
def annexes() -> Mapping[str, Mapping[str, Any]]:
    """Read what each usable annex of v8 adds, by the name of its folder, in alphabetical order."""
    return read_annexes(files("v8") / FOLDER)


def read_annexes(place: Traversable) -> Mapping[str, Mapping[str, Any]]:
    """Read what each usable annex in a folder adds, by name.

    An annex is usable if its file can be read and has the form above. Any other is left out, like one that is
    not there.
    """
    contents: dict[str, Mapping[str, Any]] = {}
    folders = place.iterdir() if place.is_dir() else ()
    for folder in sorted(folders, key=lambda folder: folder.name):
        file = folder / FILE
        if file.is_file():
            with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
                content = yaml.safe_load(file.read_text("utf-8"))
                if _has_form(content):
                    contents[folder.name] = content
    return contents


def _has_form(content: Any) -> bool:
    """Return whether the content of an annex's file has the form that is described above."""
    if not isinstance(content, dict):
        return False
    for key, value in content.items():
        check = _FORMS.get(key, _is_list_of_entries)
        if not isinstance(key, str) or not check(value):
            return False
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list_of_entries(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, dict) and all(map(_is_text, entry)) and _is_text(entry.get("name"))
        for entry in value
    )


def _is_place(value: Any) -> bool:
    """Return whether a value names a function, as `module:function`."""
    return isinstance(value, str) and _PLACE.fullmatch(value) is not None


def _is_mapping_to_places(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value)) and all(map(_is_place, value.values()))


def _is_mapping_to_commands(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(map(_is_text, value))
        and all(
            isinstance(added, dict)
            and added.keys() == {"group", "call"}
            and _is_text(added["group"])
            and _is_place(added["call"])
            for added in value.values()
        )
    )


_FORMS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "sentence": _is_text,
    "commands": _is_mapping_to_commands,
    "python": _is_mapping_to_places,
    "hooks": _is_mapping_to_places,
}
"""By key; every other key names a registry, and holds entries of it."""


@dataclass(frozen=True)
class AddedCommand:
    """A command that an annex adds."""

    group: str  # of commands in `--help`
    call: str  # its function, as `module:function`


def commands() -> dict[str, AddedCommand]:
    """Return the commands that annexes add, by name."""
    added = {}
    for annex in annexes().values():
        for name, content in annex.get("commands", {}).items():
            added[name] = AddedCommand(**content)
    return added


def python_functions() -> dict[str, str]:
    """Return the functions that annexes add to `import v8`, by name, as `module:function`."""
    return {name: call for annex in annexes().values() for name, call in annex.get("python", {}).items()}


def entries(registry: str) -> list[dict[str, Any]]:
    """List the entries that annexes add to a registry of the core, such as "sources"."""
    return [entry for annex in annexes().values() for entry in annex.get(registry, ())]


def hook(name: str) -> Callable[..., Any] | None:
    """Return the function that an annex offers under a name that the core knows; None without that annex."""
    for annex in annexes().values():
        place = annex.get("hooks", {}).get(name)
        if place:
            function: Callable[..., Any] = pkgutil.resolve_name(place)
            return function
    return None
