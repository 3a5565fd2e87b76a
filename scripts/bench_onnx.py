#!/usr/bin/env python3
"""Compare model.onnx with model.keras: their forecasts, and what forecasts cost with either.

    python scripts/bench_onnx.py parity RUN [RUN ...] [--data-dir DIR]
    python scripts/bench_onnx.py cost RUN [--repeats 3] [--models 40] [--seconds 10]

`parity` forecasts every window of the candles that a model was made from with both files. Its table has the
largest relative difference of a number, by profile and output. The runs need ONNX files: `run --onnx`, or
`export RUN --models onnx`; the source of candles is the run's.

`cost` measures processes of `predict` and `app`, with Keras and with ONNX in turns, on candles of the demo
market: seconds by the clock and of the processor, and the largest resident memory. The best turn counts,
because other programs may load the machine. For many models the run's first one is copied under other names.
"""

# ruff: noqa: E402 - the package is next to this folder
from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import onnx
import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY)]

from v8.api.export import opened_models
from v8.base.hardware import describe_machine
from v8.base.storage import digest_file, passing_folder, write_json
from v8.base.wording import Table
from v8.data.features.table import compute_table
from v8.data.market.candles import Candles
from v8.data.market.sources.source import open_source
from v8.data.windows.dataset import table_columns, window_anchors
from v8.data.windows.span import Span
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import MODEL_FILE, ONNX_FILE, read_metadata
from v8.forecaster.onnx_contents import SERIES_KEY
from v8.forecaster.shared_models import SharedModels
from v8.model.networks.published import ABOUT_MEMBER, forecast_windows

RUNTIMES = ("keras", "onnx")
OUTPUTS = ("ohlc", "bands", "volatility")
REQUESTS_A_SECOND = 50
MIB = 1 << 20


def main() -> None:
    """Measure what the first argument names, and print a table in Markdown."""
    options = parsed()
    if options.kind == "parity":
        rows = [parity_row(run, options.data_dir) for run in options.runs]
        columns = ("profile", "windows", *OUTPUTS, "quantiles", "kB ONNX", "kB Keras")
        print(Table(columns, rows).markdown())
    else:
        print(json.dumps(describe_machine()))
        print(Table(("", *RUNTIMES), cost_rows(options)).markdown())


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    parity = kinds.add_parser("parity", help="largest relative differences of forecasts")
    parity.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parity.add_argument("--data-dir", type=Path, help="folder of candles, for runs from files")
    cost = kinds.add_parser("cost", help="seconds and memory of predict and app")
    cost.add_argument("run", type=Path, metavar="RUN")
    cost.add_argument("--repeats", type=int, default=3, help="turns of which the best counts")
    cost.add_argument("--models", type=int, default=40, help="models of the call for many")
    cost.add_argument("--seconds", type=float, default=10.0, help="how long the page is asked")
    return parser.parse_args()


def parity_row(run: Path, data_dir: Path | None) -> list[str]:
    """Return the largest differences of a run's models, by output."""
    largest: dict[str, float] = {}
    num_windows = 0
    sizes = [0, 0]
    name = ""
    for _, model, candles in opened_models(run, lambda source: open_source(source, data_dir=data_dir)):
        assert model.folder is not None
        name = model.about.profile.name
        windows_NTF = all_windows(model, candles)
        num_windows += len(windows_NTF)
        converted = Forecaster.load(model.folder, models=SharedModels("onnx"))
        forecasts = forecast_windows(converted.model, windows_NTF)
        for output, values in forecast_windows(model.model, windows_NTF).items():
            kind = "quantiles" if output not in OUTPUTS else output
            difference = float((np.abs(forecasts[output] - values) / np.abs(values)).max())
            largest[kind] = max(largest.get(kind, 0.0), difference)
        sizes[0] = (model.folder / ONNX_FILE).stat().st_size
        sizes[1] = (model.folder / MODEL_FILE).stat().st_size
    differences = [f"{largest[kind]:.1e}" if kind in largest else "" for kind in (*OUTPUTS, "quantiles")]
    return [f"`{name}`", f"{num_windows:,}", *differences, *(f"{size // 1_000:,}" for size in sizes)]


def all_windows(model: Forecaster, candles: Candles) -> Any:
    """Return the raw windows of all spans, (N, T, F)."""
    profile = model.about.trained_profile
    table = compute_table(candles, table_columns(profile))
    span = (0, len(table))
    anchors = window_anchors(table.segment, span, profile.lookback_bars, profile.horizon_bars)
    return Span(table, profile, anchors).raw_windows()


