"""A comparison as files: `compare.json` holds everything, `compare.csv` and `compare.html` the figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from v8.columns import TASK_COLUMNS
from v8.reports.comparison_results import (
    FIGURES,
    Comparison,
    Measurement,
    Spread,
    assumption,
    figures_of,
    ratios_of,
)
from v8.reports.comparison_tables import (
    TextTable,
    budget_sentence,
    cautions,
    claim_table,
    cost_table,
    download_sentence,
    ratio_table,
)
from v8.reports.document import document, plot
from v8.reports.figures import dot_figure, stage_figure
from v8.reports.markup import Html, element, facts, join, table
from v8.reports.page import DEMO_WARNING
from v8.storage import write_json, write_text
from v8.wording import number

JSON_FILE: Final = "compare.json"
CSV_FILE: Final = "compare.csv"
PAGE_FILE: Final = "compare.html"

_STAGE_FIGURES: Final = (
    "import_s",
    "candles_s",
    "features_cold_s",
    "windows_s",
    "build_s",
    "compile_s",
    "train_s",
    "validate_s",
    "judge_s",
    "save_s",
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
    write_json(folder / JSON_FILE, comparison.to_json())
    write_text(folder / CSV_FILE, comparison_csv(comparison))
    write_text(folder / PAGE_FILE, comparison_page(comparison))
    return [folder / name for name in (JSON_FILE, CSV_FILE, PAGE_FILE)]


def comparison_csv(comparison: Comparison) -> str:
    """Return one line per profile and figure: median, smallest and largest, and its ratio to the baseline."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    ends = ("median", "low", "high")
    writer.writerow(["profile", "figure", "unit", *ends, *(f"ratio_{end}" for end in ends)])
    writer.writerows(_csv_rows(comparison))
    return stream.getvalue()


def comparison_page(comparison: Comparison) -> Html:
    """Return the whole page."""
    body = join(
        [
            element("p", DEMO_WARNING, class_="banner", role="alert") if comparison.is_demo else Html(),
            element("h1", f"Profiles compared: {', '.join(comparison.num_bars)}"),
            *(element("p", said) for said in (budget_sentence(comparison), *cautions(comparison))),
            _failures(comparison),
            *(_measured(comparison) if comparison.measurements else ()),
            _provenance(comparison),
        ]
    )
    return document("v8: profiles compared", body)


def _measured(comparison: Comparison) -> Iterator[Html]:
    yield element("h2", "Time")
    yield plot(
        stage_figure(_stage_seconds(comparison)),
        "Seconds of one model, with the import and compilation its process pays once; medians over repeats.",
    )
    yield from _text_table(ratio_table(comparison))
    yield element("h2", "Skill")
    yield plot(
        _skill_figure(comparison),
        "Mean absolute error ÷ naive's on the test span, each series and task: left of 1 is better.",
    )
    yield element("h2", "Cost and skill")
    yield from _text_table(cost_table(comparison))
    yield element("p", assumption(comparison), class_="soft")
    yield element("p", download_sentence(comparison), class_="soft")
    claims = claim_table(comparison)
    if claims:
        yield element("h2", "What the guides claimed")
        yield from _text_table(claims)
    yield element("h2", "Every measurement")
    yield _measurements(comparison)


def _text_table(content: TextTable) -> tuple[Html, Html]:
    return element("p", content.title, class_="soft"), table(content.head, content.rows)


def _failures(comparison: Comparison) -> Html:
    if not comparison.failures:
        return Html()
    rows = sorted(comparison.failures.items())
    return join([element("h2", "Failed"), table(["Profile", "Reason"], rows, class_="reasons")])


def _stage_seconds(comparison: Comparison) -> dict[str, dict[str, float]]:
    found = {name: figures_of(comparison, name) for name in comparison.profiles}
    return {
        profile: {FIGURES[name].title: figures[name].median for name in _STAGE_FIGURES}
        for profile, figures in found.items()
    }


def _skill_figure(comparison: Comparison) -> dict[str, object]:
    """Draw one row per profile and series; repeats train to the same weights, so the first one counts."""
    firsts = [comparison.of(name)[0] for name in comparison.profiles]
    rows = [(f"{one.profile}, {model.series}", model.multiples) for one in firsts for model in one.models]
    tasks = [task for task in TASK_COLUMNS if any(task in multiples for _, multiples in rows)]
    columns = {task: [multiples.get(task) for _, multiples in rows] for task in tasks}
    return dot_figure([name for name, _ in rows], columns, x_title="error ÷ naive error")


def _measurements(comparison: Comparison) -> Html:
    head = ["profile", "repeat", "series", "train s", "validate s", "windows/s", "epochs", "best"]
    tasks = [
        task
        for task in TASK_COLUMNS
        if any(task in model.multiples for one in comparison.measurements for model in one.models)
    ]
    head += [f"{task} ÷ naive" for task in tasks] + ["matmul GFLOP/s", "precision", "device"]
    rows = [row for one in comparison.measurements for row in _measurement_rows(one, tasks)]
    return table(head, rows)


def _measurement_rows(one: Measurement, tasks: list[str]) -> Iterator[list[str]]:
    for model in one.models:
        yield [
            one.profile,
            str(one.repeat),
            model.series,
            f"{model.seconds.get('train', 0.0):.2f}",
            f"{model.seconds.get('validate', 0.0):.2f}",
            f"{model.windows_per_s:,.0f}",
            str(model.epochs_run),
            str(model.best_epoch),
            *(number(model.multiples.get(task)) for task in tasks),
            f"{one.matmul_gflop_per_s:,.0f}",
            one.precision,
            one.device,
        ]


def _provenance(comparison: Comparison) -> Html:
    pairs = [
        ("candle source", comparison.source),
        ("started", comparison.created_at),
        ("command", comparison.command),
        *((f"version of {name}", str(value)) for name, value in comparison.versions.items()),
        *((f"machine: {name.replace('_', ' ')}", str(value)) for name, value in comparison.machine.items()),
    ]
    return join([element("h2", "Where these numbers come from"), facts(pairs)])


def _csv_rows(comparison: Comparison) -> Iterator[list[object]]:
    for profile in comparison.profiles:
        ratios = ratios_of(comparison, profile)
        for name, spread in figures_of(comparison, profile).items():
            yield [profile, name, FIGURES[name].unit, *_cells(spread), *_cells(ratios.get(name))]


def _cells(spread: Spread | None) -> list[object]:
    return ["", "", ""] if spread is None else [spread.median, spread.low, spread.high]
