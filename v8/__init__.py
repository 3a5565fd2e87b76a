"""A fleet of crypto forecasters, trained at once, judged honestly, published whole.

import v8

run = v8.train("vision", "frontier", series="BTCUSDT-15m")
run.leaderboard
forecast = run["BTCUSDT-15m"].forecaster.predict(candles)

forecaster = v8.load("user/name", "BTCUSDT-15m")
forecaster.evaluate(candles)
forecaster.plot(candles)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from v8.version import VERSION

if TYPE_CHECKING:  # everything else is imported by those who use it
    from v8.api.forecaster import Forecaster, load
    from v8.api.runs import Run, train

__all__ = ["Forecaster", "Run", "features", "load", "train"]
__version__ = VERSION

_DOORS = {
    "Forecaster": "v8.api.forecaster",
    "Run": "v8.api.runs",
    "load": "v8.api.forecaster",
    "train": "v8.api.runs",
}
"""Where the names that start no library before they are used come from."""


def __getattr__(name: str) -> Any:
    if name == "features":  # a package that can be called: features(candles, profile)
        return import_module("v8.features")
    if name in _DOORS:
        return getattr(import_module(_DOORS[name]), name)
    raise AttributeError(f"module 'v8' has no attribute {name!r}")
