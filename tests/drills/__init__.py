"""Drills: real faults and kills of the command line; `python tests/drills` runs them."""
