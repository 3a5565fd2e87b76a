"""Reads and checks what comes from outside: files that anybody may have written, and the options of commands.

A file must be a regular one of bounded size: a path may lead to a pipe on which no process writes, to an
endless device, or to a hundred gigabytes. JSON is not nested deeper than files of v8 are, its numbers fit in
64 bits, and its texts become one bounded line without control characters. YAML holds plain values in lists
and mappings.

A record is a frozen dataclass or model whose annotations define the content of a file. `read_json_object`
reads the file, `checked` makes the record, and every fault becomes one `V8Error` that names the key.

The options of a command are a class, too, whose fields carry a `Flag`:

    class RunOptions(Options):
        epochs: Annotated[AtLeastOne | None, Flag("Most epochs. Default: the profile's.", "N")] = None

From it follow the flags of the command line (`v8.cli.shared`), the keywords of the Python function and their
checks (`v8.api.arguments`), and the command that a user can paste (`Options.words`).
"""

import copy
import errno
import json
import math
import os
import re
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias, TypeVar

import pydantic
import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from v8.base.errors import ArtifactError, ProfileError, V8Error, as_flag, shown
from v8.base.wording import markup_in

MAX_FILE_BYTES: Final = 16 << 20  # metadata of 1,000 steps have this size, other files a hundredth of it
MAX_YAML_BYTES: Final = 65_536  # the longest shipped profile has 2,000; the library reads 100,000 a second
MAX_YAML_DEPTH: Final = 8  # lists and mappings within each other; a profile has four
_MAX_DEPTH: Final = 40  # levels of nesting; files of v8 have at most 9
_MAX_LINE: Final = 10_000  # characters of a text; the longest text in files of v8 is a command line


def read_json_object(file: Path, *, fix: str) -> dict[str, Any]:
    """Read a JSON object that v8 wrote; `fix` says what the user can do if it is damaged."""
    location = str(file)
    text = read_plain(file, fix=fix)
    try:
        content = _sanitized(parse_json(text))
    except ValueError as error:
        raise ArtifactError(
            where=location, rule="must be valid JSON", got=f"damage ({error})", fix=fix
        ) from error
    if not isinstance(content, dict):
        raise ArtifactError(
            where=location, rule="must hold a JSON object", got=type(content).__name__, fix=fix
        )
    return content


def _sanitized(node: Any, depth: int = 0) -> Any:
    r"""Copy JSON values; depth and numbers must be bounded, and every text becomes one printable line.

    >>> _sanitized({"reason": "\x1b[31mtwo\nlines"})
    {'reason': '\\x1b[31mtwo lines'}
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"more than {_MAX_DEPTH} values inside each other")
    if isinstance(node, float) and math.isfinite(node):  # most of a file are numbers
        return node
    if isinstance(node, dict):
        for key in node:
            if not _is_printable(key):
                raise ValueError(f"the key {shown(repr(key))}")
        return {key: _sanitized(value, depth + 1) for key, value in node.items()}
    if isinstance(node, list):
        return [_sanitized(value, depth + 1) for value in node]
    if isinstance(node, str):
        return shown(node, _MAX_LINE)
    if not _is_bounded(node):
        raise ValueError("a number that is infinite, none, or beyond 64 bits")
    return node


@lru_cache(maxsize=4_096)
def _is_printable(key: str) -> bool:
    """Return whether a key is one printable line; the same keys come again and again."""
    return shown(key) == key


def _is_bounded(number: float | None) -> bool:
    """Return whether a number is finite and fits in 64 bits; true and null count as bounded."""
    if isinstance(number, float):
        return math.isfinite(number)
    return number is None or -(2**63) < number < 2**63


def parse_json(content: bytes | str) -> Any:
    """Parse JSON of a file.

    Raises:
        ValueError: If it is none, is no UTF-8, or is nested deeper than Python can parse.
    """
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("more values inside each other than can be read") from error


def read_plain(
    file: Path, *, fix: str, most_bytes: int = MAX_FILE_BYTES, kind: type[V8Error] = ArtifactError
) -> bytes:
    """Read a regular file of bounded size; a pipe or a device is refused.

    Args:
        file: The file.
        fix: What the user can do if it cannot be read.
        most_bytes: Most bytes that are read; a longer file is refused.
        kind: The class of the error.
    """
    try:
        return read_given(file, most_bytes)
    except OSError as error:
        raise kind(
            where=str(file),
            rule=f"must be a file that can be read, of at most {most_bytes:,} bytes",
            got=error.strerror or "an error",
            fix=fix,
        ) from error


def read_given(path: Path, most_bytes: int) -> bytes:
    """Read a regular file of at most `most_bytes` without waiting for a writer.

    Raises:
        OSError: If it cannot be read, is not a regular file, or is longer; `strerror` says which.
    """
    with open_given(path) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        if size_bytes > most_bytes:
            message = f"{size_bytes:,} bytes, where at most {most_bytes:,} are read"
            raise OSError(errno.EFBIG, message, str(path))
        content = stream.read(size_bytes + 1)
    if len(content) != size_bytes:
        raise OSError(errno.EBUSY, "a file whose length changes while it is read")
    return content


@contextmanager
def open_given(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading, without waiting for a writer.

    Raises:
        OSError: If it cannot be opened, or is not a regular file.
    """
    try:
        require_regular(path.stat(), path)  # before opening: that alone may have an effect on a device
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a NUL, or a character that the file system does not allow
        raise OSError(errno.EINVAL, "a name that no file can have") from error
    with os.fdopen(number, "rb") as stream:
        require_regular(os.fstat(number), path)
        yield stream


