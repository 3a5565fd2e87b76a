"""Pass randomly changed profiles, candles, runs, ledgers, calls and command lines to v8; evaluate each.

    python tests/fuzzing [--inputs 10000] [--seed 0] [--kinds KIND ...] [--jobs 2] [--run FOLDER]
                           [--failures fuzz-failures] [--replay FILE]

An input passes when v8 accepts it or refuses it with one of our error messages: no traceback, no warning, at
most 2 s of processor time (20 s of the clock, where nothing computes), at most 600 characters without line
breaks or control characters, at most 1 GB of memory, and nothing written outside its folder. Candles
`rewritten` in another way must be the same, and refused where something is wrong with them; every line of a
table next to them is a row. What leaps or ended in `markets` is named, and each figure of their forecasts is
finite. Forecasts from `prices` of any size and tick are the same in both precisions. A ledger of which bytes
were changed is refused, or says what it said; a message that quotes a secret loses it. Child processes
carry the inputs out; one that hangs is killed. Each failing input is saved, and `--replay` tries it again.
Saved runs are made from `--run`, a finished run folder; without it, one is trained first. Exit code 1 on
failures.
"""

# ruff: noqa: E402 - the package is next to this folder
from __future__ import annotations

import argparse
import os
import platform
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from json import loads
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# Started as a folder, Python puts that folder where the package's own should stand.
sys.path[:1] = [str(REPOSITORY), str(REPOSITORY / "tests/parts"), str(REPOSITORY / "tests")]

from fuzzing.cases import SERIES
from fuzzing.targets import KINDS, Verdict, serve
from v8.data.market.sources import open_source

HANG_S = 20.0
START_S = 300.0


def main() -> int:
    """Judge all inputs in several processes, or be one of these; return the exit code."""
    options = parse(sys.argv[1:])
    if options.child:
        serve(options.child, options.seed, options.run)
        return 0
    with tempfile.TemporaryDirectory(prefix="v8-fuzz-", ignore_cleanup_errors=True) as folder:
        options.run = (options.run or trained(Path(folder))).resolve()
        requests = (
            [str(options.replay.resolve())] if options.replay else list(inputs(options.inputs, options.kinds))
        )
        started = time.monotonic()
        with ThreadPoolExecutor(options.jobs) as pool:
            parts = [requests[job :: options.jobs] for job in range(options.jobs)]
            verdicts = [
                verdict
                for part in pool.map(lambda part: evaluated(part, options, Path(folder)), parts)
                for verdict in part
            ]
    return print_verdicts(verdicts, time.monotonic() - started)


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--jobs", type=int, default=2, help="processes at the same time")
    parser.add_argument("--run", type=Path, help="a finished run folder of BTCUSDT-15m")
    parser.add_argument(
        "--failures", type=Path, default=Path("fuzz-failures"), help="where failing inputs go"
    )
    parser.add_argument("--replay", type=Path, help="a saved input")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def trained(folder: Path) -> Path:
    """Train a run whose files are then changed, on candles of the demo market as a user's files."""
    candles = folder / "candles"
    candles.mkdir()
    open_source("demo").candles(SERIES, 800).to_frame().to_csv(candles / f"{SERIES}.csv")
    words = ["-m", "v8", "run", "--smoke", "--profile", "frontier", "--bars", "800", "--series", str(SERIES)]
    words += ["--source", "files", "--data-dir", str(candles), "--runs", str(folder / "runs")]
    subprocess.run([sys.executable, *words], check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    return folder / "runs" / "frontier-smoke"


def inputs(num_inputs: int, kinds: Sequence[str]) -> Iterator[str]:
    """Yield the name of each input to make, by kind in their shares."""
    total = sum(KINDS[kind].share for kind in kinds)
    for kind in kinds:
        yield from (f"{kind} {number}" for number in range(round(num_inputs * KINDS[kind].share / total)))


def evaluated(requests: Sequence[str], options: argparse.Namespace, folder: Path) -> list[Verdict]:
    """Have a child evaluate inputs one after the other; a new one takes over where one hangs or dies."""
    waiting = list(reversed(requests))
    verdicts = []
    while waiting:
        with Child(options, Path(tempfile.mkdtemp(dir=folder))) as child:
            while waiting and child.is_alive:
                request = waiting.pop()
                verdict = child.evaluate(request)
                verdicts.append(verdict)
                if verdict.outcome == "failed":
                    saved = options.failures / f"{request.replace(' ', f'-{options.seed}-')}.json"
                    print(f"FAIL {request}: {verdict.why}\n     {saved}", flush=True)
                    if not options.replay and (child.folder / "now.json").exists():
                        options.failures.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(child.folder / "now.json", saved)
    return verdicts


class Child:
    """A process that evaluates inputs in a folder of its own; ended with the block."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.folder = folder
        self.is_alive = True
        self._limit_s = START_S
        words = [sys.executable, __file__, "--child", folder, "--seed", options.seed, "--run", options.run]
        self._process = subprocess.Popen(
            list(map(str, words)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def evaluate(self, request: str) -> Verdict:
        """Have one input evaluated; afterwards `is_alive` says whether there can be another."""
        assert self._process.stdin
        self._process.stdin.write(f"{request}\n".encode())
        line = self._answer(self._limit_s) and self._answer(HANG_S)
        self._limit_s = HANG_S + START_S  # making an input may take its time
        if line:
            return Verdict(**loads(line))
        self.is_alive = False
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        last = (self.folder / "said.txt").read_text("utf-8", "replace").splitlines()[-1:]
        why = "hangs" if self._process.poll() is None else f"its process ended, saying {last}"
        return Verdict(Path(request.split(" ", maxsplit=1)[0]).stem, "failed", why)

    def _answer(self, limit_s: float) -> bytes:
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], limit_s)
        return self._process.stdout.readline() if ready else b""


def print_verdicts(verdicts: Sequence[Verdict], seconds: float) -> int:
    """Print the table and return how the process ends."""
    command = " ".join(sys.argv)
    machine = f"{os.cpu_count()} cores {platform.machine()}"
    print(f"\nCommand: `python {command}`; {machine}; commit {commit()}; {seconds:,.0f} s.\n")
    print("| kind | inputs | refused | accepted | failures |\n|---|---|---|---|---|")
    for kind in [*dict.fromkeys(verdict.kind for verdict in verdicts), "all"]:
        counts = Counter(verdict.outcome for verdict in verdicts if kind in (verdict.kind, "all"))
        row = [counts.total(), counts["refused"], counts["accepted"], counts["failed"]]
        print(f"| {kind} | {' | '.join(f'{number:,}' for number in row)} |")
    return int(any(verdict.outcome == "failed" for verdict in verdicts))


def commit() -> str:
    words = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
