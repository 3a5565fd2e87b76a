"""The forecast of the present from a loaded model, which is loaded again when another one serves."""

from __future__ import annotations

from v8.app.places import Fleet
from v8.artifacts.forecaster import Forecaster
from v8.artifacts.shared_models import SharedModels
from v8.live.issuing import Issued, issue
from v8.market.series import Series
from v8.market.sources.source import CandleSource


class Issuer:
    """Models in memory, at most one a series.

    Args:
        source: Where candles come from.
    """

    def __init__(self, source: CandleSource) -> None:
        self._source = source
        self._loaded: dict[Series, tuple[str, Forecaster]] = {}
        self._models = SharedModels()

    def __call__(self, fleet: Fleet, series: Series) -> Issued:
        """Forecast the bars after the newest closed candle.

        Args:
            fleet: Which models serve now.
            series: One that the fleet has.

        Raises:
            DataError: If the candles cannot be had or trusted, or are too old.
            ArtifactError: If the model cannot be trusted.
        """
        return issue(self._forecaster(fleet, series), self._source, fleet.label)

    def _forecaster(self, fleet: Fleet, series: Series) -> Forecaster:
        digest = fleet.digest(series)
        if series not in self._loaded or self._loaded[series][0] != digest:
            folder = fleet.folders[series]
            loaded = Forecaster.load(folder, revision=fleet.revision, models=self._models)
            self._loaded[series] = str(loaded.metadata["model_sha256"]), loaded
        return self._loaded[series][1]
