"""What a comparison of profiles measured, and the figures that follow from it.

Every figure is computed for each repeat and then summed up over repeats: the median, the smallest and the
largest. Ratios are taken within one repeat, whose measurements lie close together in time, so that a machine
that becomes slower does not favour the profile that was measured first. `v8.comparison.page` shows them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeAlias

import pandas as pd

from v8.artifacts.run_folder import now_iso
from v8.hardware import describe_machine, versions
from v8.networks.cost import ceiling_pct
from v8.tasks import TASKS

PROJECTED_MODELS: Final = 40  # series of the default universe

WARM: Final = "features_warm"
"""Reading features again that the store already holds; no stage of a run, so no part of its sums."""

_NO_STAGES: Final = ["seconds.compile", f"seconds.{WARM}"]
"""Columns of models that are no part of their time: a process compiles once, whichever is charged with it."""

_OF_EPOCHS: Final = ["epoch_s", "windows_per_s", "best_epoch"]  # which a formula has none of

_MEASURED: Final = ["profile", "repeat"]  # what tells measurements apart

SPREAD_ENDS: Final = {"median": "median", "min": "low", "max": "high"}
"""What is told of a figure over repeats, by pandas' name."""

Spreads: TypeAlias = dict[str, dict[str, dict[str, float]]]
"""By profile and by figure that it has: `median`, `low` and `high` over repeats."""


class Figure(NamedTuple):
    """A figure of a measurement."""

    title: str  # what it is, for people
    unit: str  # one of `v8.comparison.page.UNITS`
    column: str  # what it is of each model, see `Comparison.models`
    over: Any = "mean"  # how pandas makes one number of all models; NaN where none has one
    is_ratioed: bool = False  # whether it is compared with the baseline profile's


_ratioed = partial(Figure, is_ratioed=True)
_sum = partial(pd.Series.sum, min_count=1)

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
    **{
        f"{task}_multiple{which}": Figure(
            f"{task}: error ÷ {other}", "", f"multiples{which}.{task}", "median"
        )
        for task in TASKS
        for which, other in (("", "naive"), ("_of_best", "best baseline"))
    },
    "projected_40_s": _ratioed(
        f"{PROJECTED_MODELS} models with its own epochs, projected", "s", "projected_s", "first"
    ),
}
"""Every figure of a comparison in the order of its tables; seconds per model unless it says otherwise."""

_COLUMNS: Final = [*_NO_STAGES, *(figure.column for figure in FIGURES.values())]
"""What every table of models has; NaN where nobody knows it."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Profiles measured side by side."""

    command: str  # the command line
    created_at: str = field(default_factory=now_iso)  # ISO 8601 in UTC
    source: str  # name of the candle source
    is_demo: bool  # whether the market was simulated
    series: tuple[str, ...]  # what every profile was trained on
    num_bars: Mapping[str, int]  # per profile, newest candles of each series
    epochs: int | None  # epochs of the budget; None when each profile ran its own
    num_repeats: int = 1  # how often each profile was to be measured
    baseline: str  # profile that ratios refer to
    num_workers: int  # processes that a run on this machine has at work side by side
    download_s: Mapping[str, float] = field(default_factory=dict)  # per series, until its candles were there
    machine: Mapping[str, Any] = field(default_factory=describe_machine)  # processor, cores, memory
    versions: Mapping[str, str] = field(default_factory=versions)  # of what can change a result
    measurements: tuple[
        Mapping[str, Any], ...
    ] = ()  # what succeeded, as `v8.comparison.measurement.measurement_of`
    failures: Mapping[str, str] = field(default_factory=dict)  # per profile with failed series: why

    @property
    def horizons(self) -> dict[str, int]:
        """Steps ahead by profile."""
        return {one["profile"]: one["horizon_bars"] for one in self.measurements}

    @cached_property
    def models(self) -> pd.DataFrame:
        """What is known of every model and its measurement, by profile as asked for, repeat and series."""
        taken = [one for name in self.num_bars for one in self.measurements if one["profile"] == name]
        known = pd.json_normalize([{**one, **model} for one in taken for model in one["models"]])
        known = known.drop(columns=["models", "precision"]).set_index([*_MEASURED, "series"])
        is_gpu = known.pop("device").str.startswith("GPU")
        known = known.reindex(columns=[*dict.fromkeys([*known, *_COLUMNS])]).astype(float)
        known[_OF_EPOCHS] = known[_OF_EPOCHS].where(known["epochs_run"] > 0)
        known["stages_s"] = known.filter(like="seconds.").drop(columns=_NO_STAGES).sum(axis="columns")
        rate = known["fleet_size"] * known["windows_per_s"]
        known["ceiling_pct"] = [
            *map(ceiling_pct, rate, known["flop_per_window"], known["matmul_gflop_per_s"])
        ]
        # The first model of a process also pays for what the others find ready, so the median counts.
        fixed_s = known["stages_s"] - known["epochs_run"] * known["epoch_s"].fillna(0.0)
        by = known.assign(fixed_s=fixed_s).groupby(level=_MEASURED)
        own_s = known["own_epochs"] * by["epoch_s"].transform("mean").fillna(0.0)
        rounds = PROJECTED_MODELS / is_gpu.map({True: 1, False: self.num_workers})
        once_s = known["import_s"].fillna(0.0) + by["seconds.compile"].transform("sum")
        known["projected_s"] = once_s + rounds * (by["fixed_s"].transform("median") + own_s)
        return known

    @cached_property
    def table(self) -> pd.DataFrame:
        """Every figure by profile and repeat; NaN where there is none."""
        told: dict[str, Any] = {name: (figure.column, figure.over) for name, figure in FIGURES.items()}
        return self.models.groupby(level=_MEASURED, sort=False).agg(**told)

    @cached_property
    def figures(self) -> Spreads:
        """Every figure over the repeats, of the profiles that were measured."""
        return _spreads(self.table) if self.measurements else {}

    @cached_property
    def ratios(self) -> Spreads:
        """Figures over those of the baseline profile in the same repeat."""
        if not self.measurements:
            return {}
        ratioed = self.table[[name for name, figure in FIGURES.items() if figure.is_ratioed]]
        base = ratioed.query("profile == @self.baseline").droplevel("profile")
        return _spreads(ratioed.div(base.where(base != 0.0), level="repeat"))


def _spreads(table: pd.DataFrame) -> Spreads:
    by = table.groupby(level="profile", sort=False)
    ends: dict[str, Any] = {
        str(profile): rows.agg([*SPREAD_ENDS]).rename(index=SPREAD_ENDS) for profile, rows in by
    }
    return {profile: each.dropna(axis="columns").to_dict() for profile, each in ends.items()}
