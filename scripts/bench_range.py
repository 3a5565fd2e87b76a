#!/usr/bin/env python
"""Count how often real prices stayed within the range ahead that models forecast, on their test spans.

    python scripts/bench_range.py runs/frontier [--source vision] [--every 7]

The range is that of `v8.forecaster.forecaster.Outlook`: 9 of 10 windows should stay inside with all of their
bars. Prints a line for each series of a run, then one for each timeframe. A run evaluates some of the
windows itself (`v8.model.evaluation.price_range`); here the saved models are used, and as many windows as
wanted.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from v8.data.features.table import compute_table
from v8.data.market.series import Series
from v8.data.market.sources.source import CandleSource, open_source
from v8.data.windows.dataset import prepare_series, table_columns
from v8.data.windows.span import Span
from v8.forecaster.forecaster import Forecaster
from v8.model.baselines.ranges import PATH_LAYERS
from v8.model.evaluation.price_range import RangeCoverage, measure_range, pooled
from v8.model.evaluation.verdict import timeframe_of
from v8.model.networks.published import forecast_windows
from v8.profile.columns import TASK_OHLC
from v8.profile.quantile_levels import quantile_output
from v8.runs.nested_runs import served_folder
from v8.runs.run_folder import read_run


def main() -> int:
    """Print the shares of windows inside; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--source", default="vision", help="where the run's candles came from")
    parser.add_argument("--every", type=int, default=7, metavar="N", help="evaluate every Nth window")
    options = parser.parse_args()
    source = open_source(options.source)
    by_timeframe: dict[str, list[RangeCoverage]] = defaultdict(list)
    for name in read_run(options.run).done:
        folder = served_folder(options.run, name)
        coverage = coverage_of(folder, Series.parse(name), source, options.every)
        print(f"{name}: {coverage.share:.1%} of {coverage.num_windows} windows inside", flush=True)
        by_timeframe[timeframe_of(name)].append(coverage)
    for timeframe, coverages in by_timeframe.items():
        total = pooled(coverages)
        shares = [coverage.share for coverage in coverages]
        if total is not None:
            print(
                f"{timeframe}: {total.share:.1%} of {total.num_windows} windows of {len(shares)} series, "
                f"{min(shares):.1%} to {max(shares):.1%} by series"
            )
    return 0


def coverage_of(folder: Path, series: Series, source: CandleSource, every: int) -> RangeCoverage:
    """Evaluate the range of a model for every so many windows of the test span."""
    forecaster = Forecaster.load(folder)
    profile = forecaster.about.trained_profile
    candles = source.candles(series, profile.newest_bars)
    test_span = prepare_series(compute_table(candles, table_columns(profile)), profile).spans["test"]
    span = Span(test_span.table, profile, test_span.anchors[::every])
    windows_NTF = span.raw_windows()
    quantiles_NHQC = forecast_windows(forecaster.model, windows_NTF)[quantile_output(TASK_OHLC)]
    (path_bars_NHCP,) = forecast_windows(forecaster.model.up_to(PATH_LAYERS), windows_NTF).values()
    return measure_range(span, forecaster.quantiles, quantiles_NHQC, path_bars_NHCP)


if __name__ == "__main__":
    raise SystemExit(main())
