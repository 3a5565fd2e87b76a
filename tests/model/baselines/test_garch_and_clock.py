"""GARCH(1,1): equal to `arch`, and not offered without it; the regression with a clock, which needs none."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from v8.base.errors import SeriesError
from v8.model.baselines.baselines import BASELINES, Garch, fit_garch, log_returns


@pytest.fixture
def arch() -> object:
    return pytest.importorskip("arch", reason="optional: pip install arch")


def test_a_variance_ahead_is_the_one_worked_out_by_hand(make_market_span) -> None:
    span = make_market_span(horizon_bars=3).test
    garch = Garch(constant=1e-6, of_square=0.1, of_variance=0.8)
    variance = 0.0
    for square in log_returns(span)[: int(span.anchors[0]) + 1] ** 2:
        variance = 1e-6 + 0.1 * square + 0.8 * variance
    second = 1e-6 + 0.9 * variance
    third = 1e-6 + 0.9 * second
    means = [variance, (variance + second) / 2, (variance + second + third) / 3]
    np.testing.assert_allclose(garch.variances(span)[0], means, rtol=1e-12)


def test_a_return_across_a_gap_is_none(make_market_span) -> None:
    span = make_market_span().test
    returns = log_returns(span)
    assert returns[0] == 0.0
    closes = span.table.column("close").astype(np.float64)
    np.testing.assert_allclose(returns[1:], np.diff(np.log(closes)), rtol=1e-12)


def test_forecast_variances_are_those_of_arch(make_market_span, arch) -> None:
    train = make_market_span(num_train=1_500, horizon_bars=5).train
    garch = fit_garch(train)
    returns = log_returns(train)[int(train.anchors[0]) : int(train.anchors[-1]) + 1]
    scale = returns.std()
    fitted = arch.arch_model(returns / scale, mean="Zero", vol="GARCH", p=1, q=1, rescale=False).fit(
        disp="off"
    )
    theirs = fitted.forecast(horizon=5, reindex=False).variance.to_numpy()[0] * scale**2
    means = np.cumsum(theirs) / np.arange(1, 6)
    np.testing.assert_allclose(garch.variances(train)[-1], means, rtol=1e-4)


def test_without_arch_garch_alone_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arch", None)
    assert not BASELINES["garch"].is_installed()
    assert BASELINES["log_har_clock"].is_installed()


def test_whoever_asks_for_garch_without_arch_is_told_how_to_get_it(
    make_market_span, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "arch", None)
    with pytest.raises(SeriesError) as raised:
        make_market_span().forecast("garch")
    assert raised.value.where == "baseline garch"
    assert raised.value.fix.startswith("Run: pip install arch")


def test_the_clock_learns_at_which_quarters_of_the_hour_bars_are_long(make_market_span) -> None:
    # 20 days of 96 bars: waves of an hour are fitted from 16 days on.
    series = make_market_span(num_train=2_000, num_windows=500, tasks=("ohlc", "range"))
    is_full_hour = series.test.table.open_time_s % 3_600 == 0

    def longer_at_full_hours(name: str, values: np.ndarray) -> np.ndarray:
        return values * np.where(is_full_hour, 1.02, 1.0) if name == "high" else values

    recut = series.recut(longer_at_full_hours)
    actual = recut.test.actual["range"]
    errors = {
        name: np.abs(recut.forecast(name)["range"] - actual).mean() for name in ("log_har_clock", "har")
    }
    assert errors["log_har_clock"] < 0.5 * errors["har"]
