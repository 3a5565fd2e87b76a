"""A forecaster of an unseen series, on which no model was trained: the median of models of other series.

Models forecast ranges relative to earlier ranges, so the price and the volatility of a series hardly matter;
docs/research/pooled.md has the figures. The median of coherent forecasts is coherent, too: low <= open, close
<= high, and quantiles do not cross.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.base.errors import listed
from v8.base.storage import digest_bytes
from v8.forecaster.forecaster import Forecaster
from v8.model.networks.published import Forecasts


class PooledForecaster(Forecaster):
    """Models of one profile and timeframe, used as one model for series that it was not trained on.

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
        content = dict(first.content)
        for section in ("evaluation", "quantiles"):  # of the first member alone
            content.pop(section, None)
        features = [
            replace(feature, value_range=self._value_range(feature.name)) for feature in first.features
        ]
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

    def _value_range(self, name: str) -> tuple[float, float] | None:
        """Return the smallest and the largest value of a feature in the training of all members."""
        all_ranges = [member.about.value_ranges for member in self.members]
        ranges = [by_name[name] for by_name in all_ranges if name in by_name]
        if not ranges:
            return None
        return min(low for low, _ in ranges), max(high for _, high in ranges)

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
