"""One model repository on the Hub, as publishing needs it: who may write, what is there, one commit.

The client's `upload_folder` may split into several commits, so `create_commit` is called, with the parent
commit it builds on: then the Hub itself refuses a second one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.hf_api import RepoFile

from v8.errors import PublishError
from v8.hub.client import TOKEN_PAGE, HubRepo, Refusal
from v8.hub.retries import RetryPolicy

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


class WritableRepo(HubRepo):
    """A model repository to publish into.

    Args:
        name: `user/name`.
        retries: How often to ask again.

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

        Args:
            is_private: Whether strangers must not see it; an existing public one is then refused.

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
        """Write and delete files in one commit on top of `parent`.

        Args:
            title: First line of its message.
            additions: Local file per path.
            deletions: Paths to remove.
            parent: The commit it builds on, 40 hex digits; the Hub refuses when there is a newer one.

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

    def commit_url(self, revision: str) -> str:
        """Return the page of one commit."""
        return f"{self.endpoint}/{self.name}/commit/{revision}"

    def refused(self, refusal: Refusal, said: str) -> PublishError:
        """Return the error that the user reads."""
        if refusal is Refusal.TOKEN:
            return PublishError(
                where="HF_TOKEN",
                rule="must be a valid access token of the Hugging Face Hub",
                got="one that the Hub does not know",
                fix=_HOW_TO_LOG_IN,
            )
        if refusal is Refusal.FORBIDDEN:
            return self._forbidden("a token that may not write there")
        if refusal in (Refusal.REPOSITORY, Refusal.REVISION, Refusal.FILE):
            return PublishError(
                where=self.name,
                rule="the repository must be one that exists and that the token may see",
                got="the answer that there is none",
                fix="Check the name in --repo and the permissions of the token",
            )
        fix = "Nothing was published; mend it and repeat the same command"
        if refusal is Refusal.OFFLINE:
            fix = "Unset HF_HUB_OFFLINE"
        return PublishError(where=self.name, rule="the Hub must take the commit", got=said, fix=fix)

    def _forbidden(self, got: str) -> PublishError:
        owner = self.name.partition("/")[0]
        return PublishError(
            where=self.name,
            rule=f"needs a token that may write repositories of {owner}",
            got=got,
            fix=f"{_CREATE_ONE} and set HF_TOKEN, or choose a --repo of your own",
        )
