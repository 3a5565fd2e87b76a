"""A comparison for readers: what the terminal prints, and the files that hold the same.

`compare.json` holds everything, `compare.csv` the figures; `compare.html` shows the tables and sentences of
the terminal between its charts.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from v8.storage import write_json, write_text
from v8.tables import Table
from v8.tasks import TASKS
from v8.views.charts import Chart
from v8.views.comparison_results import (
    CLAIMS,
    FIGURES,
    PROJECTED_MODELS,
    Comparison,
    FigureKind,
    Measurement,
    ModelMeasurement,
    Spread,
    assumption,
    figures_of,
    ratios_of,
)
from v8.views.document import document, plot
from v8.views.figures import dot_figure, stage_figure
from v8.views.markup import Html, element, join, shown_table
from v8.views.page import DEMO_WARNING, provenance
from v8.wording import ABSENT, count, digits, duration, number, plural

CLAIM_NOTE: Final = (
    "Claims of the lineage's guides, for an unnamed Colab GPU and the profile's own epochs: no log, no "
    "machine, no data. They are not measurements and are shown to be compared with."
)

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

_OTHERS: Final = ("naive", "best baseline")
"""What a model's error stands beside; the best baseline is the one of each series and task."""

_STAGES: Final = (
    *("import", "candles", "features_cold", "windows", "build", "compile"),
    *("train", "validate", "judge", "save"),
)
"""Stages of the stacked bars, in the order in which they happen."""


def contents(comparison: Comparison) -> Iterator[tuple[str, list[str | Table]]]:
    """Tell what was found as sections: a heading, and sentences, tables, and markup for the page alone."""
    if comparison.failures:
        reasons = sorted(comparison.failures.items())
        yield "Failed", [shown_table(Table(["Profile", "Reason"], reasons, is_prose=True))]
    if comparison.measurements:
        label = "Seconds of one model, with the import and compilation its process pays once; medians over"
        yield "Time", [plot(_stage_figure(comparison), f"{label} repeats."), ratio_table(comparison)]
        label = "Mean absolute error on the test span ÷ that of {}, each series and task: left of 1 is less."
        yield "Skill", [plot(_skill_figure(comparison, other), label.format(other)) for other in _OTHERS]
    downloaded = (
        f"Candles of {len(comparison.series)} series from {comparison.source}: "
        f"{duration(sum(comparison.download_s.values()))} to download, or to read again what was downloaded "
        "before."
    )
    costs = [cost_table(comparison)] if comparison.measurements else []
    yield "Cost and skill", [*costs, assumption(comparison), downloaded]
    if claims := claim_table(comparison):
        yield "What the guides claimed", [claims]
    if comparison.measurements:
        yield "Every measurement", [_measurements(comparison)]
    yield "Where these numbers come from", [provenance(comparison)]


def write_comparison(folder: Path, comparison: Comparison) -> list[Path]:
    """Write `compare.json`, `compare.csv` and `compare.html` into a folder, each atomically; return them."""
    files = [folder / f"compare.{kind}" for kind in ("json", "csv", "html")]
    write_json(files[0], comparison.to_json())
    write_text(files[1], comparison_csv(comparison))
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
    said = (budget_sentence(comparison), *cautions(comparison))
    body = [
        element("p", DEMO_WARNING, class_="banner", role="alert") if comparison.is_demo else Html(),
        element("h1", f"Profiles compared: {', '.join(comparison.num_bars)}"),
        *(element("p", sentence) for sentence in said),
    ]
    for heading, parts in contents(comparison):
        body += [element("h2", heading), *map(_on_page, parts)]
    return document("v8: profiles compared", join(body))


def _on_page(part: str | Table) -> Html:
    if isinstance(part, Table):
        return join([_on_page(part.title), shown_table(part, class_="wrapped figures", is_titled=False)])
    return part if isinstance(part, Html) else element("p", part, class_="soft")


def _stage_figure(comparison: Comparison) -> Chart:
    found = {profile: figures_of(comparison, profile) for profile in comparison.profiles}
    names = [f"{stage}_s" for stage in _STAGES]
    return stage_figure(
        {
            profile: {FIGURES[name].title: figures[name].median for name in names if name in figures}
            for profile, figures in found.items()
        }
    )


def _skill_figure(comparison: Comparison, other: str) -> Chart:
    """Draw one row per profile and series; repeats train to the same weights, so the first one counts."""
    firsts = [comparison.of(name)[0] for name in comparison.profiles]
    rows = {
        f"{one.profile}, {model.series}": _multiples(model)[other] for one in firsts for model in one.models
    }
    columns = {task: [multiples.get(task) for multiples in rows.values()] for task in _tasks(comparison)}
    return dot_figure(list(rows), columns, x_title=f"error ÷ error of {other}")


def _multiples(model: ModelMeasurement) -> dict[str, Mapping[str, float | None]]:
    return dict(zip(_OTHERS, (model.multiples, model.multiples_of_best), strict=True))


def _measurements(comparison: Comparison) -> Html:
    """Return one row per model and repeat, speeds first, then errors: both at once would be too wide."""
    tasks = _tasks(comparison)
    speeds = ("train s", "validate s", "windows/s", "epochs", "best", "matmul GFLOP/s", "precision", "device")
    multiples = [f"{task} ÷ {other}" for task in tasks for other in _OTHERS]
    models = [(one, model) for one in comparison.measurements for model in one.models]
    names = [[one.profile, str(one.repeat), model.series] for one, model in models]
    return join(
        shown_table(
            Table(["profile", "repeat", "series", *head], map(list.__add__, names, rows)),
            class_="wrapped figures",
        )
        for head, rows in (
            (speeds, [_speeds(one, model) for one, model in models]),
            (multiples, [_errors(model, tasks) for _, model in models]),
        )
    )


