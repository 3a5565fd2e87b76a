#!/usr/bin/env python
"""Time the indicators against `ta` and a Python loop, and a feature store that is cold, warm or almost warm.

    python scripts/bench_features.py [--series 40] [--rows 10000] [--repeats 5] [--json PATH]

What is timed:

- Indicators: the 11 columns of one series that the lineage used, in float64, by our formulas, by `ta` (with
  pandas for volume_norm, which it lacks) and by a loop over the rows in plain Python. The three take turns,
  and the best of the repeats counts, because other programs may load the machine.
- Store: `FeatureStore.table` for every series, candles already in memory, all 15 columns of the profile
  `stable`. Cold: an empty folder (compute and write durably). Folder: a new store object over the full
  folder (map, check every byte, assemble; the operating system has the files in memory), three times,
  because with few series the first calls are mostly the processor's own caches filling. They take turns too,
  the best of the repeats counts, and their tables must be the same to the last bit. The digest of the candles
  is needed by both and by the run folder, and is cached with the candles, so it is timed on a line of its own
  and counted in neither.
- Append: one series of 35,096 candles, per shipped profile all its columns. Cold: an empty folder, as above.
  Append: a new store object over a folder that has the columns of the first 35,000 (map, check every byte,
  compare the candles, compute 96 rows, assemble). One cold turn and three appending ones take turns, the best
  of the repeats counts, and their tables must be the same to the last bit. Select, shown next to it: one
  array of all columns, which is what training and evaluating ask a table for, of either table.
"""

# ruff: noqa: E402 - the package is next to this folder
from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
from ta.momentum import ROCIndicator, RSIIndicator
from ta.trend import MACD
from ta.volatility import AverageTrueRange, BollingerBands

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from v8.data.features.store import FeatureStore
from v8.data.features.table import compute_table
from v8.data.market.candles import Candles
from v8.data.market.series import load_universe
from v8.data.market.sources.source import open_source
from v8.profile.columns import OHLCV
from v8.profile.indicators import computed_rows
from v8.profile.profile import load_profile, profile_names

INDICATORS: tuple[str, ...] = (
    *("rsi", "macd", "macd_signal", "roc", "bb_upper", "bb_lower", "bb_width", "bb_position"),
    *("volatility", "atr", "volume_norm"),
)
"""Columns that `ta` has too; those of later profiles exist nowhere else."""

WARM_AT_LEAST = 20.0
"""How much faster a warm store must be than a cold one (issue 2)."""

APPEND_AT_MOST = 0.05
"""Share of cold that appending may cost (issue 13)."""

APPENDED = 96
APPENDED_TO = 35_000
"""Candles of a day of quarter hours, and of a year."""

COLD_COMPUTE_AT_MOST_S = 3.0
"""Seconds of computing for 40 series of 10,000 rows (issue 2)."""


def main() -> int:
    """Measure, print the figures and write the JSON; the exit code is 1 if a goal is not met."""
    options = parse(sys.argv[1:])
    source = open_source("demo")
    candles = [source.candles(series, options.rows) for series in load_universe()[: options.series]]
    result = {
        "command": " ".join(["python", *sys.argv]),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "indicators": time_indicators(candles[0], options.repeats),
        "store": time_store(candles, options.repeats),
        "append": {name: time_append(name, options.repeats) for name in profile_names()},
    }
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--series", type=int, default=40, help="series in the store, at most 40")
    parser.add_argument("--rows", type=int, default=10_000, help="candles of each series")
    parser.add_argument("--repeats", type=int, default=5, help="turns of which the best counts")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    return parser.parse_args(arguments)


def time_indicators(candles: Candles, repeats: int) -> dict[str, Any]:
    """Compare v8's indicators with those of `ta` and with a plain loop: rows a second."""
    arrays = {name: np.ascontiguousarray(candles.column(name)) for name in OHLCV}
    frame = pd.DataFrame(arrays)
    lists = {name: values.tolist() for name, values in arrays.items()}
    turns: dict[str, Callable[[], Any]] = {
        "v8": lambda: computed_rows(INDICATORS, arrays),
        "ta": lambda: with_ta(frame),
        "loop": lambda: with_loop(lists),
    }
    check_agreement({name: turn() for name, turn in turns.items()})
    seconds = best_of(turns, repeats)
    return {
        "rows": len(candles),
        "columns": len(INDICATORS),
        "seconds": seconds,
        "rows_per_s": {name: len(candles) / best for name, best in seconds.items()},
        "times_faster_than": {name: seconds[name] / seconds["v8"] for name in ("ta", "loop")},
    }


def time_store(candles: list[Candles], repeats: int) -> dict[str, Any]:
    """Measure the feature store cold and warm over many series, the best of some rounds."""
    columns = load_profile("stable").features
    start = time.perf_counter()
    for one_series in candles:
        _ = one_series.digest
    digest_s = time.perf_counter() - start
    rounds = [time_store_once(candles, columns) for _ in range(repeats)]
    best = {name: min(one_series[name] for one_series in rounds) for name in rounds[0]}
    return {
        "series": len(candles),
        "rows": len(candles[0]),
        "columns": len(columns),
        "digest_s": digest_s,
        "seconds": best,
        "cold_times": {name: best["cold"] / best[name] for name in ("folder",)},
        "wanted": {"warm_at_least": WARM_AT_LEAST, "compute_at_most_s": COLD_COMPUTE_AT_MOST_S},
    }


