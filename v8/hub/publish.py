"""Publishing: what is staged becomes the content of a repository, in one commit or none.

One try looks at the repository, sends what differs as one commit on top of what it saw, and looks
again. After any trouble the next try begins by looking, so an answer that got lost is found as the
commit it belonged to. Models that this run does not have stay, and manifest, leaderboard and card tell of
them, too; with `is_pruning` they are removed in the same commit, and older commits keep them. Files of other
kinds stay untouched. What will be different is announced before anything is sent.

The client's `upload_folder` may split into several commits, so `create_commit` is called, with the parent
commit it builds on: then the Hub itself refuses a second one.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.hf_api import RepoFile

from v8.artifacts.metadata import METADATA_FILE, read_metadata
from v8.artifacts.model_file import MAX_TEXT_BYTES
from v8.errors import ArtifactError, PublishError, listed
from v8.hub import TOKEN_PAGE
from v8.hub.client import HubRepo, Refusal, RetryPolicy, Traffic, is_listed, strict_client
from v8.hub.layout import (
    CARD_FILE,
    MANIFEST_FILE,
    Kept,
    ListedFile,
    Staged,
    is_published_path,
    read_manifest,
    series_folder,
    series_of,
)
from v8.redaction import shown
from v8.views.card import change_line

PUBLISH_RETRIES: Final = RetryPolicy()

_ORDINARY: Final = frozenset({".gitattributes", CARD_FILE, "LICENSE", "LICENSE.md", "LICENSE.txt"})
"""What a repository without a published run may hold: what the Hub's own page creates."""

SPACE_SDK: Final = "docker"
"""A Space runs what its Dockerfile says."""

_CREATE_ONE: Final = f"Create one with write access at {TOKEN_PAGE}"
_HOW_TO_LOG_IN: Final = f"{_CREATE_ONE}, then set HF_TOKEN or run `hf auth login`"

Announce = Callable[["Difference"], None]
"""Gets the difference before it is sent."""


@dataclass(frozen=True)
class RemoteState:
    """A repository at one commit, of 40 hex digits, with every file by its path, as the Hub lists it."""

    revision: str
    is_private: bool
    files: Mapping[str, RepoFile]


@dataclass(frozen=True)
class Difference:
    """What publishing changes in a repository."""

    additions: Mapping[str, Path]  # local file per path that is new or has other content
    deletions: tuple[str, ...]  # paths that go
    held: frozenset[str]  # every path that the repository holds now

    @classmethod
    def of(cls, wanted: Mapping[str, Path], seen: RemoteState, deletions: Iterable[str]) -> "Difference":
        """Compare wanted files with what a repository holds, by content."""
        additions = {path: file for path, file in wanted.items() if not is_listed(file, seen.files.get(path))}
        return cls(additions, tuple(sorted(set(deletions) - wanted.keys())), frozenset(seen.files))

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
    """How publishing ended: the commit, and what was sent; None when the repository held all already."""

    url: str
    revision: str
    sent: Difference | None


