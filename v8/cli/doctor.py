"""What `v8 doctor` prints: what this machine has, computes on, how fast, and what to choose."""

import time
from collections.abc import Mapping
from typing import Any, Final

import yaml

from v8.cli.printing import print_json, print_lines, print_table
from v8.errors import V8Error
from v8.machine.doctor import examine, report_of
from v8.profile import Profile
from v8.runs.engines import place
from v8.storage import packaged
from v8.wording import Table

COLUMNS: Final = yaml.safe_load(packaged("v8.cli", "doctor.yaml"))
"""Columns of the tables: title, and how a measurement is written there."""


def examined(profile: Profile, seconds: float, *, is_json: bool) -> int:
    """Examine this machine, so many seconds a measurement, print it, and return the exit code."""
    started = time.monotonic()
    findings = examine(profile, seconds, lambda: place("cpu", "auto", "1").num_workers)
    report = report_of(findings, profile, time.monotonic() - started)
    if is_json:
        print_json(report)
    else:
        _print(report)
    return V8Error.exit_code if report["verdict"]["state"] == "incomplete" else 0


def _print(report: Mapping[str, Any]) -> None:
    print_lines("This machine", *(f"  {what:<8} {found}" for what, found in _machine_rows(report)), "")
    matmuls = [{**speed, "threads": threads} for threads, speed in report["matmul"].items()]
    steps = [{**step, "network": "small" if step["is_short"] else "whole"} for step in report["steps"]]
    for title, columns, measured in (
        ("Matrix multiplication, float32", COLUMNS["matmul"], matmuls),
        (f"Training steps of profile {report['profile']}", COLUMNS["step"], steps),
    ):
        rows = [[shape.format(**line) for shape in columns.values()] for line in measured]
        print_table(Table(columns, rows, title))
    print_lines(
        "Recommended", *("  {flag} {value}: {why}".format(**each) for each in report["recommended"]), ""
    )
    paths = dict.fromkeys(step["how"] for step in report["steps"] if not step["is_short"])
    print_lines(*(f"Path: {path}." for path in paths))
    workers = report["workers"]
    if workers["windows_per_s"] is not None:
        print_lines(
            f"Workers: {workers['num_workers']} single-threaded processes at once train at "
            f"{workers['windows_per_s']:,.0f} windows/s, {workers['ceiling_pct']:.0f} % of the "
            f"{workers['ceiling_gflop_per_s']:,.0f} GFLOP/s that their cores multiply."
        )
    print_lines(*(f"Note: {note}." for note in report["notes"]))
    verdict = report["verdict"]
    print_lines(f"Verdict: {verdict['state']}: {verdict['why']}. Examined in {report['seconds']:.0f} s.")


def _machine_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    machine = report["machine"]
    driver = report["driver"]
    backend = report["backend"]
    gpus = [
        f"{gpu['name']}, {'unknown' if gpu['memory_mib'] is None else '{memory_mib:,.0f} MiB'.format(**gpu)}"
        for gpu in driver["gpus"]
    ] or backend.get("gpus", [])
    versions = ", ".join(f"{name} {version}" for name, version in backend.get("versions", {}).items())
    built = "" if gpus else " (the backend's; unused without a GPU)"
    return [
        ("CPU", f"{machine['cpu']}, {machine['num_cores']} usable cores"),
        ("memory", f"{machine['memory_bytes'] / 2**30:.1f} GiB"),
        ("GPU", "; ".join(gpus) or f"none: {driver.get('why', 'the driver lists none')}"),
        ("driver", driver.get("version", "none")),
        ("CUDA", f"{backend['cuda']}{built}" if backend.get("cuda") else "none"),
        ("cuDNN", f"{backend['cudnn']}{built}" if backend.get("cudnn") else "none"),
        ("backend", versions or "could not be started"),
    ]
