"""Modules of test folders, loaded by their files: pytest gives these folders no place on sys.path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def load_module(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"v8_tests_{file.parent.name}_{file.stem}", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
