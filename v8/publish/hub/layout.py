"""The files of a published repository, and the manifest that lists them.

    README.md                                          the model card
    leaderboard.csv, leaderboard.png                   the leaderboard
    forecast.png                                       forecasts of the end of a test span
    features.py                                        computes the inputs of the models without v8
    manifest.json                                      sha256 and size of every other file
    models/BTCUSDT-15m/{model.keras, metadata.json, history.csv, README.md}, and model.onnx of some

Old repositories lack the pictures and `features.py`; so do some new ones. v8 never downloads that file.

A manifest may come from anybody. So only names of this layout are accepted: no file can be written outside
the folder it is downloaded to. The client that downloads the files does not check their content;
`ListedFile.is_intact_in` does.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator, ConfigDict, Field

from v8.base import records
from v8.base.errors import ArtifactError, listed, shown
from v8.base.process import command
from v8.base.reading import read_json_object
from v8.base.storage import digest_file
from v8.data.market.series import by_series, is_series_name
from v8.forecaster.metadata import HISTORY_FILE, METADATA_FILE, MODEL_FILE, ONNX_FILE
from v8.forecaster.series_artifact import README_FILE
from v8.forecaster.standalone import FEATURES_FILE
from v8.model.evaluation.leaderboard import LEADERBOARD_FILE
from v8.publish.report.card import FORECAST_PICTURE, MODELS_FOLDER

MANIFEST_FORMAT: Final = 1  # version of the keys of `manifest.json`
MANIFEST_FILE: Final = "manifest.json"
CARD_FILE: Final = "README.md"
PICTURE_FILE: Final = "leaderboard.png"

_OPTIONAL_FILES: Final = (PICTURE_FILE, FORECAST_PICTURE, FEATURES_FILE)
ROOT_FILES: Final = (CARD_FILE, LEADERBOARD_FILE, *_OPTIONAL_FILES)
SERIES_FILES: Final = (README_FILE, HISTORY_FILE, METADATA_FILE, MODEL_FILE)

MAX_LINE: Final = 200  # most characters of a text in a manifest
_FIX: Final = f"Publish the run again with `{command('publish')}`, or pull another revision"


def is_published_path(path: str) -> bool:
    """Return whether a published run can hold a file of this path; a path outside its folder is never valid.

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
    """Return the series that a file of a published run belongs to; None for all other files.

    >>> series_of("models/BTCUSDT-15m/model.keras"), series_of("README.md"), series_of("models/../a/b")
    ('BTCUSDT-15m', None, None)
    """
    folder, _, rest = path.partition("/")
    series, _, name = rest.partition("/")
    is_file = name in SERIES_FILES or name == ONNX_FILE
    is_of_series = folder == MODELS_FOLDER and is_series_name(series) and is_file
    return series if is_of_series else None


def _fault_of_path(path: str) -> str | None:
    if is_published_path(path):
        return None
    series_files = f"{MODELS_FOLDER}/<SERIES>/ with {', '.join(SERIES_FILES)}"
    return f"names {', '.join(ROOT_FILES)} or {series_files}"


def _fault_of_line(text: str) -> str | None:
    if shown(text, MAX_LINE) == text:
        return None
    return f"is one line of at most {MAX_LINE} letters that can be printed"


Line = Annotated[records.Text, records.refusing(_fault_of_line)]  # a text that can be printed unchanged


class _Strict:
    """A record that refuses unknown keys."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class ListedFile(_Strict):
    """One file of a published run."""

    path: Annotated[str, records.refusing(_fault_of_path)]  # relative, with forward slashes
    sha256: records.Sha256
    size_bytes: records.Count

    @classmethod
    def read(cls, folder: Path, path: str) -> "ListedFile":
        """Describe the file that is in a folder now."""
        return cls(path, digest_file(folder / path), (folder / path).stat().st_size)

    def is_intact_in(self, folder: Path) -> bool:
        """Return whether the file is in a folder with the content that was published."""
        path = folder / self.path
        return path.is_file() and path.stat().st_size == self.size_bytes and digest_file(path) == self.sha256


@dataclass(frozen=True)
class DataSpan(_Strict):
    """The candles that a model was made from: source, open times in ISO 8601, UTC, and number."""

    source: Line
    first_open: Line
    last_open: Line
    num_bars: records.Count


@dataclass(frozen=True)
class Manifest(_Strict):
    """The content of `manifest.json`."""

    profile_name: Line  # name of the profile, for example "aligned"
    profile_digest: records.Sha256  # sha256 of the profile, which all models share
    created_at: Line  # when the newest model was saved, ISO 8601 in UTC
    versions: Mapping[Line, Line]
    """Versions of packages that can change a result; of models of several runs there may be several."""
    data: Annotated[Mapping[str, DataSpan], Field(min_length=1), BeforeValidator(by_series)]
    """The candles of each model; the keys are the published series."""
    files: tuple[ListedFile, ...]  # every file except the manifest, ascending by path

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
        """Check the content of a manifest; errors begin with `where`, its file.

        Raises:
            ArtifactError: If it has an unknown format, is incomplete, or names a file that no published run
                holds.
        """
        records.check_format(content, MANIFEST_FORMAT, kind="manifest", where=where)
        keys = {name: value for name, value in content.items() if name != "format"}
        manifest = records.checked(Manifest, keys, where=where, fix=_FIX)
        names = [file.path for file in manifest.files]
        expected = {CARD_FILE, LEADERBOARD_FILE}
        for series in manifest.series:
            expected.update(f"{series_folder(series)}/{name}" for name in SERIES_FILES)
        # Older manifests lack pictures and features.py; not every model has an ONNX file.
        optional = {f"{series_folder(series)}/{ONNX_FILE}" for series in manifest.series}
        differing = sorted(expected.symmetric_difference(names) - {*_OPTIONAL_FILES} - optional)
        if differing or names != sorted(set(names)):
            rule = (
                f"lists {CARD_FILE}, {LEADERBOARD_FILE} and {len(SERIES_FILES)} files of every series in "
                "data, each file once, ascending by path"
            )
            got = f"a difference in {listed(differing)}" if differing else "another order or a repetition"
            raise ArtifactError(where=where, rule=rule, got=got, fix=_FIX)
        return manifest


def read_manifest(file: Path) -> Manifest:
    """Read a manifest from disk.

    Raises:
        ArtifactError: If it is missing or damaged, has an unknown format, or names a file that it must not.
    """
    return Manifest.from_json(read_json_object(file, fix=_FIX), where=str(file))


def list_files(folder: Path) -> tuple[ListedFile, ...]:
    """List every file below `folder` except the manifest, ascending by path."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return tuple(ListedFile.read(folder, path) for path in paths if path != MANIFEST_FILE)
