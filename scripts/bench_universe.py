"""Measure a universe of many series: seconds, memory and files of each command, and runs that are killed.

    python scripts/bench_universe.py --series 40 200 1000
    python scripts/bench_universe.py --series 1000 --kills 5

Every series is a path of the demo market, saved as a file whose last candle has just closed and read by
`--source files`, because a simulated market cannot be published. The network is the smallest possible, so
that the figures are v8's own overhead. The Hub is the one of the tests, on loopback. Each command is a
process of its own. Processor seconds are those of all its processes, and of the parent alone; memory is the
largest resident set of the parent, and of one worker, sampled every 0.2 s.

With `--kills` a second run is killed so many times, parent and workers, at random moments. It must end with
the same weights as the first one, and with the same leaderboard except for the seconds.
"""

# ruff: noqa: E402 - drills and the Hub of the tests are next to it
from __future__ import annotations

import argparse
import csv
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY / folder) for folder in ("", "scripts", "tests/publish/hub", "tests/parts")]

import loopback
from drills.ground import kill, weights_of

from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource

NUM_BARS = 500
REPO = "someone/universe"
SAMPLE_S = 0.2
READY_S = 300.0
ORPHANS_S = 2.0
"""Workers notice within it that they are alone."""

PROFILE = """
name: tiny
description: The smallest network there is, to measure what a series costs apart from it.
newest_bars: {num_bars}
features: [open, high, low, close]
lookback_bars: 20
horizon_bars: 2
scaling: anchored
split: {{train: 0.70, validation: 0.15, test: 0.15}}
network: {{family: dense_newest, dense_units: [4], dropout: 0.0}}
tasks:
  ohlc: {{weight: 1.0, loss: mae}}
training:
  batch_size: 64
  epochs: 1
  learning_rate: 1e-3
  optimizer: adam
  weight_decay: 0.0
  schedule: constant
  warmup_epochs: 0
  clip_norm: null
  gradient_clip: global_norm
  gradient_accumulation: 1
  cpu_batch_size: null
  checkpoint_activations: false
  early_stopping_patience_epochs: 8
  reduce_lr_factor: 0.5
  reduce_lr_patience_epochs: 2
  precision: float32
calibration: none
quantiles: []
seed: 42
"""


@dataclass
class Cost:
    """What a command cost: wall and processor seconds, and the largest resident sets in bytes."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    parent_cpu_s: float = 0.0
    parent_bytes: int = 0
    worker_bytes: int = 0

    def summary(self, num_series: int) -> str:
        """Say it, with the processor seconds of a series."""
        return (
            f"{self.wall_s:8.1f} s, {self.cpu_s:8.1f} CPU s "
            f"({1_000 * self.cpu_s / num_series:6.0f} ms a series, "
            f"{1_000 * self.parent_cpu_s / num_series:6.0f} of them the parent's), "
            f"parent {self.parent_bytes / 1e6:5.0f} MB, worker {self.worker_bytes / 1e6:5.0f} MB"
        )


@dataclass
class Ground:
    """Where everything lies, and how commands are called."""

    folder: Path
    num_series: int
    workers: int
    env: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def prepare(self) -> None:
        """Write candles, universe and profile."""
        candles = self.folder / "candles"
        candles.mkdir(parents=True)
        names = [Series(f"C{number:04}USDT", "1h") for number in range(self.num_series)]
        for series in names:
            frame = DemoSource().candles(series, NUM_BARS).to_frame()
            frame.index += pd.Timestamp.now("UTC").floor("h") - frame.index[-1] - pd.Timedelta(hours=1)
            frame = frame.reset_index()
            frame.to_parquet(candles / f"{series}.parquet")
        (self.folder / "universe.yaml").write_text("series:\n" + "".join(f"- {name}\n" for name in names))
        (self.folder / "tiny.yaml").write_text(PROFILE.format(num_bars=NUM_BARS))
        caches = {
            "V8_HOME": str(self.folder / "home"),
            "HF_HOME": str(self.folder / "hf"),
            "PYTHONPATH": str(REPOSITORY),
        }
        self.env |= caches | {"TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def say(self, text: str) -> None:
        """Print a line that begins with the number of series."""
        print(f"{self.num_series:5} {text}", flush=True)

    @property
    def source(self) -> list[str]:
        """Words that name the candles."""
        return ["--source", "files", "--data-dir", str(self.folder / "candles")]

    @property
    def universe(self) -> list[str]:
        """Words that name the series."""
        return ["--universe", str(self.folder / "universe.yaml")]

    def job(self, runs: str) -> list[str]:
        """Return the words of the main job into a folder of runs."""
        words = ["run", "--profile", str(self.folder / "tiny.yaml"), *self.universe, *self.source]
        return [*words, "--runs", str(self.folder / runs), "--workers", str(self.workers), "--device", "cpu"]

    def start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a command; what it says goes to a file."""
        log = (self.folder / "said.txt").open("ab")
        command = [sys.executable, "-m", "v8", *words]
        return subprocess.Popen(command, env=self.env, stdout=log, stderr=log, start_new_session=True)

    def call(self, title: str, words: Sequence[str]) -> Cost:
        """Carry out a command and print what it cost.

        Raises:
            RuntimeError: If it fails.
        """
        process = self.start(words)
        with watched(process) as cost:
            status = process.wait()
        self.say(f"{title:<22} {cost.summary(self.num_series)}")
        if status:
            raise RuntimeError(f"{words[0]} ended with {status}; see {self.folder / 'said.txt'}")
        return cost


