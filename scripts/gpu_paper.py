#!/usr/bin/env python
"""Compile training steps for GPUs that this machine lacks, and count their kernels and memory.

    scripts/gpu_day paper prepare                # wheels into .gpu-paper/, 200 MB: XLA for CUDA, and ptxas
    scripts/gpu_day paper one aligned --models 40 --gpu h100 [--hlo FILE] [--steps-per-trip 6]
    scripts/gpu_day paper check                  # fails when a step of `aligned` x 40 has more kernels

XLA compiles for a described device without a driver. The result is the program that would run: loops with
their trips, kernels a step, bytes of memory. Nothing runs, so there are no times. Needs JAX; its version
decides which wheels `prepare` takes.
"""

# ruff: noqa: E402, PLC0415 - the package is next to this folder; Keras reads its backend when it is imported

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from v8.runs.machine import FORMATS

WHEELS: Final = REPOSITORY / ".gpu-paper"
NOTED: Final = REPOSITORY / "scripts" / "gpu_paper.json"
"""The kernels of a step that `check` allows, and the versions that they were counted with."""
NUM_MODELS: Final = 40


@dataclass(frozen=True)
class Gpu:
    """A GPU as XLA describes it; from NVIDIA's data sheets."""

    num_cores: int
    capability: tuple[int, int]
    bandwidth_gb_per_s: int
    cache_bytes: int
    clock_ghz: float
    memory_bytes: int
    shared_bytes_per_core: int
    shared_bytes_per_block: int
    threads_per_core: int
    fpus_per_core: int

    def described(self, name: str) -> str:
        """Return the description that XLA's compiler reads."""
        major, minor = self.capability
        return (
            "gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 "
            "block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 "
            "registers_per_core_limit: 65536 registers_per_block_limit: 65536 shared_memory_per_block: 49152 "
            f"core_count: {self.num_cores} fpus_per_core: {self.fpus_per_core} "
            f"threads_per_core_limit: {self.threads_per_core} "
            f"shared_memory_per_core: {self.shared_bytes_per_core} "
            f"shared_memory_per_block_optin: {self.shared_bytes_per_block} "
            f"memory_bandwidth: {self.bandwidth_gb_per_s}000000000 l2_cache_size: {self.cache_bytes} "
            f"clock_rate_ghz: {self.clock_ghz} device_memory_size: {self.memory_bytes} "
            f"cuda_compute_capability {{ major: {major} minor: {minor} }} }} "
            'platform_name: "CUDA" dnn_version_info { major: 9 minor: 3 } '
            f'device_description_str: "{name}"'
        )


GPUS: Final[Mapping[str, Gpu]] = {
    "t4": Gpu(40, (7, 5), 320, 4 << 20, 1.59, 15 << 30, 65_536, 65_536, 1_024, 64),
    "l4": Gpu(58, (8, 9), 300, 48 << 20, 2.04, 22 << 30, 102_400, 101_376, 1_536, 128),
    "a100": Gpu(108, (8, 0), 1_555, 40 << 20, 1.41, 40 << 30, 167_936, 166_912, 2_048, 64),
    "h100": Gpu(132, (9, 0), 3_352, 50 << 20, 1.98, 79 << 30, 233_472, 232_448, 2_048, 128),
}
KERNELS: Final = frozenset(
    """
    fusion custom-call copy sort reduce scatter dot transpose broadcast pad concatenate dynamic-update-slice
    dynamic-slice iota slice select add multiply
    """.split()  # noqa: SIM905 - a list would take a line for each
)
"""Instructions of a compiled program that are launched."""


@dataclass(frozen=True)
class Counts:
    """Kernels of one step of a program; and of its loops trips and kernels a trip."""

    num_kernels: int
    loops: list[tuple[int, float]]


