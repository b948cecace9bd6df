"""Benchmarks, which measure and assert nothing: run as ``python -m benchmarks.<name>``."""

import os

# of torch.profiler, which otherwise prints a line for each thread
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
