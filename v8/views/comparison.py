"""What a comparison of profiles measured, the figures that follow from it, and the tables and files of both.

Every figure is computed per repeat and then shown as the median over repeats with the smallest and the
largest. Ratios are taken within one repeat, whose measurements lie close together in time, so that a
machine that becomes slower does not favour whoever was measured first.

`compare.json` holds everything, `compare.csv` the figures; `compare.html` shows the tables and sentences of
the terminal between its charts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import fsum
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from pydantic_core import to_jsonable_python

from v8.language import language, of_pages, say, term
from v8.networks.cost import ceiling_pct
from v8.storage import write_json, write_text
from v8.tasks import TASKS
from v8.views.figures import Dot, change_pct, spread_figure
from v8.views.markup import Html, document, element, folded, plot, shown_table
from v8.views.page import provenance
from v8.views.verdict import beside_naive, opening
from v8.wording import ABSENT, Table, between, count, digits, duration, plural

COMPARISON_FORMAT: Final = 1  # version of the keys of `compare.json`

PROJECTED_MODELS: Final = 40  # series of the default universe

NEGLIGIBLE_PCT: Final = 0.5  # errors, in per cent of naive's, that are no further apart count as equal

COMPILE: Final = "compile"  # the stage that a process pays once, whichever of its models is charged with it

WARM: Final = "features_warm"
"""Reading features again that the store already holds; no stage of a run, so no part of its sums."""

_OTHERS: Final = {"naive": "multiples", "best baseline": "multiples_of_best"}
"""What a model's error stands beside, by its field; the best baseline is that of each series and task."""


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


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One profile measured once, in a run of its own; None of a run that was not made to be compared."""

    profile: str  # its name
    repeat: int = 1  # from 1
    import_s: float | None = None  # from the start of the process until it could train, seconds
    models: tuple[ModelMeasurement, ...]  # at least one
    horizon_bars: int  # steps ahead
    num_parameters: int  # trainable numbers of the network
    flop_per_window: float  # floating-point operations of one training window, by formula
    own_epochs: int  # most epochs by the profile itself, whatever the budget of the comparison
    precision: str  # keras dtype policy
    device: str  # where the weights lay, such as "CPU:0"
    fleet_size: int  # models that trained as one program
    peak_process_bytes: int | None  # most resident memory of the process
    peak_device_bytes: int  # most memory of the device; on a CPU the same
    matmul_gflop_per_s: float | None = None  # matmul rate of the same process right after training


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
        return [one for one in self.measurements if one.profile == profile]

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
    unit: str  # one of `UNITS`
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


CLAIMED: Final = {"all_s": "40 models, claimed", "model_s": "one model, claimed"}
CLAIM_NOTE: Final = "Claimed: by guides of the lineage, for an unnamed GPU, without a log; no measurement."


def projected_s(one: Measurement, num_workers: int) -> float:
    """Return the seconds that 40 models would take with the profile's own epochs; see `assumption`."""
    # The first model of a process also pays for what the others find ready, so the median counts.
    fixed_s = median(model.stages_s - model.epochs_run * model.epoch_s for model in one.models)
    epoch_s = fmean(model.epoch_s for model in one.models)
    rounds = PROJECTED_MODELS / (1 if one.device.startswith("GPU") else num_workers)
    once_s = (one.import_s or 0.0) + (_COMPILE_S(one, num_workers) or 0.0)
    return once_s + rounds * (fixed_s + one.own_epochs * epoch_s)


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
    return lambda one, _: None if (value := getattr(one, name)) is None else float(value)


def _ceiling_pct(one: Measurement, num_workers: int) -> float | None:
    windows_per_s = _WINDOWS_PER_S(one, num_workers)
    if windows_per_s is None or one.matmul_gflop_per_s is None:
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
    "windows_per_s": _ratioed("training windows per second", "/s", _WINDOWS_PER_S),
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
        for name, (other, kind) in zip(("multiple", "multiple_of_best"), _OTHERS.items(), strict=True)
    },
    "projected_40_s": _ratioed(f"{PROJECTED_MODELS} models with its own epochs, projected", "s", projected_s),
}
"""Every figure of a comparison in the order of its tables; seconds per model unless it says otherwise."""

UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "s": lambda value: f"{value * 1e3:.3g} ms" if value < 1 else duration(value),
    "/s": lambda value: f"{value:,.0f}" if value >= 10 else digits(value),
    "bytes": lambda value: f"{value / 1e6:,.0f} MB",
    "flop": lambda value: f"{value / 1e6:,.0f} MFLOP" if value >= 1e7 else f"{digits(value / 1e6)} MFLOP",
    "%": lambda value: f"{value:.1f} %" if value >= 1 else f"{digits(value)} %",
    "epochs": count,
    "": lambda value: count(value) if value == int(value) else f"{value:.3f}",
}
"""How a figure of each unit is written."""


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


def _spreads(found: Mapping[str, Iterable[float | None]]) -> dict[str, Spread]:
    """Return median, smallest and largest of the numbers that each figure has; nothing without any."""
    known = {name: [value for value in values if value is not None] for name, values in found.items()}
    return {
        name: Spread(median(values), min(values), max(values)) for name, values in known.items() if values
    }


def assumption(comparison: Comparison) -> str:
    """Say what the projected time takes for granted."""
    return say(
        "Projected, not measured: {num} models like the measured ones, each training all of the profile's "
        "own epochs at the measured speed, so early stopping would end sooner. On a CPU {workers} "
        "single-threaded processes work side by side without slowing each other down and import and compile "
        "at the same time; on a GPU one process trains fleets of the measured size, although larger ones "
        "would be faster.",
        num=PROJECTED_MODELS,
        workers=comparison.num_workers,
    )


@dataclass(frozen=True)
class Worth:
    """What a profile is worth, and what that costs."""

    profile: str
    dots: Sequence[Dot]  # by series, its error beside naive's, the mean over the tasks that all models have
    projected_s: float  # seconds of 40 models with its own epochs

    @property
    def change_pct(self) -> float:
        """By how many per cent its error is larger than naive's, median over series."""
        return median(dot.change_pct for dot in self.dots)

    def __str__(self) -> str:
        told, time = beside_naive(1.0 + self.change_pct / 100.0), duration(self.projected_s, is_estimate=True)
        cost = say("{num} models take about {time}", num=PROJECTED_MODELS, time=time)
        return say("{told}, mean over tasks; {cost}", told=told, cost=cost)


def worths(comparison: Comparison) -> list[Worth]:
    """Put worth beside cost, the smallest error first; nothing where models have no error in common."""
    models = [model for one in comparison.measurements for model in one.models]
    shared = [
        task for task in _tasks(comparison) if all(one.multiples.get(task) is not None for one in models)
    ]
    found = []
    for profile in comparison.profiles if shared else ():
        dots = [
            Dot(one.series, change_pct(fmean(one.multiples[task] or 0.0 for task in shared)))
            for one in comparison.of(profile)[0].models
        ]
        found.append(Worth(profile, dots, figures_of(comparison, profile)["projected_40_s"].median))
    return sorted(found, key=lambda one: one.change_pct)


def advice(comparison: Comparison) -> list[str]:
    """Say which profile is the one to take, at what cost, and what is had for more or less; or why not."""
    if not (those := worths(comparison)):
        return []
    quickly = sorted(those, key=lambda one: one.projected_s)
    fastest = say("The fastest is {name}: {told}.", name=quickly[0].profile, told=quickly[0])
    if comparison.epochs is not None:
        return [say("So short a training tells what is fast, and not yet what to take."), fastest]
    if len({one.horizon_bars for one in comparison.measurements}) > 1:
        return [say("No profile is the one to take: they look differently far ahead."), fastest]
    if (best := those[0]).change_pct >= 0.0:
        return [say("No profile is the one to take: none errs less than if nothing changed."), fastest]
    chosen = next(one for one in quickly if one.change_pct - best.change_pct <= NEGLIGIBLE_PCT)
    said = [say("Take {name}: {told}.", name=chosen.profile, told=chosen)]
    if best is not chosen:
        said.append(say("The smallest error has {name}: {told}.", name=best.profile, told=best))
    return [*said, *([fastest] if quickly[0] is not chosen else [])]


