"""What a comparison of profiles measured, and the figures that follow from it.

Every figure is computed for each repeat and then summed up over repeats: the median, the smallest and the
largest. Ratios are taken within one repeat, whose measurements lie close together in time, so that a machine
that becomes slower does not favour the profile that was measured first. `v8.annexes.comparison.page` shows
them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeAlias

import pandas as pd

from v8.base.hardware import describe_machine, versions
from v8.base.wording import say
from v8.model.networks.programs import ceiling_pct
from v8.profile.profile import Profile
from v8.profile.tasks import TASKS
from v8.runs.run_folder import now_iso

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
    measurements: tuple[
        Mapping[str, Any], ...
    ] = ()  # successful ones, see `v8.annexes.comparison.measurement.measurement_of`
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