def _speeds(one: Measurement, model: ModelMeasurement) -> list[str]:
    stages = (model.seconds.get(stage) for stage in ("train", "validate"))
    of_epochs = (f"{model.windows_per_s:,.0f}", str(model.epochs_run), str(model.best_epoch))
    return [
        *(ABSENT if seconds is None else f"{seconds:.2f}" for seconds in stages),
        *(of_epochs if model.epochs_run else (ABSENT, "fitted", ABSENT)),
        f"{one.matmul_gflop_per_s:,.0f}",
        one.precision,
        one.device,
    ]


def _errors(model: ModelMeasurement, tasks: list[str]) -> list[str]:
    return [number(those.get(task)) for task in tasks for those in _multiples(model).values()]


def _tasks(comparison: Comparison) -> list[str]:
    """List the tasks that any measured model has."""
    found = {task for one in comparison.measurements for model in one.models for task in model.multiples}
    return [task for task in TASKS if task in found]


def cost_table(comparison: Comparison) -> Table:
    """Return every figure of every profile, with its spread where there are several repeats."""
    num_repeats = comparison.num_repeats
    title = f"Cost and skill: median over {plural(num_repeats, 'repeat')}, seconds are the mean of "
    title += f"{len(comparison.series)} series" + (" (smallest to largest)" if num_repeats > 1 else "")
    return _figure_table(title, comparison, figures_of, lambda kind: UNITS[kind.unit])


def ratio_table(comparison: Comparison) -> Table:
    """Return the figures of every profile as multiples of the baseline profile's."""
    title = f"As multiples of {comparison.baseline}, within the same repeat"
    return _figure_table(title, comparison, ratios_of, lambda _: lambda ratio: f"× {digits(ratio)}")


def claim_table(comparison: Comparison) -> Table | None:
    """Return the claims about the compared profiles beside what was measured; None without any."""
    rows = []
    for name in comparison.profiles:
        if name in CLAIMS:
            claim, figures = CLAIMS[name], figures_of(comparison, name)
            own_epochs = comparison.of(name)[0].own_epochs
            one_model, all_models = (
                " to ".join(map(duration, ends)) for ends in (claim.model_s, claim.all_s)
            )
            measured = f"{duration(figures['epoch_s'].median * own_epochs)} for {plural(own_epochs, 'epoch')}"
            projected = duration(figures["projected_40_s"].median)
            rows.append([name, one_model, measured, all_models, projected, claim.ancestor])
    head = ["", "claimed: one model", "measured speed: one model"]
    head += [f"claimed: {PROJECTED_MODELS} models", f"projected: {PROJECTED_MODELS} models", "program"]
    note = f"{CLAIM_NOTE} The figures beside them are for {_bars(comparison)} candles a series."
    return Table(head, rows, note) if rows else None


def budget_sentence(comparison: Comparison) -> str:
    """Say what was trained, and what that is too little for."""
    names = ", ".join(comparison.series)
    what = f"{len(comparison.series)} series ({names}), {_bars(comparison)} newest candles each"
    if comparison.epochs is None:
        return f"Every profile trained its own epochs with early stopping on {what}."
    return (
        f"Budget: at most {plural(comparison.epochs, 'epoch')} on {what}. That measures speed; skill and "
        "epochs to best need --full."
    )


def cautions(comparison: Comparison) -> list[str]:
    """Say what the figures must not be taken for; nothing when there is nothing to say."""
    said = []
    horizons = {name: comparison.of(name)[0].horizon_bars for name in comparison.profiles}
    if len(set(horizons.values())) > 1:
        told = ", ".join(f"{name} {bars}" for name, bars in horizons.items())
        said.append(
            f"The profiles look differently far ahead, in bars: {told}. Near bars are easier, so error ÷ "
            "naive compares only profiles of equal horizon."
        )
    if comparison.num_repeats == 1:
        said.append(
            "One repeat has no spread: whatever else the machine did during a profile's turn counts as that "
            "profile's cost. --repeat 3 shows how much that is."
        )
    return said


def _figure_table(
    title: str,
    comparison: Comparison,
    spreads_of: Callable[[Comparison, str], dict[str, Spread]],
    writer_of: Callable[[FigureKind], Callable[[float], str]],
) -> Table:
    found = [spreads_of(comparison, name) for name in comparison.profiles]
    rows = [
        [
            f"{kind.title} per second" if kind.unit == "/s" else kind.title,
            *(_shown(spreads.get(name), writer_of(kind)) for spreads in found),
        ]
        for name, kind in FIGURES.items()
        if any(name in spreads for spreads in found)
    ]
    return Table(["", *comparison.profiles], rows, title)


def _shown(spread: Spread | None, write: Callable[[float], str]) -> str:
    if spread is None:
        return ABSENT
    middle, low, high = map(write, (spread.median, spread.low, spread.high))
    return middle if low == middle == high else f"{middle} ({low} to {high})"


def _bars(comparison: Comparison) -> str:
    return " or ".join(f"{number:,}" for number in sorted(set(comparison.num_bars.values())))
