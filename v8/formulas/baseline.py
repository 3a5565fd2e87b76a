"""What a baseline is: a forecast that needs no network, which a model has to beat.

A baseline is fitted to the train span alone and then forecasts any windows from what is known at them, so
it can neither see the test span nor be tuned on it. One of your own is one file that calls
`BASELINES.register`; it may leave out tasks it says nothing about.

Legend: N windows, H steps of the horizon, Q levels of quantiles, C columns of a task.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from v8.tasks import TASKS
from v8.windows.scaling import Scaling
from v8.windows.span import Floats, PerTask, Span

TaskForecasts: TypeAlias = Mapping[str, Floats]
Forecast: TypeAlias = Callable[[Span], TaskForecasts]


@dataclass(frozen=True)
class Baseline:
    """A forecast that needs no network.

    Args:
        fit: Maps the train span and the constants of its scaling to a function of windows. That function
            reads what is known at them, never their truth, and returns arrays of shape (N, H, C) per task of
            the profile, float64, in the task's unit. It may leave tasks out.
        is_installed: Whether the optional package it needs is there; always when it needs none.
        fit_quantiles: Likewise maps train span, constants and levels to a function of windows that returns
            quantiles, (N, H, Q, C) per task of the profile; None for one that says nothing about them.
    """

    name: str  # its key in judgements and reports
    sentence: str  # what it assumes about the future, for people
    source: str  # who described it, or where its numbers come from
    fit: Callable[[Span, Scaling], Forecast]
    is_installed: Callable[[], bool] = lambda: True
    fit_quantiles: Callable[[Span, Scaling, Sequence[float]], Forecast] | None = None


def moves_from_rolled(span: Span) -> PerTask:
    """Return how far the truth lay from roll-forward, per task, shape (N, H, C), in returns."""

    def compute(task: str) -> Floats:
        moved = span.truth[task] - span.rolled[task]
        return np.divide(moved, _unit(span, task), out=moved)

    return PerTask(span.truth, compute)


def moved_from_rolled(span: Span, task: str, moves: Floats) -> Floats:
    """Move roll-forward by so much, the inverse of `moves_from_rolled`.

    Moves are of shape (N, H, C), in returns; so is the forecast, in the task's unit.
    """
    return span.rolled[task] + moves * _unit(span, task)


def _unit(span: Span, task: str) -> Floats:
    return np.asarray(TASKS[task].size(span.last_close, np.ones(len(span))))[:, None, None]
