"""`python -m v8 doctor`: what this machine has, what it computes on, how fast, and what to choose.

Every measurement runs in a process of its own, with the threads that the product would use, so this
process never starts TensorFlow and a crash in there is a line in the report. The verdict rests on where
results lie and how long they take, never on memory used.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import typer

from v8.commands.device import choose_workers
from v8.errors import V8Error
from v8.profile import Profile, load_profile

PROBE_LIMIT_S = 900
"""A measuring process that takes longer hangs."""

SMI_LIMIT_S = 20
"""Likewise for nvidia-smi, which hangs when the driver does."""

MOST_PROBED_WORKERS = 8
"""Worker processes measured at once; more cores than that are extrapolated, and the report says so."""

LARGE_FLEET = 40
"""Models of the fleet that is measured on a GPU: the default universe."""

GAIN_TO_CHANGE = 1.1
"""A 16-bit format must be so many times as fast as float32 to be worth its rounding."""

GAIN_TO_CHANGE_IN_SHORT = 1.5
"""Likewise where it was measured on the small network only; a processor with tiles gains far more."""

BUSY_SHARE = 0.5
"""Load per core from which other programs disturb a measurement."""

ALL_THREADS, ONE_THREAD = "all threads", "one thread"
HALVES = ("mixed_bfloat16", "mixed_float16")

Line: TypeAlias = dict[str, Any]
Wanted: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Probe:
    """What one measuring process brought back.

    Args:
        lines: Its measurements, in order; fewer than asked for after a crash.
        failure: Why it ended early; None when it did not.
    """

    lines: tuple[Line, ...]
    failure: str | None = None


@dataclass
class Findings:
    """Everything measured, ready to be judged.

    Args:
        driver: What nvidia-smi says; see `ask_driver`.
        num_workers: Training processes the product would start.
        backend: A BackendReport, empty after a crash.
        matmul: MatmulSpeeds by where: `all threads`, `one thread`.
        steps: StepSpeeds in order.
        workers: StepSpeeds of our float32 step in processes running at once.
        notes: What failed, or was done in short.
    """

    driver: dict[str, Any]
    num_workers: int
    backend: Line = field(default_factory=dict)
    matmul: dict[str, Line] = field(default_factory=dict)
    steps: list[Line] = field(default_factory=list)
    workers: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def rate(self, path: str, precision: str, *, is_short: bool = False, num_models: int = 1) -> float | None:
        """Return windows/s of one measured step; None where it was not measured."""
        key = (path, precision, is_short, num_models)
        for step in self.steps:
            if (step["path"], step["precision"], step["is_short"], step["num_models"]) == key:
                return float(step["windows_per_s"])
        return None

    @property
    def has_gpu(self) -> bool:
        """Whether the backend can compute on a GPU."""
        return bool(self.backend.get("gpus"))

    @property
    def workers_rate(self) -> float | None:
        """Windows/s of the worker processes together, extrapolated to all cores where not all were run."""
        if not self.workers:
            return None
        together = sum(float(step["windows_per_s"]) for step in self.workers)
        return together * self.num_workers / len(self.workers)


def doctor(
    profile: Annotated[
        str, typer.Option("--profile", metavar="NAME|FILE", help="Whose network is measured.")
    ] = "aligned",
    is_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.05, help="Time of each measurement.")
    ] = 2.0,
) -> None:
    """Examine this machine: driver, devices, speed of training, and the flags to choose."""
    chosen = load_profile(profile)
    started = time.monotonic()
    findings = examine(chosen, seconds)
    report = report_of(findings, chosen, time.monotonic() - started)
    if is_json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        _print(report)
    if report["verdict"]["state"] == "incomplete":
        raise typer.Exit(V8Error.exit_code)


def examine(profile: Profile, seconds: float) -> Findings:
    """Measure everything.

    Args:
        profile: Whose network is measured.
        seconds: Time of each measurement, without start and compilation.
    """
    findings = Findings(ask_driver(), num_workers=1)
    _note_load(findings)
    _tell("stock layers, all threads")
    _take(findings, run_probe(profile, _first_wanted(seconds), os.environ))
    if findings.has_gpu:
        _examine_gpu(findings, profile, seconds)
    else:
        findings.num_workers = choose_workers("cpu", "auto")  # sets what keeps a process on one thread
        _examine_cpu(findings, profile, seconds)
    return findings


def ask_driver() -> dict[str, Any]:
    """Ask nvidia-smi for driver, GPUs and their memory in MiB; say why when it cannot answer."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return {"is_found": False, "why": "nvidia-smi is not on the PATH", "gpus": []}
    query = "--query-gpu=driver_version,name,memory.total"
    try:
        done = subprocess.run(  # noqa: S603 - the driver's own program, found on the PATH
            [path, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=SMI_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"is_found": False, "why": f"nvidia-smi: {error}", "gpus": []}
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not rows or any(len(row) != 3 for row in rows):
        said = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
        return {"is_found": False, "why": f"nvidia-smi said: {said[0]}", "gpus": []}
    gpus = [{"name": name, "memory_mib": _number(memory)} for _, name, memory in rows]
    return {"is_found": True, "version": rows[0][0], "gpus": gpus}


def run_probe(profile: Profile, wanted: Sequence[Wanted], environment: Mapping[str, str]) -> Probe:
    """Take measurements in a process of their own.

    Args:
        profile: Whose network is measured.
        wanted: Measurements, see `v8.training.probe`.
        environment: Sets its threads.
    """
    request = json.dumps({"profile": profile.model_dump(mode="json"), "measurements": list(wanted)})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "v8.training.probe"],
            input=request,
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **environment},
            capture_output=True,
            text=True,
            timeout=PROBE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Probe((), f"a measuring process took more than {PROBE_LIMIT_S} s")
    lines = tuple(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    if done.returncode == 0:
        return Probe(lines)
    said = done.stderr.strip().splitlines() or ["nothing"]
    unmeasured = ", ".join(_name(each) for each in wanted[len(lines) :])
    return Probe(lines, f"not measured: {unmeasured}; exit code {done.returncode}, last words: {said[-1]}")


def report_of(findings: Findings, profile: Profile, seconds: float) -> dict[str, Any]:
    """Turn findings into the document that `--json` prints."""
    from v8.machine import describe_machine

    return {
        "verdict": _verdict(findings),
        "recommended": _recommended(findings),
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
            "ceiling_gflop_per_s": _ceiling(findings),
            "ceiling_pct": _ceiling_pct(findings, profile),
        },
        "notes": findings.notes,
        "seconds": round(seconds, 1),
    }


