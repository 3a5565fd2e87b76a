"""The run: which stages, in which order, on which processes."""
