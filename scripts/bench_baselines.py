#!/usr/bin/env python
"""Measure every baseline, and the models of a run compared with them, on the test spans of real candles.

    python scripts/bench_baselines.py [--profile frontier] [--run DIR] [--pooled] [--series ...] [--json PATH]

What is measured: the mean absolute error in returns over all steps and columns of a task, as a multiple of
the naive forecast's, and on the close alone, there as a multiple of the error of the last close. Printed are
median and mean over the series of a timeframe.

- Candles, split and horizon are those of the profile; with `--run` those of the run, and candles, spans and
  evaluation are compared with what the run wrote down.
- Baselines are the registry's, each fitted to the train span of its own series. `lightgbm` is among them
  where the package is installed (`pip install lightgbm`).
- `--pooled` adds LightGBM fitted to all series of a timeframe together, but only to those whose train span
  ends before the evaluated test span begins: otherwise coins that move together would leak the future.
- `--run DIR` adds the models of a finished run: on how many series their error is lower than each baseline's,
  and on how many significantly (Diebold-Mariano, corrected over the series after Benjamini and Hochberg).

Test spans are for reporting. To choose anything by these figures, use `--span validation`.
"""

# ruff: noqa: E402 - the package is next to this folder
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from v8.base.errors import ArtifactError, ProfileError, V8Error
from v8.base.hardware import describe_machine, versions
from v8.data.features.table import compute_table
from v8.data.market.candles import Candles, pin_of
from v8.data.market.series import Series, load_universe
from v8.data.market.sources.source import CandleSource, open_source
from v8.data.windows.dataset import SeriesData, prepare_series, table_columns
from v8.data.windows.span import Span
from v8.forecaster.forecaster import Forecaster
from v8.model.baselines.baselines import BASELINES, NAIVE, Boosting, fit_boosted
from v8.model.evaluation.evaluation import MODEL, Evaluation
from v8.model.evaluation.metrics import measure_errors
from v8.model.evaluation.significance import ALPHA, corrected_p_values, diebold_mariano
from v8.profile.columns import CLOSE, OHLC, TASK_OHLC
from v8.profile.profile import Profile, load_profile
from v8.profile.tasks import TASKS
from v8.runs.run_folder import RunRecord, read_run

POOLED_NAME = "lightgbm_pooled"
POOLED = Boosting(num_trees=200, num_leaves=15, learning_rate=0.06, min_leaf=400, max_windows=1_500)
"""For many series together; the size of the search in docs/research/frontier.md, not tuned further."""

ON_CLOSE = "close"
"""The close alone, in addition to the tasks."""

FIGURES = (*TASKS, ON_CLOSE)

EVALUATED_TOLERANCE = 1e-3
"""Share by which a model's error may differ from what its run wrote down: other machines round otherwise."""

