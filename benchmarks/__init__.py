"""Benchmarks, which measure and assert nothing: run as ``python -m benchmarks.<name>``."""
