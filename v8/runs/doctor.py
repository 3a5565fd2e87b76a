"""`v8 doctor`: what it measures on this machine, and what it concludes: a verdict and the flags to choose.

Speeds are measured in processes of their own (`v8.base.child`) with the threads that training
would use, so this process never starts TensorFlow, and a crash in another becomes a note. The verdict rests
on where results lie and how long they take, never on memory used.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from v8.base.child import ChildCall, ChildResult, run_in_children
from v8.base.hardware import ask_smi, describe_machine, load
from v8.profile.profile import Profile
from v8.runs.machine import (
    FORMATS,
    Measurement,
    MeasurementRequest,
    ceiling_pct,
    fastest_format,
    take_measurements,
)

PROBE_LIMIT_S = 900  # a measuring process that takes longer hangs, in seconds
MOST_PROBED_WORKERS = 8
"""Worker processes measured together; more cores than that are extrapolated, and the report says so."""
LARGE_FLEET = 40  # models of the fleet that is measured on a GPU, as many as the default universe has
SHORT_SHARE = 0.25
"""Time of a measurement of the small network or of matrix products, as a share of the others'."""
BUSY_SHARE = 0.5  # load per core above which other programs disturb a measurement
ALL_THREADS = "all threads"
ONE_THREAD = "one thread"
Line: TypeAlias = dict[str, Any]  # one measurement as JSON values, see `v8.model.training.probe`


@dataclass
class Findings:
    """Everything measured, ready to be evaluated."""

    driver: dict[str, Any]  # what nvidia-smi says; see `ask_driver`
    num_workers: int  # training processes that a run would start
    unused_gpus: str = ""  # why GPUs that the driver may show are not used, a clause; empty if they are
    backend: Line = field(default_factory=dict)  # of `describe_backend`, empty after a crash
    matmul: dict[str, Line] = field(default_factory=dict)  # of `matmul_speed`: `all threads`, `one thread`
    steps: list[Line] = field(default_factory=list)  # of `step_speed`, in order, with their `threads`
    workers: list[Line] = field(default_factory=list)  # of our float32 step in processes side by side
    notes: list[str] = field(default_factory=list)

    def rate(self, path: str, precision: str, *, is_short: bool = False, num_models: int = 1) -> float | None:
        """Return windows/s of one measured step; None where it was not measured."""
        properties = {"path": path, "precision": precision, "is_short": is_short, "num_models": num_models}
        for step in self.steps:
            if properties.items() <= step.items():
                return float(step["windows_per_s"])
        return None

    @property
    def has_gpu(self) -> bool:
        """Whether the backend can compute on a GPU."""
        return bool(self.backend.get("gpus"))

    @property
    def workers_rate(self) -> float | None:
        """Windows/s of the worker processes together, extrapolated to all cores where not all were run."""
        together = sum(float(step["windows_per_s"]) for step in self.workers)
        return together * self.num_workers / len(self.workers) if self.workers else None

    @property
    def best_rate(self) -> float | None:
        """Windows/s as a run trains: all workers together on a CPU, the best step on a GPU."""
        rates = (float(step["windows_per_s"]) for step in self.steps if step["path"] == "ours")
        return max(rates, default=None) if self.has_gpu else self.workers_rate

    @property
    def ceiling_gflop_per_s(self) -> float | None:
        """The single-precision matmul rate of the cores or device that train."""
        # Workers each have a core; together they may exceed what one matmul on all threads reaches.
        cores = {ALL_THREADS: 1, ONE_THREAD: self.num_workers}
        rates = [float(speed["gflop_per_s"]) * cores[threads] for threads, speed in self.matmul.items()]
        return max(rates, default=None)

    @property
    def precision_gains(self) -> dict[str, float]:
        """Each measured 16-bit format's speed over float32's; on a CPU those of the small network."""
        rates = {name: self.rate("ours", name, is_short=not self.has_gpu) for name in FORMATS}
        base = rates.pop("float32")
        return {name: rate / base for name, rate in rates.items() if rate and base}

    @property
    def best_precision(self) -> str:
        """The format to train in."""
        return fastest_format({"float32": 1.0, **self.precision_gains})


