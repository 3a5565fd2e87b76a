"""Expose the command line to real faults and kills, and print the outcome of each.

    python tests/drills [--only KIND] [--long | --small | --full] [--seed 0] [--archive DIR] [--markdown]

Kinds: kills (SIGKILL at random times and at each write), interrupts (Ctrl-C once and twice), archive (a
candle archive of which one month is faulty), api (an exchange with a faulty API), hub (publishing and
pulling), disk (full, read-only and damaged folders), ledger (forecasts at each close), updates (kills at
each write of an update), search (a damaged record of trials, folders of odd names), server (`app` and
connections that say nothing). Everything is loopback, real processes and real disks below the folder for
temporary files. A fault that this machine does not allow, such as mounting a disk without being root, says
so. Exit code 1 when anything was lost, a failure was silent, a process hung or printed a traceback.
"""

# ruff: noqa: E402 - the package is above this folder
from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# Started as a folder, Python puts that folder where the package's own should stand.
sys.path[:1] = [str(folder) for folder in (TESTS.parent, TESTS, TESTS / "parts", TESTS / "publish" / "hub")]

from drills import archive, disk, exchange, hub, interrupts, kills, ledger, search, server, updates
from drills.ground import DRILLS, REPOSITORY, Drill, Ground, Outcome, carry_out

KINDS = tuple(
    module.KIND
    for module in (kills, interrupts, archive, exchange, hub, disk, ledger, updates, search, server)
)
SIZES = ("small", "usual", "long")
FULL = "full"
"""Drills of this size are done on request and alone: each trains a whole network several times."""


def main() -> int:
    """Carry out the chosen drills and print their outcomes; the exit code is 1 if one failed."""
    options = parse(sys.argv[1:])
    # A shell makes what it starts in the background deaf to Ctrl-C, and that goes on to its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [
        drill
        for drill in drills_of(options.size)
        if options.only in (None, drill.kind) and (options.fault or "") in drill.fault
    ]
    with tempfile.TemporaryDirectory(prefix="v8-drill-", ignore_cleanup_errors=True) as folder:
        ground = Ground(Path(folder), options.seed, options.size, options.archive)
        outcomes = list(printed(carried_out(chosen, ground, options.jobs)))
    if options.markdown:
        print_markdown(outcomes)
    num_bad = sum(not outcome.is_good for outcome in outcomes)
    print(f"\n{len(outcomes)} drills, {num_bad} with something lost, silent, hung or a traceback.")
    return int(num_bad > 0)


def drills_of(size: str) -> list[Drill]:
    """Return the drills of a size, and of the smaller ones; those of full size stand alone."""
    if size == FULL:
        return [drill for drill in DRILLS if drill.size == FULL]
    sizes = SIZES[: SIZES.index(size) + 1]
    return [drill for drill in DRILLS if drill.size in sizes]


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=KINDS, help="one kind")
    parser.add_argument("--fault", help="only faults whose words hold this text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="drills at the same time")
    parser.add_argument("--archive", type=Path, help="folder of an archive of real candles, for the kills")
    parser.set_defaults(size="usual")
    for size, help_text in {
        "long": "every fault, and 20 random kills of each profile",
        "small": "a few of each kind, for the tests",
        FULL: "only kills of the whole `aligned` and `frontier`: 8,000 candles, compared byte for byte",
    }.items():
        parser.add_argument(f"--{size}", dest="size", action="store_const", const=size, help=help_text)
    parser.add_argument("--markdown", action="store_true", help="end with the table for the README")
    return parser.parse_args(words)


def carried_out(chosen: Sequence[Drill], ground: Ground, num_jobs: int) -> Iterator[Outcome]:
    """Yield the outcome of each drill, some of them at the same time."""
    with ThreadPoolExecutor(num_jobs) as pool:
        yield from pool.map(lambda drill: carry_out(drill, ground), chosen)


def printed(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    for outcome in outcomes:
        mark = "ok  " if outcome.is_good else "FAIL"
        drill = outcome.drill
        print(f"{mark} {drill.kind:10} {drill.fault}: {outcome.message}. {outcome.seconds:.0f} s", flush=True)
        for trouble in (*(f"LOST {what}" for what in outcome.lost), *outcome.troubles):
            print(f"     {trouble}", flush=True)
        yield outcome


def print_markdown(outcomes: Sequence[Outcome]) -> None:
    """Print one line per kind and outcome, with all its faults."""
    print(f"\nCommand: `python {' '.join(sys.argv)}`; {machine()}; commit {commit()}.\n")
    print("| | fault | outcome | lost |\n|---|---|---|---|")

    def shared(outcome: Outcome) -> tuple[int, str, str]:
        return (
            KINDS.index(outcome.drill.kind),
            outcome.message,
            ", ".join((*outcome.lost, *outcome.troubles)) or "nothing",
        )

    for (kind, message, lost), group in groupby(sorted(outcomes, key=shared), key=shared):
        faults = [outcome.drill.fault for outcome in group]
        print(f"| {KINDS[kind]} ({len(faults)}) | {'; '.join(faults)} | {message} | {lost} |")


def machine() -> str:
    system = f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores {system}"


def commit() -> str:
    words = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
