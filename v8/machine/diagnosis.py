"""What the doctor concludes from what was measured: a verdict and the flags to choose.

The verdict rests on where results lie and how long they take, never on memory used.
"""

from __future__ import annotations

import os
from typing import Any

from v8.hardware import describe_machine
from v8.machine.doctor import ALL_THREADS, LARGE_FLEET, ONE_THREAD, Findings
from v8.networks.cost import ceiling_pct, training_flop_per_window
from v8.profile import Profile


def report_of(findings: Findings, profile: Profile, seconds: float) -> dict[str, Any]:
    """Turn findings into the document that `--json` prints."""
    rate, ceiling = _best_rate(findings), _ceiling_gflop_per_s(findings)
    share = ceiling_pct(rate, training_flop_per_window(profile), ceiling) if rate and ceiling else None
    advice = {
        "--precision": _precision_advice(findings),
        "--fleet-size": _fleet_advice(findings),
        "--workers": _workers_advice(findings),
    }
    return {
        "verdict": _verdict(findings),
        "recommended": [{"flag": flag, "value": value, "why": why} for flag, (value, why) in advice.items()],
        "profile": profile.name,
        "machine": describe_machine(),
        "driver": findings.driver,
        "backend": findings.backend,
        "matmul": findings.matmul,
        "steps": findings.steps,
        "workers": {
            "num_workers": findings.num_workers,
            "num_measured": len(findings.workers),
            "windows_per_s": findings.workers_rate,
            "ceiling_gflop_per_s": ceiling,
            "ceiling_pct": share,
        },
        "notes": findings.notes,
        "seconds": round(seconds, 1),
    }


def _verdict(findings: Findings) -> dict[str, str]:
    """Judge by placement first, then by time."""
    stock, ours = findings.rate("stock", "float32"), _best_rate(findings)
    device = findings.matmul.get(ALL_THREADS, {}).get("device", "nowhere")
    if stock is None or ours is None:
        return {"state": "incomplete", "device": device, "why": "training in float32 could not be measured"}
    times = f"training runs at {ours:,.0f} windows/s, {ours / stock:.1f} times the stock layers' {stock:,.0f}"
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}
    if findings.driver["gpus"] and not device.startswith("GPU") and not is_hidden:
        why = f"the driver shows a GPU, but the result of a matmul lies on {device}; {times}"
        return {"state": "misplaced", "device": device, "why": why}
    missing = findings.driver.get("why", "the backend sees none")
    no_gpu = "CUDA_VISIBLE_DEVICES hides all" if is_hidden else missing
    place = "" if findings.has_gpu else f", because no GPU was found ({no_gpu})"
    state = "good" if ours > stock else "slow"
    return {"state": state, "device": device, "why": f"results lie on {device}{place}; {times}"}


def _precision_advice(findings: Findings) -> tuple[str, str]:
    precision, gains = findings.best_precision, findings.precision_gains
    if not gains:
        return "float32", "no 16-bit format could be measured"
    shown = ", ".join(f"{name} {gain:.2f}" for name, gain in gains.items())
    network = "the profile's network" if findings.has_gpu else "a small network of the same width"
    return precision, f"speed of our layers on {network} as a multiple of float32: {shown}"


def _fleet_advice(findings: Findings) -> tuple[str, str]:
    if not findings.has_gpu:
        why = "on a CPU a fleet multiplies many small matrices where one model multiplies larger ones"
        return "1", f"{why}; workers use the cores"
    one = findings.rate("ours", findings.best_precision)
    large = findings.rate("ours", findings.best_precision, num_models=LARGE_FLEET)
    if one is None or large is None:
        return "1", f"a fleet of {LARGE_FLEET} could not be measured"
    why = f"{LARGE_FLEET} models at once: {large:,.0f} windows/s; one alone: {one:,.0f}"
    return str(LARGE_FLEET if large > one else 1), why


def _workers_advice(findings: Findings) -> tuple[str, str]:
    if findings.has_gpu:
        return "1", "one process fills the GPU with a fleet"
    one, together = findings.rate("ours", "float32"), findings.workers_rate
    why = "one a usable core; not measured"
    if one and together:
        why = f"one single-threaded process a core: {together:,.0f} windows/s together, {one:,.0f} the first"
    return str(findings.num_workers), why


def _best_rate(findings: Findings) -> float | None:
    """Return windows/s of the product's way of training: workers on a CPU, the best step on a GPU."""
    if not findings.has_gpu:
        return findings.workers_rate
    rates = [float(step["windows_per_s"]) for step in findings.steps if step["path"] == "ours"]
    return max(rates, default=None)


def _ceiling_gflop_per_s(findings: Findings) -> float | None:
    """Return the single-precision matmul rate of the cores or device that train."""
    # Workers each have a core; together they may exceed what one matmul on all threads reaches.
    cores = {ALL_THREADS: 1, ONE_THREAD: findings.num_workers}
    rates = [float(speed["gflop_per_s"]) * cores[threads] for threads, speed in findings.matmul.items()]
    return max(rates, default=None)
