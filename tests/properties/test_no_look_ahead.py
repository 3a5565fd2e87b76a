"""No feature sees the future, whatever the market does and wherever it has holes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from walked_market import PRICES, checked, walked_market

from v8.data.features import FeatureTable, compute_table
from v8.profile.columns import OHLCV
from v8.profile.indicators import FEATURES, warmup_bars

NUM_ROWS = 520
SEEDS = st.integers(0, 2**32 - 1)
EVERY = tuple(FEATURES)
BOUNDS = {"day": (-1, 1), "week": (-1, 1), "move": (0, 6), "rolled": (0, 10), "range": (0, np.inf)}
BOUNDS |= {"realised": (0, np.inf)}


def assert_rows_equal(one: FeatureTable, other: FeatureTable, num_rows: int) -> None:
    assert one.columns == other.columns
    for first, second in (
        (one.open_time_s, other.open_time_s),
        (one.select(one.columns), other.select(one.columns)),
        (one.segment, other.segment),
    ):
        assert first[:num_rows].tobytes() == second[:num_rows].tobytes()


@settings(deadline=None, max_examples=50)
@given(seed=SEEDS, price=st.sampled_from(PRICES), cut=st.integers(260, NUM_ROWS - 1))
def test_g3_a_changed_future_leaves_earlier_rows_bit_identical(seed: int, price: float, cut: int) -> None:
    frame = walked_market(seed, NUM_ROWS, price=price)
    changed = frame.copy()
    other = walked_market(seed + 1, NUM_ROWS, price=2 * price)
    changed.loc[cut:, list(OHLCV)] = other.loc[cut:, list(OHLCV)]
    known = cut - warmup_bars(EVERY)
    before = compute_table(checked(frame), EVERY)
    after = compute_table(checked(changed), EVERY)
    assert len(before) == len(after) == NUM_ROWS - warmup_bars(EVERY)
    assert_rows_equal(before, after, known)
    # The change itself must be seen, or the test would prove nothing.
    assert before.select(EVERY)[known:].tobytes() != after.select(EVERY)[known:].tobytes()


@settings(deadline=None, max_examples=50)
@given(seed=SEEDS, price=st.sampled_from(PRICES), num_known=st.integers(241, NUM_ROWS))
def test_g3_the_table_of_the_first_candles_is_the_start_of_the_whole_table(
    seed: int, price: float, num_known: int
) -> None:
    frame = walked_market(seed, NUM_ROWS, price=price)
    whole = compute_table(checked(frame), EVERY)
    start = compute_table(checked(frame[:num_known]), EVERY)
    assert len(start) == num_known - warmup_bars(EVERY)
    assert_rows_equal(whole, start, len(start))


@settings(deadline=None, max_examples=50)
@given(seed=SEEDS, hole=st.integers(200, 260), num_missing=st.integers(1, 10), cut=st.integers(512, NUM_ROWS))
def test_g3_holds_across_holes(seed: int, hole: int, num_missing: int, cut: int) -> None:
    frame = walked_market(seed, NUM_ROWS, price=1.0).drop(range(hole, hole + num_missing))
    start = frame[frame.index < cut]
    whole = compute_table(checked(frame), EVERY)
    first = compute_table(checked(start), EVERY)
    assert len(first) == sum(max(0, rows - 240) for rows in (hole, cut - hole - num_missing))
    assert_rows_equal(whole, first, len(first))


@settings(deadline=None, max_examples=50)
@given(seed=SEEDS, price=st.sampled_from(PRICES))
def test_every_feature_of_every_market_is_finite(seed: int, price: float) -> None:
    table = compute_table(checked(walked_market(seed, NUM_ROWS, price=price)), EVERY)
    assert np.isfinite(table.select(table.columns)).all()
    assert (table.column("bb_lower") <= table.column("bb_upper")).all()
    assert ((table.column("rsi") >= 0) & (table.column("rsi") <= 100)).all()
    for name in ("volatility", "bb_width", "atr", "volume_norm", "recent_range"):
        assert (table.column(name) >= 0).all(), name
    for name in EVERY:
        least, most = BOUNDS.get(name.partition("_")[0], (-np.inf, np.inf))
        assert ((table.column(name) >= least) & (table.column(name) <= most)).all(), name
    assert {name for name, feature in FEATURES.items() if feature.formula} < set(table.columns)
