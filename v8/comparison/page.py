"""What a comparison of profiles measured, the figures that follow from it, and the tables and files of both.

Every figure is computed per repeat and then shown as the median over repeats with the smallest and the
largest. Ratios are taken within one repeat, whose measurements lie close together in time, so that a
machine that becomes slower does not favour whoever was measured first.

`compare.json` holds everything, `compare.csv` the figures; `compare.html` shows the tables and sentences of
the terminal between its charts.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pandas as pd

from v8.artifacts.run_folder import now_iso
from v8.errors import ProfileError, listed
from v8.hardware import describe_machine, versions
from v8.language import language, say, term
from v8.networks.cost import ceiling_pct
from v8.own_files import COMPARISON_COLUMNS
from v8.records import check_format, read_json_object
from v8.reports.figures import Dot, change_pct, spread_figure
from v8.reports.markup import Html, document, element, folded, plot, shown_table
from v8.reports.page import provenance
from v8.reports.verdict import beside_naive, opening
from v8.storage import write_json, write_text
from v8.tasks import TASKS
from v8.wording import ABSENT, Table, between, count, digits, duration, plural

COMPARISON_FORMAT: Final = 1  # version of the keys of `compare.json`

PROJECTED_MODELS: Final = 40  # series of the default universe

NEGLIGIBLE_PCT: Final = 0.5  # errors, in per cent of naive's, that are no further apart count as equal

WARM: Final = "features_warm"
"""Reading features again that the store already holds; no stage of a run, so no part of its sums."""

_NO_STAGES: Final = ["seconds.compile", f"seconds.{WARM}"]
"""Columns of models that are no part of their time: a process compiles once, whichever is charged with it."""

_OF_EPOCHS: Final = ["epoch_s", "windows_per_s", "best_epoch"]  # which a formula has none of

_MEASURED: Final = ["profile", "repeat"]  # what tells measurements apart

_ENDS: Final = {"median": "median", "min": "low", "max": "high"}
"""What is told of a figure over repeats, by pandas' name."""

Spreads: TypeAlias = dict[str, dict[str, dict[str, float]]]
"""By profile and by figure that it has: `median`, `low` and `high` over repeats."""

CLAIMS: Final[Mapping[str, Mapping[str, Any]]] = {
    profile: {"ancestor": ancestor, "model_s": model_s, "all_s": all_s}
    for profile, ancestor, model_s, all_s in (
        ("stable", "V8_STABLE.py", (60, 90), (40 * 60, 60 * 60)),
        ("aligned", "V8_ALIGNED_WITH_V7.py", (30, 45), (20 * 60, 30 * 60)),
        ("v4_transformer", "v4_train_transformer.py", (3 * 60, 5 * 60), (2 * 3600, 3 * 3600)),
        ("v4_gru", "v4_train_fast_gru.py", (5 * 60, 8 * 60), (3 * 3600, 5 * 3600)),
        ("v4_lstm", "v4_train_unified.py", (10 * 60, 15 * 60), (6 * 3600, 10 * 3600)),
    )
}
"""What the ancestors' guides say of "Colab GPU" trainings with the profile's own epochs: from and to."""

CLAIMED: Final = {"all_s": "40 models, claimed", "model_s": "one model, claimed"}
CLAIM_NOTE: Final = "Claimed: by guides of the lineage, for an unnamed GPU, without a log; no measurement."


class Figure(NamedTuple):
    """A figure of a measurement."""

    title: str  # what it is, for people
    unit: str  # one of `UNITS`
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
    ends: dict[str, Any] = {str(profile): rows.agg([*_ENDS]).rename(index=_ENDS) for profile, rows in by}
    return {profile: each.dropna(axis="columns").to_dict() for profile, each in ends.items()}


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


class Worth(NamedTuple):
    """What a profile is worth, and what that costs."""

    profile: str
    dots: Sequence[Dot]  # by series, its error beside naive's, the mean over the tasks that all models have
    change_pct: float  # by how many per cent its error is larger than naive's, median over series
    projected_s: float  # seconds of 40 models with its own epochs

    def __str__(self) -> str:
        told = beside_naive(1.0 + self.change_pct / 100.0)
        time = duration(self.projected_s, is_estimate=True)
        cost = say("{num} models take about {time}", num=PROJECTED_MODELS, time=time)
        return say("{told}, mean over tasks; {cost}", told=told, cost=cost)