def counted(program: str) -> Counts:
    """Count what is launched in a compiled program, XLA's text, times the trips around it."""
    computations, entry = _computations(program)
    kernels: collections.Counter[str] = collections.Counter()
    loops: list[tuple[int, float]] = []

    def walk(name: str, times: int) -> None:
        for line in computations.get(name, ()):
            match = re.search(r"= .*?\s([a-z][\w\-]*)\(", line)
            kind = match.group(1) if match else ""
            if kind == "while":
                body = _named(r"body=%?([\w.\-]+)", line)
                trips = int(_named(r"known_trip_count.{0,12}n.{0,4}?(\d+)", line) or 1)
                before = sum(kernels.values())
                walk(body, times * trips)
                per_trip = (sum(kernels.values()) - before) / (times * trips)
                loops.append((trips, per_trip))
            elif kind in KERNELS:
                kernels[kind] += times
            elif kind in {"call", "conditional", "async-start"}:
                for called in re.findall(r"(?:to_apply|calls|branch_computations=\{)%?([\w.\-]+)", line):
                    walk(called, times)

    walk(entry, 1)
    return Counts(sum(kernels.values()), loops)


def _computations(program: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of every computation by its name, and the name of the one that begins."""
    computations: dict[str, list[str]] = {}
    name = entry = ""
    for line in program.splitlines():
        head = re.match(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if head:
            name = head.group(2)
            computations[name] = []
            entry = name if head.group(1) else entry
        elif name and " = " in line:
            computations[name].append(line.strip())
    return computations, entry


def _named(pattern: str, line: str) -> str:
    match = re.search(pattern, line)
    return match.group(1) if match else ""


def compiled_step_for(
    profile_name: str, num_models: int, gpu: str, precision: str, steps_per_trip: int | None
) -> tuple[Any, float]:
    """Compile the training step of a fleet for a described GPU; return XLA's program and seconds it took."""
    os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    flags = f" --xla_gpu_cuda_data_dir={WHEELS}/nvidia/cuda_nvcc --xla_gpu_autotune_level=0"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + flags
    sys.path.append(str(WHEELS))
    import jax
    import numpy as np
    from jax._src import xla_bridge
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    xla_bridge.discover_pjrt_plugins()
    target = GPUS[gpu].described(gpu)
    topology = topologies.get_topology_desc("t", "cuda", target_config=target, topology="1x1x1")
    sharding = SingleDeviceSharding(topology.devices[0])
    step, arguments = _step_and_arguments(profile_name, num_models, precision, steps_per_trip)
    shapes = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            np.shape(array), np.asarray(array).dtype, sharding=sharding
        ),
        arguments,
    )
    started = time.perf_counter()
    program = step.lower(*shapes).compile()
    return program, time.perf_counter() - started


def _step_and_arguments(
    profile_name: str, num_models: int, precision: str, steps_per_trip: int | None
) -> tuple[Any, tuple[Any, ...]]:
    """Return the step that a GPU would compile, and arguments of its shapes: the only place that calls it."""
    import numpy as np

    from v8.model.networks.networks import STEPS_PER_TRIP, build_network, stack
    from v8.model.networks.products import products_of
    from v8.model.training.probe import random_batch
    from v8.model.training.state import initial_state
    from v8.model.training.step import compiled_step
    from v8.profile.profile import load_profile

    profile = load_profile(profile_name)
    steps_per_trip = steps_per_trip or STEPS_PER_TRIP
    network = build_network(profile, seed=0, uses_teacher_forcing=True, precision=precision)
    fleet = stack(
        network,
        num_models,
        are_directions_merged=True,
        steps_per_trip=steps_per_trip,
        products=products_of(precision, is_on_gpu=True, processor_flags=""),
    )
    x_BMTF, y_BMHC = random_batch(profile, num_models)
    arguments = (
        initial_state(fleet, precision),
        np.zeros(num_models, np.float32),
        np.ones(num_models, bool),
        x_BMTF,
        y_BMHC,
        np.ones(x_BMTF.shape[:2], np.float32),
    )
    return compiled_step(fleet, profile, precision), arguments


