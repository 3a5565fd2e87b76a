"""The doctor: what it measures, and what it concludes: a verdict and the flags to choose.

Speeds are measured in processes of their own (`v8.machine.processes`) with the threads that the product
would use, so this process never starts TensorFlow and a crash in there is a note. The verdict rests on where
results lie and how long they take, never on memory used.
"""

import csv
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from v8.hardware import describe_machine, load
from v8.machine.choices import FORMATS, fastest
from v8.machine.processes import Answer, Order, Wanted, ask
from v8.networks.cost import ceiling_pct, training_flop_per_window
from v8.profile import Profile

PROBE_LIMIT_S = 900  # a measuring process that takes longer hangs
SMI_LIMIT_S = 20  # likewise for nvidia-smi, which hangs when the driver does
MOST_PROBED_WORKERS = 8
"""Worker processes measured at once; more cores than that are extrapolated, and the report says so."""
LARGE_FLEET = 40  # models of the fleet that is measured on a GPU: the default universe
BUSY_SHARE = 0.5  # load per core from which other programs disturb a measurement
ALL_THREADS = "all threads"
ONE_THREAD = "one thread"
Line: TypeAlias = dict[str, Any]  # one measurement as JSON values, see `v8.training.probe`


@dataclass
class Findings:
    """Everything measured, ready to be evaluated."""

    driver: dict[str, Any]  # what nvidia-smi says; see `ask_driver`
    num_workers: int  # training processes the product would start
    backend: Line = field(default_factory=dict)  # of `describe_backend`, empty after a crash
    matmul: dict[str, Line] = field(default_factory=dict)  # of `matmul_speed`: `all threads`, `one thread`
    steps: list[Line] = field(default_factory=list)  # of `step_speed`, in order, with their `threads`
    workers: list[Line] = field(default_factory=list)  # of our float32 step in processes running at once
    notes: list[str] = field(default_factory=list)

    def rate(self, path: str, precision: str, *, is_short: bool = False, num_models: int = 1) -> float | None:
        """Return windows/s of one measured step; None where it was not measured."""
        wanted = {"path": path, "precision": precision, "is_short": is_short, "num_models": num_models}
        rates = (float(step["windows_per_s"]) for step in self.steps if wanted.items() <= step.items())
        return next(rates, None)

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
        """Windows/s of the product's way of training: workers on a CPU, the best step on a GPU."""
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
        rates = {each: self.rate("ours", each, is_short=not self.has_gpu) for each in FORMATS}
        base = rates.pop("float32")
        return {name: rate / base for name, rate in rates.items() if rate and base}

    @property
    def best_precision(self) -> str:
        """The format to train in."""
        return fastest({"float32": 1.0, **self.precision_gains})


def examine(profile: Profile, seconds: float, count_workers: Callable[[], int]) -> Findings:
    """Measure everything, for so many seconds each, without start and compilation.

    `count_workers` returns the training processes that the product would start on a CPU, and sets what keeps
    each of them on one thread.
    """
    findings = Findings(ask_driver(), num_workers=1)
    busy, num_cores = load()
    if busy > BUSY_SHARE * num_cores:
        findings.notes.append(
            f"other programs were at work before the start (load {busy:.1f} on {num_cores} cores); "
            "all speeds are too low, and their ratios uncertain"
        )
    matmul = {"measure": "matmul", "seconds": seconds / 2}
    stock = _formats("stock", seconds)
    _measure(findings, profile, "stock layers, all threads", [[{"measure": "backend"}, matmul, stock[0]]])
    if findings.has_gpu:
        ours = _formats("ours", seconds)
        _measure(findings, profile, "our layers on the GPU, in every format", [ours])
        _measure(findings, profile, "stock layers in 16-bit formats on the GPU", [stock[1:]])
        large = {**ours[0], "precision": findings.best_precision, "num_models": LARGE_FLEET}
        _measure(findings, profile, f"a fleet of {LARGE_FLEET}", [[large]])
    else:
        findings.num_workers = count_workers()
        _examine_cpu(findings, profile, seconds)
    return findings


