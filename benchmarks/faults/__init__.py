"""Faults of real machines, done on purpose; `python -m benchmarks.faults` does them all."""