def worths(comparison: Comparison) -> list[Worth]:
    """Put worth beside cost, the smallest error first; nothing where models have no error in common."""
    figures = comparison.figures
    if not figures:
        return []
    multiples = comparison.models.filter(like="multiples.").dropna(axis="columns")
    changes = multiples.mean(axis="columns").dropna().map(change_pct)
    found = []
    for profile, those in changes.groupby(level="profile", sort=False):
        middles = those.groupby(level="series", sort=False).median()  # over repeats
        dots = [Dot(str(series), pct) for series, pct in middles.items()]
        time_s = figures[str(profile)]["projected_40_s"]["median"]
        found.append(Worth(str(profile), dots, float(middles.median()), time_s))
    return sorted(found, key=lambda one: one.change_pct)


def advice(comparison: Comparison) -> list[str]:
    """Say which profile is the one to take, at what cost, and what is had for more or less; or why not."""
    those = worths(comparison)
    if not those:
        return []
    quickly = sorted(those, key=lambda one: one.projected_s)
    fastest = say("The fastest is {name}: {told}.", name=quickly[0].profile, told=quickly[0])
    if comparison.epochs is not None:
        return [say("So short a training tells what is fast, and not yet what to take."), fastest]
    if len({*comparison.horizons.values()}) > 1:
        return [say("No profile is the one to take: they look differently far ahead."), fastest]
    best = those[0]
    if best.change_pct >= 0.0:
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
        claims = [term(CLAIM_NOTE)] if CLAIMS.keys() & comparison.figures.keys() else []
        yield say("Worth and cost"), [worth_table(comparison), *claims, assumption(comparison)]
        yield say("All figures"), [ratio_table(comparison), cost_table(comparison)]
    yield say("Where these numbers come from"), [provenance(comparison)]


def comparison_files(folder: Path) -> list[Path]:
    """List the files that a comparison has in a folder: `compare.json`, `compare.csv` and `compare.html`."""
    return [folder / f"compare.{kind}" for kind in ("json", "csv", "html")]


def require_same_comparison(folder: Path, comparison: Comparison) -> None:
    """Refuse a folder that holds a comparison of other profiles, runs, series, candles or epochs.

    Args:
        folder: Where its files would be replaced; it need not exist.
        comparison: What is to be compared.

    Raises:
        ProfileError: If another comparison lies there, which may have taken hours.
        ArtifactError: If its `compare.json` is damaged, or of an unknown format.
    """
    file, *_ = comparison_files(folder)
    if not file.exists():
        return
    fix = "Choose another param:out, or add param:overwrite to replace it"
    content = read_json_object(file, fix=fix)
    check_format(content, (COMPARISON_FORMAT,), what="comparison", where=str(file), fix=fix)
    planned = json.loads(json.dumps(asdict(comparison)))
    keys = ("source", "series", "num_bars", "epochs", "num_repeats", "baseline")
    others = [key for key in keys if content.get(key) != planned[key]]
    if others:
        rule = "a comparison is replaced only by the same one, measured again"
        got = f"a comparison there with another {listed(others)}"
        raise ProfileError(where=f"param:out {folder}", rule=rule, got=got, fix=fix)


def write_comparison(folder: Path, comparison: Comparison) -> list[Path]:
    """Write `compare.json`, `compare.csv` and `compare.html` into a folder, each atomically; return them."""
    files = comparison_files(folder)
    content = {
        "format": COMPARISON_FORMAT,
        **asdict(comparison),
        "assumption": assumption(comparison),
        "figures": comparison.figures,
        "ratios": comparison.ratios,
        "claims": {name: claim for name, claim in CLAIMS.items() if name in comparison.num_bars},
    }
    write_json(files[0], content)
    write_text(files[1], comparison_csv(comparison))
    with language():
        write_text(files[2], comparison_page(comparison))
    return files


