#!/usr/bin/env python
"""Time training side by side: stock Keras fit, PyTorch loops, our trainer; and the matmul ceilings.

    python scripts/bench_training.py [--quick] [--batch-sizes 16 64] [--json PATH]
    python scripts/bench_training.py --contenders product torch --fleet-sizes
    KERAS_BACKEND=jax python scripts/bench_training.py --profile frontier       # TensorFlow is not needed
    KERAS_BACKEND=jax python scripts/bench_training.py --device gpu --formats float32 mixed_bfloat16

Every contender has processes of its own, so that its thread settings hold. All start and compile
first; then they take turns, a few seconds each, round after round, while the others wait. The best round
counts, because other programs may load the machine; with --wait-idle a turn also waits for them to end.
Processor seconds a 1,000 windows (the least of the rounds) leave out the wait for a core that others hold.

What is timed, in windows/s of training (no validation), on demo candles of the profile, at its batch size
and at others, each a table of its own, because another batch size is another training:

- stock: the profile's network in stock Keras layers, `fit` on arrays.
- torch: the same network and loop in PyTorch (`training_bench/torch_peer.py`), in float32 and under bfloat16
  autocast, with the batch or the time as first axis. Where torch is not installed, or has no such network,
  none competes; what a processor cannot do (bfloat16 with AVX2 alone) is listed below the table.
- product: our Trainer's `fit` the way `python -m v8 run` uses it, in each of --formats.
- fleet of N: N series in one program in one process, through the product's own step, with its peak memory:
  of the GPU, or of the process.
- ceiling: matmuls in float32 and bfloat16, by the backend and by PyTorch; the largest rate counts. A
  contender on some of the cores is compared with their share. Per cent come from the formula in
  v8/runs/machine.py.

On a CPU stock and torch train in a single-threaded process a core, their speeds added, and in one process on
all threads; the product in a process a core; a fleet in one single-threaded process. On a GPU each is one
process.
"""

# ruff: noqa: E402 - the package is next to this folder

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from training_bench.contenders import (
    BACKENDS,
    FORMATS,
    KINDS,
    PEER_FAMILY,
    WAYS,
    Contender,
    Ground,
    ceilings,
    table,
)
from training_bench.crews import Child, compete, serve
from training_bench.turn import with_batch

from v8.base.hardware import describe_machine, num_usable_cores
from v8.profile.profile import Profile, load_profile
from v8.runs.engines import DEVICES

HEADINGS = ("windows/s", "rounds", "a core", "x stock", "x PyTorch", "by CPU", "CPU-s/1,000", "of ceilings")
WIDTHS = (10, 18, 9, 9, 10, 8, 12, 12)


