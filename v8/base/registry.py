"""Registries, and who adds to them: named entries of one kind, each with a description and a source.

Tasks, network families, candle sources, baselines, trackers and engines are entries of a `Registry`. A user
adds one by a plug-in, a file that calls `register`; no other file has to be changed.

    python -m v8 run --plugin halfway.py
    V8_PLUGINS=halfway.py:tide.py python -m v8 backtest

A plug-in is Python code with all permissions of its user. So only plug-ins that the user names on this
machine are loaded: by `--plugin`, by `v8.plugin`, in `V8_PLUGINS`, or as an installed package with an entry
point of the group `v8.plugins`. Files that were pulled from the Hub can name none.

Processes that v8 starts load the same plug-ins; if a file has changed since, they refuse to start. `run.json`
records the digests: a run is continued with the same plug-ins.

An annex is a package of v8 that adds to its core, and may be absent: a folder with a file `annex.yaml`, an
`Annex`. The core imports no annex and names none: it reads these files and imports what they name when it is
asked for. So removing the folder of an annex removes what it adds, and nothing else.
"""

import difflib
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, Generic, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field

from v8.base.errors import ProfileError, V8Error, listed, message_of, shown
from v8.base.process import for_children, repeated
from v8.base.records import read_given
from v8.base.storage import digest_bytes, expanded, packaged_yaml, parse_own_yaml
from v8.base.wording import for_terminal, markup_in


def require_package(package: str, *, where: str, rule: str) -> None:
    """Raise a `ProfileError` if an optional package is not installed; `where` and `rule` are parts of it."""
    require_packages([package], where=where, rule=rule)


def require_packages(packages: Sequence[str], *, where: str, rule: str) -> None:
    """Raise a `ProfileError` if one of these packages is not installed; see `require_package`."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ProfileError(
            where=where,
            rule=rule,
            got="none installed" if missing == [*packages] else f"no {listed(missing)}",
            fix=f"Run: {sys.executable} -m pip install {' '.join(missing)}",
        )


@dataclass(frozen=True)
class Named:
    """The fields of every registered entry."""

    name: str  # its key in the registry, in profiles, flags and files
    sentence: str  # a description for users
    source: str  # who described the method, or where its numbers come from


T = TypeVar("T", bound=Named)

_MOST_COMPARED: Final = 100
"""Characters of a name that are compared with registered ones: the time grows with their square."""

_SIMILARITY: Final = 0.7
"""Least similarity of a misspelt name, 0 to 1; different words that share a few letters have less."""

MOST_LETTERS: Final = 300
"""Letters of a name, a colon and a sentence: what `metadata.json` may hold as the definition of a feature."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""Names become columns of tables, keys and parts of file names: none is a path, a formula or markup."""

RESERVED: Final = frozenset(
    {
        *("actual", "actual_values", "all", "auto", "baseline", "best", "best_baseline", "forecaster"),
        *("model", "naive", "none", "actual"),
        *("close_time", "index", "open_time", "segment", "series", "source", "symbol", "task", "time"),
        *("timeframe", "timestamp", "volume"),
        *("csv", "frames", "ta"),  # origins of columns and candles
    }
)
"""Names in lower case that have another meaning in files, tables and pages."""

_MODEL_QUANTILES: Final = "model_"  # prefix of the names of a model's quantiles among forecasters

_WINDOWS_DEVICES: Final = re.compile(r"con|prn|aux|nul|(com|lpt)[0-9]")

own_entries: Final[list[tuple["Registry[Any]", Named]]] = []
"""Entries that a program registered in this process itself; neither those of v8 nor those of plug-ins."""


