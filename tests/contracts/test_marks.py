"""Marks that tests get by what their code reaches: tests/parts/marks.py."""

from __future__ import annotations

import subprocess
from functools import partial
from importlib import import_module

import pytest
from marks import PROCESS, _marks

from v8.training import trainer


def starting() -> None:
    subprocess.run(["true"], check=True)


class Computing:
    @property
    def result(self) -> object:
        return trainer.Trainer


def importing() -> None:
    import keras  # noqa: F401


def test_a_test_is_marked_by_what_its_code_reaches() -> None:
    def within() -> object:
        return [lambda: Computing().result]

    assert _marks(starting) == {"process"}
    assert _marks(partial(starting).func) == {"process"}
    assert _marks(within) == _marks(importing) == {"tf"}
    assert _marks(lambda: (starting, importing)) == {"process", "tf"}
    assert _marks(lambda: len) == set()


@pytest.mark.parametrize("name", sorted(name for name in PROCESS if name.startswith("v8.")))
def test_what_starts_processes_in_v8_is_where_it_is_looked_for(name: str) -> None:
    assert {"Popen", "subprocess"} & {*vars(import_module(name))}


def test_fixtures_count(request: pytest.FixtureRequest) -> None:
    assert {mark.name for mark in request.node.iter_markers()} == set()


@pytest.mark.usefixtures("make_data")
def test_a_fixture_that_prepares_windows_needs_no_tensorflow(request: pytest.FixtureRequest) -> None:
    assert {mark.name for mark in request.node.iter_markers()} == {"usefixtures"}


@pytest.fixture
def trains() -> None:
    from v8.training import trainer  # noqa: F401


@pytest.mark.usefixtures("trains")
def test_a_fixture_that_trains_marks_its_tests(request: pytest.FixtureRequest) -> None:
    assert "tf" in {mark.name for mark in request.node.iter_markers()}
