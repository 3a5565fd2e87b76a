#!/usr/bin/env python
"""Count how often real prices stayed within the range ahead that models forecast, on their test spans.

    python scripts/bench_range.py runs/frontier [--source vision] [--every 7]

The range is that of `v8.artifacts.forecaster.price_range`: 9 of 10 windows should stay inside with all of
their bars. Prints a line for each series of a run, then one for each timeframe.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from v8.artifacts.forecaster import Forecaster, range_of
from v8.artifacts.nested_runs import served_folder
from v8.artifacts.run_folder import read_run
from v8.baselines.ranges import PATH_LAYERS, drawn_paths
from v8.columns import HIGH, LOW, OHLC, TASK_OHLC
from v8.evaluation.verdict import timeframe_of
from v8.features.table import compute_table
from v8.market.series import Series
from v8.market.sources.source import CandleSource, open_source
from v8.networks.published import forecast_windows
from v8.quantile_levels import quantile_output
from v8.windows.dataset import prepare_series, table_columns


def main() -> int:
    """Print the shares of windows inside; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--source", default="vision", help="where the run's candles came from")
    parser.add_argument("--every", type=int, default=7, metavar="N", help="evaluate every Nth window")
    options = parser.parse_args()
    source = open_source(options.source)
    shares: dict[str, list[float]] = defaultdict(list)
    for name in read_run(options.run).done:
        inside = windows_inside(served_folder(options.run, name), Series.parse(name), source, options.every)
        print(f"{name}: {inside.mean():.1%} of {len(inside)} windows inside", flush=True)
        shares[timeframe_of(name)].append(float(inside.mean()))
    for timeframe, values in shares.items():
        print(f"{timeframe}: {np.mean(values):.1%} on average of {len(values)} series")
    return 0


def windows_inside(folder: Path, series: Series, source: CandleSource, every: int) -> np.ndarray:
    """Return whether all bars ahead lay within the range, for every so many windows of the test span."""
    forecaster = Forecaster.load(folder)
    profile = forecaster.about.trained_profile
    candles = source.candles(series, profile.newest_bars)
    span = prepare_series(compute_table(candles, table_columns(profile)), profile).spans["test"]
    chosen = np.arange(0, len(span), every)
    windows_NTF = span.raw_windows()[chosen]
    quantiles_NHQC = forecast_windows(forecaster.model, windows_NTF)[quantile_output(TASK_OHLC)]
    (bars_NHCP,) = forecast_windows(forecaster.model.up_to(PATH_LAYERS), windows_NTF).values()
    actual_NHC = span.actual[TASK_OHLC][chosen]
    inside = np.zeros(len(chosen), bool)
    for number, bars_HCP in enumerate(bars_NHCP.astype(np.float64)):
        quantiles_HQC = quantiles_NHQC[number].astype(np.float64)
        last_close = float(span.last_close[chosen[number]])
        paths_PHC = drawn_paths(bars_HCP, forecaster.quantiles, quantiles_HQC, last_close)
        ahead = range_of(paths_PHC)
        lowest = actual_NHC[number, :, OHLC.index(LOW)].min()
        highest = actual_NHC[number, :, OHLC.index(HIGH)].max()
        inside[number] = ahead.low <= lowest and highest <= ahead.high
    return inside


if __name__ == "__main__":
    raise SystemExit(main())
