"""Publishing: a staged run becomes the content of a repository, in one commit or none.

One try looks at the repository, sends what differs as one commit on top of what it saw, and looks
again. After any trouble the next try begins by looking, so an answer that got lost is found as the
commit it belonged to. Files of a published run that this one does not have are removed in the same
commit; older commits keep them. Files of other kinds stay untouched.

The client's `upload_folder` may split into several commits, so `create_commit` is called, with the parent
commit it builds on: then the Hub itself refuses a second one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.hf_api import RepoFile

from v8.errors import PublishError, listed
from v8.hub.client import TOKEN_PAGE, HubRepo, Refusal, RetryPolicy, is_listed, strict_client
from v8.hub.manifest import CARD_FILE, MANIFEST_FILE, is_published_path
from v8.hub.staging import Staged
from v8.untrusted import without_credentials

_ORDINARY: Final = frozenset({".gitattributes", CARD_FILE, "LICENSE", "LICENSE.md", "LICENSE.txt"})
"""What a repository without a published run may hold: what the Hub's own page creates."""

PUBLISH_RETRIES: Final = RetryPolicy()

_CREATE_ONE: Final = f"Create one with write access at {TOKEN_PAGE}"
_HOW_TO_LOG_IN: Final = f"{_CREATE_ONE}, then set HF_TOKEN or run `hf auth login`"


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

    Raises:
        PublishError: If publishing cannot work.
    """
    with strict_client(retries.timeout_s):
        WritableRepo(repo, retries).check_access()


def publish(
    staged: Staged, repo: str, *, is_private: bool, retries: RetryPolicy = PUBLISH_RETRIES
) -> Published:
    """Make a repository hold a staged run, in one commit, or in none when it does already.

    The repository is made when it does not exist; with `is_private` strangers must not see it.

    Raises:
        PublishError: If it cannot be, in one sentence; then nothing half done is left.
    """
    with strict_client(retries.timeout_s, shows_progress=sys.stderr.isatty()) as succeeded:
        remote = WritableRepo(repo, retries)
        remote.check_access()
        remote.create(is_private=is_private)
        commit = SingleCommit(staged, remote)
        revision = retries.insist(repo, commit.attempt, lambda: succeeded["PUT"])
        address = without_credentials(f"{remote.endpoint}/{repo}/commit/{revision}")
        return Published(address, revision, commit.sent)


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
        strange = sorted(path for path in seen.files if path not in _ORDINARY)
        if strange and MANIFEST_FILE not in seen.files:  # no card is written over somebody's other project
            raise PublishError(
                where=self.remote.name,
                rule="a run goes into a new repository, or one that holds a published run",
                got=f"one with other files: {listed(strange)}",
                fix="Choose another name in --repo",
            )
        self.sent = missing
        title = f"Publish {len(self.staged.manifest.series)} models of {self.staged.manifest.profile_name}"
        self.remote.commit(title, missing.additions, missing.deletions, parent=seen.revision)
        found = self.remote.look()
        if lost := difference(self.staged, found):
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


@dataclass(frozen=True)
class RemoteState:
    """A repository at one commit.

    Args:
        revision: The commit, 40 hex digits.
        is_private: Whether strangers cannot see it.
        files: Every file by its path, as the Hub lists it.
    """

    revision: str
    is_private: bool
    files: Mapping[str, RepoFile]


class WritableRepo(HubRepo):
    """A model repository to publish into.

    Raises:
        PublishError: If there is no token, or it has a form no token has.
    """

    def __init__(self, name: str, retries: RetryPolicy) -> None:
        super().__init__(name, retries)
        if not self._token:
            raise PublishError(
                where="HF_TOKEN",
                rule="publishing needs an access token of the Hugging Face Hub",
                got="none",
                fix=_HOW_TO_LOG_IN,
            )

    def check_access(self) -> None:
        """Refuse a token that is wrong, may not write, or belongs to somebody else.

        Raises:
            PublishError: If so, or if the Hub does not answer.
        """
        about = self.insist(self._api.whoami)
        role = about.get("auth", {}).get("accessToken", {}).get("role")
        if role == "read":
            raise self._forbidden("a token that may only read")
        owners = [about["name"], *(org["name"] for org in about.get("orgs", []))]
        if self.name.partition("/")[0] not in owners:
            raise self._forbidden(f"the token of {about['name']}")

    def create(self, *, is_private: bool) -> None:
        """Make the repository when it does not exist.

        Raises:
            PublishError: If it may not be made, or is public and must not be.
        """
        self.insist(lambda: self._api.create_repo(self.name, private=is_private or None, exist_ok=True))
        if is_private and not self.insist(self.look).is_private:
            raise PublishError(
                where=self.name,
                rule="with --private the repository must be private",
                got="a public one that exists already",
                fix="Make it private in its settings on the Hub, choose another name, or drop --private",
            )

    def look(self) -> RemoteState:
        """Return what the repository holds now.

        Raises:
            PublishError: If it does not exist, or the token may not see it.
            PassingTroubleError: If the Hub does not answer.
        """
        info = self.ask(lambda: self._api.model_info(self.name))
        revision = str(info.sha)
        return RemoteState(revision, bool(info.private), self.ask(lambda: self.files(revision)))

    def commit(
        self, title: str, additions: Mapping[str, Path], deletions: Iterable[str], *, parent: str
    ) -> None:
        """Write local files and delete paths in one commit on top of `parent`.

        Raises:
            PublishError: If it is refused for good.
            PassingTroubleError: If no answer came, or there is a newer commit: look before trying again.
        """
        adding = [CommitOperationAdd(path, str(file)) for path, file in additions.items()]
        deleting = [CommitOperationDelete(path, is_folder=False) for path in deletions]
        self.ask(
            lambda: self._api.create_commit(
                self.name, [*adding, *deleting], commit_message=title, parent_commit=parent
            )
        )

    def refused(self, refusal: Refusal, said: str) -> PublishError:
        """Return the error that the user reads."""
        where, rule, got = self.name, "the Hub must take the commit", said
        fix = "Nothing was published; mend it and repeat the same command"
        if refusal is Refusal.FORBIDDEN:
            return self._forbidden("a token that may not write there")
        if refusal is Refusal.TOKEN:
            where, rule = "HF_TOKEN", "must be a valid access token of the Hugging Face Hub"
            got, fix = "one that the Hub does not know", _HOW_TO_LOG_IN
        elif refusal in (Refusal.REPOSITORY, Refusal.REVISION, Refusal.FILE):
            rule = "the repository must be one that exists and that the token may see"
            got = "the answer that there is none"
            fix = "Check the name in --repo and the permissions of the token"
        elif refusal is Refusal.OFFLINE:
            fix = "Unset HF_HUB_OFFLINE"
        return PublishError(where=where, rule=rule, got=got, fix=fix)

    def _forbidden(self, got: str) -> PublishError:
        return PublishError(
            where=self.name,
            rule=f"needs a token that may write repositories of {self.name.partition('/')[0]}",
            got=got,
            fix=f"{_CREATE_ONE} and set HF_TOKEN, or choose a --repo of your own",
        )
