"""``python -m verify sweep``: certifies many networks, or many random layers with planted faults,
on a Dask cluster.

It builds and runs what it judges, so it is the only part of ``verify`` that uses all of
``construct``.
"""
