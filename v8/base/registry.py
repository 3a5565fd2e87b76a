"""Registries: named entries of one kind, each with a description and a source.

Tasks, network families, candle sources, baselines, trackers and engines are entries of a `Registry`. A user
adds one by a file that calls `register`; no other file has to be changed.
"""

import difflib
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, Final, Generic, TypeVar

from v8.base.errors import ProfileError
from v8.base.safe_text import for_terminal, markup_in
from v8.base.storage import packaged_yaml


def require_package(package: str, *, where: str, rule: str) -> None:
    """Raise a `ProfileError` if an optional package is not installed; `where` and `rule` are parts of it."""
    if find_spec(package) is None:
        fix = f"Run: {sys.executable} -m pip install {package}"
        raise ProfileError(where=where, rule=rule, got="none installed", fix=fix)


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
        rule = (
            "a name begins with a letter and holds at most 64 letters (a to z), digits, dashes and "
            "underscores; Windows keeps con, prn, aux, nul, com1 and lpt1 for devices"
        )
        got = repr(name) if isinstance(name, str) else type(name).__name__
        raise ProfileError(where=f"{self.kind}, its name", rule=rule, got=got, fix="Give it another name")

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
                where = f"{self.kind} {entry.name}, its {field.name}"
                got = repr(text) if isinstance(text, str) else type(text).__name__
                fix = "Write one sentence of plain text"
                raise ProfileError(where=where, rule=fault, got=got, fix=fix)

    def _require_free(self, entry: T) -> None:
        """Raise a `ProfileError` if a name is reserved or taken.

        Names are compared without case, because some file systems ignore it.
        """
        location = f"{self.kind} {entry.name}"
        lower = entry.name.lower()
        if lower in self._reserved or lower.startswith(_MODEL_QUANTILES):
            rule = "its name must not stand for something else in files, tables and pages"
            fix = "Give it another name"
            raise ProfileError(where=location, rule=rule, got=f"the reserved name {entry.name}", fix=fix)
        if lower in {name.lower() for name in self}:
            rule = f"each {self.kind} is registered once"
            got = f"a second one of that name ({entry.sentence})"
            raise ProfileError(where=location, rule=rule, got=got, fix="Give it another name")

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
