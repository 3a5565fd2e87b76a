"""The baselines that are issued with a model, fitted once a day.

They are fitted to the newest candles that had closed by the last midnight UTC: once a day and series, and
always with the same result, so that a process that was killed writes the same numbers as one that was not.
Fit and arithmetic are those of the evaluation (`v8.model.baselines.baselines`).

Legend: H steps of the horizon, C columns of a task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.base.errors import DataError
from v8.data.features.table import compute_table
from v8.data.market.candles import Candles
from v8.data.market.series import iso
from v8.data.windows.dataset import FEWEST_FITTED_WINDOWS, table_columns, whole_span
from v8.data.windows.scaling import fit_scaling
from v8.data.windows.span import Span
from v8.model.baselines.baselines import BASELINES, Forecast
from v8.profile.formulas import DAY_S
from v8.profile.indicators import warmup_bars
from v8.profile.profile import Profile

_HISTORY_BARS: Final = 500
"""Bars that baselines look back on: the longest range has 240, and an average forgets within 500."""


def fitted_until_s(issued_for_s: int) -> int:
    """Return until when the candles closed that the baselines of a forecast are fitted to.

    >>> fitted_until_s(86_400 + 3_600)
    86400
    """
    return issued_for_s // DAY_S * DAY_S


def baseline_bars(profile: Profile) -> int:
    """Return how many of the newest candles the baselines of a forecast need."""
    return warmup_bars(table_columns(profile)) + profile.lookback_bars + _HISTORY_BARS


@dataclass(frozen=True, eq=False)
class FittedBaselines:
    """Every baseline that is installed, fitted to the same candles."""

    profile: Profile  # gives tasks and horizon
    until_s: int  # no later candle than this was fitted to, time of its close, seconds since the epoch, UTC
    forecasts: Mapping[str, Forecast]  # by name

    def forecast(self, candles: Candles) -> dict[str, dict[str, NDArray[np.float64]]]:
        """Forecast the bars after the newest candle, by baseline and task.

        Baselines that do not forecast every task of the profile are left out.

        Args:
            candles: At least the newest `baseline_bars`, or all there are.

        Returns:
            Per baseline and task an array (H, C), in the task's unit.

        Raises:
            DataError: If too few candles are without a gap.
        """
        profile = self.profile
        table = compute_table(candles, table_columns(profile))
        num_unbroken = np.count_nonzero(table.segment == table.segment[-1])
        if table.open_time_s[-1] != candles.open_time_s[-1] or num_unbroken < profile.lookback_bars:
            rule = f"baselines need {profile.lookback_bars} unbroken rows behind the indicators' warm-up"
            got = f"{num_unbroken} that end at {iso(table.open_time_s[-1])}"
            fix = "Wait until the hole in the candles is behind the window"
            raise DataError(where=str(candles.series), rule=rule, got=got, fix=fix)
        newest_window = Span(table, profile, np.array([len(table) - 1]))
        forecasts = {}
        for name, forecast in self.forecasts.items():
            by_task = forecast(newest_window)
            if set(by_task) >= set(profile.tasks):
                forecasts[name] = {task: np.asarray(values[0]) for task, values in by_task.items()}
        return forecasts


def fit_baselines(profile: Profile, candles: Candles, until_s: int) -> FittedBaselines:
    """Fit every baseline that is installed.

    Args:
        profile: The profile of the model.
        candles: The candles to fit to; none may close after `until_s`.
        until_s: Seconds since the epoch, UTC.

    Raises:
        DataError: If there are too few windows without a gap.
        SeriesError: If the close never moves.
    """
    span = whole_span(candles, profile)
    if len(span) < FEWEST_FITTED_WINDOWS:
        windows = f"{FEWEST_FITTED_WINDOWS} windows that ended by {iso(until_s)}"
        rule = f"baselines are fitted to at least {windows}"
        fix = "Wait until there are more candles of this series"
        raise DataError(where=str(candles.series), rule=rule, got=str(len(span)), fix=fix)
    scaling = fit_scaling(span, (0, len(span.table)), table_columns(profile))
    forecasts = {}
    for name, baseline in BASELINES.items():
        if baseline.is_installed():
            forecasts[name] = baseline.fitted(span, scaling)
    return FittedBaselines(profile, until_s, forecasts)
