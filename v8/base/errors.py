"""All errors that a user can meet; each is built from the same four parts.

The message reads `where: rule; got what. How to fix it.` The constructor takes the four parts by name, so
none can be forgotten, and the command line turns the class into an exit code.

The message is one line of at most `MAX_MESSAGE` characters, without control characters and secrets. File
names, keys, values, addresses and the messages of other programs may contain anything: line breaks that look
like a second message, escape sequences for the terminal, megabytes of text, the password of a proxy. `shown`
makes them harmless.

A part names a parameter as `param:data_dir`. It is written as the interface writes it: `--data-dir` on the
command line, `data_dir=` in Python (`with_parameters`).

The classes, and the exit code of the command line:

    V8Error                      1   base class
    |-- ProfileError             2   a profile, a universe file or a flag is wrong; also a ValueError
    |   `-- ArgumentError        2   an argument of a call from Python is wrong; also a TypeError
    |-- DataError                3   candles or features are missing, broken or changed; also a ValueError
    |   `-- UnknownSeriesError   3   the source does not know the series
    |-- SeriesError              4   one series of a run failed; the others go on
    |   `-- DivergedError        4   the loss is not a number any more
    |-- ArtifactError            3   a run folder or a saved model cannot be trusted
    |-- StorageError             6   a file cannot be written: the disk is full or read-only, or is not there
    |-- PublishError             5   a run was not published
    `-- PullError                5   the Hub did not deliver a model
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from v8.base.wording import for_terminal

MOST_SHOWN: Final = 120  # characters of a quoted text, unless the caller names another number
_CUT: Final = " ... "
_MOST_READ: Final = 20_000
"""Characters of a quoted text that are processed: the beginning and the end of a longer one."""
MAX_LISTED = 5
MAX_MESSAGE: Final = 600
_MAX_PART: Final = 400
_SHORTENED_LENGTHS: Final = {"got": 120, "rule": 150, "where": 120, "fix": 150}
"""If a message is too long, its parts are shortened to these lengths, in this order, as far as necessary."""

_PARAMETER: Final = re.compile(r"\bparam:([a-z]+(?:_[a-z]+)*)")


def shown(text: object, most: int = MOST_SHOWN) -> str:
    r"""Return a text as one printable line of at most `most` characters; a longer text loses its middle.

    White space becomes one blank, control characters become escape sequences, and secrets become three stars
    (`v8.base.wording.without_secrets`).

    >>> shown("two\nlines"), shown("\x1b[31mred"), shown("http://me:secret@host/x")
    ('two lines', '\\x1b[31mred', 'http://***@host/x')
    >>> shown("a" * 50, 20)
    'aaaaaaaa ... aaaaaaa'
    """
    line = " ".join(_shortened(str(text), _MOST_READ).split())
    return _shortened(for_terminal(line), most)


def message_of(error: BaseException) -> str:
    """Return the message of an error; `__str__` of a foreign class may itself raise an error.

    >>> message_of(ValueError("no such day"))
    'no such day'
    """
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - foreign code may raise anything
        return "a message that cannot be read"


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    num_left = most - len(_CUT)
    num_at_end = num_left // 2
    return text[: num_left - num_at_end] + _CUT + text[len(text) - num_at_end :]


def as_flag(name: str) -> str:
    """Write the name of a parameter for the command line."""
    return f"--{name.replace('_', '-')}"


def as_argument(name: str) -> str:
    """Write the name of a parameter for a call from Python."""
    return f"{name}="


def with_parameters(text: str, write: Callable[[str], str] = as_flag) -> str:
    """Replace parameters in a message, such as `param:data_dir`, by the names that an interface uses.

    >>> with_parameters("Add param:data_dir DIR"), with_parameters("Add param:data_dir DIR", as_argument)
    ('Add --data-dir DIR', 'Add data_dir= DIR')
    """
    return _PARAMETER.sub(lambda match: write(match[1]), text)


PARTS: Final = ("where", "rule", "got", "fix")
"""Names of the parts of every error."""


class V8Error(Exception):
    """The base class of all errors of v8.

    Args:
        where: The file, series, key or flag that is at fault.
        rule: What must hold, as a clause ("needs at least 70 bars").
        got: What was found instead.
        fix: What the user can do, as a sentence without its final stop.

    >>> str(V8Error(where="BTCUSDT-15m", rule="needs at least 70 bars", got="41", fix="Fetch more"))
    'BTCUSDT-15m: needs at least 70 bars; got 41. Fetch more.'
    """

    exit_code = 1

    def __init__(self, *, where: str, rule: str, got: str, fix: str) -> None:
        self.where = _message_part(where)
        self.rule = _message_part(rule)
        self.got = _message_part(got)
        self.fix = _message_part(fix)
        super().__init__(with_parameters(self._sentence()))

    def __reduce__(self) -> tuple[object, ...]:
        """Return how pickle makes the error again, with all four parts, in another process."""
        return partial(type(self), **self._parts()), ()

    def _parts(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in PARTS}

    def _sentence(self) -> str:
        parts = self._parts()
        for name, length in _SHORTENED_LENGTHS.items():
            if sum(map(len, parts.values())) <= MAX_MESSAGE - len(": ; got . ."):
                break
            parts[name] = shown(parts[name], length)
        return f"{parts['where']}: {parts['rule']}; got {parts['got']}. {parts['fix']}."


def _message_part(text: str) -> str:
    """Return a part of a message without its final stop; three dots, which mean an omission, stay."""
    line = shown(text, _MAX_PART)
    return line if line.endswith("..") else line.removesuffix(".")


class ProfileError(V8Error, ValueError):
    """A profile, a universe file or a flag is wrong."""

    exit_code = 2


class ArgumentError(ProfileError, TypeError):
    """An argument of a call from Python has a wrong type, is out of its range, or is unknown."""


class DataError(V8Error, ValueError):
    """Candles or features are missing, broken or changed."""

    exit_code = 3


class UnknownSeriesError(DataError):
    """The source does not know a series: its name may be misspelt."""


class SeriesError(V8Error):
    """One series cannot be trained or evaluated; the other series of the run go on."""

    exit_code = 4


class DivergedError(SeriesError):
    """The loss is not a finite number any more."""


class ArtifactError(V8Error):
    """A run folder or a saved model is damaged, is not of v8, or does not match."""

    exit_code = 3


class StorageError(V8Error):
    """A file cannot be written: the disk is full or read-only, or the folder does not exist."""

    exit_code = 6

    @classmethod
    def of(cls, path: object, error: OSError) -> "StorageError":
        """Return the error for a file that the operating system did not write."""
        return cls(
            where=str(path),
            rule="must be written",
            got=error.strerror or type(error).__name__,
            fix="Free some space or choose another place, and repeat the same command; "
            "what was finished is kept",
        )

    @classmethod
    def out_of_reach(cls, error: OSError) -> "StorageError":
        """Return the error for other errors of the operating system, such as those of a user's path."""
        return cls(
            where=str(error.filename or "the system"),
            rule="must be a place that can be reached",
            got=error.strerror or type(error).__name__,
            fix="Check the path, its permissions and the space that is left",
        )


class PublishError(V8Error):
    """A run was not published, or must not be; the repository on the Hub is as it was."""

    exit_code = 5


class PullError(V8Error):
    """The Hub did not deliver a model: there is none, the user may not read it, or the Hub did not answer.

    A model that was delivered but cannot be trusted is an `ArtifactError`: another try would not help.
    """

    exit_code = 5


def listed(items: Sequence[object]) -> str:
    """Join at most five items, and count them if there are more.

    >>> listed(["a", "b"])
    'a, b'
    >>> listed(list(range(8)))
    '0, 1, 2, 3, 4 ... (8 in all)'
    """
    text = ", ".join(str(item) for item in items[:MAX_LISTED])
    return text if len(items) <= MAX_LISTED else f"{text} ... ({len(items)} in all)"
