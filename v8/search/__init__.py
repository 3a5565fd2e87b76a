"""Search: tries settings of a profile by back-tests, and evaluates the winner on folds that no trial saw.

The package can be called, because `v8.search(candles, profile)` is what a notebook asks for.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """This package, which is also the function `v8.search.python.search`."""

    def __call__(self, *positional: Any, **named: Any) -> Any:
        return import_module("v8.search.python").search(*positional, **named)


sys.modules[__name__].__class__ = _CallablePackage
