"""The interface of experiment trackers, and their registry.

A tracker of v8 is a module of an annex and an entry of its `annex.yaml`; a tracker
of your own calls `TRACKERS.register`. It runs in the process that handles the events of the run, never in a
worker, so it needs no TensorFlow and gets every series, wherever it trains. Its package is imported only
when it is requested.

The command line reads the names from here, so this module imports little; `v8.runs.following` does the work.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from v8.base import annexes
from v8.base.registry import Named, Registry, make_entries, require_package


class TrackerError(Exception):
    """A tracker cannot go on; its text says why."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker gets to know of a run before it starts."""

    path: Path  # the run folder
    profile: Mapping[str, Any]  # the profile with its budget, as JSON values
    source: str  # name of the candle source


class Tracker(Protocol):
    """Keeps curves of a run."""

    def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
        """Keep numbers of a series ("BTCUSDT-15m") by name ("loss/train").

        The step is the epoch they belong to, from 1; it never falls within a series. Raises `TrackerError` if
        they cannot be kept. After any error the tracker is left alone, and the run goes on.
        """

    def finish(self, series: str) -> None:
        """Close what is open for a series; there may be nothing."""


@dataclass(frozen=True)
class TrackerKind(Named):
    """A tracker that can be requested."""

    open: Callable[[TrackedRun], Tracker]  # opens it for a run; `later` imports its module only then
    package: str | None = None  # package that it needs, by its name for pip; None needs nothing
    check: Callable[[], None] | None = None  # refuses, before anything starts, what would fail later


TRACKERS: Final = Registry("tracker", make_entries(TrackerKind, annexes.entries("trackers"), "open", "check"))
"""Every tracker by the name that `--track` takes."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse, before anything starts, names of the command line of trackers that cannot be used.

    Raises:
        ProfileError: If a name is unknown, its package is not installed, or the tracker itself refuses.
    """
    for name in names:
        kind = TRACKERS.find(name, where=f"param:track {name}")
        if kind.package:
            rule = f"needs the package {kind.package}"
            require_package(kind.package, where=f"param:track {name}", rule=rule)
        if kind.check:
            kind.check()
