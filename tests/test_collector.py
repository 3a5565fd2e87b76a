"""The collector is off while much is made, and as it was afterwards."""

from __future__ import annotations

import gc

import pytest

from v8.collector import collected_later


def test_the_collector_is_off_within_the_block_alone_whatever_happens_there() -> None:
    assert gc.isenabled()
    with collected_later(), collected_later():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), collected_later():
        _ = 1 / 0
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collected_later():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
