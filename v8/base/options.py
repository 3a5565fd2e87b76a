"""Options of a command, defined once: type, range, default, and how the command line offers them.

A command's options are a class whose fields carry a `Flag`:

    class RunOptions(Options):
        epochs: Annotated[AtLeastOne | None, Flag("Most epochs. Default: the profile's.", "N")] = None

From it follow the flags of the command line (`v8.cli.shared`), the keywords of the Python function and their
checks (`v8.api.arguments`), and the command that a user can paste (`Options.words`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from v8.base.errors import as_flag

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
