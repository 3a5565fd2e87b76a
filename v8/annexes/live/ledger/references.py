"""Finds the best baselines that the verdicts of a run name, so that the live record compares with the same.

A run stores its verdicts in the metadata of each model. The models are in the run's folder, or in a commit of
a repository that was pulled to this machine: nothing is requested from the Hub, because a record is computed
often, and also without a network.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from v8.base.errors import V8Error
from v8.forecaster.metadata import METADATA_FILE, read_metadata
from v8.model.evaluation.verdict import references


def stored_references(place: Path | str, commits: Mapping[str, str | None]) -> dict[str, dict[str, str]]:
    """Return the best baselines that stored verdicts name, by series and task.

    Empty for a series whose model is not on this machine or cannot be read, and for one whose metadata stores
    no verdict: that of a run that goes on, or of format 1.

    Args:
        place: A run's folder, or `user/name` on the Hub.
        commits: By series the commit of its newest model on the Hub; None for a model that has none.
    """
    from v8.publish.hub.opening import open_place  # noqa: PLC0415 - most commands of the ledger open no models

    by_series: dict[str, dict[str, str]] = {series: {} for series in commits}
    if not isinstance(place, Path):
        for series, commit in commits.items():
            if commit is not None:
                with suppress(OSError, V8Error):
                    by_series[series] = _references_of_commit(place, commit, series)
        return by_series
    with suppress(OSError, V8Error):  # the folder may be gone
        models = open_place(place)
        for series in commits:
            with suppress(OSError, V8Error):
                folder, _ = models.locate(series)
                by_series[series] = _references_in(folder, (folder / METADATA_FILE).stat().st_mtime_ns)
    return by_series


@lru_cache(maxsize=10_000)
def _references_of_commit(repo: str, commit: str, series: str) -> dict[str, str]:
    """Return the best baselines that the model of a commit names; raises if it is not in the cache."""
    from v8.publish.hub.opening import open_place  # noqa: PLC0415 - as above

    folder, _ = open_place(repo, revision=commit, is_offline=True).locate(series)
    return _references_in(folder, 0)


@lru_cache(maxsize=10_000)
def _references_in(folder: Path, _written_ns: int) -> dict[str, str]:
    """Return the best baselines that the metadata in a folder names, as long as the file is the same."""
    stored = read_metadata(folder).result.verdict
    return {} if stored is None else references(stored)
