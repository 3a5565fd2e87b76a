"""Series to evaluate, drawn from a seeded random walk, with a model's forecasts of their test span."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny_profiles import tiny_profile

from v8.data.features import FeatureTable
from v8.data.market.series import Series
from v8.data.scaling import Scaling, TargetForm, TaskScaling
from v8.data.span import Span
from v8.model.baselines.baselines import BASELINES
from v8.profile.profile import Profile
from v8.profile.tasks import TASKS

FIRST_ROW = 40
"""Of the windows: enough known bars lie before it."""


@dataclass(frozen=True, eq=False)
class MadeSeries:
    """What `evaluate` reads of a series, and what a model says of its test span.

    Args:
        spans: "train" and "test".
        scaling: Of its constants only the typical offsets of tasks.
        model: Per task, forecasts of the test span, shape (N, H, C).
    """

    spans: Mapping[str, Span]
    scaling: Scaling
    model: Mapping[str, np.ndarray]

    @property
    def train(self) -> Span:
        return self.spans["train"]

    @property
    def test(self) -> Span:
        return self.spans["test"]

    def forecast(self, baseline: str) -> dict[str, np.ndarray]:
        """What a baseline, fitted to the train span, says of the test span."""
        return dict(BASELINES[baseline].fitted(self.train, self.scaling)(self.test))

    def told(self, **arrays: Any) -> MadeSeries:
        """The same, but for what is known or true at the windows of the test span."""
        return replace(self, spans={"train": self.train, "test": told_span(self.test, **arrays)})

    def learned(self, **arrays: Any) -> MadeSeries:
        """Likewise for the train span."""
        return replace(self, spans={"train": told_span(self.train, **arrays), "test": self.test})

    def recut(self, change: Callable[[str, np.ndarray], np.ndarray]) -> MadeSeries:
        """The same windows of a table of which every column, told by its name, is changed."""
        table = self.train.table
        runs: dict[str, Any] = {name: (change(name, table.column(name).copy()),) for name in table.columns}
        changed = replace(table, chunks=runs)
        spans = {name: Span(changed, span.profile, span.anchors) for name, span in self.spans.items()}
        return replace(self, spans=spans)


def told_span(span: Span, **arrays: Any) -> Span:
    """A span at whose windows something else is known or true than its table says.

    Args:
        span: The span.
        arrays: `actual`, `history_close` or `bar_numbers`; what is not given stays.
    """
    made = Span(span.table, span.profile, span.anchors)
    kept = {name: getattr(span, name) for name in ("actual", "history_close", "bar_numbers")}
    vars(made).update(kept | arrays)
    return made


@pytest.fixture(scope="session", name="offset_scaling")
def _offset_scaling() -> Callable[..., Scaling]:
    """Return a maker of scalings that hold nothing of use but typical offsets."""
    return offset_scaling


def offset_scaling(offsets: Mapping[str, np.ndarray]) -> Scaling:
    """A scaling with these offsets, shape (H, C), and nothing else of use."""
    tasks = tuple(
        TaskScaling(task, TargetForm.LEVEL, (), (), (), tuple(map(tuple, values.tolist())))
        for task, values in offsets.items()
    )
    return Scaling(columns=(), tasks=tasks, reference_price=1.0, volatility_floor=0.0)


SeriesMaker = Callable[..., MadeSeries]


@pytest.fixture(scope="session")
def profile_of() -> Callable[[tuple[str, ...], int], Profile]:
    """Return a maker of profiles with some tasks and a horizon; the same one when asked again."""
    made: dict[tuple[Any, ...], Profile] = {}

    def make(tasks: tuple[str, ...], horizon_bars: int) -> Profile:
        if (tasks, horizon_bars) not in made:
            settings = {task: {"weight": 1.0, "loss": "mae"} for task in tasks}
            made[tasks, horizon_bars] = tiny_profile(tasks=settings, horizon_bars=horizon_bars)
        return made[tasks, horizon_bars]

    return make


@pytest.fixture(scope="session")
def make_market_span(profile_of: Callable[..., Profile]) -> SeriesMaker:
    """Return a maker of series cut from the bars of a simulated market.

    The model is the actual values, moved; windows of the train span lie before those that are evaluated.
    """

    def make(
        *,
        num_train: int = 160,
        num_windows: int = 40,
        horizon_bars: int = 3,
        seed: int = 1,
        tasks: tuple[str, ...] = tuple(TASKS),
        dtype: Any = np.float64,
    ) -> MadeSeries:
        rng = np.random.default_rng(seed)
        table = market_table(rng, FIRST_ROW + num_train + num_windows + 2 * horizon_bars, dtype)
        rows = FIRST_ROW + np.arange(num_train + horizon_bars + num_windows)
        profile = profile_of(tasks, horizon_bars)
        # A horizon lies between them.
        train, test = (Span(table, profile, each) for each in (rows[:num_train], rows[-num_windows:]))
        return MadeSeries(
            spans={"train": train, "test": test},
            scaling=offset_scaling(
                {task: np.median(np.log(train.actual[task] / train.naive[task]), axis=0) for task in tasks}
            ),
            model={
                task: test.actual[task] * np.exp(rng.normal(0, 1e-3, test.actual[task].shape))
                for task in tasks
            },
        )

    return make


@pytest.fixture(scope="session")
def make_span(make_market_span: SeriesMaker) -> SeriesMaker:
    """Return a maker of series whose test span is made of walks of their own, one a window.

    Truth, model and typical offsets stray from the naive forecast by small log ratios.
    """

    def make(
        *,
        num_windows: int = 7,
        horizon_bars: int = 3,
        seed: int = 1,
        price: float = 100.0,
        tasks: tuple[str, ...] = tuple(TASKS),
    ) -> MadeSeries:
        rng = np.random.default_rng(seed)
        closes = price * np.exp(np.cumsum(rng.normal(0, 0.01, (num_windows, 20)), axis=1))
        market = make_market_span(num_windows=num_windows, horizon_bars=horizon_bars, tasks=tasks)
        made = market.told(history_close=closes)
        rolled = made.test.naive

        def strayed(task: str) -> np.ndarray:
            return rolled[task] * np.exp(rng.normal(0, 0.02, rolled[task].shape))

        made = made.told(actual={task: strayed(task) for task in tasks})
        model = {task: strayed(task) for task in tasks}
        offsets = {task: rng.normal(0, 0.01, rolled[task].shape[1:]) for task in tasks}
        return replace(made, model=model, scaling=offset_scaling(offsets))

    return make


@pytest.fixture(scope="session")
def make_candles(make_market_span: SeriesMaker) -> Callable[..., MadeSeries]:
    """Return a maker of series with candles alone, all four columns of which are the close given."""

    def make(closes: np.ndarray, last: list[float], model: np.ndarray) -> MadeSeries:
        """Take actual values and model of shape (N, H) and the last close of each window."""
        num_windows, horizon_bars = closes.shape
        market = make_market_span(num_windows=num_windows, horizon_bars=horizon_bars, tasks=("ohlc",))
        candles = market.told(
            actual={"ohlc": np.repeat(closes[:, :, None], 4, axis=2)},
            history_close=np.repeat(np.array(last, np.float64)[:, None], 20, axis=1),
        )
        forecast = {"ohlc": np.repeat(model[:, :, None], 4, axis=2)}
        return replace(candles, model=forecast, scaling=offset_scaling({"ohlc": np.zeros((horizon_bars, 4))}))

    return make


def market_table(rng: np.random.Generator, num_rows: int, dtype: Any = np.float64) -> FeatureTable:
    """Draw bars of twelve steps each, whose size wanders slowly."""
    wandering = pd.Series(rng.normal(0, 4, num_rows)).ewm(halflife=30).mean().to_numpy()
    size = 1e-3 * np.exp(wandering)
    steps = rng.normal(0, 1, (num_rows, 12)) * size[:, None]
    paths = np.cumsum(steps, axis=1) + np.concatenate([[0], np.cumsum(steps.sum(axis=1))[:-1]])[:, None]
    prices = 100 * np.exp(paths)
    opens = np.concatenate([[100.0], prices[:-1, -1]])
    highs = np.maximum(prices.max(axis=1), opens)
    lows = np.minimum(prices.min(axis=1), opens)
    return table_of(np.stack([opens, highs, lows, prices[:, -1]], axis=1), dtype)


@pytest.fixture(scope="session", name="table_of")
def _table_of() -> Callable[..., FeatureTable]:
    """Return a maker of tables of bars."""
    return table_of


def table_of(ohlc: np.ndarray, dtype: Any = np.float64) -> FeatureTable:
    """A table of bars, shape (R, 4), and what pandas makes of them.

    It holds float64, to which a table does not object, so that results by hand agree to more digits. The
    first nineteen rows, which lack bands and volatility, hold those of the twentieth.
    """
    close = pd.Series(ohlc[:, 3])
    mean = close.rolling(20).mean().bfill().to_numpy()
    std = close.rolling(20).std().bfill().to_numpy()
    columns = dict(zip(("open", "high", "low", "close"), ohlc.T, strict=True))
    columns |= {"bb_upper": mean + 2 * std, "bb_lower": mean - 2 * std, "volatility": std / mean}
    return FeatureTable(
        series=Series.parse("BTCUSDT-15m"),
        open_time_s=900 * np.arange(len(ohlc)),
        chunks={name: (values.astype(dtype),) for name, values in columns.items()},
        segment=np.zeros(len(ohlc), np.int32),
        digest="made",
    )
