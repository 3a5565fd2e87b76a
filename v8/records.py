"""Records: what v8 writes as JSON and reads again, in types that pydantic checks.

A record is a frozen dataclass or model whose annotations say what its file may hold. `read_json_object` reads
the file, `checked` makes the record, and whatever is wrong becomes one error of ours that names the key.

A file may be a stranger's. Therefore it is plain and of bounded size, JSON is no deeper than what we write,
its numbers have a place in 64 bits, and its texts become one bounded line without control characters.
"""

import json
import math
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeVar

import pydantic
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from v8.errors import ArtifactError, ProfileError, V8Error, shown
from v8.safe_text import markup_in
from v8.storage import read_given

AS_WRITTEN: Final = "must be as v8 wrote it"  # of files that nobody edits: the fault stands behind "got"
MISSING: Final = "no such key"
Count = Annotated[int, Field(strict=True, ge=0)]  # a whole number, 0 or above; true and 7.0 are none
MAX_SIZE: Final = 1e100  # no price, time or count is larger, and sums and squares of such are numbers too
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-MAX_SIZE, le=MAX_SIZE)]
"""A finite number; text and true are none."""

Seconds = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1e12)]
"""A duration of up to 30,000 years; text and true are none."""

OpenTime = Annotated[int, Field(strict=True, ge=0, lt=253_402_300_800)]  # epoch s, before the year 10000
Text = Annotated[str, Field(strict=True, min_length=1)]  # a text that is not empty


def refusing(fault_of: Callable[[Any], str | None]) -> AfterValidator:
    """Return a check of values by a function that says what is wrong with one; None where nothing is."""

    def faultless(value: Any) -> Any:
        fault = fault_of(value)
        if fault:
            raise ValueError(fault)
        return value

    return AfterValidator(faultless)


Plain = Annotated[str, Field(strict=True, min_length=1, max_length=300), refusing(markup_in)]
"""A text that means the same in Markdown: no markup, no link; tables escape bars."""

Word = Annotated[str, Field(strict=True, pattern="^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
"""A name: letters, digits, dash and underscore; no formula to a spreadsheet."""

ColumnName = Annotated[
    str, Field(strict=True, pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}(\([a-z0-9_=., -]{0,120}\))?$")
]
"""The name of a feature: a word, perhaps of a package, and with parameters: `ta.stoch(window=10)`."""

Positive = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]  # a whole number from 1 to a million


_ZONED = refusing(lambda text: None if datetime.fromisoformat(text).tzinfo else "tells its time zone")
Moment = Annotated[str, Field(strict=True, max_length=40), _ZONED]  # ISO 8601 with its zone
Sha256 = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{64}$")]  # 64 hex digits
MAX_FILE_BYTES: Final = 16 << 20  # of text; metadata of 1,000 steps ahead have as much, others a hundredth
_MAX_DEPTH: Final = 40  # values inside values; what we write has 9
_MAX_LINE: Final = 10_000  # characters of a text; the longest we write is a command line
_MAX_SHOWN = 120
_UNKNOWN: Final = ("extra_forbidden", "unexpected_keyword_argument")  # what pydantic calls strange keys

Record = TypeVar("Record")


class Settings(pydantic.BaseModel):
    """A section of what users write: strict, frozen, and without keys that nobody knows."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def __setattr__(self, name: str, value: Any) -> None:
        rule = "is never changed itself, because digests are of what it was"
        got = f"{name} = {shown(value)}"
        fix = f"Take another one: v8.Profile.of(NAME).but({name}=...)"
        raise ProfileError(where=f"v8, {type(self).__name__}", rule=rule, got=got, fix=fix)

    def faults(self) -> Iterable[str]:
        """Say what some of its keys ask that others forbid; the first fault is told."""
        return ()

    @pydantic.model_validator(mode="after")
    def _keys_fit_each_other(self) -> Self:
        for fault in self.faults():
            raise ValueError(fault)
        return self


def read_json_object(file: Path, *, fix: str) -> dict[str, Any]:
    """Read a JSON object that v8 wrote; `fix` says what the user can do when it is damaged."""
    where = str(file)
    text = read_plain(file, fix=fix)
    try:
        content = _tamed(json.loads(text))
    except (ValueError, RecursionError) as error:  # a stranger's file may be nested without end
        got = f"damage ({error})"
        raise ArtifactError(where=where, rule="must be whole JSON", got=got, fix=fix) from error
    if not isinstance(content, dict):
        got = type(content).__name__
        raise ArtifactError(where=where, rule="must hold a JSON object", got=got, fix=fix)
    return content


def read_plain(
    file: Path, *, fix: str, most_bytes: int = MAX_FILE_BYTES, kind: type[V8Error] = ArtifactError
) -> bytes:
    """Read a file of bounded size that really is one; nothing waits for a pipe or a device."""
    try:
        return read_given(file, most_bytes)
    except OSError as error:
        rule = f"must be a file that can be read, of at most {most_bytes:,} bytes"
        raise kind(where=str(file), rule=rule, got=error.strerror or "an error", fix=fix) from error


def _tamed(node: Any, depth: int = 0) -> Any:
    r"""Copy what JSON held, with bounded depth and numbers, and every text one harmless line.

    >>> _tamed({"reason": "\x1b[31mtwo\nlines"})
    {'reason': '\\x1b[31mtwo lines'}
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"more than {_MAX_DEPTH} values inside each other")
    if isinstance(node, dict):
        strange = next((key for key in node if shown(key) != key), None)
        if strange:
            raise ValueError(f"the key {shown(repr(strange))}")
        return {key: _tamed(value, depth + 1) for key, value in node.items()}
    if isinstance(node, list):
        return [_tamed(value, depth + 1) for value in node]
    if isinstance(node, str):
        return shown(node, _MAX_LINE)
    is_bounded = math.isfinite(node) if isinstance(node, float) else node is None or -(2**63) < node < 2**63
    if not is_bounded:
        raise ValueError("a number that is infinite, none, or beyond 64 bits")
    return node


