"""Annexes: packages of v8 that add to its core, and may be absent.

An annex is a folder of this package with a file `annex.yaml`, an `Annex`. The core imports no annex and names
none: it reads these files and imports what they name when it is asked for. So removing the folder of an annex
removes what it adds, and nothing else.
"""

import pkgutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field

from v8.base.storage import parse_own_yaml

FOLDER: Final = "annexes"  # of the package `v8`; it may be absent
FILE: Final = "annex.yaml"

Function = Annotated[str, Field(pattern=r"^\w+(\.\w+)*:\w+(\.\w+)*$")]
"""The place of a function, `module:function`; it is imported when it is called."""


class AddedCommand(BaseModel):
    """A command that an annex adds to the command line."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    group: str  # of commands in `--help`
    place: int = 100  # in its group: behind the core's commands, ascending
    call: Function
    also: list[str] = Field(default_factory=list)  # what other programs call it


class AddedFlag(BaseModel):
    """A flag that an annex adds to a command of the core."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    help: str
    call: Function  # called where the flag is given; with what, the command says


class NextStep(BaseModel):
    """A command that the core offers after something has happened to a run."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    sentence: str  # what it is for, without a full stop
    words: list[str]  # of the command line; the folder of the run follows them


class Entry(BaseModel):
    """An entry that an annex adds to a registry of the core, as in the core's own YAML files."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str


class Annex(BaseModel):
    """The content of `annex.yaml`; each further key names a registry of the core, and holds entries of it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    __pydantic_extra__: dict[str, list[Entry]]

    sentence: str = ""  # what it is for
    commands: dict[str, AddedCommand] = Field(default_factory=dict)  # by name
    flags: dict[str, dict[str, AddedFlag]] = Field(default_factory=dict)  # by command of the core and name
    hooks: dict[str, Function] = Field(default_factory=dict)  # by what the core asks every annex for
    next_steps: dict[str, NextStep] = Field(default_factory=dict)  # by what has happened: "newer_candles"
    python: dict[str, Function] = Field(default_factory=dict)  # what it adds to `import v8`, by name


@cache
def annexes() -> Mapping[str, Annex]:
    """Read what each usable annex of v8 adds, by the name of its folder, in alphabetical order."""
    return read_annexes(files("v8") / FOLDER)


def read_annexes(place: Traversable) -> Mapping[str, Annex]:
    """Read what each usable annex in a folder adds, by name.

    An annex is usable if its file can be read and is an `Annex`. Any other is left out, like one that is not
    there.
    """
    contents: dict[str, Annex] = {}
    folders = place.iterdir() if place.is_dir() else ()
    for folder in sorted(folders, key=lambda folder: folder.name):
        file = folder / FILE
        if file.is_file():
            with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
                contents[folder.name] = Annex.model_validate(parse_own_yaml(file.read_text("utf-8")))
    return contents


def commands() -> dict[str, AddedCommand]:
    """Return the commands that annexes add, by name, in the order of their places."""
    added = [item for annex in annexes().values() for item in annex.commands.items()]
    return dict(sorted(added, key=lambda item: item[1].place))


def flags(command: str) -> dict[str, AddedFlag]:
    """Return the flags that annexes add to a command of the core, by name without dashes."""
    return {name: flag for annex in annexes().values() for name, flag in annex.flags.get(command, {}).items()}


def hooks(name: str) -> list[Callable[..., Any]]:
    """Import the functions by which annexes answer something that the core asks every annex for."""
    return [pkgutil.resolve_name(annex.hooks[name]) for annex in annexes().values() if name in annex.hooks]


def next_steps(occasion: str) -> list[NextStep]:
    """List the commands that annexes offer after something has happened."""
    return [annex.next_steps[occasion] for annex in annexes().values() if occasion in annex.next_steps]


def python_functions() -> dict[str, str]:
    """Return the functions that annexes add to `import v8`, by name, as `module:function`."""
    return {name: call for annex in annexes().values() for name, call in annex.python.items()}


def entries(registry: str) -> list[dict[str, Any]]:
    """List the entries that annexes add to a registry of the core, such as "sources"."""
    found = [entry for annex in annexes().values() for entry in annex.__pydantic_extra__.get(registry, ())]
    return [entry.model_dump() for entry in found]
