"""Numbers in the database: what is read is what was written, or an error."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from v8.annexes.live.ledger.entries import pack, unpack, unpack_plain

SHAPES = array_shapes(min_dims=1, max_dims=3, max_side=6)
SINGLE = st.floats(width=32, allow_nan=False, allow_infinity=False)
DOUBLE = st.floats(allow_nan=False, allow_infinity=False)


@given(arrays(np.float32, SHAPES, elements=SINGLE), arrays(np.float64, SHAPES, elements=DOUBLE))
def test_numbers_come_back_to_the_bit(single: np.ndarray, double: np.ndarray) -> None:
    assert unpack(pack(single), single.shape).tobytes() == single.tobytes()
    assert unpack_plain(double.astype("<f8").tobytes(), double.shape).tobytes() == double.tobytes()


@given(st.binary(max_size=200))
def test_bytes_that_nobody_packed_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"no packed numbers|not 3 numbers"):
        unpack(content, (3,))


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(ValueError, match="not 3 numbers"):
        unpack(zlib.compress(bytes(1 << 24)), (3,))


@pytest.mark.parametrize("strange", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused(strange: float) -> None:
    with pytest.raises(ValueError, match="infinite or none"):
        unpack(pack(np.array([1, strange], np.float32)), (2,))
    with pytest.raises(ValueError, match="infinite or none"):
        unpack_plain(np.array([1, strange]).tobytes(), (2,))