class PublishedRepo(HubRepo):
    """A repository to compare with; reading a public one needs no token."""

    def exists(self) -> bool:
        """Tell whether there is such a repository that this user may see."""
        return self.insist(lambda: self._api.repo_exists(self.name, repo_type=self.kind))

    def look(self) -> RemoteState:
        """Return what the repository holds now.

        Raises:
            PublishError: If it does not exist, or the token may not see it.
            PassingTroubleError: If the Hub does not answer.
        """
        info = self.ask(lambda: self._api.repo_info(self.name, repo_type=self.kind))
        revision = str(info.sha)
        return RemoteState(revision, bool(info.private), self.ask(lambda: self.files(revision)))

    def require_private(self, seen: RemoteState) -> None:
        """Refuse a public repository."""
        if not seen.is_private:
            raise PublishError(
                where=self.name,
                rule="with param:private the repository must be private",
                got="a public one that exists already",
                fix="Make it private in its settings on the Hub, choose another name, or drop param:private",
            )

    def beside_kept(self, staged: Staged, seen: RemoteState, *, is_pruning: bool) -> Staged:
        """Return what the repository is to hold: the staged run, beside the models that stay.

        Raises `PublishError` if it holds another project, or models that stay cannot be told of.
        """
        strange = sorted(path for path in seen.files if path not in _ORDINARY)
        if strange and MANIFEST_FILE not in seen.files:  # no card is written over somebody's other project
            raise PublishError(
                where=self.name,
                rule="a run goes into a new repository, or one that holds a published run",
                got=f"one with other files: {listed(strange)}",
                fix="Choose another name in param:repo",
            )
        if is_pruning or not {*map(series_of, seen.files)} - {None, *staged.run.metadata}:
            return staged.beside(None)
        try:
            return staged.beside(self._kept(seen, staged.run.metadata))
        except ArtifactError as error:
            raise PublishError(
                where=error.where,
                rule=f"a model that the run does not have stays as it was published: {error.rule}",
                got=error.got,
                fix="Publish the run it is of again, or remove what this run lacks with param:prune",
            ) from error

    def _kept(self, seen: RemoteState, mine: Container[str]) -> Kept | None:
        """Read what stays: the manifest, and per series that is not mine its metadata."""
        manifest_file = self._listed(MANIFEST_FILE, seen)
        manifest, metadata = read_manifest(manifest_file), {}
        for series in manifest.series:
            if series not in mine:
                for file in manifest.files_of(series):
                    self._require_published(file, seen, manifest_file.parent)
                metadata[series] = read_metadata(manifest_file.parent / series_folder(series), series=series)
        return Kept(manifest, metadata) if metadata else None

    def _require_published(self, file: ListedFile, seen: RemoteState, folder: Path) -> None:
        """Refuse a file that is not listed as it was published; download the metadata, which is read."""
        entry = seen.files.get(file.path)
        is_whole = entry is not None and entry.size == file.size_bytes
        if entry and entry.lfs:
            is_whole = is_whole and entry.lfs.sha256 == file.sha256
        if is_whole and file.path.endswith(METADATA_FILE):
            self._listed(file.path, seen)
            is_whole = file.is_whole_in(folder)
        if not is_whole:
            raise ArtifactError(
                where=f"{self.name}, {file.path}",
                rule=f"{file.size_bytes:,} bytes with sha256 {file.sha256[:12]}",
                got="other content" if entry else "no such file",
                fix="Publish the run again",
            )

    def _listed(self, path: str, seen: RemoteState) -> Path:
        """Download a text of the repository and compare it with the id that the Hub lists."""
        entry = seen.files[path]
        rule, got, fix = f"has at most {MAX_TEXT_BYTES:,} bytes", f"{entry.size:,}", "Publish again"
        if entry.size <= MAX_TEXT_BYTES:
            for is_anew in (False, True):
                file = self.file(path, seen.revision, is_anew=is_anew)
                if is_listed(file, entry):
                    return file
            rule, got = "must arrive as the Hub lists it", "other content, twice"
            fix = "Repeat the same command"
        raise ArtifactError(where=f"{self.name}, {path}", rule=rule, got=got, fix=fix)

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
            fix = f"Check the name in {self.flag} and the permissions of the token"
        elif refusal is Refusal.OFFLINE:
            fix = "Unset HF_HUB_OFFLINE"
        return PublishError(where=where, rule=rule, got=got, fix=fix)

    def _forbidden(self, got: str) -> PublishError:
        return PublishError(
            where=self.name,
            rule=f"needs a token that may write repositories of {self.name.partition('/')[0]}",
            got=got,
            fix=f"{_CREATE_ONE} and set HF_TOKEN, or choose a {self.flag} of your own",
        )


