#!/usr/bin/env python
"""Measure every baseline, and a run's models beside them, on the test spans of real candles.

    python scripts/bench_baselines.py [--profile frontier] [--run DIR] [--pooled] [--series ...] [--json PATH]

What is measured: the mean absolute error in returns over all steps and columns of a task, as a multiple of
the naive forecast's (roll-forward), and on the close alone, there as a multiple of last close. Printed are
median and mean over the series of a timeframe.

- Candles, split and horizon are those of the profile; with `--run` those of the run, and candles, spans and
  judgement are compared with what the run wrote down.
- Baselines are the registry's, each fitted to the train span of its own series. `lightgbm` is among them
  where the package is installed (`pip install 'v8[baselines]'`).
- `--pooled` adds LightGBM fitted to all series of a timeframe at once, of which only those teach whose train
  span ends before the judged test span begins: otherwise coins that move together would tell the future.
- `--run DIR` adds the models of a finished run: on how many series they err less than each baseline, and on
  how many by more than chance (Diebold-Mariano, corrected over the series after Benjamini and Hochberg).

Test spans are for reporting. Whoever chooses anything by these figures has to use `--span validation`.
"""

# ruff: noqa: E402 - the package lies beside this folder
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from v8.artifacts.forecaster import Forecaster
from v8.artifacts.run_folder import RunRecord, changed_candles, pin_of, read_run
from v8.columns import CLOSE, OHLC, TASK_COLUMNS, TASK_OHLC
from v8.data.dataset import SeriesData, prepare_series, table_columns
from v8.errors import ArtifactError, ProfileError, V8Error
from v8.evaluation.baselines import BASELINES, NAIVE, forecast_baseline, usable_baselines
from v8.evaluation.boosting import POOLED, fit_boosted
from v8.evaluation.forecasts import Forecasts
from v8.evaluation.judgement import MODEL, Judgement
from v8.evaluation.metrics import window_losses
from v8.evaluation.past import Known, Lesson, past_of
from v8.evaluation.significance import ALPHA, corrected_p_values, diebold_mariano
from v8.features.table import compute_table
from v8.machine import describe_machine, versions
from v8.market.candles import Candles
from v8.market.series import Series, load_universe
from v8.market.sources.source import CandleSource, open_source
from v8.profile import Profile, load_profile

POOLED_NAME = "lightgbm_pooled"

ON_CLOSE = "close"
"""The close alone, beside the tasks."""

FIGURES = (*TASK_COLUMNS, ON_CLOSE)

JUDGED_TOLERANCE = 1e-3
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
class Span:
    """The judged span of one series, with what teaches the baselines.

    Args:
        data: The prepared series.
        forecasts: Truth and forecasts; without a run the forecasts are the naive ones.
        judged_from_s: Open time of the span's first bar, UTC seconds.
        taught_until_s: Open time of the train span's last bar, UTC seconds.
        losses: What was measured so far.
        seconds: Seconds for fitting and forecasting, per baseline.
    """

    data: SeriesData
    forecasts: Forecasts
    judged_from_s: int
    taught_until_s: int
    losses: Losses = field(default_factory=lambda: {figure: {} for figure in FIGURES})
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def series(self) -> Series:
        """Which series."""
        return self.data.series

    def measure(self, forecaster: str, made: Mapping[str, NDArray[Any]]) -> None:
        """Keep the losses of forecasts, per task of shape (N, H, C)."""
        for task, values in made.items():
            self.losses[task][forecaster] = window_losses(self.forecasts, task, values)
        if TASK_OHLC in made:
            close = OHLC.index(CLOSE)
            error = made[TASK_OHLC][:, :, close] - self.forecasts.truth[TASK_OHLC][:, :, close]
            self.losses[ON_CLOSE][forecaster] = np.abs(error / self.forecasts.last_close[:, None]).mean(
                axis=1
            )


def main() -> int:
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--profile", default="frontier", help="whose candles, split and horizon")
    parser.add_argument("--run", type=Path, metavar="DIR", help="also measure the models of this run")
    parser.add_argument("--source", default="vision", choices=("vision", "demo"), help="of the candles")
    parser.add_argument("--series", nargs="+", metavar="NAME", help="only these; default: the whole universe")
    parser.add_argument("--span", default="test", choices=("test", "validation"), help="what is judged")
    parser.add_argument("--pooled", action="store_true", help="also LightGBM over all series of a timeframe")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    return parser.parse_args(arguments)


