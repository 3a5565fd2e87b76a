"""A fleet of crypto forecasters, trained at once, judged honestly, published whole.

import v8

run = v8.train("vision", "frontier", series="BTCUSDT-15m")
run.leaderboard
forecast = run["BTCUSDT-15m"].forecaster.predict(candles)

forecaster = v8.load("user/name", "BTCUSDT-15m")
forecaster.evaluate(candles)
forecaster.plot(candles)
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from v8.version import VERSION

if TYPE_CHECKING:  # everything else is imported by those who use it
    from v8.python.forecaster import Forecaster
    from v8.python.runs import Run
    from v8.python.training import train

__all__ = ["Forecaster", "Run", "features", "load", "train"]
__version__ = VERSION

_DOORS = {
    "Forecaster": "v8.python.forecaster",
    "Run": "v8.python.runs",
    "train": "v8.python.training",
}
"""Where the names that start no library before they are used come from."""


def __getattr__(name: str) -> Any:
    if name == "features":  # a package that can be called: features(candles, profile)
        return import_module("v8.features")
    if name in _DOORS:
        return getattr(import_module(_DOORS[name]), name)
    raise AttributeError(f"module 'v8' has no attribute {name!r}")


def load(source: str | Path, series: str | None = None, *, revision: str | None = None) -> Forecaster:
    """Load a forecaster from a run of this machine or from the Hugging Face Hub.

    Args:
        source: A run folder such as "runs/aligned", the folder of one series, or "user/name" on the
            Hub. A folder that exists is taken before a repository of the same name.
        series: Such as "BTCUSDT-15m"; may be left out where the folder holds one only.
        revision: Branch, tag or commit on the Hub; the newest commit when None.

    Returns:
        The forecaster; its `revision` is the commit that was used, None for a local one.

    Raises:
        v8.errors.V8Error: If it does not exist or cannot be trusted; the sentence says what to do.

    >>> import v8
    >>> v8.load("runs/tiny", "BTCUSDT-15m").horizon_bars
    3
    """
    from v8.python.forecaster import open_forecaster  # noqa: PLC0415 - `import v8` stays light

    return open_forecaster(source, series, revision=revision)
