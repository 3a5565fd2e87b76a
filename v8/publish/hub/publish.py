"""Publishing: upload staged files to a repository of the Hub, in one commit or none.

A try reads the state of the repository, sends the differences as one commit on top of that state, and reads
the state again. After any trouble the next try begins by reading the state, so it finds a commit whose answer
got lost. The differences are announced before anything is sent.

The client's `upload_folder` may make several commits. So `create_commit` is called, with the parent commit:
then the Hub itself refuses a second commit on the same parent.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Self, TypeAlias, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.hf_api import RepoFile

from v8.base.errors import ArtifactError, PublishError, listed, shown
from v8.forecaster.model_file import MAX_TEXT_BYTES
from v8.publish.hub import TOKEN_PAGE
from v8.publish.hub.client import HubRepo, HubRetryPolicy, Kind, Refusal, is_listed, strict_client
from v8.publish.hub.places import series_of

PUBLISH_RETRIES: Final = HubRetryPolicy()

_TOKEN_FIX: Final = f"Create one with write access at {TOKEN_PAGE}, then set HF_TOKEN or run `hf auth login`"

Announce: TypeAlias = Callable[["Difference"], None]
"""Gets the difference before it is sent."""


@dataclass(frozen=True)
class RemoteState:
    """The state of a repository at one commit."""

    revision: str  # the commit, 40 hex digits
    is_private: bool
    files: Mapping[str, RepoFile]  # every file by its path, as the Hub lists it


@dataclass(frozen=True)
class Difference:
    """What publishing changes in a repository."""

    additions: Mapping[str, Path]  # local file per path that is new or has other content
    deletions: tuple[str, ...]  # paths that are removed
    existing: frozenset[str]  # every path that the repository holds now

    def __bool__(self) -> bool:
        return bool(self.additions or self.deletions)

    @property
    def num_bytes(self) -> int:
        """Size of all additions in bytes."""
        return sum(file.stat().st_size for file in self.additions.values())

    @property
    def files(self) -> dict[str, list[str]]:
        """Paths that are added, changed, kept and removed."""
        sent = set(self.additions)
        removed = set(self.deletions)
        existing = set(self.existing)
        return {
            "added": sorted(sent - existing),
            "changed": sorted(sent & existing),
            "kept": sorted(existing - sent - removed),
            "removed": sorted(removed),
        }

    @property
    def models(self) -> dict[str, list[str]]:
        """Series that are added, changed, kept and removed; one with files of several kinds is changed."""
        changes_by_series: dict[str, set[str]] = {}
        for change, paths in self.files.items():
            for path in paths:
                series = series_of(path)
                if series:
                    changes_by_series.setdefault(series, set()).add(change)
        series_by_change: dict[str, list[str]] = {change: [] for change in self.files}
        for series, changes in sorted(changes_by_series.items()):
            change = changes.pop() if len(changes) == 1 else "changed"
            series_by_change[change].append(series)
        return series_by_change


@dataclass(frozen=True)
class Published:
    """The result of publishing."""

    url: str
    revision: str  # the commit that holds the published files
    sent: Difference | None  # what was sent; None if the repository already held all files
    collection: str | None = None  # address of the collection that it was added to, if any


class Publication:
    """Local files that a repository is to hold."""

    kind: ClassVar[Kind] = "model"
    flag: ClassVar[str] = "param:repo"
    ordinary: ClassVar[frozenset[str]]
    """Files that a repository may have although v8 never published into it: the Hub creates them."""
    marker: str  # a file that every repository has that v8 published into
    rule: ClassVar[str]  # which repositories may be published into, as a clause for errors
    folder: Path  # the folder of the files
    paths: tuple[str, ...]  # paths of the files, relative, with forward slashes
    title: str  # of the commit

    def changelog(self, missing: Difference) -> str:
        """Return the description of the commit; it may be empty."""
        return ""

    def require_ours(self, remote: "RemoteRepo", state: RemoteState) -> None:
        """Raise a `PublishError` if the repository holds another project, which must not be overwritten."""
        foreign = sorted(path for path in state.files if path not in self.ordinary)
        if foreign and self.marker not in state.files:
            raise PublishError(
                where=remote.name,
                rule=self.rule,
                got=f"one with other files: {listed(foreign)}",
                fix=f"Choose another name in {remote.flag}",
            )

    def merged(self, remote: "RemoteRepo", state: RemoteState) -> Self:
        """Return what the repository is to hold: this, merged with the files that stay there.

        Raises:
            PublishError: If nothing may be published into the repository.
        """
        self.require_ours(remote, state)
        return self

    def is_removed(self, path: str) -> bool:
        """Return whether a file of the repository that is not published now is removed from it."""
        return False

    def difference(self, state: RemoteState) -> Difference:
        """Compare the local files with those of the repository, by content."""
        files = {path: self.folder / path for path in self.paths}
        additions = {path: file for path, file in files.items() if not is_listed(file, state.files.get(path))}
        others = state.files.keys() - files.keys()
        deletions = sorted(path for path in others if self.is_removed(path))
        return Difference(additions, tuple(deletions), frozenset(state.files))


PublicationT = TypeVar("PublicationT", bound=Publication)


class RemoteRepo(HubRepo):
    """A repository to compare with (a public one needs no token) and to publish into."""

    def exists(self) -> bool:
        """Return whether the repository exists and this user may see it."""
        return self.request_with_retries(lambda: self._api.repo_exists(self.name, repo_type=self.kind))

    def read_state(self) -> RemoteState:
        """Return what the repository holds now.

        Raises:
            PublishError: If it does not exist, or the token may not see it.
            TransientError: If the Hub does not answer.
        """
        info = self.request(lambda: self._api.repo_info(self.name, repo_type=self.kind))
        revision = str(info.sha)
        files = self.request(lambda: self.files(revision))
        return RemoteState(revision=revision, is_private=bool(info.private), files=files)

    def merge(self, staged: PublicationT, *, is_private: bool) -> tuple[PublicationT, RemoteState]:
        """Read the state of the repository, and merge what is staged with it.

        Raises:
            PublishError: If it must be private and is not, or nothing may be published into it.
        """
        state = self.read_state()
        if is_private and not state.is_private:
            raise PublishError(
                where=self.name,
                rule="with param:private the repository must be private",
                got="a public one that exists already",
                fix="Make it private in its settings on the Hub, choose another name, or drop param:private",
            )
        return staged.merged(self, state), state

    def text(self, path: str, state: RemoteState, most_bytes: int = MAX_TEXT_BYTES) -> Path:
        """Download a file of the repository and compare it with the id that the Hub lists.

        Raises:
            ArtifactError: If it is too long, or arrives with other content twice.
        """
        entry = state.files[path]
        location = f"{self.name}, {path}"
        if entry.size > most_bytes:
            raise ArtifactError(
                where=location,
                rule=f"has at most {most_bytes:,} bytes",
                got=f"{entry.size:,}",
                fix="Publish again",
            )
        for is_forced in (False, True):
            file = self.file(path, state.revision, is_forced=is_forced)
            if is_listed(file, entry):
                return file
        raise ArtifactError(
            where=location,
            rule="must arrive as the Hub lists it",
            got="other content, twice",
            fix="Repeat the same command",
        )

    def check_access(self) -> None:
        """Check that there is a token, that it is valid and may write, and whose it is.

        Raises:
            PublishError: If there is none, it is wrong or may not write, or the Hub does not answer.
        """
        if not self._token:
            raise PublishError(
                where="HF_TOKEN",
                rule="publishing needs an access token of the Hugging Face Hub",
                got="none",
                fix=_TOKEN_FIX,
            )
        user = self.request_with_retries(self._api.whoami)
        if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise self._permission_error("a token that may only read")
        owners = [user["name"], *(organisation["name"] for organisation in user.get("orgs", []))]
        if self.owner not in owners:
            raise self._permission_error(f"the token of {user['name']}")

    def create(self, *, is_private: bool) -> None:
        """Create the repository if it does not exist.

        Raises:
            PublishError: If the Hub refuses.
        """
        sdk = "docker" if self.kind == "space" else None  # a Space runs its Dockerfile

        def create() -> object:
            return self._api.create_repo(
                self.name,
                repo_type=self.kind,
                exist_ok=True,
                space_sdk=sdk,
                private=is_private or None,
            )

        self.request_with_retries(create)

    def commit(self, title: str, description: str, change: Difference, *, parent: str) -> None:
        """Write and delete files in one commit on top of `parent`; the description may be empty.

        Raises:
            PublishError: If the Hub refuses for good.
            TransientError: If no answer came, or there is a newer commit; read the state before trying
                again.
        """
        additions = [CommitOperationAdd(path, str(file)) for path, file in change.additions.items()]
        deletions = [CommitOperationDelete(path, is_folder=False) for path in change.deletions]

        def commit() -> object:
            return self._api.create_commit(
                self.name,
                [*additions, *deletions],
                commit_message=title,
                commit_description=description or None,
                repo_type=self.kind,
                parent_commit=parent,
            )

        self.request(commit)

    def add_to_collection(self, title: str, *, is_private: bool) -> str:
        """Add the repository to its owner's collection of a title, which is created if there is none.

        Returns:
            The address of the collection.

        Raises:
            PublishError: If the Hub refuses.
        """

        def create_collection() -> str:
            collection = self._api.create_collection(
                title, namespace=self.owner, exists_ok=True, private=is_private
            )
            return collection.slug

        try:
            slug = self.request_with_retries(create_collection)
            self.request_with_retries(
                lambda: self._api.add_collection_item(slug, self.name, self.kind, exists_ok=True)
            )
        except PublishError as error:
            raise PublishError(
                where="param:collection",
                rule=f"the Hub must put {self.name} into the collection",
                got=error.got,
                fix="It is published; repeat the same command",
            ) from error
        return f"{self.endpoint}/collections/{slug}"

    def refusal_error(self, refusal: Refusal, message: str) -> PublishError:
        """Return the error that the user reads; `message` is the Hub's own."""
        if refusal is Refusal.TOKEN:
            return PublishError(
                where="HF_TOKEN",
                rule="must be a valid access token of the Hugging Face Hub",
                got="one that the Hub does not know",
                fix=_TOKEN_FIX,
            )
        if refusal is Refusal.FORBIDDEN:
            return self._permission_error("a token that may not write there")
        if refusal in (Refusal.REPOSITORY, Refusal.REVISION, Refusal.FILE):
            return PublishError(
                where=self.name,
                rule="the repository must be one that exists and that the token may see",
                got="the answer that there is none",
                fix=f"Check the name in {self.flag} and the permissions of the token",
            )
        fix = "Nothing was published; fix it and repeat the same command"
        if refusal is Refusal.OFFLINE:
            fix = "Unset HF_HUB_OFFLINE"
        return PublishError(where=self.name, rule="the Hub must take the commit", got=message, fix=fix)

    def _permission_error(self, got: str) -> PublishError:
        return PublishError(
            where=self.name,
            rule=f"needs a token that may write repositories of {self.owner}",
            got=got,
            fix=f"Create one with write access at {TOKEN_PAGE} and set HF_TOKEN, or choose a {self.flag} of "
            "your own",
        )


