"""Test spans to judge, drawn from a seeded random walk."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from v8.columns import TASK_COLUMNS
from v8.data.targets import roll_forward
from v8.evaluation.forecasts import Forecasts

SpanMaker = Callable[..., Forecasts]


@pytest.fixture(scope="session")
def make_span() -> SpanMaker:
    """Return a maker of spans in which truth and model stray from roll-forward by small log ratios."""
    return _make_span


def _make_span(
    *,
    num_windows: int = 7,
    horizon_bars: int = 3,
    seed: int = 1,
    price: float = 100.0,
    tasks: tuple[str, ...] = tuple(TASK_COLUMNS),
) -> Forecasts:
    rng = np.random.default_rng(seed)
    closes = price * np.exp(np.cumsum(rng.normal(0, 0.01, (num_windows, 20)), axis=1))
    rolled = roll_forward(closes, horizon_bars)

    def strayed(task: str) -> np.ndarray:
        return rolled[task] * np.exp(rng.normal(0, 0.02, rolled[task].shape))

    return Forecasts(
        truth={task: strayed(task) for task in tasks},
        model={task: strayed(task) for task in tasks},
        history_close=closes,
        offsets={task: rng.normal(0, 0.01, rolled[task].shape[1:]) for task in tasks},
        series="BTCUSDT-15m",
    )
