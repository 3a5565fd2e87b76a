"""What a comparison of profiles measured, and the figures that follow from it.

Every figure is computed for each repeat and then summed up over repeats: the median, the smallest and the
largest. Ratios are taken within one repeat, whose measurements lie close together in time, so that a machine
that becomes slower does not favour the profile that was measured first. `v8.annexes.comparison.page` shows
them.

Errors can be compared only on the windows that all models share (`share_windows`). A profile that looks
further back has a shorter test span, so it is evaluated on fewer windows, and means over other windows are
means of another market. So of each series and fold only the windows remain that every model was evaluated on,
known by the close of their last known candle. A series or fold that one model lacks is left out for all.

Each model brings baselines that were fitted to its own train span. Where the models look equally far ahead,
one fit of each baseline remains for all: the one with the lowest error on the shared windows. So models are
compared with the same forecasts, and nobody gains by windows of which a baseline can learn little.

Legend: N windows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.base.errors import ArtifactError
from v8.base.hardware import describe_machine, versions
from v8.base.wording import say
from v8.forecaster.metadata import HISTORY_FILE, Metadata, read_metadata
from v8.model.baselines.baselines import NAIVE
from v8.model.evaluation.bootstrap import error_interval
from v8.model.evaluation.evaluation import MODEL
from v8.model.evaluation.fold_losses import Cell, best_baselines
from v8.model.evaluation.significance import is_lower
from v8.profile.profile import Profile, recorded_profile
from v8.profile.tasks import TASKS
from v8.runs.backtest import read_cell
from v8.runs.machine import ceiling_pct
from v8.runs.run_folder import now_iso, read_run
from v8.runs.serving import served_folder

PROJECTED_MODELS: Final = 40  # series of the default universe

WARM: Final = "features_warm"
"""Reading features again that the store already holds; no stage of a run, so no part of its sums."""

_NOT_STAGES: Final = ["seconds.compile", f"seconds.{WARM}"]
"""Columns that are no part of a model's time: a process compiles once for all its models."""

_EPOCH_COLUMNS: Final = ["epoch_s", "windows_per_s", "best_epoch"]  # a formula has none of these

_MEASUREMENT_KEYS: Final = ["profile", "repeat"]  # identify a measurement

STATISTICS: Final = {"median": "median", "min": "low", "max": "high"}
"""Statistics of a figure over repeats: pandas' names and ours."""

Spreads: TypeAlias = dict[str, dict[str, dict[str, float]]]
"""By profile and by figure that it has: `median`, `low` and `high` over repeats."""


class Figure(NamedTuple):
    """A figure of a measurement."""

    title: str  # for people
    unit: str  # one of `UNITS`
    column: str  # of `Comparison.models`
    aggregation: Any = "mean"  # of pandas, over the models of a measurement; NaN if no model has the figure
    has_ratio: bool = False  # whether it is compared with the baseline profile's


_ratioed = partial(Figure, has_ratio=True)
_sum = partial(pd.Series.sum, min_count=1)


def _task_figures() -> dict[str, Figure]:
    """Return the figures of each task: its MAE relative to naive and to the best baseline."""
    figures = {}
    for task, description in TASKS.items():
        figures[f"{task}_relative_mae"] = Figure(
            f"{description.title}: error ÷ naive", "", f"relative_mae.{task}", "median"
        )
        figures[f"{task}_relative_mae_to_best"] = Figure(
            f"{description.title}: error ÷ best baseline", "", f"relative_mae_to_best.{task}", "median"
        )
    return figures


