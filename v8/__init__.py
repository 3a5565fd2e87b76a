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

from v8.plugins import load_plugins as _load_plugins
from v8.version import VERSION as _VERSION

if _typing.TYPE_CHECKING:  # at run time `__getattr__` imports these
    from v8.api.evaluations import backtest, export, leaderboard
    from v8.api.forecaster import Forecaster, load
    from v8.api.runs import Run, plugin, train
    from v8.profile import Profile

__all__ = [
    "Forecaster",
    "Profile",
    "Run",
    "backtest",
    "compare",
    "export",
    "features",
    "leaderboard",
    "load",
    "plugin",
    "search",
    "train",
    "windows",
    "worth",
]

_MODULES = {
    "Forecaster": "v8.api.forecaster",
    "Profile": "v8.profile",
    "Run": "v8.api.runs",
    "backtest": "v8.api.evaluations",
    "export": "v8.api.evaluations",
    "leaderboard": "v8.api.evaluations",
    "load": "v8.api.forecaster",
    "plugin": "v8.api.runs",
    "train": "v8.api.runs",
}
"""The module of each name; modules are imported when the name is first used, so that `import v8` is fast."""

_OF_ANNEXES = {"compare": "v8.comparison", "search": "v8.search", "worth": "v8.trading"}
"""The package of each function that an annex adds; without it, calling the function raises an error."""
__version__ = _VERSION


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> _typing.Any:
    if name in ("features", "windows"):  # packages that can be called: features(candles, profile)
        return _importlib.import_module(f"v8.{name}")
    if name in _MODULES:
        _load_plugins()  # what is used next may refer to something that a plugin registers
        return getattr(_importlib.import_module(_MODULES[name]), name)
    if name in _OF_ANNEXES:
        _load_plugins()
        return _importlib.import_module("v8.api.commands").function_of_annex(name, _OF_ANNEXES[name])
    raise AttributeError(f"module 'v8' has no attribute {name!r}")
