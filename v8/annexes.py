"""Annexes: packages of v8 that add to its core, and may be absent.

An annex is a folder of this package with a file `annex.yaml`, which says what it adds:

    sentence: what it is for
    commands: [v8.ledger.commands:forecast]       # functions that the command line offers
    sources: [{name: yfinance, ...}]              # entries of a registry, as in the core's own YAML files
    hooks: {backtest_section: v8.trading.commands:backtest_section}

The core imports no annex: it reads these files and imports what they name when it is asked for. So removing
the folder of an annex removes what it adds, and nothing else.
"""

import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml

PACKAGE: Final = "v8"
FILE: Final = "annex.yaml"


@cache
def annexes() -> Mapping[str, Mapping[str, Any]]:
    """Read what each annex that is there adds, by the name of its folder, in alphabetical order."""
    folders = (folder for folder in files(PACKAGE).iterdir() if folder.is_dir())
    found = {folder.name: folder / FILE for folder in folders if (folder / FILE).is_file()}
    return {name: yaml.safe_load(found[name].read_text("utf-8")) for name in sorted(found)}


def commands() -> list[str]:
    """List the functions of commands that annexes add, as `module:function`."""
    return [place for annex in annexes().values() for place in annex.get("commands", ())]


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
