"""What `v8 doctor` prints: the machine, the speeds measured on it, and the flags to choose."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from v8.base.errors import V8Error
from v8.base.hardware import replacement_notice, replacing_variables
from v8.base.storage import packaged_yaml
from v8.base.terminal import print_all_lines, print_json, print_lines, print_table
from v8.base.wording import Table
from v8.cli.shared import settle_process
from v8.profile.profile import Profile
from v8.runs.doctor import examine, report_of
from v8.runs.engines import local_placement

COLUMNS: Final = packaged_yaml("v8.cli", "doctor.yaml")
"""Columns of the tables: title, and the format of a measurement there."""


def run_doctor(profile: Profile, seconds: float, *, is_json: bool) -> int:
    """Examine this machine, print the report, and return the exit code.

    Each measurement takes `seconds`. A report that is incomplete ends with the exit code of `V8Error`.
    """
    started = time.monotonic()
    notice = replacement_notice("auto")
    os.environ.update(replacing_variables("auto"))

    def count_workers() -> int:
        settle_process("cpu")  # from here on each process has one thread
        return local_placement("auto", "1", "cpu").num_workers

    findings = examine(profile, seconds, count_workers, notice=notice)
    report = report_of(findings, profile, time.monotonic() - started)
    if is_json:
        print_json(report)
    else:
        _print(report)
    return V8Error.exit_code if report["verdict"]["state"] == "incomplete" else 0


def _print(report: Mapping[str, Any]) -> None:
    print_lines("This machine")
    print_all_lines(f"  {name:<8} {value}" for name, value in _machine_rows(report))
    print_lines("")
    matmuls = [{**speed, "threads": threads} for threads, speed in report["matmul"].items()]
    steps = [{**step, "network": "small" if step["is_short"] else "whole"} for step in report["steps"]]
    _print_measurements("Matrix multiplication, float32", COLUMNS["matmul"], matmuls)
    _print_measurements(f"Training steps of profile {report['profile']}", COLUMNS["step"], steps)
    print_lines("Recommended")
    for advice in report["recommended"]:
        print_lines(f"  {advice['flag']} {advice['value']}: {advice['why']}")
    print_lines("")
    paths = dict.fromkeys(step["how"] for step in report["steps"] if not step["is_short"])
    print_all_lines(f"Path: {path}." for path in paths)
    workers = report["workers"]
    if workers["windows_per_s"] is not None:
        print_lines(
            f"Workers: {workers['num_workers']} single-threaded processes together train at "
            f"{workers['windows_per_s']:,.0f} windows/s, {workers['ceiling_pct']:.0f} % of the "
            f"{workers['ceiling_gflop_per_s']:,.0f} GFLOP/s that their cores multiply."
        )
    print_all_lines(f"Note: {note}." for note in report["notes"])
    verdict = report["verdict"]
    print_lines(f"Verdict: {verdict['state']}: {verdict['why']}. Examined in {report['seconds']:.0f} s.")


def _print_measurements(
    title: str, columns: Mapping[str, str], measurements: Sequence[Mapping[str, Any]]
) -> None:
    """Print a table; `columns` has the format of each column by its title."""
    rows = [[template.format(**line) for template in columns.values()] for line in measurements]
    print_table(Table(tuple(columns), rows, title))


def _machine_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and description of each part of the machine."""
    machine = report["machine"]
    driver = report["driver"]
    backend = report["backend"]
    gpus = [_describe_gpu(gpu) for gpu in driver["gpus"]] or backend.get("gpus", [])
    versions = ", ".join(f"{name} {version}" for name, version in backend.get("versions", {}).items())
    unused = "" if gpus else " (the backend's; unused without a GPU)"
    no_gpu = f"none: {driver.get('why', 'the driver lists none')}"
    return [
        ("CPU", f"{machine['cpu']}, {machine['num_cores']} usable cores"),
        ("memory", f"{machine['memory_bytes'] / 2**30:.1f} GiB"),
        ("GPU", "; ".join(gpus) or no_gpu),
        ("driver", driver.get("version", "none")),
        ("CUDA", f"{backend['cuda']}{unused}" if backend.get("cuda") else "none"),
        ("cuDNN", f"{backend['cudnn']}{unused}" if backend.get("cudnn") else "none"),
        ("backend", versions or "could not be started"),
    ]


def _describe_gpu(gpu: Mapping[str, Any]) -> str:
    """Return name and memory of a GPU that the driver lists."""
    memory_mib = gpu["memory_mib"]
    memory = "unknown" if memory_mib is None else f"{memory_mib:,.0f} MiB"
    return f"{gpu['name']}, {memory}"
