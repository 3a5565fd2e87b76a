#!/usr/bin/env python
"""Measure what pooling coins, more history and market features add to formulas of each series alone.

    python scripts/research_pooled.py [--timeframe 15m 1h] [--ask pools unseen trees networks] [--decoded]

Forecast are the log ranges of the next ten bars, from three origins a timeframe; each method is fitted to
data before the origin, and evaluated on the days after it. Figure: mean absolute error of the log range of
steps 1, 3, 6 and 10, as a multiple of that of a regression per series on the newest 5,600 bars (log ranges
over 1 to 240 bars and the clock, the formula of `calibration: ensemble`); median over the coins, on how many
it is smaller, and the chance p of such a mean difference if both were as good: the test of
`v8.model.evaluation.significance`, the coins of a close averaged first, as back-tests do.
docs/research/pooled.md has what came of it.

`--decoded` evaluates OHLC, bands and volatility: what is forecast becomes candles by the regression of
`calibration: ensemble`, compared with baselines of the registry that are refitted up to the origin.

- After an origin nothing is read but the actual values for the evaluation. Inputs of a bar are known when it
  closes; rows less than 70 bars before the origin are not used for fitting.
- The best window of a formula has the lowest error over all coins on the 1,200 bars before the origin, fitted
  before those; then it is fitted again up to the origin.
- All is fitted by least squares in logs, networks too, so that no loss is at an advantage. LightGBM and JAX
  are asked for where `--ask` needs them. One core.

Legend: N bars of the grid, S series, K terms, H steps, J evaluated rows, W windows, C columns of a task.
"""

# ruff: noqa: E402 - the package is next to this folder
from __future__ import annotations

import argparse
import json
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from v8.base.arrays import FloatArray
from v8.data.features.table import compute_table
from v8.data.market.candles import Candles
from v8.data.market.series import Series, load_universe
from v8.data.market.sources.source import open_source
from v8.data.windows.dataset import table_columns, window_anchors
from v8.data.windows.scaling import fit_scaling
from v8.data.windows.span import Span
from v8.model.baselines.baselines import BASELINES, NAIVE
from v8.model.baselines.ranges import RangeFormula, fit_ensemble, move_terms
from v8.model.evaluation.metrics import measure_errors
from v8.model.evaluation.significance import diebold_mariano
from v8.profile.columns import CLOSE, HIGH, LOW, OPEN_TIME, WAVES
from v8.profile.formulas import FLOOR_SHARE, PERIODS_S, wave
from v8.profile.profile import load_profile
from v8.profile.tasks import TASKS

HORIZON: Final = 10
STEPS: Final = (1, 3, 6, 10)  # evaluated
EMBARGO: Final = 70  # bars between what teaches and what is evaluated: those of the product's splits
RANGES: Final = (1, 5, 20, 60, 240, 960)  # bars behind
PRODUCT: Final = 5_600  # train bars of the product: 70 % of 8,000
HISTORY: Final = 8_000  # bars that the product looks at
VALIDATION: Final = 1_200  # bars
ALL: Final = 1_000_000
WINDOWS: Final = (1_400, 2_800, PRODUCT, HISTORY, ALL)  # train bars that a formula may choose from
REFERENCE: Final = f"own regression, {PRODUCT:,}"
FLOOR_BARS: Final = 2_000  # first bars of a coin, whose median range says what is no range
OWN: Final = "own regression, all"
SHRUNK_ROWS: Final = 4_000.0  # of the pool, in addition to a series' own

ORIGINS: Final[Mapping[str, tuple[tuple[str, str, str], ...]]] = {
    "15m": (
        ("2024-06-08", "2024-07-06", "calm"),
        ("2024-07-06", "2024-08-03", "calm"),
        ("2024-08-08", "2024-09-05", "after the crash"),
    ),
    "1h": (
        ("2024-03-06", "2024-05-05", "break"),
        ("2024-05-05", "2024-07-04", "calm"),
        ("2024-07-07", "2024-09-05", "holds the crash"),
    ),
}


@dataclass(frozen=True)
class Market:
    """All series of a timeframe on one grid of bars."""

    series: tuple[Series, ...]
    times_s: NDArray[np.int64]  # open time of each bar, (N,)
    log_ranges_NS: FloatArray  # floored; NaN where there is no candle
    behind_NSK: FloatArray  # logs of the mean ranges over `RANGES`
    level_NS: FloatArray  # log of the series' own mean range since its first bar
    clock_NK: FloatArray  # waves of day and week
    market_NK: FloatArray  # what the coins do together
    age_NS: FloatArray  # log days since the first bar
    moves_NSK: FloatArray  # sizes of the newest moves in ranges

    def target(self) -> FloatArray:
        """Return the log ranges of the ten coming bars, (N, S, H)."""
        padded = np.pad(self.log_ranges_NS, ((0, HORIZON), (0, 0)), constant_values=np.nan)
        return np.stack([padded[step : step + len(self.times_s)] for step in range(1, HORIZON + 1)], axis=-1)

    def row(self, day: str) -> int:
        """Return the first bar of a day."""
        return int(np.searchsorted(self.times_s, datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()))


