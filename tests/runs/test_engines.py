"""Engines are found by name, each with a sentence and the modules that do its work."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from v8.errors import ProfileError
from v8.runs.engines import ENGINES


def test_every_engine_says_where_it_trains_and_names_modules_that_exist() -> None:
    assert "local" in ENGINES
    for engine in ENGINES.values():
        assert engine.sentence.endswith(".")
        assert all(find_spec(name) for name in engine.source.split(", "))


def test_an_unknown_engine_names_the_nearest() -> None:
    with pytest.raises(
        ProfileError, match=r"engine locl: an? engine is one of local, ray; got .locl.\. Did you mean"
    ):
        ENGINES.find("locl")