def examine(
    profile: Profile, seconds: float, count_workers: Callable[[], int], *, notice: str | None = None
) -> Findings:
    """Measure everything that the doctor reports.

    Args:
        profile: Whose network is measured.
        seconds: Time of each measurement, without start and compilation.
        count_workers: Returns the training processes that a run would start on a CPU, and sets the
            environment variables that keep each of them on one thread.
        notice: What computes on the GPUs in TensorFlow's place, see `v8.base.hardware`.
    """
    # Asked before `count_workers`, which hides GPUs from the processes of a CPU.
    are_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}
    unused_gpus = "CUDA_VISIBLE_DEVICES hides all" if are_hidden else ""
    findings = Findings(ask_driver(), num_workers=1, unused_gpus=unused_gpus)
    if notice:
        findings.notes.append(notice.removesuffix("."))
        findings.unused_gpus = "TensorFlow has no code for it" if are_hidden else ""
    busy, num_cores = load()
    if busy > BUSY_SHARE * num_cores:
        findings.notes.append(
            f"other programs were at work before the start (load {busy:.1f} on {num_cores} cores); "
            "all speeds are too low, and their ratios uncertain"
        )
    stock = {"measure": "stock", "precision": FORMATS[0], "seconds": seconds}
    first = [{"measure": "backend"}, _matmul(seconds), stock]
    _measure(findings, profile, "stock layers, all threads", [first])
    if findings.has_gpu:
        ours = _formats(seconds)
        _measure(findings, profile, "our layers on the GPU, in every format", [ours])
        large = {**ours[0], "precision": findings.best_precision, "num_models": LARGE_FLEET}
        _measure(findings, profile, f"a fleet of {LARGE_FLEET}", [[large]])
    else:
        findings.num_workers = count_workers()
        _examine_cpu(findings, profile, seconds)
    return findings


def ask_driver() -> dict[str, Any]:
    """Ask nvidia-smi for driver, GPUs and their memory in MiB; say why when it cannot answer."""
    rows = ask_smi(("driver_version", "name", "memory.total"))
    if isinstance(rows, str):
        return {"is_found": False, "why": rows, "gpus": []}
    gpus = [
        {"name": name, "memory_mib": float(size) if size.replace(".", "", 1).isdigit() else None}
        for _, name, size in rows
    ]
    return {"is_found": True, "version": rows[0][0], "gpus": gpus}


def failure_of(result: ChildResult, measurements: Sequence[Measurement]) -> str | None:
    """Return what a process did not measure, and why; None if it measured everything."""
    if result.refusal or result.exit_code == 0:
        return result.refusal.removesuffix(".") if result.refusal else None
    errors = result.errors.strip().splitlines() or ["nothing"]
    missing = measurements[len(result.values) :]
    unmeasured = ", ".join(_title(measurement) for measurement in missing)
    return f"not measured: {unmeasured}; exit code {result.exit_code}, last words: {errors[-1]}"


def _title(measurement: Measurement) -> str:
    """Name a measurement, with its number format if it has one."""
    names = (measurement.get("measure"), measurement.get("precision"))
    return " ".join(str(name) for name in names if name is not None)


def _examine_cpu(findings: Findings, profile: Profile, seconds: float) -> None:
    """Measure worker processes together in float32; then the 16-bit formats on a small network."""
    num_probed = min(findings.num_workers, MOST_PROBED_WORKERS)
    measurements: list[list[Measurement]] = [[_formats(seconds)[0]] for _ in range(num_probed)]
    # The small network is measured in the first of these processes, which has started anyway: compiling the
    # whole network in every format would take a minute.
    measurements[0] += [*_formats(seconds * SHORT_SHARE, is_short=True), _matmul(seconds)]
    title = f"our layers, {num_probed} single-threaded processes together; then 16-bit formats in short"
    for result in _measure(findings, profile, title, measurements, ONE_THREAD):
        findings.workers += [line for line in result.values if not line.get("is_short", True)]
    if num_probed < findings.num_workers:
        findings.notes.append(
            f"measured {num_probed} of {findings.num_workers} workers, extrapolated the rest"
        )
    findings.notes.append(
        "16-bit formats were measured on a small network (one LSTM and one dense layer of the first "
        "layer's width, or the profile's own if that computes less), in one thread; compare them with "
        "float32 on the same network"
    )


def _formats(seconds: float, **options: Any) -> list[Measurement]:
    """Return the measurement of our training step in every number format.

    Stock layers are measured in float32 alone: their 16-bit formats decide nothing.
    """
    return [{"measure": "ours", "precision": name, "seconds": seconds, **options} for name in FORMATS]


def _matmul(seconds: float) -> Measurement:
    """Return the measurement of matrix products, which are many in a short time."""
    return {"measure": "matmul", "seconds": seconds * SHORT_SHARE}