class Registry(dict[str, T], Generic[T]):
    """Entries of one kind by name, in the order in which they were registered.

    Args:
        kind: The kind of entry for messages, such as "task".
        entries: The entries of v8 itself.
        reserved: Names that are refused in addition to those of `RESERVED`.
    """

    def __init__(self, kind: str, entries: Iterable[T] = (), reserved: Collection[str] = ()) -> None:
        super().__init__()
        self.kind = kind
        for entry in entries:
            self._require_name(entry.name)
            self[entry.name] = entry
        self._reserved = RESERVED | {name.lower() for name in reserved}

    def register(self, entry: T) -> T:
        """Add an entry under its name and return it.

        Raises:
            ProfileError: If the name is not a plain word of at most 64 characters, stands for something else
                in files, tables or pages, or is taken, or if another text of it is no line of plain text.
        """
        self._require_name(entry.name)
        self._require_plain_texts(entry)
        self._require_free(entry)
        self[entry.name] = entry
        own_entries.append((self, entry))
        return entry

    def _require_name(self, name: object) -> None:
        """Raise a `ProfileError` if a name is not a plain word."""
        if isinstance(name, str) and _NAME.fullmatch(name) and not _WINDOWS_DEVICES.fullmatch(name.lower()):
            return
        raise ProfileError(
            where=f"{self.kind}, its name",
            rule=(
                "a name begins with a letter and holds at most 64 letters (a to z), digits, dashes and "
                "underscores; Windows keeps con, prn, aux, nul, com1 and lpt1 for devices"
            ),
            got=repr(name) if isinstance(name, str) else type(name).__name__,
            fix="Give it another name",
        )

    def _require_plain_texts(self, entry: T) -> None:
        """Refuse a sentence, a source or another text that some terminal, page or card cannot show as it is.

        The same rule holds for texts of `metadata.json` (`v8.base.records.Plain`), so what is refused here
        could not be saved after training either.
        """
        required = {field.name for field in fields(Named)}
        for field in fields(entry):
            text = getattr(entry, field.name)
            if not isinstance(text, str) and field.name not in required:
                continue
            fault = _fault_of_text(text, entry.name, may_hold_address=field.name == "source")
            if fault:
                raise ProfileError(
                    where=f"{self.kind} {entry.name}, its {field.name}",
                    rule=fault,
                    got=repr(text) if isinstance(text, str) else type(text).__name__,
                    fix="Write one sentence of plain text",
                )

    def _require_free(self, entry: T) -> None:
        """Raise a `ProfileError` if a name is reserved or taken.

        Names are compared without case, because some file systems ignore it.
        """
        location = f"{self.kind} {entry.name}"
        lower = entry.name.lower()
        if lower in self._reserved or lower.startswith(_MODEL_QUANTILES):
            raise ProfileError(
                where=location,
                rule="its name must not stand for something else in files, tables and pages",
                got=f"the reserved name {entry.name}",
                fix="Give it another name",
            )
        if lower in {name.lower() for name in self}:
            raise ProfileError(
                where=location,
                rule=f"each {self.kind} is registered once",
                got=f"a second one of that name ({entry.sentence})",
                fix="Give it another name",
            )

    def find(self, name: str, *, where: str | None = None) -> T:
        """Return an entry by its name.

        Args:
            name: The name.
            where: The flag or key that named it, for the error; None for the kind and the name.

        Raises:
            ProfileError: If there is no such entry. It suggests an entry with a similar name, or one whose
                description contains the name.
        """
        if name not in self:
            suggestion = nearest(name, self) or self._named_by_description(name)
            article = "an" if self.kind[:1] in "aeiou" else "a"
            rule = f"{article} {self.kind} is one of {', '.join(self)}"
            fix = f"Did you mean {suggestion}" if suggestion else "Choose one of these"
            if not self:
                rule = f"needs a {self.kind}, and v8 is installed without any"
                fix = "Leave it out, or install v8 as a whole"
            raise ProfileError(where=where or f"{self.kind} {name}", rule=rule, got=repr(name), fix=fix)
        return self[name]

    def _named_by_description(self, word: str) -> str | None:
        """Return the first entry whose description contains a word of at least three characters."""
        word = word[:_MOST_COMPARED].lower()
        if len(word) <= 2:
            return None
        for entry in self.values():
            if word in entry.sentence.lower():
                return entry.name
        return None


