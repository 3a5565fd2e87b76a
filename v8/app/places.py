"""Where the models are that a page shows: a run folder, or a repository on the Hub.

A place is looked at now and then; what it holds at that moment is a `Fleet`, which never changes. A run that
is renewed under our feet, or published again, becomes another fleet at the next look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

from v8.artifacts.run_folder import RUN_FILE, read_run
from v8.artifacts.series_artifact import METADATA_FILE, read_described
from v8.errors import ArtifactError, V8Error, listed
from v8.hub.pull import pull
from v8.losses.leaderboard import LeaderboardRow, SeriesResult, rank_results, read_results
from v8.market.series import Series

HUB_LOOK_S: Final = 900.0
"""The Hub is asked at most once in so many seconds whether there is a newer commit."""


@dataclass(frozen=True, eq=False)
class Fleet:
    """The models of a place at one moment.

    Args:
        label: What readers call the place; never a path.
        revision: Commit of the Hub, 40 hex digits; None for a run of this machine.
        folders: Where each series' artefact lies.
        metadata: What each one's `metadata.json` holds, in the order of `folders`.
        refused: Per series that is not shown, why, for the operator.
    """

    label: str
    revision: str | None
    folders: Mapping[Series, Path]
    metadata: Mapping[Series, Mapping[str, Any]]
    refused: Mapping[str, str]

    @cached_property
    def results(self) -> dict[str, SeriesResult]:
        """How each series was trained and judged, by its name."""
        return {result.series: result for result in read_results(self.metadata.values())}

    @cached_property
    def rows(self) -> list[LeaderboardRow]:
        """The leaderboard, best first."""
        return rank_results(self.results.values())

    def digest(self, series: Series) -> str:
        """Return the sha256 of a series' model file, 64 hex digits."""
        return str(self.metadata[series]["model_sha256"])


class Place(Protocol):
    """Where models are."""

    def look(self) -> Fleet:
        """Return what is there now; the same object while nothing changed.

        Raises:
            V8Error: If it cannot be read, or holds no model.
        """


class RunPlace:
    """A run folder, or the folder of one series.

    Args:
        folder: Which.
        locate: Returns the folder of the model that serves a series of a run.
    """

    def __init__(self, folder: Path, locate: Callable[[Path, str], Path]) -> None:
        self._folder, self._locate = folder, locate
        self._seen: tuple[tuple[str, int, int, int], ...] = ()
        self._fleet: Fleet | None = None

    def look(self) -> Fleet:
        """Return what is there now; see `Place`."""
        folders = self._folders()
        seen = tuple(_stamp(folder / METADATA_FILE) for folder in folders.values())
        if self._fleet is None or seen != self._seen:
            label = f"run {self._folder.resolve().name}"
            self._fleet, self._seen = _fleet(label, None, folders), seen
        return self._fleet

    def _folders(self) -> dict[str, Path]:
        if (self._folder / METADATA_FILE).exists() and not (self._folder / RUN_FILE).exists():
            return {self._folder.resolve().name: self._folder}
        states = read_run(self._folder).series.items()
        done = [name for name, state in states if state.status == "done"]
        return {name: self._locate(self._folder, name) for name in sorted(done)}


class HubPlace:
    """A published run.

    Args:
        repo: `user/name`.
        revision: Branch, tag or commit; None for the newest of `main`.
        is_offline: Whether to use only what is in the cache.
    """

    def __init__(self, repo: str, revision: str | None = None, *, is_offline: bool = False) -> None:
        self._repo, self._revision, self._is_offline = repo, revision, is_offline
        self._fleet: Fleet | None = None
        self._looked_s = 0.0

    def look(self) -> Fleet:
        """Return what is there now, asking the Hub at most every `HUB_LOOK_S`; see `Place`."""
        if self._fleet is None or time.monotonic() - self._looked_s >= HUB_LOOK_S:
            pulled = pull(self._repo, revision=self._revision, is_offline=self._is_offline)
            self._looked_s = time.monotonic()
            if self._fleet is None or pulled.revision != self._fleet.revision:
                folders = {name: pulled.artifact(name) for name in pulled.series}
                self._fleet = _fleet(self._repo, pulled.revision, folders)
        return self._fleet


def _fleet(label: str, revision: str | None, folders: Mapping[str, Path]) -> Fleet:
    """Read what lies in folders; an artefact that cannot be trusted is left out, and why is kept."""
    metadata: dict[Series, Mapping[str, Any]] = {}
    refused = {}
    for name, folder in folders.items():
        try:
            content = read_described(folder, series=name)
            read_results([content])
            metadata[Series.parse(name)] = content
        except V8Error as error:
            refused[name] = str(error)
    if not metadata:
        raise ArtifactError(
            where=label,
            rule="a page needs at least one finished series",
            got=f"none that can be read: {listed(list(refused.values()))}" if refused else "none",
            fix="Finish the run first, or name another one",
        )
    found = {series: folders[str(series)] for series in metadata}
    return Fleet(label, revision, found, metadata, refused)


def _stamp(file: Path) -> tuple[str, int, int, int]:
    """Tell whether a file is the one that was read: its place, number, time and size.

    A file that is written aside and renamed has another number, whatever the system's clock can tell apart.
    """
    try:
        about = file.stat()
    except FileNotFoundError:
        return str(file), 0, 0, 0
    return str(file), about.st_ino, about.st_mtime_ns, about.st_size
