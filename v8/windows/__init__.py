"""From a FeatureTable to windows: splits, scaling, targets, indices of batches.

The package can be called, because `v8.windows(candles, profile)` is what a notebook asks for.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """This package, which is also the function `v8.api.windows.windows`."""

    def __call__(self, *positional: Any, **named: Any) -> Any:
        return import_module("v8.api.windows").windows(*positional, **named)


sys.modules[__name__].__class__ = _CallablePackage