def _fault_of_text(text: object, name: str, *, may_hold_address: bool) -> str | None:
    """Return why a text of the entry of a name cannot be shown everywhere as it is; None if it can."""
    rule = f"is one line of printable characters, with the name at most {MOST_LETTERS}"
    if not isinstance(text, str) or not text.strip() or len(f"{name}: {text}") > MOST_LETTERS:
        return rule
    if for_terminal(text) != text:
        return rule
    return markup_in(text.replace("://", " ") if may_hold_address else text)


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that is most similar to a misspelt name; None if none is similar enough.

    >>> nearest("lookbak", ["horizon", "lookback"]), nearest("batchSize", ["batch_size"])
    ('lookback', 'batch_size')
    >>> nearest("learning_rate", ["covariates"])
    """
    by_spelling = {_normalized(choice): choice for choice in choices}
    spelling = _normalized(name[:_MOST_COMPARED])
    matches = difflib.get_close_matches(spelling, by_spelling, n=1, cutoff=_SIMILARITY)
    return by_spelling[matches[0]] if matches else None


def advice(name: str, choices: Iterable[str], otherwise: str) -> str:
    """Suggest the choice that is most similar to a misspelt name, or else return `otherwise`.

    >>> advice("lookbak", ["lookback"], "Choose one of these"), advice("x", ["lookback"], "Leave it out")
    ('Did you mean lookback', 'Leave it out')
    """
    suggestion = nearest(name, choices)
    return f"Did you mean {suggestion}" if suggestion else otherwise


def suggestion_clause(name: str, choices: Iterable[str]) -> str:
    """Return the end of a sentence that suggests the most similar choice; empty if none is similar enough.

    >>> suggestion_clause("lookbak", ["lookback"]), suggestion_clause("x", ["lookback"])
    ('; did you mean lookback', '')
    """
    suggestion = nearest(name, choices)
    return f"; did you mean {suggestion}" if suggestion else ""


def _normalized(name: str) -> str:
    return name.lower().replace("-", "_")


def make_entries(
    kind: Callable[..., T], descriptions: Iterable[Mapping[str, Any]], *functions: str
) -> list[T]:
    """Make the entries of a registry from what YAML files say about them.

    Args:
        kind: The class of the entries.
        descriptions: Their values by the names of the fields of the class. The key "before", which is no
            field, names the earlier entry that this one precedes; without it an entry comes last.
        functions: Keys whose value is the place of a function, see `lazy_function`.
    """
    entries: list[T] = []
    for description in descriptions:
        values = dict(description)
        successor = values.pop("before", None)
        for key in functions:
            if key in values:
                values[key] = lazy_function(values[key])
        names = [entry.name for entry in entries]
        position = names.index(successor) if successor in names else len(names)
        entries.insert(position, kind(**values))
    return entries


def read_list(package: str, file: str) -> list[dict[str, Any]]:
    """Read the descriptions of entries, in their order, from a YAML file of a package."""
    descriptions: list[dict[str, Any]] = packaged_yaml(package, file)
    return descriptions


def read_descriptions(package: str, file: str) -> dict[str, dict[str, Any]]:
    """Read the descriptions of entries by name from a YAML file of a package."""
    descriptions = packaged_yaml(package, file)
    return {name: {"name": name, **description} for name, description in descriptions.items()}


def lazy_function(place: str) -> Callable[..., Any]:
    """Return a function that imports the real one, `module:name`, when it is called.

    So a command can print its help without waiting for the import.

    >>> lazy_function("math:hypot")(3, 4)
    5.0
    """

    def call(*arguments: Any, **options: Any) -> Any:
        return pkgutil.resolve_name(place)(*arguments, **options)

    return call


PLUGINS_PLACE: Final = "V8_PLUGINS"
"""Environment variable that names files, separated as those of PATH are."""

_MOST_PLUGIN_BYTES: Final = 1 << 20
_DIGEST: Final = "__digest__"  # of its file; an attribute that only modules of plug-ins have
_installed: Final = cache(lambda: entry_points(group="v8.plugins"))
loaded_plugins: Final[dict[str, str]] = {}
"""Sha256 of each plug-in of this process by its name: the name of its file, or `module==version`."""


def load_plugins(files: Iterable[str | Path] = ()) -> None:
    """Load plug-ins, each once: those in `files`, of `V8_PLUGINS`, and of installed packages.

    Processes that this one starts load them, too, and printed commands name those in `files`.

    Raises:
        ProfileError: If one cannot be loaded, registers nothing, or has a name that is taken.
    """
    requested = {str(file): str(expanded(file, variable="param:plugin").absolute()) for file in files}
    files_of_variable = os.environ.get(PLUGINS_PLACE, "").split(os.pathsep)
    inherited = [str(Path(file).absolute()) for file in files_of_variable if file]
    for entry in _installed():
        name = f"{entry.value}=={getattr(entry.dist, 'version', 'of no version')}"
        _load_once(name, digest_bytes(name.encode()), f"plug-in {entry.name}", entry.load)
    paths = [*dict.fromkeys([*inherited, *requested.values()])]  # each once, in this order
    for path in paths:
        _load_file(Path(path))
    if paths:
        before = for_children.get(PLUGINS_PLACE, "").split(os.pathsep)
        for_children[PLUGINS_PLACE] = os.pathsep.join(dict.fromkeys(filter(None, [*before, *paths])))
    for file in requested:
        repeated["--plugin", file] = None


def other_plugins(expected: Mapping[str, str], *, where: str, fix: str) -> ProfileError | None:
    """Return the error if other plug-ins are loaded than something was started with; None if the same are.

    Args:
        expected: Digests by name of the plug-ins that it was started with.
        where: What is continued, for the error.
        fix: What the user can do.
    """
    if loaded_plugins == expected:
        return None
    return ProfileError(
        where=where,
        rule=f"is continued with the plug-ins that it was started with, {listed_plugins(expected)}",
        got=listed_plugins(loaded_plugins),
        fix=fix,
    )


def digest_of(function: Any) -> dict[str, str]:
    """Return the digest of the plug-in that defines a function, under the key `plugin`; else no key."""
    module = sys.modules.get(str(getattr(function, "__module__", None)))
    digest = getattr(module, _DIGEST, None)
    return {"plugin": digest} if digest else {}


def kind_and_line(error: BaseException) -> str:
    """Return the class of an error, and in which line of a plug-in: "ValueError in tide.py, line 7"."""
    plugins = [module for module in list(sys.modules.values()) if hasattr(module, _DIGEST)]
    frame = _last_frame(error, {str(module.__file__) for module in plugins})
    place = f" in {shown(Path(frame.filename).name)}, line {frame.lineno}" if frame else ""
    return type(error).__name__ + place


def _last_frame(error: BaseException, files: Collection[str]) -> traceback.FrameSummary | None:
    """Return the last frame in one of these files that an error passed; None if it passed none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return frames[-1] if frames else None


