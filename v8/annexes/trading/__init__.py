"""Trading: the economic value of forecasts, after fees and spread, by five rules."""
