"""Publishing: what is staged becomes the content of a repository, in one commit or none.

One try looks at the repository, sends what differs as one commit on top of what it saw, and looks
again. After any trouble the next try begins by looking, so an answer that got lost is found as the
commit it belonged to. What will be different is announced before anything is sent.

The client's `upload_folder` may split into several commits, so `create_commit` is called, with the parent
commit it builds on: then the Hub itself refuses a second one.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, Self, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.hf_api import RepoFile

from v8.artifacts.model_file import MAX_TEXT_BYTES
from v8.errors import ArtifactError, PublishError, listed, shown
from v8.hub.client import HubRepo, HubRetryPolicy, Kind, is_listed, strict_client
from v8.hub.layout import series_of

PUBLISH_RETRIES: Final = HubRetryPolicy()


Announce = Callable[["Difference"], None]  # gets the difference before it is sent


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

    def __bool__(self) -> bool:
        return bool(self.additions or self.deletions)

    @property
    def num_bytes(self) -> int:
        """Size of all additions."""
        return sum(file.stat().st_size for file in self.additions.values())

    @property
    def files(self) -> dict[str, list[str]]:
        """Paths that are added, changed, kept and removed."""
        sent = set(self.additions)
        removed = set(self.deletions)
        held = set(self.held)
        groups = {"added": sent - held, "changed": sent & held, "kept": held - sent - removed}
        return {what: sorted(paths) for what, paths in (groups | {"removed": removed}).items()}

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
    collection: str | None = None  # address of the collection that it stands in, where one was asked for


class Publication:
    """Files in a folder that a repository is to hold."""

    kind: ClassVar[Kind] = "model"
    flag: ClassVar[str] = "param:repo"
    ordinary: ClassVar[frozenset[str]]
    """Files that a repository may have that holds none of ours: what the Hub's own page creates."""
    marker: str  # lies in every repository that was published into
    rule: ClassVar[str]  # where this goes
    folder: Path  # where the files lie
    paths: tuple[str, ...]  # of those that are wanted, relative, with forward slashes
    title: str  # of the commit

    def changelog(self, missing: Difference) -> str:
        """Return what the commit says below its title; nothing unless there is more to say."""
        return ""

    def require_ours(self, remote: "RemoteRepo", seen: RemoteState) -> None:
        """Refuse somebody's other project with a `PublishError`: nothing is written over it."""
        strange = sorted(path for path in seen.files if path not in self.ordinary)
        if strange and self.marker not in seen.files:
            raise PublishError(**remote.told("publish", "STRANGE", rule=self.rule, files=listed(strange)))

    def settled(self, remote: "RemoteRepo", seen: RemoteState) -> Self:
        """Refuse what must not be written into, and settle what is wanted beside what is there."""
        self.require_ours(remote, seen)
        return self

    def is_passing(self, path: str) -> bool:
        """Tell whether a file that is there and not wanted goes."""
        return False

    def difference(self, seen: RemoteState) -> Difference:
        """Compare what is wanted with what is there, by content."""
        wanted = {path: self.folder / path for path in self.paths}
        additions = {path: file for path, file in wanted.items() if not is_listed(file, seen.files.get(path))}
        deletions = sorted(filter(self.is_passing, seen.files.keys() - wanted.keys()))
        return Difference(additions, tuple(deletions), frozenset(seen.files))


Wanted = TypeVar("Wanted", bound=Publication)