def require_no_own_entries(location: str) -> None:
    """Raise a `ProfileError` if this program registered entries itself: its workers would not know them."""
    names = []
    for registry, entry in own_entries:
        if registry.get(entry.name) is entry:
            names.append(f"{registry.kind} {entry.name}")
    if names:
        raise ProfileError(
            where=location,
            rule="trains in processes of its own, which know what a plug-in registers",
            got=f"{listed(names)}, registered in this one",
            fix="Put it into a file, restart this process, and name the file: param:plugin",
        )


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
        content = read_given(file, _MOST_PLUGIN_BYTES)
    except OSError as error:
        raise ProfileError(
            where=location,
            rule="must be a Python file that can be read",
            got=error.strerror or "an input error",
            fix="Check the path",
        ) from error

    def run() -> None:
        vars(module).update({"__file__": str(file), _DIGEST: digest_bytes(content)})
        sys.modules[module.__name__] = module  # pickle looks for functions of the plug-in there
        exec(compile(content, str(file), "exec"), vars(module))  # noqa: S102 - the user named it

    _load_once(shown(file.name), digest_bytes(content), location, run)


def _load_once(name: str, digest: str, location: str, run: Callable[[], Any]) -> None:
    """Run a plug-in unless it has run before; if it fails, the entries that it registered are removed."""
    if loaded_plugins.get(name) == digest:
        return
    if name in loaded_plugins:
        raise ProfileError(
            where=location,
            rule="is loaded once, under the name of its file",
            got=f"another {name}, loaded before",
            fix="Rename one, or restart after a change",
        )
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
        raise ProfileError(
            where=location,
            rule="registers something when it is loaded",
            got="nothing registered",
            fix="Call for example BASELINES.register in it",
        )
    loaded_plugins[name] = digest


def _load_error(location: str, error: BaseException) -> ProfileError:
    """Return the error for a plug-in that failed, with the last line of it that was run."""
    if isinstance(error, V8Error):
        location = f"{location}, {error.where}"
        return ProfileError(where=location, rule=error.rule, got=error.got, fix=error.fix)
    frame = _last_frame(error, {location.removeprefix("plug-in ")})
    got = f"{type(error).__name__}: {message_of(error)}"
    if frame:
        got += f", line {frame.lineno}"
    return ProfileError(
        where=location, rule="must be Python that runs when it is loaded", got=got, fix="Correct the file"
    )


