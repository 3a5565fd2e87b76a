"""Whether a model has become worse: its losses since, beside what its test span promised."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from v8.formulas.baselines import NAIVE, called
from v8.live.losses import Losses
from v8.losses.contest import is_enough
from v8.losses.judgement import MODEL, Judgement
from v8.losses.significance import ALPHA, Significance, corrected_p_values, diebold_mariano
from v8.windows.span import Floats
from v8.wording import chance, number, plural


def decay_of(judged: Judgement, losses: Losses) -> tuple[bool, str]:
    """Tell whether a model is worse, by more than chance, than it was, or than the best baseline was.

    Its losses are tested against those of the naive forecast times the multiple of its test span, which has
    an error of its own, and against those of the baseline that was best there, so that no luck of the new
    candles chooses the opponent. All tests are corrected for one another (Benjamini-Hochberg).

    Args:
        judged: Its judgement on its test span.
        losses: Its losses since.

    Returns:
        Whether it is, and what was found, a clause.
    """
    if not is_enough(len(losses), losses.horizon_bars):
        return False, f"{plural(len(losses), 'forecast')} since then can be judged, too few to tell"
    tests = dict(_tests(judged, losses))
    chances = corrected_p_values([test.p_value for test in tests.values()])
    worse = [
        f"{said} ({chance(found)})"
        for (said, test), found in zip(tests.items(), chances, strict=True)
        if test.mean_difference > 0 and found is not None and found < ALPHA
    ]
    told = "; ".join(worse or [f"no decay by more than chance: {', '.join(tests)}"])
    return bool(worse), f"{told}, over {plural(len(losses), 'forecast')} {losses.origin}"


def _tests(judged: Judgement, losses: Losses) -> Iterator[tuple[str, Significance]]:
    """Test per task the model against its promise, and against the best baseline of its test span."""
    for task, by_name in losses.by_task.items():
        model, naive, best = by_name[MODEL], by_name[NAIVE], judged.best_baseline(task)
        if (promised := judged.multiple(task)) is not None and naive.any():
            found = number(model.mean() / naive.mean())
            said = f"{task} {found} times naive, {number(promised)} on its test span"
            test = _test(model - promised * naive, losses)
            yield said, _with_error_of_promise(test, judged, task, float(naive.mean()))
        if best != NAIVE and best in by_name:
            said = f"{task} {number(model.mean() / by_name[best].mean())} times {called(best)}"
            yield said, _test(model - by_name[best], losses)


def _test(differences: Floats, losses: Losses) -> Significance:
    return diebold_mariano(differences, horizon_bars=losses.horizon_bars, bar_numbers=losses.bar_numbers)


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
