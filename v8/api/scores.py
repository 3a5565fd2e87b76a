"""Forecasts of one's own beside those of baselines: `v8.evaluate`."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.api.arguments import in_python
from v8.api.forecaster import joined_candles
from v8.api.windows import span_dataset
from v8.base.arrays import FloatArray
from v8.base.errors import ArgumentError, listed
from v8.base.starting import quiet_start
from v8.data.features.table import compute_table
from v8.data.market.candles import Candles
from v8.data.market.frames import RawCandles
from v8.data.windows.dataset import SeriesData, prepare_series, table_columns
from v8.data.windows.span import Span
from v8.model.baselines.baselines import BASELINES, NAIVE
from v8.model.baselines.references import reference_baseline
from v8.model.evaluation.metrics import in_returns
from v8.model.evaluation.significance import diebold_mariano, error_ratio
from v8.profile.profile import Profile, load_profile
from v8.profile.tasks import TASKS

_WHERE: Final = "v8.evaluate, forecasts="
_NO_METHODS: Final = ("unique_id", "ds", "cutoff", "y", "series", "index")
"""Columns of a frame of forecasts that are no methods."""
_BOUND: Final = re.compile("-(lo|hi)-")  # in the names of bounds of intervals


@dataclass(frozen=True)
class _Target:
    """What forecasts are evaluated on: a task with all its columns, or one column."""

    name: str
    task: str
    columns: tuple[int, ...]  # numbers of the columns of the task


@dataclass(frozen=True, eq=False)
class _Forecasts:
    """The forecasts of one method for some windows of the test span."""

    windows: NDArray[np.int64]  # numbers of the windows, ascending, shape (M,)
    by_target: Mapping[str, FloatArray]  # by the name of the target, (M, h, columns), in the task's unit


@in_python
def evaluate(
    forecasts: Any,
    candles: Candles | RawCandles,
    profile: str | Path | Profile = "frontier",
    *,
    column: str | None = None,
    series: str | None = None,
    covariates: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Compare forecasts of your own with the naive forecast and the best baseline, on the test span.

    The candles are divided as `v8.windows` divides them, and the baselines are fitted to the train span. All
    forecasts are compared on the windows of the test span that all of them have, and on as many steps.

    Args:
        forecasts: One of these, or a mapping from names to several: a Keras model that was fitted on the
            windows of the profile, with an output for each task; or a frame in the layout of Nixtla's
            `cross_validation`, a row for each bar: `cutoff` (when the newest known candle opened), `ds` (when
            the forecast bar opens), and a column of prices for each method. With `unique_id` the frame may
            hold other series, too.
        candles: The candles of one series, as for `v8.windows`.
        profile: As for `v8.windows`.
        column: What frames forecast, such as "close", "high" or "volatility"; None for "close". Models are
            evaluated on it, too; without a frame None evaluates them on all columns of each task.
        series: Such as "BTCUSDT-15m"; needed where a frame has `unique_id`.
        covariates: As for `v8.windows`.

    Returns:
        A row for each task (or the column) and method, the naive forecast and the best baseline included, the
        lowest error first:

        * `task`: text, the task or the column; `method`: text.
        * `num_windows`, `num_steps`: how many windows and steps all methods share, int64.
        * `mae`: mean absolute error in returns, unitless.
        * `relative_mae`: divided by the naive forecast's; below 1 is better. `relative_mae_to_best`: likewise
          by the best baseline's.
        * `p_value`, `p_value_to_best`: of these differences (Diebold-Mariano), 0 to 1, not corrected; NaN
          with too few windows.

    Raises:
        ArgumentError: If forecasts are of another kind, or share no whole window of the test span.
        DataError: If the candles cannot be read, or a span of them does not hold one window.

    >>> import v8
    >>> v8.evaluate(model, candles, "frontier")  # doctest: +SKIP
    >>> v8.evaluate({"mine": model, "theirs": frame}, candles, column="close")  # doctest: +SKIP
    """
    named = _named(forecasts)
    loaded = profile if isinstance(profile, Profile) else load_profile(str(profile))
    table = compute_table(joined_candles(candles, loaded, series, covariates), table_columns(loaded))
    data = prepare_series(table, loaded)
    has_frames = any(isinstance(one, pd.DataFrame) for one in named.values())
    targets = _targets(loaded, column or ("close" if has_frames else None))
    methods: dict[str, _Forecasts] = {}
    for name, one in named.items():
        if isinstance(one, pd.DataFrame):
            methods |= _of_frame(one, data.spans["test"], targets[0].name, series)
        else:
            methods[name] = _of_model(one, span_dataset(data, "test"), data, targets)
    return _scores(methods, data, targets)


