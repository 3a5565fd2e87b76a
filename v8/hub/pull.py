"""Pulling models: the revision first, then its manifest, then only the files that are needed, all checked.

1. One request resolves the revision to a commit; everything after it is asked of that commit.
2. `manifest.json` is read as from a stranger: its names cannot leave the folder (`v8.hub.layout`).
3. The commit's own list of files is compared with the manifest before anything large travels.
4. What is in the client's cache and has the manifest's sha256 is taken from there. The rest is
   downloaded and compared, because the client compares nothing; a file that arrives damaged is asked for
   once more, and a damaged one in the cache is replaced by the next call.
5. Model files are looked into without loading them (`v8.artifacts.model_file`).

Nothing is written outside the client's cache. Without an answer from the Hub, or with HF_HUB_OFFLINE, a
revision that the cache holds whole is used and named; a part of one is refused. The client's downloads serve
what is in its cache when the Hub refuses, so whether a revision may be read is asked first.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from huggingface_hub import hf_hub_url, try_to_load_from_cache

from v8.artifacts.metadata import MODEL_FILE
from v8.artifacts.model_file import MAX_TEXT_BYTES, MAX_UNPACKED_BYTES, check_keras_file, require_made_for
from v8.errors import ArtifactError, PullError, V8Error, listed
from v8.hub.client import HubRepo, HubRetryPolicy, Traffic, UnreachableError, is_listed, strict_client
from v8.hub.layout import MANIFEST_FILE, ListedFile, Manifest, read_manifest, series_folder
from v8.market.series import series_advice
from v8.storage import digest_file

PULL_RETRIES: Final = HubRetryPolicy(timeout_s=30.0, num_tries=4, first_s=1.0, most_s=60.0)
"""Somebody waits for the model, and there may be a copy of it in the cache."""

MAX_MANIFEST_BYTES: Final = 8 << 20
"""A larger manifest is refused unread; 40 series need 40 kB, 4,000 need 4 MB."""

MAX_LISTED_FILES: Final = 20_000
"""Files of a repository that are looked at; a published fleet of 40 has 164, one of 4,000 has 16,004."""

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Pulled:
    """Models that lie, whole and checked, in the client's cache, in the folder of one commit."""

    repo: str  # `user/name`
    revision: str  # the commit, 40 hex digits
    folder: Path  # of that commit's files
    manifest: Manifest  # what was published
    series: tuple[str, ...]  # what was pulled of it
    num_downloaded: int = 0  # files that this call downloaded
    why_cached: str | None = None
    """Why the Hub was not asked, or what it answered; None when it confirmed the revision."""

    def artifact(self, series: str) -> Path:
        """Return the folder of one series' artefact."""
        return self.folder / series_folder(series)


def pull(
    repo: str,
    series: Sequence[str] | None = None,
    *,
    revision: str | None = None,
    is_offline: bool = False,
    retries: HubRetryPolicy = PULL_RETRIES,
) -> Pulled:
    """Bring models of a published run into the cache and check them.

    Args:
        repo: `user/name`.
        series: Names such as "BTCUSDT-15m"; all that are published when None. Of none of them the manifest
            alone is brought, which tells what there is.
        revision: Branch, tag or commit; the newest commit of `main` when None. A commit that is in the
            cache needs no request.
        is_offline: Whether to use the cache only, as HF_HUB_OFFLINE=1 does.
        retries: How long to insist.

    Raises:
        PullError: If there is no such repository, revision or series, the token does not open it, or the
            Hub does not answer and the cache does not hold all that is needed.
        ArtifactError: If a file is not what was published, or must not be loaded.
    """
    is_offline = is_offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    with strict_client(retries) as traffic:
        source = PublishedRevision(repo, revision or "main", traffic)
        pulled = source.cached(series) if is_offline else source.pulled(series)
    for name in pulled.series:
        check_keras_file(file := pulled.artifact(name) / MODEL_FILE)
        require_made_for(file, name)
    return pulled


