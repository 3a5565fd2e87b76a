"""What kinds of inputs are worth: models whose inputs are known tell the right kind, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_profiles import demo_data, tiny_ranged_profile

from v8.data.span import Span
from v8.model.evaluation.metrics import IMPORTANCE_WINDOWS, importance_rows, kind_of, measure_importance


@pytest.fixture(scope="module")
def span() -> Span:
    return demo_data(tiny_ranged_profile(newest_bars=2_000)).spans["test"]


def reading(span: Span, column: str) -> Callable[[NDArray[np.float32]], Any]:
    """Return a model that reads one input: the newest one widens a candle about the last close."""
    names = span.profile.features
    place = names.index(column)
    close = names.index("close")

    def forecast(windows_WTF: NDArray[np.float32]) -> Any:
        last_W, read_W = (windows_WTF[:, -1, each].astype(np.float64) for each in (close, place))
        side_C = np.array([0.0, 0.004, -0.004, 0.0])
        candles = last_W[:, None, None] * (1 + read_W[:, None, None] * side_C)
        ohlc = np.broadcast_to(candles, (len(candles), span.horizon_bars, 4))
        flat = {task: np.ones((len(candles), span.horizon_bars, 1)) for task in ("bands", "volatility")}
        return SimpleNamespace(points={"ohlc": ohlc, **flat})

    return forecast


def test_the_kind_that_a_model_reads_is_worth_something_and_no_other(span: Span) -> None:
    importance = measure_importance(span, reading(span, "range_1"))
    assert list(importance) == ["candles", "ranges", "moves", "clock", "bands"]
    assert importance["ranges"]["ohlc"] > 1.01
    others = [told["ohlc"] for kind, told in importance.items() if kind != "ranges"]
    # Candles are lent in multiples of the close, so that the last close stays, but for single precision.
    np.testing.assert_allclose(others, 1.0, atol=1e-3)
    assert {task for told in importance.values() for task in told} == {"ohlc", "bands", "volatility"}
    assert measure_importance(span, reading(span, "range_1")) == importance


def test_errors_are_those_of_windows_evenly_over_the_span(span: Span) -> None:
    seen: list[int] = []

    def forecast(windows_WTF: NDArray[np.float32]) -> Any:
        seen.append(len(windows_WTF))
        return reading(span, "range_1")(windows_WTF)

    measure_importance(span, forecast)
    assert (
        len(span) > IMPORTANCE_WINDOWS / 2
        and len({*seen}) == 1
        and IMPORTANCE_WINDOWS / 2 < seen[0] <= IMPORTANCE_WINDOWS
    )
    assert len(seen) == 1 + 5


def test_kinds_are_told_by_names() -> None:
    kinds = {
        "clock": ("day_sin_1", "week_cos_2"),
        "volume": ("volume_norm",),
        "bands": ("bb_upper", "bb_width", "rolled_middle_1"),
        "ranges": ("range_240", "recent_range", "realised_5", "atr", "volatility"),
        "candles": ("open", "high", "low", "close"),
        "moves": ("move_5", "rsi", "macd", "roc", "ta.stoch(window=10)"),
        "beside": ("BTCUSDT.close", "BTCUSDT.day_sin_1", "csv.rate"),
    }
    assert all(kind_of(name) == kind for kind, names in kinds.items() for name in names)


def test_rows_are_medians_with_the_most_needed_kind_first() -> None:
    found = [
        {"clock": {"ohlc": 1.0, "volatility": each}, "candles": {"ohlc": 1.2, "volatility": 2.0}}
        for each in (1.1, 1.5, 1.3)
    ]
    assert importance_rows(found) == [["candles", "1.200", "2.000"], ["clock", "1.000", "1.300"]]