FIGURES: Final[dict[str, Figure]] = {
    "import_s": _ratioed("import, once a process", "s", "import_s", "first"),
    "compile_s": _ratioed("compile, once a process", "s", "seconds.compile", _sum),
    "candles_s": Figure("candles, from the cache", "s", "seconds.candles"),
    "features_cold_s": Figure("features, cold", "s", "seconds.features"),
    "features_warm_s": Figure("features, warm", "s", f"seconds.{WARM}"),
    "windows_s": Figure("windows", "s", "seconds.windows"),
    "build_s": Figure("build", "s", "seconds.build"),
    "train_s": _ratioed("train", "s", "seconds.train"),
    "validate_s": Figure("validate", "s", "seconds.validate"),
    "evaluate_s": Figure("evaluate", "s", "seconds.evaluate"),
    "save_s": Figure("save", "s", "seconds.save"),
    "model_s": _ratioed("one model, without import and compile", "s", "stages_s"),
    "epoch_s": _ratioed("one epoch, validation included", "s", "epoch_s"),
    "windows_per_s": _ratioed("training windows per second", "/s", "windows_per_s", "median"),
    "ceiling_pct": _ratioed("of the matmul ceiling", "%", "ceiling_pct", "median"),
    "epochs_to_best": Figure("epochs to best", "epochs", "best_epoch", "median"),
    "horizon_bars": Figure("steps ahead", "", "horizon_bars", "first"),
    "num_parameters": _ratioed("parameters", "", "num_parameters", "first"),
    "flop_per_window": _ratioed("operations per window", "flop", "flop_per_window", "first"),
    "peak_process_bytes": _ratioed("peak memory of the process", "bytes", "peak_process_bytes", "first"),
    "peak_device_bytes": Figure("peak memory of the device", "bytes", "peak_device_bytes", "first"),
    "num_windows": Figure("test windows of all series", "", "num_windows", _sum),
    "num_shared_windows": Figure("windows that all share", "", "num_shared_windows", _sum),
    **_task_figures(),
    "projected_40_s": _ratioed(
        f"{PROJECTED_MODELS} models with its own epochs, projected", "s, projected", "projected_s", "first"
    ),
}
"""Every figure of a comparison in the order of its tables; seconds per model unless it says otherwise."""

