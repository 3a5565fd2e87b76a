"""Records: what v8 writes as JSON and reads again, in types that pydantic checks.

A record is a frozen dataclass or model whose annotations say what its file may hold. `read_json_object` reads
the file, `checked` makes the record, and whatever is wrong becomes one error of ours that names the key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from v8.errors import ArtifactError

AS_WRITTEN: Final = "must be as v8 wrote it"
"""The rule of files that nobody edits: the fault stands behind "got"."""

MISSING: Final = "no such key"

Count = Annotated[int, Field(strict=True, ge=0)]
"""A whole number, 0 or above; true and 7.0 are none."""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A finite number; text and true are none."""

Text = Annotated[str, Field(strict=True, min_length=1)]
"""A text that is not empty."""

Sha256 = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{64}$")]
"""64 hex digits."""

_MAX_SHOWN = 120

Record = TypeVar("Record")


class Settings(BaseModel):
    """A section of what users write: strict, frozen, and without keys that nobody knows."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def read_json_object(file: Path, *, fix: str) -> dict[str, Any]:
    """Read a JSON object that v8 wrote; `fix` says what the user can do when it is damaged.

    Raises:
        ArtifactError: If the file is missing or is no JSON object.
    """

    def refused(rule: str, got: str) -> ArtifactError:
        return ArtifactError(where=str(file), rule=rule, got=got, fix=fix)

    try:
        content = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise refused("must be a file that can be read", error.strerror or "an error") from error
    except (ValueError, RecursionError) as error:  # a stranger's file may be nested without end
        raise refused("must be whole JSON", f"damage ({error})") from error
    if not isinstance(content, dict):
        raise refused("must hold a JSON object", type(content).__name__)
    return content


def check_format(content: Any, known: tuple[int, ...], *, what: str, where: str, fix: str) -> None:
    """Refuse a file of a format that this v8 does not read.

    Its key `format` tells; of the `known` formats the newest is the last. The error calls it `what`: "run".

    Raises:
        ArtifactError: If it is of another format, or tells none.
    """
    found = content.get("format") if isinstance(content, dict) else None
    if found not in known or isinstance(found, bool):
        raise ArtifactError(
            where=where, rule=f"this v8 reads {what} format {known[-1]}", got=f"format {found!r}", fix=fix
        )


def checked(
    kind: TypeAdapter[Record], content: Any, *, where: str, fix: str, rule: str | None = None
) -> Record:
    """Make a record of what JSON holds.

    The error begins with `where`, a file or a file and a key of it, and says by `rule` what the whole must
    be; without one it says what the key at fault must be.

    Raises:
        ArtifactError: If a key is missing or its value is out of its range; the first such key is named.
    """
    try:
        return kind.validate_python(content)
    except ValidationError as error:
        key, broken, got = first_fault(error)
        raise ArtifactError(
            where=under_key(where, key),
            rule=rule or broken,
            got=f"{got} ({broken})" if rule and got != MISSING else got,
            fix=fix,
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
    first = error.errors()[0]
    rule = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        got = MISSING
    elif first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        got = f"the unknown key {first['loc'][-1]!r}"
    else:
        shown = repr(first["input"])
        got = shown if len(shown) <= _MAX_SHOWN else f"{shown[: _MAX_SHOWN - 3]}..."
    return ".".join(str(part) for part in first["loc"]), f"{rule[:1].lower()}{rule[1:]}", got
