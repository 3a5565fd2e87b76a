"""What lies in a published repository: a manifest, and a run laid out as it says.

    README.md                                          the model card
    leaderboard.csv, leaderboard.png                   the picture of the card; old repositories have none
    manifest.json                                      sha256 and size of every other file
    models/BTCUSDT-15m/{model.keras, metadata.json, history.csv, README.md}

A manifest is read from strangers: only names of this layout are accepted, so no file of it can land
outside the folder it is downloaded to. The client that downloads checks no content; `is_whole_in` does.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator, ConfigDict, Field

from v8 import records
from v8.artifacts.metadata import HISTORY_FILE, METADATA_FILE, MODEL_FILE
from v8.artifacts.series_artifact import README_FILE
from v8.errors import ArtifactError, listed, shown
from v8.evaluation.leaderboard import LEADERBOARD_FILE
from v8.invocation import command
from v8.market.series import by_series, is_series_name
from v8.storage import digest_file

MANIFEST_FORMAT: Final = 1  # version of the keys of `manifest.json`
MANIFEST_FILE: Final = "manifest.json"
CARD_FILE: Final = "README.md"
MODELS_FOLDER: Final = "models"

PICTURE_FILE: Final = "leaderboard.png"

ROOT_FILES: Final = (CARD_FILE, LEADERBOARD_FILE, PICTURE_FILE)
SERIES_FILES: Final = (README_FILE, HISTORY_FILE, METADATA_FILE, MODEL_FILE)

MAX_LINE: Final = 200  # letters of a text in a manifest
_FIX: Final = f"Publish the run again with `{command('publish')}`, or pull another revision"


def is_published_path(path: str) -> bool:
    """Tell whether a published run can hold a file of this name; nothing outside its folder can.

    >>> is_published_path("models/BTCUSDT-15m/model.keras"), is_published_path("models/../model.keras")
    (True, False)
    """
    return path in ROOT_FILES or series_of(path) is not None


def series_folder(series: str) -> str:
    """Return the folder of a series inside a repository.

    >>> series_folder("BTCUSDT-15m")
    'models/BTCUSDT-15m'
    """
    return f"{MODELS_FOLDER}/{series}"


def series_of(path: str) -> str | None:
    """Return the series that a file of a published run belongs to; None for any other file.

    >>> series_of("models/BTCUSDT-15m/model.keras"), series_of("README.md"), series_of("models/../a/b")
    ('BTCUSDT-15m', None, None)
    """
    folder, _, rest = path.partition("/")
    series, _, name = rest.partition("/")
    is_of_series = folder == MODELS_FOLDER and is_series_name(series) and name in SERIES_FILES
    return series if is_of_series else None


def _unpublished(path: str) -> str | None:
    below = f"{MODELS_FOLDER}/<SERIES>/ with {', '.join(SERIES_FILES)}"
    return None if is_published_path(path) else f"names {', '.join(ROOT_FILES)} or {below}"


def _unprintable(text: str) -> str | None:
    rule = f"is one line of at most {MAX_LINE} letters that can be printed"
    return None if shown(text, MAX_LINE) == text else rule


Line = Annotated[records.Text, records.refusing(_unprintable)]  # a text that can be shown as it is


class _Strict:
    """What holds no key that nobody knows."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class ListedFile(_Strict):
    """One file of a published run, by its relative name with forward slashes."""

    path: Annotated[str, records.refusing(_unpublished)]
    sha256: records.Sha256
    size_bytes: records.Count

    @classmethod
    def read(cls, folder: Path, path: str) -> "ListedFile":
        """Describe a file as it lies in a folder now."""
        return cls(path, digest_file(folder / path), (folder / path).stat().st_size)

    def is_whole_in(self, folder: Path) -> bool:
        """Tell whether the file lies in a folder with the content that was published."""
        path = folder / self.path
        return path.is_file() and path.stat().st_size == self.size_bytes and digest_file(path) == self.sha256


@dataclass(frozen=True)
class DataSpan(_Strict):
    """Which candles a model has seen, by open times in ISO 8601, UTC; the last one is the data cut-off."""

    source: Line
    first_open: Line
    last_open: Line
    num_bars: records.Count


@dataclass(frozen=True)
class Manifest(_Strict):
    """The content of `manifest.json`."""

    profile_name: Line  # name of the profile, for example "aligned"
    profile_digest: records.Sha256  # its sha256; all models are of it
    created_at: Line  # when the newest model of it was saved, ISO 8601 in UTC
    versions: Mapping[Line, Line]
    """Of what can change a result; several of one thing when models of several runs lie there."""
    data: Annotated[Mapping[str, DataSpan], Field(min_length=1), BeforeValidator(by_series)]
    """Per series, the candles its model has seen; its keys are the series published."""
    files: tuple[ListedFile, ...]  # every file but the manifest, ascending by path

    @property
    def series(self) -> tuple[str, ...]:
        """Names of the series whose models are published."""
        return tuple(self.data)

    def files_of(self, series: str) -> tuple[ListedFile, ...]:
        """Return the files of the artefact of a series, one of `series`."""
        return tuple(file for file in self.files if series_of(file.path) == series)

    def to_text(self) -> str:
        """Return the content of the file; the same manifest gives the same bytes."""
        content = {"format": MANIFEST_FORMAT, **records.adapter(Manifest).dump_python(self, mode="json")}
        return json.dumps(content, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, content: Any, *, where: str = MANIFEST_FILE) -> "Manifest":
        """Check what the file `where` holds.

        Raises `ArtifactError` if it is of an unknown format, incomplete, or names a file that no
        published run holds.
        """
        records.check_format(content, (MANIFEST_FORMAT,), what="manifest", where=where)
        keys = {name: value for name, value in content.items() if name != "format"}
        manifest = records.checked(Manifest, keys, where=where, fix=_FIX)
        # Older ones have no picture.
        names = [file.path for file in manifest.files]
        expected = {CARD_FILE, LEADERBOARD_FILE}
        for series in manifest.series:
            expected.update(f"{series_folder(series)}/{name}" for name in SERIES_FILES)
        strange = sorted(expected.symmetric_difference(names) - {PICTURE_FILE})
        if strange or names != sorted(set(names)):
            those = f"{CARD_FILE}, {LEADERBOARD_FILE} and {len(SERIES_FILES)} files of every series in data"
            rule = f"lists {those}, each file once, ascending by path"
            got = f"a difference in {listed(strange)}" if strange else "another order or a repetition"
            raise ArtifactError(where=where, rule=rule, got=got, fix=_FIX)
        return manifest


def read_manifest(file: Path) -> Manifest:
    """Read a manifest from disk.

    Raises `ArtifactError` if it is missing, damaged, of an unknown format, or names what it must not.
    """
    return Manifest.from_json(records.read_json_object(file, fix=_FIX), where=str(file))


def list_files(folder: Path) -> tuple[ListedFile, ...]:
    """List every file below `folder` but the manifest, ascending by path."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return tuple(ListedFile.read(folder, path) for path in paths if path != MANIFEST_FILE)
