"""Test spans to judge, drawn from a seeded random walk, with and without the bars before them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from v8.columns import TASK_COLUMNS
from v8.data.targets import roll_forward
from v8.evaluation.forecasts import Forecasts
from v8.evaluation.past import Bars, Known, Past

SpanMaker = Callable[..., Forecasts]


@pytest.fixture(scope="session")
def make_span() -> SpanMaker:
    """Return a maker of spans in which truth and model stray from roll-forward by small log ratios."""
    return _make_span


@pytest.fixture(scope="session")
def make_market_span() -> SpanMaker:
    """Return a maker of spans cut from the bars of a simulated market, whose past baselines may learn from.

    The model is the truth, moved; windows of the train span lie before those that are judged.
    """
    return _make_market_span


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


def _make_market_span(
    *,
    num_train: int = 160,
    num_windows: int = 40,
    horizon_bars: int = 3,
    seed: int = 1,
    tasks: tuple[str, ...] = tuple(TASK_COLUMNS),
) -> Forecasts:
    rng = np.random.default_rng(seed)
    first = 40  # enough known bars before the first window
    num_rows = first + num_train + num_windows + 2 * horizon_bars
    ohlc = _walk(rng, num_rows)
    rows = first + np.arange(num_train + horizon_bars + num_windows)
    train, judged = rows[:num_train], rows[-num_windows:]  # a horizon between them
    truth = {task: values for task, values in _indicators(ohlc, horizon_bars).items() if task in tasks}
    closes = np.lib.stride_tricks.sliding_window_view(ohlc[:, 3], 20)
    bars = Bars(ohlc, np.zeros(num_rows, np.int32))
    offsets = roll_forward(closes[train - 19], horizon_bars)
    return Forecasts(
        truth={task: values[judged] for task, values in truth.items()},
        model={
            task: values[judged] * np.exp(rng.normal(0, 1e-3, values[judged].shape))
            for task, values in truth.items()
        },
        history_close=closes[judged - 19],
        offsets={task: np.median(np.log(truth[task][train] / offsets[task]), axis=0) for task in tasks},
        series="BTCUSDT-15m",
        bar_numbers=judged,
        past=Past(
            train=Known(closes[train - 19], horizon_bars, train, bars),
            train_truth={task: values[train] for task, values in truth.items()},
            rows=judged,
        ),
    )


def _walk(rng: np.random.Generator, num_rows: int) -> np.ndarray:
    """Draw bars of twelve steps each, whose size wanders slowly, shape (R, 4)."""
    wandering = pd.Series(rng.normal(0, 4, num_rows)).ewm(halflife=30).mean().to_numpy()
    size = 1e-3 * np.exp(wandering)
    steps = rng.normal(0, 1, (num_rows, 12)) * size[:, None]
    paths = np.cumsum(steps, axis=1) + np.concatenate([[0], np.cumsum(steps.sum(axis=1))[:-1]])[:, None]
    prices = 100 * np.exp(paths)
    opens = np.concatenate([[100.0], prices[:-1, -1]])
    highs, lows = np.maximum(prices.max(axis=1), opens), np.minimum(prices.min(axis=1), opens)
    return np.stack([opens, highs, lows, prices[:, -1]], axis=1)


def _indicators(ohlc: np.ndarray, horizon_bars: int) -> dict[str, np.ndarray]:
    """What follows each row, by pandas: shape (R, H, C); the last rows, which lack it, hold NaN."""
    close = pd.Series(ohlc[:, 3])
    mean, std = close.rolling(20).mean().to_numpy(), close.rolling(20).std().to_numpy()
    columns = {
        "ohlc": ohlc,
        "bands": np.stack([mean + 2 * std, mean - 2 * std], axis=1),
        "volatility": (std / mean)[:, None],
    }
    after = {}
    for task, values in columns.items():
        filled = np.concatenate([values, np.full((horizon_bars, values.shape[1]), np.nan)])
        after[task] = np.stack(
            [filled[step : len(values) + step] for step in range(1, horizon_bars + 1)], axis=1
        )
    return after
