"""A fleet of crypto forecasters, trained at once, judged honestly, published whole.

import v8

forecaster = v8.load("user/name", "BTCUSDT-15m")
forecast = forecaster.predict(candles)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from v8.version import VERSION

if TYPE_CHECKING:  # everything else is imported by those who use it
    from v8.artifacts.forecaster import Forecaster

__all__ = ["load"]
__version__ = VERSION


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
    """
    from v8.hub.opening import open_forecaster  # noqa: PLC0415 - `import v8` stays light

    return open_forecaster(source, series, revision=revision)