def require_regular(status: os.stat_result, path: Path) -> None:
    """Raise an `OSError` if the status is that of a pipe, a socket, a device or a folder."""
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, a socket or a device"
        raise OSError(errno.EINVAL, f"{kind} in the place of a file", str(path))


def read_yaml(path: Path, fix: str = "Check the path") -> dict[str, Any]:
    """Read a YAML mapping of plain values; see `_Loader` for what is refused. `5e-4` is a number.

    Raises:
        ProfileError: If the file cannot be read, is too long, is not such YAML, or is no mapping.
    """
    text = read_plain(path, fix=fix, most_bytes=MAX_YAML_BYTES, kind=ProfileError)
    try:
        content = copy.deepcopy(_parsed(text))
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two come from escape sequences
        got = str(error)
        if isinstance(error, yaml.MarkedYAMLError):
            got = str(error.problem or error.context)
            mark = error.problem_mark or error.context_mark
            if mark:
                got += f", line {mark.line + 1}"
        rule = "must be YAML of plain values, each key once"
        fix = "Correct the file at that line"
        if isinstance(error, UnicodeDecodeError):
            rule = "must be a text file in UTF-8"
            got = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
            fix = "Save it as UTF-8, or name the file that was meant"
        raise ProfileError(where=str(path), rule=rule, got=got, fix=fix) from error
    if not isinstance(content, dict):
        raise ProfileError(
            where=str(path),
            rule="must hold keys and values",
            got=type(content).__name__,
            fix="Start from a file under configs/",
        )
    return content


@lru_cache(maxsize=64)
def _parsed(text: bytes) -> Any:
    """Parse YAML. Shipped files are read for every series, and parsing one takes ten milliseconds."""
    # Not `safe_load`: _Loader is a SafeLoader that accepts less.
    return yaml.load(text.decode("utf-8-sig"), Loader=_Loader)  # noqa: S506


class _Loader(yaml.SafeLoader):
    """Reads texts, numbers, true, false and null in lists and mappings, as in JSON; nothing else.

    Anchors and tags are refused: an anchor may stand for a million values or contain itself, and a tag may
    make an object. Dates and octal numbers such as `010` are read as texts, which the checks of the profile
    refuse.
    """

    yaml_implicit_resolvers: ClassVar[dict[str | None, list[Any]]] = {}  # type: ignore[misc]
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _fault("anchors (&) and aliases (*) are not read: write each value where it belongs", event)
        if event.tag is not None:
            raise _fault("tags (!) are not read: write plain values", event)
        if self._depth == MAX_YAML_DEPTH:
            raise _fault(f"lists and mappings are read {MAX_YAML_DEPTH} deep", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _fault("a key must be a word", key_node)
            if key in keys:
                raise _fault(f"key {shown(repr(key))} is repeated", key_node)
            keys.add(key)
        return super().construct_mapping(node, deep)


for _kind, _pattern, _first in (
    ("null", r"^(?:~|null)?$", ["~", "n", ""]),
    ("bool", r"^(?:true|false)$", ["t", "f"]),
    ("int", r"^[-+]?(?:0|[1-9][0-9]{0,17})$", list("-+0123456789")),
    (
        "float",
        r"^[-+]?(?=[.0-9]*[.eE])[0-9]{0,40}\.?[0-9]{0,40}(?<=[.0-9])(?:[eE][-+]?[0-9]{1,4})?$",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first)


def _fault(problem: str, place: yaml.Event | yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)  # type: ignore[arg-type]


AS_WRITTEN: Final = "must be as v8 wrote it"  # the rule of files that users do not edit
MISSING: Final = "no such key"
Count = Annotated[int, Field(strict=True, ge=0)]  # an integer, 0 or above; true and 7.0 are refused
MAX_SIZE: Final = 1e100  # above every price, time or count; sums and squares of smaller numbers are finite
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-MAX_SIZE, le=MAX_SIZE)]
"""A finite number; texts and true are refused."""