# Measuring


def _first_wanted(seconds: float) -> list[Wanted]:
    return [
        {"measure": "backend"},
        {"measure": "matmul", "seconds": seconds / 2},
        {"measure": "stock", "precision": "float32", "seconds": seconds},
    ]


def _examine_gpu(findings: Findings, profile: Profile, seconds: float) -> None:
    """Measure everything in full, then a large fleet in the format that was fastest."""
    _tell("our layers and 16-bit formats on the GPU")
    ours = [{"measure": "ours", "precision": each, "seconds": seconds} for each in ("float32", *HALVES)]
    stock = [{"measure": "stock", "precision": each, "seconds": seconds} for each in HALVES]
    for wanted in (ours, stock):
        _take(findings, run_probe(profile, wanted, os.environ))
    large = {"precision": _best_precision(findings)[0], "num_models": LARGE_FLEET, "seconds": seconds}
    _tell(f"a fleet of {LARGE_FLEET}")
    _take(findings, run_probe(profile, [{"measure": "ours", **large}], os.environ))


def _examine_cpu(findings: Findings, profile: Profile, seconds: float) -> None:
    """Measure worker processes at once in float32; then the 16-bit formats on a small network."""
    num_probed = min(findings.num_workers, MOST_PROBED_WORKERS)
    _tell(f"our layers, {num_probed} single-threaded processes at once; then 16-bit formats in short")
    wanted = [_worker_wanted(seconds) for _ in range(num_probed)]
    # The short ones follow in processes that have started anyway, one path a core.
    wanted[0] += _short_wanted("ours", seconds / 2)
    wanted[-1] += _short_wanted("stock", seconds / 2)
    for number, probe in enumerate(_run_probes(profile, wanted)):
        whole = [line for line in probe.lines if "path" in line and not line["is_short"]]
        findings.workers += whole
        # The first process stands for one worker in the table of steps.
        shown = [line for line in probe.lines if number == 0 or line.get("is_short")]
        _take(findings, Probe(tuple(shown), probe.failure), ONE_THREAD)
    if num_probed < findings.num_workers:
        findings.notes.append(
            f"measured {num_probed} of {findings.num_workers} workers, extrapolated the rest"
        )
    findings.notes.append(
        "16-bit formats were measured on a small network (one LSTM and one dense layer of the first "
        "layer's width), in one thread; compare them with float32 on the same network"
    )