def _named(forecasts: Any) -> dict[str, Any]:
    """Return models and frames of forecasts by name."""
    named = dict(forecasts) if isinstance(forecasts, Mapping) else {"model": forecasts}
    for name, one in named.items():
        is_model = callable(getattr(one, "predict", None))
        if not isinstance(one, pd.DataFrame) and not (is_model and isinstance(name, str)):
            rule = "is a Keras model, a frame of forecasts, or a mapping from names to these"
            raise _refused(rule, repr(one)[:60])
    if not named:
        raise _refused("is at least one Keras model or frame of forecasts", "an empty mapping")
    return named


def _targets(profile: Profile, column: str | None) -> list[_Target]:
    """Return what is evaluated: one column, or every task of the profile."""
    targets = [_Target(task, task, tuple(range(len(TASKS[task].columns)))) for task in profile.tasks]
    if column is None:
        return targets
    for target in targets:
        columns = TASKS[target.task].columns
        if column in columns:
            return [_Target(column, target.task, (columns.index(column),))]
    known = [name for task in profile.tasks for name in TASKS[task].columns]
    raise ArgumentError(
        where="v8.evaluate, column=",
        rule=f"is a column that {profile.name} forecasts: {', '.join(known)}",
        got=repr(column)[:60],
        fix="Choose one of these, or a profile with its task",
    )


def _of_model(model: Any, dataset: Any, data: SeriesData, targets: Sequence[_Target]) -> _Forecasts:
    """Let a Keras model forecast every window of the test span, and turn its outputs into prices."""
    span = data.spans["test"]
    with quiet_start():
        outputs = model.predict(dataset, verbose=0)
    tasks = list(span.profile.tasks)
    if not isinstance(outputs, Mapping):
        outputs = dict(zip(tasks, [outputs], strict=False)) if len(tasks) == 1 else {}
    by_target = {}
    for target in targets:
        shape = span.actual[target.task].shape
        scaled = np.asarray(outputs.get(target.task, np.empty(0)))
        if scaled.shape != shape:
            rule = f"has an output {target.task} of shape {shape} for the windows of v8.windows"
            raise _refused(rule, f"the outputs {listed([*outputs]) or 'without names'}, shape {scaled.shape}")
        forecasts = data.scaling.unscale_targets(span, target.task, scaled)
        by_target[target.name] = forecasts[:, :, target.columns]
    return _Forecasts(np.arange(len(span)), by_target)