_COLUMNS: Final = [*_NOT_STAGES, *(figure.column for figure in FIGURES.values())]
"""Columns of every table of models; NaN if a value is unknown."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Profiles measured side by side."""

    command: str  # the command line
    created_at: str = field(default_factory=now_iso)  # ISO 8601 in UTC
    source: str  # name of the candle source
    is_demo: bool  # whether the market was simulated
    series: tuple[str, ...]  # that every profile was trained on
    num_bars: Mapping[str, int]  # per profile, newest candles of each series
    epochs: int | None  # epochs of the budget; None when each profile ran its own
    num_repeats: int = 1  # how often each profile was to be measured
    baseline: str  # profile that ratios refer to
    formulas: Mapping[str, str] = field(default_factory=dict)  # family of each profile that is a formula
    num_workers: int  # processes that a run on this machine uses in parallel
    download_s: Mapping[str, float] = field(default_factory=dict)  # per series, until its candles were read
    machine: Mapping[str, Any] = field(default_factory=describe_machine)  # processor, cores, memory
    versions: Mapping[str, str] = field(default_factory=versions)  # of everything that can change a result
    measurements: tuple[Mapping[str, Any], ...] = ()  # successful ones, see `measurement_of`
    failures: Mapping[str, str] = field(default_factory=dict)  # per profile with failed series: the reasons

    @property
    def horizons(self) -> dict[str, int]:
        """Steps ahead by profile."""
        return {measurement["profile"]: measurement["horizon_bars"] for measurement in self.measurements}

    @cached_property
    def num_windows(self) -> dict[str, int]:
        """Windows of the test spans of all series, by profile: fewer where windows look further back."""
        return {
            measurement["profile"]: sum(model["num_windows"] for model in measurement["models"])
            for measurement in self.measurements
        }

    @property
    def num_shared_windows(self) -> int:
        """Windows of all series that all profiles share, which errors are means over."""
        if not self.measurements:
            return 0
        return sum(model["num_shared_windows"] for model in self.measurements[0]["models"])

    @cached_property
    def best_baselines(self) -> dict[str, dict[str, str]]:
        """By task and profile, the best baselines of its series, each named once, joined by commas."""
        names: dict[str, dict[str, str]] = {}
        for measurement in self.measurements:
            models = measurement["models"]
            for task in TASKS:
                of_task = [model["best_baseline"][task] for model in models if task in model["best_baseline"]]
                if of_task:
                    names.setdefault(task, {})[measurement["profile"]] = ", ".join(dict.fromkeys(of_task))
        return names

    @property
    def to_best(self) -> dict[str, Mapping[str, Any]]:
        """By profile how it compares with the best baselines, by task; of its first measurement."""
        return {measurement["profile"]: measurement["to_best"] for measurement in reversed(self.measurements)}

    @cached_property
    def models(self) -> pd.DataFrame:
        """A row a model, with its own and its process's measurements.

        The index is profile, in the order of `num_bars`, repeat and series.
        """
        rows = []
        for name in self.num_bars:
            for measurement in self.measurements:
                if measurement["profile"] == name:
                    rows += [{**measurement, **model} for model in measurement["models"]]
        models = pd.json_normalize(rows)
        models = models.drop(
            columns=["models", "run", "precision", *models.filter(regex="^(best_baseline|to_best)")]
        )
        models = models.set_index([*_MEASUREMENT_KEYS, "series"])
        is_gpu = models.pop("device").str.startswith("GPU")
        models = models.reindex(columns=list(dict.fromkeys([*models, *_COLUMNS]))).astype(float)
        models[_EPOCH_COLUMNS] = models[_EPOCH_COLUMNS].where(models["epochs_run"] > 0)
        stages = models.filter(like="seconds.").drop(columns=_NOT_STAGES)
        models["stages_s"] = stages.sum(axis="columns")
        rate = models["fleet_size"] * models["windows_per_s"]
        models["ceiling_pct"] = list(
            map(ceiling_pct, rate, models["flop_per_window"], models["matmul_gflop_per_s"])
        )
        models["projected_s"] = self._projected_s(models, is_gpu)
        return models

    def _projected_s(self, models: pd.DataFrame, is_gpu: pd.Series) -> pd.Series:
        """Project the time of `PROJECTED_MODELS` models with the profile's own epochs, in seconds."""
        # Some time of the first model of a process is spent for the others, too, so the median is used.
        fixed_s = models["stages_s"] - models["epochs_run"] * models["epoch_s"].fillna(0.0)
        by_measurement = models.assign(fixed_s=fixed_s).groupby(level=_MEASUREMENT_KEYS)
        training_s = models["own_epochs"] * by_measurement["epoch_s"].transform("mean").fillna(0.0)
        num_rounds = PROJECTED_MODELS / is_gpu.map({True: 1, False: self.num_workers})
        compile_s = by_measurement["seconds.compile"].transform("sum")
        once_s = models["import_s"].fillna(0.0) + compile_s
        return once_s + num_rounds * (by_measurement["fixed_s"].transform("median") + training_s)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Every figure by profile and repeat; NaN if there is none."""
        columns: dict[str, Any] = {
            name: (figure.column, figure.aggregation) for name, figure in FIGURES.items()
        }
        return self.models.groupby(level=_MEASUREMENT_KEYS, sort=False).agg(**columns)

    @cached_property
    def figures(self) -> Spreads:
        """Every figure over the repeats, of the profiles that were measured."""
        return _spreads(self.table) if self.measurements else {}

    @cached_property
    def ratios(self) -> Spreads:
        """Figures over those of the baseline profile in the same repeat."""
        if not self.measurements:
            return {}
        figures = self.table[[name for name, figure in FIGURES.items() if figure.has_ratio]]
        base = figures.query("profile == @self.baseline").droplevel("profile")
        return _spreads(figures.div(base.where(base != 0.0), level="repeat"))


def _spreads(table: pd.DataFrame) -> Spreads:
    spreads: dict[str, Any] = {}
    for profile, rows in table.groupby(level="profile", sort=False):
        statistics = rows.agg(list(STATISTICS)).rename(index=STATISTICS)
        spreads[str(profile)] = statistics.dropna(axis="columns").to_dict()
    return spreads


def formulas_of(profiles: Iterable[Profile]) -> dict[str, str]:
    """Return the family of each profile that is a formula, by the name of the profile."""
    return {profile.name: profile.network.family for profile in profiles if profile.family.is_formula}


def marked(profile: str, formulas: Mapping[str, str]) -> str:
    """Return the name of a profile, marked if it is one of the formulas.

    >>> marked("range_paths", {"range_paths": "range_paths"}), marked("frontier", {})
    ('range_paths (formula)', 'frontier')
    """
    return say("{name} (formula)", name=profile) if profile in formulas else profile


SAME_SHARE: Final = 1e-3
"""Share by which errors of naive on the same windows may differ: candles of other files differ by more."""


@dataclass(frozen=True)
class SharedWindows:
    """The cells of several models, restricted to the windows that all of them share."""

    cells: Mapping[str, Sequence[Cell]]  # by the name of the model, each with the same folds and series
    num_own: Mapping[str, int]  # windows of all cells that each model was evaluated on, the shared included

    @property
    def num_shared(self) -> int:
        """Windows that all models share, over all series and folds."""
        first = next(iter(self.cells.values()))
        return sum(len(cell.losses.closes_s) for cell in first)


def share_windows(cells_by_model: Mapping[str, Sequence[Cell]]) -> SharedWindows:
    """Restrict the cells of several models, at least one, to the windows that all of them share.

    A fold of one model is compared with the fold of the same number of another one.

    Raises:
        ArtifactError: If the naive forecast has other errors on the same windows: the candles differ.
    """
    by_key = {
        name: {(cell.fold, cell.series): cell for cell in cells} for name, cells in cells_by_model.items()
    }
    first = next(iter(by_key.values()))
    shared: dict[str, list[Cell]] = {name: [] for name in by_key}
    for key in first:
        if all(key in cells for cells in by_key.values()):
            of_models = {name: cells[key] for name, cells in by_key.items()}
            for name, cell in _shared_cells(of_models).items():
                shared[name].append(cell)
    num_own = {
        name: sum(len(cell.losses.closes_s) for cell in cells) for name, cells in cells_by_model.items()
    }
    return SharedWindows(shared, num_own)


def _shared_cells(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Restrict the cells of one fold and series; the result is empty if the models share no window."""
    closes_s: NDArray[np.int64] = reduce(np.intersect1d, [cell.losses.closes_s for cell in cells.values()])
    if not len(closes_s):
        return {}
    restricted = {}
    for name, cell in cells.items():
        # Quantiles are known as means over the windows of their own model alone.
        restricted[name] = replace(cell, losses=cell.losses.at(closes_s), quantiles=None)
    if len({cell.evaluation.horizon_bars for cell in cells.values()}) > 1:
        return restricted
    _require_same_candles(restricted)
    return _with_common_baselines(restricted)


