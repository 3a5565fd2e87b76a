"""Pulling models: resolve the revision, read its manifest, download the files that are needed, check all.

1. One request resolves the revision to a commit; all later requests name that commit.
2. `manifest.json` is not trusted: its paths cannot lead outside the folder (`v8.publish.hub.places`).
3. The commit's own list of files is compared with the manifest before anything large is downloaded.
4. Files in the client's cache with the sha256 of the manifest are used. The others are downloaded and
   compared, because the client does not compare them. A file that arrives damaged is downloaded once more,
   and a damaged one in the cache is replaced.
5. Model files are checked without loading them (`v8.forecaster.model_file`, `v8.forecaster.onnx_file`).
6. Where both can be computed, the two files of a model must forecast the same
   (`v8.forecaster.shared_models`).

Nothing is written outside the client's cache. Without an answer from the Hub, or with HF_HUB_OFFLINE, a
revision is used if it is complete in the cache, and reported as cached; an incomplete one is refused. When
the Hub refuses, the client's downloads silently return files from the cache, so a first request checks
whether the revision may be read.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from huggingface_hub import hf_hub_url, try_to_load_from_cache

from v8.base.errors import ArtifactError, PullError, V8Error, listed
from v8.base.storage import digest_file
from v8.data.market.series import series_advice
from v8.forecaster.metadata import MODEL_FILE, ONNX_FILE, Metadata, read_metadata
from v8.forecaster.model_file import MAX_TEXT_BYTES, MAX_UNPACKED_BYTES, check_keras_file, require_made_for
from v8.forecaster.shared_models import ModelComparison, can_compare, require_own_onnx
from v8.publish.hub import TOKEN_PAGE
from v8.publish.hub.client import (
    HubRepo,
    HubRetryPolicy,
    Refusal,
    Traffic,
    UnreachableError,
    is_listed,
    strict_client,
)
from v8.publish.hub.places import MANIFEST_FILE, ListedFile, Manifest, read_manifest, series_folder

PULL_RETRIES: Final = HubRetryPolicy(timeout_s=30.0, num_tries=4, first_s=1.0, most_s=60.0)
"""Shorter than for publishing: a user waits for the model, and there may be a copy of it in the cache."""

MAX_MANIFEST_BYTES: Final = 8 << 20
"""A larger manifest is refused unread; 40 series need 40 kB, 4,000 need 4 MB."""

MAX_LISTED_FILES: Final = 20_000
"""Files of a repository that are listed at most; a published fleet of 40 has 164, one of 4,000 has 16,004."""

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_COMPARED: Final = "v8_compared"
"""Folder of a repository in the client's cache, which notes the pairs of files that were compared."""
_LATER_FIX: Final = "Repeat the same command later; what was downloaded is kept"


@dataclass(frozen=True)
class Pulled:
    """Models in the client's cache, complete and checked, in the folder of one commit."""

    repo: str  # `user/name`
    revision: str  # the commit, 40 hex digits
    folder: Path  # folder of the files of that commit
    manifest: Manifest  # what was published
    series: tuple[str, ...]  # series that were pulled
    num_downloaded: int = 0  # files that this call downloaded
    why_cached: str | None = None
    """Why the cache was used without the Hub; None if the Hub confirmed the revision."""

    def artifact(self, series: str) -> Path:
        """Return the folder of the artefact of a series."""
        return self.folder / series_folder(series)


def pull(
    repo: str,
    series: Sequence[str] | None = None,
    *,
    revision: str | None = None,
    is_offline: bool = False,
    retries: HubRetryPolicy = PULL_RETRIES,
) -> Pulled:
    """Download models of a published run into the cache, and check them.

    Args:
        repo: `user/name`.
        series: Names such as "BTCUSDT-15m"; all published ones if None. If empty, only the manifest is
            downloaded, which lists the published series.
        revision: Branch, tag or commit; the newest commit of `main` if None. A commit that is complete in the
            cache needs no request.
        is_offline: Whether to use the cache only, as HF_HUB_OFFLINE=1 does.
        retries: How long to wait for the Hub.

    Raises:
        PullError: If there is no such repository, revision or series, the token gives no access, or the Hub
            does not answer and the cache does not hold all files.
        ArtifactError: If a file is not the published one, or must not be loaded.
    """
    is_offline = is_offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    with strict_client(retries) as traffic:
        source = PublishedRevision(repo, revision or "main", traffic)
        pulled = source.cached(series) if is_offline else source.pull(series)
    with_onnx = {}
    for name in pulled.series:
        folder = pulled.artifact(name)
        file = folder / MODEL_FILE
        check_keras_file(file)
        require_made_for(file, name)
        if (folder / ONNX_FILE).exists():
            metadata = read_metadata(folder, series=name)
            require_own_onnx(folder, metadata)
            if metadata.onnx_sha256 is not None:  # otherwise nothing uses the file
                with_onnx[folder] = metadata
    if with_onnx and can_compare():
        _require_same_models(with_onnx, pulled.folder.parents[1] / _COMPARED)
    return pulled


