"""Publishing: a staged run becomes the content of a repository, in one commit or none.

One try looks at the repository, sends what differs as one commit on top of what it saw, and looks
again. After any trouble the next try begins by looking, so an answer that got lost is found as the
commit it belonged to. Files of a published run that this one does not have are removed in the same
commit; older commits keep them. Files of other kinds stay untouched.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from v8.errors import PublishError, listed
from v8.hub.client import is_listed, strict_client
from v8.hub.manifest import CARD_FILE, MANIFEST_FILE, is_published_path
from v8.hub.remote import RemoteState, WritableRepo
from v8.hub.retries import RetryPolicy
from v8.hub.staging import Staged

_ORDINARY: Final = frozenset({".gitattributes", CARD_FILE, "LICENSE", "LICENSE.md", "LICENSE.txt"})
"""What a repository without a published run may hold: what the Hub's own page creates."""

PUBLISH_RETRIES: Final = RetryPolicy()


@dataclass(frozen=True)
class Difference:
    """What a repository lacks to be the staged run.

    Args:
        additions: Local file per path that is new or has other content.
        deletions: Paths of an earlier published run that this one does not have.
        num_bytes: Size of all additions.
    """

    additions: Mapping[str, Path]
    deletions: tuple[str, ...]
    num_bytes: int

    def __bool__(self) -> bool:
        return bool(self.additions or self.deletions)


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

    Args:
        repo: `user/name`.
        retries: How long to wait for the Hub.

    Raises:
        PublishError: If publishing cannot work.
    """
    with strict_client(retries.timeout_s):
        WritableRepo(repo, retries).check_access()


def publish(
    staged: Staged, repo: str, *, is_private: bool, retries: RetryPolicy = PUBLISH_RETRIES
) -> Published:
    """Make a repository hold a staged run, in one commit, or in none when it does already.

    Args:
        staged: The run.
        repo: `user/name`; made when it does not exist.
        is_private: Whether strangers must not see it.
        retries: How long to wait for the Hub.

    Raises:
        PublishError: If it cannot be, in one sentence; then nothing half done is left.
    """
    with strict_client(retries.timeout_s, shows_progress=sys.stderr.isatty()) as stored:
        remote = WritableRepo(repo, retries)
        remote.check_access()
        remote.create(is_private=is_private)
        commit = SingleCommit(staged, remote)
        revision = retries.insist(repo, commit.attempt, lambda: stored.num_files)
        return Published(remote.commit_url(revision), revision, commit.sent)


@dataclass
class SingleCommit:
    """The commit of a staged run over all its tries; remembers what it sent."""

    staged: Staged
    remote: WritableRepo
    sent: Difference | None = field(default=None, init=False)

    def attempt(self) -> str:
        """Look, send what differs, look again; return the commit that holds the run."""
        seen = self.remote.look()
        missing = difference(self.staged, seen)
        if not missing:
            return seen.revision
        _check_ours(self.remote.name, seen)
        self.sent = missing
        title = f"Publish {len(self.staged.manifest.series)} models of {self.staged.manifest.profile_name}"
        self.remote.commit(title, missing.additions, missing.deletions, parent=seen.revision)
        found = self.remote.look()
        lost = difference(self.staged, found)
        if lost:
            raise PublishError(
                where=self.remote.name,
                rule="must hold what was sent",
                got=f"other content in {listed([*lost.additions, *lost.deletions])}",
                fix="Somebody else may be writing to it; repeat the same command",
            )
        return found.revision


def difference(staged: Staged, state: RemoteState) -> Difference:
    """Compare a staged run with what a repository holds, by content."""
    wanted = {file.path: staged.folder / file.path for file in staged.files}
    additions = {path: file for path, file in wanted.items() if not is_listed(file, state.files.get(path))}
    gone = (path for path in state.files if is_published_path(path) and path not in wanted)
    return Difference(
        additions=additions,
        deletions=tuple(sorted(gone)),
        num_bytes=sum(file.stat().st_size for file in additions.values()),
    )


def _check_ours(repo: str, state: RemoteState) -> None:
    """Refuse to write a card over somebody's other project."""
    strange = sorted(path for path in state.files if path not in _ORDINARY)
    if strange and MANIFEST_FILE not in state.files:
        raise PublishError(
            where=repo,
            rule="a run goes into a new repository, or one that holds a published run",
            got=f"one with other files: {listed(strange)}",
            fix="Choose another name in --repo",
        )
