"""A comparison as files: `compare.json` holds everything, `compare.csv` and `compare.html` the figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import plotly.graph_objects as go

from v8.reports import comparison_tables as text
from v8.reports.comparison_results import FIGURES, Comparison, assumption, figures_of, ratios_of
from v8.reports.document import document, plot
from v8.reports.figures import dot_figure, stage_figure
from v8.reports.markup import Html, element, facts, join, table
from v8.reports.page import DEMO_WARNING
from v8.storage import write_json, write_text
from v8.tasks import TASKS
from v8.wording import number

_STAGES = (
    *("import", "candles", "features_cold", "windows", "build", "compile"),
    *("train", "validate", "judge", "save"),
)
"""Stages of the stacked bars, in the order in which they happen."""


def write_comparison(folder: Path, comparison: Comparison) -> list[Path]:
    """Write `compare.json`, `compare.csv` and `compare.html`, each atomically.

    Args:
        folder: Where to; made when missing, and files of an earlier comparison are replaced.
        comparison: What was measured.

    Returns:
        The files written.
    """
    files = [folder / f"compare.{kind}" for kind in ("json", "csv", "html")]
    write_json(files[0], comparison.to_json())
    write_text(files[1], comparison_csv(comparison))
    write_text(files[2], comparison_page(comparison))
    return files


def comparison_csv(comparison: Comparison) -> str:
    """Return one line per profile and figure: median, smallest and largest, and its ratio to the baseline."""
    stream = io.StringIO()
    ends = ("median", "low", "high")
    columns = ["profile", "figure", "unit", *ends, *(f"ratio_{end}" for end in ends)]
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    for profile in comparison.profiles:
        ratios = ratios_of(comparison, profile)
        for name, spread in figures_of(comparison, profile).items():
            ratio = (
                {f"ratio_{end}": value for end, value in vars(ratios[name]).items()} if name in ratios else {}
            )
            writer.writerow(
                {"profile": profile, "figure": name, "unit": FIGURES[name].unit, **vars(spread), **ratio}
            )
    return stream.getvalue()


def comparison_page(comparison: Comparison) -> Html:
    """Return the whole page."""
    failures = sorted(comparison.failures.items())
    body = [
        element("p", DEMO_WARNING, class_="banner", role="alert") if comparison.is_demo else Html(),
        element("h1", f"Profiles compared: {', '.join(comparison.num_bars)}"),
        *(element("p", said) for said in (text.budget_sentence(comparison), *text.cautions(comparison))),
        *(
            [element("h2", "Failed"), table(["Profile", "Reason"], failures, class_="reasons")]
            if failures
            else []
        ),
        *(_measured(comparison) if comparison.measurements else ()),
        element("h2", "Where these numbers come from"),
        _provenance(comparison),
    ]
    return document("v8: profiles compared", join(body))


def _measured(comparison: Comparison) -> Iterator[Html]:
    yield element("h2", "Time")
    yield plot(
        _stage_figure(comparison),
        "Seconds of one model, with the import and compilation its process pays once; medians over repeats.",
    )
    yield from _text_table(text.ratio_table(comparison))
    yield element("h2", "Skill")
    yield plot(
        _skill_figure(comparison),
        "Mean absolute error ÷ naive's on the test span, each series and task: left of 1 is better.",
    )
    yield element("h2", "Cost and skill")
    yield from _text_table(text.cost_table(comparison))
    yield element("p", assumption(comparison), class_="soft")
    yield element("p", text.download_sentence(comparison), class_="soft")
    if claims := text.claim_table(comparison):
        yield element("h2", "What the guides claimed")
        yield from _text_table(claims)
    yield element("h2", "Every measurement")
    yield _measurements(comparison)


def _text_table(content: text.TextTable) -> tuple[Html, Html]:
    return element("p", content.title, class_="soft"), table(content.head, content.rows)


def _stage_figure(comparison: Comparison) -> go.Figure:
    names = [f"{stage}_s" for stage in _STAGES]
    found = {profile: figures_of(comparison, profile) for profile in comparison.profiles}
    return stage_figure(
        {
            profile: {FIGURES[name].title: figures[name].median for name in names}
            for profile, figures in found.items()
        }
    )


def _skill_figure(comparison: Comparison) -> go.Figure:
    """Draw one row per profile and series; repeats train to the same weights, so the first one counts."""
    firsts = [comparison.of(name)[0] for name in comparison.profiles]
    rows = {f"{one.profile}, {model.series}": model.multiples for one in firsts for model in one.models}
    columns = {task: [multiples.get(task) for multiples in rows.values()] for task in _tasks(comparison)}
    return dot_figure(list(rows), columns, x_title="error ÷ naive error")


def _measurements(comparison: Comparison) -> Html:
    tasks = _tasks(comparison)
    columns = {
        "profile": "{one.profile}",
        "repeat": "{one.repeat}",
        "series": "{model.series}",
        "train s": "{model.seconds[train]:.2f}",
        "validate s": "{model.seconds[validate]:.2f}",
        "windows/s": "{model.windows_per_s:,.0f}",
        "epochs": "{model.epochs_run}",
        "best": "{model.best_epoch}",
        **{f"{task} ÷ naive": f"{{multiples[{task}]}}" for task in tasks},
        "matmul GFLOP/s": "{one.matmul_gflop_per_s:,.0f}",
        "precision": "{one.precision}",
        "device": "{one.device}",
    }
    rows = []
    for one in comparison.measurements:
        for model in one.models:
            multiples = {task: number(model.multiples.get(task)) for task in tasks}
            rows.append(
                [shape.format(one=one, model=model, multiples=multiples) for shape in columns.values()]
            )
    return table(columns, rows)


def _tasks(comparison: Comparison) -> list[str]:
    """List the tasks that any measured model has."""
    models = [model for one in comparison.measurements for model in one.models]
    return [task for task in TASKS if any(task in model.multiples for model in models)]


def _provenance(comparison: Comparison) -> Html:
    pairs = {
        "candle source": comparison.source,
        "started": comparison.created_at,
        "command": comparison.command,
    }
    pairs |= {f"version of {name}": value for name, value in comparison.versions.items()}
    pairs |= {f"machine: {name.replace('_', ' ')}": str(value) for name, value in comparison.machine.items()}
    return facts(pairs.items())
