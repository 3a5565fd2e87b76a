"""Back-tests, forecasts of the past and leaderboards as frames: `v8.backtest`, `v8.export`, `v8.leaderboard`.

Frames of forecasts are long: a row is one bar ahead of one forecast. They are laid out like the result of
`cross_validation` in the libraries of Nixtla and of `historical_forecasts` in Darts: what was forecast is in
the column of the forecaster, what came in `y`, and `cutoff` says which candles were known.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from v8.api.arguments import in_python, maybe_path, series_list
from v8.api.backtests import BacktestRequest, ExportRequest, backtest_for_python, export_for_python
from v8.api.runs import RawCandles, profile_file, source_of
from v8.base.child import run_in_child
from v8.base.errors import ArgumentError, ArtifactError, listed
from v8.base.hardware import process_variables
from v8.base.process import command
from v8.base.records import AtLeastOne
from v8.base.registry import advice
from v8.base.storage import FORECASTS_COLUMNS, NAIVE_ENDING
from v8.data.market.series import TIMEFRAME_S
from v8.forecaster.metadata import Metadata, read_metadata
from v8.profile.profile import Profile, load_profile
from v8.profile.tasks import TASKS
from v8.runs.backtest import PLAN_FILE, read_plan
from v8.runs.options import BacktestOptions, ModelsOptions, NumBars, NumFolds
from v8.runs.run_folder import RUN_FILE, read_run
from v8.runs.serving import served_folder

ACTUAL_ENDING: Final = "_actual"
FOLDER: Final = "folder"
"""Key of `DataFrame.attrs` for the folder that a frame was read from, a text."""

_KEYS: Final = ("series", "open_time", "cutoff", "issued_at", "fold", "step", "column")


@in_python
def backtest(
    candles: RawCandles = "vision",
    profile: str | Path | Profile = "frontier",
    *,
    series: str | Sequence[str] | None = None,
    folds: NumFolds = 6,
    history: NumBars | None = None,
    bars: AtLeastOne | None = None,
    epochs: AtLeastOne | None = None,
    column: str | None = "close",
    out: str | Path | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Evaluate a profile over many folds, fitted again for each; return every forecast of their test spans.

    It is the command `backtest` with `--forecasts`: the same call again continues an interrupted one, and
    only forecasts again when all folds are trained.

    Args:
        candles: As for `v8.train`.
        profile: As for `v8.train`.
        series: Such as "BTCUSDT-1h", or several; None for all there are.
        folds: Number of folds, spread over all history.
        history: Newest candles that the folds lie in; None for all there are.
        bars: Candles of each fold; None for the profile's.
        epochs: Most epochs of each training; None for the profile's.
        column: The column that is returned, such as "close" or "volatility"; None for all.
        out: Its folder; None for backtests/PROFILE.
        progress: Whether to print lines about it.

    Returns:
        The frame that `v8.export` returns; `attrs["folder"]` is the folder, of which `v8.leaderboard` reads
        the errors. Test spans of folds may overlap.

    Raises:
        V8Error: If nothing could be evaluated; the sentence says why.

    >>> import v8
    >>> table = v8.backtest("vision", "frontier", series="BTCUSDT-1h", folds=8)  # doctest: +SKIP
    >>> (table["model"] - table["y"]).abs().groupby(table["cutoff"]).mean()  # doctest: +SKIP
    """
    _check_column("v8.backtest", column)
    names = series_list(series)
    source = source_of(candles, names)
    folder = Path(out) if out else Path("backtests") / _profile_name(profile)
    options = BacktestOptions(
        profile=str(profile_file(profile)),
        series=tuple(names),
        folds=folds,
        history=history,
        bars=bars,
        epochs=epochs,
        out=folder,
        **source,
    )
    continuing = command("backtest", *options.words())
    with tempfile.TemporaryDirectory(prefix="v8-") as place:
        request = BacktestRequest(options, continuing, Path(place) / "forecasts.parquet")
        is_complete = run_in_child(
            backtest_for_python,
            request,
            where="v8.backtest",
            environment=process_variables("auto"),
            on_message=print if progress else None,
        )
        return _read_forecasts(request.file, folder, column, is_complete=is_complete)