def _of_frame(frame: pd.DataFrame, span: Span, target: str, series: str | None) -> dict[str, _Forecasts]:
    """Read the methods of a frame in Nixtla's layout, for the windows of the test span that they forecast."""
    missing = [name for name in ("ds", "cutoff") if name not in frame]
    names = [str(name) for name in frame]
    methods = [name for name in names if name not in _NO_METHODS and not _BOUND.search(name)]
    if missing or not methods:
        rule = "has the columns cutoff and ds, and one for each method"
        raise _refused(rule, f"the columns {listed(names)}")
    if "unique_id" in frame:
        if series is None:
            fix = "Name the series of the candles by series="
            raise _refused("belongs to the candles: with unique_id it needs series=", "no series=", fix)
        frame = frame[frame["unique_id"].astype(str) == series]
    times = {
        name: pd.to_datetime(frame[name], utc=True).astype("datetime64[s, UTC]") for name in ("ds", "cutoff")
    }
    cutoff_s = times["cutoff"].astype(np.int64).to_numpy()
    steps = (times["ds"].astype(np.int64).to_numpy() - cutoff_s) // span.table.series.bar_s
    opens_s = span.table.open_time_s[span.anchors].astype(np.int64)
    window = np.searchsorted(opens_s, cutoff_s)
    is_known = (opens_s[np.minimum(window, len(opens_s) - 1)] == cutoff_s) & (steps >= 1)
    is_known &= steps <= span.horizon_bars
    num_steps = int(steps[is_known].max(initial=0))
    found = {}
    for name in methods:
        grid = np.full((len(opens_s), max(num_steps, 1)), np.nan)
        grid[window[is_known], steps[is_known] - 1] = frame[name].to_numpy(np.float64)[is_known]
        whole = np.flatnonzero(np.isfinite(grid).all(axis=1))
        found[name] = _Forecasts(whole, {target: grid[whole][:, :, None]})
    return found


def _scores(methods: Mapping[str, _Forecasts], data: SeriesData, targets: Sequence[_Target]) -> pd.DataFrame:
    """Compute the losses of all methods on the windows and steps that all have, and compare them."""
    span = data.spans["test"]
    shared = np.arange(len(span))
    for each in methods.values():
        shared = np.intersect1d(shared, each.windows)
    if not len(shared):
        numbers = [f"{len(each.windows)} of {name}" for name, each in methods.items()]
        rule = f"share at least one of the {len(span)} windows of the test span"
        raise _refused(rule, f"the windows {listed(numbers)}", "Forecast each step of the same cutoffs")
    baselines: dict[str, Callable[[Span], Mapping[str, FloatArray]]] = {}
    rows = []
    for target in targets:
        arrays = {}
        for name, each in methods.items():
            arrays[name] = each.by_target[target.name][np.searchsorted(each.windows, shared)]
        num_steps = min(array.shape[1] for array in arrays.values())
        best = reference_baseline(target.task) or NAIVE
        for name in dict.fromkeys((NAIVE, best)):
            if name not in baselines:
                baselines[name] = BASELINES[name].fitted(data.spans["train"], data.scaling)
            arrays[name] = baselines[name](span)[target.task][shared][:, :, target.columns]
        actual = span.actual[target.task][shared][:, :num_steps, target.columns]
        losses = {}
        for name, array in arrays.items():
            error = in_returns(target.task, array[:, :num_steps] - actual, span.last_close[shared])
            losses[name] = np.abs(error).mean(axis=(1, 2))
        rows += _rows(target, losses, best, num_steps)
    return pd.DataFrame(rows)


def _rows(
    target: _Target, losses: Mapping[str, NDArray[np.float64]], best: str, num_steps: int
) -> list[dict[str, Any]]:
    """Compare the losses of the methods, shape (M,), with those of naive and of the best baseline."""
    rows = []
    for name, of_method in losses.items():
        row: dict[str, Any] = {
            "task": target.name,
            "method": name,
            "num_windows": len(of_method),
            "num_steps": num_steps,
            "mae": float(of_method.mean()),
        }
        for ending, other in (("", NAIVE), ("_to_best", best)):
            ratio = error_ratio(row["mae"], float(losses[other].mean()))
            test = diebold_mariano(of_method - losses[other], horizon_bars=num_steps)
            row[f"relative_mae{ending}"] = np.nan if ratio is None else ratio
            row[f"p_value{ending}"] = np.nan if test.p_value is None or name == other else test.p_value
        rows.append(row)
    return sorted(rows, key=lambda row: row["mae"])


def _refused(rule: str, got: str, fix: str = "help(v8.evaluate) says what each may be") -> ArgumentError:
    return ArgumentError(where=_WHERE, rule=rule, got=got, fix=fix)
