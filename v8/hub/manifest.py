"""The manifest of a published run: sha256 and size of every file, what was trained, how far its data goes.

    README.md                                          the model card
    leaderboard.csv
    manifest.json                                      this; it does not list itself
    models/BTCUSDT-15m/{model.keras, metadata.json, history.csv, README.md}

A manifest is read from strangers: only names of this layout are accepted, so no file of it can land
outside the folder it is downloaded to. The client that downloads checks no content; `verify_files` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from v8.artifacts.series_artifact import HISTORY_FILE, METADATA_FILE, MODEL_FILE
from v8.errors import ArtifactError, ProfileError, listed
from v8.market.series import Series
from v8.records import read_json_object
from v8.storage import digest_file

MANIFEST_FORMAT: Final = 1
"""Version of the keys of `manifest.json`."""

MANIFEST_FILE: Final = "manifest.json"
CARD_FILE: Final = "README.md"
LEADERBOARD_FILE: Final = "leaderboard.csv"
MODELS_FOLDER: Final = "models"
ARTIFACT_README_FILE: Final = "README.md"

ROOT_FILES: Final = (CARD_FILE, LEADERBOARD_FILE)
SERIES_FILES: Final = (ARTIFACT_README_FILE, HISTORY_FILE, METADATA_FILE, MODEL_FILE)

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_FIX: Final = "Publish the run again with `python -m v8 publish`, or pull another revision"


@dataclass(frozen=True)
class ListedFile:
    """One file of a published run.

    Args:
        path: Relative name with forward slashes, for example `models/BTCUSDT-15m/model.keras`.
        sha256: Of its content, 64 hex digits.
        size_bytes: Of its content.
    """

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class DataSpan:
    """Which candles a model has seen.

    Args:
        source: Name of the candle source.
        first_open: Open time of the oldest candle, ISO 8601 in UTC.
        last_open: Open time of the newest candle, ISO 8601 in UTC: the data cut-off.
        num_bars: Number of candles.
    """

    source: str
    first_open: str
    last_open: str
    num_bars: int


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`.

    Args:
        profile_name: Name of the profile, for example "aligned".
        profile_digest: Its sha256, 64 hex digits.
        created_at: When the newest model of it was saved, ISO 8601 in UTC.
        versions: Versions of what can change a result.
        data: Per series, the candles its model has seen; its keys are the series published.
        files: Every file but the manifest, ascending by path.
    """

    profile_name: str
    profile_digest: str
    created_at: str
    versions: Mapping[str, str]
    data: Mapping[str, DataSpan]
    files: tuple[ListedFile, ...]

    @property
    def series(self) -> tuple[str, ...]:
        """Names of the series whose models are published."""
        return tuple(self.data)

    def files_of(self, series: str) -> tuple[ListedFile, ...]:
        """Return the files of one series' artefact.

        Raises:
            ArtifactError: If the series is not published.
        """
        if series not in self.data:
            raise ArtifactError(
                where=MANIFEST_FILE,
                rule="a series is one of those that were published",
                got=series,
                fix=f"Choose one of {listed(self.series)}",
            )
        folder = series_folder(series)
        return tuple(file for file in self.files if file.path.startswith(f"{folder}/"))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        return {"format": MANIFEST_FORMAT, **asdict(self), "files": [asdict(file) for file in self.files]}

    def to_text(self) -> str:
        """Return the content of the file; the same manifest gives the same bytes."""
        return json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, content: Any, *, where: str = MANIFEST_FILE) -> Manifest:
        """Read and check what `to_json` wrote.

        Args:
            content: The value, as `json` loads it.
            where: The file, for error messages.

        Raises:
            ArtifactError: If it is of an unknown format, incomplete, or names a file that no published
                run holds.
        """
        _check_format(content, where)
        _check_keys(content, ("format", *cls.__dataclass_fields__), where)
        manifest = cls(
            profile_name=_text(content, "profile_name", where),
            profile_digest=_sha256(content, "profile_digest", where),
            created_at=_text(content, "created_at", where),
            versions=_read_versions(content["versions"], f"{where}, key versions"),
            data=_read_data(content["data"], f"{where}, key data"),
            files=_read_files(content["files"], f"{where}, key files"),
        )
        _check_complete(manifest, where)
        return manifest


def series_folder(series: str) -> str:
    """Return the folder of a series inside a repository.

    >>> series_folder("BTCUSDT-15m")
    'models/BTCUSDT-15m'
    """
    return f"{MODELS_FOLDER}/{series}"


def read_manifest(file: Path) -> Manifest:
    """Read a manifest from disk.

    Raises:
        ArtifactError: If it is missing, damaged, of an unknown format, or names what it must not.
    """
    return Manifest.from_json(read_json_object(file, fix=_FIX), where=str(file))