def comparison_csv(comparison: Comparison) -> str:
    """Return one line per profile and figure: median, smallest and largest, and its ratio to the baseline."""
    ends = [*_ENDS.values()]
    columns = [*COMPARISON_COLUMNS, *ends, *(f"ratio_{end}" for end in ends)]
    lines: list[list[object]] = []
    for profile, figures in comparison.figures.items():
        for name, spread in figures.items():
            ratio = comparison.ratios[profile].get(name, {})
            lines.append([profile, name, FIGURES[name].unit, *spread.values(), *map(ratio.get, ends)])
    return Table(columns, lines).csv()


def comparison_page(comparison: Comparison) -> Html:
    """Return the page; charts on it need a browser, tables do not."""
    body = [opening("", *advice(comparison))]
    those = worths(comparison)
    if those:
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


def worth_table(comparison: Comparison) -> Table:
    """Return what decides: errors, the time of 40 models and memory, and beside them what guides claim."""
    wanted = [f"{task}_multiple{which}" for which in ("", "_of_best") for task in TASKS]
    table = _figure_table("", comparison.figures, [*wanted, "peak_process_bytes", "projected_40_s"])
    for name, title in CLAIMED.items():
        ends = [CLAIMS.get(profile, {}).get(name) for profile in comparison.figures]
        cells = (between(map(duration, each)) if each else ABSENT for each in ends)
        table.rows += [[term(title), *cells]] if any(ends) else []
    return table


def cost_table(comparison: Comparison) -> Table:
    """Return every figure of every profile, with its spread where there are several repeats."""
    told = {"repeats": plural(comparison.num_repeats, "repeat"), "num": len(comparison.series)}
    title = say("Medians over {repeats} (smallest to largest), seconds are means of {num} series", **told)
    return _figure_table(title, comparison.figures, FIGURES)


def ratio_table(comparison: Comparison) -> Table:
    """Return the figures of every profile as multiples of the baseline profile's."""
    title = say("As multiples of {name}, within the same repeat", name=comparison.baseline)
    return _figure_table(title, comparison.ratios, FIGURES, lambda ratio: f"× {digits(ratio)}")


def _figure_table(
    title: str, found: Spreads, names: Iterable[str], write: Callable[[float], str] | None = None
) -> Table:
    table = Table(["", *found], [], title)
    for name in names:
        spreads = [figures.get(name) for figures in found.values()]
        if any(spreads):
            figure = FIGURES[name]
            cells = (_shown(spread, write or UNITS[figure.unit]) for spread in spreads)
            table.rows.append([term(figure.title), *cells])
    return table


def _shown(spread: Mapping[str, float] | None, write: Callable[[float], str]) -> str:
    if spread is None:
        return ABSENT
    middle, low, high = map(write, spread.values())
    return middle if low == middle == high else f"{middle} ({between((low, high))})"


def budget_sentence(comparison: Comparison) -> str:
    """Say what was trained, and what that is too little for."""
    num = len(comparison.series)
    names = ", ".join(comparison.series)
    bars = say(" or ").join(f"{number:,}" for number in sorted({*comparison.num_bars.values()}))
    what = say("{num} series ({names}), {bars} newest candles each", num=num, names=names, bars=bars)
    if comparison.epochs is None:
        return say("Every profile trained its own epochs with early stopping on {what}.", what=what)
    return say(
        "Budget: at most {epochs} on {what}. That measures speed; skill and epochs to best need --full.",
        epochs=plural(comparison.epochs, "epoch"),
        what=what,
    )


def cautions(comparison: Comparison) -> list[str]:
    """Say what the figures must not be taken for; nothing when there is nothing to say."""
    far = say(
        "The profiles look differently far ahead, in bars: {told}. Near bars are easier, so error ÷ naive "
        "compares only profiles of equal horizon.",
        told=", ".join(f"{name} {bars}" for name, bars in comparison.horizons.items()),
    )
    once = say(
        "One repeat has no spread: whatever else the machine did during a profile's turn counts as that "
        "profile's cost. --repeat 3 shows how much that is."
    )
    said = {far: len({*comparison.horizons.values()}) > 1, once: comparison.num_repeats == 1}
    return [sentence for sentence, is_so in said.items() if is_so]
