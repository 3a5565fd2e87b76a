#!/usr/bin/env python
"""Find out by which setting a GPU runs the loops of a training step fastest, on TensorFlow and on JAX.

    python scripts/bench_gpu_loops.py [--profile aligned] [--models 40] [--device gpu] [--compared FILE ...]

Each setting of `v8.runs.machine.GPU_LOOPS` has a process of its own on each backend, which measures
the same steps twice in a row: so a setting that fails when it is repeated is distinguished from one that
fails at the start. `--compared` names results of `scripts/bench_training.py`; the fastest of stock Keras and
PyTorch in them is compared with the best setting. With `--device cpu` everything but the GPU is tried.
"""

# ruff: noqa: E402 - the package is next to this folder

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from v8.base.child import ChildCall, run_in_children
from v8.base.hardware import SINGLE_THREADED
from v8.model.networks.programs import STEPS_PER_TRIP, STEPS_VARIABLE
from v8.profile.profile import Profile, load_profile
from v8.runs.machine import FORMATS, GPU_LOOPS, MeasurementRequest, take_measurements

BACKENDS = ("tensorflow", "jax")
LIMIT_S = 200.0
"""A way whose process takes longer is given up."""


def main() -> int:
    """Measure each setting of loops by each backend, print a line for each and write the JSON."""
    options = parse(sys.argv[1:])
    profile = load_profile(options.profile)
    rows = []
    for backend in [name for name in options.backends if find_spec(name)]:
        for loops in options.loops:
            rows.append(measured(profile, backend, loops, options))
            print(result_line(rows[-1]), flush=True)
    others = [speed for file in options.compared for speed in compared(file)]
    sentence = best(rows, others)
    print(sentence)
    if options.json:
        options.json.write_text(
            json.dumps(
                {"profile": profile.name, "rows": rows, "compared": others, "best": sentence}, indent=2
            )
        )
    return 0 if any(row["windows_per_s"] for row in rows) else 4


def measured(profile: Profile, backend: str, loops: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one way by one backend twice in a row, in a process of its own."""
    variables = {"KERAS_BACKEND": backend, STEPS_VARIABLE: str(STEPS_PER_TRIP)}
    if options.device == "cpu":
        variables |= {**SINGLE_THREADED, "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    variables |= GPU_LOOPS[loops]
    measurement = {
        "measure": "ours",
        "precision": options.format,
        "seconds": options.seconds,
        "num_models": options.models,
    }
    request = MeasurementRequest(profile, [measurement, measurement])
    (answer,) = run_in_children([ChildCall(take_measurements, request, variables)], limit_s=options.limit_s)
    speeds = [line["windows_per_s"] for line in answer.values]
    failure = answer.refusal or (answer.errors.strip().splitlines() or [f"exit code {answer.exit_code}"])[-1]
    return {
        "backend": backend,
        "loops": loops,
        "variables": dict(GPU_LOOPS[loops]),
        "first_windows_per_s": speeds[0] if speeds else 0.0,
        # What does not work twice in a row does not work.
        "windows_per_s": max(speeds) if len(speeds) == 2 else 0.0,
        "compile_s": answer.values[0]["compile_s"] if speeds else None,
        "device": answer.values[0]["device"] if speeds else None,
        "failure": None if len(speeds) == 2 else failure[:300],
    }


def result_line(row: Mapping[str, Any]) -> str:
    """Write one line about a way.

    >>> shown({"backend": "jax", "loops": "gpu", "windows_per_s": 9e4, "compile_s": 8.1, "failure": None})
    'jax, gpu: 90,000 windows/s, compiled in 8 s'
    """
    name = f"{row['backend']}, {row['loops']}"
    if row["failure"]:
        when = "in the second measurement" if row["first_windows_per_s"] else "immediately"
        return f"{name}: failed {when}: {row['failure']}"
    return f"{name}: {row['windows_per_s']:,.0f} windows/s, compiled in {row['compile_s']:.0f} s"


def compared(file: Path) -> list[tuple[str, float]]:
    """Read the speeds of stock Keras and PyTorch, windows/s, from a result of `bench_training.py`."""
    if not file.exists():
        return []
    rows = [row for table in json.loads(file.read_text("utf-8"))["tables"] for row in table["rows"]]
    names = ("stock", "torch", "PyTorch")
    return [(row["name"], row["windows_per_s"]) for row in rows if any(name in row["name"] for name in names)]


def best(rows: Sequence[Mapping[str, Any]], others: Sequence[tuple[str, float]]) -> str:
    """Say which way is fastest, and what it is compared with the fastest of the others.

    >>> rows = [{"backend": "jax", "loops": "gpu", "windows_per_s": 200.0}]
    >>> best(rows, [("torch float32", 100.0)])
    'Best: jax, gpu, 200 windows/s; 2.00 times torch float32.'
    >>> best([], [])
    'Best: none worked.'
    """
    working = [row for row in rows if row["windows_per_s"]]
    if not working:
        return "Best: none worked."
    row = max(working, key=lambda row: row["windows_per_s"])
    sentence = f"Best: {row['backend']}, {row['loops']}, {row['windows_per_s']:,.0f} windows/s"
    if not others:
        return sentence + "."
    name, speed = max(others, key=lambda other: other[1])
    return f"{sentence}; {row['windows_per_s'] / speed:.2f} times {name}." if speed else sentence + "."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--profile", default="aligned", help="whose network is trained")
    add("--models", type=int, default=40, help="models of one program")
    add("--format", choices=FORMATS, default=FORMATS[0], help="number format")
    add("--backends", nargs="+", choices=BACKENDS, default=BACKENDS, help="only these, where installed")
    add("--loops", nargs="+", choices=list(GPU_LOOPS), default=list(GPU_LOOPS), help="only these ways")
    add("--seconds", type=float, default=2.0, help="length of one measurement")
    add("--limit-s", type=float, default=LIMIT_S, help="most seconds of one process")
    add("--device", choices=("gpu", "cpu"), default="gpu", help="cpu rehearses")
    add("--compared", type=Path, nargs="*", default=[], help="results of bench_training.py")
    add("--json", type=Path, help="also write every figure to this file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    raise SystemExit(main())
