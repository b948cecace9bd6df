"""Blocks of queries: ranges of an image's outputs that are computed at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import ceil

_MOST_QUERIES: ContextVar[int | None] = ContextVar("most queries of a block", default=None)


def most_queries() -> int | None:
    """The limit set by :func:`smaller_blocks`; None outside it."""
    return _MOST_QUERIES.get()


def queries_per_block(fitting: int) -> int:
    """The number of queries per block, at least 1: as many as fit, but no more than
    :func:`most_queries`.
    """
    return max(1, min(fitting, most_queries() or fitting))


@contextmanager
def smaller_blocks(queries: int) -> Iterator[None]:
    """Limit blocks to ``queries`` queries within the ``with`` block, so that small inputs take
    several blocks too.
    """
    token = _MOST_QUERIES.set(queries)
    try:
        yield
    finally:
        _MOST_QUERIES.reset(token)


def pieces(length: int, most: int) -> tuple[slice, ...]:
    """Split 0 … length into equal pieces of at most ``most``; the last may be shorter."""
    size = ceil(length / max(1, ceil(length / most))) or 1
    return tuple(slice(start, min(length, start + size)) for start in range(0, length, size))
