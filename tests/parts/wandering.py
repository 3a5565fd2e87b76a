"""A market whose volatility comes and goes, with forecasts that know it, and others that know it too late."""

from __future__ import annotations

import numpy as np

from v8.annexes.trading.rules import NAIVE, MarketForecast, MarketWindows, TradingCase, calibrate_forecast
from v8.model.evaluation.evaluation import MODEL


def wandering(num_days: int, seed: int = 0) -> TradingCase:
    """Hours of a market whose volatility comes and goes, known to the model but not to naive."""
    rng = np.random.default_rng(seed)
    num = 24 * num_days
    calm = np.exp(np.repeat(rng.normal(-5, 0.5, num // 6 + 1), 6)[:num])
    steps = calm[:, None] * rng.normal(size=(num, 30)) / np.sqrt(30)
    last = 100 * np.exp(np.append(0, np.cumsum(steps.sum(axis=1))[:-1]))
    paths = last[:, None] * np.exp(np.cumsum(steps, axis=1))
    ends = (paths[:, 0], paths.max(axis=1), paths.min(axis=1), paths[:, -1])
    windows = MarketWindows(np.stack(ends, axis=-1)[:, None], last, np.arange(num), 3_600)

    def says(deviation: np.ndarray) -> MarketForecast:
        sides = np.exp(1.6 * deviation / 2)
        around = np.stack([last, last * sides, last / sides, last], axis=-1)[:, None]
        return calibrate_forecast(windows, around, last, around)

    return TradingCase("BTCUSDT-1h", windows, {MODEL: says(calm), NAIVE: says(np.roll(calm, 12))})
