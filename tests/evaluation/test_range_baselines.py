"""Baselines of the range: what they fit is found again when the truth follows their formula."""

from __future__ import annotations

import numpy as np
import pytest

from v8.data.targets import future_weights, roll_forward
from v8.evaluation.past import Known, Lesson
from v8.evaluation.range_baselines import fit_ewma, fit_har, fit_scaled


def _deviations(known: Known) -> np.ndarray:
    """Deviation of roll-forward's twenty closes over the last close, shape (N, H), written plainly."""
    found = []
    for closes in known.history_close:
        path = np.concatenate([closes, np.full(known.horizon_bars, closes[-1])])
        found.append(
            [np.std(path[k : k + 20], ddof=1) / closes[-1] for k in range(1, known.horizon_bars + 1)]
        )
    return np.array(found)


def _ranged(known: Known, variance: np.ndarray, constant: float) -> dict[str, np.ndarray]:
    """The truth of a market in which every deviation is what the formula says, high up, low down."""
    rolled = roll_forward(known.history_close, known.horizon_bars)
    last = known.last_close[:, None]
    before = _deviations(known)
    grown = np.sqrt(before**2 + constant * variance[:, None] * future_weights(known.horizon_bars)) - before
    reach = np.repeat(np.sqrt(variance)[:, None], known.horizon_bars, axis=1)
    ohlc = np.stack([0 * reach, 1.5 * reach, -0.5 * reach, 0 * reach], axis=2)
    return {
        "ohlc": rolled["ohlc"] * (1 + ohlc),
        "bands": rolled["bands"] + (grown * last)[:, :, None] * np.array([2, -2]),
        "volatility": rolled["volatility"] + grown[:, :, None],
    }


@pytest.mark.parametrize("constant", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("name", ["scaled", "ewma"])
def test_constants_of_a_market_that_follows_the_formula_are_found(
    make_market_span, name: str, constant: float
) -> None:
    past = make_market_span(horizon_bars=4).past
    bars = past.train.bars
    variance = bars.range_variance(20) if name == "scaled" else bars.ewma_variance
    fit = fit_scaled if name == "scaled" else fit_ewma
    truth = _ranged(past.train, variance[past.train.rows], constant)
    closes = np.lib.stride_tricks.sliding_window_view(bars.column("close"), 20)[past.rows - 19]
    asked = Known(closes, 4, past.rows, bars)
    made = fit(Lesson({}, past.train, truth))(asked)
    for task, values in _ranged(asked, variance[past.rows], constant).items():
        np.testing.assert_allclose(made[task], values, rtol=1e-9, atol=1e-12)


def test_a_regression_finds_the_range_that_counts(make_market_span) -> None:
    # Highs reach as far as the range of five bars says and lows as far as that of sixty.
    past = make_market_span(num_train=400).past
    five, sixty = (np.sqrt(past.train.bars.range_variance(bars)) for bars in (5, 60))

    def truth(rows: np.ndarray, last: np.ndarray) -> np.ndarray:
        moved = np.stack([0 * five, 1.2 * five, -0.8 * sixty, 0 * five], axis=1)[rows]
        return last[:, None, None] * (1 + np.repeat(moved[:, None], 3, axis=1))

    lesson = Lesson({}, past.train, {"ohlc": truth(past.train.rows, past.train.last_close)})
    closes = np.lib.stride_tricks.sliding_window_view(past.train.bars.column("close"), 20)[past.rows - 19]
    made = fit_har(lesson)(Known(closes, 3, past.rows, past.train.bars))
    np.testing.assert_allclose(made["ohlc"], truth(past.rows, closes[:, -1]), rtol=1e-6)


def test_a_regression_leaves_open_and_close_at_the_last_close(make_market_span) -> None:
    past = make_market_span().past
    lesson = Lesson({}, past.train, {"ohlc": past.train_truth["ohlc"]})
    made = fit_har(lesson)(past.train)["ohlc"]
    for column in (0, 3):
        np.testing.assert_array_equal(
            made[:, :, column], np.repeat(past.train.last_close[:, None], 3, axis=1)
        )
    assert (made[:, :, 1] > made[:, :, 3]).mean() > 0.95
    assert (made[:, :, 2] < made[:, :, 3]).mean() > 0.95
