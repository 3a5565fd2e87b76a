"""What a comparison of profiles measured, and the figures that follow from it.

Every figure is computed per repeat and then shown as the median over repeats with the smallest and the
largest. Ratios are taken within one repeat, whose measurements lie close together in time, so that a
machine that becomes slower does not favour whoever was measured first.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import fsum
from statistics import fmean, median
from typing import Any, Final

from pydantic_core import to_jsonable_python

from v8.networks.cost import ceiling_pct
from v8.tasks import TASKS

COMPARISON_FORMAT: Final = 1
"""Version of the keys of `compare.json`."""

PROJECTED_MODELS: Final = 40
"""Series of the default universe."""

COMPILE: Final = "compile"
"""The stage that a process pays once, whichever of its models is charged with it."""

WARM: Final = "features_warm"
"""Reading features again that the store already holds; no stage of a run, so no part of its sums."""


@dataclass(frozen=True)
class ModelMeasurement:
    """One model of a measured profile; one without a network lacks epochs, their times and some stages."""

    series: str  # its series
    seconds: Mapping[str, float]  # wall time per stage as the artefact records it, and `WARM`
    epoch_s: float  # with validation, but for the first one's program; in a fleet this model's share
    windows_per_s: float  # training speed, median over epochs; in a fleet this model's share
    epochs_run: int  # 0 of a profile without a network
    best_epoch: int  # epoch whose weights were kept; 0 is the untrained network
    multiples: Mapping[str, float | None]  # per task, error over naive's; None if naive made none
    multiples_of_best: Mapping[str, float | None]  # the same over the best baseline's

    @property
    def stages_s(self) -> float:
        """Seconds of all stages but those that a process pays once."""
        return fsum(seconds for stage, seconds in self.seconds.items() if stage not in {COMPILE, WARM})


@dataclass(frozen=True)
class Measurement:
    """One profile measured once, in a process of its own."""

    profile: str  # its name
    repeat: int  # from 1
    import_s: float  # from the start of the process until it could train, seconds
    models: tuple[ModelMeasurement, ...]  # at least one
    horizon_bars: int  # steps ahead
    num_parameters: int  # trainable numbers of the network
    flop_per_window: float  # floating-point operations of one training window, by formula
    own_epochs: int  # most epochs by the profile itself, whatever the budget of the comparison
    precision: str  # keras dtype policy
    device: str  # where the weights lay, such as "CPU:0"
    fleet_size: int  # models that trained as one program
    peak_process_bytes: int  # most resident memory of the process
    peak_device_bytes: int  # most memory of the device; on a CPU the same
    matmul_gflop_per_s: float  # matmul rate of the same process right after training


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Profiles measured side by side."""

    command: str  # the command line
    created_at: str  # when, ISO 8601 in UTC
    source: str  # name of the candle source
    is_demo: bool  # whether the market was simulated
    series: tuple[str, ...]  # what every profile was trained on
    num_bars: Mapping[str, int]  # per profile, newest candles of each series
    epochs: int | None  # epochs of the budget; None when each profile ran its own
    num_repeats: int  # how often each profile was to be measured
    baseline: str  # profile that ratios refer to
    num_workers: int  # processes that a run on this machine has at work side by side
    download_s: Mapping[str, float] = field(default_factory=dict)  # per series, until its candles were there
    machine: Mapping[str, Any]  # processor, cores, memory
    versions: Mapping[str, str]  # versions of what can change a result
    measurements: tuple[Measurement, ...] = ()  # those that succeeded, in the order taken
    failures: Mapping[str, str] = field(default_factory=dict)  # per profile with failed series: why

    @property
    def profiles(self) -> tuple[str, ...]:
        """Names of the profiles that were measured, in the order asked for."""
        return tuple(name for name in self.num_bars if self.of(name))

    def of(self, profile: str) -> list[Measurement]:
        """Return the measurements of a profile, first repeat first."""
        those = (one for one in self.measurements if one.profile == profile)
        return sorted(those, key=lambda one: one.repeat)

    def to_json(self) -> Any:
        """Return measurements, figures and ratios as plain JSON values."""
        return to_jsonable_python(
            {
                "format": COMPARISON_FORMAT,
                **vars(self),
                "assumption": assumption(self),
                "figures": {name: figures_of(self, name) for name in self.profiles},
                "ratios": {name: ratios_of(self, name) for name in self.profiles},
                "claims": {name: claim for name, claim in CLAIMS.items() if name in self.num_bars},
            }
        )


