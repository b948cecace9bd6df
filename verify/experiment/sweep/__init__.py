"""``python -m verify sweep``: certifies many networks, or many random layers with planted faults, on a cluster of Dask.

It builds and runs what it judges, so it is the one part of ``verify`` that uses all of ``construct``.
"""
