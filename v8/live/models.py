"""The models of a place as they are now: opened once, and again when another one serves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from v8.artifacts.forecaster import Forecaster
from v8.errors import ArtifactError, listed
from v8.hub.opening import open_place
from v8.market.series import series_advice


class PresentModels:
    """What serves now in a run folder, or in the newest commit of a repository.

    Args:
        source: As for `v8.hub.opening.open_place`.
        wanted: Names of the series that are meant; all of the place when None.
        revision: A commit, branch or tag of the Hub instead of the newest.
        is_offline: Whether to use only what of the Hub is in the cache.
    """

    def __init__(
        self,
        source: str | Path,
        wanted: Sequence[str] | None = None,
        *,
        revision: str | None = None,
        is_offline: bool = False,
    ) -> None:
        self._source, self._wanted = source, wanted
        self._revision, self._is_offline = revision, is_offline
        self._opened: dict[str, tuple[str, Forecaster]] = {}
        self.look()

    def look(self) -> None:
        """Look at the place anew: which series it has, and which commit is the newest.

        Raises:
            ArtifactError: If it is no place of models, or lacks a series that is meant.
            PullError: If the Hub does not tell.
        """
        place = open_place(self._source, revision=self._revision, is_offline=self._is_offline)
        found = place.series
        missing = [name for name in self._wanted or () if name not in found]
        if missing or not found:
            raise ArtifactError(
                where=place.name,
                rule="must have a finished model of every series that is forecast",
                got=f"none of {listed(missing) if missing else 'any series'}",
                fix=series_advice(missing[0], found, "Train it first") if missing else "Train one first",
            )
        self._place, self.series = place, tuple(self._wanted or found)

    def forecaster(self, series: str) -> Forecaster:
        """Return the model that serves a series.

        Raises:
            ArtifactError: If it cannot be trusted.
            PullError: If the Hub does not hand it out.
        """
        present = self._place.present(series)
        if series not in self._opened or self._opened[series][0] != present:
            self._opened[series] = present, self._place.open(series)
        return self._opened[series][1]
