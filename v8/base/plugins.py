"""Plug-ins: files of the user's own that register a baseline, a feature, a family, a task or a source.

    python -m v8 run --plugin halfway.py
    V8_PLUGINS=halfway.py:tide.py python -m v8 backtest

A plug-in is Python code with all permissions of its user. So only plug-ins that the user names on this
machine are loaded: by `--plugin`, by `v8.plugin`, in `V8_PLUGINS`, or as an installed package with an entry
point of the group `v8.base.plugins`. Files that were pulled from the Hub can name none.

Processes that v8 starts load the same plug-ins; if a file has changed since, they refuse to start. `run.json`
records the digests: a run is continued with the same plug-ins.
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

from v8.base.errors import ProfileError, V8Error, listed, message_of, shown
from v8.base.process import for_children, repeated
from v8.base.reading import read_given
from v8.base.registry import own_entries
from v8.base.storage import digest_bytes, expanded

PLACE: Final = "V8_PLUGINS"
"""Environment variable that names files, separated as those of PATH are."""

GROUP: Final = "v8.plugins"
"""Group of the entry points by which an installed package offers a plug-in."""

MOST_BYTES: Final = 1 << 20
_installed: Final = cache(lambda: entry_points(group=GROUP))
loaded: Final[dict[str, str]] = {}
"""Sha256 of each plug-in of this process by its name: the name of its file, or `module==version`."""


def load_plugins(files: Iterable[str | Path] = ()) -> None:
    """Load plug-ins, each once: those in `files`, of `V8_PLUGINS`, and of installed packages.

    Processes that this one starts load them, too, and printed commands name those in `files`.

    Raises:
        ProfileError: If one cannot be loaded, registers nothing, or has a name that is taken.
    """
    requested = {str(file): str(expanded(file, variable="param:plugin").absolute()) for file in files}
    inherited = [str(Path(file).absolute()) for file in os.environ.get(PLACE, "").split(os.pathsep) if file]
    for entry in _installed():
        name = f"{entry.value}=={getattr(entry.dist, 'version', 'of no version')}"
        _load_once(name, digest_bytes(name.encode()), f"plug-in {entry.name}", entry.load)
    paths = [*dict.fromkeys([*inherited, *requested.values()])]  # each once, in this order
    for path in paths:
        _load_file(Path(path))
    if paths:
        before = for_children.get(PLACE, "").split(os.pathsep)
        for_children[PLACE] = os.pathsep.join(dict.fromkeys(filter(None, [*before, *paths])))
    for file in requested:
        repeated["--plugin", file] = None


def other_plugins(expected: Mapping[str, str], *, where: str, fix: str) -> ProfileError | None:
    """Return the error if other plug-ins are loaded than something was started with; None if the same are.

    Args:
        expected: Digests by name of the plug-ins that it was started with.
        where: What is continued, for the error.
        fix: What the user can do.
    """
    if loaded == expected:
        return None
    rule = f"is continued with the plug-ins that it was started with, {listed_plugins(expected)}"
    return ProfileError(where=where, rule=rule, got=listed_plugins(loaded), fix=fix)


def digest_of(function: Any) -> dict[str, str]:
    """Return the digest of the plug-in that defines a function, under the key `plugin`; else no key."""
    module = sys.modules.get(str(getattr(function, "__module__", None)))
    digest = getattr(module, "__digest__", None)
    return {"plugin": digest} if digest else {}


def require_no_own_entries(location: str) -> None:
    """Raise a `ProfileError` if this program registered entries itself: its workers would not know them."""
    names = []
    for registry, entry in own_entries:
        if registry.get(entry.name) is entry:
            names.append(f"{registry.kind} {entry.name}")
    if names:
        rule = "trains in processes of its own, which know what a plug-in registers"
        fix = "Put it into a file, restart this process, and name the file: param:plugin"
        raise ProfileError(where=location, rule=rule, got=f"{listed(names)}, registered in this one", fix=fix)


def listed_plugins(plugins: Mapping[str, str]) -> str:
    """List plug-ins with the first digits of their digests, or return "none".

    >>> listed_plugins({"tide.py": "0123456789abcdef"}), listed_plugins({})
    ('tide.py (01234567)', 'none')
    """
    return listed([f"{name} ({digest[:8]})" for name, digest in plugins.items()]) or "none"


def _load_file(file: Path) -> None:
    location = f"plug-in {file}"
    module = ModuleType(f"v8_plugin_{file.stem}")
    try:
        content = read_given(file, MOST_BYTES)
    except OSError as error:
        rule = "must be a Python file that can be read"
        got = error.strerror or "an input error"
        raise ProfileError(where=location, rule=rule, got=got, fix="Check the path") from error

    def run() -> None:
        vars(module).update(__file__=str(file), __digest__=digest_bytes(content))
        sys.modules[module.__name__] = module  # pickle looks for functions of the plug-in there
        exec(compile(content, str(file), "exec"), vars(module))  # noqa: S102 - the user named it

    _load_once(shown(file.name), digest_bytes(content), location, run)


def _load_once(name: str, digest: str, location: str, run: Callable[[], Any]) -> None:
    """Run a plug-in unless it has run before; if it fails, the entries that it registered are removed."""
    if loaded.get(name) == digest:
        return
    if name in loaded:
        rule = "is loaded once, under the name of its file"
        fix = "Rename one, or restart after a change"
        raise ProfileError(where=location, rule=rule, got=f"another {name}, loaded before", fix=fix)
    num_before = len(own_entries)
    recursion_limit = sys.getrecursionlimit()
    try:
        run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        sys.setrecursionlimit(recursion_limit)  # first, because the next lines need calls, too
        for registry, entry in own_entries[num_before:]:
            registry.pop(entry.name, None)
        raise _load_error(location, error) from error
    finally:
        sys.setrecursionlimit(recursion_limit)  # a limit that the plug-in set must not hold for v8
        num_registered = len(own_entries) - num_before
        del own_entries[num_before:]  # entries of plug-ins are known to other processes
    if not num_registered:
        rule = "registers something when it is loaded"
        fix = "Call for example BASELINES.register in it"
        raise ProfileError(where=location, rule=rule, got="nothing registered", fix=fix)
    loaded[name] = digest


def _load_error(location: str, error: BaseException) -> ProfileError:
    """Return the error for a plug-in that failed, with the last line of it that was run."""
    if isinstance(error, V8Error):
        location = f"{location}, {error.where}"
        return ProfileError(where=location, rule=error.rule, got=error.got, fix=error.fix)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if location.endswith(frame.filename)]
    got = f"{type(error).__name__}: {message_of(error)}"
    if lines:
        got += f", line {lines[-1]}"
    rule = "must be Python that runs when it is loaded"
    return ProfileError(where=location, rule=rule, got=got, fix="Correct the file")
