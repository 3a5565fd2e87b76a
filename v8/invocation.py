"""How this process was started, and what to say when it cannot start: standard library only.

`scripts/v8` says in `V8_COMMAND` how it was called, so that every command that v8 prints can be pasted.
"""

import gc
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from v8.errors import V8Error

OLDEST_PYTHON = (3, 11)
EXIT_INTERRUPTED = 130
_SAFE_PATH: Final = "PYTHONSAFEPATH"  # https://docs.python.org/3/using/cmdline.html#envvar-PYTHONSAFEPATH
_SHORT_OF_MEMORY: Final = ("failed to map segment", "allocate memory", "paging file")
"""What systems say where a library finds no room."""
repeated: Final[dict[tuple[str, str], None]] = {}
"""Flags and their values that every command needs which is printed, such as a plug-in, in their order."""


def command(*words: str) -> str:
    """Write a command line of v8 as the user can paste it.

    >>> command("pull", "--repo", "you/my models")
    "python -m v8 pull --repo 'you/my models'"
    """
    for flag, value in repeated if words else ():
        words += (flag, value) if not {value, f"{flag}={value}"} & {*words} else ()
    return f"{os.environ.get('V8_COMMAND') or 'python -m v8'} {shlex.join(words)}".rstrip()


@contextmanager
def explained_start() -> Iterator[None]:
    """Exit with one sentence where this is no Python that v8 is installed for, and at a Ctrl-C.

    The commands look after Ctrl-C themselves; here it is for the second in which they are imported.
    """
    try:
        with explained_imports():
            if sys.version_info < OLDEST_PYTHON:
                versions = OLDEST_PYTHON, sys.version_info
                wanted, found = (".".join(map(str, version[:2])) for version in versions)
                raise _wrong_python(f"needs Python {wanted} or newer", f"Python {found}")
            yield
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was begun. Repeat the same command.\n")
        sys.exit(EXIT_INTERRUPTED)


@contextmanager
def explained_imports() -> Iterator[None]:
    """Exit with one sentence at an error of ours, and where a package is missing or cannot be loaded.

    TensorFlow is imported late, by whatever needs it first: an import of another's package may fail anywhere.
    """
    try:
        try:
            yield
        except ModuleNotFoundError as error:
            package = _package_of(error)
            if package in ("", "v8", *sys.stdlib_module_names):
                raise
            raise _wrong_python(f"needs the package {package}", "none") from error
        except ImportError as error:
            first = error  # TensorFlow wraps what the system said into pages of its own
            while isinstance(first.__context__, ImportError):
                first = first.__context__
            if _package_of(first) == "v8":
                raise
            raise _not_loaded(first) from error
    except V8Error as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


def _package_of(error: ImportError) -> str:
    """Return the package whose part cannot be imported: a library knows its own name, and where it lies."""
    before, _, place = (error.path or "").replace("\\", "/").rpartition("-packages/")
    return (place if before else error.name or "").partition("/" if before else ".")[0]


def _not_loaded(error: ImportError) -> V8Error:
    """Say which package cannot be loaded, and what the system said."""
    package = _package_of(error) or "that failed"
    if any(words in str(error) for words in _SHORT_OF_MEMORY):
        fix = "Let the process have more memory: look at ulimit -v, and at what other programs use"
    else:
        fix = f"Install the library that is named, or the package anew, for {sys.executable}"
    rule = f"needs the package {package}, with every library of it"
    return V8Error(where="v8", rule=rule, got=str(error).strip() or type(error).__name__, fix=fix)


def _wrong_python(rule: str, got: str) -> V8Error:
    fix = "Start it as scripts/v8, which installs what is missing into .venv, or with .venv/bin/python"
    return V8Error(where="v8", rule=rule, got=f"{got} in {sys.executable}", fix=fix)


@contextmanager
def collected_later() -> Iterator[None]:
    """Leave garbage where it is until the block ends; a collector that is off already stays off.

    Python's collector looks through all there is again and again as that grows: a quarter of the time in
    which a process imports TensorFlow and traces a training step. Neither leaves much garbage.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def children_with_safe_path() -> Iterator[None]:
    """Let Python processes that the block starts not look for modules in the working folder.

    `python -m` and `python -c`, by which multiprocessing starts its workers too, look there before anywhere
    else: a file html.py in a folder that somebody unpacked would run in the place of Python's own.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def program_of(module: str) -> list[str]:
    """Return the words that start a module of v8 as a program, of the v8 that this process runs.

    With a safe path Python would not find one that lies in the working folder, not even if this process did.
    """
    root = str(Path(__file__).parents[1])
    code = (
        f"import sys; sys.path[:0] = [root for root in [{root!r}] if root not in sys.path]; "
        f"from runpy import run_module; run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code]