def contents(comparison: Comparison) -> Iterator[tuple[str, list[str | Table]]]:
    """Tell what was found as sections: a heading, and sentences, tables, and markup for the page alone."""
    if comparison.failures:
        reasons = sorted(comparison.failures.items())
        yield say("Failed"), [shown_table(Table(["Profile", "Reason"], reasons, is_prose=True))]
    if comparison.measurements:
        claims = [term(CLAIM_NOTE)] if CLAIMS.keys() & {*comparison.profiles} else []
        yield say("Worth and cost"), [worth_table(comparison), *claims, assumption(comparison)]
        yield say("All figures"), [ratio_table(comparison), cost_table(comparison)]
    downloaded = say(
        "Candles of {num} series from {source}: {time} to download, or to read again what was downloaded "
        "before.",
        num=len(comparison.series),
        source=comparison.source,
        time=duration(sum(comparison.download_s.values())),
    )
    said = [downloaded] if comparison.download_s else []
    yield say("Where these numbers come from"), [*said, provenance(comparison)]


def write_comparison(folder: Path, comparison: Comparison) -> list[Path]:
    """Write `compare.json`, `compare.csv` and `compare.html` into a folder, each atomically; return them."""
    files = [folder / f"compare.{kind}" for kind in ("json", "csv", "html")]
    write_json(files[0], comparison.to_json())
    write_text(files[1], comparison_csv(comparison))
    with language(of_pages()):
        write_text(files[2], comparison_page(comparison))
    return files


def comparison_csv(comparison: Comparison) -> str:
    """Return one line per profile and figure: median, smallest and largest, and its ratio to the baseline."""
    ends = ("median", "low", "high")
    columns = ["profile", "figure", "unit", *ends, *(f"ratio_{end}" for end in ends)]
    lines = []
    for profile in comparison.profiles:
        ratios = ratios_of(comparison, profile)
        for name, spread in figures_of(comparison, profile).items():
            ratio = vars(ratios[name]).values() if name in ratios else [None] * 3
            lines.append([profile, name, FIGURES[name].unit, *vars(spread).values(), *ratio])
    return Table(columns, lines).csv()


def comparison_page(comparison: Comparison) -> Html:
    """Return the page; charts on it need a browser, tables do not."""
    body = [opening("", *advice(comparison))]
    if those := worths(comparison):
        rows = {f"{one.profile}, {duration(one.projected_s, is_estimate=True)}": one.dots for one in those}
        label = say("Error beside that of no change, mean over tasks, and the time of 40 models.")
        body.append(plot(spread_figure(rows, dict.fromkeys(rows, "blue")), label))
        note = say(
            "A dot is a series, a diamond their median. Medians that are at most {points} points apart count "
            "as equal, and the fastest of them is the one to take. Whether profiles differ by more than "
            "chance is not tested here.",
            points=NEGLIGIBLE_PCT,
        )
        body.append(element("p", note, class_="soft"))
    said = [budget_sentence(comparison), *cautions(comparison)]
    body += [element("p", sentence, class_="soft") for sentence in said]
    for heading, parts in contents(comparison):
        shown = [_on_page(part) for part in parts]
        is_open = heading in {say("Failed"), say("Worth and cost")}
        body += [element("h2", heading), *shown] if is_open else [folded(heading, *shown)]
    heading = say("Profiles compared: {names}", names=", ".join(comparison.num_bars))
    return document(f"v8: {heading}", heading, body, is_demo=comparison.is_demo)


def _on_page(part: str | Table) -> Html:
    if isinstance(part, Table):
        return shown_table(part, class_="wrapped figures")
    return part if isinstance(part, Html) else element("p", part, class_="soft")