Losses = dict[str, dict[str, NDArray[np.float64]]]
"""Per figure and forecaster: loss of each window, shape (N,), in returns."""


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Args:
        profile: Whose candles, split and horizon.
        source: Where candles come from.
        series: Which series.
        run: The run whose models are measured too.
        record: Its `run.json`.
    """

    profile: Profile
    source: CandleSource
    series: tuple[Series, ...]
    run: Path | None = None
    record: RunRecord | None = None


@dataclass
class Evaluated:
    """The evaluated span of one series, with what teaches the baselines.

    Args:
        data: The prepared series.
        span: The windows that are evaluated.
        model: The run's forecasts of them; without a run there are none.
        evaluated_from_s: Open time of the span's first bar, UTC seconds.
        trained_until_s: Open time of the train span's last bar, UTC seconds.
        losses: What was measured so far.
        seconds: Seconds for fitting and forecasting, per baseline.
    """

    data: SeriesData
    span: Span
    model: Mapping[str, NDArray[Any]]
    evaluated_from_s: int
    trained_until_s: int
    losses: Losses = field(default_factory=lambda: {figure: {} for figure in FIGURES})
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def series(self) -> Series:
        """Which series."""
        return self.data.series

    def measure(self, forecaster: str, forecasts: Mapping[str, NDArray[Any]]) -> None:
        """Keep the losses of forecasts, per task of shape (N, H, C)."""
        for task, values in forecasts.items():
            self.losses[task][forecaster] = measure_errors(self.span, task, values)[1]
        if TASK_OHLC in forecasts:
            close = OHLC.index(CLOSE)
            error = forecasts[TASK_OHLC][:, :, close] - self.span.actual[TASK_OHLC][:, :, close]
            self.losses[ON_CLOSE][forecaster] = np.abs(error / self.span.last_close[:, None]).mean(axis=1)


def main() -> int:
    """Measure, print the tables and write the JSON; return the exit code."""
    options = parse(sys.argv[1:])
    try:
        result = measure_all(plan(options), options)
    except V8Error as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--profile", default="frontier", help="whose candles, split and horizon")
    parser.add_argument("--run", type=Path, metavar="DIR", help="also measure the models of this run")
    parser.add_argument("--source", default="vision", choices=("vision", "demo"), help="of the candles")
    parser.add_argument("--series", nargs="+", metavar="NAME", help="only these; default: the whole universe")
    parser.add_argument("--span", default="test", choices=("test", "validation"), help="what is evaluated")
    parser.add_argument("--pooled", action="store_true", help="also LightGBM over all series of a timeframe")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    return parser.parse_args(arguments)


def plan(options: argparse.Namespace) -> Plan:
    """Return which profile, source, series and run the options name."""
    chosen = tuple(map(Series.parse, options.series)) if options.series else tuple(load_universe())
    if options.run is None:
        return Plan(load_profile(options.profile), open_source(options.source), chosen)
    if options.span != "test":
        raise ProfileError(
            where=f"--run {options.run}",
            rule="models are measured on the test span: the validation span chose their weights",
            got=f"--span {options.span}",
            fix="Leave --run or --span out",
        )
    record = read_run(options.run)
    finished = tuple(series for series in chosen if is_done(record, series))
    if not finished:
        raise ArtifactError(
            where=str(options.run),
            rule="needs a finished series",
            got="none of those asked for",
            fix="Finish the run first",
        )
    profile = Profile.model_validate_json(json.dumps(record.profile))
    return Plan(profile, open_source(record.source), finished, options.run, record)


def is_done(record: RunRecord, series: Series) -> bool:
    """Whether a series of a run is finished."""
    state = record.series.get(str(series))
    return state is not None and state.status == "done"


# Measuring


def measure_all(planned: Plan, options: argparse.Namespace) -> dict[str, Any]:
    """Return every figure of all series, as plain JSON values."""
    spans = [measured(span) for span in prepared(planned, options.span)]
    if options.pooled:
        measure_pooled(spans)
    return {
        "command": " ".join(["python", *sys.argv]),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": describe_machine(),
        "versions": {**versions(), "lightgbm": installed_version("lightgbm")},
        "profile": planned.profile.name,
        "span": options.span,
        "source": planned.source.name,
        "run": describe_run(planned),
        "timeframes": {name: summary(group) for name, group in by_timeframe(spans).items()},
        "model_against": against(spans) if planned.run else {},
        "series": {str(span.series): describe(span) for span in spans},
    }


def prepared(planned: Plan, name: str) -> Iterator[Evaluated]:
    """Yield the prepared data of each series, with the forecasts of its model if there is a run."""
    for series in planned.series:
        print_progress(f"{series}: candles and windows")
        candles = candles_of(planned, series)
        data = prepare_series(compute_table(candles, table_columns(planned.profile)), planned.profile)
        open_time_s = data.table.open_time_s
        yield Evaluated(
            data=data,
            span=data.spans[name],
            model=forecasts_of(planned.run / str(series), data) if planned.run else {},
            evaluated_from_s=int(open_time_s[data.split[name][0]]),
            trained_until_s=int(open_time_s[data.split["train"][1] - 1]),
        )


def candles_of(planned: Plan, series: Series) -> Candles:
    """Read the candles of a series: those that the run was trained on, or the newest."""
    pinned = planned.record.series[str(series)].candles if planned.record else None
    if pinned is None or planned.run is None:
        return planned.source.candles(series, planned.profile.newest_bars)
    candles = planned.source.candles(series, pinned.num_bars, pinned.last_open_s)
    pin = pin_of(candles)
    if pin.digest != pinned.digest:
        raise other_span(planned.run / str(series), f"{pin} where the run read {pinned}")
    return candles


def forecasts_of(folder: Path, data: SeriesData) -> Mapping[str, NDArray[Any]]:
    """Forecast with the saved model, and check that this is what its run evaluated."""
    forecaster = Forecaster.load(folder)
    span = data.spans["test"]
    evaluated = Evaluation.from_json(forecaster.metadata["evaluation"], where=f"{folder}, key evaluation")
    num_candles = forecaster.metadata["candles"]["num_bars"]
    if forecaster.metadata["split"] != data.describe_split(num_candles):
        raise other_span(folder, "another split")
    forecasts = forecaster.forecast(span.raw_windows())
    for task, values in forecasts.items():
        error = measure_errors(span, task, values)[0].mae_return.overall
        expected = evaluated.error(task).overall
        if abs(error - expected) > EVALUATED_TOLERANCE * expected:
            raise other_span(
                folder, f"an error on {task} of {error:.6g} where the run evaluated {expected:.6g}"
            )
    return forecasts


def other_span(folder: Path, got: str) -> ArtifactError:
    """Return the error for a model that was trained or evaluated on other data than these."""
    return ArtifactError(
        where=str(folder),
        rule="must have been evaluated on the span that is measured here",
        got=got,
        fix="Measure with the v8 that trained it, or train it again",
    )


def measured(evaluated: Evaluated) -> Evaluated:
    """Fit every baseline of one series, and measure its errors and its seconds."""
    train = evaluated.data.spans["train"]
    scaling = evaluated.data.scaling
    for name, baseline in BASELINES.items():
        if baseline.is_installed():
            started = time.perf_counter()
            evaluated.measure(name, baseline.fit(train, scaling)(evaluated.span))
            evaluated.seconds[name] = time.perf_counter() - started
    evaluated.measure(MODEL, evaluated.model)
    return evaluated


def measure_pooled(spans: Sequence[Evaluated]) -> None:
    """Fit one pooled model for all spans that may learn from the same series."""
    pools: dict[tuple[int, ...], list[Evaluated]] = {}
    for span in spans:
        pools.setdefault(teachers(span, spans), []).append(span)
    for teacher_forced_by, pool in pools.items():
        print_progress(f"{POOLED_NAME}: {len(teacher_forced_by)} series teach {len(pool)}")
        forecast = fit_boosted([spans[place].data.spans["train"] for place in teacher_forced_by], POOLED)
        for evaluated in pool:
            evaluated.measure(POOLED_NAME, forecast(evaluated.span))


def teachers(span: Evaluated, spans: Sequence[Evaluated]) -> tuple[int, ...]:
    """List the places of the series of a timeframe whose train span is over when this span begins."""
    return tuple(
        place
        for place, other in enumerate(spans)
        if other.series.bar_s == span.series.bar_s and other.trained_until_s < span.evaluated_from_s
    )


# Adding up


def by_timeframe(spans: Iterable[Evaluated]) -> dict[str, list[Evaluated]]:
    """Group spans by their timeframe."""
    groups: dict[str, list[Evaluated]] = {}
    for span in spans:
        groups.setdefault(span.series.timeframe, []).append(span)
    return groups


def summary(spans: Sequence[Evaluated]) -> dict[str, Any]:
    """Return figures over the series of one timeframe."""
    names = [name for name in (*BASELINES, POOLED_NAME, MODEL) if name in spans[0].losses[TASK_OHLC]]
    return {
        "num_series": len(spans),
        "num_windows": sum(len(span.span) for span in spans),
        "multiples_of_naive": {
            figure: {name: middle(span_multiple(span, figure, name) for span in spans) for name in names}
            for figure in FIGURES
            if spans[0].losses[figure]
        },
        "seconds_per_series": {
            name: statistics.median(span.seconds[name] for span in spans) for name in spans[0].seconds
        },
    }


def middle(values: Iterable[float]) -> dict[str, float]:
    """Return median and mean of some values."""
    listed = list(values)
    return {"median": statistics.median(listed), "mean": statistics.fmean(listed)}


def span_multiple(span: Evaluated, figure: str, name: str) -> float:
    """Return the error of a forecaster on one span, relative to the naive forecast; below 1 is better."""
    losses = span.losses[figure]
    return float(losses[name].mean() / losses[NAIVE].mean())


def against(spans: Sequence[Evaluated]) -> dict[str, Any]:
    """Compare the models with every baseline, per figure."""
    return {
        figure: {name: contest(spans, figure, name) for name in spans[0].losses[figure] if name != MODEL}
        for figure in FIGURES
        if spans[0].losses[figure]
    }


def contest(spans: Sequence[Evaluated], figure: str, baseline: str) -> dict[str, int]:
    """Count the series in which the model's error is lower than a baseline's, and significantly so."""
    tests = [
        diebold_mariano(
            span.losses[figure][MODEL] - span.losses[figure][baseline],
            horizon_bars=span.span.horizon_bars,
        )
        for span in spans
    ]
    corrected = corrected_p_values([test.p_value for test in tests])
    is_sure = [value is not None and value < ALPHA for value in corrected]
    return {
        "num_series": len(spans),
        "num_better": sum(test.mean_difference < 0 for test in tests),
        "num_significantly_better": sum(
            sure and test.mean_difference < 0 for sure, test in zip(is_sure, tests, strict=True)
        ),
        "num_significantly_worse": sum(
            sure and test.mean_difference > 0 for sure, test in zip(is_sure, tests, strict=True)
        ),
    }


def describe(span: Evaluated) -> dict[str, Any]:
    """Return the figures of one series."""
    return {
        "num_windows": len(span.span),
        "mean_absolute_errors": {
            figure: {name: float(values.mean()) for name, values in losses.items()}
            for figure, losses in span.losses.items()
        },
    }


def describe_run(planned: Plan) -> dict[str, Any] | None:
    """Return which run the models are of; None without one."""
    if planned.record is None:
        return None
    record = planned.record
    return {
        "created_at": record.created_at,
        "command": record.command,
        "profile_digest": record.profile_digest,
    }


def commit() -> str:
    """Return the commit of this checkout."""
    completed = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return completed.stdout.strip() if completed.returncode == 0 else "unknown"


def installed_version(package: str) -> str:
    """Return the version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


