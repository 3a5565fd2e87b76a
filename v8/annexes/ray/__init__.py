"""Ray: trains the series of a run in tasks of a cluster."""
