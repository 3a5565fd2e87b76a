"""All that forecasts without a network: baselines, simulated range paths, regressions, conformal levels."""