def plan(options: argparse.Namespace) -> Plan:
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
    done = tuple(each for each in chosen if is_done(record, each))
    if not done:
        raise ArtifactError(
            where=str(options.run),
            rule="needs a finished series",
            got="none of those asked for",
            fix="Finish the run first",
        )
    profile = Profile.model_validate_json(json.dumps(record.profile))
    return Plan(profile, open_source(record.source), done, options.run, record)


def is_done(record: RunRecord, series: Series) -> bool:
    state = record.series.get(str(series))
    return state is not None and state.status == "done"


# Measuring


def measure_all(what: Plan, options: argparse.Namespace) -> dict[str, Any]:
    spans = [measured(span) for span in prepared(what, options.span)]
    if options.pooled:
        measure_pooled(spans)
    return {
        "command": " ".join(["python", *sys.argv]),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": describe_machine(),
        "versions": {**versions(), "lightgbm": found("lightgbm")},
        "profile": what.profile.name,
        "span": options.span,
        "source": what.source.name,
        "run": describe_run(what),
        "timeframes": {name: summary(group) for name, group in by_timeframe(spans).items()},
        "model_against": against(spans) if what.run else {},
        "series": {str(span.series): describe(span) for span in spans},
    }


def prepared(what: Plan, name: str) -> Iterator[Span]:
    for series in what.series:
        tell(f"{series}: candles and windows")
        candles = candles_of(what, series)
        data = prepare_series(compute_table(candles, table_columns(what.profile)), what.profile)
        open_time_s, anchors = data.table.open_time_s, data.anchors[name]
        naive = span_of(data, anchors)
        yield Span(
            data=data,
            forecasts=naive if what.run is None else with_model(naive, what.run / str(series), data),
            judged_from_s=int(open_time_s[data.split.span(name)[0]]),
            taught_until_s=int(open_time_s[data.split.train[1] - 1]),
        )


def candles_of(what: Plan, series: Series) -> Candles:
    pinned = what.record.series[str(series)].candles if what.record else None
    if pinned is None or what.run is None:
        return what.source.candles(series, what.profile.newest_bars)
    candles = what.source.candles(series, pinned.num_bars, pinned.last_open_s)
    if candles.digest != pinned.digest:
        raise changed_candles(series, pinned, pin_of(candles), what.run)
    return candles


def span_of(data: SeriesData, anchors: NDArray[np.int64]) -> Forecasts:
    """Return the span with the naive forecast in the place of a model's."""
    past = past_of(data, anchors)
    known = Known(data.history_close(anchors), data.profile.horizon_bars)
    truth = data.truth(anchors)
    return Forecasts(
        truth=truth,
        model={task: known.rolled[task] for task in truth},
        history_close=known.history_close,
        offsets={task.task: np.array(task.offset) for task in data.scaling.tasks},
        series=str(data.series),
        bar_numbers=data.table.open_time_s[anchors] // data.series.bar_s,
        past=past,
    )


def with_model(naive: Forecasts, folder: Path, data: SeriesData) -> Forecasts:
    """Forecast with the saved model, and check that this is what its run judged."""
    forecaster = Forecaster.load(folder)
    judged = Judgement.from_json(forecaster.metadata["judgement"], where=f"{folder}, key judgement")
    if forecaster.metadata["split"] != data.describe_split():
        raise other_span(folder, "another split")
    forecasts = replace(naive, model=forecaster.forecast(data.raw_windows(data.anchors["test"])))
    for task, values in forecasts.model.items():
        error, known = float(window_losses(forecasts, task, values).mean()), judged.error(task).overall
        if abs(error - known) > JUDGED_TOLERANCE * known:
            raise other_span(folder, f"an error on {task} of {error:.6g} where the run judged {known:.6g}")
    return forecasts


def other_span(folder: Path, got: str) -> ArtifactError:
    return ArtifactError(
        where=str(folder),
        rule="must have been judged on the span that is measured here",
        got=got,
        fix="Measure with the v8 that trained it, or train it again",
    )


def measured(span: Span) -> Span:
    for name in usable_baselines(span.forecasts):
        started = time.perf_counter()
        span.measure(name, forecast_baseline(name, span.forecasts))
        span.seconds[name] = time.perf_counter() - started
    span.measure(MODEL, span.forecasts.model)
    return span


def measure_pooled(spans: Sequence[Span]) -> None:
    """Fit one pooled model for all spans that may learn from the same series."""
    pools: dict[tuple[int, ...], list[Span]] = {}
    for span in spans:
        pools.setdefault(teachers(span, spans), []).append(span)
    for taught_by, judged in pools.items():
        tell(f"{POOLED_NAME}: {len(taught_by)} series teach {len(judged)}")
        forecast = fit_boosted([lesson(spans[place]) for place in taught_by], POOLED)
        for span in judged:
            past = span.forecasts.past
            assert past
            horizon_bars = span.forecasts.horizon_bars
            known = Known(span.forecasts.history_close, horizon_bars, past.rows, past.train.bars)
            span.measure(POOLED_NAME, forecast(known))


