"""The baselines that are issued with a model, fitted once a day.

They are fitted to the newest candles that had closed by the last midnight UTC: once a day and series, and
always with the same result, so that a process that was killed writes the same numbers as one that was not.
Fit and arithmetic are those of the evaluation (`v8.model.baselines.baselines`).

The live record compares with the best baselines that the verdicts of a run name (`stored_references`). A run
stores its verdicts in the metadata of each model. The models are in the run's folder, or in a commit of a
repository that was pulled to this machine: nothing is requested from the Hub, because a record is computed
often, and also without a network.

Legend: H steps of the horizon, C columns of a task.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.base.errors import DataError, V8Error
from v8.data.features import compute_table
from v8.data.market.candles import Candles
from v8.data.market.series import iso
from v8.data.windows.dataset import FEWEST_FITTED_WINDOWS, table_columns, whole_span
from v8.data.windows.scaling import fit_scaling
from v8.data.windows.span import Span
from v8.forecaster.metadata import METADATA_FILE, read_metadata
from v8.model.baselines.baselines import BASELINES, Forecast
from v8.model.evaluation.leaderboard import references
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
