"""The board: forecasts of any methods for the same candles, and one table that compares them.

A method is anything that forecasts: a model of a run, a baseline, a network of the user, another program. All
that a board knows of it are its forecasts, so every method is measured in the same way, and anyone who has
the forecasts can compute the table again.

The table has a row for each task, timeframe and method. Methods are compared on the windows and steps that
all methods of the task have, of the series of which all have some. Errors, intervals, tests and the best
baseline are those of a back-test (`v8.model.evaluation.fold_losses`).

Legend: N windows, H steps, C columns, M methods.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.base.arrays import FloatArray
from v8.base.errors import ArgumentError, listed
from v8.data.market.series import Series
from v8.model.baselines.baselines import NAIVE
from v8.model.evaluation.bootstrap import (
    PairedLosses,
    confidence_set,
    confidence_set_p_values,
    error_interval,
    sampled_means,
)
from v8.model.evaluation.fold_losses import differences_by_close
from v8.model.evaluation.leaderboard import median
from v8.model.evaluation.significance import (
    corrected_p_values,
    diebold_mariano,
    error_ratio,
    is_equal,
    is_lower,
)
from v8.profile.tasks import TASKS

KEYS: Final = ("unique_id", "ds", "cutoff", "step", "column", "y", "scale")
"""Columns of a frame of forecasts that are no methods. `unique_id`, `ds`, `cutoff` and `y` are Nixtla's."""

_LARGEST_FACTOR: Final = 10
"""Largest factor, unitless, between the medians of forecasts and of actual values in the same unit."""


@dataclass(frozen=True)
class Target:
    """What methods are compared on: a task with all its columns, or one column."""

    name: str
    task: str
    columns: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class SeriesForecasts:
    """The forecasts of all methods for the windows of one series."""

    series: Series
    cutoff_s: NDArray[np.int64]  # when the newest known candle of each window opened, ascending, (N,)
    scale: Mapping[str, FloatArray]
    """By column what its errors are divided by, shape (N,): the last close, 1 for shares of the price."""
    actual: Mapping[str, FloatArray]  # by column, shape (N, H), in the unit of the column
    methods: Mapping[str, Mapping[str, FloatArray]]
    """By method and column, shape (N, H), in the unit of the column; NaN where it forecasts nothing."""

    @property
    def num_steps(self) -> int:
        """Steps ahead, H."""
        return next(iter(self.actual.values())).shape[1]

    def num_steps_of(self, method: str, target: Target) -> int:
        """Return the last step that a method forecasts in some window; 0 where it lacks a column."""
        columns = self.methods.get(method, {})
        if not all(name in columns for name in target.columns):
            return 0
        forecast_H = np.isfinite([columns[name] for name in target.columns]).any(axis=1).all(axis=0)
        return int(np.flatnonzero(forecast_H).max(initial=-1)) + 1

    def complete_windows(self, method: str, target: Target, num_steps: int) -> NDArray[np.bool_]:
        """Return which windows a method forecasts at each of the first steps, shape (N,)."""
        columns = [self.methods[method][name][:, :num_steps] for name in target.columns]
        return np.asarray(np.isfinite(columns).all(axis=(0, 2)))

    def losses(self, method: str, target: Target, num_steps: int) -> FloatArray:
        """Return the mean absolute error of each window over steps and columns, in returns, shape (N,)."""
        errors = []
        for name in target.columns:
            error_NH = np.abs(self.methods[method][name] - self.actual[name])[:, :num_steps]
            errors.append(error_NH / self.scale[name][:, None])
        return np.asarray(np.mean(errors, axis=(0, 2)))

    def to_frame(self) -> pd.DataFrame:
        """Lay out all forecasts as `Board.forecasts` says."""
        num_windows = len(self.cutoff_s)
        steps = np.arange(1, self.num_steps + 1)
        frames = []
        for name, actual_NH in self.actual.items():
            columns: dict[str, Any] = {
                "unique_id": str(self.series),
                "ds": _times((self.cutoff_s[:, None] + steps * self.series.bar_s).ravel()),
                "cutoff": _times(np.repeat(self.cutoff_s, len(steps))),
                "step": np.tile(steps, num_windows),
                "column": name,
                "y": actual_NH.ravel(),
                "scale": np.repeat(self.scale[name], len(steps)),
            }
            for method, by_column in self.methods.items():
                columns[method] = by_column[name].ravel() if name in by_column else np.nan
            frames.append(pd.DataFrame(columns))
        return pd.concat(frames, ignore_index=True)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> "SeriesForecasts":
        """Read what `to_frame` wrote."""
        num_steps = int(frame["step"].max())
        names = [str(name) for name in frame if name not in KEYS]
        scale = {}
        actual = {}
        methods: dict[str, dict[str, FloatArray]] = {name: {} for name in names}
        for column, rows in frame.groupby("column", sort=False):
            scale[str(column)] = rows["scale"].to_numpy(np.float64)[::num_steps]
            actual[str(column)] = rows["y"].to_numpy(np.float64).reshape(-1, num_steps)
            cutoff_s = seconds_of(rows["cutoff"])[::num_steps]
            for name in names:
                values_NH = rows[name].to_numpy(np.float64).reshape(-1, num_steps)
                if np.isfinite(values_NH).any():
                    methods[name][str(column)] = values_NH
        return cls(Series.parse(str(frame["unique_id"].iloc[0])), cutoff_s, scale, actual, methods)