class RemoteRepo(HubRepo):
    """A repository to compare with, for which a public one needs no token, and to publish into."""

    def exists(self) -> bool:
        """Tell whether there is such a repository that this user may see."""
        return self.call(lambda: self._api.repo_exists(self.name, repo_type=self.kind))

    def look(self) -> RemoteState:
        """Return what the repository holds now.

        Raises `PublishError` if it does not exist, or the token may not see it, `TransientError` if the
        Hub does not answer.
        """
        info = self.ask(lambda: self._api.repo_info(self.name, repo_type=self.kind))
        revision = str(info.sha)
        return RemoteState(revision, bool(info.private), self.ask(lambda: self.files(revision)))

    def beside(self, staged: Wanted, *, is_private: bool) -> tuple[Wanted, RemoteState]:
        """Look, and settle what is wanted beside what is there, which must be hidden if it is to be."""
        seen = self.look()
        if is_private and not seen.is_private:
            raise PublishError(**self.told("publish", "PUBLIC"))
        return staged.settled(self, seen), seen

    def text(self, path: str, seen: RemoteState, most_bytes: int = MAX_TEXT_BYTES) -> Path:
        """Download a file of the repository and compare it with the id that the Hub lists.

        Raises `ArtifactError` if it is too long, or arrives otherwise twice.
        """
        entry = seen.files[path]
        for is_anew in (False, True) if entry.size <= most_bytes else ():
            file = self.file(path, seen.revision, is_anew=is_anew)
            if is_listed(file, entry):
                return file
        kind = "CONTENT" if entry.size <= most_bytes else "TOO_LONG"
        raise ArtifactError(**self.told("publish", kind, path=path, size=entry.size, most=most_bytes))

    def check_access(self) -> None:
        """Refuse no token, and one that is wrong, may not write, or belongs to somebody else.

        Raises `PublishError` if so, or if the Hub does not answer.
        """
        if not self._token:
            raise PublishError(**self.told("publish", "NO_TOKEN"))
        about = self.call(self._api.whoami)
        if about.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise PublishError(**self.told("publish", "FORBIDDEN") | {"got": "a token that may only read"})
        owners = [about["name"], *(org["name"] for org in about.get("orgs", []))]
        if self.name.partition("/")[0] not in owners:
            raise PublishError(**self.told("publish", "FORBIDDEN") | {"got": f"the token of {about['name']}"})

    def create(self, *, is_private: bool) -> None:
        """Make the repository when it does not exist.

        Raises `PublishError` if it may not be made.
        """
        sdk = "docker" if self.kind == "space" else None  # it runs what its Dockerfile says
        create = partial(self._api.create_repo, self.name, repo_type=self.kind, exist_ok=True, space_sdk=sdk)
        self.call(lambda: create(private=is_private or None))

    def commit(self, title: str, description: str, change: Difference, *, parent: str) -> None:
        """Write and delete files in one commit on top of `parent`; the description may be empty.

        Raises:
            PublishError: If it is refused for good.
            TransientError: If no answer came, or there is a newer commit: look before trying again.
        """
        adding = [CommitOperationAdd(path, str(file)) for path, file in change.additions.items()]
        deleting = [CommitOperationDelete(path, is_folder=False) for path in change.deletions]
        told = {"commit_message": title, "commit_description": description or None}
        commit = partial(self._api.create_commit, self.name, [*adding, *deleting], repo_type=self.kind)
        self.ask(lambda: commit(parent_commit=parent, **told))

    def collect(self, title: str, *, is_private: bool) -> str:
        """Put the repository into its owner's collection of a title, made where there is none.

        Returns the collection's address. Raises `PublishError` if the Hub refuses.
        """
        owner, _, _ = self.name.partition("/")
        make = partial(self._api.create_collection, title, namespace=owner, exists_ok=True)
        try:
            slug = self.call(lambda: make(private=is_private)).slug
            self.call(lambda: self._api.add_collection_item(slug, self.name, self.kind, exists_ok=True))
        except PublishError as error:
            raise PublishError(**self.told("publish", "COLLECTION", said=error.got)) from error
        return f"{self.endpoint}/collections/{slug}"

    def refused(self, refusal: str, said: str) -> PublishError:
        """Return the error that the user reads."""
        return PublishError(**self.told("publish", refusal, said=said))


def check_access(repo: str, retries: HubRetryPolicy = PUBLISH_RETRIES) -> None:
    """Refuse early what publishing would refuse late: no token, a wrong one, or one that may not write.

    Raises `PublishError` if publishing cannot work.
    """
    with strict_client(retries) as traffic:
        RemoteRepo(repo, traffic).check_access()


def publish(
    staged: Publication,
    repo: str,
    *,
    is_private: bool,
    collection: str | None = None,
    retries: HubRetryPolicy = PUBLISH_RETRIES,
    announce: Announce = lambda found: None,
) -> Published:
    """Make a repository hold what is staged, in one commit, or in none when it does already.

    The repository is made when it does not exist; with `is_private` strangers must not see it. At last it is
    put into the owner's `collection` of that title, if there is to be one.

    Raises `PublishError` if it cannot be, in one sentence; then nothing half done is left.
    """
    sent: Difference | None = None

    def attempt() -> str:
        """Look, send what differs, look again; return the commit that holds all."""
        nonlocal sent, staged
        staged, seen = remote.beside(staged, is_private=is_private)
        missing = staged.difference(seen)
        if not missing:
            return seen.revision
        if missing != sent:
            announce(missing)
        sent = missing
        remote.commit(shown(staged.title), staged.changelog(missing), missing, parent=seen.revision)
        found = remote.look()
        lost = staged.difference(found)
        if lost:
            paths = listed([*lost.additions, *lost.deletions])
            raise PublishError(**remote.told("publish", "LOST", paths=paths))
        return found.revision

    with strict_client(retries, shows_progress=sys.stderr.isatty()) as traffic:
        remote = RemoteRepo(repo, traffic, staged.kind, staged.flag)
        remote.check_access()
        remote.create(is_private=is_private)
        revision = remote.call_on(attempt, lambda: traffic.succeeded["PUT"])
        place = remote.collect(collection, is_private=is_private) if collection else None
        folder = "" if remote.kind == "model" else f"{remote.kind}s/"
        page = f"{folder}{repo}" if remote.kind == "space" else f"{folder}{repo}/commit/{revision}"
        return Published(f"{remote.endpoint}/{page}", revision, sent, place)


def preview(
    staged: Wanted, repo: str, *, is_private: bool = False, retries: HubRetryPolicy = PUBLISH_RETRIES
) -> tuple[Wanted, Difference | None]:
    """Ask the Hub what publishing would change, and change nothing; a public repository needs no token.

    Returns:
        What would be published, settled beside what is there, and the difference; None when there is no such
        repository yet that this user may see.

    Raises `PublishError` if publishing would be refused, or the Hub does not answer.
    """
    with strict_client(retries) as traffic:
        remote = RemoteRepo(repo, traffic, staged.kind, staged.flag)
        if not remote.exists():
            return staged, None
        staged, seen = remote.call_on(lambda: remote.beside(staged, is_private=is_private))
        return staged, staged.difference(seen)
