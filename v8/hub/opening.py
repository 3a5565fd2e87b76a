"""One way to open a forecaster, whether its files lie on this machine or on the Hub."""

from __future__ import annotations

import re
from pathlib import Path

from v8.artifacts.forecaster import Forecaster
from v8.artifacts.series_artifact import METADATA_FILE
from v8.errors import ArtifactError, PullError, listed
from v8.hub.manifest import MODELS_FOLDER
from v8.hub.pull import Pulled, pull
from v8.invocation import command
from v8.registry import nearest

_REPO = re.compile(r"[^/\\\s]+/[^/\\\s]+")


def open_forecaster(
    source: str | Path,
    series: str | None = None,
    *,
    revision: str | None = None,
    is_offline: bool = False,
    kind: type[Forecaster] = Forecaster,
) -> Forecaster:
    """Open a forecaster.

    Args:
        source: An existing folder of a run or of one series, or `user/name` on the Hub.
        series: Such as "BTCUSDT-15m"; None where the folder holds one only.
        revision: Branch, tag or commit on the Hub; None for the newest, and for folders.
        is_offline: Whether to use only what of the Hub is in the cache.
        kind: What to make of it.

    Raises:
        ArtifactError: If the folder does not hold that series, or its files cannot be trusted.
        PullError: If the Hub does not hand it out.
    """
    folder, commit = Path(source), None
    if not folder.is_dir():
        pulled = _pulled(source, series, revision, is_offline=is_offline)
        folder, commit = pulled.artifact(pulled.series[0]), pulled.revision
    elif revision is not None:
        raise ArtifactError(
            where=str(folder),
            rule="a revision belongs to a repository on the Hub",
            got=f"the revision {revision!r} of a folder",
            fix="Leave it out, or write the repository as user/name from where no such folder exists",
        )
    elif not (folder / METADATA_FILE).exists():
        folder = _series_folder(folder, series)
        series = folder.name  # of a run, which must hold what the folder says
    forecaster = kind.load(folder, revision=commit)
    if series not in (None, str(forecaster.series)):
        raise ArtifactError(
            where=str(folder),
            rule=f"must hold the model of {series}",
            got=f"the one of {forecaster.series}",
            fix="Check the folder, or leave the series out",
        )
    return forecaster


def _pulled(source: str | Path, series: str | None, revision: str | None, *, is_offline: bool) -> Pulled:
    if not isinstance(source, str) or not _REPO.fullmatch(source):
        raise ArtifactError(
            where=str(source),
            rule="a model is in a run folder, in the folder of one series, or in user/name on the Hub",
            got="no such folder",
            fix="Check the path",
        )
    if series is None:
        raise PullError(
            where=source,
            rule="needs the series to load",
            got="none",
            fix=f"Name one, for example BTCUSDT-15m; `{command('pull', '--repo', source)}` lists all",
        )
    return pull(source, [series], revision=revision, is_offline=is_offline)


def _series_folder(folder: Path, series: str | None) -> Path:
    for pattern in (f"*/{METADATA_FILE}", f"{MODELS_FOLDER}/*/{METADATA_FILE}"):
        finished = {path.parent.name: path.parent for path in sorted(folder.glob(pattern))}
        if finished:
            break
    if series in finished:
        return finished[series]
    if series is None and len(finished) == 1:
        return next(iter(finished.values()))
    fix = "Choose one of them with --series" if finished else f"Train one with `{command('run')}`"
    if finished and series is not None:
        fix = f"Did you mean {nearest(series, finished)}"
    raise ArtifactError(
        where=str(folder),
        rule="needs a series that is finished in this folder",
        got=f"{'none' if series is None else repr(series)[:80]} of {listed(list(finished)) or 'none'}",
        fix=fix,
    )
