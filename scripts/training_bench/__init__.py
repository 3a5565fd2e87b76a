"""The parts of `bench_training.py`."""