def _require_same_candles(cells: Mapping[str, Cell]) -> None:
    """Refuse models whose candles in the same windows differ."""
    errors: dict[str, tuple[str, float]] = {}  # by task the first model that has it, and naive's error
    for name, cell in cells.items():
        for task in cell.losses.by_task:
            error = cell.losses.mean(task, NAIVE)
            first_name, first_error = errors.setdefault(task, (name, error))
            if abs(error - first_error) > SAME_SHARE * max(error, first_error):
                raise ArtifactError(
                    where=str(cell.series),
                    rule="models are compared on the same candles, on which naive has the same error",
                    got=f"{error:.4g} for {name} and {first_error:.4g} for {first_name} in {task}",
                    fix="Compare models that were trained on candles of one source",
                )


def _with_common_baselines(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Give all models the same baselines, each as it was fitted with the lowest error on these windows.

    Where a task has no reference, validation spans decide which baseline is the best; those of the first
    model count for all.
    """
    best_fits: dict[str, dict[str, NDArray[np.float32]]] = {}  # losses by task and baseline, shape (N,)
    for cell in cells.values():
        for task, by_name in cell.losses.by_task.items():
            fits = best_fits.setdefault(task, {})
            for name, losses_N in by_name.items():
                is_baseline = name != MODEL
                if is_baseline and (name not in fits or losses_N.mean() < fits[name].mean()):
                    fits[name] = losses_N
    validation_mae = next(iter(cells.values())).evaluation.validation_mae
    common = {}
    for name, cell in cells.items():
        by_task = {
            task: {MODEL: by_name[MODEL], **best_fits[task]} for task, by_name in cell.losses.by_task.items()
        }
        common[name] = replace(
            cell,
            losses=replace(cell.losses, by_task=by_task),
            evaluation=replace(cell.evaluation, validation_mae=validation_mae),
        )
    return common


def measurement_of(run: Path, series: Iterable[str]) -> dict[str, Any]:
    """Read the costs of finished series, at least one, from a run folder, as JSON values.

    The folder holds neither `import_s`, the seconds from the start of the process until it could train, nor
    the matmul rate of that process right after training.
    """
    profile = recorded_profile(read_run(run).profile, where=f"profile of {run}")
    folders = [served_folder(run, name) for name in series]
    all_metadata = [read_metadata(folder) for folder in folders]
    models = [_model(folder, metadata) for folder, metadata in zip(folders, all_metadata, strict=True)]
    first = all_metadata[0]
    trainings = [metadata.training for metadata in all_metadata]
    return {
        "profile": profile.name,
        "run": str(run),
        "repeat": 1,
        "import_s": None,
        "models": models,
        "horizon_bars": first.horizon_bars,
        "num_parameters": first.num_parameters,
        "flop_per_window": profile.training_flop_per_window,
        "own_epochs": profile.training.epochs,  # most epochs of the profile, without the comparison's budget
        "precision": first.training.precision,
        "device": first.training.device,
        "fleet_size": max(training.fleet_size or 1 for training in trainings),  # models of one program
        "peak_process_bytes": max(training.peak_process_bytes or 0 for training in trainings) or None,
        "peak_device_bytes": max(training.peak_memory_bytes for training in trainings),
        "matmul_gflop_per_s": None,
    }


def _model(folder: Path, metadata: Metadata) -> dict[str, Any]:
    """Return the measurements of one model; times and speeds of a model in a fleet are its share."""
    training = metadata.training
    epochs_s = pd.read_csv(folder / HISTORY_FILE)["seconds"]
    fleet_epoch_s = float(epochs_s.median()) if len(epochs_s) else 0.0  # a formula has no epochs
    return {
        "series": metadata.series,
        "seconds": {**metadata.seconds},
        "epoch_s": round(fleet_epoch_s / (training.fleet_size or 1), 6),
        "windows_per_s": training.windows_per_s,
        "epochs_run": training.epochs_run,
        "best_epoch": training.best_epoch,
        "num_windows": metadata.evaluation.num_windows,  # of its own test span
    }


def with_errors(measurements: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Add the errors of each model to measurements, on the windows that all of their runs share.

    Args:
        measurements: As `measurement_of` returns them, at least one.

    Returns:
        The measurements; each model has in addition `num_shared_windows`, and by task `relative_mae`,
        `relative_mae_to_best` and `best_baseline`. A series that not all have finished, or of which they
        share no window, has no errors. Each measurement has in addition `to_best`: by task how many series
        have a lower error than the best baseline, of how many, and the 95 % interval of the median ratio.
    """
    cells = {_name(measurement): _cells(measurement) for measurement in measurements}
    shared = share_windows(cells).cells
    finished = []
    for measurement in measurements:
        name = _name(measurement)
        restricted = {str(cell.series): cell for cell in shared[name]}
        best = best_baselines(shared[name])
        models = []
        for model, own_cell in zip(measurement["models"], cells[name], strict=True):
            cell = restricted.get(model["series"])
            errors = _errors(cell, best[cell.series.timeframe]) if cell else _no_errors(own_cell)
            models.append({**model, **errors})
        finished.append({**measurement, "models": models, "to_best": _to_best(shared[name], best)})
    return tuple(finished)


def _to_best(cells: Sequence[Cell], best: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """Sum up by task how a run compares with the best baselines, given by timeframe and task."""
    summaries = {}
    for task in TASKS:
        with_task = [cell for cell in cells if task in cell.losses.by_task]
        if with_task:
            pairs = [cell.paired(task, best[cell.series.timeframe][task]) for cell in with_task]
            interval = error_interval(pairs, with_task[0].evaluation.horizon_bars)
            ratios = [cell.relative_error(task, best[cell.series.timeframe][task]) for cell in with_task]
            summaries[task] = {
                "num_better": sum(map(is_lower, ratios)),
                "num_series": len(with_task),
                "interval": [interval.low, interval.high] if interval else None,
            }
    return summaries


def shared_windows_note(num_shared: int, num_own: Mapping[str, int]) -> str:
    """Say on how many windows profiles are compared, and of how many each has.

    Args:
        num_shared: Windows that all share, over all series and folds.
        num_own: By the name of the profile, as it is shown, the windows that it was evaluated on.
    """
    numbers = []
    for name, num_windows in num_own.items():
        # Translators: a number of windows, of a profile: "1,200 for frontier".
        numbers.append(say("{value} for {profile}", value=f"{num_windows:,}", profile=name))
    by_profile = say(", ").join(numbers)
    if num_shared == 0:
        return say(
            "The errors of these profiles are not compared: they share no window. Windows: {windows}.",
            windows=by_profile,
        )
    return say(
        "Errors are those of the {num} windows that all share. Windows: {windows}.",
        num=f"{num_shared:,}",
        windows=by_profile,
    )


def _name(measurement: Mapping[str, Any]) -> str:
    return f"{measurement['profile']} (repeat {measurement['repeat']})"


def _cells(measurement: Mapping[str, Any]) -> list[Cell]:
    run = Path(measurement["run"])
    return [read_cell(served_folder(run, model["series"])) for model in measurement["models"]]


def _errors(cell: Cell, best: Mapping[str, str]) -> dict[str, Any]:
    """Return what is added to a model; `best` are the best baselines by task."""
    return {
        "num_shared_windows": len(cell.losses.closes_s),
        "relative_mae": {task: cell.relative_error(task) for task in best},
        "relative_mae_to_best": {task: cell.relative_error(task, name) for task, name in best.items()},
        "best_baseline": dict(best),
    }


def _no_errors(cell: Cell) -> dict[str, Any]:
    """Return what is added to a model of a series without shared windows, from its own cell."""
    none: dict[str, float | None] = dict.fromkeys(cell.losses.by_task)
    return {"num_shared_windows": 0, "relative_mae": none, "relative_mae_to_best": none, "best_baseline": {}}
