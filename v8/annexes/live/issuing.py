"""Makes the forecasts that the ledger keeps, and their scores.

All baselines are issued with the model. They are fitted to the newest candles that had closed by the last
midnight UTC: once a day and series, and always with the same result, so that a process that was killed writes
the same numbers as one that was not. Fit and arithmetic are those of the evaluation
(`v8.model.baselines.baselines`).

The loss of a forecast is what the leaderboard averages: its mean absolute error in returns over all steps
and columns of a task; that of a quantile is twice its pinball loss. It is computed once, when the last
forecast bar has closed, from the same columns as the evaluation. These are computed from a fixed number of
candles, so a score does not depend on when it is computed.

Legend: K forecasters, T tasks, H steps of the horizon, C columns of a task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.annexes.live.entries import Entry, Issuer, Score, level_of, quantile_forecaster
from v8.base.errors import DataError, SeriesError, listed
from v8.data.features import compute_table
from v8.data.market.candles import Candles
from v8.data.market.series import iso
from v8.data.scaling import fit_scaling
from v8.data.span import Span, actual_values
from v8.data.windows import FEWEST_FITTED_WINDOWS, table_columns, whole_span
from v8.forecaster.forecaster import Forecaster
from v8.model.baselines.baselines import BASELINES, FittedBaseline
from v8.model.evaluation.evaluation import MODEL
from v8.model.evaluation.metrics import in_returns
from v8.profile.columns import CLOSE, MEDIAN, outer, pinball, quantile_column
from v8.profile.formulas import DAY_S
from v8.profile.indicators import warmup_bars
from v8.profile.profile import Profile
from v8.profile.tasks import TASKS

_HISTORY_BARS: Final = 500
"""Bars that baselines look back on: the longest range has 240, and an average forgets within 500."""
VOID_AFTER_S: Final = 2 * DAY_S
"""Seconds after the last forecast bar closed from which on a missing candle is waited for no longer: the
forecast is void and has no score."""


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
    forecasts: Mapping[str, FittedBaseline]  # by name

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
            raise DataError(
                where=str(candles.series),
                rule=f"baselines need {profile.lookback_bars} unbroken rows behind the indicators' warm-up",
                got=f"{num_unbroken} that end at {iso(table.open_time_s[-1])}",
                fix="Wait until the hole in the candles is behind the window",
            )
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
        raise DataError(
            where=str(candles.series),
            rule=f"baselines are fitted to at least {FEWEST_FITTED_WINDOWS} windows",
            got=f"{len(span)} that ended by {iso(until_s)}",
            fix="Wait until there are more candles of this series",
        )
    scaling = fit_scaling(span, (0, len(span.table)), table_columns(profile))
    forecasts = {}
    for name, baseline in BASELINES.items():
        if baseline.is_installed():
            forecasts[name] = baseline.fitted(span, scaling)
    return FittedBaselines(profile, until_s, forecasts)


def forecast_bars(forecaster: Forecaster) -> int:
    """Return how many of the newest candles the forecasts of a close need, model and baselines."""
    return max(forecaster.needed_bars, baseline_bars(forecaster.about.trained_profile))


def make_entry(
    forecaster: Forecaster,
    fitted: FittedBaselines,
    candles: Candles,
    written_s: int,
    place: str,
    *,
    has_range: bool = False,
) -> Entry:
    """Forecast the bars after the newest candle, by the model and every baseline.

    The model gets as many candles as it needs and no more, as in `predict`, so that the same candles give the
    same numbers, however many others are available.

    Args:
        forecaster: The model.
        fitted: Baselines of its profile.
        candles: At least the newest `forecast_bars`; the newest one closes when the forecast bars open.
        written_s: When the forecast is written, seconds since the epoch, UTC.
        place: Where the model is, as the ledger names it.
        has_range: Whether to simulate the range of prices, too, which messages hold.

    Raises:
        DataError: If too few candles are without a gap, or the model was trained on the bars to forecast.
        SeriesError: If a forecast is not finite.
    """
    model_candles = candles.newest(forecaster.needed_bars)
    profile = fitted.profile
    issued_for_s = int(model_candles.open_time_s[-1]) + forecaster.series.bar_s
    _require_trained_before(forecaster, issued_for_s)
    ahead = None
    if has_range:
        outlook = forecaster.outlook_joined(model_candles)
        frame = outlook.forecast
        ahead = outlook.price_range
    else:
        frame = forecaster.predict_joined(model_candles)
    columns = {task: TASKS[task].columns for task in profile.tasks}
    forecasts: dict[str, Mapping[str, NDArray[np.float64]]] = {
        MODEL: {task: frame[[*names]].to_numpy() for task, names in columns.items()},
        **fitted.forecast(candles.newest(baseline_bars(profile))),
    }
    for level in outer(forecaster.quantiles):  # each quantile is a forecaster of its own
        forecasts[quantile_forecaster(level)] = {
            task: frame[[quantile_column(name, level) for name in names]].to_numpy()
            for task, names in columns.items()
        }
    issuer = Issuer(
        place=place,
        series=str(forecaster.series),
        model_sha256=forecaster.about.model_sha256,
        revision=forecaster.revision,
        trained_until_s=forecaster.trained_until_s,
        profile=profile.name,
        profile_digest=profile.digest,
        source=candles.source,
        bar_s=forecaster.series.bar_s,
        horizon_bars=forecaster.horizon_bars,
        tasks=columns,
        forecasters=tuple(forecasts),
    )
    stacked = {task: np.stack([by_task[task] for by_task in forecasts.values()]) for task in columns}
    values = issuer.concatenate(stacked)
    faulty = [name for name, row in zip(forecasts, values, strict=True) if not np.isfinite(row).all()]
    if faulty:
        raise SeriesError(
            where=issuer.series,
            rule="forecasts are finite numbers of single precision",
            got=f"others from {listed(faulty)} at {iso(issued_for_s)}",
            fix="That close is left out",
        )
    return Entry(
        issuer=issuer,
        issued_for_s=issued_for_s,
        written_s=written_s,
        candles_digest=model_candles.digest,
        values=values,
        price_range=ahead,
    )


def _require_trained_before(forecaster: Forecaster, issued_for_s: int) -> None:
    """Refuse a model of the demo market, and a model that was trained on the bars to forecast."""
    location = str(forecaster.series)
    seen_s = forecaster.trained_until_s
    if forecaster.about.is_demo_market:
        raise DataError(
            where=location,
            rule="a ledger is of models that were trained on real candles",
            got="one of the demo market",
            fix="Train it on real candles",
        )
    if seen_s > issued_for_s:
        raise DataError(
            where=location,
            rule="a model forecasts what it has not seen",
            got=f"the close at {iso(issued_for_s)}, and a model that has seen candles until {iso(seen_s)}",
            fix="That close is left out",
        )


def scoring_bars(entry: Entry) -> int:
    """Return how many candles up to the last forecast bar a score is computed from."""
    return warmup_bars(_columns(entry)) + 1 + entry.issuer.horizon_bars


def score(entry: Entry, candles: Candles, now_s: int) -> Score | None:
    """Score a forecast whose last bar has closed.

    Args:
        entry: The forecast.
        candles: Among them at least the `scoring_bars` candles up to its last bar.
        now_s: The present, seconds since the epoch, UTC.

    Returns:
        Its score; one without losses if a candle never came; None if a missing candle may still come.
    """
    issuer = entry.issuer
    num_bars = scoring_bars(entry)
    first_open_s = entry.due_s - num_bars * issuer.bar_s
    last_open_s = entry.due_s - issuer.bar_s
    is_needed = (candles.open_time_s >= first_open_s) & (candles.open_time_s <= last_open_s)
    if int(is_needed.sum()) < num_bars:
        is_void = now_s >= entry.due_s + VOID_AFTER_S
        return Score(now_s, None, None, None) if is_void else None
    scoring_candles = candles.newest(num_bars, last_open_s)
    table = compute_table(scoring_candles, _columns(entry))
    rows_1H = np.arange(len(table) - issuer.horizon_bars, len(table))[None]
    actual = {}
    for task, columns in issuer.tasks.items():
        if TASKS[task].is_of_bars:
            actual[task] = table.select(columns)[rows_1H[0]]
        else:
            actual[task] = actual_values(table, task, rows_1H)[0].astype(np.float32)
    last_close = float(table.column(CLOSE)[-1 - issuer.horizon_bars])
    return Score(
        scored_s=now_s,
        actual_digest=scoring_candles.digest,
        actual=issuer.concatenate(actual),
        losses=_losses(entry, actual, last_close),
    )


def _columns(entry: Entry) -> tuple[str, ...]:
    names: list[str] = []
    for task, columns in entry.issuer.tasks.items():
        names += columns if TASKS[task].is_of_bars else TASKS[task].input_columns
    return tuple(dict.fromkeys([*names, CLOSE]))


def _losses(
    entry: Entry, actual: Mapping[str, NDArray[np.float32]], last_close: float
) -> NDArray[np.float64]:
    """Return mean absolute errors in returns, of quantiles twice their pinball losses, shape (K, T)."""
    closes = np.full(len(entry.values), last_close)
    forecasts = entry.issuer.split(entry.values.astype(np.float64))
    # A point forecast counts as the median: twice its pinball loss is the absolute error.
    levels = np.array([level_of(name) or MEDIAN for name in entry.issuer.forecasters])[:, None, None]
    losses = []
    for task in entry.issuer.tasks:
        errors = in_returns(task, actual[task] - forecasts[task], closes)
        losses.append(2.0 * pinball(np, errors, levels).mean(axis=(1, 2)))
    return np.stack(losses, axis=1)