def read_market(timeframe: str, cache: Path) -> tuple[Market, list[Candles]]:
    """Read the candles of all coins, or what an earlier call kept of them."""
    series = tuple(series for series in load_universe() if series.timeframe == timeframe)
    file = cache / f"pooled-{timeframe}.pickle"
    if not file.exists():
        source = open_source("vision")
        cache.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as stream:
            pickle.dump({str(one_series): source.candles(one_series, ALL) for one_series in series}, stream)
    with file.open("rb") as stream:
        candles: dict[str, Candles] = pickle.load(stream)
    frames = {name: one.to_frame() for name, one in candles.items()}
    bar = pd.Timedelta(seconds=series[0].bar_s)
    until = pd.Timestamp("2024-09-06", tz="UTC") - bar
    grid = pd.date_range(min(frame.index[0] for frame in frames.values()), until, freq=bar, name=OPEN_TIME)
    frames = {name: one.reindex(grid) for name, one in frames.items()}
    return market_of(series, grid, frames), [*candles.values()]


def market_of(series: tuple[Series, ...], grid: pd.DatetimeIndex, frames: dict[str, pd.DataFrame]) -> Market:
    """Work out every term."""
    times_s = grid.as_unit("s").asi8
    plain_NS = np.stack([np.log((frame[HIGH] / frame[LOW]).to_numpy()) for frame in frames.values()], axis=1)
    first_S = [int(np.flatnonzero(~np.isnan(column))[0]) for column in plain_NS.T]
    starts = zip(plain_NS.T, first_S, strict=True)
    floors = np.array([FLOOR_SHARE * np.nanmedian(one[at : at + FLOOR_BARS]) for one, at in starts])
    ranges = pd.DataFrame(plain_NS)
    means = [ranges.rolling(bars, min_periods=max(1, bars * 3 // 4)).mean() for bars in RANGES]
    is_valid = ranges.notna().to_numpy()
    behind = np.stack(
        [np.log(np.maximum(np.where(is_valid, mean.to_numpy(), np.nan), floors)) for mean in means], axis=-1
    )
    level = np.log(np.maximum(ranges.expanding(min_periods=240).mean().to_numpy(), floors))
    clock = np.stack(
        [
            wave(times_s.astype(np.float64), PERIODS_S[period], number, is_cosine)
            for period, numbers in WAVES.items()
            for number in numbers
            for is_cosine in (False, True)
        ],
        axis=1,
    )
    logs = pd.DataFrame({place: np.log(one[CLOSE].to_numpy()) for place, one in enumerate(frames.values())})
    usual = np.exp(behind[..., RANGES.index(60)])
    moves = np.stack(
        [
            np.minimum(np.abs(logs.diff(bars).to_numpy()) / usual / np.sqrt(bars), 6.0)
            for bars in (1, 5, 20, 60)
        ],
        axis=-1,
    )
    rows = np.arange(len(grid))[:, None] - np.array(first_S)
    age = np.log1p(np.maximum(rows, 0) * series[0].bar_s / 86_400)
    return Market(
        series=series,
        times_s=times_s,
        log_ranges_NS=np.log(np.maximum(plain_NS, floors)),
        behind_NSK=behind,
        level_NS=level,
        clock_NK=clock,
        market_NK=market_block(series, behind - level[..., None], moves),
        age_NS=age,
        moves_NSK=moves,
    )


def market_block(series: Sequence[Series], above_NSK: FloatArray, moves_NSK: FloatArray) -> FloatArray:
    """Say what the coins do together, known when the bar closes, (N, K)."""
    symbols = [one_series.symbol for one_series in series]
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # bars before the first coin
        mean = np.nanmean(above_NSK, axis=1)
        spread = np.nanstd(above_NSK[..., [0, 2, 4]], axis=1)
        shock = np.nanmean(moves_NSK[..., :2], axis=1)
    leaders = [above_NSK[:, symbols.index(symbol), :4] for symbol in ("BTCUSDT", "ETHUSDT")]
    return np.concatenate([mean, spread, shock, *leaders], axis=1)


# Terms and rows


def own_terms(market: Market, *, longest: bool = False) -> FloatArray:
    """Return the terms of the formula, (N, S, K): one, log ranges over 1 to 240 bars, the clock."""
    num_ranges = len(RANGES) if longest else len(RANGES) - 1
    clock = np.broadcast_to(market.clock_NK[:, None], (*market.level_NS.shape, market.clock_NK.shape[1]))
    ones = np.ones((*market.level_NS.shape, 1))
    return np.concatenate([ones, market.behind_NSK[..., :num_ranges], clock], axis=-1)


def pooled_terms(market: Market, *, block: bool, is_unseen: bool = False) -> FloatArray:
    """Return the terms of pooled methods, (N, S, K): none identifies the coin.

    Of an unseen series 960 bars are known: its level is theirs, and its age unknown.
    """
    shape = market.level_NS.shape
    level_NS = level_of(market, is_unseen=is_unseen)
    above = market.behind_NSK - level_NS[..., None]
    parts = [np.ones((*shape, 1)), above[..., : len(RANGES) - is_unseen], market.moves_NSK]
    parts += [] if is_unseen else [market.age_NS[..., None]]
    shared = [market.clock_NK, *([market.market_NK] if block else [])]
    parts += [np.broadcast_to(terms[:, None], (*shape, terms.shape[1])) for terms in shared]
    parts += [above[..., :5] - market.market_NK[:, None, :5]] if block else []
    return np.concatenate(parts, axis=-1)


def level_of(market: Market, *, is_unseen: bool) -> FloatArray:
    """Return the log of a coin's mean range, (N, S): since its first bar, or over 960 bars."""
    return market.behind_NSK[..., -1] if is_unseen else market.level_NS


def teacher_forced(usable_NS: NDArray[np.bool_], until: int, bars: int) -> NDArray[np.bool_]:
    """Mark the rows that may teach: the newest so many bars before a row, less the embargo, (N, S)."""
    rows = np.arange(len(usable_NS))[:, None]
    last = until - EMBARGO
    return usable_NS & (rows < last) & (rows >= last - bars)


# Methods


def fit_own(
    terms_NSK: FloatArray, target_NSH: FloatArray, mask_NS: NDArray[np.bool_], evaluated: slice
) -> FloatArray:
    """Fit a regression to each series, and forecast the evaluated rows, (J, S, H)."""
    forecasts = np.full((evaluated.stop - evaluated.start, *target_NSH.shape[1:]), np.nan)
    for place in range(target_NSH.shape[1]):
        held = mask_NS[:, place]
        if held.sum() > 500:
            fitted = np.linalg.lstsq(terms_NSK[held, place], target_NSH[held, place], rcond=None)[0]
            forecasts[:, place] = terms_NSK[evaluated, place] @ fitted
    return forecasts


def weights_of(mask_NS: NDArray[np.bool_]) -> FloatArray:
    """Weigh rows so that every date weighs the same, however many coins it has, (R,)."""
    return (1.0 / np.maximum(mask_NS.sum(axis=1, keepdims=True), 1) * mask_NS)[mask_NS]


RIDGE: Final = 1e-4  # of the mean square of a term


def fit_pooled(
    terms_NSK: FloatArray, target_NSH: FloatArray, base_NSH: FloatArray, mask_NS: NDArray[np.bool_]
) -> FloatArray:
    """Fit one regression of what the base leaves over to all series, (K, H)."""
    weights = weights_of(mask_NS)
    x = terms_NSK[mask_NS]
    y = (target_NSH - base_NSH)[mask_NS]
    left = (x * weights[:, None]).T @ x
    left += RIDGE * np.diag(np.diag(left))
    return np.asarray(np.linalg.solve(left, (x * weights[:, None]).T @ y), np.float64)


def fit_shrunk(
    terms_NSK: FloatArray,
    target_NSH: FloatArray,
    base_NSH: FloatArray,
    mask_NS: NDArray[np.bool_],
    evaluated: slice,
) -> FloatArray:
    """Fit each series' own coefficients, pulled towards the pool's as by `SHRUNK_ROWS` of it, (J, S, H)."""
    x = terms_NSK[mask_NS]
    weights = weights_of(mask_NS)
    moment = (x * weights[:, None]).T @ x / weights.sum()
    pool = fit_pooled(terms_NSK, target_NSH, base_NSH, mask_NS)
    forecasts = np.full((evaluated.stop - evaluated.start, *target_NSH.shape[1:]), np.nan)
    for place in range(target_NSH.shape[1]):
        held = mask_NS[:, place]
        own = terms_NSK[held, place]
        rest = (target_NSH - base_NSH)[held, place]
        left = own.T @ own + SHRUNK_ROWS * moment + RIDGE * np.diag(np.diag(moment))
        moved = np.linalg.solve(left, own.T @ (rest - own @ pool))
        forecasts[:, place] = terms_NSK[evaluated, place] @ (pool + moved) + base_NSH[evaluated, place]
    return forecasts


TREES: Final = {
    "objective": "l2",
    "num_leaves": 15,
    "learning_rate": 0.06,
    "min_data_in_leaf": 1_000,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.5,
    "bagging_freq": 1,
    "seed": 42,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
NUM_TREES: Final = 150
STRIDE: Final = 3  # every such row teaches trees: neighbours share most bars


def fit_trees(
    terms_NSK: FloatArray,
    target_NSH: FloatArray,
    base_NSH: FloatArray,
    mask_NS: NDArray[np.bool_],
    evaluated: slice,
) -> FloatArray:
    """Fit boosted trees to what a base leaves over at the evaluated steps, one booster a step, (J, S, H)."""
    import lightgbm  # noqa: PLC0415 - optional

    mask = mask_NS & (np.arange(len(mask_NS)) % STRIDE == 0)[:, None]
    x = terms_NSK[mask]
    y = (target_NSH - base_NSH)[mask]
    data = lightgbm.Dataset(x, weight=weights_of(mask), params=TREES, free_raw_data=False)
    inputs = terms_NSK[evaluated].reshape(-1, terms_NSK.shape[-1])
    forecasts = np.full((evaluated.stop - evaluated.start, *target_NSH.shape[1:]), np.nan)
    for step in STEPS:
        data.set_label(y[:, step - 1])
        booster = lightgbm.train(TREES, data, NUM_TREES)
        residuals = booster.predict(inputs, num_threads=1).reshape(forecasts.shape[:2])
        forecasts[..., step - 1] = residuals + base_NSH[evaluated, :, step - 1]
    return forecasts


# Networks


@dataclass(frozen=True)
class Training:
    """How networks are trained: two dense layers, from a forecast that they may only move."""

    units: int = 64
    dropout: float = 0.3
    rate: float = 1e-3  # highest, falls along a cosine to a tenth
    decay: float = 1e-2  # decoupled weight decay
    epochs: int = 6  # passes over every second date, odd and even in turns
    seeds: int = 3
    block_days: int = 5  # dates are held out in blocks of so many days
    held_out: int = 5  # a seed holds out one of so many blocks
    dates: int = 32  # of a batch of the pool: every coin of each
    rows: int = 256  # of a batch of one series


def fit_networks(
    terms_NSK: FloatArray,
    rest_NSH: FloatArray,
    mask_NS: NDArray[np.bool_],
    evaluated: slice,
    bar_s: int,
    *,
    alone: bool,
) -> FloatArray:
    """Train networks on what a base leaves over; the mean of the seeds, (J, S, H).

    Pooled, or a network for each series (`alone`). Seed m holds every block of dates out whose number leaves
    m; the epoch with the smallest error there is kept, and none where the base is better.
    """
    how = Training()
    shift = terms_NSK[mask_NS].mean(axis=0)
    scale = terms_NSK[mask_NS].std(axis=0)
    inputs = np.nan_to_num((terms_NSK - shift) / np.where(scale > 0, scale, 1.0)).astype(np.float32)
    inputs = np.clip(inputs, -5, 5)
    rest = np.nan_to_num(rest_NSH).astype(np.float32)
    weights = mask_NS.astype(np.float32)
    if not alone:
        return _trained(inputs, rest, weights, evaluated=evaluated, bar_s=bar_s, how=how)
    parts = [
        _trained(
            inputs[:, [place]],
            rest[:, [place]],
            weights[:, [place]],
            evaluated=evaluated,
            bar_s=bar_s,
            how=how,
        )
        for place in range(mask_NS.shape[1])
    ]
    return np.concatenate(parts, axis=1)


Layers = list[Any]  # kernels and constants of three dense layers, in turns


def _trained(
    inputs: Any, rest: Any, weights: Any, *, evaluated: slice, bar_s: int, how: Training
) -> FloatArray:
    """Train the seeds of one network, one after the other, and average what they say."""
    import jax  # noqa: PLC0415 - not needed without networks

    data = (inputs, rest, weights)
    on_device = tuple(map(jax.numpy.asarray, (inputs, rest, weights)))
    bars = how.block_days * 86_400 // bar_s
    forecasts = []
    of_batch = how.dates if inputs.shape[1] > 1 else how.rows
    dates = np.flatnonzero(weights.any(axis=1))
    blocks = [((dates + off) // bars) % how.held_out for off in (0, -HORIZON, HORIZON)]
    for seed in range(how.seeds):
        generator = np.random.default_rng(seed)
        free = dates[np.all([block != seed for block in blocks], axis=0)]
        held = dates[blocks[0] == seed][::3]
        layers = _first_layers(generator, inputs.shape[2], rest.shape[2], how)
        means = [np.zeros_like(layer) for layer in layers]
        squares = [np.zeros_like(layer) for layer in layers]
        state: tuple[Any, ...] = (layers, means, squares, np.float32(0))
        least = _error(layers, data, held)
        best_layers = layers
        num_chunks = len(free) // 2 // of_batch // CHUNK
        for epoch in range(how.epochs):
            rows = generator.permutation(free[epoch % 2 :: 2])[: num_chunks * CHUNK * of_batch]
            for number, chunk in enumerate(rows.reshape(num_chunks, CHUNK, of_batch)):
                share = np.float32((epoch + number / num_chunks) / how.epochs)
                key = jax.random.fold_in(jax.random.key(seed), epoch * num_chunks + number)
                state = _compiled(how)(state, on_device, chunk, share, key)
            layers = [np.asarray(array) for array in state[0]]
            error = _error(layers, data, held)
            if error < least:
                least = error
                best_layers = layers
        forecasts.append(_said(np, best_layers, inputs[evaluated]))
    return np.mean(forecasts, axis=0, dtype=np.float64)


CHUNK: Final = 10  # steps of a call: what is compiled does not depend on how long history is


def _first_layers(generator: np.random.Generator, num_terms: int, num_steps: int, how: Training) -> Layers:
    """Draw two layers; the last one is zero, so that a network begins as its base."""
    sizes = (num_terms, how.units), (how.units, how.units), (how.units, num_steps)
    scales = [(2 / rows) ** 0.5 for rows, _ in sizes[:2]] + [0.0]
    layers: Layers = []
    for size, scale in zip(sizes, scales, strict=True):
        layers += [generator.normal(size=size) * scale, np.zeros(size[1])]
    return [layer.astype(np.float32) for layer in layers]


def _said(xp: Any, layers: Layers, inputs: Any, masks: Any = (1.0, 1.0)) -> Any:
    """Compute the network, in numpy or JAX."""
    hidden = inputs
    for place in range(2):
        sums = hidden @ layers[2 * place] + layers[2 * place + 1]
        # gelu, as its authors approximate it (Hendrycks & Gimpel 2016, arXiv:1606.08415)
        hidden = sums / 2 * (1 + xp.tanh(0.7978846 * (sums + 0.044715 * sums**3))) * masks[place]
    return hidden @ layers[4] + layers[5]


def _error(layers: Layers, data: Any, rows: Any, xp: Any = np, masks: Any = (1.0, 1.0)) -> Any:
    """Return the mean squared error over some dates, each of the same weight, however many coins it has."""
    inputs, rest, weights = (array[rows] for array in data)
    by_row = ((_said(xp, layers, inputs, masks) - rest) ** 2).mean(axis=-1) * weights
    return (by_row.sum(axis=1) / weights.sum(axis=1).clip(1.0)).mean()


@cache
def _compiled(how: Training) -> Any:
    """Compile some steps of Adam (Kingma & Ba 2015) with decoupled weight decay."""
    import jax  # noqa: PLC0415
    from jax import numpy as xp  # noqa: PLC0415

    def loss(layers: Layers, data: Any, rows: Any, key: Any) -> Any:
        shape = (2, *data[2][rows].shape, how.units)
        masks = jax.random.bernoulli(key, 1 - how.dropout, shape) / (1 - how.dropout)
        return _error(layers, data, rows, xp, masks)

    def step(data: Any, rate: Any, carried: Any, batch: Any) -> Any:
        layers, means, squares, count = carried
        slopes = jax.grad(loss)(layers, data, *batch)
        count = count + 1
        means = [0.9 * old + 0.1 * new for old, new in zip(means, slopes, strict=True)]
        squares = [0.999 * old + 0.001 * new**2 for old, new in zip(squares, slopes, strict=True)]
        moved = [
            one
            - rate
            * (mean / (1 - 0.9**count) / (xp.sqrt(square / (1 - 0.999**count)) + 1e-8) + how.decay * one)
            for one, mean, square in zip(layers, means, squares, strict=True)
        ]
        return (moved, means, squares, count), None

    def chunk(state: Any, data: Any, rows: Any, share: Any, key: Any) -> Any:
        rate = how.rate * (0.55 + 0.45 * xp.cos(xp.pi * share))
        return jax.lax.scan(partial(step, data, rate), state, (rows, jax.random.split(key, CHUNK)))[0]

    return jax.jit(chunk)


# Folds


@dataclass
class Fold:
    """One origin: what is evaluated, and what every method forecast."""

    market: Market
    start: int  # first evaluated row
    stop: int  # past the last one
    kind: str
    usable_NS: NDArray[np.bool_]
    target_NSH: FloatArray
    forecasts: dict[str, FloatArray] = field(default_factory=dict)  # per method, (J, S, H)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def evaluated(self) -> slice:
        """The evaluated rows: all their ten bars lie before the end."""
        return slice(self.start, self.stop - HORIZON)

    def keep(self, name: str, make: Callable[[], FloatArray]) -> None:
        """Ask a method, and note the processor time it took."""
        began = time.process_time()
        self.forecasts[name] = make()
        self.seconds[name] = time.process_time() - began

    def mean_of(self, *names: str) -> None:
        """Keep the mean of some methods in logs."""
        self.forecasts[" + ".join(names)] = np.mean([self.forecasts[name] for name in names], axis=0)


def usable_rows(market: Market) -> NDArray[np.bool_]:
    """Mark the rows of which every term and the ten coming bars are known, (N, S)."""
    required = [own_terms(market, longest=True), pooled_terms(market, block=True), market.target()]
    return np.logical_and.reduce([np.isfinite(values).all(axis=-1) for values in required])


def folds_of(market: Market, timeframe: str) -> Iterator[Fold]:
    """Yield the folds of a timeframe, with targets and usable rows."""
    usable = usable_rows(market)
    target = market.target()
    for first, end, kind in ORIGINS[timeframe]:
        yield Fold(market, market.row(first), market.row(end), kind, usable, target)


def window_name(bars: int) -> str:
    """Name the number of bars that a method was fitted to."""
    return "all" if bars == ALL else f"{bars:,}"


def ask_formulas(fold: Fold) -> None:
    """Ask the regression of each series, on several windows and on the one that was best before."""
    terms = own_terms(fold.market)
    target = fold.target_NSH
    before = slice(fold.start - VALIDATION, fold.start - HORIZON)
    errors = {}
    for bars in WINDOWS:
        mask = teacher_forced(fold.usable_NS, before.start, bars)
        tried = fit_own(terms, target, mask, before)
        errors[bars] = float(np.nanmean(np.abs(tried - target[before])))
        name = f"own regression, {window_name(bars)}"
        fold.keep(
            name,
            partial(fit_own, terms, target, teacher_forced(fold.usable_NS, fold.start, bars), fold.evaluated),
        )
    best = min(errors, key=errors.__getitem__)
    fold.forecasts["own regression, best window"] = fold.forecasts[f"own regression, {window_name(best)}"]
    print_progress(f"best window {window_name(best)}")
    longer = own_terms(fold.market, longest=True)
    for bars in (HISTORY, ALL):
        mask = teacher_forced(fold.usable_NS, fold.start, bars)
        fold.keep(
            f"own regression, 960 bars, {window_name(bars)}",
            partial(fit_own, longer, target, mask, fold.evaluated),
        )
    fold.mean_of(REFERENCE, OWN)


def bases_of(fold: Fold) -> dict[str, FloatArray]:
    """Return what pooled methods start from: the series' own level, or its regression on all history."""
    mask = teacher_forced(fold.usable_NS, fold.start, ALL)
    formula = fit_own(own_terms(fold.market), fold.target_NSH, mask, slice(0, len(mask)))
    return {"level": np.broadcast_to(fold.market.level_NS[..., None], formula.shape), "formula": formula}


def ask_pools(fold: Fold) -> None:
    """Ask pooled regressions, and regressions of each series shrunk to them."""
    for block, bars, (base, values) in product((False, True), (HISTORY, ALL), bases_of(fold).items()):
        terms = pooled_terms(fold.market, block=block)
        mask = teacher_forced(fold.usable_NS, fold.start, bars)
        name = f"{base}{', market' if block else ''}, {window_name(bars)}"
        fold.keep(f"pooled regression from {name}", partial(pooled, fold, terms, values, mask))
        fold.mean_of(f"pooled regression from {name}", OWN)
        if base == "formula" and bars == ALL:
            shrunk = partial(fit_shrunk, terms, fold.target_NSH, values, mask, fold.evaluated)
            fold.keep(f"shrunk to the pool from {name}", shrunk)


def ask_unseen(fold: Fold) -> None:
    """Ask pools of fifteen coins about the five that they never saw, of which 960 bars are known."""
    level = level_of(fold.market, is_unseen=True)[..., None]
    base = np.broadcast_to(level, fold.target_NSH.shape)
    for block in (False, True):
        terms = pooled_terms(fold.market, block=block, is_unseen=True)
        mask = teacher_forced(fold.usable_NS, fold.start, ALL)
        forecasts = np.full(fold.forecasts[OWN].shape, np.nan)
        for left_out in range(4):
            unseen = np.arange(mask.shape[1]) % 4 == left_out
            pooled_forecasts = pooled(fold, terms, base, mask & ~unseen)
            forecasts[:, unseen] = pooled_forecasts[:, unseen]
        fold.forecasts[f"pool of the other coins{', market' if block else ''}, all"] = forecasts


def ask_trees(fold: Fold) -> None:
    """Ask pooled boosted trees."""
    for block, bars, (base, values) in product((False, True), (HISTORY, ALL), bases_of(fold).items()):
        terms = pooled_terms(fold.market, block=block)
        mask = teacher_forced(fold.usable_NS, fold.start, bars)
        name = f"pooled trees from {base}{', market' if block else ''}, {window_name(bars)}"
        fold.keep(name, partial(fit_trees, terms, fold.target_NSH, values, mask, fold.evaluated))
        fold.mean_of(name, OWN)


def pooled(fold: Fold, terms: FloatArray, base: FloatArray, mask: NDArray[np.bool_]) -> FloatArray:
    """Forecast the evaluated rows by one regression over all series, (J, S, H)."""
    fitted = fit_pooled(terms, fold.target_NSH, base, mask)
    return terms[fold.evaluated] @ fitted + base[fold.evaluated]


def ask_networks(fold: Fold) -> None:
    """Ask pooled networks, from the level and from the formula, and networks of each series."""
    bases = bases_of(fold)
    bar_s = fold.market.series[0].bar_s
    for base, block, bars, alone in NETWORKS:
        start = bases[base]
        mask = teacher_forced(fold.usable_NS & np.isfinite(start).all(axis=-1), fold.start, bars)
        terms = pooled_terms(fold.market, block=block)

        def fit(terms: FloatArray, start: FloatArray, mask: NDArray[np.bool_], alone: bool) -> FloatArray:
            rest = fold.target_NSH - start
            residuals = fit_networks(terms, rest, mask, fold.evaluated, bar_s, alone=alone)
            return residuals + start[fold.evaluated]

        whose = "own" if alone else "pooled"
        name = f"{whose} network from {base}{', market' if block else ''}, {window_name(bars)}"
        fold.keep(name, partial(fit, terms, start, mask, alone))
        print_progress(name)
        fold.mean_of(name, OWN)


NETWORKS: Final = (  # from what, market block, bars of history, one for each series
    ("formula", True, ALL, False),
    ("formula", False, ALL, False),
    ("formula", True, HISTORY, False),
    ("formula", False, ALL, True),
)


# Judging


@dataclass(frozen=True)
class MethodComparison:
    """A method compared with another, over some folds."""

    median: float  # multiple of the other's error
    num_smaller: int
    num_cells: int
    p: float | None
    mean: float

    def __str__(self) -> str:
        chance = "" if self.p is None else f" p {self.p:.2g}"
        return f"{self.median:.4f} ({self.num_smaller}/{self.num_cells}){chance}"


def errors_of(fold: Fold, name: str) -> FloatArray:
    """Return the error of each window, (J, S), log range; NaN where a series has none."""
    steps = [step - 1 for step in STEPS]
    return np.abs(fold.forecasts[name] - fold.target_NSH[fold.evaluated])[..., steps].mean(axis=-1)


def compare_methods(folds: Sequence[Fold], name: str, other: str) -> MethodComparison:
    """Compare a method with another on the same windows."""
    ratios = []
    differences = []
    for fold in folds:
        ours = errors_of(fold, name)
        theirs = errors_of(fold, other)
        have_both = np.isfinite(ours) & np.isfinite(theirs)
        ours, theirs = (np.where(have_both, errors, np.nan) for errors in (ours, theirs))
        usual_S = np.nanmean(theirs, axis=0)
        ratios.append(np.nanmean(ours, axis=0) / usual_S)
        differences.append(np.nanmean((ours - theirs) / usual_S, axis=1))
    moved = np.concatenate(differences)
    is_finite = np.isfinite(moved)
    flat = np.concatenate(ratios)
    test = diebold_mariano(moved[is_finite], horizon_bars=HORIZON)
    flat = flat[np.isfinite(flat)]
    return MethodComparison(
        float(np.median(flat)), int((flat < 1).sum()), len(flat), test.p_value, float(flat.mean())
    )


def show(timeframe: str, folds: Sequence[Fold], other: str = REFERENCE) -> dict[str, Any]:
    """Print a line for each method: each fold, then the calm ones and all."""
    print(f"\n{timeframe}: error of the log range / {other}: median (smaller on), p")
    names = [name for name in folds[0].forecasts if name != other]
    groups = {f"{one.kind} {ORIGINS[timeframe][place][0]}": [one] for place, one in enumerate(folds)}
    groups["all folds"] = list(folds)
    print(f"{'':<52}" + "".join(f"{name:>30}" for name in groups))
    comparisons = {
        name: {group: compare_methods(those, name, other) for group, those in groups.items()}
        for name in names
    }
    for name, cells in comparisons.items():
        spent = sum(fold.seconds.get(name, 0.0) for fold in folds)
        print(f"{name:<52}" + "".join(f"{cell!s:>30}" for cell in cells.values()) + f"{spent:8.1f} s")
    return {name: {group: vars(one) for group, one in cells.items()} for name, cells in comparisons.items()}


# From ranges to candles, bands and volatility

BASELINE_WINDOWS: Final = (PRODUCT, ALL)
EVALUATED_STRIDE: Final = 8  # every such window is decoded: neighbours share most bars
BEST_BASELINES: Final = (
    "har",
    "range_paths",
)  # the best baselines of every fold of docs/research/frontier.md
FORMULA: Final = "formula"
Losses = dict[str, dict[str, FloatArray]]
"""Per task and forecaster the loss of each window in returns, (W,)."""


@dataclass(frozen=True)
class Decoded:
    """One series of one fold."""

    losses: Losses
    bar_numbers: NDArray[np.int64]


def decoded(fold: Fold, place: int, candles: Candles, ranges: Mapping[str, FloatArray]) -> Decoded | None:
    """Compare forecasts from log ranges, `ranges` by method, (J, H), with baselines; None of a new coin."""
    profile = load_profile("frontier")
    table = compute_table(candles, table_columns(profile))
    anchors = window_anchors(table.segment, (0, len(table)), profile.lookback_bars, HORIZON)
    grid = np.searchsorted(fold.market.times_s, table.open_time_s[anchors])
    is_forecast = np.asarray(np.isfinite(np.stack([*ranges.values()])).all(axis=(0, 2)))
    is_evaluated = (
        (grid >= fold.evaluated.start) & (grid < fold.evaluated.stop) & (grid % EVALUATED_STRIDE == 0)
    )
    is_evaluated[is_evaluated] = is_forecast[grid[is_evaluated] - fold.start]
    last = fold.start - EMBARGO
    span = Span(table, profile, anchors[is_evaluated])
    teaching = {
        bars: Span(table, profile, anchors[(grid < last) & (grid >= last - bars)])
        for bars in BASELINE_WINDOWS
    }
    if len(teaching[PRODUCT]) < HISTORY // 4 or not len(span):
        return None
    losses: Losses = {task: {} for task in profile.tasks}

    def keep(name: str, forecasts: Mapping[str, Any]) -> None:
        for task, values in forecasts.items():
            losses[task][name] = measure_errors(span, task, np.asarray(values))[1]

    keep(NAIVE, span.naive)
    for bars, train in teaching.items():
        rows = int(train.anchors[0]), int(train.anchors[-1]) + 1
        scaling = fit_scaling(train, rows, table_columns(profile))
        for name in BEST_BASELINES:
            keep(f"{name}, {window_name(bars)}", BASELINES[name].fit(train, scaling)(span))
        fitted = fit_ensemble(train)
        keep(f"{FORMULA}, {window_name(bars)}", regressed(fitted, span, fitted.ranges(span)))
    for name, logs in ranges.items():
        keep(name, regressed(fitted, span, np.exp(logs[grid[is_evaluated] - fold.start])))
    return Decoded(losses, span.bar_numbers)


def regressed(fitted: RangeFormula, span: Span, ranges_WH: FloatArray) -> dict[str, FloatArray]:
    """Make of ranges what the regression of `calibration: ensemble` makes of them."""
    terms = move_terms(np, span.naive_closes, ranges_WH)
    forecasts = {}
    for task, coefficients in fitted.moves.items():
        forecasts[task] = span.moved(
            task, np.einsum("whr,hrc->whc", terms[TASKS[task].has_window], coefficients)
        )
    return forecasts


DECODED: Final = (
    OWN,
    "pooled network from formula, market, all",
    "pooled network from formula, all",
    "own network from formula, all",
)


def decode_all(timeframe: str, folds: Sequence[Fold], candles: Sequence[Candles]) -> dict[str, Any]:
    """Judge the methods that count on OHLC, bands and volatility."""
    by_fold = []
    for number, fold in enumerate(folds):
        cells = []
        for place, series_candles in enumerate(candles):
            ranges = {
                name: forecasts[:, place]
                for name, forecasts in fold.forecasts.items()
                if name.removesuffix(f" + {OWN}") in DECODED
            }
            cell = decoded(fold, place, series_candles, ranges)
            if cell is not None:
                cells.append(cell)
        by_fold.append((f"{fold.kind} {ORIGINS[timeframe][number][0]}", cells))
        print_progress(f"decoded fold {number + 1}")
    return show_decoded(timeframe, by_fold)


def show_decoded(timeframe: str, folds: Sequence[tuple[str, Sequence[Decoded]]]) -> dict[str, Any]:
    """Print medians over series relative to naive, and each method compared with the best baseline."""
    result: dict[str, Any] = {}
    for task in folds[0][1][0].losses:
        names = [name for name in folds[0][1][0].losses[task] if name != NAIVE]
        baselines = [name for name in names if name.partition(",")[0] in BASELINES]
        print(f"\n{timeframe} {task}: error / naive, multiple of the best baseline (smaller on) p; of {OWN}")
        for fold, cells in folds:
            middle = {name: median_multiple(cells, task, name, NAIVE) for name in names}
            best = min(baselines, key=middle.__getitem__)
            print(f"  {fold}: best baseline {best}")
            for name in names:
                tests = {other: contest(cells, task, name, other) for other in (best, OWN)}
                told_tests = "".join(f"{test!s:>30}" for test in tests.values())
                print(f"    {name:<66} {middle[name]:.4f}{told_tests}")
                against = {other: vars(one) for other, one in tests.items()}
                result[f"{task} / {fold} / {name}"] = {"naive": middle[name], "against": against}
    return result


def median_multiple(cells: Sequence[Decoded], task: str, name: str, other: str) -> float:
    """Return the median over series of a method's error relative to another's."""
    return float(
        np.median([cell.losses[task][name].mean() / cell.losses[task][other].mean() for cell in cells])
    )


def contest(cells: Sequence[Decoded], task: str, name: str, other: str) -> MethodComparison:
    """Compare a method with another as a back-test does: the series of a close averaged first."""
    bars = np.concatenate([cell.bar_numbers for cell in cells])
    moved = np.concatenate(
        [
            (cell.losses[task][name] - cell.losses[task][other]) / cell.losses[task][NAIVE].mean()
            for cell in cells
        ]
    )
    _, places = np.unique(bars, return_inverse=True)
    mean = np.bincount(places, weights=moved) / np.bincount(places)
    test = diebold_mariano(mean, horizon_bars=HORIZON)
    ratios = [cell.losses[task][name].mean() / cell.losses[task][other].mean() for cell in cells]
    flat = np.array(ratios)
    return MethodComparison(
        float(np.median(flat)), int((flat < 1).sum()), len(flat), test.p_value, float(flat.mean())
    )


def print_progress(message: str) -> None:
    """Print a line to standard error, with the processor seconds so far."""
    sys.stderr.write(f"{time.process_time():7.1f} s  {message}\n")


def main() -> int:
    """Evaluate all methods on all folds, print the tables and write the JSON; return the exit code."""
    options = parse(sys.argv[1:])
    results = {}
    for timeframe in options.timeframe:
        market, candles = read_market(timeframe, options.cache)
        folds = [*folds_of(market, timeframe)]
        for fold in folds:
            print_progress(f"{timeframe}: {fold.kind}, {fold.start:,} bars before")
            ask_formulas(fold)
            for kind in options.ask:
                ASKED[kind](fold)
        results[timeframe] = show(timeframe, folds)
        if options.decoded:
            results[f"{timeframe} decoded"] = decode_all(timeframe, folds, candles)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


ASKED: Final[Mapping[str, Callable[[Fold], None]]] = {
    "pools": ask_pools,
    "unseen": ask_unseen,
    "trees": ask_trees,
    "networks": ask_networks,
}


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--timeframe", nargs="+", default=["15m", "1h"], choices=sorted(ORIGINS))
    parser.add_argument("--cache", type=Path, default=Path("runs/research"), help="where candles are kept")
    parser.add_argument(
        "--ask", nargs="*", default=["pools"], choices=sorted(ASKED), help="in addition to formulas"
    )
    parser.add_argument("--decoded", action="store_true", help="also OHLC, bands and volatility")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
