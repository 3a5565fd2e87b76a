"""The baselines that are issued beside a forecast, from the same candles at the same moment.

What a baseline knows of the past is fitted to the newest candles that had closed by the last midnight UTC:
once a day and series, and the same whenever it is asked for, so that a process that was killed writes the
same numbers as one that was not. Fit and arithmetic are those of the judgement (`v8.formulas.baselines`).

Legend: H steps of the horizon, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.errors import DataError
from v8.features.indicators import warmup_bars
from v8.features.table import compute_table
from v8.formulas.baseline import Forecast
from v8.formulas.baselines import BASELINES
from v8.market.candles import Candles
from v8.market.open_times import iso
from v8.profile import Profile
from v8.windows.dataset import table_columns
from v8.windows.scaling import fit_scaling
from v8.windows.span import Span
from v8.windows.splits import window_anchors

DAY_S: Final = 86_400

FEWEST_FITTED_WINDOWS: Final = 200
"""Windows of the past: baselines fitted to fewer are no opponents."""

_BARS_BEFORE: Final = 500
"""Bars that baselines look back on: the longest range has 240, and an average forgets within 500."""


def fitted_until_s(issued_for_s: int) -> int:
    """Return until when the candles closed that the baselines of a forecast are fitted to.

    >>> fitted_until_s(86_400 + 3_600)
    86400
    """
    return issued_for_s // DAY_S * DAY_S


def known_bars(profile: Profile) -> int:
    """Return how many of the newest candles the baselines of a forecast look at."""
    return warmup_bars(table_columns(profile)) + profile.lookback_bars + _BARS_BEFORE


@dataclass(frozen=True, eq=False)
class FittedBaselines:
    """Every baseline that is installed, fitted to one past.

    Args:
        profile: Gives tasks and horizon.
        until_s: When the newest candle of that past closed, or later; seconds since the epoch, UTC.
        forecasts: Each by its name.
    """

    profile: Profile
    until_s: int
    forecasts: Mapping[str, Forecast]

    def forecast(self, candles: Candles) -> dict[str, dict[str, NDArray[np.float64]]]:
        """Forecast the bars after the newest candle.

        Args:
            candles: `known_bars` of them, or all there are.

        Returns:
            Per baseline and task, shape (H, C), in the task's unit; without baselines that leave a task out.

        Raises:
            DataError: If too few candles are unbroken at the end.
        """
        profile = self.profile
        table = compute_table(candles, table_columns(profile))
        unbroken = np.count_nonzero(table.segment == table.segment[-1])
        if table.open_time_s[-1] != candles.open_time_s[-1] or unbroken < profile.lookback_bars:
            raise DataError(
                where=str(candles.series),
                rule=f"baselines need {profile.lookback_bars} unbroken rows behind the indicators' warm-up",
                got=f"{unbroken} that end at {iso(table.open_time_s[-1])}",
                fix="Wait until the hole in the candles is behind the window",
            )
        newest = Span(table, profile, np.array([len(table) - 1]))
        made = {name: forecast(newest) for name, forecast in self.forecasts.items()}
        return {
            name: {task: np.asarray(values[0]) for task, values in tasks.items()}
            for name, tasks in made.items()
            if set(tasks) >= set(profile.tasks)
        }


def fit_baselines(profile: Profile, candles: Candles, until_s: int) -> FittedBaselines:
    """Fit every baseline that is installed.

    Args:
        profile: Gives features, tasks and horizon.
        candles: The past; none of them may close after `until_s`.
        until_s: See `FittedBaselines`.

    Raises:
        DataError: If there are too few windows without a hole.
        SeriesError: If the close never moves.
    """
    table = compute_table(candles, table_columns(profile))
    rows = (0, len(table))
    anchors = window_anchors(table.segment, rows, profile.lookback_bars, profile.horizon_bars)
    if len(anchors) < FEWEST_FITTED_WINDOWS:
        raise DataError(
            where=str(candles.series),
            rule=f"baselines are fitted to at least {FEWEST_FITTED_WINDOWS} windows that ended by "
            f"{iso(until_s)}",
            got=str(len(anchors)),
            fix="Wait until there are more candles of this series",
        )
    past = Span(table, profile, anchors)
    scaling = fit_scaling(past, rows, table_columns(profile))
    installed = {name: one for name, one in BASELINES.items() if one.is_installed()}
    return FittedBaselines(
        profile, until_s, {name: one.fit(past, scaling) for name, one in installed.items()}
    )
