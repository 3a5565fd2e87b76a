"""Quantiles: what validation corrects."""

from __future__ import annotations

import numpy as np

from v8.model.baselines.ranges import conformal_widths, trusted_share
from v8.profile.columns import outer

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def test_stretched_quantiles_hold_their_share_of_later_windows_however_far_they_lay_off() -> None:
    """Truth is Student's t about the median; the forecast believes in half of its spread."""
    rng = np.random.default_rng(1)
    num = 60_000
    units = rng.uniform(0.5, 2.0, (num, 1, 1))
    distances = np.array([-1.0, -0.4, 0.4, 1.0])[:, None] * units[..., None]
    points = {"ohlc": np.zeros((num, 1, 1))}
    actual = {"ohlc": units * rng.standard_t(4, (num, 1, 1))}
    (widths_HLC,) = conformal_widths(LEVELS, actual, points, {"ohlc": distances}).values()
    later_units = rng.uniform(0.5, 2.0, (num, 1, 1))
    later = later_units * rng.standard_t(4, (num, 1, 1))
    kept = 1.0 + (widths_HLC[0, :, 0] - 1.0) / trusted_share(num, 1)
    shares = (later <= np.array([-1.0, -0.4, 0.4, 1.0]) * kept * later_units).mean(axis=0)[0]
    np.testing.assert_allclose(shares, outer(LEVELS), atol=0.01)


def test_a_move_found_in_few_windows_is_kept_in_part() -> None:
    actual = {"ohlc": np.full((100, 10, 4), 2.0)}
    points = {"ohlc": np.zeros((100, 10, 4))}
    distances = {"ohlc": np.ones((100, 10, 2, 4)) * np.array([-1.0, 1.0])[:, None]}
    (widths,) = conformal_widths((0.1, 0.5, 0.9), actual, points, distances).values()
    # Ten windows that do not overlap, and 200 in doubt: of one unit more, and of three fewer.
    np.testing.assert_allclose(widths[:, 1], 1 + 10 / 210)
    np.testing.assert_allclose(widths[:, 0], 1 - 3 * 10 / 210)
