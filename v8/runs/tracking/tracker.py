"""The seam of experiment trackers: what one can do, which there are, and what is refused before a run.

A tracker is a file of this folder and a line in `TRACKERS`; one's own calls `TRACKERS.register`. It lives in
the process that listens to the run, never in a worker, so it needs no TensorFlow and sees every series,
wherever it trains. Its package is imported only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from v8.registry import Registry, later, require_package


class TrackerError(Exception):
    """A tracker cannot go on; its text says why."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run before it starts.

    Args:
        path: The run folder.
        profile: The profile with its budget, as JSON values.
        source: Name of the candle source.
    """

    path: Path
    profile: Mapping[str, Any]
    source: str


class Tracker(Protocol):
    """Keeps curves of a run."""

    def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
        """Keep numbers of a series.

        Args:
            series: Its name, "BTCUSDT-15m".
            step: Epoch they belong to, from 1; never falls within a series.
            values: By name, such as "loss/train".

        Raises:
            TrackerError: If they cannot be kept.
            OSError: Likewise.
        """

    def finish(self, series: str) -> None:
        """Close what is open for a series; there may be nothing."""


@dataclass(frozen=True)
class TrackerKind:
    """A tracker that can be asked for.

    Args:
        name: What `--track` calls it.
        sentence: What it keeps and where, for people.
        source: Who makes it.
        open: Opens it for a run. `later` imports its module only then.
        package: The package it needs, by the name that pip knows; None needs nothing.
        check: Refuses, before anything starts, what would fail later; None refuses nothing.
    """

    name: str
    sentence: str
    source: str
    open: Callable[[TrackedRun], Tracker]
    package: str | None = None
    check: Callable[[], None] | None = None


TRACKERS: Final[Registry[TrackerKind]] = Registry(
    "tracker",
    [
        TrackerKind(
            "tensorboard",
            "event files in the folder `tensorboard` of the run",
            "https://www.tensorflow.org/tensorboard",
            later("v8.runs.tracking.tensorboard:EventFiles"),
            package="tensorboard",
        ),
        TrackerKind(
            "wandb",
            "a Weights & Biases run per series, grouped by run folder",
            "https://docs.wandb.ai",
            later("v8.runs.tracking.wandb:WandbRuns"),
            package="wandb",
            check=later("v8.runs.tracking.wandb:check"),
        ),
    ],
)
"""Every tracker by the name that `--track` takes."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse names of the command line that cannot be tracked with, before anything starts.

    Raises:
        ProfileError: If a name is unknown, its package is not installed, or the tracker itself refuses.
    """
    for name in names:
        kind = TRACKERS.find(name, where=f"--track {name}")
        if kind.package:
            rule = f"needs the package {kind.package}"
            require_package(kind.package, where=f"--track {name}", rule=rule)
        if kind.check:
            kind.check()
