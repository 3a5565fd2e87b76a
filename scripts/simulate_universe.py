"""Simulate how long very many series would take on many workers, from measured times.

    python scripts/simulate_universe.py --run runs/frontier --parent-ms 41 --workers 2 10 100
    python scripts/simulate_universe.py --model-s 600 --parent-ms 41

The seconds that each series of a finished run took a worker are read from its `timing.json`, and drawn again
with a fixed seed for as many series as requested; `--model-s` gives one number instead. One parent hands the
series out, one by one, to workers that are free; each costs it `--parent-ms` of its own processor time, as
measured by `scripts/bench_universe.py`, and meanwhile it serves no other worker. Workers start TensorFlow
once. Network, shared disks and slow machines among many are not simulated.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections.abc import Sequence
from pathlib import Path

SEED = 16


def seconds_of(run: Path) -> list[float]:
    """Read the seconds of a worker for each series of a run; reading candles is the parent's."""
    series = json.loads((run / "timing.json").read_text())["series"]
    return [
        sum(seconds for stage, seconds in stages.items() if stage != "candles") for stages in series.values()
    ]


def simulated_s(costs_s: Sequence[float], num_workers: int, parent_s: float, start_s: float) -> float:
    """Return when the last of some series is done, in seconds.

    Args:
        costs_s: What each takes a worker, in the order in which they are handed out.
        num_workers: Workers, each of which makes one series at a time.
        parent_s: What handing out and recording one takes the parent.
        start_s: What starting a worker takes, at the same time for all.

    >>> simulated_s([1.0] * 4, num_workers=2, parent_s=0.0, start_s=3.0)
    5.0
    >>> simulated_s([1.0] * 4, num_workers=4, parent_s=1.0, start_s=0.0)
    5.0
    """
    free_s = [start_s] * num_workers
    parent_free_s = 0.0
    ended_s = 0.0
    for cost_s in costs_s:
        parent_free_s = max(parent_free_s, heapq.heappop(free_s)) + parent_s
        heapq.heappush(free_s, parent_free_s + cost_s)
        ended_s = max(ended_s, parent_free_s + cost_s)
    return ended_s


def main() -> None:
    """Print a line a number of workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    piece = parser.add_mutually_exclusive_group(required=True)
    piece.add_argument("--run", type=Path, help="a finished run")
    piece.add_argument("--model-s", type=float, help="seconds that each series takes a worker")
    parser.add_argument("--series", type=int, default=4_000)
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 10, 100])
    parser.add_argument("--parent-ms", type=float, required=True, help="of the parent's processor, a series")
    parser.add_argument("--start-s", type=float, default=10.0, help="until a worker can begin")
    options = parser.parse_args()
    measured = seconds_of(options.run) if options.run else [options.model_s]
    chance = random.Random(SEED)
    costs_s = [chance.choice(measured) for _ in range(options.series)]
    alone_s = simulated_s(costs_s, 1, 0.0, 0.0)
    for number in options.workers:
        took_s = simulated_s(costs_s, number, options.parent_ms / 1_000, options.start_s)
        print(
            f"simulated: {options.series:,} series on {number} workers: {took_s / 60:,.1f} min, "
            f"{alone_s / took_s:,.1f} x one worker that never waits"
        )


if __name__ == "__main__":
    main()
