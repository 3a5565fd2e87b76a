"""A forecaster of a series that no model was trained on: the median of what models of other series say.

What models know is how ranges follow each other, in multiples of ranges behind, so that prices and how wild a
series is hardly matter: docs/research/pooled.md has the figures. A median of forecasts that can each be true
at once can be, too: low <= open, close <= high, and quantiles never cross.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from v8.artifacts.forecaster import Forecaster
from v8.errors import listed
from v8.networks.published import Forecasts
from v8.storage import digest_bytes


class PooledForecaster(Forecaster):
    """Models of one profile and timeframe, as one that was trained on other series and never evaluated.

    Its digest is that of its members' digests, its paths are those of its first member, moved to its own
    quantiles.

    Args:
        series: What it forecasts.
        members: The models; those of another profile than the first are left out.
    """

    trained_on = "other series"

    def __init__(self, series: str, members: Sequence[Forecaster]) -> None:
        first = members[0].about
        self.members = [one for one in members if one.about.profile_digest == first.profile_digest]
        evaluated = {"evaluation", "quantiles"}
        about = replace(
            first,
            series=series,
            content={key: value for key, value in first.content.items() if key not in evaluated},
            features=tuple(replace(each, seen=self._seen(each.name)) for each in first.features),
            model_sha256=digest_bytes("".join(one.about.model_sha256 for one in self.members).encode()),
        )
        super().__init__(about, members[0].model, revision=members[0].revision)
        self.trained_until_s = max(one.trained_until_s for one in self.members)
        names = listed([str(one.series) for one in self.members])
        self.origin_lines = (f"{series} has no model: this is the median of what those of {names} say.",)

    def _seen(self, name: str) -> tuple[float, float] | None:
        """Return the least and the largest value that any member's training saw of an input."""
        seen = [one.about.seen[name] for one in self.members if name in one.about.seen]
        return (min(least for least, _ in seen), max(most for _, most in seen)) if seen else None

    def forecast_all(self, windows_NTF: NDArray[np.float32]) -> Forecasts:
        """Forecast raw feature windows by all members: the medians of points and of each quantile."""
        said = [one.forecast_all(windows_NTF) for one in self.members]
        points, quantiles = (
            {task: np.median([each[task] for each in told], axis=0) for task in told[0]}
            for told in ([one.points for one in said], [one.quantiles for one in said])
        )
        return Forecasts(points, quantiles)
