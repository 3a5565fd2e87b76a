"""The places that hold models: run folders, folders of one series, repositories on the Hub.

All models that are opened from a repository are of one commit: the one that the revision meant when the place
was first asked.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from v8.artifacts.forecaster import Forecaster
from v8.artifacts.metadata import METADATA_FILE, read_metadata
from v8.artifacts.nested_runs import served_folder
from v8.artifacts.pooled import PooledForecaster
from v8.artifacts.run_folder import read_run
from v8.artifacts.shared_models import SharedModels
from v8.errors import ArtifactError, PullError, listed
from v8.hub.client import told
from v8.hub.layout import MODELS_FOLDER
from v8.hub.pull import Pulled, pull
from v8.invocation import command
from v8.market.series import is_series_name, series_advice

_REPO = re.compile(r"[^/\\\s]+/[^/\\\s]+")


class ModelPlace(ABC):
    """Where models are, by the name that the user gave the place.

    What asks for models raises `ArtifactError` if there is none, a folder does not hold that series or its
    files cannot be trusted, and `PullError` if the Hub does not tell or does not hand them out.
    """

    def __init__(self, name: str, models: SharedModels) -> None:
        self.name = name
        self._models = models

    @property
    @abstractmethod
    def series(self) -> tuple[str, ...]:
        """Names of all series that the place has a model of."""

    def bring(self, series: Sequence[str]) -> None:  # noqa: B027 - a folder has them already
        """Have what forecasts some series on this machine, in one go where it comes from afar.

        A file that cannot be trusted is not told here: opening its model will.
        """

    @abstractmethod
    def found(self, series: str | None) -> tuple[Path, str | None]:
        """Return the folder of the model that serves a series now, and the commit that it is of."""

    @abstractmethod
    def present(self, series: str) -> str:
        """Return what changes when another model serves a series: its folder and file, or a commit."""

    def open(self, series: str | None = None, kind: type[Forecaster] = Forecaster) -> Forecaster:
        """Open the model of a series, as it is now, as a `kind`; None where the place holds one only."""
        folder, commit = self.found(series)
        forecaster = kind.load(folder, revision=commit, models=self._models)
        if series not in (None, str(forecaster.series)):
            words = {"where": folder, "series": series, "found": forecaster.series}
            raise ArtifactError(**told("open", "OTHER_SERIES", **words))
        return forecaster

    def sources_of(self, series: str) -> tuple[str, ...]:
        """Name the series whose models forecast one: itself, or all of its timeframe if it has no model.

        Raises `ArtifactError` if there is none of its timeframe either.
        """
        known, (_, _, timeframe) = self.series, series.rpartition("-")
        if series in known:
            return (series,)
        found = tuple(each for each in known if each.endswith(f"-{timeframe}"))
        if found:
            return found
        words = {"timeframe": timeframe, "said": listed(known), "place": self.name}
        raise ArtifactError(**told("open", "TIMEFRAME", where=series, **words))

    def forecaster_of(self, series: str) -> Forecaster:
        """Open the model of a series, or what the models of others say of it, see `sources_of`."""
        names = self.sources_of(series)
        if names == (series,):
            return self.open(series)
        return PooledForecaster(series, [self.serving(name) for name in names])

    def serving(self, series: str) -> Forecaster:
        """Return the model that serves a series, opened once as long as it does; see `open`."""
        return self._models.serving(series, self.present(series), lambda: self.open(series))


class _Folder(ModelPlace):
    """A run, the models of a downloaded repository, or the folder of one series."""

    @property
    def series(self) -> tuple[str, ...]:
        if self._is_artifact:
            return (read_metadata(Path(self.name)).series,)
        if not self._finished:
            raise self._missing(None)
        return tuple(self._finished)

    def present(self, series: str) -> str:
        folder, _ = self.found(series)
        about = (folder / METADATA_FILE).stat()  # written aside and renamed with every model
        return f"{folder} {about.st_ino} {about.st_mtime_ns} {about.st_size}"

    def found(self, series: str | None) -> tuple[Path, str | None]:
        if self._is_artifact:
            return Path(self.name), None
        name = next(iter(self._finished)) if series is None and len(self._finished) == 1 else series
        if name not in self._finished:
            raise self._missing(series)
        found = served_folder(self._finished[name].parent, name)
        if series is None:
            read_metadata(found, series=name)  # a run must hold what its folders say
        return found, None

    @property
    def _is_artifact(self) -> bool:
        return Path(self.name, METADATA_FILE).exists()

    @cached_property
    def _finished(self) -> dict[str, Path]:
        for pattern in (f"*/{METADATA_FILE}", f"{MODELS_FOLDER}/*/{METADATA_FILE}"):
            paths = (file.parent for file in sorted(Path(self.name).glob(pattern)))
            finished = {path.name: path for path in paths if is_series_name(path.name)}
            if finished:
                return finished
        return {}

    def _missing(self, series: str | None) -> ArtifactError:
        finished = [*self._finished]
        if not finished:
            read_run(Path(self.name))  # which says what lies there instead
        advice = "Choose one of them with param:series" if finished else f"Train one with `{command('run')}`"
        if finished and series is not None:
            advice = series_advice(series, finished, "Choose one of them")
        said = f"{'none' if series is None else repr(series)[:80]} of {listed(finished) or 'none'}"
        return ArtifactError(**told("open", "MISSING", where=self.name, said=said, advice=advice))


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

    def bring(self, series: Sequence[str]) -> None:
        with suppress(ArtifactError):  # opening that model tells
            self._pulled([each for name in series for each in self.sources_of(name)])

    def present(self, series: str) -> str:
        return self._commit or self._pulled(()).revision

    def found(self, series: str | None) -> tuple[Path, str | None]:
        if series is None:
            words = command("pull", "--repo", self.name)
            raise PullError(**told("open", "UNNAMED", where=self.name, command=words))
        pulled = self._pulled([series])
        return pulled.artifact(series), pulled.revision

    def _pulled(self, series: Sequence[str]) -> Pulled:
        """Bring some series, and stay at the commit that the revision meant."""
        pulled = pull(self.name, series, revision=self._revision, is_offline=self._is_offline)
        self._revision = self._commit = pulled.revision
        return pulled


def open_place(
    source: str | Path,
    *,
    revision: str | None = None,
    is_offline: bool = False,
    models: SharedModels | None = None,
) -> ModelPlace:
    """Open a place that holds models; nothing is asked of the Hub yet.

    Args:
        source: An existing folder of a run or of one series, or `user/name` on the Hub.
        revision: Branch, tag or commit on the Hub; None for the newest, and for folders.
        is_offline: Whether to use only what of the Hub is in the cache.
        models: Those in memory; places that share them open each once.

    Raises `ArtifactError` if it is neither, or a revision is given for a folder.
    """
    models = models or SharedModels()
    if Path(source).is_dir():
        if revision is None:
            return _Folder(str(source), models)
        raise ArtifactError(**told("open", "FOLDER_REVISION", where=source, revision=revision))
    if not isinstance(source, str) or not _REPO.fullmatch(source):
        raise ArtifactError(**told("open", "NO_PLACE", where=source))
    return _Repository(source, models, revision, is_offline)
