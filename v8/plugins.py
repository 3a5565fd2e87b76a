"""Plug-ins: files of the user's own that register a baseline, a feature, a family, a task or a source.

    python -m v8 run --plugin halfway.py
    V8_PLUGINS=halfway.py:tide.py python -m v8 backtest

A plug-in is Python and may do what its user may do. So only what the user names on this machine is loaded: by
`--plugin`, by `v8.plugin`, in `V8_PLUGINS`, or as an installed package with an entry point of the group
`v8.plugins`. Nothing that was pulled or unpacked names one.

Every process that works for a call loads the same ones, by the environment that it inherits, and is refused
where a file is another by then. Digests stand in `run.json`: whoever goes on with a run brings the same.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from v8.errors import ProfileError, V8Error, listed, message_of, shown
from v8.invocation import repeated
from v8.registry import strays
from v8.storage import digest_bytes, expanded, read_given

PLACE: Final = "V8_PLUGINS"
"""Environment variable that names files, separated as those of PATH are."""

GROUP: Final = "v8.plugins"
"""Group of the entry points by which an installed package brings a plug-in."""

MOST_BYTES: Final = 1 << 20
_installed: Final = cache(lambda: entry_points(group=GROUP))
loaded: Final[dict[str, str]] = {}
"""Sha256 of each plug-in of this process by its name, that of its file or `module==version`."""


def load_plugins(files: Iterable[str | Path] = ()) -> None:
    """Load the plug-ins that a door names, those of `V8_PLUGINS` and those of installed packages, each once.

    Processes that this one starts load them, too, and commands that are printed name those of the door.

    Raises:
        ProfileError: If one cannot be loaded, registers nothing, or has a name that is taken.
    """
    given = {str(file): str(expanded(file, variable="param:plugin").absolute()) for file in files}
    inherited = (str(Path(file).absolute()) for file in os.environ.get(PLACE, "").split(os.pathsep) if file)
    for entry in _installed():
        about = f"{entry.value}=={getattr(entry.dist, 'version', 'of no version')}"
        _enter(about, digest_bytes(about.encode()), f"plug-in {entry.name}", entry.load)
    for file in (named := [*dict.fromkeys((*inherited, *given.values()))]):
        _load_file(Path(file))
    if named:
        os.environ[PLACE] = os.pathsep.join(named)
    repeated.update(dict.fromkeys(("--plugin", file) for file in given))


def other_plugins(wanted: Mapping[str, str], *, where: str, fix: str) -> ProfileError | None:
    """Return why what was begun with some plug-ins, digests by name, cannot go on here; None if it can."""
    rule = f"goes on with the plug-ins that it was begun with, {told(wanted)}"
    return ProfileError(where=where, rule=rule, got=told(loaded), fix=fix) if loaded != wanted else None


def digest_of(function: Any) -> dict[str, str]:
    """Return the digest of the plug-in that a function is of, as a key more of what tells it; else none."""
    module = sys.modules.get(str(getattr(function, "__module__", None)))
    found = getattr(module, "__digest__", None)
    return {"plugin": found} if found else {}


def require_no_strays(where: str) -> None:
    """Refuse to start a process that would not know what was registered in this one, by `ProfileError`."""
    names = [f"{kind.kind} {one.name}" for kind, one in strays if kind.get(one.name) is one]
    if names:
        rule = "trains in processes of its own, which know what a plug-in registers"
        fix = "Put it into a file, restart this process, and name the file: param:plugin"
        raise ProfileError(where=where, rule=rule, got=f"{listed(names)}, registered in this one", fix=fix)


def told(plugins: Mapping[str, str]) -> str:
    """Name plug-ins with the begin of their digests, or say that there is none.

    >>> told({"tide.py": "0123456789abcdef"}), told({})
    ('tide.py (01234567)', 'none')
    """
    return listed([f"{name} ({digest[:8]})" for name, digest in plugins.items()]) or "none"


def _load_file(file: Path) -> None:
    where = f"plug-in {file}"
    module = ModuleType(f"v8_plugin_{file.stem}")
    try:
        content = read_given(file, MOST_BYTES)
    except OSError as error:
        rule = "must be a Python file that can be read"
        got = error.strerror or "an input error"
        raise ProfileError(where=where, rule=rule, got=got, fix="Check the path") from error

    def run() -> None:
        vars(module).update(__file__=str(file), __digest__=digest_bytes(content))
        sys.modules[module.__name__] = module  # by which other processes find what is sent to them
        exec(compile(content, str(file), "exec"), vars(module))  # noqa: S102 - the user named it

    _enter(shown(file.name), digest_bytes(content), where, run)


def _enter(name: str, digest: str, where: str, run: Callable[[], Any]) -> None:
    """Run a plug-in, unless it has been; of one that fails nothing stays registered."""
    if loaded.get(name) == digest:
        return
    if name in loaded:
        rule = "is loaded once, under the name of its file"
        fix = "Rename one, or restart after a change"
        raise ProfileError(where=where, rule=rule, got=f"another {name}, loaded before", fix=fix)
    before = len(strays)
    recursion_limit = sys.getrecursionlimit()
    try:
        run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        sys.setrecursionlimit(recursion_limit)  # first: to tell of the error takes calls, too
        for kind, one in strays[before:]:
            kind.pop(one.name, None)
        raise _broken(where, error) from error
    finally:
        sys.setrecursionlimit(recursion_limit)  # a plug-in's own would hold for all that v8 calls
        came, strays[before:] = strays[before:], []
    if not came:
        rule = "registers something when it is loaded"
        fix = "Call for example BASELINES.register in it"
        raise ProfileError(where=where, rule=rule, got="nothing registered", fix=fix)
    loaded[name] = digest


def _broken(where: str, error: BaseException) -> ProfileError:
    if isinstance(error, V8Error):
        return ProfileError(where=f"{where}, {error.where}", rule=error.rule, got=error.got, fix=error.fix)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f", line {frame.lineno}" for frame in frames if where.endswith(frame.filename)]
    got = f"{type(error).__name__}: {message_of(error)}{''.join(lines[-1:])}"
    rule = "must be Python that runs when it is loaded"
    fix = "Mend the file"
    return ProfileError(where=where, rule=rule, got=got, fix=fix)