def check_format(
    content: Any, known: tuple[int, ...], *, what: str, where: str, fix: str = "Use the v8 that wrote it"
) -> None:
    """Refuse a file, such as `what` "run", whose key `format` is none of the `known`, the last the newest."""
    found = content.get("format") if isinstance(content, dict) else None
    if found not in known or isinstance(found, bool):
        rule = f"this v8 reads {what} format {known[-1]}"
        raise ArtifactError(where=where, rule=rule, got=f"format {found!r}", fix=fix)


def at_keys(*path: str) -> Any:
    """Say under which keys, one within the other, a value stands in its file."""
    return Field(validation_alias=pydantic.AliasPath(*path))


adapter: Final[Callable[[Any], TypeAdapter[Any]]] = cache(TypeAdapter)
"""Returns what checks and writes values of a type, made once."""


def checked(
    kind: type[Record],
    content: Any,
    *,
    where: str,
    fix: str | Callable[[ValidationError], str],
    rule: str | None = None,
    refusal: type[V8Error] = ArtifactError,
    context: Any = None,
) -> Record:
    """Make a record of a type of what JSON holds.

    The refusal begins with `where`, a file or a file and a key of it, and says by `rule` what the whole must
    be; without one it says what the key at fault must be.
    """
    try:
        found: Record = adapter(kind).validate_python(content, context=context)
        return found
    except ValidationError as error:
        key, broken, got = first_fault(error)
        raise refusal(
            where=under_key(where, key),
            rule=rule or broken,
            got=f"{got} ({broken})" if rule and got != MISSING else got,
            fix=fix if isinstance(fix, str) else fix(error),
        ) from error


def under_key(where: str, key: str) -> str:
    """Name a key of a file, or a key below a key.

    >>> under_key("run.json", "series"), under_key("run.json, key series", "status")
    ('run.json, key series', 'run.json, key series.status')
    """
    if not key:
        return where
    return f"{where}.{key}" if ", key " in where else f"{where}, key {key}"


def first_fault(error: ValidationError) -> tuple[str, str, str]:
    """Return of the first fault that pydantic found: its key, the rule it broke, and what was got."""
    first = first_error(error)
    rule = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        got = MISSING
    elif first["type"] in _UNKNOWN:
        got = f"the unknown key {first['loc'][-1]!r}"
    else:
        shown = repr(_meant(first["input"], rule))
        got = shown if len(shown) <= _MAX_SHOWN else f"{shown[: _MAX_SHOWN - 3]}..."
    return ".".join(str(part) for part in first["loc"]), f"{rule[:1].lower()}{rule[1:]}", got


def first_error(error: ValidationError) -> Any:
    """Return the first fault: an unknown key before what is missing, for it may be that, misspelt."""
    faults = error.errors()
    return next((one for one in faults if one["type"] in _UNKNOWN), faults[0])


def _meant(content: Any, rule: str) -> Any:
    """Return of a whole that breaks a rule the value of the key with which the rule begins, if it has one.

    >>> _meant({"quantiles": (0.5,), "training": {"epochs": 0}}, "training.epochs must be at least 1")
    0
    """
    for key in rule.partition(" ")[0].split("."):
        if not isinstance(content, dict) or key not in content:
            return content
        content = content[key]
    return content