ANNEXES_FOLDER: Final = "annexes"  # of the package `v8`; it may be absent
ANNEX_FILE: Final = "annex.yaml"

Function = Annotated[str, Field(pattern=r"^\w+(\.\w+)*:\w+(\.\w+)*$")]
"""The place of a function, `module:function`; it is imported when it is called."""


class AddedCommand(BaseModel):
    """A command that an annex adds to the command line."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    group: str  # of commands in `--help`
    place: int = 100  # in its group: behind the core's commands, ascending
    call: Function
    also: list[str] = Field(default_factory=list)  # what other programs call it


class AddedFlag(BaseModel):
    """A flag that an annex adds to a command of the core."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    help: str
    call: Function  # called where the flag is given; with what, the command says


class NextStep(BaseModel):
    """A command that the core offers after something has happened to a run."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    sentence: str  # what it is for, without a full stop
    words: list[str]  # of the command line; the folder of the run follows them


class Entry(BaseModel):
    """An entry that an annex adds to a registry of the core, as in the core's own YAML files."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str


class Annex(BaseModel):
    """The content of `annex.yaml`; each further key names a registry of the core, and holds entries of it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    __pydantic_extra__: dict[str, list[Entry]]

    sentence: str = ""  # what it is for
    commands: dict[str, AddedCommand] = Field(default_factory=dict)  # by name
    flags: dict[str, dict[str, AddedFlag]] = Field(default_factory=dict)  # by command of the core and name
    hooks: dict[str, Function] = Field(default_factory=dict)  # by what the core asks every annex for
    next_steps: dict[str, NextStep] = Field(default_factory=dict)  # by what has happened: "newer_candles"
    python: dict[str, Function] = Field(default_factory=dict)  # what it adds to `import v8`, by name


@cache
def annexes() -> Mapping[str, Annex]:
    """Read what each usable annex of v8 adds, by the name of its folder, in alphabetical order."""
    return read_annexes(files("v8") / ANNEXES_FOLDER)


def read_annexes(place: Traversable) -> Mapping[str, Annex]:
    """Read what each usable annex in a folder adds, by name.

    An annex is usable if its file can be read and is an `Annex`. Any other is left out, like one that is not
    there.
    """
    contents: dict[str, Annex] = {}
    folders = place.iterdir() if place.is_dir() else ()
    for folder in sorted(folders, key=lambda folder: folder.name):
        file = folder / ANNEX_FILE
        if file.is_file():
            with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
                contents[folder.name] = Annex.model_validate(parse_own_yaml(file.read_text("utf-8")))
    return contents


def added_commands() -> dict[str, AddedCommand]:
    """Return the commands that annexes add, by name, in the order of their places."""
    added = [item for annex in annexes().values() for item in annex.commands.items()]
    return dict(sorted(added, key=lambda item: item[1].place))


def added_flags(command: str) -> dict[str, AddedFlag]:
    """Return the flags that annexes add to a command of the core, by name without dashes."""
    return {name: flag for annex in annexes().values() for name, flag in annex.flags.get(command, {}).items()}


def annex_hooks(name: str) -> list[Callable[..., Any]]:
    """Import the functions by which annexes answer something that the core asks every annex for."""
    return [pkgutil.resolve_name(annex.hooks[name]) for annex in annexes().values() if name in annex.hooks]


def next_steps(occasion: str) -> list[NextStep]:
    """List the commands that annexes offer after something has happened."""
    return [annex.next_steps[occasion] for annex in annexes().values() if occasion in annex.next_steps]


def added_functions() -> dict[str, str]:
    """Return the functions that annexes add to `import v8`, by name, as `module:function`."""
    return {name: call for annex in annexes().values() for name, call in annex.python.items()}


def added_entries(registry: str) -> list[dict[str, Any]]:
    """List the entries that annexes add to a registry of the core, such as "sources"."""
    lists = (annex.__pydantic_extra__.get(registry, ()) for annex in annexes().values())
    return [entry.model_dump() for entries in lists for entry in entries]
