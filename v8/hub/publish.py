"""Publishing: a staged run becomes the content of a repository, in one commit or none.

One try looks at the repository, sends what differs as one commit on top of what it saw, and looks
again. After any trouble the next try begins by looking, so an answer that got lost is found as the
commit it belonged to. Files of a published run that this one does not have are removed in the same
commit; older commits keep them. Files of other kinds stay untouched.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from v8.errors import PublishError, listed
from v8.hub.manifest import CARD_FILE, MANIFEST_FILE, ListedFile, is_published_path
from v8.hub.patience import Patience
from v8.hub.remote import (
    RemoteFile,
    RemoteRepo,
    RemoteState,
    StrictCount,
    find_token,
    progress_bars,
    strict_client,
)
from v8.hub.staging import Staged

_ORDINARY: Final = frozenset({".gitattributes", CARD_FILE, "LICENSE", "LICENSE.md", "LICENSE.txt"})
"""What a repository without a published run may hold: what the Hub's own page creates."""


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


def check_access(repo: str, patience: Patience | None = None) -> None:
    """Refuse early what publishing would refuse late: no token, a wrong one, or one that may not write.

    Args:
        repo: `user/name`.
        patience: How long to wait for the Hub.

    Raises:
        PublishError: If publishing cannot work.
    """
    with _opened(repo, patience or Patience()) as (remote, _):
        remote.check_access()


def publish(staged: Staged, repo: str, *, is_private: bool, patience: Patience | None = None) -> Published:
    """Make a repository hold a staged run, in one commit, or in none when it does already.

    Args:
        staged: The run.
        repo: `user/name`; made when it does not exist.
        is_private: Whether strangers must not see it.
        patience: How long to wait for the Hub.

    Raises:
        PublishError: If it cannot be, in one sentence; then nothing half done is left.
    """
    patience = patience or Patience()
    with _opened(repo, patience) as (remote, count):
        remote.check_access()
        remote.create(is_private=is_private)
        act = _Act(staged, remote)
        revision = patience.insist(repo, act.attempt, lambda: count.num_stored)
        return Published(remote.commit_url(revision), revision, act.sent)


@contextmanager
def _opened(repo: str, patience: Patience) -> Iterator[tuple[RemoteRepo, StrictCount]]:
    with progress_bars(is_shown=sys.stderr.isatty()), strict_client(patience.timeout_s) as count:
        yield RemoteRepo(repo, find_token(), patience), count


@dataclass
class _Act:
    """One act of publishing over all its tries; remembers what it sent."""

    staged: Staged
    remote: RemoteRepo
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
        self._check_arrived(difference(self.staged, found))
        return found.revision

    def _check_arrived(self, missing: Difference) -> None:
        if missing:
            raise PublishError(
                where=self.remote.name,
                rule="must hold what was sent",
                got=f"other content in {listed([*missing.additions, *missing.deletions])}",
                fix="Somebody else may be writing to it; repeat the same command",
            )


def difference(staged: Staged, state: RemoteState) -> Difference:
    """Compare a staged run with what a repository holds, by content."""
    files = staged.files
    changed = [file for file in files if not _is_same(staged, file, state.files.get(file.path))]
    wanted = {file.path for file in files}
    gone = (path for path in state.files if is_published_path(path) and path not in wanted)
    return Difference(
        additions={file.path: staged.folder / file.path for file in changed},
        deletions=tuple(sorted(gone)),
        num_bytes=sum(file.size_bytes for file in changed),
    )


def _is_same(staged: Staged, file: ListedFile, remote: RemoteFile | None) -> bool:
    if remote is None or remote.size_bytes != file.size_bytes:
        return False
    if remote.sha256 is not None:
        return remote.sha256 == file.sha256
    return remote.blob_id == staged.git_sha1(file)


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