# What is shown


def show(result: dict[str, Any]) -> None:
    """Print all tables."""
    for timeframe, group in result["timeframes"].items():
        show_timeframe(result, timeframe, group)
    if result["model_against"]:
        show_contests(result["model_against"])


def show_timeframe(result: dict[str, Any], timeframe: str, group: dict[str, Any]) -> None:
    """Print the table of one timeframe."""
    multiples = group["multiples_of_naive"]
    print(
        f"\n{timeframe}, {result['span']} spans of {group['num_series']} series, {group['num_windows']:,} "
        "windows: error ÷ naive, median (mean)"
    )
    print(f"{'':<18}" + "".join(f"{figure:>17}" for figure in multiples) + f"{'s a series':>12}")
    for name in multiples[TASK_OHLC]:
        cells = [
            f"{by_name[name]['median']:.4f} ({by_name[name]['mean']:.4f})" for by_name in multiples.values()
        ]
        seconds = group["seconds_per_series"].get(name)
        seconds_text = "" if seconds is None else f"{seconds:.2f}"
        print(
            f"{name.replace('_', ' '):<18}" + "".join(f"{cell:>17}" for cell in cells) + f"{seconds_text:>12}"
        )


def show_contests(contests: dict[str, Any]) -> None:
    """Print in how many series the model is better than each baseline."""
    print(
        f"\nmodel against each: series with a smaller error of all / significantly smaller / significantly "
        f"larger\n(corrected over the series, {ALPHA:.0%})"
    )
    print(f"{'':<18}" + "".join(f"{figure:>20}" for figure in contests))
    for name in contests[TASK_OHLC]:
        cells = [
            "{num_better} of {num_series} / {num_significantly_better} / {num_significantly_worse}".format(
                **by_name[name]
            )
            for by_name in contests.values()
        ]
        print(f"{name.replace('_', ' '):<18}" + "".join(f"{cell:>20}" for cell in cells))


def print_progress(message: str) -> None:
    """Print a line to standard error."""
    sys.stderr.write(message + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
