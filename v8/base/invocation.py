"""How this process was started, and messages for a start that fails; uses the standard library only.

`scripts/v8` sets `V8_COMMAND` to the way it was called, so that users can paste every command that v8 prints.
"""

import gc
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from v8.base.errors import V8Error
from v8.base.variables import with_variables

OLDEST_PYTHON = (3, 11)
EXIT_INTERRUPTED = 130
_SAFE_PATH: Final = "PYTHONSAFEPATH"  # https://docs.python.org/3/using/cmdline.html#envvar-PYTHONSAFEPATH
_SHORT_OF_MEMORY: Final = ("failed to map segment", "allocate memory", "paging file")
"""Parts of the messages of operating systems if there is not enough memory to load a library."""
repeated: Final[dict[tuple[str, str], None]] = {}
"""Flags and their values that every printed command needs, such as plug-ins, in their order."""
for_children: Final[dict[str, str]] = {}
"""Variables of the processes that this one starts: they load the plug-ins that are loaded here."""


def command(*words: str) -> str:
    """Return a command line of v8 that the user can paste.

    >>> command("pull", "--repo", "you/my models")
    "python -m v8 pull --repo 'you/my models'"
    """
    program = os.environ.get("V8_COMMAND") or "python -m v8"
    if not words:
        return program
    arguments = list(words)
    for flag, value in repeated:
        if value not in arguments and f"{flag}={value}" not in arguments:
            arguments += [flag, value]
    return f"{program} {shlex.join(arguments)}".rstrip()


@contextmanager
def explained_start() -> Iterator[None]:
    """Exit with a message if this Python cannot run v8, and at a Ctrl-C.

    The commands handle Ctrl-C themselves; this is for the second in which they are imported.
    """
    try:
        with explained_imports():
            if sys.version_info < OLDEST_PYTHON:
                oldest = ".".join(map(str, OLDEST_PYTHON))
                current = ".".join(map(str, sys.version_info[:2]))
                raise _wrong_python(f"needs Python {oldest} or newer", f"Python {current}")
            yield
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was started. Repeat the same command.\n")
        sys.exit(EXIT_INTERRUPTED)


@contextmanager
def explained_imports() -> Iterator[None]:
    """Exit with a message at a `V8Error`, and if a package is missing or cannot be loaded."""
    try:
        with import_errors_translated():
            yield
    except V8Error as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


@contextmanager
def import_errors_translated() -> Iterator[None]:
    """Raise a `V8Error` if a package is missing or cannot be loaded.

    TensorFlow and other packages are imported late, by the first function that needs them, so an import may
    fail anywhere.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = _package_of(error)
        if package in ("", "v8", *sys.stdlib_module_names):
            raise
        raise _wrong_python(f"needs the package {package}", "none") from error
    except ImportError as error:
        cause = error  # TensorFlow wraps the message of the operating system in long ones of its own
        while isinstance(cause.__context__, ImportError):
            cause = cause.__context__
        if _package_of(cause) == "v8":
            raise
        raise _not_loaded(cause) from error


def _package_of(error: ImportError) -> str:
    """Return the name of the package that cannot be imported, from the path or the name of the module."""
    path = (error.path or "").replace("\\", "/")
    before, _, relative_path = path.rpartition("-packages/")  # of site-packages or dist-packages
    if before:
        return relative_path.partition("/")[0]
    return (error.name or "").partition(".")[0]


def _not_loaded(error: ImportError) -> V8Error:
    """Return the error for a package that cannot be loaded, with the message of the operating system."""
    package = _package_of(error) or "that failed"
    if any(words in str(error) for words in _SHORT_OF_MEMORY):
        fix = "Let the process have more memory: look at ulimit -v, and at what other programs use"
    else:
        fix = f"Install the library that is named, or the package again, for {sys.executable}"
    rule = f"needs the package {package}, with every library of it"
    return V8Error(where="v8", rule=rule, got=str(error).strip() or type(error).__name__, fix=fix)


def _wrong_python(rule: str, got: str) -> V8Error:
    fix = "Start it as scripts/v8, which installs what is missing into .venv, or with .venv/bin/python"
    return V8Error(where="v8", rule=rule, got=f"{got} in {sys.executable}", fix=fix)


@contextmanager
def collected_later() -> Iterator[None]:
    """Switch Python's garbage collector off until the block ends; one that is already off stays off.

    The collector visits all objects again and again as their number grows. That is a quarter of the time in
    which a process imports TensorFlow and traces a training step, and both leave little garbage.
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
    """Give Python processes that the block starts `for_children`, and keep them from the working folder.

    `python -m` and `python -c`, by which multiprocessing starts its workers, look there first. A file html.py
    in a folder that the user unpacked would be run instead of Python's own module.
    """
    with with_variables({_SAFE_PATH: "1", **for_children}):
        yield


def program_of(module: str) -> list[str]:
    """Return the command line that runs a module of v8, of the same v8 that this process runs.

    If v8 itself is in the working folder, Python with a safe path would not find it, so its folder is added.
    """
    root = str(Path(__file__).parents[2])
    code = (
        f"import sys; sys.path[:0] = [root for root in [{root!r}] if root not in sys.path]; "
        f"from runpy import run_module; run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code]