def _worker_wanted(seconds: float) -> list[Wanted]:
    return [
        {"measure": "matmul", "seconds": seconds / 2},
        {"measure": "ours", "precision": "float32", "seconds": seconds},
    ]


def _short_wanted(path: str, seconds: float) -> list[Wanted]:
    """Ask for every format where compiling the whole network thrice would take a minute."""
    return [
        {"measure": path, "precision": precision, "seconds": seconds, "is_short": True}
        for precision in ("float32", *HALVES)
    ]


def _run_probes(profile: Profile, wanted: Sequence[Sequence[Wanted]]) -> list[Probe]:
    """Run several measuring processes at once."""
    with ThreadPoolExecutor(len(wanted)) as pool:
        return list(pool.map(lambda each: run_probe(profile, each, os.environ), wanted))


def _note_load(findings: Findings) -> None:
    from v8.machine import load

    busy, num_cores = load()
    if busy > BUSY_SHARE * num_cores:
        findings.notes.append(
            f"other programs were at work before the start (load {busy:.1f} on {num_cores} cores); "
            "all speeds are too low, and their ratios uncertain"
        )


def _take(findings: Findings, probe: Probe, threads: str = ALL_THREADS) -> None:
    for line in probe.lines:
        if "path" in line:
            findings.steps.append({**line, "threads": threads})
        elif "size" in line:
            findings.matmul[threads] = line
        else:
            findings.backend = line
    if probe.failure:
        findings.notes.append(probe.failure)


def _tell(what: str) -> None:
    sys.stderr.write(f"measuring {what}\n")
    sys.stderr.flush()


def _name(wanted: Wanted) -> str:
    return " ".join(str(wanted[key]) for key in ("measure", "precision") if key in wanted)


def _number(text: str) -> float | None:
    return float(text) if text.replace(".", "", 1).isdigit() else None


# Judging


def _verdict(findings: Findings) -> dict[str, str]:
    """Judge by placement first, then by time."""
    stock, ours = findings.rate("stock", "float32"), _best_rate(findings)
    device = findings.matmul.get(ALL_THREADS, {}).get("device", "nowhere")
    if stock is None or ours is None:
        return {"state": "incomplete", "device": device, "why": "training in float32 could not be measured"}
    times = f"training runs at {ours:,.0f} windows/s, {ours / stock:.1f} times the stock layers' {stock:,.0f}"
    if findings.driver["gpus"] and not device.startswith("GPU") and not _is_gpu_hidden():
        why = f"the driver shows a GPU, but the result of a matmul lies on {device}; {times}"
        return {"state": "misplaced", "device": device, "why": why}
    place = "" if findings.has_gpu else f", because no GPU was found ({_no_gpu(findings)})"
    state = "good" if ours > stock else "slow"
    return {"state": state, "device": device, "why": f"results lie on {device}{place}; {times}"}


