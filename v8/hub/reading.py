"""One revision of a published run on the Hub, as pulling needs it: asked with patience, kept in the cache.

The client's downloads serve what is in its cache when the Hub refuses, so whether a revision may be read is
asked first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache
from huggingface_hub.hf_api import RepoFile

from v8.errors import ArtifactError, PullError, V8Error
from v8.hub.client import TOKEN_PAGE, HubRepo, Refusal
from v8.hub.manifest import MANIFEST_FILE
from v8.hub.retries import RetryPolicy, UnreachableError

MAX_MANIFEST_BYTES: Final = 4 << 20
"""A larger manifest is refused unread; 40 series need 40 kB."""

MAX_LISTED_FILES: Final = 5_000
"""Files of a repository that are looked at; a published fleet of 40 has 163."""


class ReadableRevision(HubRepo):
    """One revision of one repository.

    Args:
        repo: `user/name`.
        revision: Branch, tag or commit.
        retries: How often to ask again.

    Raises:
        PullError: If the user's token has a form that no token has.
    """

    def __init__(self, repo: str, revision: str, retries: RetryPolicy) -> None:
        super().__init__(repo, retries)
        self.revision, self.cache = revision, cache_folder()

    def require_manifest(self) -> None:
        """Refuse a revision that does not exist, may not be read, or has no manifest of a sensible size.

        The download would serve a copy from the cache instead of saying so.
        """
        url = hf_hub_url(self.name, MANIFEST_FILE, revision=self.revision, endpoint=self.endpoint)
        found = self.insist(lambda: self._api.get_hf_file_metadata(url=url))
        if found.size is None or found.size > MAX_MANIFEST_BYTES:
            raise ArtifactError(
                where=f"{self.name}, {MANIFEST_FILE}",
                rule=f"a manifest has at most {MAX_MANIFEST_BYTES:,} bytes",
                got=f"{found.size:,}" if found.size else "no size",
                fix="Pull from a repository that v8 published",
            )

    def file(self, path: str, revision: str, *, is_anew: bool = False) -> Path:
        """Download a file into the cache, unless it is there."""
        found = self.insist(
            lambda: self._api.hf_hub_download(
                self.name, path, revision=revision, cache_dir=self.cache, force_download=is_anew
            )
        )
        return Path(found)

    def listing(self, commit: str) -> dict[str, RepoFile]:
        """Return the files of a commit by their paths, as the Hub lists them."""
        return self.insist(lambda: self.files(commit, MAX_LISTED_FILES))

    def cached_manifest(self) -> Path | None:
        """Return the manifest of the revision as the cache knows it."""
        found = try_to_load_from_cache(self.name, MANIFEST_FILE, cache_dir=self.cache, revision=self.revision)
        return Path(found) if isinstance(found, str) else None

    def refused(self, refusal: Refusal, said: str) -> V8Error:
        """Return the error that the user reads."""
        if refusal is Refusal.TOKEN:
            return PullError(
                where="HF_TOKEN",
                rule="must be a valid access token of the Hugging Face Hub",
                got="one that the Hub does not know",
                fix=f"Unset it for public models, or create one at {TOKEN_PAGE}",
            )
        if refusal is Refusal.REVISION:
            return PullError(
                where=f"{self.name}, revision {self.revision}",
                rule="must be a branch, a tag or a whole commit of the repository",
                got="the answer that there is none",
                fix=f"Look at {self.endpoint}/{self.name}/commits/main, or leave it out for the newest",
            )
        rule, got, fix = self._refused_repository(refusal, said)
        kind = UnreachableError if refusal is Refusal.OFFLINE else PullError
        return kind(where=self.name, rule=rule, got=got, fix=fix)

    def _refused_repository(self, refusal: Refusal, said: str) -> tuple[str, str, str]:
        rule = "must be a repository that exists and that this user may read"
        if refusal is Refusal.FORBIDDEN:
            return rule, "the answer that this user may not read it", "Ask its owner for access"
        if refusal is Refusal.REPOSITORY and self._token:
            fix = "Check its name, the path if a folder was meant, and whose the token is"
            return rule, "the answer that there is none", fix
        if refusal is Refusal.REPOSITORY:
            fix = "Check its name, or the path if a folder was meant; to read a private one set HF_TOKEN"
            return rule, "the answer that there is none, and no token was sent", fix
        if refusal is Refusal.FILE:
            rule = f"must be a run that v8 published, with a {MANIFEST_FILE} and all that it lists"
            return rule, "the answer that a file is not there", "Check the name and the revision"
        fix = "Repeat the same command later; what was downloaded is kept"
        return "the Hub must hand out the model", said, fix


def cache_folder() -> Path:
    """Return the client's cache, from the environment as it is now and not as it was at import."""
    if chosen := os.environ.get("HF_HUB_CACHE"):
        return Path(chosen).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return Path(constants.HF_HUB_CACHE)