def teachers(span: Span, spans: Sequence[Span]) -> tuple[int, ...]:
    """List the places of the series of a timeframe whose train span is over when this span begins."""
    return tuple(
        place
        for place, other in enumerate(spans)
        if other.series.bar_s == span.series.bar_s and other.taught_until_s < span.judged_from_s
    )


def lesson(span: Span) -> Lesson:
    past = span.forecasts.past
    assert past
    return Lesson(span.forecasts.offsets, past.train, past.train_truth)


# Adding up


def by_timeframe(spans: Iterable[Span]) -> dict[str, list[Span]]:
    groups: dict[str, list[Span]] = {}
    for span in spans:
        groups.setdefault(span.series.timeframe, []).append(span)
    return groups


def summary(spans: Sequence[Span]) -> dict[str, Any]:
    names = [name for name in (*BASELINES, POOLED_NAME, MODEL) if name in spans[0].losses[TASK_OHLC]]
    return {
        "num_series": len(spans),
        "num_windows": sum(span.forecasts.num_windows for span in spans),
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
    known = list(values)
    return {"median": statistics.median(known), "mean": statistics.fmean(known)}


def span_multiple(span: Span, figure: str, name: str) -> float:
    losses = span.losses[figure]
    return float(losses[name].mean() / losses[NAIVE].mean())


def against(spans: Sequence[Span]) -> dict[str, Any]:
    """Compare the models with every baseline, per figure."""
    return {
        figure: {name: contest(spans, figure, name) for name in spans[0].losses[figure] if name != MODEL}
        for figure in FIGURES
        if spans[0].losses[figure]
    }


def contest(spans: Sequence[Span], figure: str, baseline: str) -> dict[str, int]:
    tests = [
        diebold_mariano(
            span.losses[figure][MODEL] - span.losses[figure][baseline],
            horizon_bars=span.forecasts.horizon_bars,
            bar_numbers=span.forecasts.bar_numbers,
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


def describe(span: Span) -> dict[str, Any]:
    return {
        "num_windows": span.forecasts.num_windows,
        "mean_absolute_errors": {
            figure: {name: float(values.mean()) for name, values in losses.items()}
            for figure, losses in span.losses.items()
        },
    }


def describe_run(what: Plan) -> dict[str, Any] | None:
    if what.record is None:
        return None
    known = what.record
    return {"created_at": known.created_at, "command": known.command, "profile_digest": known.profile_digest}


def commit() -> str:
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() if asked.returncode == 0 else "unknown"


def found(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


# What is shown


def show(result: dict[str, Any]) -> None:
    for timeframe, group in result["timeframes"].items():
        show_timeframe(result, timeframe, group)
    if result["model_against"]:
        show_contests(result["model_against"])


def show_timeframe(result: dict[str, Any], timeframe: str, group: dict[str, Any]) -> None:
    multiples = group["multiples_of_naive"]
    print(
        f"\n{timeframe}, {result['span']} spans of {group['num_series']} series, {group['num_windows']:,} "
        "windows: error ÷ naive, median (mean)"
    )
    print(f"{'':<18}" + "".join(f"{figure:>17}" for figure in multiples) + f"{'s a series':>12}")
    for name in multiples[TASK_OHLC]:
        if name == MODEL and result["run"] is None:
            continue
        cells = [f"{one[name]['median']:.4f} ({one[name]['mean']:.4f})" for one in multiples.values()]
        seconds = group["seconds_per_series"].get(name)
        told = "" if seconds is None else f"{seconds:.2f}"
        print(f"{name.replace('_', ' '):<18}" + "".join(f"{cell:>17}" for cell in cells) + f"{told:>12}")


def show_contests(contests: dict[str, Any]) -> None:
    print(
        f"\nmodel against each: series with a smaller error of all / significantly smaller / significantly "
        f"larger\n(corrected over the series, {ALPHA:.0%})"
    )
    print(f"{'':<18}" + "".join(f"{figure:>20}" for figure in contests))
    for name in contests[TASK_OHLC]:
        cells = [
            "{num_better} of {num_series} / {num_significantly_better} / {num_significantly_worse}".format(
                **one[name]
            )
            for one in contests.values()
        ]
        print(f"{name.replace('_', ' '):<18}" + "".join(f"{cell:>20}" for cell in cells))


def tell(what: str) -> None:
    sys.stderr.write(what + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
