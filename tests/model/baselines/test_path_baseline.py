"""Paths of past returns: against a loop over every path, and what follows when ranges widen."""

from __future__ import annotations

import numpy as np

from v8.data.span import Span
from v8.model.baselines.baselines import fit_range_paths
from v8.model.baselines.ranges import NUM_PATHS, SEED
from v8.profile.columns import RANGE_BARS


def _terms(span: Span) -> np.ndarray:
    """A constant and the log of the usual move over each horizon, bar by bar."""
    high = span.table.column("high")
    low = span.table.column("low")
    rows = []
    for row in span.anchors:
        ranges = np.log(high / low)[: row + 1]
        rows.append([1.0, *(np.log(np.sqrt(np.pi / 8) * ranges[-bars:].mean()) for bars in RANGE_BARS)])
    return np.array(rows)


def test_medians_are_those_of_a_loop_over_every_path(make_market_span) -> None:
    series = make_market_span(num_train=120, num_windows=6, horizon_bars=3)
    train = series.train
    test = series.test
    actual = series.train.actual["ohlc"]
    asked = np.log(actual[:, :, 1] / actual[:, :, 2])
    coefficients = np.linalg.lstsq(_terms(train), np.log(asked), rcond=None)[0]
    before = np.concatenate([train.last_close[:, None], actual[:, :-1, 3]], axis=1)
    multiples = np.log(actual / before[:, :, None]) / np.exp(_terms(train) @ coefficients)[:, :, None]
    drawn = np.random.default_rng(SEED).integers(len(actual), size=NUM_PATHS // 2)
    upper, volatility, high, close = np.empty((4, NUM_PATHS, 6, 3))
    for window, ranges in enumerate(np.exp(_terms(test) @ coefficients)):
        for number in range(NUM_PATHS):
            resampled = multiples[drawn[number % (NUM_PATHS // 2)]] * ranges[:, None]
            is_mirror = number >= NUM_PATHS // 2
            walk = np.cumsum(-resampled[:, 3] if is_mirror else resampled[:, 3])
            path = np.concatenate([test.history_close[window], test.last_close[window] * np.exp(walk)])
            for step in range(3):
                twenty = path[step + 1 : step + 21]
                upper[number, window, step] = twenty.mean() + 2 * twenty.std(ddof=1)
                volatility[number, window, step] = twenty.std(ddof=1) / twenty.mean()
                reached = (
                    -resampled[step, 2] if is_mirror else resampled[step, 1]
                )  # a low upside down is a high
                high[number, window, step] = path[step + 19] * np.exp(reached)
                close[number, window, step] = path[step + 20]
    forecast = fit_range_paths(train, series.scaling)(test)
    # The paths are simulated in single precision: half a step of a price is 6e-8 of it.
    np.testing.assert_allclose(forecast["bands"][:, :, 0], np.median(upper, axis=0), rtol=2.0**-23)
    np.testing.assert_allclose(forecast["volatility"][:, :, 0], np.median(volatility, axis=0), rtol=1e-7)
    np.testing.assert_allclose(forecast["ohlc"][:, :, 1], np.median(high, axis=0), rtol=1e-6)
    np.testing.assert_allclose(forecast["ohlc"][:, :, 3], np.median(close, axis=0), rtol=1e-3)
    np.testing.assert_allclose(forecast["ohlc"][:, :, 3], test.last_close[:, None] * np.ones(3), rtol=1e-12)


def test_many_windows_are_forecast_as_each_is_alone(make_market_span) -> None:
    series = make_market_span(num_windows=70)
    test = series.test
    forecast = fit_range_paths(series.train, series.scaling)
    together = forecast(test)
    for place in (0, 31, 32, 69):
        alone = forecast(Span(test.table, test.profile, test.anchors[place : place + 1]))
        for task, values in alone.items():
            np.testing.assert_allclose(values[0], together[task][place], rtol=1e-12)


def test_nothing_is_said_about_the_way(make_market_span) -> None:
    series = make_market_span()
    flat = series.told(history_close=np.full_like(series.test.history_close, 7.0))
    forecast = flat.forecast("range_paths")
    # All known closes are 7, so only the paths move; a path and its mirror image weigh alike.
    up = forecast["bands"][:, :, 0] / 7 - 1
    down = 1 - forecast["bands"][:, :, 1] / 7
    np.testing.assert_allclose(up, down, rtol=0.02)
    assert (np.diff(forecast["volatility"][:, :, 0], axis=1) > 0).all()  # more of the path in the window


def test_wider_bars_make_wider_bands(make_market_span) -> None:
    series = make_market_span()
    table = series.test.table
    half = np.sqrt(table.column("high") / table.column("low"))
    factors = {"high": half, "low": 1 / half}  # log ranges are doubled
    wider = series.recut(lambda column, values: values * factors.get(column, 1.0))
    forecast = fit_range_paths(series.train, series.scaling)
    calm, wild = (forecast(each.test)["volatility"] for each in (series, wider))
    assert (wild > calm).mean() > 0.95