@dataclass(frozen=True)
class Spread:
    """A figure over repeats."""

    median: float
    low: float
    high: float


Reading = Callable[[Measurement, int], float | None]
"""Computes a figure of a measurement and the processes that a run has at work; None where it has none."""


@dataclass(frozen=True)
class FigureKind:
    """A figure of a measurement."""

    title: str  # what it is, for people
    unit: str  # "s", "/s", "bytes", "%", "flop", "epochs" or "" for a plain number
    of: Reading  # how it is computed
    is_ratioed: bool = False  # whether it is compared with the baseline profile's


@dataclass(frozen=True)
class Claim:
    """A time that a guide of the lineage states, without log or machine."""

    ancestor: str  # the program it is about
    model_s: tuple[float, float]  # from and to, seconds for one model
    all_s: tuple[float, float]  # from and to, seconds for 40 models


CLAIMS: Final[dict[str, Claim]] = {
    "stable": Claim("V8_STABLE.py", (60, 90), (40 * 60, 60 * 60)),
    "aligned": Claim("V8_ALIGNED_WITH_V7.py", (30, 45), (20 * 60, 30 * 60)),
    "v4_transformer": Claim("v4_train_transformer.py", (3 * 60, 5 * 60), (2 * 3600, 3 * 3600)),
    "v4_gru": Claim("v4_train_fast_gru.py", (5 * 60, 8 * 60), (3 * 3600, 5 * 3600)),
    "v4_lstm": Claim("v4_train_unified.py", (10 * 60, 15 * 60), (6 * 3600, 10 * 3600)),
}
"""What the ancestors' guides say of "Colab GPU" trainings with the profile's own epochs."""


def projected_s(one: Measurement, num_workers: int) -> float:
    """Return the seconds that 40 models would take with the profile's own epochs; see `assumption`."""
    # The first model of a process also pays for what the others find ready, so the median counts.
    fixed_s = median(model.stages_s - model.epochs_run * model.epoch_s for model in one.models)
    epoch_s = fmean(model.epoch_s for model in one.models)
    rounds = PROJECTED_MODELS / (1 if one.device.startswith("GPU") else num_workers)
    return (
        one.import_s + (_COMPILE_S(one, num_workers) or 0.0) + rounds * (fixed_s + one.own_epochs * epoch_s)
    )


def _over_models(
    middle: Callable[[Iterable[float]], float], of: Callable[[ModelMeasurement], float | None]
) -> Reading:
    def reading(one: Measurement, _: int) -> float | None:
        known = [value for model in one.models if (value := of(model)) is not None]
        return middle(known) if known else None

    return reading


def _stage(name: str, middle: Callable[[Iterable[float]], float] = fmean) -> Reading:
    return _over_models(middle, lambda model: model.seconds.get(name))


def _of_epochs(middle: Callable[[Iterable[float]], float], name: str) -> Reading:
    return _over_models(middle, lambda model: getattr(model, name) if model.epochs_run else None)


def _multiple(task: str, kind: str) -> Reading:
    return _over_models(median, lambda model: getattr(model, kind).get(task))


def _its(name: str) -> Reading:
    return lambda one, _: float(getattr(one, name))


def _ceiling_pct(one: Measurement, num_workers: int) -> float | None:
    windows_per_s = _WINDOWS_PER_S(one, num_workers)
    if windows_per_s is None:
        return None
    return ceiling_pct(one.fleet_size * windows_per_s, one.flop_per_window, one.matmul_gflop_per_s)


_COMPILE_S: Final = _stage(COMPILE, fsum)
_WINDOWS_PER_S: Final = _of_epochs(median, "windows_per_s")
_ratioed = partial(FigureKind, is_ratioed=True)


