"""Blocks of queries: ranges of an image's outputs that a kernel computes at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

import torch

from construct.execution.kernels import constants
from construct.execution.kernels.byte_cache import bounded_cache

_MOST_QUERIES: ContextVar[int | None] = ContextVar("most queries of a block", default=None)


def most_queries() -> int | None:
    """The limit set by :func:`smaller_blocks`; None outside it."""
    return _MOST_QUERIES.get()


def queries_per_block(fitting: int, most: int | None) -> int:
    """The number of queries per block, at least 1: as many as fit, but at most ``most``."""
    return max(1, fitting if most is None else min(fitting, most))


def at_once(dtype: torch.dtype, gpu: bool) -> int:
    """How many numbers are copied or computed at a time: the same number of bytes for every dtype."""
    return (constants.AT_ONCE_ON_GPU if gpu else constants.AT_ONCE) * 4 // dtype.itemsize


@contextmanager
def smaller_blocks(queries: int) -> Iterator[None]:
    """Limit blocks to ``queries`` queries within the ``with`` block, so that small inputs take several blocks too."""
    token = _MOST_QUERIES.set(queries)
    try:
        yield
    finally:
        _MOST_QUERIES.reset(token)


@bounded_cache
def pieces(length: int, most: int) -> tuple[slice, ...]:
    """Split 0 … length into equal pieces of at most ``most``; the last may be shorter."""
    size = ceil(length / max(1, ceil(length / most))) or 1
    return tuple(slice(start, min(length, start + size)) for start in range(0, length, size))


@dataclass(frozen=True)
class Block:
    """Consecutive queries of one image in row-major order.

    Attributes:
        box: their range along each axis.
        first: the row-major number of the first one.
    """

    box: tuple[slice, ...]
    first: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of queries along each axis."""
        return tuple(part.stop - part.start for part in self.box)

    @property
    def flat(self) -> slice:
        """The queries' row-major numbers."""
        return slice(self.first, self.first + prod(self.shape))


@bounded_cache
def blocks(output: tuple[int, ...], most: int) -> tuple[Block, ...]:
    """An image's queries in blocks of at most ``most``: whole trailing axes, a range of one axis, one position on the others."""
    axis = len(output)
    while axis and prod(output[axis - 1 :]) <= most:
        axis -= 1
    ranges = [pieces(n, 1) for n in output[: axis - 1]] if axis else []
    if axis:
        ranges.append(pieces(output[axis - 1], max(1, most // prod(output[axis:]))))
    ranges += [(slice(0, n),) for n in output[axis:]]
    strides = [prod(output[i + 1 :]) for i in range(len(output))]
    return tuple(
        Block(box, sum(part.start * stride for part, stride in zip(box, strides, strict=True)))
        for box in product(*ranges)
    )
