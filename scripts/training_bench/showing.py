"""The tables of `bench_training.py`, on the terminal and as a picture."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from training_bench.crews import print_progress

HEADINGS = ("windows/s", "rounds", "a core", "x stock", "x PyTorch", "by CPU", "CPU-s/1,000", "of ceilings")
WIDTHS = (10, 18, 9, 9, 10, 8, 12, 12)


def show(result: dict[str, Any]) -> None:
    """Print all tables."""
    print(f"\nprofile {result['profile']}, {result['flop_per_window'] / 1e6:,.2f} MFLOP a training window")
    for name, gflop_per_s in result["matmul_gflop_per_s"].items():
        print(f"{name:<50}{gflop_per_s:>10,.0f} GFLOP/s")
    for table in result["tables"]:
        show_table(table)
    for row in result.get("precisions", []):
        print(
            f"{row['precision']:<50}{row['windows_per_s']:>10,.0f} windows/s in one thread, validation loss "
            f"{row['untrained_loss']:.5f} untrained, {row['validation_loss']:.5f} after "
            f"{row['num_epochs']} epochs"
        )
    print(json.dumps(result["machine"]))


def show_table(table: dict[str, Any]) -> None:
    """Print the table of one batch size."""
    print(f"\nbatch {table['batch_size']}")
    print(f"{'':<50}" + "".join(f"{one:>{width}}" for one, width in zip(HEADINGS, WIDTHS, strict=True)))
    for row in table["rows"]:
        print(f"{row['name']:<50}" + "".join(f"{cell:>{width}}" for cell, width in cells(row)))
    for name, refusal in table["refusals"].items():
        print(f"{name:<50}not on this machine: {refusal}")
    for form, limit in table["ceiling_windows_per_s"].items():
        print(f"{f'ceiling at the {form} matmul rate':<50}{limit:>10,.0f} windows/s")
    for fleet in table["fleets"]:
        show_fleet(fleet)


def cells(row: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the texts of one row, each with the width of its column."""
    texts = (
        f"{row['windows_per_s']:,.0f}",
        f"{min(row['rates']):,.0f}-{max(row['rates']):,.0f}",
        f"{row['windows_per_s_and_core']:,.0f}",
        *(ratio_text(row[name]) for name in ("times_stock", "times_torch", "times_torch_by_cpu")),
        f"{row['cpu_s_per_1000']:,.3f}",
        " ".join(f"{share:.0f}" for share in row["ceiling_pct"].values()) + " %",
    )
    return list(zip(texts, WIDTHS, strict=True))


def ratio_text(times: float | None) -> str:
    """Return a ratio as text, a dash if there is none."""
    return "-" if times is None else f"{times:.2f}"


def show_fleet(fleet: dict[str, Any]) -> None:
    """Print how fast a fleet trains, compared with its models one after another."""
    times = fleet["times_one_after_another"]
    print(
        f"{fleet['format']}: a fleet of {fleet['num_models']} is {times:.2f} times as fast as its models one "
        f"after another; extrapolated, not measured: {fleet['what']}: {fleet['extrapolated_fleet_s']:,.0f} s "
        f"as a fleet, {fleet['extrapolated_one_after_another_s']:,.0f} s one after another"
    )


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw the first table into a PNG, if matplotlib is there."""
    if not find_spec("matplotlib"):
        print_progress("no plot: matplotlib is not installed")
        return
    import matplotlib as mpl  # noqa: PLC0415 - slow, and not everywhere

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    table = result["tables"][0]
    rows = table["rows"][::-1]
    figure, axes = plt.subplots(figsize=(10, 0.5 * len(rows) + 1.5), layout="constrained")
    colours = ["tab:blue" if row["spec"]["kind"] in {"product", "fleet"} else "tab:gray" for row in rows]
    rates = [row["windows_per_s"] for row in rows]
    bars = axes.barh([row["name"] for row in rows], rates, color=colours)
    labels = [f"{row['windows_per_s']:,.0f}  (x{ratio_text(row['times_stock'])})" for row in rows]
    axes.bar_label(bars, labels, padding=4)
    ceiling = table["ceiling_windows_per_s"]["float32"]
    axes.axvline(ceiling, color="tab:red", linestyle="--", label=f"float32 matmul ceiling, {ceiling:,.0f}")
    axes.legend(loc="lower right")
    axes.set_xlim(0, max([ceiling, *rates]) * 1.15)
    axes.set_xlabel("training windows per second")
    axes.set_title(f"Profile {result['profile']}, batch {table['batch_size']}, on {result['machine']['cpu']}")
    figure.savefig(path, dpi=150)