def _require_same_models(models: Mapping[Path, Metadata], compared: Path) -> None:
    """Compare the two files of models that were not compared before; that they were is noted in a folder."""
    comparison = ModelComparison()
    for folder, metadata in models.items():
        note = compared / f"{metadata.model_sha256:.32}-{metadata.onnx_sha256:.32}"
        if note.exists():
            continue
        comparison.require_same_model(folder, metadata)
        with suppress(OSError):  # a cache that cannot be written: they are compared again the next time
            compared.mkdir(exist_ok=True)
            note.touch()


class PublishedRevision(HubRepo):
    """One revision of one repository: a branch, a tag or a commit.

    The argument `series` of the methods names some of the published series; None means all of them.
    """

    def __init__(self, repo: str, revision: str, traffic: Traffic) -> None:
        self.revision = revision  # set first: an error of the base class names it
        super().__init__(repo, traffic)

    def pull(self, series: Sequence[str] | None) -> Pulled:
        """Download files that are not in the cache; use the cache alone if the Hub does not answer."""
        if _COMMIT.fullmatch(self.revision) and self._cached_manifest():
            with suppress(ArtifactError):  # a file is missing or damaged; then ask the Hub
                # A commit never changes, so a complete one in the cache needs no confirmation.
                return replace(self.cached(series), why_cached=None)
        try:
            self._require_manifest()
            return self._download(self.file(MANIFEST_FILE, self.revision), series)
        except UnreachableError as error:
            trouble = error.got
        try:
            return replace(self.cached(series), why_cached=f"the Hub did not answer: {trouble}")
        except (ArtifactError, PullError) as error:
            raise PullError(
                where=self.name,
                rule="the Hub must answer, or its models be in the cache",
                got=f"{trouble}; {error.got}",
                fix=_LATER_FIX,
            ) from error

    def cached(self, series: Sequence[str] | None) -> Pulled:
        """Take all files from the cache.

        Raises:
            PullError: If the revision is not in the cache.
            ArtifactError: If files of it are missing in the cache, or damaged.
        """
        manifest_file = self._cached_manifest()
        if manifest_file is None:
            raise PullError(
                where=f"{self.name}, revision {self.revision}",
                rule="without the Hub, a model must be in the cache",
                got=f"none of this revision in {self.cache}",
                fix="Pull it once with the Hub in reach: without param:offline and HF_HUB_OFFLINE",
            )
        folder = manifest_file.parent
        manifest = read_manifest(manifest_file)
        names, missing = self._missing(manifest, folder, series)
        if missing:
            raise ArtifactError(
                where=f"{self.name} at {folder.name[:12]} in the cache",
                rule="every file that the manifest lists must be there, with its sha256",
                got=f"missing or damaged {listed([file.path for file in missing])}",
                fix="Pull it again with the Hub in reach: without param:offline and HF_HUB_OFFLINE",
            )
        return Pulled(self.name, folder.name, folder, manifest, names, why_cached="the Hub was not asked")

    def _cached_manifest(self) -> Path | None:
        path = try_to_load_from_cache(self.name, MANIFEST_FILE, cache_dir=self.cache, revision=self.revision)
        return Path(path) if isinstance(path, str) else None

    def _require_manifest(self) -> None:
        """Check that the revision exists and may be read, and that its manifest has a sensible size.

        Without this check the client's download would silently return a copy from the cache.
        """
        url = hf_hub_url(self.name, MANIFEST_FILE, revision=self.revision, endpoint=self.endpoint)
        file = self.request_with_retries(lambda: self._api.get_hf_file_metadata(url=url))
        if not _COMMIT.fullmatch(file.commit_hash or ""):  # it becomes the name of a folder
            raise self.refusal_error(Refusal.OTHER, f"the commit {file.commit_hash!r}, which is none")
        if file.size is None or file.size > MAX_MANIFEST_BYTES:
            raise ArtifactError(
                where=f"{self.name}, {MANIFEST_FILE}",
                rule=f"a manifest has at most {MAX_MANIFEST_BYTES:,} bytes",
                got=f"{file.size:,}" if file.size else "no size",
                fix="Pull from a repository that v8 published",
            )

    def _download(self, manifest_file: Path, series: Sequence[str] | None) -> Pulled:
        """Download the files of a commit that are not in the cache."""
        folder = manifest_file.parent
        commit = folder.name
        try:
            manifest = read_manifest(manifest_file)
        except ArtifactError:  # the copy in the cache may be damaged: download it once more
            manifest = read_manifest(self.file(MANIFEST_FILE, commit, is_forced=True))
        names, missing = self._missing(manifest, folder, series)
        if missing:
            listing = self.request_with_retries(lambda: self.files(commit, MAX_LISTED_FILES))
            if not is_listed(manifest_file, listing.get(MANIFEST_FILE)):
                manifest = read_manifest(self.file(MANIFEST_FILE, commit, is_forced=True))
                names, missing = self._missing(manifest, folder, series)
            for file in missing:
                self._require_length(file, listing[file.path].size if file.path in listing else None)
        for file in missing:
            self._download_file(file, folder)
        return Pulled(self.name, commit, folder, manifest, names, len(missing))

    def _missing(
        self, manifest: Manifest, folder: Path, series: Sequence[str] | None
    ) -> tuple[tuple[str, ...], list[ListedFile]]:
        """Return the names of the series, and their files that are missing in the cache or damaged.

        Raises:
            PullError: If a series was not published.
        """
        published = manifest.series
        for name in series or ():
            if name not in published:
                raise PullError(
                    where=self.name,
                    rule=f"a series is one of the {len(published)} published: {listed(published)}",
                    got=repr(name)[:80],
                    fix=series_advice(name, published, "Choose one of these"),
                )
        names = published if series is None else tuple(dict.fromkeys(series))
        files = [file for name in names for file in manifest.files_of(name)]
        return names, [file for file in files if not file.is_intact_in(folder)]

    def _require_length(self, file: ListedFile, size_bytes: int | None) -> None:
        """Refuse, before it is downloaded, a file that has not its published length or is too long."""
        is_model = file.path.endswith((MODEL_FILE, ONNX_FILE))
        max_bytes = MAX_UNPACKED_BYTES if is_model else MAX_TEXT_BYTES
        if size_bytes != file.size_bytes or size_bytes > max_bytes:
            raise ArtifactError(
                where=f"{self.name}, {file.path}",
                rule=f"must be the published file of {file.size_bytes:,} bytes, and at most {max_bytes:,}",
                got="no such file" if size_bytes is None else f"{size_bytes:,} bytes",
                fix="Pull another revision, or ask its owner to publish the run again",
            )

    def _download_file(self, file: ListedFile, folder: Path) -> None:
        """Download a file and compare it; download it once more if it is not the published one."""
        path = folder / file.path
        for is_forced in (path.exists(), True):
            self.file(file.path, folder.name, is_forced=is_forced)
            if file.is_intact_in(folder):
                return
        size_bytes = path.stat().st_size
        raise ArtifactError(
            where=f"{self.name} at {folder.name:.12}, {file.path}",
            rule=f"must be the published file: {file.size_bytes:,} bytes with sha256 {file.sha256:.12}",
            got=f"{size_bytes:,} bytes with sha256 {digest_file(path):.12}, twice",
            fix="Repeat the same command, it downloads this file again; if that does not help, its owner has "
            "to publish the run again",
        )

    def refusal_error(self, refusal: Refusal, message: str) -> V8Error:
        """Return the error that the user reads; `message` is the Hub's own."""
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
                rule="must be a branch, a tag or the full id of a commit of the repository",
                got="the answer that there is none",
                fix=f"Look at {self.endpoint}/{self.name}/commits/main, or leave it out for the newest",
            )
        if refusal is Refusal.FILE:
            return PullError(
                where=self.name,
                rule=f"must be a run that v8 published, with a {MANIFEST_FILE} and all that it lists",
                got="the answer that a file is not there",
                fix="Check the name and the revision",
            )
        if refusal in (Refusal.FORBIDDEN, Refusal.REPOSITORY):
            return self._access_error(refusal)
        kind = UnreachableError if refusal is Refusal.OFFLINE else PullError
        return kind(where=self.name, rule="the Hub must hand out the model", got=message, fix=_LATER_FIX)

    def _access_error(self, refusal: Refusal) -> PullError:
        """Return the error for a repository that does not exist, or that this user may not read."""
        if refusal is Refusal.FORBIDDEN:
            got = "the answer that this user may not read it"
            fix = "Ask its owner for access"
        elif self._token:
            got = "the answer that there is none"
            fix = "Check its name, the path if a folder was meant, and whose the token is"
        else:
            got = "the answer that there is none, and no token was sent"
            fix = "Check its name, or the path if a folder was meant; to read a private one set HF_TOKEN"
        return PullError(
            where=self.name,
            rule="must be a repository that exists and that this user may read",
            got=got,
            fix=fix,
        )
