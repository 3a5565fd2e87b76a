"""Crypto forecasters, trained together, evaluated against baselines, and published.

import v8

run = v8.train("vision", "frontier", series="BTCUSDT-15m")
run.leaderboard
forecast = run["BTCUSDT-15m"].forecaster.predict(candles)

forecaster = v8.load("user/name", "BTCUSDT-15m")
forecaster.evaluate(candles)
forecaster.plot(candles)

v8.backtest("vision", "frontier", series="BTCUSDT-1h")
v8.leaderboard(["runs/frontier", "runs/aligned"])
"""

import importlib as _importlib
import typing as _typing

from v8.base.version import VERSION as _VERSION

if _typing.TYPE_CHECKING:  # at run time `__getattr__` imports these
    from v8.api.board import Board
    from v8.api.forecaster import Forecaster, features, load, windows
    from v8.api.results import backtest, export
    from v8.api.runs import Run, leaderboard, plugin, train
    from v8.api.scores import evaluate
    from v8.base.errors import V8Error
    from v8.profile.profile import Profile

__all__ = [
    "Board",
    "Forecaster",
    "Profile",
    "Run",
    "V8Error",
    "backtest",
    "evaluate",
    "export",
    "features",
    "leaderboard",
    "load",
    "plugin",
    "train",
    "windows",
]

_MODULES = {
    "Board": "v8.api.board",
    "Forecaster": "v8.api.forecaster",
    "Profile": "v8.profile.profile",
    "Run": "v8.api.runs",
    "V8Error": "v8.base.errors",
    "backtest": "v8.api.results",
    "evaluate": "v8.api.scores",
    "export": "v8.api.results",
    "features": "v8.api.forecaster",
    "leaderboard": "v8.api.runs",
    "load": "v8.api.forecaster",
    "plugin": "v8.api.runs",
    "train": "v8.api.runs",
    "windows": "v8.api.forecaster",
}
"""The module of each name of the core; it is imported when the name is first used, so `import v8` is fast."""

__version__ = _VERSION


def _added() -> dict[str, str]:
    """Return the functions that annexes add, by name; reading of them begins when a name is looked for."""
    functions: dict[str, str] = _importlib.import_module("v8.base.registry").added_functions()
    return functions


def __dir__() -> list[str]:
    return [*__all__, *_added()]


def __getattr__(name: str) -> _typing.Any:
    module = _MODULES.get(name) or ("" if name.startswith("_") else _added().get(name, ""))
    if module:
        # What is used next may refer to something that a plugin registers.
        _importlib.import_module("v8.base.registry").load_plugins()
        return getattr(_importlib.import_module(module.partition(":")[0]), name)
    raise AttributeError(f"module 'v8' has no attribute {name!r}")
