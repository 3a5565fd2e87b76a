"""Ratios of the measured speeds: to stock Keras, to the best PyTorch set-up, and to the ceilings.

The best round of each counts, because other programs only make it slower. If they do, processor time is the
fairer measure: it leaves out the time that a contender waited for a core.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from training_bench.contenders import FORMATS, Contender
from v8.data.windows.dataset import split_rows, table_columns
from v8.model.networks.programs import TRAINING_TO_FORWARD_FLOP, ceiling_pct, training_flop_per_window
from v8.profile.indicators import warmup_bars
from v8.profile.profile import Profile

EXTRAPOLATED_EPOCHS = 100
FULL_FLEET = 40


def ceilings(matmuls: Sequence[Contender]) -> dict[str, Any]:
    """Return the best rate of each number format, GFLOP/s, and all."""
    rates = {matmul.name: max(matmul.rates) for matmul in matmuls}
    forms = dict.fromkeys(matmul.spec["format"] for matmul in matmuls)
    best = {
        form: max(rates[matmul.name] for matmul in matmuls if matmul.spec["format"] == form) for form in forms
    }
    return {"matmul_gflop_per_s": rates, "ceiling_gflop_per_s": best}


def table(
    contenders: Sequence[Contender], profile: Profile, ceiling_gflop_per_s: dict[str, float], num_cores: int
) -> dict[str, Any]:
    """Compare the contenders of one batch size with each other.

    Args:
        contenders: After their turns.
        profile: With that batch size.
        ceiling_gflop_per_s: By number format.
        num_cores: Cores that a process without a bound may use.
    """
    flop = training_flop_per_window(profile)
    rows = [
        _row(contender, flop, ceiling_gflop_per_s, num_cores)
        for contender in contenders
        if not contender.refusal
    ]
    stock = _best(rows, "stock")
    peer = _best(rows, "torch")
    least_cpu_s = min((row["cpu_s_per_1000"] for row in rows if row["spec"]["kind"] == "torch"), default=None)
    for row in rows:
        row["times_stock"] = stock and row["windows_per_s"] / stock
        row["times_torch"] = peer and row["windows_per_s"] / peer
        row["times_torch_by_cpu"] = least_cpu_s and least_cpu_s / row["cpu_s_per_1000"]
    return {
        "batch_size": profile.training.batch_size,
        "ceiling_windows_per_s": {form: 1e9 * rate / flop for form, rate in ceiling_gflop_per_s.items()},
        "rows": rows,
        "fleets": list(_fleets(rows, profile)),
        "refusals": {contender.name: contender.refusal for contender in contenders if contender.refusal},
    }


def _row(
    contender: Contender, flop: float, ceiling_gflop_per_s: dict[str, float], cores: int
) -> dict[str, Any]:
    rate = max(contender.rates)
    num_cores = contender.num_processes if contender.is_single_threaded else cores
    return {
        **asdict(contender),
        "windows_per_s": rate,
        "windows_per_s_and_core": rate / num_cores,
        "cpu_s_per_1000": min(contender.cpu_s),
        "ceiling_pct": {
            form: ceiling_pct(rate, flop, limit * num_cores / cores)
            for form, limit in ceiling_gflop_per_s.items()
        },
    }


def _best(rows: Iterable[dict[str, Any]], kind: str) -> float | None:
    return max((row["windows_per_s"] for row in rows if row["spec"]["kind"] == kind), default=None)


def _fleets(rows: Sequence[dict[str, Any]], profile: Profile) -> Iterable[dict[str, Any]]:
    """Compare the largest fleet with as many single trainings, and extrapolate a whole run."""
    windows = EXTRAPOLATED_EPOCHS * FULL_FLEET * epoch_windows(profile)
    whole_run = f"{EXTRAPOLATED_EPOCHS} epochs of {FULL_FLEET} models on {profile.newest_bars} candles"
    for form in FORMATS:
        fleets = [row for row in rows if row["spec"]["kind"] == "fleet" and row["spec"]["format"] == form]
        sizes = {row["spec"]["num_models"]: row["windows_per_s"] for row in fleets}
        if 1 in sizes and len(sizes) > 1:
            largest = max(sizes)
            yield {
                "format": form,
                "num_models": largest,
                "times_one_after_another": sizes[largest] / sizes[1],
                "what": whole_run,
                "extrapolated_fleet_s": windows / sizes[largest],
                "extrapolated_one_after_another_s": windows / sizes[1],
            }


def epoch_windows(profile: Profile) -> float:
    """Return the train windows of one epoch; a validation window counts a third, it has no gradient."""
    num_rows = profile.newest_bars - warmup_bars(table_columns(profile))
    split = split_rows(num_rows, profile, location=profile.name)
    spans = {name: split[name] for name in ("train", "validation")}
    windows = {name: end - first - profile.embargo_bars + 1 for name, (first, end) in spans.items()}
    return windows["train"] + windows["validation"] / TRAINING_TO_FORWARD_FLOP