def time_store_once(candles: list[Candles], columns: tuple[str, ...]) -> dict[str, float]:
    """Return the seconds of one round: computed, stored, read from the folder, read from memory."""
    with tempfile.TemporaryDirectory() as folder:
        cold, *others, warm = [FeatureStore(Path(folder)) for _ in range(4)]
        turn = {
            "compute": seconds_of(lambda: [compute_table(one_series, columns) for one_series in candles]),
            "cold": seconds_of(lambda: [cold.table(one_series, columns) for one_series in candles]),
            "folder": min(
                seconds_of(
                    partial(lambda store: [store.table(one_series, columns) for one_series in candles], one)
                )
                for one in (*others, warm)
            ),
        }
        for one_series in candles:
            computed = compute_table(one_series, columns)
            stored = warm.table(one_series, columns)
            assert computed.select(columns).tobytes() == stored.select(columns).tobytes()
    num_columns = len(columns) * len(candles)
    assert cold.stats.computed_columns == num_columns and warm.stats.reused_columns == 2 * num_columns
    return turn


def time_append(profile: str, repeats: int) -> dict[str, float]:
    """Return seconds of a cold store and of one that has all but the newest candles, and their ratio."""
    columns = load_profile(profile).features
    candles = open_source("demo").candles(load_universe()[0], APPENDED_TO + APPENDED)
    older = candles.newest(APPENDED_TO, int(candles.open_time_s[APPENDED_TO - 1]))
    assert candles.digest != older.digest
    rounds = [time_append_once(candles, older, columns) for _ in range(repeats)]
    best = {name: min(seconds[name] for seconds in rounds) for name in rounds[0]}
    return {"columns": len(columns), **best, "append_share": best["append_s"] / best["cold_s"]}


def time_append_once(candles: Candles, older: Candles, columns: tuple[str, ...]) -> dict[str, float]:
    """Return the seconds of appending new candles to stored columns, and of computing all again."""
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as prepared:
        FeatureStore(Path(prepared)).table(older, columns)
        cold, *append = [FeatureStore(Path(folder)) for folder in (empty, prepared, prepared, prepared)]
        cold_s = seconds_of(lambda: cold.table(candles, columns))
        append_s = [seconds_of(partial(store.table, candles, columns)) for store in append]
        tables = [store.table(candles, columns) for store in (cold, *append)]
        select_s = [seconds_of(partial(table.select, columns)) for table in tables]
    assert len({table.select(columns).tobytes() for table in tables}) == 1
    assert {store.stats.continued_columns for store in append} == {2 * len(columns)}
    return {
        "cold_s": cold_s,
        "append_s": min(append_s),
        "cold_select_s": select_s[0],
        "append_select_s": min(select_s[1:]),
    }


