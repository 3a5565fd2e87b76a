"""Every error a user can meet, each built from the same four parts.

The sentence reads `where: rule; got what. How to mend it.` The constructor takes the four parts by
name, so none can be forgotten, and the command line turns the class into an exit code.

    V8Error                      1   anything of ours
    |-- ProfileError             2   a profile, a universe file or a flag
    |-- DataError                3   candles, features, or a changed input
    |-- SeriesError              4   one series of a run cannot go on; the others can
    |   `-- DivergedError        4   a loss that is no longer a number
    |-- ArtifactError            3   a run folder or saved model that cannot be trusted
    |-- PublishError             5   a run that did not reach the Hub, or must not
    `-- PullError                5   a model that the Hub did not hand out
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

MAX_LISTED = 5


class V8Error(Exception):
    """An error with its place, the rule it broke, what was found and how to mend it.

    Args:
        where: The file, series, key or flag at fault.
        rule: What must hold, as a clause ("needs at least 70 bars").
        got: What was found instead.
        fix: What the user can do, as a full sentence without its final stop.
    """

    exit_code = 1

    def __init__(self, *, where: str, rule: str, got: str, fix: str) -> None:
        self.where, self.rule, self.got, self.fix = where, rule, got, fix
        super().__init__(f"{where}: {rule}; got {got}. {fix}.")

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip between worker processes with all four parts."""
        return partial(type(self), where=self.where, rule=self.rule, got=self.got, fix=self.fix), ()


class ProfileError(V8Error):
    """A profile, universe or flag that cannot mean anything."""

    exit_code = 2


class DataError(V8Error):
    """Candles or features that are missing, broken or not what they were."""

    exit_code = 3


class SeriesError(V8Error):
    """One series cannot be trained or judged; the rest of the run goes on."""

    exit_code = 4


class DivergedError(SeriesError):
    """A loss stopped being a number."""


class ArtifactError(V8Error):
    """A run folder or a saved model that is damaged, foreign or does not match."""

    exit_code = 3


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
