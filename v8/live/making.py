"""A model and its candles become an entry: the forecast of a close, with all baselines beside it.

What a baseline knows of the past is fitted to the newest candles that had closed by the last midnight UTC:
once a day and series, and the same whenever it is asked for, so that a process that was killed writes the
same numbers as one that was not. Fit and arithmetic are those of the judgement (`v8.formulas.baselines`).

Legend: H steps of the horizon, C columns of a task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.artifacts.forecaster import Forecaster
from v8.errors import DataError, SeriesError, listed
from v8.features.formulas import DAY_S
from v8.features.indicators import warmup_bars
from v8.features.table import compute_table
from v8.formulas.baseline import Forecast
from v8.formulas.baselines import BASELINES
from v8.live.entries import Entry, Issuer, quantile_forecaster
from v8.losses.judgement import MODEL
from v8.market.candles import Candles
from v8.market.series import iso
from v8.profile import Profile
from v8.quantile_levels import outer, quantile_column
from v8.tasks import TASKS
from v8.windows.dataset import table_columns
from v8.windows.scaling import fit_scaling
from v8.windows.span import Span
from v8.windows.splits import window_anchors

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
    """Every baseline that is installed, fitted to one past."""

    profile: Profile  # gives tasks and horizon
    until_s: int  # when the newest candle of that past closed, or later; seconds since the epoch, UTC
    forecasts: Mapping[str, Forecast]  # each by its name

    def forecast(self, candles: Candles) -> dict[str, dict[str, NDArray[np.float64]]]:
        """Forecast the bars after the newest candle, per baseline and task, shape (H, C), in the task's unit.

        `known_bars` candles, or all there are, are enough. Baselines that leave a task out are left out.
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
    """Fit every baseline that is installed to candles of which none may close after `until_s`.

    Raises `DataError` if there are too few windows without a hole; `SeriesError` if the close never moves.
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


def profile_of(forecaster: Forecaster) -> Profile:
    """Return the profile that a model was trained with; `ProfileError` if it is none of this v8."""
    return forecaster.about.trained_profile


def wanted_bars(forecaster: Forecaster, profile: Profile) -> int:
    """Return how many of the newest candles the forecast of a close is made from."""
    return max(forecaster.needed_bars, known_bars(profile))


def make_entry(
    forecaster: Forecaster, fitted: FittedBaselines, candles: Candles, written_s: int, place: str
) -> Entry:
    """Forecast the bars after the newest candle, by the model and every baseline.

    The model is given as many candles as it needs and no more, as `predict` does, so that the same candles
    give the same numbers whatever else is known. `wanted_bars` candles are enough; the newest closes when the
    forecast bars open.

    Raises `DataError` if too few candles are unbroken, or the model has seen what it should forecast.
    """
    known = candles.newest(forecaster.needed_bars)
    issued_for_s = int(known.open_time_s[-1]) + forecaster.series.bar_s
    _require_fitting(forecaster, issued_for_s)
    frame = forecaster.predict(known)
    profile = fitted.profile
    made: dict[str, Mapping[str, NDArray[np.float64]]] = {
        MODEL: {task: frame[[*TASKS[task].columns]].to_numpy() for task in profile.tasks},
        **fitted.forecast(candles.newest(known_bars(profile))),
        **_quantiles(forecaster, frame, profile),
    }
    issuer = Issuer(
        place=place,
        series=str(forecaster.series),
        model_sha256=forecaster.about.model_sha256,
        revision=forecaster.revision,
        seen_until_s=forecaster.seen_until_s,
        profile=profile.name,
        profile_digest=profile.digest,
        source=candles.source,
        bar_s=forecaster.series.bar_s,
        horizon_bars=forecaster.horizon_bars,
        tasks={task: TASKS[task].columns for task in profile.tasks},
        forecasters=tuple(made),
    )
    values = issuer.joined({task: np.stack([one[task] for one in made.values()]) for task in issuer.tasks})
    if not np.isfinite(values).all():
        strange = [name for name, row in zip(made, values, strict=True) if not np.isfinite(row).all()]
        raise SeriesError(
            where=issuer.series,
            rule="forecasts are finite numbers of single precision",
            got=f"others from {listed(strange)} at {iso(issued_for_s)}",
            fix="That close is left out",
        )
    return Entry(issuer, issued_for_s, written_s, known.digest, values)


def _quantiles(
    forecaster: Forecaster, frame: pd.DataFrame, profile: Profile
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return the model's outer quantiles, level by level, as if each were a forecaster of its own."""
    return {
        quantile_forecaster(level): {
            task: frame[[quantile_column(name, level) for name in TASKS[task].columns]].to_numpy()
            for task in profile.tasks
        }
        for level in outer(forecaster.quantiles)
    }


def _require_fitting(forecaster: Forecaster, issued_for_s: int) -> None:
    """Refuse to speak about real prices with a model of simulated ones, and of what a model has seen."""
    if forecaster.about.is_demo_market:
        raise DataError(
            where=str(forecaster.series),
            rule="a ledger is of models that were trained on real candles",
            got="one of the demo market",
            fix="Train it on real candles",
        )
    if forecaster.seen_until_s > issued_for_s:
        raise DataError(
            where=str(forecaster.series),
            rule="a model forecasts what it has not seen",
            got=f"the close at {iso(issued_for_s)}, and a model that has seen candles until "
            f"{iso(forecaster.seen_until_s)}",
            fix="That close is left out",
        )