def main() -> int:
    """Measure and print the tables, or be one of the measuring processes; return the exit code."""
    options = parse(sys.argv[1:])
    if options.child:
        serve(json.loads(options.child))
        return 0
    profile = load_profile(options.profile)
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "profile": profile.name,
        "flop_per_window": profile.training_flop_per_window,
    }
    result |= measure(options, profile)
    result["machine"]["load_1min_after"] = round(psutil.getloadavg()[0], 2)
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--profile", default="aligned", help="whose network is trained")
    add("--bars", type=int, default=1_500, help="demo candles a series")
    add("--seconds", type=float, default=8.0, help="length of one turn")
    add("--rounds", type=int, default=3, help="turns of each contender")
    add("--wait-idle", type=float, default=0.0, metavar="S", help="most seconds a turn waits for idle cores")
    add("--processes", type=int, metavar="N", help="that work side by side on a CPU; default: one a core")
    add("--contenders", nargs="+", choices=KINDS, default=KINDS, help="only these kinds")
    add("--ways", nargs="+", choices=WAYS, default=WAYS, help="a process a core, and all threads in one")
    add("--backends", nargs="+", choices=sorted(BACKENDS), help="only these; default: all installed")
    add("--device", choices=DEVICES, default="auto", help="auto takes a GPU where the backend finds one")
    add("--formats", nargs="+", choices=FORMATS, help="of the product; default: float32, on a GPU all")
    add("--batch-sizes", type=int, nargs="+", metavar="B", help="default: the profile's")
    add("--fleet-sizes", type=int, nargs="*", default=[1, 4, 10, 40], metavar="N")
    add("--torch-compile", action="store_true", help="let PyTorch compete compiled, too: needs a compiler")
    add("--json", type=Path, help="also write every figure to this file")
    add("--quick", action="store_true", help="one short round and small fleets")
    add("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.quick:
        options.seconds = 3.0
        options.rounds = 1
        options.fleet_sizes = [size for size in options.fleet_sizes if size <= 4]
    return options


def measure(options: argparse.Namespace, profile: Profile) -> dict[str, Any]:
    """Measure all contenders in turns; return every figure, as plain JSON values."""
    variables = {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"} if options.device == "cpu" else {}
    ground = survey(options, profile, variables)
    common = {"profile": options.profile, "bars": options.bars, "batch_size": None}
    matmuls = list(ground.matmuls())
    tables = []

    def turns(contenders: Sequence[Contender], common: dict[str, Any]) -> None:
        how = {"num_rounds": options.rounds, "seconds": options.seconds, "wait_idle_s": options.wait_idle}
        compete(contenders, common, variables, **how)

    for batch_size in options.batch_sizes or [profile.training.batch_size]:
        contenders = list(ground.line_up())
        # The ceilings belong to the machine, but to the same minutes as what is compared with them.
        turns([*matmuls, *contenders], common | {"batch_size": batch_size})
        sized = with_batch(profile, batch_size)
        limits = ceilings(matmuls)
        num_cores = 1 if ground.has_gpu else ground.num_workers
        tables.append(table(contenders, sized, limits["ceiling_gflop_per_s"], num_cores))
    return {"backends": ground.backends, "has_gpu": ground.has_gpu, "tables": tables, **limits}


def survey(options: argparse.Namespace, profile: Profile, variables: dict[str, str]) -> Ground:
    """Look what the machine has; a GPU that is demanded must be there."""
    backends = found_backends(options.backends or tuple(BACKENDS))
    with Child({"kind": "backend", "is_single_threaded": False}, backends[0], variables) as child:
        gpus = list(child.ready["gpus"])
    if options.device == "gpu" and not gpus:
        wanted = f"error: --device gpu needs a GPU that {BACKENDS[backends[0]]} can compute on"
        raise SystemExit(
            f"{wanted}; got none. Install its driver and the GPU's package, or use --device cpu."
        )
    has_gpu = bool(gpus)
    has_torch = bool(find_spec("torch")) and profile.network.family == PEER_FAMILY
    return Ground(
        backends=backends,
        has_gpu=has_gpu,
        has_torch=has_torch,
        num_workers=options.processes or (1 if has_gpu else num_usable_cores()),
        kinds=options.contenders,
        formats=options.formats or (FORMATS if has_gpu else FORMATS[:1]),
        fleet_sizes=options.fleet_sizes,
        is_compiled=options.torch_compile,
        sharing_names=options.ways,
    )


def found_backends(wanted: Sequence[str]) -> list[str]:
    """Return the installed backends among those wanted, that of KERAS_BACKEND first."""
    installed = [name for name in wanted if find_spec(name)]
    first = os.environ.get("KERAS_BACKEND")
    if not installed:
        names = " or ".join(BACKENDS[name] for name in wanted)
        raise SystemExit(f"error: needs {names}; got none that is installed. Install one of them.")
    if first in installed:
        return sorted(installed, key=lambda name: name != first)
    return installed


def machine() -> dict[str, Any]:
    """Describe machine, load, commit and versions."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return {
        **describe_machine(),
        "python": platform.python_version(),
        "load_1min_before": round(psutil.getloadavg()[0], 2),
        **{name: installed_version(name) for name in ("keras", "tensorflow", "jax", "torch", "numpy")},
        "commit": commit.stdout.strip() if commit.returncode == 0 else "unknown",
    }


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def show(result: dict[str, Any]) -> None:
    """Print all tables."""
    print(f"\nprofile {result['profile']}, {result['flop_per_window'] / 1e6:,.2f} MFLOP a training window")
    for name, gflop_per_s in result["matmul_gflop_per_s"].items():
        print(f"{name:<50}{gflop_per_s:>10,.0f} GFLOP/s")
    for compared in result["tables"]:
        show_table(compared)
    print(json.dumps(result["machine"]))


def show_table(compared: dict[str, Any]) -> None:
    """Print the table of one batch size."""
    print(f"\nbatch {compared['batch_size']}")
    print(f"{'':<50}" + "".join(f"{one:>{width}}" for one, width in zip(HEADINGS, WIDTHS, strict=True)))
    for row in compared["rows"]:
        print(f"{row['name']:<50}" + "".join(f"{cell:>{width}}" for cell, width in cells(row)))
    for name, refusal in compared["refusals"].items():
        print(f"{name:<50}not on this machine: {refusal}")
    for form, limit in compared["ceiling_windows_per_s"].items():
        print(f"{f'ceiling at the {form} matmul rate':<50}{limit:>10,.0f} windows/s")
    for fleet in compared["fleets"]:
        times = fleet["times_one_after_another"]
        print(
            f"{fleet['format']}: a fleet of {fleet['num_models']} is {times:.2f} times as fast as its models "
            "one after another"
        )


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


if __name__ == "__main__":
    raise SystemExit(main())
