"""Whether a model has become worse: its errors on the candles since, beside what its test span promised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from v8.artifacts.forecaster import Forecaster
from v8.data.dataset import table_columns
from v8.data.scaling import Scaling
from v8.data.span import Floats, Span
from v8.data.splits import window_anchors
from v8.evaluation.baselines import BASELINES, NAIVE, called
from v8.evaluation.contest import is_enough
from v8.evaluation.judgement import Judgement
from v8.evaluation.metrics import measure_errors
from v8.evaluation.significance import ALPHA, Significance, corrected_p_values, diebold_mariano
from v8.features.table import FeatureTable, compute_table
from v8.market.candles import Candles
from v8.profile import recorded_profile
from v8.records import AS_WRITTEN, checked
from v8.wording import chance, number, plural

_SCALING: Final = TypeAdapter(Scaling)


def decay_of(folder: Path, candles: Candles, start_s: int) -> tuple[bool, str]:
    """Tell whether a model is worse, by more than chance, than it was, or than the best baseline was.

    Its losses are tested against those of the naive forecast times the multiple of its test span, which has
    an error of its own, and against those of the baseline that was best there, so that no luck of the new
    candles chooses the opponent. All tests are corrected for one another (Benjamini-Hochberg).

    Args:
        folder: Its artefact.
        candles: Among them those since, and enough before to fit baselines to.
        start_s: Forecasts that are issued from then on count, seconds since the epoch, UTC.

    Returns:
        Whether it is, and what was found, a clause.

    Raises:
        ArtifactError: If the model cannot be trusted.
        DataError: If no candle lies before `start_s`.
    """
    forecaster = Forecaster.load(folder)
    before, since = _spans(forecaster, candles, start_s)
    if not len(before) or not is_enough(len(since), since.horizon_bars):
        return False, f"{plural(len(since), 'forecast')} since then can be judged, too few to tell"
    where = f"metadata of {forecaster.series}"
    judged = Judgement.from_json(forecaster.metadata.get("judgement"), where=f"{where}, key judgement")
    forecasts = forecaster.forecast(since.raw_windows())
    model = {task: values.astype(np.float64) for task, values in forecasts.items()}
    tests = dict(_tests(judged, model, before, since, _scaling(forecaster, where)))
    return _told(tests, len(since))


def _spans(forecaster: Forecaster, candles: Candles, start_s: int) -> tuple[Span, Span]:
    """Return the windows that ended before a moment, and those that are issued from then on."""
    profile = recorded_profile(forecaster.metadata.get("profile"), where=f"metadata of {forecaster.series}")
    table = compute_table(candles, table_columns(profile))
    anchors = window_anchors(table.segment, (0, len(table)), profile.lookback_bars, profile.horizon_bars)
    is_before = _closed_s(table, anchors + profile.horizon_bars) <= start_s
    is_since = _closed_s(table, anchors) >= start_s
    return Span(table, profile, anchors[is_before]), Span(table, profile, anchors[is_since])


def _closed_s(table: FeatureTable, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray(table.open_time_s[rows] + table.series.bar_s)


def _scaling(forecaster: Forecaster, where: str) -> Scaling:
    fix = "Restore the file or train the series again"
    content = forecaster.metadata.get("scaling")
    return checked(_SCALING, content, where=f"{where}, key scaling", fix=fix, rule=AS_WRITTEN)


def _tests(
    judged: Judgement, model: Mapping[str, Floats], before: Span, since: Span, scaling: Scaling
) -> Iterator[tuple[str, Significance]]:
    """Test per task the model against its promise, and against the best baseline of its test span."""
    for task in since.profile.tasks:
        losses = measure_errors(since, task, model[task])[1]
        naive = measure_errors(since, task, since.rolled[task])[1]
        promised, best = judged.multiple(task), judged.best_baseline(task)
        if promised is not None and naive.any():
            found = number(losses.mean() / naive.mean())
            said = f"{task} {found} times naive, {number(promised)} on its test span"
            kept = _test(losses - promised * naive, since)
            yield said, _with_error_of_promise(kept, judged, task, float(naive.mean()))
        if best != NAIVE and BASELINES[best].is_installed():
            made = BASELINES[best].fit(before, scaling)(since)[task]
            opposed = measure_errors(since, task, made)[1]
            said = f"{task} {number(losses.mean() / opposed.mean())} times {called(best)}"
            yield said, _test(losses - opposed, since)


def _test(differences: Floats, span: Span) -> Significance:
    return diebold_mariano(differences, horizon_bars=span.horizon_bars, bar_numbers=span.bar_numbers)


def _with_error_of_promise(
    test: Significance, judged: Judgement, task: str, naive_error: float
) -> Significance:
    """Widen the standard error of a test by that of the promise, which was measured on a span of its own.

    The promise is 1 + mean difference from naive over naive's error. Both spans are taken as independent, so
    the squares of their errors add up.

    Args:
        test: Of losses against the promise, in returns.
        judged: The judgement on the test span.
        task: Which task.
        naive_error: Naive's mean absolute error on the candles of the test, in returns.
    """
    promised = judged.tasks[task].significance[NAIVE].standard_error
    if test.standard_error is None or promised is None:
        return replace(test, standard_error=None)
    scaled = promised / judged.error(task, NAIVE).overall * naive_error
    return replace(test, standard_error=math.hypot(test.standard_error, scaled))


def _told(tests: Mapping[str, Significance], num_windows: int) -> tuple[bool, str]:
    """Say what is worse by more than chance, or else how it does."""
    chances = corrected_p_values([test.p_value for test in tests.values()])
    worse = [
        f"{said} ({chance(found)})"
        for (said, test), found in zip(tests.items(), chances, strict=True)
        if test.mean_difference > 0 and found is not None and found < ALPHA
    ]
    told = "; ".join(worse or [f"no decay by more than chance: {', '.join(tests)}"])
    return bool(worse), f"{told}, over {plural(num_windows, 'forecast')}"
