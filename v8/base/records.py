"""Types that pydantic checks: the content of files, and the options of commands.

A record is a frozen dataclass or model whose annotations define the content of a file. `read_json_object`
(`v8.base.reading`) reads the file, `checked` makes the record, and every fault becomes one `V8Error` that
names the key.

The options of a command are a class, too, whose fields carry a `Flag`:

    class RunOptions(Options):
        epochs: Annotated[AtLeastOne | None, Flag("Most epochs. Default: the profile's.", "N")] = None

From it follow the flags of the command line (`v8.cli.shared`), the keywords of the Python function and their
checks (`v8.api.arguments`), and the command that a user can paste (`Options.words`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Final, Self, TypeAlias, TypeVar

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from v8.base.errors import ArtifactError, ProfileError, V8Error, as_flag, shown
from v8.base.wording import markup_in

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

    def words(self) -> list[str]:
        """Return the words of the command line that repeats these options; defaults are left out."""
        words: list[str] = []
        for name, field, flag in self.flags():
            value = getattr(self, name)
            if flag.is_once or value == field.default:
                continue
            names = flag.names[0].split("/") if flag.names else [as_flag(name)]
            if isinstance(value, bool):
                words.append(names[0] if value else names[-1])
                continue
            for item in value if isinstance(value, tuple) else (value,):
                words += [names[0], str(item)]
        return words