@contextmanager
def watched(process: subprocess.Popen[bytes]) -> Iterator[Cost]:
    """Measure a process and its children until the block ends."""
    cost = Cost()
    cpu_s_by_pid: dict[int, float] = {}
    ended = threading.Event()
    started = time.monotonic()

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            _look(process.pid, cost, cpu_s_by_pid)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield cost
    finally:
        ended.set()
        watcher.join()
        cost.wall_s = time.monotonic() - started
        cost.cpu_s = sum(cpu_s_by_pid.values())
        cost.parent_cpu_s = cpu_s_by_pid.get(process.pid, 0.0)


def _look(pid: int, cost: Cost, cpu_s_by_pid: dict[int, float]) -> None:
    """Note memory and processor time of a process and its children as they are now."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                used = process.memory_info().rss
                times = process.cpu_times()
                cpu_s_by_pid[process.pid] = times.user + times.system
                if process.pid == pid:
                    cost.parent_bytes = max(cost.parent_bytes, used)
                else:
                    cost.worker_bytes = max(cost.worker_bytes, used)


def measure(ground: Ground) -> None:
    """Call every command on a universe and print what each costs."""
    run = ground.folder / "straight" / "tiny"
    ground.call("plan (--dry-run)", [*ground.job("straight"), "--dry-run"])
    ground.call("run", ground.job("straight"))
    ground.call("run again", ground.job("straight"))
    ground.call("report", ["report", str(run)])
    tell_size(ground, run)
    with loopback.LoopbackHub() as hub:
        ground.env |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": loopback.WRITE_TOKEN}
        for title in ("publish", "publish again"):
            hub.forget()
            ground.call(title, ["publish", str(run), "--repo", REPO])
            tell_hub(ground, hub)
        hub.forget()
        ground.call("pull", ["pull", "--repo", REPO])
        tell_hub(ground, hub)
        ground.call("predict --all", ["predict", "--repo", REPO, "--all", *ground.source])
        serve(ground, ["app", "--repo", REPO, "--port", "0", *ground.source])


def serve(ground: Ground, words: Sequence[str]) -> None:
    """Serve the models and ask for the list and for one forecast."""
    log = ground.folder / "said.txt"
    begins_at = log.stat().st_size
    process = ground.start(words)
    try:
        with watched(process) as cost:
            address = _address(log, begins_at, process)
            for path in ("/", "/api/series", "/api/leaderboard", "/api/forecast/C0007USDT-1h"):
                started = time.monotonic()
                with urllib.request.urlopen(address + path, timeout=READY_S) as answer:
                    size = len(answer.read())
                ground.say(f"app {path}: {size:,} bytes, {time.monotonic() - started:.2f} s")
        ground.say(f"{'app':<22} {cost.summary(ground.num_series)}")
    finally:
        kill(process)
        process.wait()


def _address(log: Path, begins_at: int, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + READY_S
    while time.monotonic() < end and process.poll() is None:
        output = log.read_bytes()[begins_at:].decode("utf-8", "replace")
        if "http://" in output:
            return "http://" + output.split("http://")[1].split()[0].rstrip("/.")
        time.sleep(SAMPLE_S)
    raise RuntimeError("no page was served")


def tell_size(ground: Ground, run: Path) -> None:
    """Print how many files a run has, and how large what shows them is."""
    files = [path for path in run.rglob("*") if path.is_file()]
    names = ("report.html", "run.json", "leaderboard.csv", "timing.json")
    sizes = ", ".join(f"{name} {(run / name).stat().st_size:,}" for name in names)
    sections = sum(path.stat().st_size for path in run.glob("report/series/*.js"))
    total = sum(path.stat().st_size for path in files)
    ground.say(f"{len(files):,} files of {total:,} bytes; {sizes}, sections {sections:,}")


def tell_hub(ground: Ground, hub: Any) -> None:
    """Print how many commits and requests there were."""
    ground.say(f"{len(hub.commits(REPO))} commits in all, {hub.count():,} requests: {counted(hub)}")


def counted(hub: Any) -> str:
    """Count requests by route."""
    return ", ".join(f"{name} {hub.routes.count(name):,}" for name in sorted(set(hub.routes)))


def kill_and_compare(ground: Ground, num_kills: int, seed: int) -> None:
    """Kill a second run at random moments, let it end, and compare it with the first."""
    chance = random.Random(seed)
    straight = ground.folder / "straight" / "tiny"
    killed = ground.folder / "killed" / "tiny"
    for number in range(num_kills):
        victim = kill_once(ground, killed, chance)
        ground.say(f"kill {number + 1}: {victim}, after {num_models(killed)} models")
    ground.call("run after the kills", ground.job("killed"))
    for title, read in (("weights", weights_of), ("leaderboard", leaderboard_of)):
        is_same = read(straight) == read(killed)
        ground.say(f"{title} of {len(read(killed))} models {'equal' if is_same else 'DIFFER'}")
        if not is_same:
            raise SystemExit(1)


def kill_once(ground: Ground, run: Path, chance: random.Random) -> str:
    """Start the main job and kill it somewhere in the first half of what is left; say what was killed."""
    process = ground.start(ground.job("killed"))
    num_finished = num_models(run)
    aim = num_finished + chance.randrange(1, max(2, (ground.num_series - num_finished) // 2))
    while process.poll() is None and num_models(run) < aim:
        time.sleep(chance.uniform(0.05, 0.5))
    is_only_parent = chance.random() < 0.5
    process.kill() if is_only_parent else kill(process)
    process.wait()
    time.sleep(ORPHANS_S)
    return "the parent alone" if is_only_parent else "all its processes"


def num_models(run: Path) -> int:
    """Count the models of a run."""
    return sum(1 for _ in run.glob("*/model.keras"))


def leaderboard_of(run: Path) -> list[dict[str, str]]:
    """Read a leaderboard without the seconds that each series took."""
    with (run / "leaderboard.csv").open(newline="") as stream:
        return [
            {name: cell for name, cell in row.items() if name != "seconds"} for row in csv.DictReader(stream)
        ]


def main() -> None:
    """Measure universes of several sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--series", nargs="+", type=int, default=[40, 200, 1_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=0, help="kill a second run so often")
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--keep", type=Path, help="a new folder that stays; default: one that goes")
    options = parser.parse_args()
    for num_series in options.series:
        with tempfile.TemporaryDirectory(prefix="v8-universe-") as folder:
            ground = Ground((options.keep or Path(folder)) / str(num_series), num_series, options.workers)
            ground.prepare()
            measure(ground)
            if options.kills:
                kill_and_compare(ground, options.kills, options.seed)


if __name__ == "__main__":
    main()
