"""Drills: real faults and kills of the command line; `scripts/drill.py` runs them."""