FIGURES: Final[dict[str, FigureKind]] = {
    "import_s": _ratioed("import, once a process", "s", _its("import_s")),
    "compile_s": _ratioed("compile, once a process", "s", _COMPILE_S),
    "candles_s": FigureKind("candles, from the cache", "s", _stage("candles")),
    "features_cold_s": FigureKind("features, cold", "s", _stage("features")),
    "features_warm_s": FigureKind("features, warm", "s", _stage(WARM)),
    "windows_s": FigureKind("windows", "s", _stage("windows")),
    "build_s": FigureKind("build", "s", _stage("build")),
    "train_s": _ratioed("train", "s", _stage("train")),
    "validate_s": FigureKind("validate", "s", _stage("validate")),
    "judge_s": FigureKind("evaluate", "s", _stage("judge")),
    "save_s": FigureKind("save", "s", _stage("save")),
    "model_s": _ratioed(
        "one model, without import and compile", "s", _over_models(fmean, lambda model: model.stages_s)
    ),
    "epoch_s": _ratioed("one epoch, validation included", "s", _of_epochs(fmean, "epoch_s")),
    "windows_per_s": _ratioed("training windows", "/s", _WINDOWS_PER_S),
    "ceiling_pct": _ratioed("of the matmul ceiling", "%", _ceiling_pct),
    "epochs_to_best": FigureKind("epochs to best", "epochs", _of_epochs(median, "best_epoch")),
    "horizon_bars": FigureKind("steps ahead", "", _its("horizon_bars")),
    "num_parameters": _ratioed("parameters", "", _its("num_parameters")),
    "flop_per_window": _ratioed("operations per window", "flop", _its("flop_per_window")),
    "peak_process_bytes": _ratioed("peak memory of the process", "bytes", _its("peak_process_bytes")),
    "peak_device_bytes": FigureKind("peak memory of the device", "bytes", _its("peak_device_bytes")),
    **{
        f"{task}_{name}": FigureKind(f"{task}: error ÷ {other}", "", _multiple(task, kind))
        for task in TASKS
        for name, other, kind in (
            ("multiple", "naive", "multiples"),
            ("multiple_of_best", "best baseline", "multiples_of_best"),
        )
    },
    "projected_40_s": _ratioed(f"{PROJECTED_MODELS} models with its own epochs, projected", "s", projected_s),
}
"""Every figure of a comparison in the order of its tables; seconds per model unless it says otherwise."""


def figures_of(comparison: Comparison, profile: str) -> dict[str, Spread]:
    """Return every figure of a profile that exists, over its repeats."""
    measured, num_workers = comparison.of(profile), comparison.num_workers
    return _spreads({name: [kind.of(one, num_workers) for one in measured] for name, kind in FIGURES.items()})


def ratios_of(comparison: Comparison, profile: str) -> dict[str, Spread]:
    """Return figures of a profile over those of the baseline profile, both of one repeat."""
    baselines = {one.repeat: one for one in comparison.of(comparison.baseline)}
    pairs = [(one, baselines[one.repeat]) for one in comparison.of(profile) if one.repeat in baselines]

    def ratio(kind: FigureKind, pair: tuple[Measurement, Measurement]) -> float | None:
        ours, theirs = (kind.of(one, comparison.num_workers) for one in pair)
        return ours / theirs if ours is not None and theirs else None

    ratioed = {name: kind for name, kind in FIGURES.items() if kind.is_ratioed}
    return _spreads({name: [ratio(kind, pair) for pair in pairs] for name, kind in ratioed.items()})


def assumption(comparison: Comparison) -> str:
    """Say what the projected time takes for granted."""
    return (
        f"Projected, not measured: {PROJECTED_MODELS} models like the measured ones, each training all of "
        "the profile's own epochs at the measured speed, so early stopping would end sooner. On a CPU "
        f"{comparison.num_workers} single-threaded processes work side by side without slowing each other "
        "down and import and compile at the same time; on a GPU one process trains fleets of the measured "
        "size, although larger ones would be faster."
    )


def _spreads(found: Mapping[str, Iterable[float | None]]) -> dict[str, Spread]:
    """Return median, smallest and largest of the numbers that each figure has; nothing without any."""
    known = {name: [value for value in values if value is not None] for name, values in found.items()}
    return {
        name: Spread(median(values), min(values), max(values)) for name, values in known.items() if values
    }
