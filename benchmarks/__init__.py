"""Measured, never asserted: run as ``python -m benchmarks.<name>``."""
