"""Annexes: packages of v8 that add to its core, and may be absent.

An annex is a folder of this package with a file `annex.yaml`, which says what it adds:

    sentence: what it is for
    needs: [ledger]                                # other annexes that it does not work without
    commands:                                            # every command that it adds: in which group of
      forecast: {group: Forecast, call: v8.ledger.commands:forecast}    # `--help`, and its function
    python: {worth: v8.trading.python:worth}             # every function that it adds to `import v8`
    sources: [{name: yfinance, ...}]               # entries of a registry, as in the core's own YAML files
    hooks: {backtest_section: v8.trading.printing:backtest_section}    # functions that the core looks for

The core imports no annex: it reads these files and imports what they name when it is asked for. So removing
the folder of an annex removes what it adds and the annexes that need it, and nothing else.
"""

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml

PACKAGE: Final = "v8"
FILE: Final = "annex.yaml"


@cache
def annexes() -> Mapping[str, Mapping[str, Any]]:
    """Read what each usable annex adds, by the name of its folder, in alphabetical order.

    An annex is usable if its folder is there, and so is every annex that it needs.
    """
    contents = {}
    for folder in sorted(files(PACKAGE).iterdir(), key=lambda folder: folder.name):
        file = folder / FILE
        if file.is_file():
            contents[folder.name] = yaml.safe_load(file.read_text("utf-8"))
    return {name: annex for name, annex in contents.items() if contents.keys() >= {*annex.get("needs", ())}}


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


def python_function(name: str) -> Callable[..., Any] | None:
    """Return the function that an annex adds to `import v8` under a name; None without that annex."""
    for annex in annexes().values():
        place = annex.get("python", {}).get(name)
        if place:
            function: Callable[..., Any] = pkgutil.resolve_name(place)
            return function
    return None


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