def check_access(repo: str, retries: HubRetryPolicy = PUBLISH_RETRIES) -> None:
    """Check early that the user may publish: that there is a valid token, and that it may write.

    Raises:
        PublishError: If publishing cannot work.
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
    announce: Announce = lambda difference: None,
) -> Published:
    """Publish what is staged, in one commit, or in none if the repository already holds it.

    Args:
        staged: The files.
        repo: `user/name`; the repository is created if it does not exist.
        is_private: Whether the repository must be private.
        collection: Title of the owner's collection that the repository is added to; None for none.
        retries: How long to wait for the Hub.
        announce: Gets the difference before it is sent.

    Raises:
        PublishError: If it cannot be published; then the repository is as it was.
    """
    sent: Difference | None = None

    def attempt() -> str:
        """Read the state, send the difference, read again; return the commit that holds all files."""
        nonlocal sent, staged
        staged, state = remote.merge(staged, is_private=is_private)
        missing = staged.difference(state)
        if not missing:
            return state.revision
        if missing != sent:
            announce(missing)
        sent = missing
        remote.commit(shown(staged.title), staged.changelog(missing), missing, parent=state.revision)
        new_state = remote.read_state()
        lost = staged.difference(new_state)
        if lost:
            raise PublishError(
                where=remote.name,
                rule="must hold what was sent",
                got=f"other content in {listed([*lost.additions, *lost.deletions])}",
                fix="Somebody else may be writing to it; repeat the same command",
            )
        return new_state.revision

    with strict_client(retries, shows_progress=sys.stderr.isatty()) as traffic:
        remote = RemoteRepo(repo, traffic, staged.kind, staged.flag)
        remote.check_access()
        remote.create(is_private=is_private)
        revision = remote.run_with_retries(attempt, lambda: traffic.succeeded["PUT"])
        collection_url = None
        if collection:
            collection_url = remote.add_to_collection(collection, is_private=is_private)
        folder = "" if remote.kind == "model" else f"{remote.kind}s/"
        page = f"{folder}{repo}" if remote.kind == "space" else f"{folder}{repo}/commit/{revision}"
        return Published(
            url=f"{remote.endpoint}/{page}", revision=revision, sent=sent, collection=collection_url
        )


def preview(
    staged: PublicationT, repo: str, *, is_private: bool = False, retries: HubRetryPolicy = PUBLISH_RETRIES
) -> tuple[PublicationT, Difference | None]:
    """Find out what publishing would change, and change nothing; a public repository needs no token.

    Returns:
        What would be published, merged with what stays in the repository; and the difference, None if there
        is no such repository yet that this user may see.

    Raises:
        PublishError: If publishing would be refused, or the Hub does not answer.
    """
    with strict_client(retries) as traffic:
        remote = RemoteRepo(repo, traffic, staged.kind, staged.flag)
        if not remote.exists():
            return staged, None
        staged, state = remote.run_with_retries(lambda: remote.merge(staged, is_private=is_private))
        return staged, staged.difference(state)
