"""The experiment on pooled networks: nothing in it knows the future, and a leak would be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import research_pooled as research

from v8.data.market.series import Series
from v8.profile.columns import CLOSE, HIGH, LOW, OPEN_TIME

NUM_BARS, CUT = 3_200, 2_600
COINS = tuple(Series(symbol, "1h") for symbol in ("BTCUSDT", "ETHUSDT", "ADAUSDT"))
Frames = dict[str, pd.DataFrame]


def frames_of(seed: int = 7) -> tuple[pd.DatetimeIndex, Frames]:
    """Draw candles whose ranges rise and fall together, the last coin listed late."""
    generator = np.random.default_rng(seed)
    grid = pd.date_range("2024-01-01", periods=NUM_BARS, freq="h", tz="UTC", name=OPEN_TIME)
    wild = np.exp(np.convolve(generator.normal(size=NUM_BARS + 99), np.ones(100) / 20, "valid"))
    frames = {}
    for place, one in enumerate(COINS):
        close = 100 * np.exp(np.cumsum(generator.normal(size=NUM_BARS) * 0.002 * wild))
        half = 0.004 * wild * np.exp(generator.normal(size=NUM_BARS) / 3)
        frame = pd.DataFrame(
            {HIGH: close * np.exp(half), LOW: close * np.exp(-half), CLOSE: close}, index=grid
        )
        frame.iloc[: 500 * (place == 2)] = np.nan
        frames[str(one)] = frame
    return grid, frames


def changed(frames: Frames) -> Frames:
    """Make every candle from the cut on three times as wild."""
    late = {name: one.copy() for name, one in frames.items()}
    for one in late.values():
        one.loc[one.index[CUT:], HIGH] *= 1.03
    return late


Terms = Callable[[research.Market], np.ndarray]


def knows_the_future(terms: Terms) -> bool:
    """Return whether any term of a row before the cut changes with candles behind it."""
    grid, frames = frames_of()
    before, after = (terms(research.market_of(COINS, grid, one)) for one in (frames, changed(frames)))
    assert not np.array_equal(before[CUT:], after[CUT:], equal_nan=True)
    return not np.array_equal(before[:CUT], after[:CUT], equal_nan=True)


def pooled_with_market(market: research.Market) -> np.ndarray:
    return research.pooled_terms(market, block=True)


def leaking(market: research.Market) -> np.ndarray:
    """Move a target into the market block."""
    told = np.nan_to_num(market.target()[..., 0]).mean(axis=1, keepdims=True)
    return pooled_with_market(replace(market, market_NK=np.hstack([market.market_NK, told])))


@pytest.mark.parametrize("terms", [research.own_terms, pooled_with_market])
def test_terms_know_closed_bars_alone(terms: Terms) -> None:
    assert not knows_the_future(terms)


def test_a_target_in_the_market_block_is_found() -> None:
    assert knows_the_future(leaking)


KNOWN = 5  # evaluated rows before the cut: fewer than the horizon, so that an embargo of none would be found


def fold_of(frames: Frames, grid: pd.DatetimeIndex) -> research.Fold:
    market = research.market_of(COINS, grid, frames)
    return research.Fold(market, CUT - KNOWN, NUM_BARS, "made", research.usable_rows(market), market.target())


def test_no_method_learns_from_what_it_is_evaluated_on() -> None:
    grid, frames = frames_of()
    made = []
    for one in (frames, changed(frames)):
        fold = fold_of(one, grid)
        research.ask_formulas(fold)
        research.ask_pools(fold)
        made.append(fold.forecasts)
    assert len(made[0]) > 20
    for name, said in made[0].items():
        assert np.isfinite(said[:KNOWN]).all(), name
        assert np.array_equal(said[:KNOWN], made[1][name][:KNOWN]), name
        assert not np.array_equal(said[KNOWN:], made[1][name][KNOWN:]), name


def test_the_figures_are_those_of_plain_arithmetic() -> None:
    grid, frames = frames_of()
    fold = fold_of(frames, grid)
    research.ask_formulas(fold)
    told = research.compare_methods([fold], research.OWN, research.REFERENCE)
    actual = fold.target_NSH[fold.evaluated][..., [0, 2, 5, 9]]
    errors = [
        np.nanmean(np.abs(fold.forecasts[name][..., [0, 2, 5, 9]] - actual), axis=(0, 2))
        for name in (research.OWN, research.REFERENCE)
    ]
    assert told.median == pytest.approx(np.median(errors[0] / errors[1]))
