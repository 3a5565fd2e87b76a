"""Places that hold models: run folders, folders of one series, repositories on the Hub.

All models that are opened from a repository are of one commit: the one that the revision stood for when the
first of them was opened.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from v8.base.errors import ArtifactError, PullError, listed, shown
from v8.base.process import command
from v8.data.market.series import is_series_name, series_advice
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import METADATA_FILE, read_metadata
from v8.forecaster.pooled import PooledForecaster
from v8.forecaster.shared_models import SharedModels
from v8.publish.report.card import MODELS_FOLDER
from v8.runs.run_folder import RUN_FILE, RUNS, folder_advice, read_run
from v8.runs.serving import served_folder

if TYPE_CHECKING:
    from v8.publish.hub.pull import Pulled

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
