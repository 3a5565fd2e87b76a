#!/usr/bin/env python
"""Measure whether `frontier` loses to `range_paths` if its test part begins after a break in volatility.

    python scripts/research_breaks.py --timeframe 1h [--start 2024-03-06 ...] [--coins BTC ...] [--refit]
        [--draws] [--crash 2024-04-13T20:00]

For every start of a test part and every coin, the network of `frontier` and both of its formulas are fitted
as a back-test fits them (8,000 bars, or as many as the archive has, with the split of the profile), and rules
of combining them are compared on the test part. Figure: mean absolute error relative to the naive forecast,
median over the coins; each rule as a difference from the shipped one. docs/research/frontier.md has the
results.

- No rule reads the test part; they are fitted to the train part and the validation part.
- `--refit` fits the two formulas once more, to train and validation part together, and keeps the shares.
- `--draws` compares `range_paths` with itself: the windows from which it resamples bars are drawn with other
  seeds.
- `--crash` makes the break harder than any of the archive: the bar at that moment falls by 20 times the
  median log range of its series and stays there, with a wick of 60 times.

Legend: W windows, H steps of the horizon, C columns of a task, M members.
"""

# ruff: noqa: E402 - the package is next to this folder
from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from v8.data.features.table import compute_table
from v8.data.market.candles import Candles
from v8.data.market.series import load_universe
from v8.data.market.sources.source import CandleSource, open_source
from v8.data.windows.dataset import SeriesData, prepare_series, split_rows, table_columns
from v8.data.windows.span import Span
from v8.model.baselines import ranges
from v8.model.baselines.baselines import BASELINES, NAIVE
from v8.model.baselines.ranges import MEMBERS, fit_ensemble, fit_range_paths, fit_shares, mix, resampled_bars
from v8.model.networks.serving import ServingModel
from v8.model.training.trainer import FleetMember, Trainer, TrainingResult
from v8.profile.indicators import warmup_bars
from v8.profile.profile import Profile, load_profile
from v8.profile.quantile_levels import MEDIAN
from v8.profile.tasks import TASKS

Forecasts = Mapping[str, NDArray[Any]]  # per task, shape (W, H, C), in the task's unit
Errors = dict[str, dict[str, float]]  # per task and rule, relative to the naive forecast

ALL_BARS: Final = 1_000_000
FEWEST_BARS: Final = 1_000
WICK_TIMES: Final = 60.0
FALL_SHARE: Final = 1 / 3  # of the wick
OTHER_SEEDS: Final = (1, 2, 3, 4, 5, 6)
SHIPPED: Final = "shipped"
BEST: Final = ("range_paths", "har")

STARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "1h": (
        "2023-06-13",
        "2023-06-23",
        "2023-08-18",
        "2023-08-28",
        "2023-10-05",
        "2023-10-25",
        "2023-11-20",
        "2024-01-04",
        "2024-01-14",
        "2024-02-01",
        "2024-03-06",
        "2024-03-16",
        "2024-04-14",
        "2024-04-24",
        "2024-05-20",
        "2024-06-12",
        "2024-07-06",
        "2024-08-06",
        "2024-08-14",
    ),
    "15m": ("2024-03-06", "2024-03-12", "2024-04-14", "2024-05-20", "2024-07-06", "2024-08-06"),
}
"""First days of test parts: breaks, ten days after breaks, and calm ones."""


def second_of(moment: str) -> float:
    """Return a moment, ISO 8601, UTC, in seconds since the epoch."""
    return datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()


def sliced(candles: Candles, first: int, end: int) -> Candles:
    """Return the candles of some rows."""
    rows = slice(first, end)
    return replace(
        candles,
        open_time_s=candles.open_time_s[rows],
        values=candles.values[rows],
        segment=candles.segment[rows],
    )


