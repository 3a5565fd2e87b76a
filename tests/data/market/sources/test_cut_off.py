"""Of a source that is cut off nothing later is seen, whatever is asked."""

from __future__ import annotations

import numpy as np
import pytest

from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.data.market.sources.source import CutOffSource

SERIES = Series("BTCUSDT", "15m")


@pytest.mark.parametrize("asked", [None, -10, 0, 10])
def test_no_later_candle_is_shown_and_earlier_ones_are_as_they_were(asked: int | None) -> None:
    whole = DemoSource().candles(SERIES, 300)
    newest_s = int(whole.open_time_s[199])
    cut = CutOffSource(DemoSource(), {str(SERIES): newest_s})
    end_s = None if asked is None else newest_s + asked * SERIES.bar_s
    candles = cut.candles(SERIES, 50, end_s)
    last = 199 + min(asked or 0, 0)
    np.testing.assert_array_equal(candles.open_time_s, whole.open_time_s[last - 49 : last + 1])
    assert candles.report.num_newer == 0
    assert (cut.name, cut.is_publishable) == ("demo", False)