class WritableRepo(PublishedRepo):
    """A repository to publish into.

    Raises `PublishError` if there is no token, or it has a form no token has.
    """

    def __init__(self, name: str, traffic: Traffic) -> None:
        super().__init__(name, traffic)
        if not self._token:
            raise PublishError(
                where="HF_TOKEN",
                rule="publishing needs an access token of the Hugging Face Hub",
                got="none",
                fix=_HOW_TO_LOG_IN,
            )

    def check_access(self) -> None:
        """Refuse a token that is wrong, may not write, or belongs to somebody else.

        Raises `PublishError` if so, or if the Hub does not answer.
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

        Raises `PublishError` if it may not be made.
        """
        sdk = SPACE_SDK if self.kind == "space" else None
        self.insist(
            lambda: self._api.create_repo(
                self.name, repo_type=self.kind, private=is_private or None, exist_ok=True, space_sdk=sdk
            )
        )

    def commit(self, title: str, description: str, change: Difference, *, parent: str) -> None:
        """Write and delete files in one commit on top of `parent`; the description may be empty.

        Raises:
            PublishError: If it is refused for good.
            PassingTroubleError: If no answer came, or there is a newer commit: look before trying again.
        """
        adding = [CommitOperationAdd(path, str(file)) for path, file in change.additions.items()]
        deleting = [CommitOperationDelete(path, is_folder=False) for path in change.deletions]
        self.ask(
            lambda: self._api.create_commit(
                self.name,
                [*adding, *deleting],
                repo_type=self.kind,
                commit_message=title,
                commit_description=description or None,
                parent_commit=parent,
            )
        )


@dataclass
class SingleCommit(ABC):
    """One commit over all its tries; remembers what it sent."""

    remote: WritableRepo
    announce: Announce
    sent: Difference | None = field(default=None, init=False)

    def carry_out(self, traffic: Traffic, *, is_private: bool) -> str:
        """Make the repository where there is none, insist on the commit, and return the one that holds all.

        With `is_private` strangers must not see the repository.
        """
        remote = self.remote
        remote.check_access()
        remote.create(is_private=is_private)
        if is_private:
            remote.require_private(remote.insist_on(remote.look))
        return remote.insist_on(self.attempt, lambda: traffic.succeeded["PUT"])

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
        self.remote.commit(shown(self._title()), self._changelog(missing), missing, parent=seen.revision)
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
        return _difference(self.staged, seen, is_pruning=self.is_pruning)


def check_access(repo: str, retries: RetryPolicy = PUBLISH_RETRIES) -> None:
    """Refuse early what publishing would refuse late: no token, a wrong one, or one that may not write.

    Raises `PublishError` if publishing cannot work.
    """
    with strict_client(retries) as traffic:
        WritableRepo(repo, traffic).check_access()


def publish(
    staged: Staged,
    repo: str,
    *,
    is_private: bool,
    is_pruning: bool = False,
    retries: RetryPolicy = PUBLISH_RETRIES,
    announce: Announce = lambda found: None,
) -> Published:
    """Make a repository hold a staged run, in one commit, or in none when it does already.

    The repository is made when it does not exist; with `is_private` strangers must not see it. Models that
    the run does not have stay, or go with `is_pruning`.

    Raises `PublishError` if it cannot be, in one sentence; then nothing half done is left.
    """
    with strict_client(retries, shows_progress=sys.stderr.isatty()) as traffic:
        remote = WritableRepo(repo, traffic)
        commit = RunCommit(remote, announce, staged, is_pruning)
        revision = commit.carry_out(traffic, is_private=is_private)
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

    Raises `PublishError` if publishing would be refused, or the Hub does not answer.
    """
    with strict_client(retries) as traffic:
        remote = PublishedRepo(repo, traffic)
        if not remote.exists():
            return staged, None
        seen = remote.insist_on(remote.look)
        if is_private:
            remote.require_private(seen)
        staged = remote.beside_kept(staged, seen, is_pruning=is_pruning)
        return staged, _difference(staged, seen, is_pruning=is_pruning)


def _difference(staged: Staged, seen: RemoteState, *, is_pruning: bool) -> Difference:
    """Compare a staged run with what a repository holds."""
    wanted = {file.path: staged.folder / file.path for file in staged.files}
    return Difference.of(wanted, seen, filter(is_published_path, seen.files) if is_pruning else ())
