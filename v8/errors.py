"""Every error a user can meet, each built from the same four parts.

The sentence reads `where: rule; got what. How to mend it.` The constructor takes the four parts by
name, so none can be forgotten, and the command line turns the class into an exit code. Whatever the parts
quote, the sentence is one line of at most `MAX_MESSAGE` characters without control characters or passwords:
file names, keys, values, addresses and other programs' messages may hold anything, line breaks that forge a
second message, escapes that move a terminal's cursor, megabytes, the password of a proxy (`shown`).

A part that means a parameter names it as `param:data_dir`. Only the doors know how it is written there: the
command line shows `--data-dir`, a call from Python `data_dir=` (`with_parameters`).

    V8Error                      1   anything of ours
    |-- ProfileError             2   a profile, a universe file or a flag; a ValueError, too
    |   `-- ArgumentError        2   what a call from Python was given; a TypeError, too
    |-- DataError                3   candles, features, or a changed input; a ValueError, too
    |   `-- UnknownSeriesError   3   a series that its source has never heard of
    |-- SeriesError              4   one series of a run cannot go on; the others can
    |   `-- DivergedError        4   a loss that is no longer a number
    |-- ArtifactError            3   a run folder or saved model that cannot be trusted
    |-- StorageError             6   a place that cannot be written: full, read-only, not there
    |-- PublishError             5   a run that did not reach the Hub, or must not
    `-- PullError                5   a model that the Hub did not hand out
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from v8.safe_text import for_terminal

MOST_SHOWN: Final = 120  # characters of a text that are shown unless told otherwise
_CUT: Final = " ... "
_MOST_READ: Final = 20_000  # of a longer text only the begin and the end are looked at
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/?#\s]*@")
MAX_LISTED = 5
MAX_MESSAGE: Final = 600
_MAX_PART: Final = 400
_SHORTER: Final = {"got": 120, "rule": 150, "where": 120, "fix": 150}
"""Parts of a message that is too long are shortened in this order, as far as needed."""


_PARAMETER: Final = re.compile(r"\bparam:([a-z]+(?:_[a-z]+)*)")


def shown(text: object, most: int = MOST_SHOWN) -> str:
    r"""Write a text as one line of at most `most` characters; its middle goes first.

    Blanks of every kind become one blank, control characters their escapes, and the user and password of an
    address three stars.

    >>> shown("two\nlines"), shown("\x1b[31mred"), shown("http://me:secret@host/x")
    ('two lines', '\\x1b[31mred', 'http://***@host/x')
    >>> shown("a" * 50, 20)
    'aaaaaaaa ... aaaaaaa'
    """
    words = without_credentials(_shortened(str(text), _MOST_READ)).split()
    return _shortened(for_terminal(" ".join(words)), most)


def message_of(error: BaseException) -> str:
    """Return what an error says of itself; another's may fail even at that.

    >>> message_of(ValueError("no such day"))
    'no such day'
    """
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - of any kind: it is another's code
        return "a message that cannot be read"


def without_credentials(text: str) -> str:
    """Take the user and password out of every address in a text.

    >>> without_credentials("ftp://a:b@c and https://d/e@f")
    'ftp://***@c and https://d/e@f'
    """
    return _CREDENTIALS.sub("***@", text)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    kept = most - len(_CUT)
    return text[: kept - kept // 2] + _CUT + text[len(text) - kept // 2 :]


def as_flag(name: str) -> str:
    """Write a parameter as the command line takes it."""
    return f"--{name.replace('_', '-')}"


def as_argument(name: str) -> str:
    """Write a parameter as a call from Python takes it."""
    return f"{name}="


def with_parameters(text: str, write: Callable[[str], str] = as_flag) -> str:
    """Write the parameters that a text of ours names in the syntax of a door.

    >>> with_parameters("Add param:data_dir DIR"), with_parameters("Add param:data_dir DIR", as_argument)
    ('Add --data-dir DIR', 'Add data_dir= DIR')
    """
    return _PARAMETER.sub(lambda found: write(found[1]), text)


PARTS: Final = ("where", "rule", "got", "fix")
"""Names of the parts of every error."""


class V8Error(Exception):
    """An error with its place, the rule it broke, what was found and how to mend it.

    `where` is the file, series, key or flag at fault, `rule` what must hold, as a clause ("needs at least 70
    bars"), and `fix` what the user can do, as a full sentence without its final stop.
    """

    exit_code = 1

    def __init__(self, *, where: str, rule: str, got: str, fix: str) -> None:
        parts = [shown(part, _MAX_PART) for part in (where, rule, got, fix)]
        # A part may be a sentence by itself, whose final stop goes; three of them stand for more.
        self.where, self.rule, self.got, self.fix = (
            part if part.endswith("..") else part.removesuffix(".") for part in parts
        )
        super().__init__(with_parameters(self._sentence()))

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip between worker processes with all four parts."""
        return partial(type(self), **self._parts()), ()

    def _parts(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in PARTS}

    def _sentence(self) -> str:
        parts = self._parts()
        for name, most in _SHORTER.items():
            if sum(map(len, parts.values())) <= MAX_MESSAGE - len(": ; got . ."):
                break
            parts[name] = shown(parts[name], most)
        return "{where}: {rule}; got {got}. {fix}.".format(**parts)


class ProfileError(V8Error, ValueError):
    """A profile, universe or flag that cannot mean anything."""

    exit_code = 2


class ArgumentError(ProfileError, TypeError):
    """An argument of a call from Python that is of another kind, out of its range, or that nobody knows."""


class DataError(V8Error, ValueError):
    """Candles or features that are missing, broken or not what they were."""

    exit_code = 3


class UnknownSeriesError(DataError):
    """A series that its source has never heard of: its name may be mistyped."""


class SeriesError(V8Error):
    """One series cannot be trained or evaluated; the rest of the run goes on."""

    exit_code = 4


class DivergedError(SeriesError):
    """A loss stopped being a number."""


class ArtifactError(V8Error):
    """A run folder or a saved model that is damaged, foreign or does not match."""

    exit_code = 3


class StorageError(V8Error):
    """A file that could not be written: the disk is full, read-only, or the place is none."""

    exit_code = 6

    @classmethod
    def of(cls, path: object, error: OSError) -> "StorageError":
        """Say what the system said about writing a file."""
        where = str(path)
        fix = "Make room or choose another place, and repeat the same command; what was finished is kept"
        return cls(where=where, rule="must be written", got=error.strerror or type(error).__name__, fix=fix)

    @classmethod
    def out_of_reach(cls, error: OSError) -> "StorageError":
        """Say what the system said about a place that nothing of ours looks after."""
        where = str(error.filename or "the system")
        rule = "must be a place that can be reached"
        fix = "Check the path, its permissions and the space that is left"
        return cls(where=where, rule=rule, got=error.strerror or type(error).__name__, fix=fix)


class PublishError(V8Error):
    """A run that could not be published, or must not be; nothing half done is left on the Hub."""

    exit_code = 5


class PullError(V8Error):
    """A model that the Hub did not hand out: it is not there, not for this user, or nobody answers.

    What was handed out and cannot be trusted is an `ArtifactError`: asking again would not help.
    """

    exit_code = 5


def listed(items: Sequence[object]) -> str:
    """Join at most five items and say how many there are.

    >>> listed(["a", "b"])
    'a, b'
    >>> listed(list(range(8)))
    '0, 1, 2, 3, 4 ... (8 in all)'
    """
    shown = ", ".join(str(item) for item in items[:MAX_LISTED])
    return shown if len(items) <= MAX_LISTED else f"{shown} ... ({len(items)} in all)"