def list_files(folder: Path) -> tuple[ListedFile, ...]:
    """List every file below `folder` but the manifest, ascending by path."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return tuple(
        ListedFile(path, digest_file(folder / path), (folder / path).stat().st_size)
        for path in paths
        if path != MANIFEST_FILE
    )


def verify_files(folder: Path, files: Iterable[ListedFile]) -> None:
    """Compare files on disk with what the manifest says of them.

    Args:
        folder: Where the repository's files lie.
        files: Files of a manifest: all, or those that were downloaded.

    Raises:
        ArtifactError: If one is missing, or its content is not the one that was published.
    """
    for file in files:
        path = folder / file.path
        found = (path.stat().st_size, digest_file(path)) if path.is_file() else None
        if found != (file.size_bytes, file.sha256):
            raise ArtifactError(
                where=str(path),
                rule=f"must be the published file: {file.size_bytes:,} bytes, sha256 {file.sha256[:12]}",
                got=f"{found[0]:,} bytes with sha256 {found[1][:12]}" if found else "no such file",
                fix="Delete it and download it again",
            )


def is_published_path(path: str) -> bool:
    """Tell whether a published run can hold a file of this name; nothing outside its folder can.

    >>> is_published_path("models/BTCUSDT-15m/model.keras"), is_published_path("models/../model.keras")
    (True, False)
    """
    if path in ROOT_FILES:
        return True
    folder, _, rest = path.partition("/")
    series, _, name = rest.partition("/")
    return folder == MODELS_FOLDER and _is_series(series) and name in SERIES_FILES


def _is_series(name: str) -> bool:
    try:
        return str(Series.parse(name)) == name
    except ProfileError:
        return False


def _check_format(content: Any, where: str) -> None:
    found = content.get("format") if isinstance(content, Mapping) else None
    if found != MANIFEST_FORMAT or isinstance(found, bool):
        raise ArtifactError(
            where=where,
            rule=f"this v8 reads manifest format {MANIFEST_FORMAT}",
            got=f"format {found!r}",
            fix="Use the v8 that published it",
        )


def _check_keys(content: Any, keys: Iterable[str], where: str) -> None:
    expected = sorted(keys)
    found = sorted(map(str, content)) if isinstance(content, Mapping) else None
    if found != expected:
        got = type(content).__name__ if found is None else f"the keys {listed(found)}"
        raise _damaged(where, f"holds the keys {', '.join(expected)} and no others", got)


def _check_complete(manifest: Manifest, where: str) -> None:
    expected = {*ROOT_FILES}
    for series in manifest.series:
        expected.update(f"{series_folder(series)}/{name}" for name in SERIES_FILES)
    names = [file.path for file in manifest.files]
    strange = sorted(expected.symmetric_difference(names))
    if strange:
        raise _damaged(
            where,
            f"lists {', '.join(ROOT_FILES)} and {len(SERIES_FILES)} files of every series in data",
            f"a difference in {listed(strange)}",
        )
    if names != sorted(set(names)):
        raise _damaged(where, "lists each file once, ascending by path", "another order or a repetition")


def _read_versions(content: Any, where: str) -> dict[str, str]:
    if not isinstance(content, Mapping):
        raise _damaged(where, "is an object of texts", type(content).__name__)
    return {name: _text(content, name, where) for name in content}


def _read_data(content: Any, where: str) -> dict[str, DataSpan]:
    if not isinstance(content, Mapping) or not content:
        raise _damaged(where, "is an object with at least one series", repr(content)[:80])
    return {name: _read_span(name, span, where) for name, span in content.items()}


def _read_span(series: str, content: Any, where: str) -> DataSpan:
    if not _is_series(series):
        raise _damaged(where, "names series such as BTCUSDT-15m", repr(series)[:80])
    where = f"{where}.{series}"
    _check_keys(content, DataSpan.__dataclass_fields__, where)
    texts = {name: _text(content, name, where) for name in ("source", "first_open", "last_open")}
    return DataSpan(**texts, num_bars=_count(content, "num_bars", where))


def _read_files(content: Any, where: str) -> tuple[ListedFile, ...]:
    if not isinstance(content, list):
        raise _damaged(where, "is a list", type(content).__name__)
    return tuple(_read_file(one, f"{where}[{number}]") for number, one in enumerate(content))


def _read_file(content: Any, where: str) -> ListedFile:
    _check_keys(content, ListedFile.__dataclass_fields__, where)
    path = _text(content, "path", where)
    if not is_published_path(path):
        raise _damaged(
            where,
            f"names {', '.join(ROOT_FILES)} or {MODELS_FOLDER}/<SERIES>/ with {', '.join(SERIES_FILES)}",
            repr(path)[:80],
        )
    return ListedFile(path, _sha256(content, "sha256", where), _count(content, "size_bytes", where))


def _text(content: Mapping[str, Any], key: str, where: str) -> str:
    value = content[key]
    if not isinstance(value, str) or not value:
        raise _damaged(f"{where}, key {key}", "is a text", repr(value)[:80])
    return value


def _sha256(content: Mapping[str, Any], key: str, where: str) -> str:
    value = _text(content, key, where)
    if not _SHA256.fullmatch(value):
        raise _damaged(f"{where}, key {key}", "is a sha256 of 64 hex digits", repr(value)[:80])
    return value


def _count(content: Mapping[str, Any], key: str, where: str) -> int:
    value = content[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _damaged(f"{where}, key {key}", "is a whole number, 0 or above", repr(value)[:80])
    return value


def _damaged(where: str, rule: str, got: str) -> ArtifactError:
    return ArtifactError(where=where, rule=rule, got=got, fix=_FIX)
