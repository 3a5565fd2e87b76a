"""Going on from known columns gives the bits of a computation from scratch, for every feature."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from walked_market import BAR_S, checked, walked_market

from v8.data.features import Chunks, compute_columns
from v8.data.market.candles import Candles
from v8.profile.indicators import FEATURES, Feature, Formula, Kind

NUM_ROWS = 620
EVERY = tuple(FEATURES)
SEEDS = st.integers(0, 2**32 - 1)


def random_candles(seed: int, holes: list[int]) -> Candles:
    """Return a walk with holes before some rows."""
    frame = walked_market(seed, NUM_ROWS)
    frame["open_time"] += BAR_S * np.searchsorted(sorted(holes), np.arange(NUM_ROWS), side="right")
    return checked(frame)


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
