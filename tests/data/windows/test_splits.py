"""Splits: in time order, an embargo apart, every window used, none across a hole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from v8.base.errors import DataError
from v8.data.windows import SPANS, rows_needed, split_rows, window_anchors
from v8.profile.profile import load_profile

ALIGNED = load_profile("aligned")


def test_the_shares_and_the_embargo_of_the_aligned_profile() -> None:
    # 1,140 rows less 2 embargoes of 60 + 10 leave 1,000: 700, 150 and 150.
    split = split_rows(1_140, ALIGNED, location="x")
    assert tuple(split.values()) == ((0, 700), (770, 920), (990, 1_140))


@given(num_rows=st.integers(0, 20_000))
@example(num_rows=605)
@example(num_rows=606)
@example(num_rows=613)
@example(num_rows=614)
def test_g5_spans_follow_each_other_with_an_embargo_between(num_rows: int) -> None:
    try:
        split = split_rows(num_rows, ALIGNED, location="x")
    except DataError as error:
        # `rows_needed` is enough whichever way the shares are rounded; with up to eight rows less, rounding
        # may give every span its window, too.
        assert num_rows < rows_needed(ALIGNED)
        assert f"needs at least {rows_needed(ALIGNED)} rows" in str(error)
        return
    assert num_rows >= rows_needed(ALIGNED) - 8
    assert split["train"][0] == 0
    assert split["test"][1] == num_rows
    assert split["validation"][0] - split["train"][1] == 70
    assert split["test"][0] - split["validation"][1] == 70
    segment = np.zeros(num_rows, np.int32)
    for name in SPANS:
        assert len(window_anchors(segment, split[name], 60, 10)) >= 1


@given(
    holes=st.lists(st.integers(1, 199), max_size=6),
    lookback=st.integers(2, 30),
    horizon=st.integers(1, 12),
    span=st.tuples(st.integers(0, 100), st.integers(100, 200)),
)
def test_g5_every_unbroken_window_of_a_span_is_used_and_no_other(
    holes: list[int], lookback: int, horizon: int, span: tuple[int, int]
) -> None:
    segment = np.zeros(200, np.int32)
    for hole in holes:
        segment[hole:] += 1
    expected = [
        anchor
        for anchor in range(200)
        if anchor - lookback + 1 >= span[0]
        and anchor + horizon < span[1]
        and len(set(segment[anchor - lookback + 1 : anchor + horizon + 1])) == 1
    ]
    assert window_anchors(segment, span, lookback, horizon).tolist() == expected


def test_g5_the_last_window_is_not_lost() -> None:
    anchors = window_anchors(np.zeros(70, np.int32), (0, 70), 60, 10)
    assert anchors.tolist() == [59]  # rows 0..59 in, 60..69 out


def test_too_short_a_series_is_refused_with_the_number_needed() -> None:
    # 71 rows at a share of 0.15 are 474; two embargoes of 70 make 614.
    with pytest.raises(DataError, match=r"BTCUSDT-15m: needs at least 614 rows .* got 500\. Fetch a longer"):
        split_rows(500, ALIGNED, location="BTCUSDT-15m")
