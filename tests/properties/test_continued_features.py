"""Going on from known columns gives the bits of a computation from scratch, for every feature."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from v8.data.features import Chunks, compute_columns
from v8.data.market.candles import Candles
from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.profile.indicators import FEATURES, Feature, Formula, Kind

NUM_ROWS = 620
EVERY = tuple(FEATURES)
SEEDS = st.integers(0, 2**32 - 1)


def random_candles(seed: int, holes: list[int]) -> Candles:
    """Return a walk with quiet, wild and dead stretches, and with holes."""
    rng = np.random.default_rng(seed)
    stretch = np.repeat(rng.choice([0.0, 1e-4, 0.03], size=NUM_ROWS // 20), 20)
    close = rng.choice([1e-5, 1.0, 1e5]) * np.exp(np.cumsum(rng.normal(0, 1, NUM_ROWS) * stretch))
    opened = np.concatenate([close[:1], close[:-1]])
    bars = np.arange(NUM_ROWS) + np.searchsorted(sorted(holes), np.arange(NUM_ROWS), side="right")
    frame = pd.DataFrame(
        {
            "open_time": (1_700_000_100 + 900 * bars) * 1000,
            "open": opened,
            "high": np.maximum(opened, close) * (1 + rng.uniform(0, 0.01, NUM_ROWS) * (stretch > 0)),
            "low": np.minimum(opened, close) * (1 - rng.uniform(0, 0.01, NUM_ROWS) * (stretch > 0)),
            "close": close,
            "volume": rng.gamma(2.0, 10.0, NUM_ROWS) * (stretch > 0),
        }
    )
    return check_candles(frame, Series("BTCUSDT", "15m"), source="demo")


def gone_on(known: dict[str, Chunks], grown: Candles, names: Sequence[str]) -> dict[str, Chunks]:
    """Return known columns with the rows of the candles that came since."""
    new = compute_columns(grown, names, len(joined(known, names[0])))
    return {name: (*known[name], *new[name]) for name in names}


def joined(columns: dict[str, Chunks], name: str) -> np.ndarray:
    return np.concatenate(columns[name])


def assert_same_bits(one: dict[str, Chunks], other: dict[str, Chunks]) -> None:
    assert one.keys() == other.keys()
    differing = [name for name in one if joined(one, name).tobytes() != joined(other, name).tobytes()]
    assert differing == []


@settings(deadline=None, max_examples=60)
@given(
    seed=SEEDS,
    holes=st.lists(st.integers(1, NUM_ROWS - 1), max_size=3, unique=True),
    cuts=st.lists(st.integers(1, NUM_ROWS - 1), min_size=1, max_size=4, unique=True),
)
def test_every_feature_goes_on_from_any_row_across_any_hole(
    seed: int, holes: list[int], cuts: list[int]
) -> None:
    candles = random_candles(seed, holes)
    opens = candles.open_time_s
    first, *later = sorted(cuts)
    known = compute_columns(candles.newest(NUM_ROWS, int(opens[first - 1])), EVERY)
    for cut in (*later, NUM_ROWS):
        grown = candles.newest(NUM_ROWS, int(opens[cut - 1]))
        known = gone_on(known, grown, EVERY)
        assert_same_bits(known, compute_columns(grown, EVERY))


@settings(deadline=None, max_examples=10)
@given(seed=SEEDS, cut=st.integers(1, NUM_ROWS - 1))
def test_a_formula_of_ones_own_may_look_at_all_of_its_piece(seed: int, cut: int) -> None:
    total = Formula(np.cumsum, ("volume",), warmup_bars=1)
    FEATURES.register(Feature("total", "volume so far, base currency", "this test", Kind.POSITIVE, total))
    try:
        candles = random_candles(seed, [])
        newest = compute_columns(
            candles.newest(NUM_ROWS, int(candles.open_time_s[cut - 1])), ["total", "rsi"]
        )
        went_on = gone_on(newest, candles, ["total", "rsi"])
        assert_same_bits(went_on, compute_columns(candles, ["total", "rsi"]))
    finally:
        FEATURES.pop("total")
