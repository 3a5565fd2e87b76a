"""Publishing: a staged run becomes the content of a repository, in one commit or none.

One try looks at the repository, sends what differs as one commit on top of what it saw, and looks
again. After any trouble the next try begins by looking, so an answer that got lost is found as the
commit it belonged to. Models that this run does not have stay, and manifest, leaderboard and card tell of
them, too; with `is_pruning` they are removed in the same commit, and older commits keep them. Files of other
kinds stay untouched. What will be different is announced before anything is sent.

The client's `upload_folder` may split into several commits, so `create_commit` is called, with the parent
commit it builds on: then the Hub itself refuses a second one.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from v8.errors import PublishError, listed
from v8.hub.client import RetryPolicy, is_listed
from v8.hub.manifest import is_published_path, series_of
from v8.hub.remote import PublishedRepo, RemoteState, WritableRepo
from v8.hub.staging import Staged
from v8.hub.transport import strict_client
from v8.redaction import shown
from v8.views.card import change_line

PUBLISH_RETRIES: Final = RetryPolicy()


@dataclass(frozen=True)
class Difference:
    """What publishing changes in a repository.

    Args:
        additions: Local file per path that is new or has other content.
        deletions: Paths of models that the run does not have, and which go.
        held: Every path that the repository holds now.
    """

    additions: Mapping[str, Path]
    deletions: tuple[str, ...]
    held: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.additions or self.deletions)

    @property
    def num_bytes(self) -> int:
        """Size of all additions."""
        return sum(file.stat().st_size for file in self.additions.values())

    @property
    def files(self) -> dict[str, list[str]]:
        """Paths that are added, changed, kept and removed."""
        sent, removed, held = set(self.additions), set(self.deletions), set(self.held)
        groups = {"added": sent - held, "changed": sent & held, "kept": held - sent - removed}
        groups["removed"] = removed
        return {what: sorted(paths) for what, paths in groups.items()}

    @property
    def models(self) -> dict[str, list[str]]:
        """Series that are added, changed, kept and removed; one with several kinds of files is changed."""
        kinds: dict[str, set[str]] = {}
        for what, paths in self.files.items():
            for series in filter(None, map(series_of, paths)):
                kinds.setdefault(series, set()).add(what)
        found: dict[str, list[str]] = {what: [] for what in self.files}
        for series, whats in sorted(kinds.items()):
            found[whats.pop() if len(whats) == 1 else "changed"].append(series)
        return found


@dataclass(frozen=True)
class Published:
    """How publishing ended.

    Args:
        url: Page of the commit that holds the run.
        revision: That commit, 40 hex digits.
        sent: What was sent; None when the repository held everything already.
    """

    url: str
    revision: str
    sent: Difference | None


def check_access(repo: str, retries: RetryPolicy = PUBLISH_RETRIES) -> None:
    """Refuse early what publishing would refuse late: no token, a wrong one, or one that may not write.

    Raises:
        PublishError: If publishing cannot work.
    """
    with strict_client(retries.timeout_s, retries.tell) as traffic:
        WritableRepo(repo, retries, traffic).check_access()


def publish(
    staged: Staged,
    repo: str,
    *,
    is_private: bool,
    is_pruning: bool = False,
    retries: RetryPolicy = PUBLISH_RETRIES,
    announce: Callable[[Difference], None] = lambda found: None,
) -> Published:
    """Make a repository hold a staged run, in one commit, or in none when it does already.

    The repository is made when it does not exist; with `is_private` strangers must not see it. Models that
    the run does not have stay, or go with `is_pruning`. `announce` gets the difference before it is sent.

    Raises:
        PublishError: If it cannot be, in one sentence; then nothing half done is left.
    """
    with strict_client(retries.timeout_s, retries.tell, shows_progress=sys.stderr.isatty()) as traffic:
        remote = WritableRepo(repo, retries, traffic)
        commit = RunCommit(remote, announce, staged, is_pruning)
        revision = commit.carry_out(lambda: traffic.succeeded["PUT"], is_private=is_private)
        return Published(f"{remote.endpoint}/{repo}/commit/{revision}", revision, commit.sent)


def preview(
    staged: Staged,
    repo: str,
    *,
    is_private: bool,
    is_pruning: bool = False,
    retries: RetryPolicy = PUBLISH_RETRIES,
) -> tuple[Staged, Difference | None]:
    """Ask the Hub what publishing would change, and change nothing; a public repository needs no token.

    Returns:
        What would be published, beside the models that stay, and the difference; None when there is no such
        repository yet that this user may see.

    Raises:
        PublishError: If publishing would be refused, or the Hub does not answer.
    """
    with strict_client(retries.timeout_s, retries.tell) as traffic:
        remote = PublishedRepo(repo, retries, traffic)
        if not remote.exists():
            return staged, None
        seen = remote.insist_on(remote.look)
        if is_private:
            remote.require_private(seen)
        staged = remote.beside_kept(staged, seen, is_pruning=is_pruning)
        return staged, difference(staged, seen, is_pruning=is_pruning)


@dataclass
class SingleCommit(ABC):
    """One commit over all its tries; remembers what it sent."""

    remote: WritableRepo
    announce: Callable[[Difference], None]
    sent: Difference | None = field(default=None, init=False)

    def carry_out(self, progress: Callable[[], int], *, is_private: bool) -> str:
        """Make the repository where there is none, insist on the commit, and return the one that holds all.

        Args:
            progress: Counts what was moved for good so far.
            is_private: Whether strangers must not see the repository.
        """
        remote = self.remote
        remote.check_access()
        remote.create(is_private=is_private)
        if is_private:
            remote.require_private(remote.insist_on(remote.look))
        return remote.insist_on(self.attempt, progress)

    def attempt(self) -> str:
        """Look, send what differs, look again; return the commit that holds all."""
        seen = self.remote.look()
        self._prepare(seen)
        missing = self._difference(seen)
        if not missing:
            return seen.revision
        if missing != self.sent:
            self.announce(missing)
        self.sent = missing
        self.remote.commit(
            shown(self._title()),
            self._changelog(missing),
            missing.additions,
            missing.deletions,
            parent=seen.revision,
        )
        found = self.remote.look()
        if lost := self._difference(found):
            raise PublishError(
                where=self.remote.name,
                rule="must hold what was sent",
                got=f"other content in {listed([*lost.additions, *lost.deletions])}",
                fix="Somebody else may be writing to it; repeat the same command",
            )
        return found.revision

    @abstractmethod
    def _prepare(self, seen: RemoteState) -> None:
        """Refuse what must not be written into, and settle what is wanted beside what is there."""

    @abstractmethod
    def _title(self) -> str:
        """Return the title of the commit."""

    def _changelog(self, missing: Difference) -> str:
        """Return what the commit says below its title; nothing unless there is more to say."""
        return ""

    @abstractmethod
    def _difference(self, seen: RemoteState) -> Difference:
        """Compare what is wanted with what is there."""


@dataclass
class RunCommit(SingleCommit):
    """The commit of a staged run."""

    staged: Staged
    is_pruning: bool

    def _prepare(self, seen: RemoteState) -> None:
        self.staged = self.remote.beside_kept(self.staged, seen, is_pruning=self.is_pruning)

    def _title(self) -> str:
        return f"Publish {len(self.staged.run.metadata)} models of {self.staged.run.record.profile_name}"

    def _changelog(self, missing: Difference) -> str:
        """Say what of the renewed models this commit brings, and why each was renewed."""
        brought = {series for series in map(series_of, missing.additions) if series}
        changes = self.staged.run.changes
        return "\n".join(change_line(changes[series]) for series in sorted(brought & changes.keys()))

    def _difference(self, seen: RemoteState) -> Difference:
        return difference(self.staged, seen, is_pruning=self.is_pruning)


def difference(staged: Staged, state: RemoteState, *, is_pruning: bool) -> Difference:
    """Compare a staged run with what a repository holds, by content."""
    wanted = {file.path: staged.folder / file.path for file in staged.files}
    additions = {path: file for path, file in wanted.items() if not is_listed(file, state.files.get(path))}
    gone = (path for path in state.files if is_published_path(path) and path not in wanted)
    return Difference(additions, tuple(sorted(gone)) if is_pruning else (), frozenset(state.files))
