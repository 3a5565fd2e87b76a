"""One model repository on the Hub, as publishing needs it: who may write, what is there, one commit.

The client is `huggingface_hub`, unmodified, but three of its habits are not wanted here. It waits for
ever, so every request gets a time limit. It retries some requests and not others, and once the answer
to a commit is lost it can commit twice, so it does not retry at all: `v8.hub.patience` does, after
looking at what is there. And its `upload_folder` may split into several commits, so `create_commit` is
called, with the parent commit it builds on: then the Hub itself refuses a second one.

Errors leave here as sentences. They are raised outside of the client's, whose requests hold the token.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx2
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    close_session,
    get_session,
    get_token,
    set_client_factory,
)
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from v8.errors import PublishError
from v8.hub.patience import PassingTroubleError, Patience

DEFAULT_ENDPOINT: Final = "https://huggingface.co"

MAX_NAME_LENGTH: Final = 96

_NAME_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPO_NAME: Final = re.compile(f"{_NAME_PART}/{_NAME_PART}")
_BUSY: Final = frozenset({408, 425, 429})
_RESET: Final = re.compile(r"\bt\s*=\s*(\d+)")
_TOKEN: Final = re.compile(r"[!-~]+")
_LATER: Final = "Nothing was published; mend it and repeat the same command"

_HOW_TO_LOG_IN: Final = (
    "Create one with write access at https://huggingface.co/settings/tokens, then set HF_TOKEN or run "
    "`hf auth login`"
)

_ONE_AT_A_TIME: Final = threading.Lock()

Found = TypeVar("Found")


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository.

    Args:
        blob_id: Git's sha1 of it, 40 hex digits; of the pointer for a large file.
        sha256: Of its content, 64 hex digits; None for files that git keeps itself.
        size_bytes: Of its content.
    """

    blob_id: str
    sha256: str | None
    size_bytes: int


@dataclass(frozen=True)
class RemoteState:
    """A repository at one commit.

    Args:
        revision: The commit, 40 hex digits.
        is_private: Whether strangers cannot see it.
        files: Every file by its path.
    """

    revision: str
    is_private: bool
    files: Mapping[str, RemoteFile]


class RemoteRepo:
    """A model repository, reached with one token. Use it inside `strict_client`.

    Args:
        name: `user/name`.
        token: The access token; it appears in no message.
        patience: How often to try again.
        endpoint: Address of the Hub; None takes HF_ENDPOINT, or the public one.
    """

    def __init__(self, name: str, token: str, patience: Patience, endpoint: str | None = None) -> None:
        check_repo_name(name)
        self.name = name
        self.endpoint = endpoint or hub_endpoint()
        self._token = token
        self._patience = patience
        self._api = HfApi(endpoint=self.endpoint, token=token)

    def check_access(self) -> None:
        """Refuse a token that is wrong, may not write, or belongs to somebody else.

        Raises:
            PublishError: If so, or if the Hub does not answer.
        """
        about = self._insist(self._api.whoami)
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
        self._insist(lambda: self._api.create_repo(self.name, private=is_private or None, exist_ok=True))
        if is_private and not self._insist(self.look).is_private:
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
        info = self._ask(lambda: self._api.model_info(self.name))
        revision = str(info.sha)
        tree = self._ask(lambda: list(self._api.list_repo_tree(self.name, recursive=True, revision=revision)))
        files = {entry.path: _remote_file(entry) for entry in tree if isinstance(entry, RepoFile)}
        return RemoteState(revision, bool(info.private), files)

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
        self._ask(
            lambda: self._api.create_commit(
                self.name, [*adding, *deleting], commit_message=title, parent_commit=parent
            )
        )

    def commit_url(self, revision: str) -> str:
        """Return the page of one commit."""
        return f"{self.endpoint}/{self.name}/commit/{revision}"

    def _insist(self, ask: Callable[[], Found]) -> Found:
        return self._patience.insist(self.name, lambda: self._ask(ask))

    def _ask(self, ask: Callable[[], Found]) -> Found:
        """Call the client, and turn everything it can raise into one of our two kinds of error."""
        try:
            return ask()
        except (PublishError, PassingTroubleError):
            raise
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, RuntimeError, ValueError) as error:
            trouble = self._understood(error)
        raise trouble  # outside of the handler, so that no request and no token hangs on it

    def _understood(self, error: Exception) -> PublishError | PassingTroubleError:
        root: BaseException = error
        for root in causes(error):  # uploads of large files wrap what went wrong
            if isinstance(root, PassingTroubleError):
                return root
            if isinstance(root, HfHubHTTPError):
                return self._refused(root)
        if isinstance(root, OfflineModeIsEnabled):
            return _failed(self.name, "HF_HUB_OFFLINE is set", "Unset HF_HUB_OFFLINE")
        got = self._scrubbed(f"{type(root).__name__}: {root}")
        if isinstance(root, httpx2.TransportError | ConnectionError | TimeoutError | RuntimeError):
            return PassingTroubleError(got)
        return _failed(self.name, got, _LATER)

    def _refused(self, error: HfHubHTTPError) -> PublishError | PassingTroubleError:
        status = error.response.status_code
        if status == 412:
            return PassingTroubleError("another commit came in between")
        if status == 401:
            return _no_valid_token()
        if status == 403:
            return self._forbidden("a token that may not write there")
        if status == 404:
            return PublishError(
                where=self.name,
                rule="the repository must be one that exists and that the token may see",
                got="the answer that there is none",
                fix="Check the name in --repo and the permissions of the token",
            )
        said = error.server_message or str(error).splitlines()[0]
        return _failed(self.name, self._scrubbed(f"status {status}: {said}"), _LATER)

    def _forbidden(self, got: str) -> PublishError:
        owner = self.name.partition("/")[0]
        return PublishError(
            where=self.name,
            rule=f"needs a token that may write repositories of {owner}",
            got=got,
            fix="Create one with write access at https://huggingface.co/settings/tokens and set HF_TOKEN, "
            "or choose a --repo of your own",
        )

    def _scrubbed(self, text: str) -> str:
        return scrubbed(text, self._token)


