"""Covariates: what comes later in another series or a table changes no earlier row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from walked_market import BAR_S, START_S, checked, rows_by_time, walked_market

from v8.data.feature_store import FeatureStore
from v8.data.features import FeatureTable, compute_table
from v8.data.market.candles import Candles
from v8.data.market.companions import Companions
from v8.profile.columns import OHLCV, neighbours
from v8.profile.indicators import FEATURES, covariate_inputs
from v8.profile.settings import TableSettings

NUM_ROWS = 420
SEEDS = st.integers(0, 2**32 - 1)
TABLE = TableSettings(
    file="rates.csv", time="time", columns=("rate",), available_after_s=600, max_age_s=86_400
)
NAMES = ("close", "csv.rate", *(f"BTCUSDT.{name}" for name in FEATURES))
SOME = ("close", "rsi", "csv.rate", "BTCUSDT.close", "BTCUSDT.rsi", "BTCUSDT.roc", "BTCUSDT.ta.rsi(window=2)")


def random_market(seed: int) -> pd.DataFrame:
    """Return a walk with quiet and wild stretches."""
    return walked_market(seed, NUM_ROWS, price=100.0, sizes=(1e-4, 0.03))


def random_table(seed: int) -> pd.DataFrame:
    """Return rows at odd times, some of them close to each other, from a day before the candles on."""
    rng = np.random.default_rng(seed)
    times = START_S - 86_400 + np.unique(rng.integers(0, 86_400 + BAR_S * NUM_ROWS, 300))
    return pd.DataFrame({"time": times, "rate": rng.normal(0, 1e-4, len(times))})


def joined(own: pd.DataFrame, other: pd.DataFrame, table: pd.DataFrame, names: tuple[str, ...]) -> Candles:
    covariates: dict[str, object] = {"rates.csv": table}
    if neighbours(names):  # what is never read is refused
        covariates["BTCUSDT"] = checked(other)
    return Companions(covariate_inputs(names), [TABLE], covariates).joined(checked(own, "ETHUSDT"))


def differing(before: FeatureTable, after: FeatureTable) -> list[int]:
    """Return the open times of rows that are not the same in both."""
    one = rows_by_time(before)
    other = rows_by_time(after)
    assert one.keys() == other.keys()
    return [time for time in one if one[time] != other[time]]


@settings(deadline=None, max_examples=15)
@given(seed=SEEDS, cut=st.integers(280, NUM_ROWS - 1))
def test_g3_the_future_of_another_series_changes_no_earlier_row(seed: int, cut: int) -> None:
    own = random_market(seed)
    other = random_market(seed + 1)
    table = random_table(seed)
    changed = other.copy()
    changed.loc[cut:, list(OHLCV)] = random_market(seed + 2).loc[cut:, list(OHLCV)]
    before, after = (compute_table(joined(own, each, table, NAMES), NAMES) for each in (other, changed))
    differences = differing(before, after)
    # From the changed candle's own row on, which is known when it has closed; and every change is seen.
    assert differences == [START_S + BAR_S * row for row in range(cut, NUM_ROWS)]


@settings(deadline=None, max_examples=25)
@given(seed=SEEDS, cut=st.integers(20, NUM_ROWS - 30))
def test_g3_a_row_of_a_table_counts_for_no_bar_that_closed_before_it_was_known(seed: int, cut: int) -> None:
    own = random_market(seed)
    other = random_market(seed + 1)
    table = random_table(seed)
    changed = table.copy()
    close_s = START_S + BAR_S * (cut + 1)
    is_later = table["time"] + TABLE.available_after_s > close_s
    changed.loc[is_later, "rate"] += 1.0
    names = ("close", "csv.rate")
    before, after = (compute_table(joined(own, other, each, names), names) for each in (table, changed))
    differences = differing(before, after)
    first_s = int(table["time"][is_later].iloc[0]) + TABLE.available_after_s
    assert min(differences) + BAR_S >= first_s > close_s
    assert min(differences) < first_s


@settings(deadline=None, max_examples=10)
@given(seed=SEEDS, num_known=st.integers(300, NUM_ROWS))
def test_g3_what_is_known_of_all_is_the_start_of_the_whole_table(seed: int, num_known: int) -> None:
    own = random_market(seed)
    other = random_market(seed + 1)
    table = random_table(seed)
    last_close_s = START_S + BAR_S * num_known
    known = table[table["time"] + TABLE.available_after_s <= last_close_s]
    whole = compute_table(joined(own, other, table, NAMES), NAMES)
    start = compute_table(joined(own[:num_known], other[:num_known], known, NAMES), NAMES)
    assert len(start) == len(whole) - (NUM_ROWS - num_known)
    assert list(rows_by_time(whole).items())[: len(start)] == list(rows_by_time(start).items())


@pytest.mark.parametrize("ahead", [0, 1, 10])
def test_g3_a_target_moved_into_a_covariate_is_found_by_what_is_known_of_all(ahead: int) -> None:
    """A block of the market is made of all candles and of those known: a range ahead is not there yet."""

    def block(own: pd.DataFrame) -> pd.DataFrame:
        ranges = np.log(own["high"] / own["low"])
        frame = pd.DataFrame({"time": own["open_time"], "rate": ranges.shift(-ahead)})
        return frame.dropna()

    own = random_market(1)
    other = random_market(2)
    num_known = 350
    names = ("close", "csv.rate")
    whole = rows_by_time(compute_table(joined(own, other, block(own), names), names))
    known = own[:num_known]
    start = rows_by_time(compute_table(joined(known, other[:num_known], block(known), names), names))
    found = [time for time, row in start.items() if row != whole[time]]
    assert found == [START_S + BAR_S * row for row in range(num_known - ahead, num_known)]


@settings(deadline=None, max_examples=8)
@given(
    seed=SEEDS, holes=st.lists(st.integers(1, 60), max_size=2), cuts=st.tuples(*[st.integers(290, 410)] * 2)
)
def test_a_store_that_has_grown_holds_what_is_computed_at_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, holes: list[int], cuts: tuple[int, int]
) -> None:
    store = FeatureStore(tmp_path_factory.mktemp("store"))
    own = random_market(seed)
    table = random_table(seed)
    other = random_market(seed + 1).drop(holes)
    for stop in (*sorted(set(cuts)), NUM_ROWS):
        candles = joined(own[:stop], other[other.index < stop], table, SOME)
        assert differing(store.table(candles, SOME), compute_table(candles, SOME)) == []
    assert store.stats.continued_columns >= len(SOME)


@pytest.mark.parametrize("change", ["series", "table"])
def test_a_store_notices_that_what_lies_beside_candles_has_changed(tmp_path: Path, change: str) -> None:
    store = FeatureStore(tmp_path)
    own = random_market(1)
    other = random_market(2)
    table = random_table(3)
    known = joined(own[:400], other[:400], table, SOME)
    store.table(known, SOME)
    alter: dict[str, Callable[[], object]] = {
        "series": lambda: other.__setitem__("close", other["close"].mask(other.index == 300, other["low"])),
        "table": lambda: table.__setitem__("rate", table["rate"] * 2),
    }
    alter[change]()
    same = joined(own[:400], other[:400], table, SOME)
    grown = joined(own, other, table, SOME)
    assert same.digest != known.digest
    for candles in (same, grown):
        assert differing(store.table(candles, SOME), compute_table(candles, SOME)) == []