def best_of(turns: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the least seconds of each function over some rounds."""
    rounds = [{name: seconds_of(turn) for name, turn in turns.items()} for _ in range(repeats)]
    return {name: min(seconds[name] for seconds in rounds) for name in turns}


def seconds_of(work: Callable[[], Any]) -> float:
    """Return the seconds that a function takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def with_ta(frame: pd.DataFrame) -> dict[str, Any]:
    """Compute the same columns with `ta`; its ATR smooths as Wilder does, so ranges are averaged here."""
    close = frame["close"]
    volume = frame["volume"]
    macd = MACD(close, 26, 12, 9)
    bands = BollingerBands(close, 20, 2 * (20 / 19) ** 0.5)
    true_range = AverageTrueRange(frame["high"], frame["low"], close, 1).average_true_range()
    width = bands.bollinger_wband() / 100
    return {
        "rsi": RSIIndicator(close, 14).rsi(),
        "macd": macd.macd(),
        "macd_signal": macd.macd_signal(),
        "roc": ROCIndicator(close, 12).roc(),
        "bb_upper": bands.bollinger_hband(),
        "bb_lower": bands.bollinger_lband(),
        "bb_width": width,
        "bb_position": bands.bollinger_pband(),
        "volatility": width / 4,
        "atr": true_range.rolling(14).mean(),
        "volume_norm": volume / volume.rolling(20).mean(),
    }


def with_loop(lists: dict[str, list[float]]) -> dict[str, list[float]]:
    """Compute the same columns row by row, as the lineage's programs could have."""
    close = lists["close"]
    high = lists["high"]
    low = lists["low"]
    volume = lists["volume"]
    out: dict[str, list[float]] = {name: [] for name in INDICATORS}
    gain = loss = signal = 0.0
    fast = slow = close[0]
    ranges = [float("nan")]
    for row in range(len(close)):
        if row:
            change = close[row] - close[row - 1]
            gain = (13 * gain + max(change, 0.0)) / 14
            loss = (13 * loss + max(-change, 0.0)) / 14
            fast = fast + 2 / 13 * (close[row] - fast)
            slow = slow + 2 / 27 * (close[row] - slow)
            signal += 2 / 10 * (fast - slow - signal)
            ranges.append(max(high[row], close[row - 1]) - min(low[row], close[row - 1]))
        out["rsi"].append(100 * gain / (gain + loss) if gain + loss else 50.0)
        out["macd"].append(fast - slow)
        out["macd_signal"].append(signal)
        out["roc"].append(100 * (close[row] / close[row - 12] - 1) if row >= 12 else float("nan"))
        out["atr"].append(sum(ranges[row - 13 : row + 1]) / 14 if row >= 14 else float("nan"))
        add_window(out, close[row - 19 : row + 1], volume[row - 19 : row + 1], is_complete=row >= 19)
    return out


def add_window(
    out: dict[str, list[float]], close: list[float], volume: list[float], *, is_complete: bool
) -> None:
    """Append the indicators of the newest window to their columns, in plain Python."""
    names = ("bb_upper", "bb_lower", "bb_width", "bb_position", "volatility", "volume_norm")
    if not is_complete:
        for name in names:
            out[name].append(float("nan"))
        return
    mean = sum(close) / 20
    std = (sum((value - mean) ** 2 for value in close) / 19) ** 0.5
    average = sum(volume) / 20
    values = (
        mean + 2 * std,
        mean - 2 * std,
        4 * std / mean,
        (close[-1] - mean + 2 * std) / (4 * std) if std else 0.5,
        std / mean,
        volume[-1] / average if average else 1.0,
    )
    for name, value in zip(names, values, strict=True):
        out[name].append(value)


def check_agreement(results: dict[str, dict[str, Any]]) -> None:
    """Stop if the three do not compute the same thing; then their times could not be compared."""
    for name in INDICATORS:
        ours = results["v8"][name]
        for other in ("ta", "loop"):
            theirs = np.asarray(results[other][name], dtype=np.float64)
            scale = np.nanmax(np.abs(ours[200:]))
            np.testing.assert_allclose(theirs[200:], ours[200:], rtol=1e-6, atol=1e-8 * scale, err_msg=name)


def machine() -> dict[str, Any]:
    """Describe machine, load, commit and versions."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return {
        "system": platform.platform(terse=True),
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_1min": round(psutil.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "pandas", "pyarrow", "ta")},
        "commit": commit.stdout.strip() if commit.returncode == 0 else "not committed yet",
    }


def processor() -> str:
    """Return the name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def show(result: dict[str, Any]) -> None:
    """Print all figures."""
    indicators = result["indicators"]
    store = result["store"]
    print(f"{indicators['columns']} indicators of one series, {indicators['rows']:,} rows")
    for name, rows_per_s in indicators["rows_per_s"].items():
        times = indicators["times_faster_than"].get(name)
        comparison = f"   v8 is {times:,.1f} times as fast" if times else ""
        print(f"  {name:<8}{rows_per_s:>12,.0f} rows/s{comparison}")
    print(f"store: {store['series']} series x {store['rows']:,} rows x {store['columns']} columns")
    print(f"  digest  {store['digest_s']:>9.4f} s   of the candles, counted in none of the lines below")
    for name, seconds in store["seconds"].items():
        times = store["cold_times"].get(name)
        comparison = f"   cold takes {times:,.1f} times as long" if times else ""
        print(f"  {name:<8}{seconds:>9.4f} s{comparison}")
    print(f"append: {APPENDED} candles to {APPENDED_TO:,}")
    for name, figures in result["append"].items():
        cold_text = f"{figures['cold_s'] * 1e3:.1f} ms cold, {figures['append_share']:.1%}"
        times_text = f"{figures['append_s'] * 1e3:.2f} ms of {cold_text}"
        selected = f"{figures['append_select_s'] * 1e3:.1f} and {figures['cold_select_s'] * 1e3:.1f} ms"
        print(f"  {name:<15}{figures['columns']:>3} columns: {times_text}; select {selected}")
    for goal, is_met in goals(store, result["append"]).items():
        print(f"  {'met' if is_met else 'NOT MET':<8}{goal}")
    print(json.dumps(result["machine"]))


def goals(store: dict[str, Any], append: dict[str, dict[str, float]]) -> dict[str, bool]:
    """Say which goals hold (issues 2 and 13); a new process has only the folder, so it has its own line."""
    return {
        f"computing takes under {COLD_COMPUTE_AT_MOST_S:g} s": store["seconds"]["compute"]
        < COLD_COMPUTE_AT_MOST_S,
        f"warm from the folder, as in a new process, at least {WARM_AT_LEAST:g} times as fast as cold": (
            store["cold_times"]["folder"] >= WARM_AT_LEAST
        ),
    } | {
        f"appending {APPENDED} candles of the profile {name} costs at most {APPEND_AT_MOST:.0%} of cold": (
            one["append_share"] <= APPEND_AT_MOST
        )
        for name, one in append.items()
    }


if __name__ == "__main__":
    raise SystemExit(main())
