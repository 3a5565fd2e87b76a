"""Registries: what there is of one kind, by name, each with a sentence and a source.

Tasks, network families, candle sources, baselines, trackers and engines are all kept in one of these, a line
each. A thing of one's own is one file that calls `register`; nothing else has to know it.
"""

import difflib
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, Final, Generic, TypeVar

import yaml

from v8.errors import ProfileError
from v8.safe_text import for_terminal, markup_in
from v8.storage import packaged


def require_package(package: str, *, where: str, rule: str) -> None:
    """Refuse what needs an optional package that is not installed."""
    if find_spec(package) is None:
        fix = f"Run: {sys.executable} -m pip install {package}"
        raise ProfileError(where=where, rule=rule, got="none installed", fix=fix)


@dataclass(frozen=True)
class Named:
    """What every registered thing tells of itself."""

    name: str  # its key: what profiles, flags and files call it
    sentence: str  # what it is or assumes, for people
    source: str  # who described it, or where its numbers come from


T = TypeVar("T", bound=Named)

_MOST_COMPARED: Final = 100
"""Letters of a name that are compared with the known ones: the effort grows with their square."""

_CLOSE: Final = 0.7  # likeness of a slip of the pen, 0 to 1; unlike words that share a few letters have less

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
        *("csv", "frames", "ta"),  # where columns and candles come from
    }
)
"""Names in small letters that files, tables and pages give to something else."""

_MODEL_QUANTILES: Final = "model_"  # begins the names of a model's quantiles among forecasters

_WINDOWS_DEVICES: Final = re.compile(r"con|prn|aux|nul|(com|lpt)[0-9]")

strays: Final[list[tuple["Registry[Any]", Named]]] = []
"""What was registered in this process beside v8's own and those of its plug-ins (`v8.plugins`)."""


class Registry(dict[str, T], Generic[T]):
    """Things of one kind, such as "task" in messages, by name, in the order in which they were registered.

    Args:
        kind: What messages call an entry.
        entries: What v8 ships.
        reserved: Names that this kind refuses beside those of `RESERVED`.
    """

    def __init__(self, kind: str, entries: Iterable[T] = (), reserved: Collection[str] = ()) -> None:
        super().__init__()
        self.kind = kind
        for entry in entries:
            self._require_name(entry.name)
            self[entry.name] = entry
        self._reserved = RESERVED | {name.lower() for name in reserved}

    def register(self, entry: T) -> T:
        """Add one under its name and return it.

        Raises:
            ProfileError: If the name is not a plain word of at most 64 characters, stands for something else
                in files, tables or pages, or is taken, or if another text of it is no line of plain text.
        """
        self._require_name(entry.name)
        self._require_plain_texts(entry)
        self._require_free(entry)
        self[entry.name] = entry
        strays.append((self, entry))
        return entry

    def _require_name(self, name: object) -> None:
        """Refuse what is not a plain word."""
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

        The same rule holds for texts of `metadata.json` (`v8.records.Plain`), so what is refused here could
        not be saved after training either.
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
        """Refuse a name that stands for something else; to some disks large and small letters are one."""
        where = f"{self.kind} {entry.name}"
        lower = entry.name.lower()
        if lower in self._reserved or lower.startswith(_MODEL_QUANTILES):
            rule = "its name must not stand for something else in files, tables and pages"
            fix = "Give it another name"
            raise ProfileError(where=where, rule=rule, got=f"the reserved name {entry.name}", fix=fix)
        if lower in {name.lower() for name in self}:
            rule = f"each {self.kind} is registered once"
            got = f"a second one of that name ({entry.sentence})"
            raise ProfileError(where=where, rule=rule, got=got, fix="Give it another name")

    def find(self, name: str, *, where: str | None = None) -> T:
        """Return one by its name; `where` is the flag or key that named it, the kind and the name when None.

        The error suggests what is written almost so, or what tells of itself in that word.
        """
        if name not in self:
            word = name[:_MOST_COMPARED].lower()
            told = (each.name for each in self.values() if len(word) > 2 and word in each.sentence.lower())
            near = nearest(name, self) or next(told, None)
            rule = f"a {self.kind} is one of {', '.join(self)}"
            fix = f"Did you mean {near}" if near else "Choose one of these"
            raise ProfileError(where=where or f"{self.kind} {name}", rule=rule, got=repr(name), fix=fix)
        return self[name]


def _fault_of_text(text: object, name: str, *, may_hold_address: bool) -> str | None:
    """Say why a text of the entry of a name cannot be shown everywhere as it is; None if it can."""
    rule = f"is one line of printable characters, with the name at most {MOST_LETTERS}"
    if not isinstance(text, str) or not text.strip() or len(f"{name}: {text}") > MOST_LETTERS:
        return rule
    if for_terminal(text) != text:
        return rule
    return markup_in(text.replace("://", " ") if may_hold_address else text)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that somebody meant who wrote `name`, as far as can be told; else None.

    >>> nearest("lookbak", ["horizon", "lookback"]), nearest("batchSize", ["batch_size"])
    ('lookback', 'batch_size')
    >>> nearest("learning_rate", ["covariates"])
    """
    words = {_plain(each): each for each in known}
    near = difflib.get_close_matches(_plain(name[:_MOST_COMPARED]), words, n=1, cutoff=_CLOSE)
    return words[near[0]] if near else None


def advice(name: str, known: Iterable[str], otherwise: str) -> str:
    """Suggest the known name that was meant, or what else to do where none is close.

    >>> advice("lookbak", ["lookback"], "Choose one of these"), advice("x", ["lookback"], "Leave it out")
    ('Did you mean lookback', 'Leave it out')
    """
    near = nearest(name, known)
    return f"Did you mean {near}" if near else otherwise


def or_rather(name: str, known: Iterable[str]) -> str:
    """End a sentence with the known name that was meant, if one is close.

    >>> or_rather("lookbak", ["lookback"]), or_rather("x", ["lookback"])
    ('; did you mean lookback', '')
    """
    near = nearest(name, known)
    return f"; did you mean {near}" if near else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def described(kind: Callable[..., T], package: str, file: str, *functions: str) -> list[T]:
    """Read the entries of a registry from a file of a package.

    Of keys that name `functions` the value is the place of one, see `later`.
    """
    told = yaml.safe_load(packaged(package, file))
    return [kind(**one | {name: later(one[name]) for name in functions if name in one}) for one in told]


def told_in(package: str, file: str) -> dict[str, dict[str, Any]]:
    """Read what shipped things tell of themselves, by name, from a file of a package."""
    return {name: {"name": name, **told} for name, told in yaml.safe_load(packaged(package, file)).items()}


def later(place: str) -> Callable[..., Any]:
    """Stand in for a function whose module is imported only when it is called: help must not wait for it.

    >>> later("math:hypot")(3, 4)
    5.0
    """

    def call(*arguments: Any, **options: Any) -> Any:
        return pkgutil.resolve_name(place)(*arguments, **options)

    return call