def in_windows(
    rows: pd.DataFrame,
    methods: Mapping[str, str],
    windows: SeriesForecasts,
) -> dict[str, dict[str, FloatArray]]:
    """Lay the rows of a frame over the windows of a series; rows of other windows and steps are left out.

    Args:
        rows: Rows of one series: `cutoff`, `ds`, the columns of methods, and `column` unless there is one
            column only.
        methods: The name of each method, by its column in the frame.
        windows: The windows, with the columns that are evaluated.

    Returns:
        Forecasts by method and column, shape (N, H); without columns that have no row.

    Raises:
        ArgumentError: If a row is not of a whole number of bars after its cutoff, or is repeated, or if the
            forecasts are no numbers, or not in the unit of the actual values.
    """
    num_steps = windows.num_steps
    num_windows = len(windows.cutoff_s)
    cutoff_s = seconds_of(rows["cutoff"])
    ahead_s = seconds_of(rows["ds"]) - cutoff_s
    steps, rest_s = np.divmod(ahead_s, windows.series.bar_s)
    is_misplaced = (rest_s != 0) | (steps < 1)
    if is_misplaced.any():
        first = int(np.flatnonzero(is_misplaced)[0])
        raise ArgumentError(
            where=f"forecasts of {windows.series}",
            rule="have as cutoff when the newest known candle opened, and as ds when the forecast bar opens: "
            "a whole number of bars later",
            got=f"cutoff {rows['cutoff'].iloc[first]}, ds {rows['ds'].iloc[first]}",
            fix="Write when bars open, not when they close",
        )
    keys = [name for name in ("cutoff", "ds", "column") if name in rows]
    repeated = rows.duplicated(keys)
    if repeated.any():
        raise ArgumentError(
            where=f"forecasts of {windows.series}",
            rule=f"have one row for each {', '.join(keys)}",
            got=f"several for {listed([str(value) for value in rows.loc[repeated, keys].iloc[0]])}",
            fix="Remove the repetition; of several folds that overlap keep one",
        )
    for source in methods:
        if not pd.api.types.is_numeric_dtype(rows[source]):
            raise ArgumentError(
                where=f"forecasts of {windows.series}, {source}",
                rule="is a column of numbers",
                got=f"values such as {str(rows[source].iloc[0])[:40]!r}" if len(rows) else "no rows",
                fix="Convert it: pandas.to_numeric",
            )
    numbers = np.minimum(np.searchsorted(windows.cutoff_s, cutoff_s), num_windows - 1)
    is_known = (windows.cutoff_s[numbers] == cutoff_s) & (steps >= 1) & (steps <= num_steps)
    found: dict[str, dict[str, FloatArray]] = {name: {} for name in methods.values()}
    for column in windows.actual:
        is_wanted = is_known
        if "column" in rows:
            is_wanted = is_known & (rows["column"] == column).to_numpy()
        if not is_wanted.any():
            continue
        for source, name in methods.items():
            grid_NH = np.full((num_windows, num_steps), np.nan)
            grid_NH[numbers[is_wanted], steps[is_wanted] - 1] = rows[source].to_numpy(np.float64)[is_wanted]
            _require_unit(name, column, grid_NH, windows)
            found[name][column] = grid_NH
    return found