class PublishedRevision(HubRepo):
    """One revision of one repository: a branch, a tag or a commit.

    Of `series` those are meant that are named; all that are published when None.
    """

    def __init__(self, repo: str, revision: str, traffic: Traffic) -> None:
        self.revision = revision  # first, because a refusal names it
        super().__init__(repo, traffic)

    def pulled(self, series: Sequence[str] | None) -> Pulled:
        """Download what the cache lacks; use the cache alone when the Hub does not answer."""
        if _COMMIT.fullmatch(self.revision) and self._cached_manifest():
            with suppress(ArtifactError):  # a part of it is missing or damaged, which the Hub can mend
                # A commit never changes: nothing is left to confirm.
                return replace(self.cached(series), why_cached=None)
        try:
            self._require_manifest()
            return self._completed(self.file(MANIFEST_FILE, self.revision), series)
        except UnreachableError as error:
            why = error.got
        try:
            return replace(self.cached(series), why_cached=f"the Hub did not answer: {why}")
        except (ArtifactError, PullError) as error:
            raise PullError(**self.told("pull", "NO_ANSWER", said=f"{why}; {error.got}")) from error

    def cached(self, series: Sequence[str] | None) -> Pulled:
        """Take all of it from the cache."""
        manifest_file = self._cached_manifest()
        if manifest_file is None:
            raise PullError(**self.told("pull", "NOT_CACHED", revision=self.revision, cache=self.cache))
        folder = manifest_file.parent
        manifest = read_manifest(manifest_file)
        names, missing = self._missing(manifest, folder, series)
        if missing:
            words = {"commit": folder.name[:12], "paths": listed([file.path for file in missing])}
            raise ArtifactError(**self.told("pull", "PART_CACHED", **words))
        return Pulled(self.name, folder.name, folder, manifest, names, why_cached="the Hub was not asked")

    def _cached_manifest(self) -> Path | None:
        found = try_to_load_from_cache(self.name, MANIFEST_FILE, cache_dir=self.cache, revision=self.revision)
        return Path(found) if isinstance(found, str) else None

    def _require_manifest(self) -> None:
        """Refuse a revision that does not exist, may not be read, or has no manifest of a sensible size.

        The download would serve a copy from the cache instead of saying so.
        """
        url = hf_hub_url(self.name, MANIFEST_FILE, revision=self.revision, endpoint=self.endpoint)
        found = self.call(lambda: self._api.get_hf_file_metadata(url=url))
        if not _COMMIT.fullmatch(found.commit_hash or ""):  # it becomes the name of a folder
            raise self.refused("OTHER", f"the commit {found.commit_hash!r}, which is none")
        if found.size is None or found.size > MAX_MANIFEST_BYTES:
            said = f"{found.size:,}" if found.size else "no size"
            words = {"manifest": MANIFEST_FILE, "most": MAX_MANIFEST_BYTES, "said": said}
            raise ArtifactError(**self.told("pull", "LONG_MANIFEST", **words))

    def _completed(self, manifest_file: Path, series: Sequence[str] | None) -> Pulled:
        """Download what the cache lacks of a commit."""
        folder = manifest_file.parent
        commit = manifest_file.parent.name
        try:
            manifest = read_manifest(manifest_file)
        except ArtifactError:  # it may have been damaged, so it is downloaded once more
            manifest = read_manifest(self.file(MANIFEST_FILE, commit, is_anew=True))
        names, missing = self._missing(manifest, folder, series)
        if missing:
            listing = self.call(lambda: self.files(commit, MAX_LISTED_FILES))
            if not is_listed(manifest_file, listing.get(MANIFEST_FILE)):
                manifest = read_manifest(self.file(MANIFEST_FILE, commit, is_anew=True))
                names, missing = self._missing(manifest, folder, series)
            for file in missing:
                self._require_length(file, listing[file.path].size if file.path in listing else None)
        for file in missing:
            self._fetch(file, folder)
        return Pulled(self.name, commit, folder, manifest, names, len(missing))

    def _missing(
        self, manifest: Manifest, folder: Path, series: Sequence[str] | None
    ) -> tuple[tuple[str, ...], list[ListedFile]]:
        """Return the series that are meant, and those of their files that are not whole in the cache."""
        known = manifest.series
        for name in series or ():
            if name not in known:
                words = {"num": len(known), "known": listed(known), "said": repr(name)[:80]}
                advice = series_advice(name, known, "Choose one of these")
                raise PullError(**self.told("pull", "SERIES", advice=advice, **words))
        names = known if series is None else tuple(dict.fromkeys(series))
        files = [file for name in names for file in manifest.files_of(name)]
        return names, [file for file in files if not file.is_whole_in(folder)]

    def _require_length(self, file: ListedFile, size: int | None) -> None:
        """Refuse, before it travels, what is not as long as it was published, or too long for a model."""
        most = MAX_UNPACKED_BYTES if file.path.endswith(MODEL_FILE) else MAX_TEXT_BYTES
        if size != file.size_bytes or size > most:
            said = "no such file" if size is None else f"{size:,} bytes"
            raise ArtifactError(**self.told("pull", "LENGTH", file=file, most=most, said=said))

    def _fetch(self, file: ListedFile, folder: Path) -> None:
        """Download a file and compare it; once more if it is not what was published."""
        path = folder / file.path
        for is_anew in (path.exists(), True):
            self.file(file.path, folder.name, is_anew=is_anew)
            if file.is_whole_in(folder):
                return
        words = {"commit": folder.name, "size": path.stat().st_size, "digest": digest_file(path)}
        raise ArtifactError(**self.told("pull", "CONTENT", file=file, **words))

    def refused(self, refusal: str, said: str) -> V8Error:
        """Return the error that the user reads."""
        kind = "REPOSITORY_WITH_TOKEN" if refusal == "REPOSITORY" and self._token else refusal
        parts = self.told("pull", kind, said=said, revision=self.revision, manifest=MANIFEST_FILE)
        return (UnreachableError if refusal == "OFFLINE" else PullError)(**parts)
