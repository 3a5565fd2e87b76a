#!/usr/bin/env python
"""Time `predict --all` of a run from a warm store, the exchange on loopback, and count its requests.

    python scripts/bench_predict.py RUN [--repeats 3] [--json PATH]

The exchange of the tests (`tests/parts/exchange_api.py`) holds candles of every series of the run: those of
the demo market, moved to its hours. One call from an empty store comes first and is not counted; then each
call is a process of its own, a day later by the exchange's clock, as a user's would be. In the same turns the
start of TensorFlow alone. The best of the repeats counts, because other programs may load the machine; then
seconds of processor time say more than those of a clock. A run of the demo market is copied and marked as
real, which nothing but this script does.
"""

# ruff: noqa: E402 - the package is next to this folder
from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests" / "parts"), str(REPOSITORY / "scripts")]

from bench_features import machine
from exchange_api import ExchangeApi

from v8.data.market.series import Series
from v8.data.market.sources.source import open_source
from v8.publish.hub.opening import open_place

DAY_S = 86_400
MOST_REQUESTS = 41
MOST_S = 15.0
"""What `predict --all` of 40 series may cost (issue 13)."""

NUM_CANDLES = 2_000
DECIMALS = 10
"""The exchange writes no more."""

START = "import v8.runs.engines as d; d.place('auto', '1', '1'); import keras; keras.ops.ones(1)"


def main() -> int:
    """Measure, print the figures and write the JSON; return the exit code."""
    options = parse(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        run = real_copy(options.run, Path(folder) / "run")
        result = {"command": " ".join(["python", *sys.argv]), "machine": machine()}
        result |= timed(run, Path(folder) / "home", options.repeats)
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--repeats", type=int, default=3, help="turns of which the best counts")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    return parser.parse_args(arguments)


def real_copy(run: Path, copy: Path) -> Path:
    """Copy a run with models that say they are of real candles."""
    shutil.copytree(run, copy)
    for file in copy.glob("*/metadata.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"is_demo_market": False}))
    return copy


def timed(run: Path, home: Path, repeats: int) -> dict[str, Any]:
    """Forecast the series of a run several times, each a day later; return the figures of every turn."""
    names = open_place(run).series
    with ExchangeApi() as exchange:
        hold_candles(exchange, names, num_days=repeats + 2)
        address = {"V8_REST_URL": exchange.url, "V8_VISION_URL": exchange.url, "NO_PROXY": "127.0.0.1"}
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "V8_HOME": str(home), **address}
        words = ["-m", "v8", "predict", str(run), "--all", "--format", "json"]
        measured(words, env)
        turns = [turn(exchange, words, env, len(names)) for _ in range(repeats)]
    best = {name: min(figures[name] for figures in turns) for name in turns[0]}
    most = max(figures["requests"] for figures in turns)
    met = {"requests": most <= MOST_REQUESTS, "seconds": best["predict"] <= MOST_S}
    return {"series": len(names), "turns": turns, "best": best, "met": met}


def turn(exchange: ExchangeApi, words: list[str], env: dict[str, str], num_series: int) -> dict[str, float]:
    """Let a day pass and forecast all series; then start TensorFlow alone."""
    exchange.now_s += DAY_S
    exchange.requests.clear()
    predicted = measured(words, env)
    started = measured(["-c", START], env)
    assert predicted["forecasts"] == num_series
    return {
        "requests": len(exchange.requests),
        "predict": predicted["seconds"],
        "start": started["seconds"],
        "predict_processor": predicted["processor_s"],
        "start_processor": started["processor_s"],
    }


def hold_candles(exchange: ExchangeApi, names: tuple[str, ...], num_days: int) -> None:
    """Hold candles of the demo market that end after some days."""
    demo = open_source("demo")
    for name in names:
        series = Series.parse(name)
        candles = demo.candles(series, NUM_CANDLES)
        frame = candles.to_frame().reset_index(drop=True).round(DECIMALS)
        last_s = (int(exchange.now_s) + num_days * DAY_S) // series.bar_s * series.bar_s
        opens_s = candles.open_time_s - candles.open_time_s[-1] + last_s
        exchange.put(name, frame.assign(open_time=opens_s * 1_000))


def measured(words: list[str], env: dict[str, str]) -> dict[str, float]:
    """Run Python; return how many forecasts it printed, and seconds by the clock and of the processor."""
    start = time.perf_counter()
    before = os.times()
    completed = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    after = os.times()
    if completed.returncode:
        raise SystemExit(completed.stderr)
    user_s = after.children_user - before.children_user
    system_s = after.children_system - before.children_system
    num_forecasts = len(json.loads(completed.stdout)) if completed.stdout else 0
    return {"forecasts": num_forecasts, "seconds": seconds, "processor_s": user_s + system_s}


if __name__ == "__main__":
    raise SystemExit(main())