def _measure(
    findings: Findings,
    profile: Profile,
    title: str,
    measurements: Sequence[list[Measurement]],
    threads: str = ALL_THREADS,
) -> list[ChildResult]:
    """Measure in several processes at the same time, and add what they return to the findings.

    Args:
        findings: Of what all processes did, only the results of the first are added.
        profile: Whose network is measured.
        title: What is measured, for the progress message.
        measurements: Those of each process.
        threads: `ALL_THREADS` or `ONE_THREAD`, those of each process.
    """
    sys.stderr.write(f"measuring {title}\n")
    sys.stderr.flush()
    calls = [ChildCall(take_measurements, MeasurementRequest(profile, own)) for own in measurements]
    results = run_in_children(calls, limit_s=PROBE_LIMIT_S)
    for result, own in zip(results, measurements, strict=True):
        for line in result.values:
            if "size" in line:
                findings.matmul.setdefault(threads, line)
            elif "path" not in line:
                findings.backend = line
            elif line["is_short"] or result is results[0]:
                findings.steps.append({**line, "threads": threads})
        failure = failure_of(result, own)
        if failure:
            findings.notes.append(failure)
    return results


def report_of(findings: Findings, profile: Profile, seconds: float) -> dict[str, Any]:
    """Turn findings into the document that `--json` prints."""
    rate = findings.best_rate
    ceiling = findings.ceiling_gflop_per_s
    share = ceiling_pct(rate, profile.training_flop_per_window, ceiling) if rate and ceiling else None
    advice = _advice(findings)
    return {
        "verdict": _verdict(findings),
        "recommended": [{"flag": flag, "value": value, "why": why} for flag, value, why in advice],
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
    """Decide by where results lie first, then by time."""
    stock = findings.rate("stock", "float32")
    ours = findings.best_rate
    device = findings.matmul.get(ALL_THREADS, {}).get("device", "nowhere")
    if stock is None or ours is None:
        return {"state": "incomplete", "device": device, "why": "training in float32 could not be measured"}
    times = f"training runs at {ours:,.0f} windows/s, {ours / stock:.1f} times the stock layers' {stock:,.0f}"
    if findings.driver["gpus"] and not device.startswith("GPU") and not findings.unused_gpus:
        why = f"the driver shows a GPU, but the result of a matmul lies on {device}; {times}"
        return {"state": "misplaced", "device": device, "why": why}
    no_gpu = findings.unused_gpus or findings.driver.get("why", "the backend sees none")
    place = "" if findings.has_gpu else f", because no GPU was found ({no_gpu})"
    state = "good" if ours > stock else "slow"
    return {"state": state, "device": device, "why": f"results lie on {device}{place}; {times}"}


def _advice(findings: Findings) -> list[tuple[str, str, str]]:
    """Recommend a value for each flag: its name, the value, and the reason."""
    precision = findings.best_precision
    gains = findings.precision_gains
    why_precision = "no 16-bit format could be measured"
    if gains:
        ratios = ", ".join(f"{name} {gain:.2f}" for name, gain in gains.items())
        network = "the profile's network" if findings.has_gpu else "a small network of the same width"
        why_precision = f"speed of our layers on {network} as a multiple of float32: {ratios}"
    size, why_size = _fleet_advice(findings)
    num_workers, why_workers = _workers_advice(findings)
    return [
        ("--precision", precision, why_precision),
        ("--fleet-size", size, why_size),
        ("--workers", num_workers, why_workers),
    ]


def _fleet_advice(findings: Findings) -> tuple[str, str]:
    """Recommend how many models train as one program, and say why."""
    if not findings.has_gpu:
        why = "on a CPU a fleet multiplies many small matrices where one model multiplies larger ones"
        return "1", f"{why}; workers use the cores"
    precision = findings.best_precision
    alone = findings.rate("ours", precision)
    together = findings.rate("ours", precision, num_models=LARGE_FLEET)
    if not alone or not together:
        return "1", f"a fleet of {LARGE_FLEET} could not be measured"
    size = LARGE_FLEET if together > alone else 1
    why = f"{LARGE_FLEET} models together: {together:,.0f} windows/s; one alone: {alone:,.0f}"
    return str(size), why


def _workers_advice(findings: Findings) -> tuple[str, str]:
    """Recommend how many processes train at the same time, and say why."""
    if findings.has_gpu:
        return "1", "one process fills the GPU with a fleet"
    alone = findings.rate("ours", "float32")
    together = findings.workers_rate
    why = "one a usable core; not measured"
    if alone and together:
        speeds = f"{together:,.0f} windows/s together, {alone:,.0f} the first"
        why = f"one single-threaded process a core: {speeds}"
    return str(findings.num_workers), why