Seconds = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1e12)]
"""A duration of up to 30,000 years, in seconds; texts and true are refused."""

OpenTime = Annotated[int, Field(strict=True, ge=0, lt=253_402_300_800)]  # epoch s, before the year 10000
Text = Annotated[str, Field(strict=True, min_length=1)]  # a text that is not empty


def refusing(fault_of: Callable[[Any], str | None]) -> AfterValidator:
    """Return a pydantic validator from a function that describes the fault of a value, or returns None."""

    def validate(value: Any) -> Any:
        fault = fault_of(value)
        if fault:
            raise ValueError(fault)
        return value

    return AfterValidator(validate)


def _fault_of_moment(text: str) -> str | None:
    return None if datetime.fromisoformat(text).tzinfo else "names its time zone"


Plain = Annotated[str, Field(strict=True, min_length=1, max_length=300), refusing(markup_in)]
"""A text that means the same in Markdown: without markup and links. (Bars are escaped by tables.)"""

Word = Annotated[str, Field(strict=True, pattern="^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
"""A name of letters, digits, dashes and underscores; a spreadsheet does not take it for a formula."""

ColumnName = Annotated[
    str, Field(strict=True, pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}(\([a-z0-9_=., -]{0,120}\))?$")
]
"""The name of a feature: a word, perhaps of a package, and with parameters: `ta.stoch(window=10)`."""

Positive = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]  # an integer from 1 to a million
Moment = Annotated[str, Field(strict=True, max_length=40), refusing(_fault_of_moment)]  # ISO 8601 with a zone
Sha256 = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{64}$")]  # 64 hex digits
_MAX_VALUE_LENGTH = 120  # characters of a value that an error quotes
_UNKNOWN_KEY_TYPES: Final = ("extra_forbidden", "unexpected_keyword_argument")  # of pydantic's errors

Record = TypeVar("Record")


class Settings(pydantic.BaseModel):
    """A section of a file that users write: strict, frozen, and without unknown keys."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def __setattr__(self, name: str, value: Any) -> None:
        raise ProfileError(
            where=f"v8, {type(self).__name__}",
            rule="is never changed itself, because digests are of what it was",
            got=f"{name} = {shown(value)}",
            fix=f"Take another one: v8.Profile.of(NAME).but({name}=...)",
        )

    def faults(self) -> Iterable[str]:
        """Describe contradictions between keys; the first one becomes the error."""
        return ()

    @pydantic.model_validator(mode="after")
    def _check_keys_together(self) -> Self:
        for fault in self.faults():
            raise ValueError(fault)
        return self


def check_format(
    content: Any, newest: int, *, kind: str, where: str, fix: str = "Use the v8 that wrote it"
) -> None:
    """Check the key `format` of a file.

    Args:
        content: The content of the file.
        newest: The only format that is read.
        kind: The kind of file for the message, such as "run".
        where: The beginning of the message.
        fix: What the user can do.

    Raises:
        ArtifactError: If the format is another one.
    """
    version = content.get("format") if isinstance(content, dict) else None
    if type(version) is not int or version != newest:
        is_older = type(version) is int and version < newest
        raise ArtifactError(
            where=where,
            rule=f"this v8 reads {kind} format {newest}",
            got=f"format {version!r}" + (", made by an older version" if is_older else ""),
            fix=fix,
        )


def at_keys(*path: str) -> Any:
    """Return a field that is read from nested keys: `at_keys("a", "b")` reads `content["a"]["b"]`."""
    return Field(validation_alias=pydantic.AliasPath(*path))


adapter: Final[Callable[[Any], TypeAdapter[Any]]] = cache(TypeAdapter)
"""Returns pydantic's adapter of a type, which checks and writes its values; each is made once."""


def checked(
    kind: type[Record],
    content: Any,
    *,
    where: str,
    fix: str | Callable[[ValidationError], str],
    rule: str | None = None,
    refusal: type[V8Error] = ArtifactError,
) -> Record:
    """Make a record from JSON values.

    Args:
        kind: The type of the record.
        content: The JSON values.
        where: The beginning of the error: a file, or a file and a key of it.
        fix: What the user can do; may be made from pydantic's error.
        rule: What the complete content must be; if None, the error names the rule of the wrong key instead.
        refusal: The class of the error.

    Raises:
        V8Error: If the content breaks a rule; an error of the class `refusal`.
    """
    try:
        record: Record = adapter(kind).validate_python(content)
        return record
    except ValidationError as error:
        key, key_rule, got = first_fault(error)
        raise refusal(
            where=under_key(where, key),
            rule=rule or key_rule,
            got=f"{got} ({key_rule})" if rule and got != MISSING else got,
            fix=fix if isinstance(fix, str) else fix(error),
        ) from error


def under_key(location: str, key: str) -> str:
    """Return the location of a key of a file, or of a key below a key.

    >>> under_key("run.json", "series"), under_key("run.json, key series", "status")
    ('run.json, key series', 'run.json, key series.status')
    """
    if not key:
        return location
    return f"{location}.{key}" if ", key " in location else f"{location}, key {key}"


def first_fault(error: ValidationError) -> tuple[str, str, str]:
    """Return the key of the first fault that pydantic found, the rule that it broke, and the value."""
    first = first_error(error)
    key = ".".join(str(part) for part in first["loc"])
    rule = first["msg"].removeprefix("Value error, ").replace("Input should be", "Must be")
    if first["type"] == "missing":
        got = MISSING
    elif first["type"] in _UNKNOWN_KEY_TYPES:
        got = f"the unknown key {first['loc'][-1]!r}"
    else:
        got = repr(_value_at_fault(first["input"], rule))
        if len(got) > _MAX_VALUE_LENGTH:
            got = f"{got[: _MAX_VALUE_LENGTH - 3]}..."
    return key, f"{rule[:1].lower()}{rule[1:]}", got


def first_error(error: ValidationError) -> Any:
    """Return the first fault, but an unknown key before a missing one: it may be the same key, misspelt."""
    faults = error.errors()
    for fault in faults:
        if fault["type"] in _UNKNOWN_KEY_TYPES:
            return fault
    return faults[0]


def _value_at_fault(content: Any, rule: str) -> Any:
    """Return the value of the key that a rule begins with, or the complete content if there is no such key.

    >>> content = {"quantiles": (0.5,), "training": {"epochs": 0}}
    >>> _value_at_fault(content, "training.epochs must be at least 1")
    0
    """
    for key in rule.partition(" ")[0].split("."):
        if not isinstance(content, dict) or key not in content:
            return content
        content = content[key]
    return content


AtLeastOne: TypeAlias = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Flag:
    """How the command line offers an option."""

    help: str
    metavar: str | None = None  # what stands for its value
    names: tuple[str, ...] = ()  # of the flag; none: the one that its field's name makes
    word: str | None = None  # what it is called where it may also be given as a word without a flag
    word_help: str = ""  # none: only the flag has one
    group: str = ""  # the heading of `--help` that it stands under; none: "Options"
    is_once: bool = False  # whether it holds for one call: a command that is repeated leaves it out


class Options(BaseModel):
    """Base of the options of a command; the fields with a `Flag` are flags of the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def flags(cls) -> Iterator[tuple[str, FieldInfo, Flag]]:
        """Yield each option that the command line offers: its name, its field and its flag."""
        for name, field in cls.model_fields.items():
            for flag in field.metadata:
                if isinstance(flag, Flag):
                    yield name, field, flag

    def words(self, *only: str) -> list[str]:
        """Return the words of the command line that repeats these options, or some; defaults are left out."""
        words: list[str] = []
        for name, field, flag in self.flags():
            value = getattr(self, name)
            if flag.is_once or value == field.default or (only and name not in only):
                continue
            names = flag.names[0].split("/") if flag.names else [as_flag(name)]
            if isinstance(value, bool):
                words.append(names[0] if value else names[-1])
                continue
            for item in value if isinstance(value, tuple) else (value,):
                words += [names[0], str(item)]
        return words
