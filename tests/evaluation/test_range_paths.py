"""Paths of past returns: against a loop over every path, and what follows when ranges widen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from v8.evaluation.past import Bars, Known, Lesson, Past
from v8.evaluation.range_paths import HAR_BARS, NUM_PATHS, SEED, fit_range_paths


def _judged(past: Past, bars: Bars | None = None) -> Known:
    bars = bars or past.train.bars
    closes = np.lib.stride_tricks.sliding_window_view(bars.column("close"), 20)[past.rows - 19]
    return Known(closes, past.train.horizon_bars, past.rows, bars)


def _lesson(past: Past) -> Lesson:
    return Lesson({}, past.train, past.train_truth)


def _terms(known: Known) -> np.ndarray:
    """A constant and the log of the usual move over each horizon, bar by bar."""
    high, low = known.bars.column("high"), known.bars.column("low")
    rows = []
    for row in known.rows:
        ranges = np.log(high / low)[: row + 1]
        rows.append([1.0, *(np.log(np.sqrt(np.pi / 8) * ranges[-bars:].mean()) for bars in HAR_BARS)])
    return np.array(rows)


def test_medians_are_those_of_a_loop_over_every_path(make_market_span) -> None:
    past = make_market_span(num_train=120, num_windows=6, horizon_bars=3).past
    known, truth = _judged(past), past.train_truth["ohlc"]
    asked = np.log(truth[:, :, 1] / truth[:, :, 2])
    coefficients = np.linalg.lstsq(_terms(past.train), np.log(asked), rcond=None)[0]
    before = np.concatenate([past.train.last_close[:, None], truth[:, :-1, 3]], axis=1)
    multiples = np.log(truth / before[:, :, None]) / np.exp(_terms(past.train) @ coefficients)[:, :, None]
    drawn = np.random.default_rng(SEED).integers(len(truth), size=NUM_PATHS // 2)
    upper, volatility, high, close = np.empty((4, NUM_PATHS, 6, 3))
    for window, ranges in enumerate(np.exp(_terms(known) @ coefficients)):
        for number in range(NUM_PATHS):
            lent = multiples[drawn[number % (NUM_PATHS // 2)]] * ranges[:, None]
            is_mirror = number >= NUM_PATHS // 2
            walk = np.cumsum(-lent[:, 3] if is_mirror else lent[:, 3])
            path = np.concatenate([known.history_close[window], known.last_close[window] * np.exp(walk)])
            for step in range(3):
                twenty = path[step + 1 : step + 21]
                upper[number, window, step] = twenty.mean() + 2 * twenty.std(ddof=1)
                volatility[number, window, step] = twenty.std(ddof=1) / twenty.mean()
                reached = -lent[step, 2] if is_mirror else lent[step, 1]  # a low upside down is a high
                high[number, window, step] = path[step + 19] * np.exp(reached)
                close[number, window, step] = path[step + 20]
    made = fit_range_paths(_lesson(past))(known)
    np.testing.assert_allclose(made["bands"][:, :, 0], np.median(upper, axis=0), rtol=1e-9)
    np.testing.assert_allclose(made["volatility"][:, :, 0], np.median(volatility, axis=0), rtol=1e-7)
    np.testing.assert_allclose(made["ohlc"][:, :, 1], np.median(high, axis=0), rtol=1e-6)
    np.testing.assert_allclose(made["ohlc"][:, :, 3], np.median(close, axis=0), rtol=1e-3)
    np.testing.assert_allclose(made["ohlc"][:, :, 3], known.last_close[:, None] * np.ones(3), rtol=1e-12)


def test_many_windows_are_forecast_as_each_is_alone(make_market_span) -> None:
    past = make_market_span(num_windows=70).past
    forecast = fit_range_paths(_lesson(past))
    together = forecast(_judged(past))
    for place in (0, 31, 32, 69):
        alone = forecast(_judged(replace(past, rows=past.rows[place : place + 1])))
        for task, values in alone.items():
            np.testing.assert_allclose(values[0], together[task][place], rtol=1e-12)


def test_nothing_is_said_about_the_way(make_market_span) -> None:
    past = make_market_span().past
    known = _judged(past)
    flat = replace(known, history_close=np.full_like(known.history_close, 7.0))
    made = fit_range_paths(_lesson(past))(flat)
    # All known closes are 7, so only the paths move; a path and its mirror image weigh alike.
    up, down = made["bands"][:, :, 0] / 7 - 1, 1 - made["bands"][:, :, 1] / 7
    np.testing.assert_allclose(up, down, rtol=0.02)
    assert (np.diff(made["volatility"][:, :, 0], axis=1) > 0).all()  # more of the path in the window


def test_wider_bars_make_wider_bands(make_market_span) -> None:
    past = make_market_span().past
    bars = past.train.bars
    wider = bars.ohlc.copy()
    wider[:, 1] *= np.sqrt(bars.column("high") / bars.column("low"))
    wider[:, 2] /= np.sqrt(bars.column("high") / bars.column("low"))  # log ranges are doubled
    forecast = fit_range_paths(_lesson(past))
    calm = forecast(_judged(past))["volatility"]
    wild = forecast(_judged(past, Bars(wider, bars.segment)))["volatility"]
    assert (wild > calm).mean() > 0.95


def test_a_market_without_ranges_stays_where_it_is(make_market_span) -> None:
    past = make_market_span().past
    flat = Bars(np.full_like(past.train.bars.ohlc, 5.0), past.train.bars.segment)
    train = replace(past.train, bars=flat, history_close=np.full_like(past.train.history_close, 5.0))
    truth = {task: np.full_like(values, 5.0) for task, values in past.train_truth.items()}
    made = fit_range_paths(Lesson({}, train, truth))(_judged(past, flat))
    np.testing.assert_allclose(made["bands"], 5.0, rtol=1e-12)
    assert made["volatility"] == pytest.approx(0.0, abs=1e-9)
