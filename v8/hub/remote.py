"""A repository to publish into: what lies there now, which of its models stay, and the one commit."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.hf_api import RepoFile

from v8.artifacts.metadata import METADATA_FILE, read_metadata
from v8.artifacts.model_file import MAX_TEXT_BYTES
from v8.errors import ArtifactError, PublishError, listed
from v8.hub.client import HubRepo, Refusal, RetryPolicy, is_listed
from v8.hub.endpoint import TOKEN_PAGE
from v8.hub.manifest import CARD_FILE, MANIFEST_FILE, ListedFile, read_manifest, series_folder, series_of
from v8.hub.staging import Kept, Staged
from v8.hub.transport import Traffic

_ORDINARY: Final = frozenset({".gitattributes", CARD_FILE, "LICENSE", "LICENSE.md", "LICENSE.txt"})
"""What a repository without a published run may hold: what the Hub's own page creates."""

SPACE_SDK: Final = "docker"
"""A Space runs what its Dockerfile says."""

_CREATE_ONE: Final = f"Create one with write access at {TOKEN_PAGE}"
_HOW_TO_LOG_IN: Final = f"{_CREATE_ONE}, then set HF_TOKEN or run `hf auth login`"


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
                rule="with --private the repository must be private",
                got="a public one that exists already",
                fix="Make it private in its settings on the Hub, choose another name, or drop --private",
            )

    def beside_kept(self, staged: Staged, seen: RemoteState, *, is_pruning: bool) -> Staged:
        """Return what the repository is to hold: the staged run, beside the models that stay.

        Raises:
            PublishError: If it holds another project, or models that stay cannot be told of.
        """
        strange = sorted(path for path in seen.files if path not in _ORDINARY)
        if strange and MANIFEST_FILE not in seen.files:  # no card is written over somebody's other project
            raise PublishError(
                where=self.name,
                rule="a run goes into a new repository, or one that holds a published run",
                got=f"one with other files: {listed(strange)}",
                fix="Choose another name in --repo",
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
                fix="Publish the run it is of again, or remove what this run lacks with --prune",
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
        if entry.size > MAX_TEXT_BYTES:
            raise ArtifactError(
                where=f"{self.name}, {path}",
                rule=f"has at most {MAX_TEXT_BYTES:,} bytes",
                got=f"{entry.size:,}",
                fix="Publish again",
            )
        for is_anew in (False, True):
            file = self.file(path, seen.revision, is_anew=is_anew)
            if is_listed(file, entry):
                return file
        raise ArtifactError(
            where=f"{self.name}, {path}",
            rule="must arrive as the Hub lists it",
            got="other content, twice",
            fix="Repeat the same command",
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

    Raises:
        PublishError: If there is no token, or it has a form no token has.
    """

    def __init__(self, name: str, retries: RetryPolicy, traffic: Traffic) -> None:
        super().__init__(name, retries, traffic)
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
            PublishError: If it may not be made.
        """
        sdk = SPACE_SDK if self.kind == "space" else None
        self.insist(
            lambda: self._api.create_repo(
                self.name, repo_type=self.kind, private=is_private or None, exist_ok=True, space_sdk=sdk
            )
        )

    def commit(
        self,
        title: str,
        description: str,
        additions: Mapping[str, Path],
        deletions: Iterable[str],
        *,
        parent: str,
    ) -> None:
        """Write local files and delete paths in one commit on top of `parent`; the description may be empty.

        Raises:
            PublishError: If it is refused for good.
            PassingTroubleError: If no answer came, or there is a newer commit: look before trying again.
        """
        adding = [CommitOperationAdd(path, str(file)) for path, file in additions.items()]
        deleting = [CommitOperationDelete(path, is_folder=False) for path in deletions]
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
