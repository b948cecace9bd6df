"""One channel per group: there is no matrix to multiply by, so each head multiplies a strided view
and adds it in place.

A head touches only the queries that see a token, so nothing is padded.  The outputs are computed
some rows at a time, so that they stay in a core's cache until every head has added to them.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from operator import mul

from torch import Tensor

from construct.execution.blocks import pieces, queries_per_block
from construct.execution.shifts.windows import Ints, Shifts, filled_images

AT_ONCE = 2**18
"""Numbers of the outputs at a time (1 MiB in float32)."""
MIN_ROW = 2**4
"""Queries of a row from which channels may be first in memory; a shorter row makes no loop."""


def depthwise(
    images: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, last: bool, adjoint: bool
) -> Tensor:
    """The forward map of x (B, C, *n), or the adjoint of y (B, C, *o); w (heads, C, 1, 1)."""
    rows = last or shifts.output[-1] < MIN_ROW
    if rows:
        images = images.movedim(1, -1).contiguous().movedim(-1, 1)
    size = shifts.size if adjoint else shifts.output
    out = filled_images(images, images.shape[1], size, rows, bias)
    factors = w.reshape(len(w), -1, *(1,) * len(size)).unbind()
    x, y = (out, images) if adjoint else (images, out)
    for head, tokens, queries in _pairs(shifts, x, y):
        if adjoint:
            tokens.addcmul_(queries, factors[head])
        else:
            queries.addcmul_(tokens, factors[head])
    return out if rows == last else out.contiguous()


def depthwise_weights(x: Tensor, y: Tensor, shifts: Shifts) -> Tensor:
    """The gradient of the weights: x (B, C, *n), y (B, C, *o) → (heads, C, 1, 1)."""
    total = x.new_zeros(len(shifts.offsets), x.shape[1])
    for head, tokens, queries in _pairs(shifts, x, y):
        total[head] += (tokens * queries).sum((0, *range(2, x.dim())))
    return total[:, :, None, None]


def _pairs(shifts: Shifts, x: Tensor, y: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The head, its tokens in x and the queries in y that see them, some rows at a time."""
    rows = queries_per_block(AT_ONCE // (prod(x.shape[:2]) * prod(shifts.output[1:])))
    x_first = x.storage_offset()
    y_first = y.storage_offset()
    y_strides = y.stride()
    for head, shape, x_strides, token, query in _overlaps(
        shifts, rows, tuple(x.shape[:2]), x.stride(), y_strides
    ):
        yield (
            head,
            x.as_strided(shape, x_strides, x_first + token),
            y.as_strided(shape, y_strides, y_first + query),
        )


@lru_cache(maxsize=64)
def _overlaps(
    shifts: Shifts, rows: int, leading: Ints, x_strides: Ints, y_strides: Ints
) -> tuple[tuple[int, Ints, Ints, int, int], ...]:
    """For so many rows of outputs at a time, and each head that sees a token: the head; the shape
    and the strides of its tokens; and where in memory the tokens and the queries begin.
    """
    along = tuple(map(mul, shifts.step, x_strides[2:]))
    planned = []
    for part in pieces(shifts.output[0], rows):
        ranges = [part, *(slice(0, n) for n in shifts.output[1:])]
        for head, offset in enumerate(shifts.offsets):
            first = []
            count = []
            for queries, e, step, size in zip(
                ranges, offset, shifts.step, shifts.size, strict=True
            ):
                first.append(max(queries.start, -(e // step)))
                count.append(min(queries.stop, -((e - size) // step)) - first[-1])
            if min(count) > 0:
                token = sum(map(mul, first, along)) + sum(map(mul, offset, x_strides[2:]))
                strides = (*x_strides[:2], *along)
                planned.append(
                    (head, (*leading, *count), strides, token, sum(map(mul, first, y_strides[2:])))
                )
    return tuple(planned)
