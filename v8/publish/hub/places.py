"""Places that hold models: run folders, folders of one series, repositories on the Hub and their manifests.

All models that are opened from a repository are of one commit: the one that the revision stood for when the
first of them was opened. A series without a model is forecast by those of other series (`PooledForecaster`).
A published repository has these files:

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
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, ConfigDict, Field

from v8.base import records
from v8.base.errors import ArtifactError, PullError, listed, shown
from v8.base.process import command
from v8.base.records import read_json_object
from v8.base.storage import digest_bytes, digest_file
from v8.data.market.series import by_series, is_series_name, series_advice
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import (
    EVALUATED_SECTIONS,
    HISTORY_FILE,
    METADATA_FILE,
    MODEL_FILE,
    ONNX_FILE,
    read_metadata,
)
from v8.forecaster.series_artifact import README_FILE
from v8.forecaster.shared_models import SharedModels
from v8.forecaster.standalone import FEATURES_FILE
from v8.model.evaluation.leaderboard import LEADERBOARD_FILE
from v8.model.networks.published import Forecasts
from v8.publish.report.card import FORECAST_PICTURE, MODELS_FOLDER
from v8.runs.run_folder import RUN_FILE, RUNS, folder_advice, read_run
from v8.runs.serving import FIRST, read_serving, served_folder

if TYPE_CHECKING:
    from v8.publish.hub.pull import Pulled


MANIFEST_FORMAT: Final = 1  # version of the keys of `manifest.json`
MANIFEST_FILE: Final = "manifest.json"
CARD_FILE: Final = "README.md"
PICTURE_FILE: Final = "leaderboard.png"

_OPTIONAL_FILES: Final = (PICTURE_FILE, FORECAST_PICTURE, FEATURES_FILE)
ROOT_FILES: Final = (CARD_FILE, LEADERBOARD_FILE, *_OPTIONAL_FILES)
SERIES_FILES: Final = (README_FILE, HISTORY_FILE, METADATA_FILE, MODEL_FILE)

MAX_LINE: Final = 200  # most characters of a text in a manifest
_FIX: Final = f"Publish the run again with `{command('publish')}`, or pull another revision"

_REPO = re.compile(r"[^/\\\s]+/[^/\\\s]+")


class ModelPlace(ABC):
    """A place that holds models; `name` is what the user called it.

    Methods that need a model raise `ArtifactError` if there is none, if a folder does not hold the series, or
    if its files cannot be trusted; and `PullError` if the Hub does not answer or refuses.
    """

    def __init__(self, name: str, models: SharedModels) -> None:
        self.name = name
        self._models = models

    @property
    def label(self) -> str:
        """Its name for strangers: of a folder no path, and none of its letters that a terminal obeys."""
        return self.name

    @property
    @abstractmethod
    def series(self) -> tuple[str, ...]:
        """Names of all series that the place holds a model of."""

    def prefetch(self, series: Sequence[str]) -> None:  # noqa: B027 - a folder has them already
        """Download the models that forecast some series, all together, if they are not on this machine.

        A file that cannot be trusted raises nothing here; opening its model does.
        """

    @abstractmethod
    def locate(self, series: str | None) -> tuple[Path, str | None]:
        """Return the folder of the model that serves a series now, and its commit on the Hub, if any."""

    @abstractmethod
    def version_of(self, series: str) -> str:
        """Return a text that changes when another model serves a series: its folder and file, or a commit."""

    def open(self, series: str | None = None, kind: type[Forecaster] = Forecaster) -> Forecaster:
        """Open the model that serves a series now.

        Args:
            series: Its name; may be None if the place holds one model only.
            kind: The class of the forecaster.
        """
        folder, commit = self.locate(series)
        forecaster = kind.load(folder, revision=commit, models=self._models)
        if series not in (None, str(forecaster.series)):
            raise ArtifactError(
                where=str(folder),
                rule=f"must hold the model of {series}",
                got=f"the one of {forecaster.series}",
                fix="Check the folder, or leave the series out",
            )
        return forecaster

    def sources_of(self, series: str) -> tuple[str, ...]:
        """Return the series whose models forecast a series.

        That is itself, or all series of its timeframe if it has no model.

        Raises:
            ArtifactError: If there is no model of its timeframe.
        """
        available = self.series
        if series in available:
            return (series,)
        _, _, timeframe = series.rpartition("-")
        of_timeframe = tuple(name for name in available if name.endswith(f"-{timeframe}"))
        if not of_timeframe:
            raise ArtifactError(
                where=series,
                rule=f"needs a model of its own, or models of other series at {timeframe}",
                got=f"models of {listed(available)} in {self.name}",
                fix="Choose a timeframe that is there with param:series",
            )
        return of_timeframe

    def forecaster_of(self, series: str) -> Forecaster:
        """Open the model of a series, or pool the models of other series, see `sources_of`."""
        names = self.sources_of(series)
        if names == (series,):
            return self.open(series)
        return PooledForecaster(series, [self.serving(name) for name in names])

    def serving(self, series: str) -> Forecaster:
        """Return the model that serves a series; it is opened again only when another model serves it."""
        return self._models.serving(series, self.version_of(series), lambda: self.open(series))


class PooledForecaster(Forecaster):
    """Models of one profile and timeframe, used as one model for series that it was not trained on.

    Models forecast ranges relative to earlier ranges, so the price and the volatility of a series hardly
    matter; docs/research/pooled.md has the figures. The median of coherent forecasts is coherent, too: low <=
    open, close <= high, and quantiles do not cross.

    Its digest is made from the digests of its members. Its paths are those of its first member, adjusted to
    its own quantiles.

    Args:
        series: The series that it forecasts.
        members: The models; members of another profile than that of the first are left out.
    """

    trained_on = "other series"

    def __init__(self, series: str, members: Sequence[Forecaster]) -> None:
        first = members[0].about
        self.members = [member for member in members if member.about.profile_digest == first.profile_digest]
        # What was found on a test span is of the first member alone.
        content = {key: value for key, value in first.content.items() if key not in EVALUATED_SECTIONS}
        features = []
        for same in zip(*(member.about.features for member in self.members), strict=True):
            lows, highs = zip(*(feature.value_range for feature in same), strict=True)
            features.append(replace(same[0], value_range=(min(lows), max(highs))))
        digests = "".join(member.about.model_sha256 for member in self.members)
        metadata = replace(
            first,
            series=series,
            content=content,
            features=tuple(features),
            model_sha256=digest_bytes(digests.encode()),
        )
        super().__init__(metadata, members[0].model, revision=members[0].revision)
        self.trained_until_s = max(member.trained_until_s for member in self.members)
        names = listed([str(member.series) for member in self.members])
        self.origin_lines = (f"{series} has no model: this is the median of what those of {names} say.",)

    def forecast_all(self, windows_NTF: NDArray[np.float32]) -> Forecasts:
        """Forecast raw feature windows: the medians over members of point forecasts and of each quantile."""
        forecasts = [member.forecast_all(windows_NTF) for member in self.members]
        return Forecasts(
            _medians([forecast.points for forecast in forecasts]),
            _medians([forecast.quantiles for forecast in forecasts]),
        )


def _medians(forecasts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return the element-wise medians of arrays, per task."""
    return {task: np.median([by_task[task] for by_task in forecasts], axis=0) for task in forecasts[0]}


