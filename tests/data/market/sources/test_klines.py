"""Answers of the API, whatever they are: rows that can be true, or one sentence."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from v8.base.errors import DataError
from v8.data.market.series import Series
from v8.data.market.sources.rest import CandleSpan, read_code, read_klines, read_time

SERIES = Series("BTCUSDT", "15m")
FIRST_S = 1_725_408_000
SPAN = CandleSpan(SERIES, FIRST_S, FIRST_S + 19 * 900)


def row(number: int) -> list[Any]:
    open_ms = (FIRST_S + number * 900) * 1_000
    return [open_ms, "10.0", "11.0", "9.5", "10.5", "3.25", open_ms + 899_999, "0.0", 0, "0.0", "0.0", "0"]


def test_rows_become_candles() -> None:
    rows = read_klines(json.dumps([row(3), row(4)]).encode(), "host", SPAN, 20)
    assert rows["open_time"].tolist() == [(FIRST_S + 2_700) * 1_000, (FIRST_S + 3_600) * 1_000]
    assert rows[["open", "high", "low", "close", "volume"]].iloc[1].tolist() == [10.0, 11.0, 9.5, 10.5, 3.25]
    assert SPAN.suspect_part(rows) == SPAN
    assert len(read_klines(b"[]", "host", SPAN, 20)) == 0


def test_what_is_missing_is_the_shortest_span_around_it() -> None:
    rows = read_klines(json.dumps([row(n) for n in range(20) if n not in {5, 9}]).encode(), "host", SPAN, 20)
    assert SPAN.suspect_part(rows) == CandleSpan(SERIES, FIRST_S + 5 * 900, FIRST_S + 9 * 900)
    assert (
        SPAN.suspect_part(read_klines(json.dumps([row(n) for n in range(20)]).encode(), "", SPAN, 20)) is None
    )


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([row(0)[0], row(1)[6], "1e999", "10.0", "-0.0", "1_0", "\u0661", " 1"]),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=20,
)
near = st.lists(st.integers(0, 25).map(row), max_size=22).flatmap(
    lambda rows: st.lists(st.tuples(st.integers(0, 21), st.integers(0, 6), anything), max_size=2).map(
        lambda changes: with_changes(rows, changes)
    )
)


def with_changes(rows: list[list[Any]], changes: list[tuple[int, int, Any]]) -> list[list[Any]]:
    for number, place, value in changes:
        if number < len(rows):
            rows[number][place] = value
    return rows


@settings(max_examples=150, deadline=None)
@given(answer=st.binary(max_size=60) | (anything | near).map(lambda value: json.dumps(value).encode()))
def test_any_answer_is_refused_in_one_sentence_or_could_be_true(answer: bytes) -> None:
    try:
        rows = read_klines(answer, "host", SPAN, 20)
    except DataError as error:
        assert str(error).isprintable()
        assert len(str(error)) <= 600
        return
    opens = rows["open_time"].to_numpy() // 1_000
    assert set(opens) <= set(range(SPAN.first_s, SPAN.last_s + 1, 900))
    assert np.all(np.diff(opens) > 0)
    prices = rows[["open", "high", "low", "close"]].to_numpy()
    assert np.isfinite(rows.to_numpy()).all()
    assert np.all(prices > 0)
    assert np.all(prices.max(axis=1, initial=0) <= rows["high"])
    assert np.all(prices.min(axis=1, initial=1e18) >= rows["low"])


@settings(max_examples=80, deadline=None)
@given(answer=st.binary(max_size=40) | anything.map(lambda value: json.dumps({"serverTime": value}).encode()))
def test_any_time_is_refused_or_plausible(answer: bytes) -> None:
    try:
        assert 1.5e9 <= read_time(answer, "host") < 4.2e9
    except DataError as error:
        assert str(error).isprintable()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"code": "x"}', b'{"code": 1.5}', b"\xff"])
def test_a_refusal_without_a_code_has_none(content: bytes) -> None:
    assert read_code(content) == (0, "")
