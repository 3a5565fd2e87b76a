"""Pulling models: the revision first, then its manifest, then only the files that are needed, all checked.

1. One request resolves the revision to a commit; everything after it is asked of that commit.
2. `manifest.json` is read as from a stranger: its names cannot leave the folder (`v8.hub.manifest`).
3. The commit's own list of files is compared with the manifest before anything large travels.
4. What is in the client's cache and has the manifest's sha256 is taken from there. The rest is
   downloaded and compared, because the client compares nothing; a file that arrives damaged is asked for
   once more, and a damaged one in the cache is replaced by the next call.
5. Model files are looked into without loading them (`v8.artifacts.model_file`).

Nothing is written outside the client's cache. Without an answer from the Hub, or with HF_HUB_OFFLINE, a
revision that the cache holds whole is used and named; a part of one is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from huggingface_hub.hf_api import RepoFile

from v8.artifacts.model_file import MAX_TEXT_BYTES, MAX_UNPACKED_BYTES, check_keras_file
from v8.artifacts.series_artifact import MODEL_FILE
from v8.errors import ArtifactError, PullError, listed
from v8.hub.client import is_listed, strict_client
from v8.hub.manifest import MANIFEST_FILE, ListedFile, Manifest, read_manifest, series_folder
from v8.hub.reading import ReadableRevision
from v8.hub.retries import RetryPolicy, UnreachableError
from v8.registry import nearest
from v8.storage import digest_file

PULL_RETRIES: Final = RetryPolicy(timeout_s=30.0, waits_s=(1.0, 2.0, 4.0), longest_wait_s=60.0)
"""Somebody waits for the model, and there may be a copy of it in the cache."""

MAIN: Final = "main"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_TRUE: Final = frozenset({"1", "ON", "YES", "TRUE"})


@dataclass(frozen=True)
class Pulled:
    """Models that lie, whole and checked, in the client's cache.

    Args:
        repo: `user/name`.
        revision: The commit they are of, 40 hex digits.
        folder: Where the files of that commit lie.
        manifest: What was published.
        series: Names of the series that were pulled.
        num_downloaded: Files that this call downloaded.
        why_cached: Why the Hub was not asked, or what it answered; None when it confirmed the revision.
    """

    repo: str
    revision: str
    folder: Path
    manifest: Manifest
    series: tuple[str, ...]
    num_downloaded: int = 0
    why_cached: str | None = None

    def artifact(self, series: str) -> Path:
        """Return the folder of one series' artefact."""
        return self.folder / series_folder(series)


def pull(
    repo: str,
    series: Sequence[str] = (),
    *,
    revision: str | None = None,
    is_offline: bool = False,
    retries: RetryPolicy = PULL_RETRIES,
) -> Pulled:
    """Bring models of a published run into the cache and check them.

    Args:
        repo: `user/name`.
        series: Names such as "BTCUSDT-15m"; all that are published when empty.
        revision: Branch, tag or commit; the newest commit of `main` when None. A commit that is in the
            cache needs no request.
        is_offline: Whether to use the cache only, as HF_HUB_OFFLINE=1 does.
        retries: How often to try again.

    Returns:
        Where the models lie, and of which commit they are.

    Raises:
        PullError: If there is no such repository, revision or series, the token does not open it, or the
            Hub does not answer and the cache does not hold all that is needed.
        ArtifactError: If a file is not what was published, or must not be loaded.
    """
    is_offline = is_offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE
    with strict_client(retries.timeout_s):
        source = ReadableRevision(repo, revision or MAIN, retries)
        pulled = _pulled_from_cache(source, series) if is_offline else _pulled(source, series)
    for name in pulled.series:
        check_keras_file(pulled.artifact(name) / MODEL_FILE)
    return pulled


def _pulled(source: ReadableRevision, series: Sequence[str]) -> Pulled:
    if _COMMIT.fullmatch(source.revision) and source.cached_manifest():
        try:
            pulled = _pulled_from_cache(source, series)
        except ArtifactError:
            pass  # a part of it is missing or damaged, which the Hub can mend
        else:
            return replace(pulled, why_cached=None)  # a commit never changes: nothing is left to confirm
    try:
        source.require_manifest()
        return _completed(source, source.file(MANIFEST_FILE, source.revision), series)
    except UnreachableError as error:
        return _pulled_instead(source, series, error.got)


def _pulled_instead(source: ReadableRevision, series: Sequence[str], why: str) -> Pulled:
    """Use the cache when the Hub does not answer."""
    try:
        return replace(_pulled_from_cache(source, series), why_cached=f"the Hub did not answer: {why}")
    except (ArtifactError, PullError) as error:
        raise PullError(
            where=source.name,
            rule="the Hub must answer, or its models be in the cache",
            got=f"{why}; {error.got}",
            fix="Repeat the same command later; what was downloaded is kept",
        ) from error


