"""What is set up once for several runs, and ends with the last of them."""

from __future__ import annotations

import pytest

from v8.machine.lasting import lasting


class Made:
    """Something that can be closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_what_is_kept_lasts_until_the_outermost_block_ends() -> None:
    with lasting():
        with lasting() as kept:
            made = kept["it"] = Made()
        with lasting() as kept:
            assert kept == {"it": made}
        assert not made.is_closed
    assert made.is_closed
    with lasting() as kept:
        assert kept == {}


def test_what_is_kept_is_closed_after_an_error() -> None:
    made = Made()
    with pytest.raises(ValueError, match="of a run"), lasting(), lasting() as kept:
        kept["it"] = made
        raise ValueError("of a run")
    assert made.is_closed
