"""Fuzzing: inputs made from valid ones by chance, and what v8 must say about each; see `scripts/fuzz.py`."""
