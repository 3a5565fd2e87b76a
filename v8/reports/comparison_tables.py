"""The figures of a comparison as text: the terminal and the page show the same tables and sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from v8.reports.comparison_results import (
    CLAIMS,
    FIGURES,
    PROJECTED_MODELS,
    Comparison,
    FigureKind,
    Spread,
    figures_of,
    ratios_of,
)
from v8.wording import ABSENT, count, duration, plural

CLAIM_NOTE: Final = (
    "Claims of the lineage's guides, for an unnamed Colab GPU and the profile's own epochs: no log, no "
    "machine, no data. They are not measurements and are shown to be compared with."
)

UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "s": lambda value: f"{value * 1e3:.3g} ms" if value < 1 else duration(value),
    "/s": lambda value: f"{value:,.0f}",
    "bytes": lambda value: f"{value / 1e6:,.0f} MB",
    "flop": lambda value: f"{value / 1e6:,.0f} MFLOP",
    "%": lambda value: f"{value:.1f} %",
    "epochs": count,
    "": lambda value: count(value) if value == int(value) else f"{value:.3f}",
}
"""How a figure of each unit is written."""


@dataclass(frozen=True)
class TextTable:
    """A table whose cells are ready to be read.

    Args:
        title: What it shows.
        head: Titles of the columns; the first column names the rows.
        rows: One list of cells per row.
    """

    title: str
    head: list[str]
    rows: list[list[str]]


def cost_table(comparison: Comparison) -> TextTable:
    """Return every figure of every profile, with its spread where there are several repeats."""
    num_repeats = comparison.num_repeats
    title = f"Cost and skill: median over {plural(num_repeats, 'repeat')}, seconds are the mean of "
    title += f"{len(comparison.series)} series" + (" (smallest to largest)" if num_repeats > 1 else "")
    return _figure_table(title, comparison, figures_of, lambda kind: UNITS[kind.unit])


def ratio_table(comparison: Comparison) -> TextTable:
    """Return the figures of every profile as multiples of the baseline profile's."""
    title = f"As multiples of {comparison.baseline}, within the same repeat"
    return _figure_table(title, comparison, ratios_of, lambda _: "× {:.2f}".format)


def claim_table(comparison: Comparison) -> TextTable | None:
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
    return TextTable(note, head, rows) if rows else None


def download_sentence(comparison: Comparison) -> str:
    """Say how long it took until all candles were there."""
    total_s = sum(comparison.download_s.values())
    return (
        f"Candles of {len(comparison.series)} series from {comparison.source}: {duration(total_s)} to "
        "download, or to read again what was downloaded before."
    )


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
) -> TextTable:
    found = [spreads_of(comparison, name) for name in comparison.profiles]
    rows = [
        [
            f"{kind.title} per second" if kind.unit == "/s" else kind.title,
            *(_shown(spreads.get(name), writer_of(kind)) for spreads in found),
        ]
        for name, kind in FIGURES.items()
        if any(name in spreads for spreads in found)
    ]
    return TextTable(title, ["", *comparison.profiles], rows)


def _shown(spread: Spread | None, write: Callable[[float], str]) -> str:
    if spread is None:
        return ABSENT
    if spread.low == spread.high:
        return write(spread.median)
    return f"{write(spread.median)} ({write(spread.low)} to {write(spread.high)})"


def _bars(comparison: Comparison) -> str:
    return " or ".join(f"{number:,}" for number in sorted(set(comparison.num_bars.values())))
