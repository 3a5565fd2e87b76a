"""The marks that tests carry, and the guard that finds a test which has lost one.

    tf       computes with Keras, TensorFlow or JAX
    process  starts a process
    nightly  slow: real faults and kills, fuzzing, the image, notebooks, every profile, whole trainings

A mark is written above the test, or in its file's `pytestmark`. `scripts/test --quick` takes the tests that
have none of them, `scripts/test` those without `nightly`, `scripts/test --all` all.

While a test runs, the guard notices the start of a process, the import of a framework, and every operation
that TensorFlow or JAX carries out. A test that did any of these without the mark fails. What the setup of a
shared fixture did counts for every test that asks for the fixture, also for those that find it ready.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

FRAMEWORKS = frozenset({"keras", "tensorflow", "jax"})
STARTS_OF_PROCESSES = frozenset(
    {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
)
"""Audit events of Python; see the table of audit events in its library reference."""
SHORT_PROGRAMS = frozenset({"git", "nvidia-smi", "uname"})
"""Asked for the commit, the driver and the processor wherever v8 runs; they end in milliseconds."""
OPERATIONS = (
    ("tensorflow.python.pywrap_tfe", "TFE_Py_FastPathExecute"),
    ("tensorflow.python.pywrap_tfe", "TFE_Py_Execute"),
    ("jax._src.core", "Primitive.bind"),
    ("multiprocessing.process", "BaseProcess.start"),
)
"""Module and attribute of what every operation goes through; what a version does not have is not watched."""


class MarkGuard:
    """A pytest plugin that fails a test which uses something its marks do not name."""

    def __init__(self) -> None:
        # Mark to what needs it: the program that was started, the module or operation that was used.
        self._used: dict[str, str] = {}
        self._used_by_fixture: dict[Any, dict[str, str]] = {}
        self._watched: set[tuple[str, str]] = set()
        # Threads that an earlier test or fixture started: what they still do is not this test's.
        self._older_threads: set[threading.Thread] = set()
        sys.addaudithook(self._notice_event)

    def _notice_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS_OF_PROCESSES:
            program = _program(arguments) if event == "subprocess.Popen" else event
            if program not in SHORT_PROGRAMS:
                self._used.setdefault("process", f"starts {program}")
        elif event == "import" and arguments[0] in FRAMEWORKS:
            self._used.setdefault("tf", f"imports {arguments[0]}")

    def _watch_operations(self) -> None:
        """Wrap the functions of `OPERATIONS` whose modules have been imported since the last call."""
        for module_name, attribute in OPERATIONS:
            module = sys.modules.get(module_name)
            if module is None or (module_name, attribute) in self._watched:
                continue
            self._watched.add((module_name, attribute))
            *classes, name = attribute.split(".")
            owner = functools.reduce(getattr, classes, module)
            if hasattr(owner, name):
                setattr(owner, name, self._watched_function(getattr(owner, name), module_name, attribute))

    def _watched_function(
        self, function: Callable[..., Any], module_name: str, name: str
    ) -> Callable[..., Any]:
        mark = "process" if module_name.startswith("multiprocessing") else "tf"
        evidence = f"calls {name} of {module_name}"

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if threading.current_thread() not in self._older_threads:
                self._used.setdefault(mark, evidence)
            return function(*arguments, **options)

        return call

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        self._used.clear()
        self._older_threads = set(threading.enumerate()) - {threading.current_thread()}
        self._watch_operations()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        used_before = self._used.copy()
        self._used.clear()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._used_by_fixture.setdefault(fixturedef, {}).update(self._used)
            self._used.update(used_before)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        result = yield
        if isinstance(item, pytest.Function):
            used = self._used_by(item)
            for mark in sorted(used.keys() - {mark.name for mark in item.iter_markers()}):
                message = (
                    f"{item.nodeid}: {used[mark]} and has lost its mark; write @pytest.mark.{mark} above it."
                )
                pytest.fail(message, pytrace=False)
        return result

    def _used_by(self, item: pytest.Function) -> dict[str, str]:
        """Return what a test and the fixtures that it asks for used, by the mark that names it."""
        used = dict(self._used)
        for fixtures in item._fixtureinfo.name2fixturedefs.values():
            for fixture in fixtures:
                used.update(self._used_by_fixture.get(fixture, {}))
        return used


def _program(arguments: tuple[Any, ...]) -> str:
    """Return the name of the program that `subprocess.Popen` starts, from its audit event."""
    executable = arguments[0]
    words = arguments[1]
    if executable is None:
        executable = words if isinstance(words, str | bytes | Path) else words[0]
    return Path(os.fsdecode(executable)).name