def _recommended(findings: Findings) -> list[dict[str, str]]:
    return [_precision_advice(findings), _fleet_advice(findings), _workers_advice(findings)]


def _precision_advice(findings: Findings) -> dict[str, str]:
    precision, times = _best_precision(findings)
    if not times:
        return _advice("--precision", "float32", "no 16-bit format could be measured")
    shown = ", ".join(f"{name} {gain:.2f}" for name, gain in times.items())
    network = "the profile's network" if findings.has_gpu else "a small network of the same width"
    why = f"speed of our layers on {network} as a multiple of float32: {shown}"
    auto = findings.backend.get("auto_precision", precision)
    return _advice("--precision", precision, why if auto == precision else f"{why}; auto takes {auto}")


def _fleet_advice(findings: Findings) -> dict[str, str]:
    if not findings.has_gpu:
        why = "on a CPU a fleet multiplies many small matrices where one model multiplies larger ones"
        return _advice("--fleet-size", "1", f"{why}; workers use the cores")
    precision = _best_precision(findings)[0]
    one = findings.rate("ours", precision)
    large = findings.rate("ours", precision, num_models=LARGE_FLEET)
    if one is None or large is None:
        return _advice("--fleet-size", "1", f"a fleet of {LARGE_FLEET} could not be measured")
    why = f"{LARGE_FLEET} models at once: {large:,.0f} windows/s; one alone: {one:,.0f}"
    return _advice("--fleet-size", str(LARGE_FLEET if large > one else 1), why)


def _workers_advice(findings: Findings) -> dict[str, str]:
    if findings.has_gpu:
        return _advice("--workers", "1", "one process fills the GPU with a fleet")
    one, together = findings.rate("ours", "float32"), findings.workers_rate
    if one is None or together is None:
        return _advice("--workers", str(findings.num_workers), "one a usable core; not measured")
    why = f"one single-threaded process a core: {together:,.0f} windows/s together, {one:,.0f} the first"
    return _advice("--workers", str(findings.num_workers), why)


def _advice(flag: str, value: str, why: str) -> dict[str, str]:
    return {"flag": flag, "value": value, "why": why}


def _best_precision(findings: Findings) -> tuple[str, dict[str, float]]:
    """Return the format to train in, and each measured 16-bit format's speed over float32's."""
    is_short = not findings.has_gpu
    base = findings.rate("ours", "float32", is_short=is_short)
    rates = {each: findings.rate("ours", each, is_short=is_short) for each in HALVES}
    times = {name: rate / base for name, rate in rates.items() if rate and base}
    best = max(times, key=lambda name: times[name], default="float32")
    enough = GAIN_TO_CHANGE_IN_SHORT if is_short else GAIN_TO_CHANGE
    return (best if times and times[best] >= enough else "float32"), times


def _best_rate(findings: Findings) -> float | None:
    """Return windows/s of the product's way of training: workers on a CPU, the best step on a GPU."""
    if not findings.has_gpu:
        return findings.workers_rate
    rates = [float(step["windows_per_s"]) for step in findings.steps if step["path"] == "ours"]
    return max(rates, default=None)


def _is_gpu_hidden() -> bool:
    return os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}


def _no_gpu(findings: Findings) -> str:
    if _is_gpu_hidden():
        return "CUDA_VISIBLE_DEVICES hides all"
    if findings.driver["is_found"]:
        return "the backend sees none"
    return str(findings.driver["why"])


def _ceiling(findings: Findings) -> float | None:
    """Return the single-precision matmul rate of the cores or device that train, GFLOP/s."""
    whole = findings.matmul.get(ALL_THREADS)
    single = findings.matmul.get(ONE_THREAD)
    rates = [float(whole["gflop_per_s"])] if whole else []
    if single:
        # Workers each have a core; together they may exceed what one matmul on all threads reaches.
        rates.append(float(single["gflop_per_s"]) * findings.num_workers)
    return max(rates, default=None)