def _require_unit(name: str, column: str, forecast_NH: FloatArray, windows: SeriesForecasts) -> None:
    """Refuse forecasts of another size than the actual values: returns, for example, instead of prices."""
    actual_NH = windows.actual[column]
    is_forecast = np.isfinite(forecast_NH)
    if not is_forecast.any() or (actual_NH <= 0).any():
        return
    forecast_median = float(np.median(forecast_NH[is_forecast]))
    actual_median = float(np.median(actual_NH[is_forecast]))
    if actual_median / _LARGEST_FACTOR <= forecast_median <= actual_median * _LARGEST_FACTOR:
        return
    raise ArgumentError(
        where=f"forecasts of {windows.series}, {name}, {column}",
        rule="are in the unit of the actual values: their medians differ by a factor of at most "
        f"{_LARGEST_FACTOR}",
        got=f"a median of {forecast_median:.4g} for actual values of {actual_median:.4g}",
        fix="Write prices of the quote currency, no returns and no scaled values; other columns are shares",
    )


def seconds_of(times: pd.Series) -> NDArray[np.int64]:
    """Return times, of any unit or as text, in seconds since the epoch, UTC."""
    return np.asarray(pd.to_datetime(times, utc=True).astype("datetime64[s, UTC]").astype(np.int64))


def _times(seconds: NDArray[np.int64]) -> Any:
    return pd.to_datetime(seconds, unit="s", utc=True)


def _task_of(column: str) -> str:
    return next(name for name, task in TASKS.items() if column in task.columns)


def targets_of(columns: Iterable[str]) -> list[Target]:
    """Return the tasks of which all columns are forecast, and each other column by itself."""
    names = list(columns)
    targets = [
        Target(name, name, task.columns)
        for name, task in TASKS.items()
        if all(column in names for column in task.columns)
    ]
    in_tasks = {column for target in targets for column in target.columns}
    others = [name for name in names if name not in in_tasks]
    return targets + [Target(name, _task_of(name), (name,)) for name in others]


@dataclass(frozen=True, eq=False)
class SharedLosses:
    """The losses of all methods in the windows of one series that all have."""

    series: Series
    closes_s: NDArray[np.int64]  # shape (N,)
    by_method: Mapping[str, FloatArray]  # shape (N,), in returns

    def paired(self, method: str, baseline: str) -> PairedLosses:
        """Return the losses of a method and of a baseline."""
        return PairedLosses(str(self.series), self.closes_s, self.by_method[method], self.by_method[baseline])

    def mean(self, method: str) -> float:
        """Return the mean loss of a method."""
        return float(self.by_method[method].mean())

    def ratio(self, method: str, baseline: str) -> float | None:
        """Return the mean loss of a method divided by a baseline's; None if that is zero."""
        return error_ratio(self.mean(method), self.mean(baseline))


@dataclass(frozen=True, eq=False)
class Comparison:
    """What is compared of one target: its methods, on as many steps as all of them have."""

    target: Target
    best: str  # the best baseline
    num_steps: int
    series: Sequence[SharedLosses]


def comparison_rows(comparisons: Iterable[Comparison]) -> pd.DataFrame:
    """Return `Board.table` of some comparisons, at least one, with p-values corrected for all of its rows."""
    rows = [row for comparison in comparisons for row in _rows(comparison)]
    table = pd.DataFrame(rows)
    for name in ("p_value", "p_value_to_best"):
        values = [None if pd.isna(value) else value for value in table[name]]
        table[name] = pd.Series(corrected_p_values(values), dtype=np.float64)
    return table


def series_rows(comparisons: Iterable[Comparison]) -> pd.DataFrame:
    """Return a row for each series, task and method, see `Board.scores`."""
    rows = []
    for comparison in comparisons:
        for shared in comparison.series:
            for method in shared.by_method:
                rows.append(
                    {
                        "unique_id": str(shared.series),
                        "task": comparison.target.name,
                        "method": method,
                        "num_windows": len(shared.closes_s),
                        "num_steps": comparison.num_steps,
                        "mae": shared.mean(method),
                        "relative_mae": shared.ratio(method, NAIVE),
                        "relative_mae_to_best": shared.ratio(method, comparison.best),
                    }
                )
    return pd.DataFrame(rows)