class _Folder(ModelPlace):
    """The folder of a run, of a downloaded repository, or of one series."""

    @property
    def label(self) -> str:
        return shown(f"run {Path(self.name).resolve().name}")

    @property
    def series(self) -> tuple[str, ...]:
        if self._is_artifact:
            return (read_metadata(Path(self.name)).series,)
        if not self._finished:
            raise self._missing_error(None)
        return tuple(self._finished)

    def version_of(self, series: str) -> str:
        folder, _ = self.locate(series)
        status = (folder / METADATA_FILE).stat()  # this file is replaced with every new model
        return f"{folder} {status.st_ino} {status.st_mtime_ns} {status.st_size}"

    def locate(self, series: str | None) -> tuple[Path, str | None]:
        if self._is_artifact:
            return Path(self.name), None
        name = series
        if series is None and len(self._finished) == 1:
            (name,) = self._finished
        if name not in self._finished:
            raise self._missing_error(series)
        folder = served_folder(self._finished[name].parent, name)
        if series is None:
            # The metadata must be of the series that the folder is named by.
            read_metadata(folder, series=name)
        return folder, None

    def open(self, series: str | None = None, kind: type[Forecaster] = Forecaster) -> Forecaster:
        """Open a model; that of the folder of one series says so if another one serves in its run."""
        forecaster = super().open(series, kind)
        if self._is_artifact:
            forecaster.origin_lines += self._replaced_lines(str(forecaster.series))
        return forecaster

    def _replaced_lines(self, series: str) -> tuple[str, ...]:
        """Return a line if this is the first model of a series, and a later one serves it."""
        run = Path(self.name).resolve().parent
        generation = FIRST
        if (run / RUN_FILE).is_file():
            with suppress(ArtifactError):  # the model itself is whole
                generation = read_serving(run).generation_of(series)
        if generation == FIRST:
            return ()
        return (
            f"{series}: this is its first model; in {shown(run.name)} the one of {generation} serves. "
            "Name the run, and not the folder of the series, to forecast with that.",
        )

    @property
    def _is_artifact(self) -> bool:
        return Path(self.name, METADATA_FILE).exists()

    @cached_property
    def _finished(self) -> dict[str, Path]:
        for pattern in (f"*/{METADATA_FILE}", f"{MODELS_FOLDER}/*/{METADATA_FILE}"):
            folders = (file.parent for file in sorted(Path(self.name).glob(pattern)))
            finished = {folder.name: folder for folder in folders if is_series_name(folder.name)}
            if finished:
                return finished
        return {}

    def _missing_error(self, series: str | None) -> ArtifactError:
        """Return the error for a series that is not finished here, or for none where one must be named."""
        finished = [*self._finished]
        if not finished:
            read_run(Path(self.name))  # raises an error that says what lies there, if it is no run
        if not finished:
            fix = f"Train one with `{command('run')}`"
        elif series is None:
            fix = "Choose one of them with param:series"
        else:
            fix = series_advice(series, finished, "Choose one of them")
        requested = "none" if series is None else repr(series)[:80]
        return ArtifactError(
            where=self.name,
            rule="needs a series that is finished in this folder",
            got=f"{requested} of {listed(finished) or 'none'}",
            fix=fix,
        )