def _ceiling_pct(findings: Findings, profile: Profile) -> float | None:
    from v8.models.cost import training_flop_per_window

    rate, ceiling = _best_rate(findings), _ceiling(findings)
    if rate is None or ceiling is None:
        return None
    return 100 * rate * training_flop_per_window(profile) / (1e9 * ceiling)


# Printing


def _print(report: Mapping[str, Any]) -> None:
    from v8.commands.printing import print_lines, print_table

    print_lines("This machine", *(f"  {what:<8} {found}" for what, found in _machine_rows(report)), "")
    print_table(
        "Matrix multiplication, float32",
        ("threads", "size", "time", "GFLOP/s", "result lies on"),
        [
            (
                name,
                str(speed["size"]),
                f"{speed['milliseconds']:.2f} ms",
                f"{speed['gflop_per_s']:,.0f}",
                speed["device"],
            )
            for name, speed in report["matmul"].items()
        ],
    )
    header = ("layers", "network", "precision", "models", "threads", "windows/s", "compiled in", "lies on")
    print_table(f"Training steps of profile {report['profile']}", header, _step_rows(report["steps"]))
    print_lines("Recommended", *(_advice_line(each) for each in report["recommended"]), "")
    paths = dict.fromkeys(step["how"] for step in report["steps"] if not step["is_short"])
    print_lines(*(f"Path: {path}." for path in paths), *_workers_lines(report["workers"]))
    print_lines(*(f"Note: {note}." for note in report["notes"]))
    verdict = report["verdict"]
    print_lines(f"Verdict: {verdict['state']}: {verdict['why']}. Examined in {report['seconds']:.0f} s.")


def _machine_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    machine, driver, backend = report["machine"], report["driver"], report["backend"]
    memory = machine["memory_bytes"]
    gpus = [
        f"{gpu['name']}, {_or_unknown(gpu['memory_mib'], '{:,.0f} MiB')}" for gpu in driver["gpus"]
    ] or backend.get("gpus", [])
    versions = ", ".join(f"{name} {version}" for name, version in backend.get("versions", {}).items())
    built = "" if gpus else " (the backend's; unused without a GPU)"
    return [
        ("CPU", f"{machine['cpu']}, {machine['num_cores']} usable cores"),
        ("memory", _or_unknown(memory and memory / 2**30, "{:.1f} GiB")),
        ("GPU", "; ".join(gpus) or f"none: {driver.get('why', 'the driver lists none')}"),
        ("driver", driver.get("version", "none")),
        ("CUDA", f"{backend['cuda']}{built}" if backend.get("cuda") else "none"),
        ("cuDNN", f"{backend['cudnn']}{built}" if backend.get("cudnn") else "none"),
        ("backend", versions or "could not be started"),
    ]


def _advice_line(advice: Mapping[str, str]) -> str:
    return f"  {advice['flag']} {advice['value']}: {advice['why']}"


def _step_rows(steps: Sequence[Line]) -> list[tuple[str, ...]]:
    return [
        (
            step["path"],
            "small" if step["is_short"] else "whole",
            step["precision"],
            str(step["num_models"]),
            step["threads"],
            f"{step['windows_per_s']:,.0f}",
            f"{step['compile_s']:.1f} s",
            step["device"],
        )
        for step in steps
    ]


def _workers_lines(workers: Mapping[str, Any]) -> list[str]:
    if workers["windows_per_s"] is None:
        return []
    return [
        f"Workers: {workers['num_workers']} single-threaded processes at once train at "
        f"{workers['windows_per_s']:,.0f} windows/s, {workers['ceiling_pct']:.0f} % of the "
        f"{workers['ceiling_gflop_per_s']:,.0f} GFLOP/s that their cores multiply."
    ]


def _or_unknown(value: float | None, shape: str) -> str:
    return "unknown" if value is None else shape.format(value)