def compare(forecasts: Sequence[SeriesForecasts], best: Mapping[str, str]) -> Iterator[Comparison]:
    """Yield what is compared of each target; `best` are the best baselines by task.

    Raises:
        ArgumentError: If the methods of a target share no window.
    """
    for target in targets_of(next(iter(forecasts)).actual):
        names = dict.fromkeys(name for each in forecasts for name in each.methods)
        num_steps = {}
        for name in names:
            steps = [each.num_steps_of(name, target) for each in forecasts]
            if any(steps):
                num_steps[name] = max(steps)
        fewest = min(num_steps.values())
        shared = [_shared_losses(each, target, list(num_steps), fewest) for each in forecasts]
        with_windows = [each for each in shared if len(each.closes_s)]
        if not with_windows:
            numbers = [f"{_num_windows(forecasts, name, target, fewest)} of {name}" for name in num_steps]
            raise ArgumentError(
                where=f"forecasts of {target.name}",
                rule="share at least one whole window of the test span of a series",
                got=f"the windows {listed(numbers)}",
                fix="Forecast each step of the same cutoffs",
            )
        yield Comparison(target, best[target.task], fewest, with_windows)


def _num_windows(forecasts: Sequence[SeriesForecasts], method: str, target: Target, num_steps: int) -> int:
    windows = [
        each.complete_windows(method, target, num_steps)
        for each in forecasts
        if each.num_steps_of(method, target)
    ]
    return sum(int(is_complete_N.sum()) for is_complete_N in windows)


def _shared_losses(
    forecasts: SeriesForecasts, target: Target, methods: Sequence[str], num_steps: int
) -> SharedLosses:
    """Compute the losses in the windows that all methods have; none where one lacks the series."""
    is_shared_N = np.full(len(forecasts.cutoff_s), fill_value=True)
    for name in methods:
        if forecasts.num_steps_of(name, target) == 0:
            is_shared_N[:] = False
            break
        is_shared_N &= forecasts.complete_windows(name, target, num_steps)
    by_method = {}
    if is_shared_N.any():
        by_method = {name: forecasts.losses(name, target, num_steps)[is_shared_N] for name in methods}
    series = forecasts.series
    return SharedLosses(series, forecasts.cutoff_s[is_shared_N] + series.bar_s, by_method)


def _rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield the rows of a target, for each timeframe the lowest error first; p-values are not corrected."""
    for timeframe in dict.fromkeys(shared.series.timeframe for shared in comparison.series):
        series = [shared for shared in comparison.series if shared.series.timeframe == timeframe]
        among_best = _best_methods(series, comparison.num_steps)
        rows = []
        for method in series[0].by_method:
            row: dict[str, Any] = {
                "task": comparison.target.name,
                "timeframe": timeframe,
                "method": method,
                "num_series": len(series),
                "num_windows": sum(len(shared.closes_s) for shared in series),
                "num_steps": comparison.num_steps,
                "mae": fmean(shared.mean(method) for shared in series),
                **_compared(series, method, NAIVE, comparison.num_steps, ""),
                "best_baseline": comparison.best,
                **_compared(series, method, comparison.best, comparison.num_steps, "_to_best"),
                "is_among_best": method in among_best,
            }
            rows.append(row)
        yield from sorted(rows, key=lambda row: (row["relative_mae"], row["method"]))


def _compared(
    series: Sequence[SharedLosses], method: str, baseline: str, num_steps: int, ending: str
) -> dict[str, float]:
    """Compare a method with a baseline over the series of a timeframe; NaN for what there is not."""
    ratios = [shared.ratio(method, baseline) for shared in series]
    pairs = [shared.paired(method, baseline) for shared in series]
    interval = None
    p_value = None
    if not all(is_equal(shared.mean(method), shared.mean(baseline)) for shared in series):
        interval = error_interval(pairs, num_steps)
        _, differences = differences_by_close(pairs, [shared.mean(NAIVE) for shared in series])
        p_value = diebold_mariano(differences, horizon_bars=num_steps).p_value
    figures = {
        "relative_mae": median(ratios),
        "low_95": interval.low if interval else None,
        "high_95": interval.high if interval else None,
        "p_value": p_value,
        "win_rate": fmean(is_lower(ratio) for ratio in ratios),
    }
    return {f"{name}{ending}": np.nan if value is None else value for name, value in figures.items()}


def _best_methods(series: Sequence[SharedLosses], num_steps: int) -> list[str]:
    """Return the methods that cannot be told apart from the best: the model confidence set."""
    losses = {}
    for method in series[0].by_method:
        pairs = []
        for shared in series:
            own = shared.by_method[method]
            pairs.append(PairedLosses(str(shared.series), shared.closes_s, own, np.zeros_like(own)))
        _, losses[method] = differences_by_close(pairs, [shared.mean(NAIVE) for shared in series])
    return confidence_set(confidence_set_p_values(losses, sampled_means(losses, num_steps)))