def _completed(source: ReadableRevision, manifest_file: Path, series: Sequence[str]) -> Pulled:
    """Download what the cache lacks of some series of a commit."""
    folder, commit = manifest_file.parent, manifest_file.parent.name
    manifest = _read(source, manifest_file, commit)
    names, missing = _missing(source, manifest, folder, series)
    if missing:
        listing = source.listing(commit)
        if not is_listed(manifest_file, listing.get(MANIFEST_FILE)):
            manifest = read_manifest(source.file(MANIFEST_FILE, commit, is_anew=True))
            names, missing = _missing(source, manifest, folder, series)
        _require_listed(source, missing, listing)
    for file in missing:
        _fetch(source, file, commit, folder)
    return Pulled(source.name, commit, folder, manifest, names, len(missing))


def _missing(
    source: ReadableRevision, manifest: Manifest, folder: Path, series: Sequence[str]
) -> tuple[tuple[str, ...], list[ListedFile]]:
    """Return the series that are meant, and those of their files that are not whole in the cache."""
    names = _chosen(source.name, manifest, series)
    files = [file for name in names for file in manifest.files_of(name)]
    return names, [file for file in files if not file.is_whole_in(folder)]


def _pulled_from_cache(source: ReadableRevision, series: Sequence[str]) -> Pulled:
    manifest_file = source.cached_manifest()
    if manifest_file is None:
        raise PullError(
            where=f"{source.name}, revision {source.revision}",
            rule="without the Hub, a model must be in the cache",
            got=f"none of this revision in {source.cache}",
            fix="Pull it once with the Hub in reach: without --offline and HF_HUB_OFFLINE",
        )
    folder, commit = manifest_file.parent, manifest_file.parent.name
    manifest = read_manifest(manifest_file)
    names, missing = _missing(source, manifest, folder, series)
    if missing:
        raise ArtifactError(
            where=f"{source.name} at {commit[:12]} in the cache",
            rule="every file that the manifest lists must be there, with its sha256",
            got=f"missing or damaged {listed([file.path for file in missing])}",
            fix="Pull it again with the Hub in reach: without --offline and HF_HUB_OFFLINE",
        )
    return Pulled(source.name, commit, folder, manifest, names, why_cached="the Hub was not asked")


def _read(source: ReadableRevision, file: Path, commit: str) -> Manifest:
    """Read a manifest; one that cannot be read is downloaded once more, for it may have been damaged."""
    try:
        return read_manifest(file)
    except ArtifactError:
        return read_manifest(source.file(MANIFEST_FILE, commit, is_anew=True))


def _chosen(repo: str, manifest: Manifest, series: Sequence[str]) -> tuple[str, ...]:
    for name in series:
        if name not in manifest.series:
            raise PullError(
                where=repo,
                rule=f"a series is one of the {len(manifest.series)} published: {listed(manifest.series)}",
                got=repr(name)[:80],
                fix=f"Did you mean {nearest(name, manifest.series)}",
            )
    return tuple(dict.fromkeys(series)) or manifest.series


def _require_listed(
    source: ReadableRevision, files: Sequence[ListedFile], listing: Mapping[str, RepoFile]
) -> None:
    """Refuse, before it travels, what is not as long as it was published, or too long for a model."""
    for file in files:
        size = listing[file.path].size if file.path in listing else None
        most = MAX_UNPACKED_BYTES if file.path.endswith(MODEL_FILE) else MAX_TEXT_BYTES
        if size != file.size_bytes or size > most:
            raise ArtifactError(
                where=f"{source.name}, {file.path}",
                rule=f"must be the published file of {file.size_bytes:,} bytes, and at most {most:,}",
                got="no such file" if size is None else f"{size:,} bytes",
                fix="Pull another revision, or ask its owner to publish the run again",
            )


def _fetch(source: ReadableRevision, file: ListedFile, commit: str, folder: Path) -> None:
    """Download a file and compare it; once more if it is not what was published."""
    path = folder / file.path
    for is_anew in (path.exists(), True):
        source.file(file.path, commit, is_anew=is_anew)
        if file.is_whole_in(folder):
            return
    raise ArtifactError(
        where=f"{source.name} at {commit[:12]}, {file.path}",
        rule=f"must be the published file: {file.size_bytes:,} bytes with sha256 {file.sha256[:12]}",
        got=f"{path.stat().st_size:,} bytes with sha256 {digest_file(path)[:12]}, twice",
        fix="Repeat the same command, it downloads this file anew; if that does not help, its owner has to "
        "publish the run again",
    )
