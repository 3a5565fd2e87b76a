"""One revision of a published run on the Hub, as pulling needs it: asked with patience, kept in the cache.

The client is `huggingface_hub`, unmodified. Its downloads serve what is in its cache when the Hub refuses,
so whether a revision may be read is asked first. Errors leave here as sentences, raised outside of the
client's, whose requests hold the token. Use it inside `v8.hub.remote.strict_client`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import httpx2
from huggingface_hub import (
    HfApi,
    constants,
    get_hf_file_metadata,
    get_token,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile

from v8.errors import ArtifactError, PublishError, PullError
from v8.hub.manifest import MANIFEST_FILE
from v8.hub.patience import PassingTroubleError, Patience
from v8.hub.remote import causes, hub_endpoint, may_be_token, scrubbed

MAX_MANIFEST_BYTES: Final = 4 << 20
"""A larger manifest is refused unread; 40 series need 40 kB."""

MAX_LISTED_FILES: Final = 5_000
"""Files of a repository that are looked at; a published fleet of 40 has 163."""

_TOKEN_PAGE: Final = "https://huggingface.co/settings/tokens"  # noqa: S105 - an address

Found = TypeVar("Found")


class UnreachableError(PullError):
    """The Hub does not answer; the cache may."""


class ReadableRevision:
    """One revision of one repository.

    Args:
        repo: `user/name`.
        revision: Branch, tag or commit.
        patience: How often to ask again.

    Raises:
        PullError: If the user's token has a form that no token has.
    """

    def __init__(self, repo: str, revision: str, patience: Patience) -> None:
        self.repo, self.revision = repo, revision
        self.cache = cache_folder()
        self._endpoint, self._token = hub_endpoint(), _find_token()
        self._patience = patience

    def require_manifest(self) -> None:
        """Refuse a revision that does not exist, may not be read, or has no manifest of a sensible size.

        The download would serve a copy from the cache instead of saying so.
        """
        url = hf_hub_url(self.repo, MANIFEST_FILE, revision=self.revision, endpoint=self._endpoint)
        found = self._insist(
            lambda: get_hf_file_metadata(url, token=self._token or False, endpoint=self._endpoint)
        )
        if found.size is None or found.size > MAX_MANIFEST_BYTES:
            raise ArtifactError(
                where=f"{self.repo}, {MANIFEST_FILE}",
                rule=f"a manifest has at most {MAX_MANIFEST_BYTES:,} bytes",
                got=f"{found.size:,}" if found.size else "no size",
                fix="Pull from a repository that v8 published",
            )

    def file(self, path: str, revision: str, *, is_anew: bool = False) -> Path:
        """Download a file into the cache, unless it is there."""
        return self._insist(
            lambda: Path(
                hf_hub_download(
                    self.repo,
                    path,
                    revision=revision,
                    cache_dir=self.cache,
                    endpoint=self._endpoint,
                    token=self._token or False,
                    force_download=is_anew,
                )
            )
        )

    def listing(self, commit: str) -> dict[str, RepoFile]:
        """Return the files of a commit by their paths, as the Hub lists them."""
        api = HfApi(endpoint=self._endpoint, token=self._token or False)

        def ask() -> dict[str, RepoFile]:
            entries = api.list_repo_tree(self.repo, recursive=True, revision=commit)
            files = islice((entry for entry in entries if isinstance(entry, RepoFile)), MAX_LISTED_FILES)
            return {file.path: file for file in files}

        return self._insist(ask)

    def cached_manifest(self) -> Path | None:
        """Return the manifest of the revision as the cache knows it."""
        found = try_to_load_from_cache(self.repo, MANIFEST_FILE, cache_dir=self.cache, revision=self.revision)
        return Path(found) if isinstance(found, str) else None

    def _insist(self, ask: Callable[[], Found]) -> Found:
        try:
            return self._patience.insist(self.repo, lambda: self._ask(ask))
        except PublishError as error:
            got = error.got
        raise UnreachableError(
            where=self.repo,
            rule="the Hub must answer",
            got=got,
            fix="Repeat the same command later; what was downloaded is kept",
        )

    def _ask(self, ask: Callable[[], Found]) -> Found:
        """Call the client, and turn everything it can raise into one of our kinds of error."""
        try:
            return ask()
        except (PassingTroubleError, PullError):
            raise
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, RuntimeError, ValueError) as error:
            trouble = self._understood(error)
        raise trouble  # outside of the handler, so that no request and no token hangs on it

    def _understood(self, error: BaseException) -> PullError | PassingTroubleError:
        chain = list(causes(error))
        for cause in chain:
            if isinstance(cause, PassingTroubleError):
                return cause
            if isinstance(cause, HfHubHTTPError):
                return self._refused(cause)
        if any(isinstance(cause, httpx2.TransportError | ConnectionError | TimeoutError) for cause in chain):
            return PassingTroubleError(f"no answer ({type(error).__name__})")
        said = self._scrubbed(f"{type(error).__name__}: {error}")
        return self._failed(said, "Repeat the same command later; what was downloaded is kept")

    def _refused(self, error: HfHubHTTPError) -> PullError:
        status = error.response.status_code
        if isinstance(error, RevisionNotFoundError | RemoteEntryNotFoundError):
            return self._lacking(is_revision=isinstance(error, RevisionNotFoundError))
        if isinstance(error, GatedRepoError) or status == 403:
            return self._forbidden("the answer that this user may not read it", "Ask its owner for access")
        if isinstance(error, RepositoryNotFoundError) or status == 404:
            sent = "" if self._token else ", and no token was sent"
            fix = "Check its name, the path if a folder was meant, and whose the token is"
            if not self._token:
                fix = "Check its name, or the path if a folder was meant; to read a private one set HF_TOKEN"
            return self._forbidden(f"the answer that there is none{sent}", fix)
        if status == 401:
            return _wrong_token()
        said = self._scrubbed(error.server_message or str(error).splitlines()[0])
        return self._failed(f"status {status}: {said}", "Repeat the same command later")

    def _lacking(self, *, is_revision: bool) -> PullError:
        if is_revision:
            return PullError(
                where=f"{self.repo}, revision {self.revision}",
                rule="must be a branch, a tag or a whole commit of the repository",
                got="the answer that there is none",
                fix=f"Look at {self._endpoint}/{self.repo}/commits/main, or leave it out for the newest",
            )
        return PullError(
            where=self.repo,
            rule=f"must be a run that v8 published, with a {MANIFEST_FILE} and all that it lists",
            got="the answer that a file is not there",
            fix="Check the name and the revision",
        )

    def _forbidden(self, got: str, fix: str) -> PullError:
        rule = "must be a repository that exists and that this user may read"
        return PullError(where=self.repo, rule=rule, got=got, fix=fix)

    def _failed(self, got: str, fix: str) -> PullError:
        return PullError(where=self.repo, rule="the Hub must hand out the model", got=got, fix=fix)

    def _scrubbed(self, text: str) -> str:
        return scrubbed(text, self._token)


def cache_folder() -> Path:
    """Return the client's cache, from the environment as it is now and not as it was at import."""
    if chosen := os.environ.get("HF_HUB_CACHE"):
        return Path(chosen).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return Path(constants.HF_HUB_CACHE)


def _find_token() -> str | None:
    """Return the user's token, or None: what is public needs none."""
    token = get_token()
    if token and not may_be_token(token):
        raise _wrong_token()
    return token or None


def _wrong_token() -> PullError:
    return PullError(
        where="HF_TOKEN",
        rule="must be a valid access token of the Hugging Face Hub",
        got="one that the Hub does not know",
        fix=f"Unset it for public models, or create one at {_TOKEN_PAGE}",
    )
