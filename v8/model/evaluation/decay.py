"""Whether a model has become worse: its losses since it was trained, compared with those of its test span."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from v8.base.wording import chance, number, plural
from v8.model.baselines.baselines import NAIVE
from v8.model.evaluation.evaluation import MODEL, Evaluation
from v8.model.evaluation.significance import (
    ALPHA,
    Losses,
    Significance,
    corrected_p_values,
    min_windows,
)


def detect_decay(
    evaluation: Evaluation, losses: Losses, best_baselines: Mapping[str, str] | None = None
) -> tuple[bool, str]:
    """Tell whether a model is significantly worse than on its test span, and the reason as a clause.

    Its losses are tested against those of the naive forecast times its multiple of naive's error on the test
    span, and against those of the best baseline of its run, so that the new candles do not choose the
    opponent. The multiple was estimated, so its standard error counts, too. The p-values of all
    tests are corrected together (Benjamini-Hochberg).

    Args:
        evaluation: Of the model on its test span.
        losses: Of the model and of baselines on newer candles.
        best_baselines: By task the best baseline that the verdicts on the model name (`verdict.references`);
            that of the series alone for a task without one.
    """
    if too_few_windows(len(losses), losses.horizon_bars):
        return False, f"{plural(len(losses), 'forecast')} since then can be evaluated, too few to know"
    tests = dict(_decay_tests(evaluation, losses, best_baselines or {}))
    p_values = corrected_p_values([test.p_value for test in tests.values()])
    worse = []
    for (description, test), p_value in zip(tests.items(), p_values, strict=True):
        if is_worse(test, p_value):
            worse.append(f"{description} ({chance(p_value)})")
    summary = "; ".join(worse) if worse else f"no significant decay: {', '.join(tests)}"
    return bool(worse), f"{summary}, over {plural(len(losses), 'forecast')} {losses.origin}"


def _decay_tests(
    evaluation: Evaluation, losses: Losses, best_baselines: Mapping[str, str]
) -> Iterator[tuple[str, Significance]]:
    """Yield per task the tests against the multiple of the test span and against its best baseline.

    Each comes with a description of what is compared.
    """
    for task, by_name in losses.by_task.items():
        means = {name: losses.mean(task, name) for name in by_name}
        best = best_baselines.get(task) or evaluation.best_baseline(task)
        expected = evaluation.relative_error(task)
        if expected is not None and by_name[NAIVE].any():
            multiple = number(means[MODEL] / means[NAIVE])
            description = f"{task} {multiple} times naive, {number(expected)} on its test span"
            test = losses.test(task, MODEL, NAIVE, times=expected)
            yield description, _with_error_of_multiple(test, evaluation, task, means[NAIVE])
        if best != NAIVE and best in by_name:
            description = f"{task} {number(means[MODEL] / means[best])} times {best}"
            yield description, losses.test(task, MODEL, best)


def _with_error_of_multiple(
    test: Significance, evaluation: Evaluation, task: str, naive_error: float
) -> Significance:
    """Widen the standard error of a test by that of the multiple, which was estimated on another span.

    The multiple is 1 + mean difference from naive / naive's error. On the candles of the test naive's error
    is `naive_error`, in returns. The two spans are taken as independent, so the squares of their errors add.
    """
    multiple_error = evaluation.tasks[task].significance[NAIVE].standard_error
    if test.standard_error is None or multiple_error is None:
        return replace(test, standard_error=None)
    scaled_error = multiple_error / evaluation.error(task, NAIVE).overall * naive_error
    return replace(test, standard_error=math.hypot(test.standard_error, scaled_error))


def is_worse(test: Significance, p_value: float | None) -> bool:
    """Say whether the first forecaster of a test is worse than the second by more than chance."""
    return test.mean_difference > 0 and p_value is not None and p_value < ALPHA


def too_few_windows(num_windows: int, horizon_bars: int) -> str | None:
    """Say, as a clause, that there are too few windows for a test; None if there are enough.

    >>> too_few_windows(4, 10), too_few_windows(200, 10)
    ('only 4 windows that neither was trained on; a test needs 200', None)
    """
    needed = min_windows(horizon_bars)
    if num_windows >= needed:
        return None
    return f"only {plural(num_windows, 'window')} that neither was trained on; a test needs {needed}"