def cost_rows(options: argparse.Namespace) -> list[list[str]]:
    """Return the rows of the table of costs."""
    with passing_folder("v8-bench-onnx") as folder:
        many = copied(options.run, folder / "many", options.models)
        series = next(iter(sorted(file.parent.name for file in many.glob("*/metadata.json"))))
        rows = []
        for label, words in {
            "`predict` of 1 series": [str(many), "--series", series],
            f"`predict` of {options.models} series": [str(many), "--all"],
        }.items():
            turns: dict[str, list[dict[str, float]]] = {runtime: [] for runtime in RUNTIMES}
            for _ in range(options.repeats):
                for runtime in RUNTIMES:
                    turns[runtime].append(predicted([*words, "--runtime", runtime]))
            for unit in ("s", "s of the processor", "MiB"):
                best = [min(turn[unit] for turn in turns[runtime]) for runtime in RUNTIMES]
                rows.append([f"{label}, {unit}", *(f"{value:.3g}" for value in best)])
        pages = [served(many, series, runtime, options.seconds) for runtime in RUNTIMES]
    for unit in pages[0]:
        rows.append([f"`app` of {options.models} series, {unit}", *(f"{page[unit]:.3g}" for page in pages)])
    return rows


def predicted(words: list[str]) -> dict[str, float]:
    """Run `predict` in a process of its own, and return its costs."""
    command = [sys.executable, "-m", "v8", "predict", *words, "--source", "demo", "--format", "json"]
    started = time.perf_counter()
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return {
        "s": time.perf_counter() - started,
        "s of the processor": usage.ru_utime + usage.ru_stime,
        "MiB": usage.ru_maxrss / 1_024,
    }


def served(run: Path, series: str, runtime: str, seconds: float) -> dict[str, float]:
    """Serve the page of a run, ask for every series, then at `REQUESTS_A_SECOND`; return memory and waits."""
    words = ["app", str(run), "--source", "demo", "--port", "0", "--runtime", runtime]
    command = [sys.executable, "-u", "-m", "v8", *words]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            matches = (re.search(r"(http://\S+)/ ", line) for line in process.stderr)
            address = urlsplit(next(match[1] for match in matches if match)).netloc
            memory = psutil.Process(process.pid).memory_info
            at_rest = memory().rss
            waits_s = list(answers(address, [f"/api/forecast/{series}"], seconds))
            under_load = memory().rss
            names = sorted(file.parent.name for file in run.glob("*/metadata.json"))
            for _ in answers(address, [f"/api/forecast/{name}" for name in names], 0.0):
                pass
            with_all = memory().rss
        finally:
            process.terminate()
            process.communicate()
    return {
        "MiB at rest": at_rest / MIB,
        f"MiB under {REQUESTS_A_SECOND} requests/s": under_load / MIB,
        "MiB after a forecast of each": with_all / MIB,
        "ms of an answer, median": 1_000 * statistics.median(waits_s),
    }


def answers(address: str, paths: list[str], seconds: float) -> Iterator[float]:
    """Ask for paths once each, or the same ones for some seconds; yield the seconds of each answer."""
    connection = http.client.HTTPConnection(address, timeout=120)
    start = time.perf_counter()
    number = 0
    while number < len(paths) or time.perf_counter() - start < seconds:
        asked = time.perf_counter()
        connection.request("GET", paths[number % len(paths)])
        response = connection.getresponse()
        response.read()
        if response.status != http.client.OK:
            raise SystemExit(f"{paths[number % len(paths)]}: {response.status}")
        number += 1
        yield time.perf_counter() - asked
        if seconds:
            time.sleep(max(0.0, start + number / REQUESTS_A_SECOND - time.perf_counter()))
    connection.close()


def copied(run: Path, target: Path, num_models: int) -> Path:
    """Copy the first model of a run so many times, each as that of another series; return the folder."""
    first = next(iter(sorted(run.glob("*/metadata.json")))).parent
    _, _, timeframe = first.name.rpartition("-")
    for number in range(num_models):
        name = f"C{number}USDT-{timeframe}"
        folder = target / name
        shutil.copytree(first, folder)
        rename(folder, name)
    return target


def rename(folder: Path, series: str) -> None:
    """Let the files of a model name another series."""
    with zipfile.ZipFile(folder / MODEL_FILE) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[ABOUT_MEMBER] = json.dumps({**json.loads(members[ABOUT_MEMBER]), "series": series}).encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, member in members.items():
            archive.writestr(zipfile.ZipInfo(name), member)
    (folder / MODEL_FILE).write_bytes(content.getvalue())
    model = onnx.load(folder / ONNX_FILE)
    for entry in model.metadata_props:
        if entry.key == SERIES_KEY:
            entry.value = series
    (folder / ONNX_FILE).write_bytes(model.SerializeToString())
    digests = {
        "model_sha256": digest_file(folder / MODEL_FILE),
        "onnx_sha256": digest_file(folder / ONNX_FILE),
    }
    write_json(folder / "metadata.json", {**read_metadata(folder).content, "series": series, **digests})


if __name__ == "__main__":
    main()
