"""The present: forecasts into a ledger, their page and API, renewal of models."""
