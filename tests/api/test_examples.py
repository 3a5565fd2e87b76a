"""Every example in the docstrings of what a notebook uses, run beside a trained run and its candles."""

from __future__ import annotations

import doctest
import shutil
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOORS = ("v8", "v8.api.arguments", "v8.api.results", "v8.api.forecaster", "v8.api.runs")


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.tf
@pytest.mark.parametrize("name", DOORS)
@pytest.mark.usefixtures("unloaded")
def test_examples_do_what_they_say(
    name: str, trained_run: Any, halfway: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained_run.path.parent.parent)
    shutil.copy(halfway, "halfway.py")
    monkeypatch.setenv("V8_HOME", str(trained_run.path.parent.parent / "caches"))
    found = doctest.testmod(import_module(name), extraglobs={"candles": trained_run.candles.to_frame()})
    assert found.failed == 0


def test_everything_public_has_an_example() -> None:
    v8: ModuleType = import_module("v8")
    for name in dir(v8):
        assert ">>>" in (getattr(v8, name).__doc__ or ""), name