def _tasks(comparison: Comparison) -> list[str]:
    """List the tasks that any measured model has."""
    found = {task for one in comparison.measurements for model in one.models for task in model.multiples}
    return [task for task in TASKS if task in found]


def worth_table(comparison: Comparison) -> Table:
    """Return what decides: errors, the time of 40 models and memory, and beside them what guides claim."""
    wanted = [f"{task}_{name}" for name in ("multiple", "multiple_of_best") for task in _tasks(comparison)]
    table = _figure_table("", comparison, [*wanted, "peak_process_bytes", "projected_40_s"])
    for name, title in CLAIMED.items():
        ends = [getattr(CLAIMS.get(profile), name, None) for profile in comparison.profiles]
        cells = (between(map(duration, each)) if each else ABSENT for each in ends)
        table.rows += [[term(title), *cells]] if any(ends) else []
    return table


def cost_table(comparison: Comparison) -> Table:
    """Return every figure of every profile, with its spread where there are several repeats."""
    told = {"repeats": plural(comparison.num_repeats, "repeat"), "num": len(comparison.series)}
    title = say("Medians over {repeats} (smallest to largest), seconds are means of {num} series", **told)
    return _figure_table(title, comparison, FIGURES)


def ratio_table(comparison: Comparison) -> Table:
    """Return the figures of every profile as multiples of the baseline profile's."""
    title = say("As multiples of {name}, within the same repeat", name=comparison.baseline)
    return _figure_table(title, comparison, FIGURES, is_ratio=True)


def _figure_table(
    title: str, comparison: Comparison, names: Iterable[str], *, is_ratio: bool = False
) -> Table:
    of = ratios_of if is_ratio else figures_of
    found, rows = [of(comparison, profile) for profile in comparison.profiles], []
    for name in names:
        write = (lambda ratio: f"× {digits(ratio)}") if is_ratio else UNITS[FIGURES[name].unit]
        cells = [_shown(spreads.get(name), write) for spreads in found]
        if any(name in spreads for spreads in found):
            rows.append([term(FIGURES[name].title), *cells])
    return Table(["", *comparison.profiles], rows, title)


def _shown(spread: Spread | None, write: Callable[[float], str]) -> str:
    if spread is None:
        return ABSENT
    middle, low, high = map(write, (spread.median, spread.low, spread.high))
    return middle if low == middle == high else f"{middle} ({between((low, high))})"


def budget_sentence(comparison: Comparison) -> str:
    """Say what was trained, and what that is too little for."""
    told = {"num": len(comparison.series), "names": ", ".join(comparison.series), "bars": _bars(comparison)}
    what = say("{num} series ({names}), {bars} newest candles each", **told)
    if comparison.epochs is None:
        return say("Every profile trained its own epochs with early stopping on {what}.", what=what)
    return say(
        "Budget: at most {epochs} on {what}. That measures speed; skill and epochs to best need --full.",
        epochs=plural(comparison.epochs, "epoch"),
        what=what,
    )


def cautions(comparison: Comparison) -> list[str]:
    """Say what the figures must not be taken for; nothing when there is nothing to say."""
    said = []
    horizons = {name: comparison.of(name)[0].horizon_bars for name in comparison.profiles}
    if len(set(horizons.values())) > 1:
        told = ", ".join(f"{name} {bars}" for name, bars in horizons.items())
        said.append(
            say(
                "The profiles look differently far ahead, in bars: {told}. Near bars are easier, so error ÷ "
                "naive compares only profiles of equal horizon.",
                told=told,
            )
        )
    if comparison.num_repeats == 1:
        said.append(
            say(
                "One repeat has no spread: whatever else the machine did during a profile's turn counts as "
                "that profile's cost. --repeat 3 shows how much that is."
            )
        )
    return said


def _bars(comparison: Comparison) -> str:
    return say(" or ").join(f"{number:,}" for number in sorted(set(comparison.num_bars.values())))