@in_python
def export(
    run: str | Path,
    *,
    series: str | Sequence[str] | None = None,
    column: str | None = "close",
    source: str | None = None,
    data_dir: str | Path | None = None,
    tables: str | Path | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    """Return every forecast of the test spans of a run, of a back-test, or of pulled models.

    It is the command `export`: the models forecast again, from the candles that they were made from.

    Args:
        run: The folder, such as "runs/frontier" or "backtests/frontier".
        series: Such as "BTCUSDT-15m", or several; None for all.
        column: The column that is returned, such as "close" or "volatility"; None for all.
        source: Where the candles come from; None for the source of the run.
        data_dir: Folder of candle files; None for the run's.
        tables: Folder of the covariates' tables; None for the run's.
        progress: Whether to print lines about it.

    Returns:
        A row for each bar ahead, ordered as the models forecast:

        * `series`: text.
        * `open_time`: when the bar opens, datetime64 in UTC (the `ds` of Nixtla).
        * `cutoff`: when the newest known candle opened, datetime64 in UTC.
        * `issued_at`: when that candle closed; the forecast can be used from then on, datetime64 in UTC.
        * `fold`: of a back-test, from 1; 0 for anything else, int64.
        * `step`: bars ahead, from 1, int64.
        * `column`: what is forecast, text.
        * `y`: the actual value, float, in the unit of the column (prices: quote currency; volatility: share).
        * `model`, `naive`: the forecasts, in the same unit.
        * `model_q5` and so on: quantiles of the model in percent, where it has any.

        `attrs["folder"]` is the folder, `attrs["is_complete"]` whether every model of it is in the frame.

    Raises:
        ArtifactError: If there is no finished model, or the models have no such column.
        DataError: If the source has other candles than those that the models were made from.

    >>> import v8
    >>> table = v8.export("runs/frontier", column="volatility")  # doctest: +SKIP
    >>> nixtla = table.rename(columns={"series": "unique_id", "open_time": "ds"})  # doctest: +SKIP
    """
    _check_column("v8.export", column)
    options = ModelsOptions(
        run=Path(run),
        series=tuple(series_list(series)),
        source=source,
        data_dir=maybe_path(data_dir),
        tables=maybe_path(tables),
    )
    with tempfile.TemporaryDirectory(prefix="v8-") as place:
        request = ExportRequest(options, Path(place) / "forecasts.parquet")
        is_complete = run_in_child(
            export_for_python,
            request,
            where="v8.export",
            environment=process_variables("auto"),
            on_message=print if progress else None,
        )
        return _read_forecasts(request.file, options.run, column, is_complete=is_complete)


def _check_column(called: str, column: str | None) -> None:
    """Refuse a column that no model forecasts, before a process is started."""
    known = [name for task in TASKS.values() for name in task.columns]
    if column is not None and column not in known:
        fix = advice(column, known, "Choose one of these")
        rule = f"is one of {', '.join(known)}"
        raise ArgumentError(where=f"{called}, column=", rule=rule, got=repr(column), fix=fix)


def _read_forecasts(file: Path, folder: Path, column: str | None, *, is_complete: bool) -> pd.DataFrame:
    """Read a table of forecasts in the layout of `export`."""
    if not file.exists():
        rule = "must end with the forecasts of one model at least"
        fix = "Call it with progress=True, which prints why"
        raise ArtifactError(where=str(folder), rule=rule, got="none", fix=fix)
    table = long_forecasts(pd.read_parquet(file), column)
    table.attrs.update({FOLDER: str(folder), "is_complete": is_complete})
    return table


def long_forecasts(table: pd.DataFrame, column: str | None) -> pd.DataFrame:
    """Lay out a table of forecasts, as the command `export` writes it, as `export` returns it.

    Args:
        table: Columns of the file, such as `close`, `close_q5`, `close_actual` and `close_naive`.
        column: The column that is kept; None for all.

    Raises:
        ArgumentError: If the table has no such column.
    """
    available = [name.removesuffix(NAIVE_ENDING) for name in table.columns if name.endswith(NAIVE_ENDING)]
    if column is not None and column not in available:
        rule = f"is one of {', '.join(available)}"
        raise ArgumentError(where="column=", rule=rule, got=repr(column), fix="Choose one of these")
    frames = []
    for name in available if column is None else [column]:
        frame = table[list(FORECASTS_COLUMNS)].copy()
        frame["column"] = name
        frame["y"] = table[f"{name}{ACTUAL_ENDING}"]
        frame["model"] = table[name]
        frame["naive"] = table[f"{name}{NAIVE_ENDING}"]
        for quantile in table.columns[table.columns.str.fullmatch(rf"{name}_q[0-9.]+")]:
            frame[f"model{quantile.removeprefix(name)}"] = table[quantile]
        frames.append(frame)
    result = pd.concat(frames, ignore_index=True)
    for name in ("issued_at", "open_time"):
        result[name] = pd.to_datetime(result[name], utc=True)
    bar_s = result["series"].str.rpartition("-")[2].map(TIMEFRAME_S)
    result["cutoff"] = result["issued_at"] - pd.to_timedelta(bar_s, unit="s")
    others = [name for name in result.columns if name not in _KEYS]
    return result[[*_KEYS, *others]]


@in_python
def leaderboard(runs: str | Path | Sequence[str | Path]) -> pd.DataFrame:
    """Return the errors of every finished series of runs and back-tests in one frame, the lowest first.

    Args:
        runs: Folders of runs or of back-tests, or one of them.

    Returns:
        A row for each folder, fold, series and task, ordered by task, timeframe and relative MAE:

        * `run`: the folder as it was named, text; `profile`: its name, text.
        * `fold`: of a back-test, from 1; 0 for a run, int64.
        * `series`, `timeframe`, `task`: text.
        * `relative_mae`: mean absolute error divided by the naive forecast's, unitless; below 1 is better.
        * `p_value`: of the difference from naive, corrected for the series of that run, 0 to 1.
        * `best_baseline`: the run's best baseline of the task and timeframe, text.
        * `relative_mae_to_best`, `p_value_to_best`: the same, compared with it.
        * `verdict`: its comparison with that baseline in words.

        A number is NaN where it does not exist. Test spans of runs differ unless their candles are the same:
        `newest_candle` (datetime64 in UTC) shows the last one that a run knew.

    Raises:
        ArtifactError: If a folder is neither, is damaged, or was not evaluated.

    >>> import v8
    >>> v8.leaderboard(["runs/tiny"])[["series", "task", "best_baseline"]].shape
    (3, 3)
    """
    folders = [runs] if isinstance(runs, str | Path) else list(runs)
    rows: list[dict[str, Any]] = []
    for folder in folders:
        for fold, run in _runs_of(Path(folder)):
            record = read_run(run)
            for name in record.done:
                metadata = read_metadata(served_folder(run, name), series=name)
                rows += _rows({"run": str(folder), "profile": record.profile_name, "fold": fold}, metadata)
    if not rows:
        rule = "needs one run with a finished series at least"
        got = listed([str(folder) for folder in folders]) or "no folder"
        raise ArtifactError(where="runs=", rule=rule, got=got, fix="Train it first")
    numbers = ("relative_mae", "p_value", "relative_mae_to_best", "p_value_to_best")
    table = pd.DataFrame(rows).astype(dict.fromkeys(numbers, float))
    order = {task: position for position, task in enumerate(TASKS)}
    keys = pd.DataFrame(
        {
            "task": table["task"].map(order),
            "bar_s": table["timeframe"].map(TIMEFRAME_S),
            "relative_mae": table["relative_mae"],
        }
    )
    positions = keys.sort_values(["task", "bar_s", "relative_mae"], kind="stable").index
    return table.loc[positions].reset_index(drop=True)


def _runs_of(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the run folders of a folder, each with the number of its fold, 0 for one that is no fold."""
    if not (folder / PLAN_FILE).exists():
        yield 0, folder
        return
    for fold in read_plan(folder).folds:
        if (folder / fold.folder / RUN_FILE).exists():
            yield fold.number, folder / fold.folder


def _rows(keys: dict[str, Any], metadata: Metadata) -> Iterator[dict[str, Any]]:
    """Yield the rows of a series, one a task."""
    series = metadata.series
    for task, verdict in metadata.verdicts.items():
        yield {
            **keys,
            "series": series,
            "timeframe": series.rpartition("-")[2],
            "task": task,
            "relative_mae": verdict.naive.relative_mae,
            "p_value": verdict.naive.corrected_p_value,
            "best_baseline": verdict.best.name,
            "relative_mae_to_best": verdict.best.relative_mae,
            "p_value_to_best": verdict.best.corrected_p_value,
            "verdict": verdict.best.verdict,
            "newest_candle": pd.Timestamp(metadata.candles.last_open),
        }


def _profile_name(profile: str | Path | Profile) -> str:
    return (profile if isinstance(profile, Profile) else load_profile(str(profile))).name