def hub_endpoint() -> str:
    """Return the address of the Hub: `HF_ENDPOINT`, read now and not at import, or the public one."""
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def find_token() -> str:
    """Return the user's access token: HF_TOKEN, or the one of `hf auth login`.

    Raises:
        PublishError: If there is none, or it has a form no token has.
    """
    token = get_token()
    if not token:
        raise PublishError(
            where="HF_TOKEN",
            rule="publishing needs an access token of the Hugging Face Hub",
            got="none",
            fix=_HOW_TO_LOG_IN,
        )
    if not may_be_token(token):
        raise _no_valid_token()
    return token


def may_be_token(text: str) -> bool:
    """Say whether a text has the form of a token.

    A header with other characters makes the HTTP client quote the whole token in its error.
    """
    return bool(_TOKEN.fullmatch(text))


def scrubbed(text: str, token: str | None) -> str:
    """Take the token out of a text that somebody else wrote, and make it one short line."""
    shown = text.replace(token, "(token)") if token else text
    return " ".join(shown.split())[:300]


def check_repo_name(name: str) -> None:
    """Refuse what cannot be the name of a repository.

    Raises:
        PublishError: If it is no `user/name` that the Hub allows.
    """
    is_allowed = len(name) <= MAX_NAME_LENGTH and not name.endswith(".git")
    if not is_allowed or not _REPO_NAME.fullmatch(name) or "--" in name or ".." in name:
        raise PublishError(
            where="--repo",
            rule="is user/name in letters, digits, '-', '_' and '.', at most 96 characters",
            got=repr(name)[:120],
            fix="Write for example someone/crypto-forecasters",
        )


@contextmanager
def strict_client(timeout_s: float) -> Iterator[StrictCount]:
    """Give the client time limits and take its retries away, until the block ends.

    The client is one for the whole process, so threads wait here for each other.

    Args:
        timeout_s: Longest silence of one request, in seconds.
    """
    with _ONE_AT_A_TIME:
        found = get_session()
        hooks, found_timeout = found.event_hooks, found.timeout
        count = StrictCount()
        set_client_factory(lambda: _StrictClient(timeout_s, count, event_hooks=hooks))
        try:
            yield count
        finally:
            set_client_factory(
                lambda: httpx2.Client(event_hooks=hooks, follow_redirects=True, timeout=found_timeout)
            )
            close_session()


@contextmanager
def progress_bars(*, is_shown: bool) -> Iterator[None]:
    """Show or hide the client's progress bars until the block ends; they are for terminals only."""
    was_hidden = are_progress_bars_disabled()
    if not is_shown:
        disable_progress_bars()
    try:
        yield
    finally:
        if not was_hidden:
            enable_progress_bars()


@dataclass
class StrictCount:
    """How many large files have been stored so far."""

    num_stored: int = 0


class _StrictClient(httpx2.Client):
    def __init__(self, timeout_s: float, count: StrictCount, **options: Any) -> None:
        super().__init__(follow_redirects=True, timeout=timeout_s, **options)
        self._limits = httpx2.Timeout(timeout_s).as_dict()
        self._count = count

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        # Some calls of the Hub's client ask for no limit; there is one for them, too.
        request.extensions = {**request.extensions, "timeout": self._limits}
        try:
            response = super().send(request, **options)
        except httpx2.TransportError as error:
            trouble = PassingTroubleError(f"no answer ({type(error).__name__})")
        else:
            if response.status_code not in _BUSY and response.status_code < 500:
                self._count.num_stored += request.method == "PUT" and response.is_success
                return response
            trouble = PassingTroubleError(f"status {response.status_code}", _asked_wait_s(response))
            response.close()
        raise trouble


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it was raised from or during, innermost last."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _asked_wait_s(response: httpx2.Response) -> float | None:
    """Return the pause the Hub asks for, from `Retry-After` or its rate limit header, in seconds."""
    retry_after = response.headers.get("retry-after", "").strip()
    if retry_after.isdecimal():
        return float(retry_after)
    reset = _RESET.search(response.headers.get("ratelimit", "")) if response.status_code == 429 else None
    return float(reset[1]) if reset else None


def _remote_file(entry: RepoFile) -> RemoteFile:
    return RemoteFile(entry.blob_id, entry.lfs.sha256 if entry.lfs else None, entry.size)


def _no_valid_token() -> PublishError:
    return PublishError(
        where="HF_TOKEN",
        rule="must be a valid access token of the Hugging Face Hub",
        got="one that the Hub does not know",
        fix=_HOW_TO_LOG_IN,
    )


def _failed(where: str, got: str, fix: str) -> PublishError:
    return PublishError(where=where, rule="the Hub must take the commit", got=got, fix=fix)