def ask_driver() -> dict[str, Any]:
    """Ask nvidia-smi for driver, GPUs and their memory in MiB; say why when it cannot answer."""
    query = ("--query-gpu=driver_version,name,memory.total", "--format=csv,noheader,nounits")
    try:
        done = subprocess.run(  # noqa: S603 - the driver's own program
            ["nvidia-smi", *query],  # noqa: S607 - found on the PATH
            capture_output=True,
            text=True,
            timeout=SMI_LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        why = "nvidia-smi is not on the PATH"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"nvidia-smi: {error}"
    else:
        rows = [*filter(None, csv.reader(done.stdout.splitlines(), skipinitialspace=True))]
        if rows and not done.returncode and all(len(row) == 3 for row in rows):
            gpus = [
                {"name": name, "memory_mib": float(size) if size.replace(".", "", 1).isdigit() else None}
                for _, name, size in rows
            ]
            return {"is_found": True, "version": rows[0][0], "gpus": gpus}
        said = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
        why = f"nvidia-smi said: {said[0]}"
    return {"is_found": False, "why": why, "gpus": []}


def failure_of(answer: Answer, wanted: Sequence[Wanted]) -> str | None:
    """Say what a process did not measure, and why; nothing when it measured all."""
    if answer.refusal or answer.exit_code == 0:
        return answer.refusal
    said = answer.errors.strip().splitlines() or ["nothing"]
    unmeasured = ", ".join(
        " ".join(str(each[key]) for key in ("measure", "precision") if key in each)
        for each in wanted[len(answer.measured) :]
    )
    return f"not measured: {unmeasured}; exit code {answer.exit_code}, last words: {said[-1]}"


def _examine_cpu(findings: Findings, profile: Profile, seconds: float) -> None:
    """Measure worker processes at once in float32; then the 16-bit formats on a small network."""
    num_probed = min(findings.num_workers, MOST_PROBED_WORKERS)
    one = [{"measure": "matmul", "seconds": seconds / 2}, _formats("ours", seconds)[0]]
    wanted = [[*one] for _ in range(num_probed)]
    # The short ones follow in processes that have started anyway, one path a core: compiling the whole
    # network in every format would take a minute.
    wanted[0] += _formats("ours", seconds / 2, is_short=True)
    wanted[-1] += _formats("stock", seconds / 2, is_short=True)
    what = f"our layers, {num_probed} single-threaded processes at once; then 16-bit formats in short"
    for answer in _measure(findings, profile, what, wanted, ONE_THREAD):
        findings.workers += [line for line in answer.measured if not line.get("is_short", True)]
    if num_probed < findings.num_workers:
        findings.notes.append(
            f"measured {num_probed} of {findings.num_workers} workers, extrapolated the rest"
        )
    findings.notes.append(
        "16-bit formats were measured on a small network (one LSTM and one dense layer of the first "
        "layer's width), in one thread; compare them with float32 on the same network"
    )


def _formats(path: str, seconds: float, **options: Any) -> list[Wanted]:
    return [{"measure": path, "precision": each, "seconds": seconds, **options} for each in FORMATS]


def _measure(
    findings: Findings,
    profile: Profile,
    what: str,
    wanted: Sequence[list[Wanted]],
    threads: str = ALL_THREADS,
) -> list[Answer]:
    """Let processes measure at once; in the tables the first stands for what all of them did."""
    sys.stderr.write(f"measuring {what}\n")
    sys.stderr.flush()
    answers = ask([Order(profile=profile, measurements=each) for each in wanted], limit_s=PROBE_LIMIT_S)
    for answer, asked in zip(answers, wanted, strict=True):
        for line in answer.measured:
            if "size" in line:
                findings.matmul.setdefault(threads, line)
            elif "path" not in line:
                findings.backend = line
            elif line["is_short"] or answer is answers[0]:
                findings.steps.append({**line, "threads": threads})
        failure = failure_of(answer, asked)
        findings.notes += [failure] if failure else []
    return answers


def report_of(findings: Findings, profile: Profile, seconds: float) -> dict[str, Any]:
    """Turn findings into the document that `--json` prints."""
    rate = findings.best_rate
    ceiling = findings.ceiling_gflop_per_s
    share = ceiling_pct(rate, training_flop_per_window(profile), ceiling) if rate and ceiling else None
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
    """Judge by placement first, then by time."""
    stock = findings.rate("stock", "float32")
    ours = findings.best_rate
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


def _advice(findings: Findings) -> list[tuple[str, str, str]]:
    """Recommend a value for each flag, and say why."""
    precision = findings.best_precision
    gains = findings.precision_gains
    shown = ", ".join(f"{name} {gain:.2f}" for name, gain in gains.items())
    network = "the profile's network" if findings.has_gpu else "a small network of the same width"
    formats = f"speed of our layers on {network} as a multiple of float32: {shown}"
    if findings.has_gpu:
        one = findings.rate("ours", precision)
        large = findings.rate("ours", precision, num_models=LARGE_FLEET)
        size = "1"
        fleet = f"a fleet of {LARGE_FLEET} could not be measured"
        if one and large:
            size = str(LARGE_FLEET if large > one else 1)
            fleet = f"{LARGE_FLEET} models at once: {large:,.0f} windows/s; one alone: {one:,.0f}"
        num_workers = "1"
        workers = "one process fills the GPU with a fleet"
    else:
        one = findings.rate("ours", "float32")
        together = findings.workers_rate
        fleet = "on a CPU a fleet multiplies many small matrices where one model multiplies larger ones"
        size = "1"
        fleet = f"{fleet}; workers use the cores"
        num_workers = str(findings.num_workers)
        workers = "one a usable core; not measured"
        if one and together:
            told = f"{together:,.0f} windows/s together, {one:,.0f} the first"
            workers = f"one single-threaded process a core: {told}"
    return [
        ("--precision", precision, formats if gains else "no 16-bit format could be measured"),
        ("--fleet-size", size, fleet),
        ("--workers", num_workers, workers),
    ]
