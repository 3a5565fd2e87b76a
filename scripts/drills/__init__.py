"""Drills: faults and kills done for real to the command line; `scripts/drill.py` runs them."""
