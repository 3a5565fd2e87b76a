"""Publishing a Space: the page of published models, in one commit or none.

A Space that holds anything but what the Hub's own page makes, or what we published before, is refused. What
we published before and is not wanted any more is removed in the same commit: below `v8/` every file is ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from v8.errors import PublishError, listed
from v8.hub.client import RetryPolicy, is_listed
from v8.hub.endpoint import hub_endpoint
from v8.hub.publish import PUBLISH_RETRIES, Difference, Published, SingleCommit
from v8.hub.pull import published
from v8.hub.remote import PublishedRepo, RemoteState, WritableRepo
from v8.hub.space_files import PACKAGE_FOLDER, stage_space
from v8.hub.transport import strict_client

_OURS: Final = f"{PACKAGE_FOLDER}/app/__init__.py"
"""Lies in every Space that was published here."""

_MADE_BY_THE_HUB: Final = frozenset({".gitattributes", "README.md", "LICENSE"})


class PublishedSpace(PublishedRepo):
    """A Space to compare with."""

    kind: ClassVar[str] = "space"
    flag: ClassVar[str] = "--space"


class WritableSpace(WritableRepo):
    """A Space to publish into."""

    kind: ClassVar[str] = "space"
    flag: ClassVar[str] = "--space"


@dataclass(frozen=True)
class StagedSpace:
    """The files of a Space.

    Args:
        folder: Where they lie.
        paths: Their names, relative with forward slashes, ascending.
        repo: The models it shows, `user/name`.
    """

    folder: Path
    paths: tuple[str, ...]
    repo: str

    def difference(self, seen: RemoteState) -> Difference:
        """Compare it with what a Space holds, by content."""
        files = {path: self.folder / path for path in self.paths}
        additions = {path: file for path, file in files.items() if not is_listed(file, seen.files.get(path))}
        gone = (path for path in seen.files if path.startswith(f"{PACKAGE_FOLDER}/") and path not in files)
        return Difference(additions, tuple(sorted(gone)), frozenset(seen.files))


def stage(folder: Path, space: str, repo: str) -> StagedSpace:
    """Lay out the Space of published models in an empty folder.

    Raises:
        PublishError: If the environment lacks a package of the page.
        PullError: If nothing is published in `repo` that this user may read.
    """
    published(repo)
    return StagedSpace(folder, stage_space(folder, space, repo, hub_endpoint()), repo)


def publish_space(
    staged: StagedSpace,
    space: str,
    *,
    is_private: bool,
    retries: RetryPolicy = PUBLISH_RETRIES,
    announce: Callable[[Difference], None] = lambda found: None,
) -> Published:
    """Make a Space hold what is staged, in one commit, or in none when it does already.

    The Space is made when it does not exist; with `is_private` strangers must not see it. `announce` gets the
    difference before it is sent.

    Raises:
        PublishError: If it cannot be, in one sentence; then nothing half done is left.
    """
    with strict_client(retries.timeout_s, retries.tell, shows_progress=sys.stderr.isatty()) as traffic:
        remote = WritableSpace(space, retries, traffic)
        commit = SpaceCommit(remote, announce, staged)
        revision = commit.carry_out(lambda: traffic.succeeded["PUT"], is_private=is_private)
        return Published(f"{remote.endpoint}/spaces/{space}", revision, commit.sent)


def preview_space(
    staged: StagedSpace, space: str, *, retries: RetryPolicy = PUBLISH_RETRIES
) -> Difference | None:
    """Ask the Hub what publishing would change, and change nothing; a public Space needs no token.

    Returns:
        The difference; None when there is no such Space yet that this user may see.

    Raises:
        PublishError: If publishing would be refused, or the Hub does not answer.
    """
    with strict_client(retries.timeout_s, retries.tell) as traffic:
        remote = PublishedSpace(space, retries, traffic)
        if not remote.exists():
            return None
        seen = remote.insist_on(remote.look)
        _require_ours(remote, seen)
        return staged.difference(seen)


@dataclass
class SpaceCommit(SingleCommit):
    """The commit of a Space."""

    staged: StagedSpace

    def _prepare(self, seen: RemoteState) -> None:
        _require_ours(self.remote, seen)

    def _title(self) -> str:
        return f"Publish the page of {self.staged.repo}"

    def _difference(self, seen: RemoteState) -> Difference:
        return self.staged.difference(seen)


def _require_ours(remote: PublishedRepo, seen: RemoteState) -> None:
    """Refuse somebody's other Space."""
    strange = sorted(path for path in seen.files if path not in _MADE_BY_THE_HUB)
    if strange and _OURS not in seen.files:
        raise PublishError(
            where=remote.name,
            rule="a page goes into a new Space, or one that v8 published",
            got=f"one with other files: {listed(strange)}",
            fix="Choose another name in --space",
        )