def cell(options: argparse.Namespace) -> dict[str, Any]:
    """Compile one program in this process; return what is known of it as JSON values."""
    processor_s = time.process_time()
    program, seconds = compiled_step_for(
        options.profile, options.models, options.gpu, options.precision, options.steps_per_trip
    )
    text = program.as_text()
    if options.hlo:
        options.hlo.write_text(text)
    counts = counted(text)
    memory = program.memory_analysis()
    num_bytes = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    return {
        "profile": options.profile,
        "gpu": options.gpu,
        "precision": options.precision,
        "num_models": options.models,
        "steps_per_trip": options.steps_per_trip,
        "kernels": counts.num_kernels,
        "loops": counts.loops,
        "bytes": num_bytes - memory.alias_size_in_bytes,
        "compile_s": round(seconds, 1),
        "processor_s": round(time.process_time() - processor_s, 1),
    }


def versions() -> dict[str, str]:
    """Return the versions that a count of kernels depends on."""
    return {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "keras")}


def check() -> int:
    """Compile `aligned` x 40 for an H100 and compare with the figure that is noted."""
    noted = json.loads(NOTED.read_text("utf-8"))
    if not WHEELS.is_dir():
        print("Skipped: .gpu-paper/ is not there. Run `scripts/gpu_day paper prepare` first.")
        return 0
    if versions() != noted["versions"]:
        print(f"Skipped: {noted['kernels']:,} kernels are noted for {noted['versions']}; got {versions()}.")
        return 0
    row = cell(parse(["one", "aligned"]))
    print(
        f"{row['kernels']:,} kernels a step of aligned x {NUM_MODELS} on an H100; noted {noted['kernels']:,}."
    )
    if row["kernels"] <= noted["kernels"]:
        return 0
    print(
        f"error: the kernels of a step may not rise; got {row['kernels'] - noted['kernels']} more. ", end=""
    )
    print(f"Find what adds them with --hlo, or note them in {NOTED.name} and say why.")
    return 1


def prepare() -> None:
    """Install the compiler of JAX's own version for CUDA into `.gpu-paper/`; no CUDA is needed."""
    version = importlib.metadata.version("jax")
    wheels = [f"jax-cuda12-pjrt=={version}", f"jax-cuda12-plugin=={version}", "nvidia-cuda-nvcc-cu12"]
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(WHEELS), *wheels]
    subprocess.run(install, check=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("prepare", help="fetch the compiler")
    parts.add_parser("check", help="fail when the kernels of aligned x 40 rose")
    single = parts.add_parser("one", help="compile one program")
    single.add_argument("profile")
    single.add_argument("--models", type=int, default=NUM_MODELS)
    single.add_argument("--gpu", choices=GPUS, default="h100")
    single.add_argument("--precision", choices=FORMATS, default="float32")
    single.add_argument("--steps-per-trip", type=int, help="default: as on a GPU")
    single.add_argument("--hlo", type=Path, help="write the compiled program there")
    return parser.parse_args(arguments)


def main() -> int:
    """Do the part that the command line names; return the exit code."""
    options = parse(sys.argv[1:])
    if options.part == "prepare":
        prepare()
        return 0
    if options.part == "check":
        return check()
    if not WHEELS.is_dir():
        raise SystemExit(
            "error: gpu_day paper: needs the compiler in .gpu-paper/; got none. "
            "Run `scripts/gpu_day paper prepare`."
        )
    row = cell(options)
    print(json.dumps(row))
    loops = ", ".join(f"{trips} x {kernels:.0f}" for trips, kernels in row["loops"])
    print(f"{row['kernels']:,} kernels a step; loops, trips x kernels a trip: {loops or 'none'}")
    print(f"{row['bytes'] / 1e6:,.0f} MB; compiled in {row['compile_s']} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