def starting_at(candles: Candles, day: str, profile: Profile) -> Candles | None:
    """Return the most candles, at most the profile's, whose test part begins at a day; None if too few."""
    warmup = warmup_bars(table_columns(profile))
    start = int(np.searchsorted(candles.open_time_s, second_of(day)))
    num_rows = profile.newest_bars - warmup
    while num_rows > FEWEST_BARS:
        test_start = split_rows(num_rows, profile, location=str(candles.series))["test"][0]
        first = start - test_start - warmup
        end = start + num_rows - test_start
        missing = max(-first, end - len(candles))
        if missing <= 0:
            return sliced(candles, first, end)
        num_rows -= max(10, missing // 2)
    return None


def crashed(candles: Candles, moment: str) -> Candles:
    """Let the close of the bar at a moment fall for good, and its low fall three times as far."""
    values = candles.values.copy()
    row = int(np.searchsorted(candles.open_time_s, second_of(moment)))
    high = values[:, 1]
    low = values[:, 2]
    wick = WICK_TIMES * float(np.median(np.log(high / low)))
    lowest = min(values[row, 0], values[row, 3]) * np.exp(-wick)
    fall = np.exp(-wick * FALL_SHARE)
    values[row, 3] *= fall
    values[row + 1 :, :4] *= fall
    values[row, 2] = min(values[row, 2], lowest, values[row, 3])
    return replace(candles, values=values)


def members_of(model: ServingModel, formulas: ranges.RangeFormula, span: Span) -> dict[str, Forecasts]:
    """Return what network, regression and paths forecast for a span."""
    points = model.coherent(span, model.network_points(span))
    return dict(formulas.member_forecasts(span, points)[0])


def fixed_shares(profile: Profile, *shares: float) -> dict[str, NDArray[Any]]:
    """Return the same shares of the members, (M, H), for every task."""
    shares_MH = np.repeat(np.array(shares)[:, None], profile.horizon_bars, axis=1)
    return dict.fromkeys(profile.tasks, shares_MH)


def weighed_shares(span: Span, members: Mapping[str, Forecasts]) -> dict[str, NDArray[Any]]:
    """Fit shares to errors in multiples of the range before each window: a crash counts like any day."""
    unit = 1.0 / np.maximum(span.recent_range, np.finfo(float).tiny)[:, None, None]
    shares: dict[str, NDArray[Any]] = {}
    for task in span.profile.tasks:
        weighed = {name: {task: values[task] * unit} for name, values in members.items()}
        scaled_span = _Weighed({task: span.actual[task] * unit})
        shares |= fit_shares(scaled_span, weighed)  # type: ignore[arg-type]  # reads no more
    return shares


class _Weighed:
    """Actual values that weigh, in the place of a span."""

    def __init__(self, actual: Mapping[str, NDArray[Any]]) -> None:
        self.actual = actual


def newest_half(span: Span, members: Mapping[str, Forecasts]) -> dict[str, NDArray[Any]]:
    """Fit shares to the newest half of a span."""
    first = len(span) // 2
    newest = Span(span.table, span.profile, span.anchors[first:])
    late = {name: {task: array[first:] for task, array in values.items()} for name, values in members.items()}
    return fit_shares(newest, late)


def blended(first: Forecasts, second: Forecasts, share: float) -> dict[str, NDArray[Any]]:
    """Go a share of the way from one forecast to another."""
    return {task: first[task] + share * (second[task] - first[task]) for task in first}


def rules_of(
    data: SeriesData, model: ServingModel, *, has_refit: bool, has_draws: bool
) -> dict[str, Forecasts]:
    """Forecast the test part by every rule."""
    train, validation, test = (data.spans[name] for name in ("train", "validation", "test"))
    profile = data.profile
    formulas = fit_ensemble(train)
    before = members_of(model, formulas, validation)
    members = members_of(model, formulas, test)
    shares = fit_shares(validation, before)
    rules: dict[str, Forecasts] = {SHIPPED: mix(shares, members)}
    rules |= {name: members[name] for name in MEMBERS}
    rules |= {name: BASELINES[name].fit(train, data.scaling)(test) for name in (NAIVE, *BEST)}
    rules["fitted to ranges"] = mix(weighed_shares(validation, before), members)
    rules["fitted to newest half"] = mix(newest_half(validation, before), members)
    rules["formulas alone"] = mix(fixed_shares(profile, 0.0, 0.5, 0.5), members)
    rules["fixed .2 .4 .4"] = mix(fixed_shares(profile, 0.2, 0.4, 0.4), members)
    rules["thirds"] = mix(fixed_shares(profile, 1 / 3, 1 / 3, 1 / 3), members)
    for share in (0.25, 0.5):
        rules[f"{share:g} of range_paths"] = blended(rules[SHIPPED], rules["range_paths"], share)
    if has_refit:
        fitting_span = Span(train.table, profile, np.concatenate([train.anchors, validation.anchors]))
        refitted = members_of(model, fit_ensemble(fitting_span), test)
        rules["formulas refitted"] = mix(shares, refitted)
    if has_draws:
        plain = fit_range_paths(train)
        for seed in OTHER_SEEDS:
            drawn = np.random.default_rng(seed).integers(len(train), size=ranges.NUM_PATHS // 2)
            other = replace(plain, resampled_PHC=resampled_bars(train, plain.ranges(train), drawn))
            simulated = other.simulate(test, (MEDIAN,))
            rules[f"range_paths, seed {seed}"] = {task: values[:, :, 0] for task, values in simulated.items()}
    return rules


def errors_of(test: Span, rules: Mapping[str, Forecasts]) -> Errors:
    """Return the mean absolute error in returns of every rule, relative to the naive forecast."""
    errors: Errors = {}
    for task in test.profile.tasks:
        unit = TASKS[task].size(test.last_close, np.ones(len(test)))[:, None, None]
        absolute = {
            name: float((np.abs(np.asarray(made[task]) - test.actual[task]) / unit).mean())
            for name, made in rules.items()
        }
        errors[task] = {name: error / absolute[NAIVE] for name, error in absolute.items()}
    return errors


def show(day: str, errors: Sequence[Errors]) -> None:
    """Print a line for each task of a start: the shipped rule, then how far every other one lies from it."""
    for task in errors[0]:
        cells = defaultdict(list)
        for by_rule in errors:
            for name, error in by_rule[task].items():
                cells[name].append(error)
        middle = {name: float(np.median(found)) for name, found in cells.items() if name != NAIVE}
        shipped = middle.pop(SHIPPED)
        others = "  ".join(f"{name} {error - shipped:+.4f}" for name, error in middle.items())
        print(f"{day} {task:<10} {len(errors):2d} coins: {SHIPPED} {shipped:.4f}  {others}", flush=True)


def trained(trainer: Trainer, data: SeriesData) -> ServingModel:
    """Train the network of a series."""
    [(_, result)] = trainer.fit_fleet([FleetMember(data, data.profile.seed)])
    if not isinstance(result, TrainingResult):
        raise result
    return trainer.serving_model(data, result.weights)


def main() -> int:
    """Evaluate every rule at every start, print the tables and write the JSON; return the exit code."""
    options = parse(sys.argv[1:])
    profile = load_profile("frontier").but(quantiles=())
    trainer = Trainer(profile)
    source: CandleSource = open_source("vision")
    universe = [series for series in load_universe() if series.timeframe == options.timeframe]
    if options.coins:
        universe = [series for series in universe if series.symbol.removesuffix("USDT") in options.coins]
    candles = {series: source.candles(series, ALL_BARS) for series in universe}
    if options.crash:
        candles = {one: crashed(all_bars, options.crash) for one, all_bars in candles.items()}
    for day in options.start or STARTS[options.timeframe]:
        errors = []
        for all_bars in candles.values():
            chosen = starting_at(all_bars, day, profile)
            if chosen is None:
                continue
            data = prepare_series(compute_table(chosen, table_columns(profile)), profile)
            model = trained(trainer, data)
            rules = rules_of(data, model, has_refit=options.refit, has_draws=options.draws)
            errors.append(errors_of(data.spans["test"], rules))
        if errors:
            show(day, errors)
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--timeframe", default="1h", choices=sorted(STARTS))
    parser.add_argument("--start", nargs="*", help="first days of test parts, instead of those in the docs")
    parser.add_argument("--coins", nargs="*", help="such as BTC; all if left out")
    parser.add_argument("--refit", action="store_true", help="fit formulas to the validation part, too")
    parser.add_argument("--draws", action="store_true", help="draw the windows of range_paths again")
    parser.add_argument("--crash", help="moment of a bar that is made to fall, such as 2024-04-13T20:00")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
