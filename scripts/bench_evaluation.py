#!/usr/bin/env python
"""Measure the processor time of evaluating a series, and compare it with another checkout of v8.

    python scripts/bench_evaluation.py [--before CHECKOUT] [--profile frontier] [--series ...] [--rounds 3]

Measured is what follows the training of a network: its calibration on the validation span, its forecasts of
the test span, their evaluation together with every baseline that needs no optional package, the evaluation of
its quantiles, and separately the time that each baseline takes to be fitted and to forecast. The network is
untrained, which takes the same time. Checkouts take turns, each in a process of its own with one thread; the
first series of a process, which also traces the graph, does not count. Processor time is user and system time
of the process.

If two checkouts are compared, so are their results: the largest relative differences of a mean absolute error
and of a CRPS, of the model and of the baselines.
"""

# ruff: noqa: E402 - the package is next to this folder, or in another checkout
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, os.environ.get("MEASURED_CHECKOUT", str(REPOSITORY)))

from v8.base.hardware import describe_machine
from v8.data.features import compute_table
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.data.span import Span
from v8.data.windows import prepare_series, table_columns
from v8.model.baselines.baselines import BASELINES
from v8.model.evaluation.evaluation import evaluate_quantiles, evaluate_test_span
from v8.model.training.trainer import FleetMember, Trainer
from v8.profile.profile import load_profile
from v8.runs.stages import calibrate

SERIES = ("BTCUSDT-15m", "ETHUSDT-15m", "SOLUSDT-1h", "DOGEUSDT-1h")
PARTS = ("calibrate", "forecast", "evaluate", "quantiles")
OPTIONAL = ("garch", "lightgbm")


def main() -> int:
    """Measure both checkouts in turns, or one of them in this process; return the exit code."""
    options = parse(sys.argv[1:])
    if options.one:
        sys.stdout.write(json.dumps(measure(options)) + "\n")
        return 0
    checkouts = {"after": REPOSITORY} | ({"before": options.before.resolve()} if options.before else {})
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    for _ in range(options.rounds):
        for name, checkout in sorted(checkouts.items(), reverse=True):
            turns[name].append(turn(checkout))
    show(turns, checkouts)
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout to compare with")
    parser.add_argument("--profile", default="frontier", help="whose networks, formulas and quantiles")
    parser.add_argument("--source", default="vision", choices=("vision", "demo"), help="of the candles")
    parser.add_argument("--series", nargs="+", default=SERIES, metavar="NAME", help="the first one warms up")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each checkout")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def turn(checkout: Path) -> dict[str, Any]:
    """Measure a checkout in a process of its own, with this interpreter and one thread."""
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), "1")
    env = os.environ | alone | {"MEASURED_CHECKOUT": str(checkout), "TF_CPP_MIN_LOG_LEVEL": "2"}
    env |= {"TF_NUM_INTEROP_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, __file__, "--one", *sys.argv[1:]]
    completed = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return figures


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every series but the first: seconds by part, and what came of it."""
    profile = load_profile(options.profile)
    source = open_source(options.source)
    trainer = Trainer(profile, num_micro_batches=1)
    measured = {}
    for name in options.series:
        candles = source.candles(Series.parse(name), profile.newest_bars)
        data = prepare_series(compute_table(candles, table_columns(profile)), profile)
        state = trainer.first_state([FleetMember(data, profile.seed)])
        weights = trainer.network_weights(state.on_host().take(0).weights)
        measured[name] = evaluated(trainer, data, weights)
    del measured[options.series[0]]
    return measured


def evaluated(trainer: Any, data: Any, weights: Any) -> dict[str, Any]:
    """Judge one series as a run does; return the processor seconds of each part, and the errors."""
    seconds: dict[str, float] = {}
    test = data.spans["test"]
    optional = [BASELINES[name] for name in OPTIONAL if name in BASELINES]

    @contextmanager
    def clock(part: str) -> Iterator[None]:
        started = time.process_time()
        yield
        seconds[part] = time.process_time() - started

    for baseline in optional:
        BASELINES.pop(baseline.name)
    model = trainer.serving_model(data, weights)
    with clock("calibrate"):
        calibrate(model, data)
    with clock("forecast"):
        if hasattr(model, "forecast_span"):
            forecasts = model.forecast_span(test)
        else:  # of a checkout that has the published graph forecast all windows
            forecasts = model.forecast_all(test.raw_windows())
    with clock("evaluate"):
        evaluation, _ = evaluate_test_span(data, forecasts.points)
    with clock("quantiles"):
        quantiles = evaluate_quantiles(data, forecasts.quantiles) if forecasts.quantiles else None
    for baseline in optional:
        BASELINES.register(baseline)
    for name, baseline in BASELINES.items():
        if baseline.is_installed():
            # Of spans that know nothing yet: what baselines share is counted for each of them.
            train, again = (
                Span(data.table, data.profile, data.anchors[span_name]) for span_name in ("train", "test")
            )
            with clock(name):
                baseline.fit(train, data.scaling)(again)
    errors = {
        f"{task}, {name}": evaluation.error(task, name).overall
        for task in evaluation.tasks
        for name in evaluation.tasks[task].errors
    }
    crps = {
        f"{task}, {name}, CRPS": each.crps
        for task, quality in (quantiles.tasks if quantiles else {}).items()
        for name, each in quality.errors.items()
    }
    return {"seconds": seconds, "figures": errors | crps}


def show(turns: Mapping[str, list[dict[str, Any]]], checkouts: Mapping[str, Path]) -> None:
    """Print the seconds of each part in both checkouts, and the largest difference of their figures."""
    sys.stdout.write(f"{machine()}\n")
    for name, checkout in checkouts.items():
        sys.stdout.write(f"{name}: commit {commit(checkout)}\n")
    series = [*turns["after"][0]]
    parts = [*turns["after"][0][series[0]]["seconds"]]
    medians = {
        name: {
            part: statistics.median(
                evaluated_series["seconds"][part]
                for turn in turns_of_name
                for evaluated_series in turn.values()
            )
            for part in parts
        }
        for name, turns_of_name in turns.items()
    }
    for seconds in medians.values():
        seconds["a series"] = sum(seconds[part] for part in PARTS)
    sys.stdout.write(
        f"processor seconds a series, median over {len(series)} series, {len(turns['after'])} rounds\n"
    )
    for part in [*PARTS, "a series", *parts[len(PARTS) :]]:
        cells = "".join(f"  {name} {medians[name][part]:.3f}" for name in sorted(medians, reverse=True))
        ratio = (
            f"  {medians['before'][part] / medians['after'][part]:.1f} times" if "before" in medians else ""
        )
        sys.stdout.write(f"{part:>28}{cells}{ratio}\n")
    if "before" in turns:
        for kind in ("model", "model, CRPS", ""):
            share, place = differ(turns, series, kind)
            sys.stdout.write(f"largest difference, {kind or 'any forecaster'}: {share:.1e} of {place}\n")


def differ(turns: Mapping[str, list[dict[str, Any]]], series: list[str], kind: str) -> tuple[float, str]:
    """Find the figure that differs most between two checkouts, as a share of itself."""
    before = turns["before"][0]
    after = turns["after"][0]
    return max(
        (abs(after[name]["figures"][key] / value - 1.0), f"{name}, {key}")
        for name in series
        for key, value in before[name]["figures"].items()
        if key.endswith(kind) and value
    )


def commit(checkout: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


def machine() -> str:
    """Return a line that describes the machine."""
    described = describe_machine()
    return f"machine: {described['cpu']}, {described['num_cores']} cores"


if __name__ == "__main__":
    sys.exit(main())