class _Repository(ModelPlace):
    """`user/name` on the Hub, at one commit."""

    def __init__(self, name: str, models: SharedModels, revision: str | None, is_offline: bool) -> None:
        super().__init__(name, models)
        self._revision = revision
        self._is_offline = is_offline
        self._commit: str | None = None

    @cached_property
    def series(self) -> tuple[str, ...]:
        return self._pulled(()).manifest.series

    def prefetch(self, series: Sequence[str]) -> None:
        with suppress(ArtifactError):  # raised again when the model is opened
            self._pulled([source for name in series for source in self.sources_of(name)])

    def version_of(self, series: str) -> str:
        return self._commit or self._pulled(()).revision

    def locate(self, series: str | None) -> tuple[Path, str | None]:
        if series is None:
            list_command = command("pull", "--repo", self.name)
            raise PullError(
                where=self.name,
                rule="needs the series to load",
                got="none",
                fix=f"Name one, for example BTCUSDT-15m; `{list_command}` lists all",
            )
        pulled = self._pulled([series])
        return pulled.artifact(series), pulled.revision

    def _pulled(self, series: Sequence[str]) -> "Pulled":
        """Pull some series, and stay at the commit that the revision stood for."""
        from v8.publish.hub.pull import pull  # noqa: PLC0415 - a folder needs no client of the Hub

        pulled = pull(self.name, series, revision=self._revision, is_offline=self._is_offline)
        self._commit = pulled.revision
        self._revision = pulled.revision
        return pulled


def is_repository(name: str) -> bool:
    """Return whether a text has the form of a repository on the Hub, `user/name`.

    >>> is_repository("you/models"), is_repository("./runs/frontier")
    (True, False)
    """
    return _REPO.fullmatch(name) is not None


def open_place(
    source: str | Path,
    *,
    revision: str | None = None,
    is_offline: bool = False,
    models: SharedModels | None = None,
) -> ModelPlace:
    """Open a place that holds models; no request is sent to the Hub yet.

    Args:
        source: An existing folder of a run or of one series, or `user/name` on the Hub.
        revision: Branch, tag or commit on the Hub; None for the newest, and for folders.
        is_offline: Whether to use the cache only, and not the Hub.
        models: Models in memory; places that share them open each model once.

    Raises:
        ArtifactError: If the source is neither, or a revision is named for a folder.
    """
    models = models or SharedModels()
    if Path(source).is_dir():
        if revision is None:
            return _Folder(str(source), models)
        raise ArtifactError(
            where=str(source),
            rule="a revision belongs to a repository on the Hub",
            got=f"the revision {revision!r} of a folder",
            fix="Leave it out, or write the repository as user/name from where no such folder exists",
        )
    if not isinstance(source, str) or not is_repository(source) or _is_missing_run(Path(source)):
        raise ArtifactError(
            where=str(source),
            rule="a model is in a run folder, in the folder of one series, or in user/name on the Hub",
            got="a file" if Path(source).is_file() else "no such folder",
            fix=_advice(Path(source)),
        )
    return _Repository(source, models, revision, is_offline)


def _advice(path: Path) -> str:
    """Say what a path that is no folder is probably meant to be: `user/name` may be a repository."""
    if path.parent == RUNS:
        return folder_advice(path, f"Train one with `{command('run')}`")
    if is_repository(str(path)) and not path.parent.exists():
        return f"If it is a repository on the Hub, write param:repo {path}"
    return folder_advice(path)


def _is_missing_run(path: Path) -> bool:
    """Return whether a name, which may be a repository's, is that of a run which is not there.

    It is where its folder is the one that v8 makes runs in, or if a run next to it has nearly its name.
    """
    if path.parent == RUNS:
        return True
    meant = folder_advice(path, "").removeprefix("Did you mean ")
    return path.parent.is_dir() and bool(meant) and (Path(meant) / RUN_FILE).is_file()


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
            raise ArtifactError(
                where=where,
                rule=(
                    f"lists {CARD_FILE}, {LEADERBOARD_FILE} and {len(SERIES_FILES)} files of every series in "
                    "data, each file once, ascending by path"
                ),
                got=f"a difference in {listed(differing)}" if differing else "another order or a repetition",
                fix=_FIX,
            )
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
